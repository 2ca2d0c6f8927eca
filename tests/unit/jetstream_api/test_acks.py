"""Acks in columns: the same as when each is parsed by itself, also among hostile subjects."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftlog.deliveries.acks import MAX_ACKS, AckKind
from liftlog.deliveries.settings import MAX_WAIT_NS
from liftlog.sequencing.run import MessageRun
from liftlog.server.jetstream_api.consumers.pull_body import BadPull, Pull
from liftlog.server.jetstream_api.workers.ack_bodies import (
    AckBody,
    parse_ack_body,
)
from liftlog.server.jetstream_api.workers.acks import AckParser, NextPull, ParsedAcks
from liftlog.server.jetstream_api.workers.pulls import PullParser, WorkerPull

SECOND = 10**9
STAMP = 1_764_469_999_123_456_789
FORM = re.compile(
    rb"\$JS\.ACK\.s\.([^.]+)\.(\d{1,19})\.(\d{1,19})\.(\d{1,19})\.(\d{1,19})\.(\d{1,19})"
)

Flat = tuple[str, int, int, int, int, int, int, str, bytes]


def subject_of(consumer: bytes = b"c", count: int = 1, offset: int = 7, sequence: int = 5) -> bytes:
    return b"$JS.ACK.s.%b.%d.%d.%d.%d.3" % (consumer, count, offset, sequence, STAMP)


def run_of(*messages: tuple[bytes, bytes, bytes]) -> MessageRun:
    subjects, replies, payloads = zip(*messages, strict=True)
    return MessageRun(subjects, replies, payloads)


def flat(parsed: ParsedAcks) -> list[Flat]:
    """One line per ack."""
    found = []
    for consumer, acks, sequences, wanted in parsed.acks:
        assert 0 < len(acks) <= MAX_ACKS
        columns = acks.counts, acks.offsets, sequences, acks.stamps_ns
        replies = wanted or [b""] * len(acks)
        assert not wanted or any(wanted)
        lines = zip(*columns, acks.kinds, acks.delays_ns, replies, strict=True)
        for place, (count, offset, sequence, stamp, kind, delay, reply) in enumerate(lines):
            numbers = int(count), int(offset), int(sequence), int(stamp), int(kind), int(delay)
            found.append((consumer, *numbers, acks.reasons.get(place, ""), reply))
    return found


# --- bodies ---


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (b"", AckBody(AckKind.ACK)),
        (b"+ACK", AckBody(AckKind.ACK)),
        (b"+OK", AckBody(AckKind.ACK)),
        (b"+ACK ", AckBody(None)),
        (b"+ack", AckBody(None)),
        (b"nonsense", AckBody(None)),
        (b"-NAK", AckBody(AckKind.NAK)),
        (b"-NAK 5s", AckBody(AckKind.NAK, 5 * SECOND)),
        (b"-NAK1m30s", AckBody(AckKind.NAK, 90 * SECOND)),
        (b"-NAK 2000000h", AckBody(AckKind.NAK, MAX_WAIT_NS)),
        (b"-NAK -5s", AckBody(AckKind.NAK)),
        (b"-NAK nonsense", AckBody(AckKind.NAK)),
        (b"-NAK \xff", AckBody(AckKind.NAK)),
        (b'-NAK {"delay": 7000000000}', AckBody(AckKind.NAK, 7 * SECOND)),
        (b'-NAK {"delay":7}\n', AckBody(AckKind.NAK, 7)),
        (b"-NAK {}", AckBody(AckKind.NAK)),
        (b'-NAK {"delay": -5}', AckBody(AckKind.NAK)),
        (b'-NAK {"delay": "5s"}', AckBody(AckKind.NAK)),
        (b"-NAK {", AckBody(AckKind.NAK)),
        (b"+WPI", AckBody(AckKind.PROGRESS)),
        (b"+WPI ", AckBody(None)),
        (b"+TERM", AckBody(AckKind.TERM)),
        (b"+TERM bad input \n", AckBody(AckKind.TERM, reason="bad input")),
        (b"+TERMinated", AckBody(AckKind.TERM, reason="inated")),
        (b"+TERM \xff", AckBody(AckKind.TERM, reason="\ufffd")),
        (b"+TERM " + b"x" * 9999, AckBody(AckKind.TERM, reason="x" * 1024)),
        (b"+NXT", AckBody(AckKind.ACK, pull=b"")),
        (b"+NXT 5", AckBody(AckKind.ACK, pull=b" 5")),
        (b'+NXT {"batch": 5}', AckBody(AckKind.ACK, pull=b' {"batch": 5}')),
    ],
)
def test_the_body_of_an_ack(body: bytes, found: AckBody) -> None:
    assert parse_ack_body(body) == found


# --- columns ---

NUMBERS = st.integers(0, 10**19 - 1).map(lambda number: b"%d" % number) | st.sampled_from(
    [b"-1", b"+1", b"1_0", b" 1", b"", b"x", b"01", b"9" * 20, b"%d" % (2**63 - 1), b"\xb2"]
)
CONSUMERS = st.sampled_from([b"c", b"d", b"$JS", b"ACK", b"\xff", b"caf\xc3\xa9", b"1"])
GOOD = st.builds(subject_of, CONSUMERS, st.integers(1, 9), st.integers(1, 9), st.integers(1, 9))
ANY = st.builds(
    lambda *tokens: b".".join([b"$JS.ACK.s", *tokens]),
    CONSUMERS,
    *[NUMBERS] * 5,
)
FORGED = st.lists(CONSUMERS | NUMBERS, max_size=20).map(
    lambda tokens: b".".join([b"$JS.ACK.s", *tokens])
)
BODIES = st.sampled_from(
    [b"", b"+ACK", b"+OK", b"-NAK", b"-NAK 5s", b"+WPI", b"+TERM why", b"+NXT 2", b"?"]
)
MESSAGES = st.lists(
    st.tuples(
        st.one_of(GOOD, GOOD, GOOD, ANY, FORGED), st.sampled_from([b"", b"_INBOX.a"]), BODIES
    ),
    min_size=1,
    max_size=50,
)


def one_by_one(messages: list[tuple[bytes, bytes, bytes]]) -> tuple[list[Flat], int]:
    """The result of a simple parser: the acks that have an effect, and how many are no acks."""
    found: list[Flat] = []
    dropped = 0
    for subject, reply, payload in messages:
        form = FORM.fullmatch(subject)
        numbers = [] if form is None else list(map(int, form.groups()[1:]))
        try:
            consumer = "" if form is None else form[1].decode()
        except UnicodeDecodeError:
            consumer = ""
        if not consumer or max(numbers) >= 2**63 - 1:
            dropped += 1
            continue
        body = parse_ack_body(payload)
        if body.kind is not None:
            answer = b"" if body.pull is not None else reply
            count, offset, sequence, stamp, _ = numbers
            head = consumer, count, offset, sequence, stamp
            found.append((*head, body.kind, body.delay_ns, body.reason, answer))
    return found, dropped


@given(MESSAGES, st.sampled_from([1, 3]))
def test_columns_hold_what_a_simple_parser_finds(
    messages: list[tuple[bytes, bytes, bytes]], times: int
) -> None:
    messages = messages * times  # above and below the number from which on columns pay
    parsed = AckParser("s").parse(run_of(*messages))
    expected, dropped = one_by_one(messages)
    assert parsed.dropped == dropped
    consumers = {one[0] for one in expected}
    for consumer in consumers:  # the order counts for each consumer
        assert [one for one in flat(parsed) if one[0] == consumer] == [
            one for one in expected if one[0] == consumer
        ]
    assert len(flat(parsed)) == len(expected)


@pytest.mark.parametrize("around", [0, 100])
@pytest.mark.parametrize(
    "forged",
    [
        b"$JS.ACK.s.c.1.7.5.%d" % STAMP,
        b"$JS.ACK.s.c.1.7.5.%d.3.3" % STAMP,
        b"$JS.ACK.s",
        b"$JS.ACK.s.",
        b"$JS.ACK.s.c",
        b"$JS.ACK.s..1.7.5.%d.3" % STAMP,
        b"$JS.ACK.s.c.1..5.%d.3" % STAMP,
        b"$JS.ACK.s.c.1.7.5.%d.-3" % STAMP,
        b"$JS.ACK.s.c.1.7.5.%d.+3" % STAMP,
        b"$JS.ACK.s.c.1.7.5.9223372036854775807.3",
        b"$JS.ACK.s.c.1.7.5.9999999999999999999.3",
        b"$JS.ACK.s.c.1.7.5.%b.3" % (b"0" * 20),
        b"$JS.ACK.s.c.1.7.5.%d.3\n$JS.ACK.s.c.1.7.5.%d.3" % (STAMP, STAMP),
        b"$JS.ACK.other.c.1.7.5.%d.3" % STAMP,
        b"1.7.5.%d.3" % STAMP,
        b"$JS.ACK.domain.hash.s.c.1.7.5.%d.3.random" % STAMP,
        b"",
    ],
)
def test_what_is_no_ack_is_dropped_and_the_others_stay(forged: bytes, around: int) -> None:
    good = [(subject_of(offset=number + 1), b"", b"") for number in range(around)]
    messages = [*good[: around // 2], (forged, b"_INBOX.x", b"+ACK"), *good[around // 2 :]]
    parsed = AckParser("s").parse(run_of(*messages))
    assert parsed.dropped == 1
    assert [one[2] for one in flat(parsed)] == list(range(1, around + 1))
    assert not parsed.answers


def test_many_acks_come_in_several_pieces() -> None:
    messages = [(subject_of(offset=number), b"_INBOX.%d" % number, b"") for number in range(10_000)]
    parsed = AckParser("s").parse(run_of(*messages))
    assert [len(one.acks) for one in parsed.acks] == [MAX_ACKS, MAX_ACKS, 10_000 - 2 * MAX_ACKS]
    assert [(one[2], one[8]) for one in flat(parsed)] == [
        (number, b"_INBOX.%d" % number) for number in range(10_000)
    ]


def test_pulls_that_come_with_acks() -> None:
    """Messages are their answer; without a reply subject they ask for nothing."""
    parsed = AckParser("s").parse(
        run_of(
            (subject_of(offset=1), b"_INBOX.a", b"+NXT 5"),
            (subject_of(offset=2), b"", b"+NXT"),
            (subject_of(offset=3), b"_INBOX.b", b"+ACK"),
            (subject_of(b"d", offset=4), b"_INBOX.c", b"+NXT"),
        )
    )
    assert parsed.pulls == [
        NextPull("c", b"_INBOX.a", b" 5"),
        NextPull("d", b"_INBOX.c", b""),
    ]
    assert [(one[2], one[5], one[8]) for one in flat(parsed)] == [
        (1, AckKind.ACK, b""),
        (2, AckKind.ACK, b""),
        (3, AckKind.ACK, b"_INBOX.b"),
        (4, AckKind.ACK, b""),
    ]


def test_other_bodies_have_no_effect_and_are_answered() -> None:
    parsed = AckParser("s").parse(
        run_of(
            (subject_of(offset=1), b"_INBOX.a", b"?"),
            (subject_of(offset=2), b"", b"?"),
            (subject_of(offset=3), b"_INBOX.b", b"+WPI"),
        )
    )
    assert parsed.answers == [b"_INBOX.a"]
    assert [(one[2], one[5], one[8]) for one in flat(parsed)] == [
        (3, AckKind.PROGRESS, b"_INBOX.b")
    ]
    assert parsed.dropped == 0


def test_acks_cost_little() -> None:
    """Far below 2 us of processor time each, in pieces of some hundred."""
    count = 500
    run = MessageRun(
        [subject_of(b"billing", offset=10**6 + number) for number in range(count)],
        [b""] * count,
        [b"+ACK"] * count,
    )
    parser, best = AckParser("s"), 1.0
    for _ in range(200):
        began = time.thread_time()
        parsed = parser.parse(run)
        best = min(best, time.thread_time() - began)
    assert sum(len(one.acks) for one in parsed.acks) == count
    assert best / count < 2e-6


# --- pulls ---


def test_pulls() -> None:
    prefix = b"$JS.API.CONSUMER.MSG.NEXT.s."
    run = MessageRun(
        [prefix + b"c", prefix + b"d", prefix + b"c", prefix + b"a.b", prefix, prefix + b"\xff"],
        [b"_INBOX.a", b"", b"_INBOX.b", b"_INBOX.c", b"_INBOX.d", b"_INBOX.e"],
        [b"5", b"5", b'{"idle_heartbeat": 1}', b"", b"", b""],
    )
    pulls, dropped = PullParser("s", 0).parse(run)
    assert dropped == 4
    assert pulls[0] == WorkerPull("c", b"_INBOX.a", Pull(5))
    assert isinstance(pulls[1].request, BadPull)
    assert pulls[1].request.words == b"400 Bad Request - heartbeat value too large"


@pytest.mark.parametrize(("level", "is_taken"), [(b"0", True), (b"1", True), (b"2", False)])
def test_a_client_can_require_a_level_of_the_api(level: bytes, is_taken: bool) -> None:
    block = b"NATS/1.0\r\nA: b\r\nNats-Required-Api-Level: %b\r\n\r\n" % level
    subjects = [b"$JS.API.CONSUMER.MSG.NEXT.s.c"]
    run = MessageRun(subjects, [b"_INBOX.a"], [b""], [block])
    [pull], _ = PullParser("s", 1).parse(run)
    if is_taken:
        assert pull.request == Pull()
    else:
        assert isinstance(pull.request, BadPull)
        assert pull.request.words == b"412 Required Api Level"
