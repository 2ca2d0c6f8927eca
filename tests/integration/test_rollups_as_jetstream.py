"""Roll-ups as in JetStream: the same answers, the same state after each step, the same deliveries.

A real JetStream and the daemon get the same messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.clients.jetstream_sides import (
    SECOND,
    Sides,
    ack,
    answered,
    asked,
    both_sides,
    consumer,
    fetched,
    figures,
    pull,
    shown,
)
from support.clients.raw_nats import RawNats, header_block, hpub_frame, pub_frame
from support.rounds import chance_of, rounds

pytestmark = pytest.mark.integration

SUBJECTS = ("s.a", "s.b", "s.c.d")
PATTERNS = ("s.*", "s.>", "s.c.*")
STATE = ("messages", "first_seq", "last_seq", "num_deleted", "deleted", "num_subjects", "subjects")
WHOLE = {"deleted_details": True, "subjects_filter": ">"}


@pytest.fixture(scope="module")
def connected() -> Iterator[Sides]:
    with both_sides() as sides:
        yield sides


@pytest.fixture
def sides(connected: Sides) -> Iterator[Sides]:
    yield connected
    for raw in connected:
        answered(raw, "STREAM.DELETE.s", {})
    for raw in connected:
        raw.forget()


def create(sides: Sides, **config: Any) -> None:
    for raw in sides:
        body = {"name": "s", "subjects": ["s.>"], "allow_direct": True, "allow_rollup_hdrs": True}
        asked(raw, "STREAM.CREATE.s", body | config)


def stored(sides: Sides, subject: str, **headers: str) -> Any:
    """Publish to both, compare the answers, and return them."""
    block = header_block({name.replace("_", "-"): one for name, one in headers.items()})
    theirs, ours = (raw.request(subject, b"x", headers=block).json() for raw in sides)
    if "error" in theirs:
        theirs.pop("seq", None), ours.pop("seq", None)
    assert ours == theirs, (subject, headers)
    return theirs


def plain(sides: Sides, *subjects: str) -> None:
    for subject in subjects:
        for raw in sides:
            assert "seq" in raw.request(subject, b"x").json()


def state(raw: RawNats) -> dict[str, Any]:
    found = asked(raw, "STREAM.INFO.s", WHOLE)["state"]
    return {name: found.get(name) or None for name in STATE}


def same_state(sides: Sides) -> dict[str, Any]:
    theirs, ours = map(state, sides)
    assert ours == theirs
    return theirs


def same_gets(sides: Sides, last: int) -> None:
    bodies: list[dict[str, Any]] = [{"seq": number} for number in range(1, last + 2)]
    for subject in (*SUBJECTS, *PATTERNS):
        bodies += [{"last_by_subj": subject}, {"next_by_subj": subject, "seq": 1}]
    for body in bodies:
        found = []
        for raw in sides:
            answer = answered(raw, "STREAM.MSG.GET.s", body)
            message = answer.get("message")
            found.append((message["seq"], message["subject"]) if message else answer["error"])
        assert found[0] == found[1], body


# --- answers ---


@pytest.mark.parametrize("value", ["sub", "all", "SUB", "All", "", "subs", " sub", 'a"b', "0"])
@pytest.mark.parametrize("is_allowed", [True, False])
def test_values(sides: Sides, value: str, is_allowed: bool) -> None:
    create(sides, allow_rollup_hdrs=is_allowed)
    plain(sides, "s.a", "s.b", "s.a")
    stored(sides, "s.a", Nats_Rollup=value)
    same_state(sides)


@pytest.mark.parametrize("bucket", [{}, {"max_msgs_per_subject": 1}])
def test_rollups_need_purges(sides: Sides, bucket: dict[str, Any]) -> None:
    """A stream that forbids purges cannot allow roll-ups, from the start or later."""
    allowed, forbidden = {"allow_rollup_hdrs": True}, {"deny_purge": True}
    body = {"name": "s", "subjects": ["s.>"]} | bucket
    for first, second in ((allowed, forbidden), (forbidden, allowed)):
        errors = []
        for raw in sides:
            one = answered(raw, "STREAM.CREATE.s", body | first | second)["error"]
            config = answered(raw, "STREAM.CREATE.s", body | first)["config"]
            assert "error" not in answered(raw, "STREAM.UPDATE.s", config)
            errors.append((one, answered(raw, "STREAM.UPDATE.s", config | second)["error"]))
            answered(raw, "STREAM.DELETE.s", {})
        assert errors[1] == errors[0]


def test_conditions_come_first(sides: Sides) -> None:
    create(sides)
    plain(sides, "s.a", "s.b", "s.a")
    rolled = {"Nats_Rollup": "sub"}
    assert "error" in stored(sides, "s.a", Nats_Expected_Last_Subject_Sequence="1", **rolled)
    assert same_state(sides)["messages"] == 3
    assert "error" in stored(sides, "s.a", Nats_Expected_Last_Sequence="1", **rolled)
    assert "seq" in stored(sides, "s.a", Nats_Expected_Last_Subject_Sequence="3", **rolled)
    assert same_state(sides)["messages"] == 2
    assert "seq" in stored(sides, "s.b", Nats_Msg_Id="one", **rolled)
    plain(sides, "s.b")
    assert stored(sides, "s.b", Nats_Msg_Id="one", **rolled)["duplicate"]
    assert same_state(sides)["messages"] == 3


def test_the_setting_can_change(sides: Sides) -> None:
    create(sides, allow_rollup_hdrs=False)
    plain(sides, "s.a", "s.a")
    assert "error" in stored(sides, "s.a", Nats_Rollup="sub")
    for is_allowed in (True, False):
        for raw in sides:
            config = asked(raw, "STREAM.INFO.s", {})["config"]
            asked(raw, "STREAM.UPDATE.s", config | {"allow_rollup_hdrs": is_allowed})
            found = asked(raw, "STREAM.INFO.s", {})["config"]["allow_rollup_hdrs"]
            assert bool(found) is is_allowed
        assert ("seq" in stored(sides, "s.a", Nats_Rollup="sub")) is is_allowed
        same_state(sides)


# --- states ---


def test_many_steps(sides: Sides) -> None:
    chance = chance_of("roll-ups")
    create(sides)
    last = 0
    for _ in range(rounds(2) * 10):
        subjects = chance.choices(SUBJECTS, k=chance.randrange(5))
        plain(sides, *subjects)
        last += len(subjects)
        kind = chance.choice(("sub", "sub", "sub", "all"))
        if chance.random() < 0.3:
            seq = chance.randrange(1, last + 2)
            for raw in sides:
                answered(raw, "STREAM.MSG.DELETE.s", {"seq": seq})
        last = stored(sides, chance.choice(SUBJECTS), Nats_Rollup=kind)["seq"]
        same_state(sides)
        same_gets(sides, last)
        if chance.random() < 0.3:
            body = {"filter": chance.choice(SUBJECTS), "keep": chance.randrange(2)}
            for raw in sides:
                asked(raw, "STREAM.PURGE.s", body)
            same_state(sides)


def test_a_pattern_rolls_up_all_subjects_that_match(sides: Sides) -> None:
    create(sides)
    for pattern in PATTERNS:
        plain(sides, *SUBJECTS, "s.c.e", *SUBJECTS)
        stored(sides, pattern, Nats_Rollup="sub")
        same_state(sides)
        stored(sides, "s.a", Nats_Expected_Last_Subject_Sequence="0")


def test_a_batch_of_messages(sides: Sides) -> None:
    """The messages of one commit group, of which some roll up others."""
    chance = chance_of("batch of roll-ups")
    create(sides)
    for _ in range(rounds(3) * 3):
        frames = b""
        for _ in range(40):
            subject, kind = chance.choice(SUBJECTS), chance.choice(("", "", "sub", "all"))
            block = header_block({"Nats-Rollup": kind})
            frames += hpub_frame(subject, block) if kind else pub_frame(subject, b"x")
        for raw in sides:
            raw.send(frames)
        stored(sides, "s.z")
        same_state(sides)


# --- consumers ---


@pytest.mark.parametrize("filters", [{}, {"filter_subject": "s.a"}])
def test_a_consumer_with_acks(sides: Sides, filters: dict[str, Any]) -> None:
    create(sides)
    plain(sides, *("s.a", "s.b") * 10)
    for raw in sides:
        consumer(raw, ack_wait=3600 * SECOND, **filters)

    def same_figures() -> Any:
        # JetStream passes over the rest of a purged range at once, and counts it as delivered.
        theirs, ours = map(figures, sides)
        for name in ("delivered", "ack_floor"):
            theirs.pop(name), ours.pop(name)
        assert ours == theirs
        return theirs

    same_figures()
    messages = [fetched(raw, 4) for raw in sides]
    assert [*map(shown, messages[0])] == [*map(shown, messages[1])]
    stored(sides, "s.a", Nats_Rollup="sub")  # pending messages, and others that were not delivered
    same_figures()
    for raw, found in zip(sides, messages, strict=True):
        assert ack(raw, found[0]) == ""
    left = same_figures()["num_pending"]
    rest = [[*map(shown, fetched(raw, left))] for raw in sides]
    assert rest[0] == rest[1]
    assert rest[0][-1].endswith(" 0 left")
    same_figures()
    plain(sides, "s.b")
    stored(sides, "s.a", Nats_Rollup="all")
    left = same_figures()["num_pending"]
    rest = [[*map(shown, fetched(raw, left))] for raw in sides]
    assert rest[0] == rest[1]
    same_figures()


def test_a_pull_that_waits_for_a_place(sides: Sides) -> None:
    create(sides)
    plain(sides, "s.a", "s.b", "s.b")
    for raw in sides:
        consumer(raw, ack_wait=3600 * SECOND, max_ack_pending=2)
        fetched(raw, 2)
        pull(raw, 1)
    stored(sides, "s.a", Nats_Rollup="sub")
    # Ours counts the roll-up itself later.
    theirs, ours = (shown(raw.next_message()).rpartition(",")[0] for raw in sides)
    assert ours == theirs


@pytest.mark.parametrize("filters", [{}, {"filter_subject": "s.a"}, {"filter_subject": "s.*"}])
def test_an_ordered_consumer(sides: Sides, filters: dict[str, Any]) -> None:
    create(sides)
    config = {"name": "c", "ack_policy": "none", "inactive_threshold": 600 * SECOND, **filters}
    plain(sides, *("s.a", "s.b", "s.b") * 10)
    for raw in sides:
        asked(raw, "CONSUMER.CREATE.s.c", {"stream_name": "s", "config": config})

    def same_pending() -> int:
        theirs, ours = (asked(raw, "CONSUMER.INFO.s.c", {})["num_pending"] for raw in sides)
        assert ours == theirs
        return int(theirs)

    same_pending()
    for kind in ("sub", "sub", "all"):
        theirs, ours = ([*map(shown, fetched(raw, 2))] for raw in sides)
        assert ours == theirs
        plain(sides, "s.b", "s.a")
        stored(sides, "s.a", Nats_Rollup=kind)
        same_pending()
    left = same_pending()
    theirs, ours = ([*map(shown, fetched(raw, left))] for raw in sides)
    assert ours == theirs
    assert theirs[-1].endswith(" 0 left")
