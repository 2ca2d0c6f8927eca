"""The bytes of acks and nacks."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftlog.sequencing.acks import AckFormat, Asked, publish_commands, published, within_payload
from liftlog.sequencing.refusals import OVERLOADED, refusal_body


def parse(commands: bytes) -> list[tuple[bytes, bytes]]:
    """(subject, body) of each PUB, checking the sizes on the way."""
    found = []
    while commands:
        line, _, rest = commands.partition(b"\r\n")
        verb, subject, size = line.split(b" ")
        assert verb == b"PUB"
        assert rest[int(size) : int(size) + 2] == b"\r\n"
        found.append((subject, rest[: int(size)]))
        commands = rest[int(size) + 2 :]
    return found


def read_back(commands: bytes) -> list[tuple[bytes, bytes]]:
    found = list(published(commands))
    assert not any(one.reply or one.headers for one in found)
    return [(one.subject, one.payload) for one in found]


def test_whatever_was_published_can_be_read_back() -> None:
    commands = (
        b"PUB a 2\r\nA \r\n"
        b"PUB b r 0\r\n\r\n"
        b"HPUB c 12 14\r\nNATS/1.0\r\n\r\nC\n\r\n"
        b"HPUB d r 12 12\r\nNATS/1.0\r\n\r\n\r\n"
    )
    headers = b"NATS/1.0\r\n\r\n"
    assert list(published(commands)) == [
        (b"a", b"", b"", b"A "),
        (b"b", b"r", b"", b""),
        (b"c", b"", headers, b"C\n"),
        (b"d", b"r", headers, b""),
    ]


@given(
    st.integers(min_value=1, max_value=10**18),
    st.lists(st.sampled_from([b"", b"_INBOX.a", b"r.1"]), max_size=30),
    st.sampled_from(["fsync", "interval", "os"]),
)
def test_joined_commands_say_what_the_single_acks_say(
    first: int, replies: list[bytes], durability: str
) -> None:
    form = AckFormat("orders", durability)
    wanted = [
        (reply, form.body(offset)) for offset, reply in enumerate(replies, start=first) if reply
    ]
    assert parse(form.commands(replies, first)) == wanted


@pytest.mark.parametrize("boundary", [10, 1_000, 9_990, 10_000, 20_000, 99_990, 10**6, 10**9])
@pytest.mark.parametrize("count", [1, 20, 12_000])
def test_many_acks_in_a_row(boundary: int, count: int) -> None:
    form = AckFormat("s", "fsync")
    first = max(1, boundary - count // 2)
    replies = [b"_INBOX.%d" % number for number in range(count)]
    wanted = [(reply, form.body(offset)) for offset, reply in enumerate(replies, start=first)]
    assert read_back(form.commands(replies, first)) == wanted


@given(
    st.sampled_from([5, 100, 9_990, 10_000, 123_450, 10**9 - 5]),
    st.lists(st.tuples(st.integers(0, 30), st.booleans()), min_size=1, max_size=20),
    st.sampled_from([0, 1, 10_000]),
    st.sampled_from(["fsync", "os"]),
)
def test_acks_of_duplicates_between_others(
    first: int, rows: list[tuple[int, bool]], spread: int, durability: str
) -> None:
    form = AckFormat("s", durability)
    replies = [b"_INBOX.%d" % number for number in range(len(rows))]
    offsets = [first + step * max(spread, 1) for step, _ in rows]
    is_new = [new for _, new in rows]
    wanted = [
        (reply, form.body(offset, duplicate=not new))
        for reply, offset, new in zip(replies, offsets, is_new, strict=True)
    ]
    assert parse(form.mixed(replies, offsets, is_new)) == wanted


@pytest.mark.parametrize("boundary", [10, 100, 1_000, 10**6, 10**9])
def test_the_length_follows_the_digits(boundary: int) -> None:
    form = AckFormat("s", "fsync")
    got = parse(form.commands([b"r"] * 6, boundary - 3))
    assert [json.loads(body)["seq"] for _, body in got] == list(range(boundary - 3, boundary + 3))


def test_the_ack_is_what_jetstream_sends() -> None:
    form = AckFormat("orders", "fsync")
    assert form.body(42) == b'{"stream":"orders","seq":42}'
    assert form.body(42, duplicate=True) == b'{"stream":"orders","seq":42,"duplicate":true}'
    assert form.commands([b"r.1"], 42) == b'PUB r.1 28\r\n{"stream":"orders","seq":42}\r\n'


def test_a_weaker_durability_is_named() -> None:
    assert json.loads(AckFormat("s", "interval").body(1)) == {
        "stream": "s",
        "seq": 1,
        "durability": "interval",
    }


def test_a_correlation_id_is_json_whatever_it_holds() -> None:
    body = AckFormat("s", "fsync").body(7, correlation_id='"}\\ ü')
    assert json.loads(body) == {"stream": "s", "seq": 7, "correlation_id": '"}\\ ü'}


def test_a_nack_has_the_shape_of_a_publish_error() -> None:
    commands = publish_commands([(b"r.1", refusal_body("orders", OVERLOADED))])
    [(subject, body)] = parse(commands)
    assert subject == b"r.1"
    assert json.loads(body) == {
        "error": {"code": 429, "err_code": 10167, "description": "too many requests"},
        "stream": "orders",
        "seq": 0,
    }


def test_what_was_published_can_be_read_back_in_linear_time() -> None:
    answers = [(b"_INBOX.%d" % number, b"\r\nPUB x 1\r\n" * 5) for number in range(20_000)]
    commands = publish_commands(answers)
    began = time.process_time()
    assert read_back(commands) == answers
    assert time.process_time() - began < 0.5  # copying the rest each time: 1.5 s


def test_bodies_that_look_like_sizes_are_no_sizes() -> None:
    tricky = (b"a", b"say 123456789\r\nPUB x 99999\r\n")
    large = (b"b", b"x" * 101)
    exact = (b"c", b"y" * 100)
    for answers in ([tricky, exact], [tricky, large, exact], [large], [exact], []):
        kept, left_out = within_payload(publish_commands(answers), 100)
        assert kept == publish_commands([one for one in answers if one is not large])
        assert left_out == answers.count(large)


def test_an_answer_to_our_envelope_names_epoch_and_policy_where_others_hold_copies() -> None:
    form = AckFormat("s", "fsync", epoch=7)
    wishes = [
        (b"a", Asked(None, "all"), 9),
        (b"b", Asked('"}\\ ü', "leader"), 10),
    ]
    assert [(to, json.loads(body)) for to, body in read_back(form.asked(wishes))] == [
        (b"a", {"stream": "s", "seq": 9, "epoch": 7, "policy": "all"}),
        (
            b"b",
            {
                "stream": "s",
                "seq": 10,
                "epoch": 7,
                "policy": "leader",
                "correlation_id": '"}\\ ü',
            },
        ),
    ]
    [(_, body)] = read_back(form.asked(wishes[:1], duplicate=True))
    assert json.loads(body) == {
        "stream": "s",
        "seq": 9,
        "duplicate": True,
        "epoch": 7,
        "policy": "all",
    }


def test_acks_of_a_stream_whose_policy_is_leader_say_so() -> None:
    """They may be lost with the leader. Those under `all` are as JetStream words them."""
    assert AckFormat("s", "fsync", policy="all", epoch=7).body(3) == AckFormat("s", "fsync").body(3)
    early = AckFormat("s", "fsync", policy="leader", epoch=7)
    assert json.loads(early.body(3)) == {"stream": "s", "seq": 3, "policy": "leader"}
    [(_, body)] = read_back(early.asked([(b"a", Asked(None, "all"), 3)]))
    assert json.loads(body)["policy"] == "all"
