"""The subjects to which acks, answers and records may go."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acl.subjects import matches
from liftlog.sequencing import destinations
from liftlog.sequencing.destinations import MAX_LENGTH, Destinations, Why


@pytest.mark.parametrize(
    "subject",
    [
        b"",
        b"$JS.API.STREAM.PURGE.X",
        b"$SYS.REQ.USER.INFO",
        b"$anything",
        b"liftlog.offsets.a.b",
        b"a b",
        b"a\tb",
        b"a\r\nPUB x 0",
        b"a\n",
        b"a.*",
        b"a.>",
        b"a*",
        b".a",
        b"a.",
        b"a..b",
        b"caf\xc3\xa9",
        b"a\xff",
        b"a\x7f",
        b"a\x00",
        b"x" * (MAX_LENGTH + 1),
        b"orders.new",
    ],
)
def test_refused(subject: bytes) -> None:
    assert not Destinations(["orders.>"]).allows(subject)


@pytest.mark.parametrize(
    "subject",
    [b"_INBOX.abc.1", b"replies", b"a.b-c_d.e/f", b"liftlogs.x", b"x" * MAX_LENGTH, b"orders"],
)
def test_allowed(subject: bytes) -> None:
    assert Destinations(["orders.>"]).allows(subject)


def test_a_witness_takes_nobody_elses_inbox_away() -> None:
    subjects = Destinations(["orders.>"], witnesses=[">"])
    assert subjects.allows(b"_INBOX.abc")
    assert subjects.all_allowed([b"_INBOX.abc", b"_INBOX.abc.def"])
    # But no publisher can make the daemon write into what the stream records.
    assert not subjects.allows(b"payments.in")


def test_a_stream_that_acks_inboxes_is_never_acked_to() -> None:
    subjects = Destinations(["*.a"])
    assert not subjects.allows(b"_INBOX.a")
    assert subjects.allows(b"_INBOX.b")
    assert not subjects.all_allowed([b"_INBOX.b"]), "ask one by one"


# --- records ---


@pytest.mark.parametrize(
    ("subject", "granted", "expected"),
    [
        (b"_INBOX.a.1", (), None),
        (b"_INBOX_name.a.1", (), None),
        (b"_R_.abc.def", (), None),
        (b"_INBOXES.a", (), Why.NOT_GRANTED),
        (b"service.run", (), Why.NOT_GRANTED),
        (b"given.a", ("given.>",), None),
        (b"service.run", None, None),
        (b"orders.a", None, Why.RECORDED),
        (b"orders.a", ("orders.>",), Why.RECORDED),
        (b"$JS.API.STREAM.PURGE.a", None, Why.RESERVED),
        (b"liftlog.a", (">",), Why.RESERVED),
        (b"_GR_.here.there.orders.a", None, Why.RECORDED),
        (b"_GR_.here.there.$JS.API.INFO", None, Why.RESERVED),
        (b"_GR_.here.there._INBOX.a", (), None),
        (b"_GR_.here.there.service.run", (), Why.NOT_GRANTED),
    ],
)
def test_where_records_may_go(
    subject: bytes, granted: tuple[str, ...] | None, expected: Why | None
) -> None:
    found = Destinations(["orders.>"], ["quiet.>"]).for_records(subject, granted)
    assert found == (subject if expected is None else expected)


def test_the_operators_choice_limits_records_too() -> None:
    chosen = Destinations(chosen=["_INBOX.>", "replies.>"])
    assert chosen.for_records(b"service.run", None) is Why.NOT_CHOSEN
    assert chosen.for_records(b"replies.a", None) == b"replies.a"
    assert chosen.for_records(b"replies.a", ()) is Why.NOT_GRANTED


@pytest.mark.parametrize(
    ("witnesses", "source", "expected"),
    [
        ([], ["orders.>"], b"_INBOX.a"),
        ([">"], ["orders.>"], b"_INBOX.a"),
        ([">"], [">"], Why.RECORDED),
        (["_INBOX.>"], ["orders.>"], Why.RECORDED),
        (["*.a"], ["orders.>"], Why.RECORDED),
        (["*.b"], ["orders.>"], b"_INBOX.a"),
    ],
)
def test_what_is_pushed_is_recorded_by_no_stream(
    witnesses: list[str], source: list[str], expected: Why | bytes
) -> None:
    """Else a consumer feeds itself, or two of them each other."""
    found = Destinations(["orders.>"], witnesses).for_pushes(b"_INBOX.a", None, source)
    assert found == expected


PATTERN = st.sampled_from([">", "_INBOX.>", "_INBOX.*", "*.a", "*.b", "_INBOX.a", "x.>"])


@given(st.lists(st.tuples(PATTERN, st.booleans()), min_size=1, max_size=5), st.data())
def test_no_chain_of_consumers_goes_round(
    streams: list[tuple[str, bool]], data: st.DataObject
) -> None:
    """From stream to stream, by whatever a consumer of the one may push into the other."""
    decide = Destinations(
        [one for one, acks in streams if acks], [one for one, acks in streams if not acks]
    )
    patterns = [one for one, _ in streams]
    subjects = [b"_INBOX.a", b"_INBOX.b", b"_INBOX.c.d", b"x.a"]
    at = data.draw(st.sampled_from(patterns))
    for _ in range(len(patterns) + 1):
        pushed = [
            one for one in subjects if not isinstance(decide.for_pushes(one, None, [at]), Why)
        ]
        into = [one for one in patterns for to in pushed if matches(one, to.decode())]
        if not into:
            return
        at = data.draw(st.sampled_from(into))
    raise AssertionError("it goes on for ever")


TOKEN = st.text(alphabet="aZ09_-$*>\r\n é.", max_size=4).map(str.encode)
SUBJECT = st.one_of(
    TOKEN.map(lambda token: b"_INBOX." + token),
    TOKEN.map(lambda token: b"_INBOX.a" + token),
    st.sampled_from([b"", b"_INBOX.", b"_INBOX", b"orders.a", b"_INBOX." + b"x" * MAX_LENGTH]),
)


@pytest.mark.parametrize(
    "subjects",
    [[b"_INBOX.a", b"_INBOX.b\n"], [b"", b"_INBOX.a\n_INBOX.b"], [b"_INBOX.a\n_INBOX.b", b""]],
)
def test_a_line_end_inside_a_subject_does_not_pass_for_the_next_one(subjects: list[bytes]) -> None:
    assert not Destinations().all_allowed(subjects)


@pytest.mark.parametrize(
    "odd", [b"_INBOX", b"_INBOX.", b"_INBOX..a", b"_INBOX.a.", b"_INBOX.a..b", b"._INBOX.a"]
)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_an_empty_or_missing_token_is_found_wherever_it_stands(odd: bytes, place: int) -> None:
    subjects = [b"_INBOX.a", b"_INBOX.b.c"]
    subjects.insert(place, odd)
    assert not Destinations().all_allowed(subjects)


@given(
    st.lists(SUBJECT, min_size=1, max_size=5),
    st.sampled_from([[], ["orders.>"], ["_INBOX.a"], ["*.a"], [">"]]),
    st.sampled_from([[], [">"], ["_INBOX.>"]]),
)
def test_the_fast_path_never_allows_what_the_slow_one_refuses(
    subjects: list[bytes], attached: list[str], witnesses: list[str]
) -> None:
    decide = Destinations(attached, witnesses)
    if decide.all_allowed(subjects):
        assert all(map(decide.allows, subjects))


@given(st.lists(st.from_regex(rb"\A_INBOX(\.[A-Za-z0-9_-]{1,8}){1,3}\Z"), min_size=1, max_size=20))
def test_ordinary_inboxes_take_the_fast_path(subjects: list[bytes]) -> None:
    assert Destinations(["orders.>"]).all_allowed(subjects)


def test_what_publishers_choose_fills_no_memory() -> None:
    subjects = Destinations(["a.>"])
    tracemalloc.start()
    try:
        for number in range(2000):
            assert not subjects.allows(b"%d." % number + b"r" * 10_000)
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used < 1_000_000


def test_only_patterns_that_begin_alike_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message with a reply subject of its own costs as little beside many streams."""
    looked_at: list[str] = []

    def counted(pattern: str, subject: str) -> bool:
        looked_at.append(pattern)
        return matches(pattern, subject)

    monkeypatch.setattr(destinations, "matches", counted)
    many = [f"stream{i}.*.{j}" for i in range(20) for j in range(20)]
    found = Destinations([*many, "*.x", "own.y.z"], [f"witness{i}.>" for i in range(20)])
    assert found.allows(b"own.inbox.1")
    assert sorted(looked_at) == ["*.x", ">", "own.y.z"]
    assert not found.allows(b"stream7.a.8")
    assert not found.allows(b"witness7.a")
