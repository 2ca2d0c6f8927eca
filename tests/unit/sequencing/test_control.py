"""Headers that steer storing."""

from __future__ import annotations

import pytest

from liftlog.sequencing.control import NO_CONTROL, Control, may_control, parse_control
from liftlog.sequencing.refusals import RefusalReason


def block(*lines: str) -> bytes:
    return ("NATS/1.0\r\n" + "".join(f"{line}\r\n" for line in lines) + "\r\n").encode()


def refusal_of(*lines: str) -> RefusalReason:
    refusal = parse_control(block(*lines)).refusal
    assert refusal is not None
    return refusal


def test_everything_at_once() -> None:
    control = parse_control(
        block(
            "Nats-Msg-Id: a1",
            "Nats-Expected-Stream: orders",
            "Nats-Expected-Last-Sequence: 17",
            "Nats-Expected-Last-Msg-Id:a0",
            "Liftlog-Key: k",
            "Liftlog-Tombstone: true",
            "Other: x",
        )
    )
    assert control == Control(b"a1", b"orders", 17, b"a0", b"k", tombstone=True)


@pytest.mark.parametrize("value", ["sub", "all", "SUB", "other"])
def test_roll_ups_are_refused_unless_the_stream_accepts_them(value: str) -> None:
    assert refusal_of(f"Nats-Rollup: {value}").err_code == 10111


@pytest.mark.parametrize(
    ("header", "code", "err_code"),
    [
        ("Nats-TTL: 1s", 400, 10166),
        ("Nats-Incr: +1", 400, 10168),
        ("Nats-Schedule: @every 1s", 400, 10188),
        ("Nats-Schedule-Target: a", 400, 10188),
        ("Nats-Schedule-TTL: 1s", 400, 10188),
        ("Nats-Scheduler: a", 400, 10188),
        ("Nats-Batch-Id: a", 400, 10174),
        ("Nats-Batch-Sequence: 1", 400, 10174),
        ("Nats-Batch-Commit: 1", 400, 10174),
        ("Nats-Required-Api-Level: 3", 412, 10185),
    ],
)
def test_what_we_do_not_do_is_refused(header: str, code: int, err_code: int) -> None:
    refusal = refusal_of(header)
    assert (refusal.code, refusal.err_code) == (code, err_code)
    assert refusal.reason == "unsupported_header"
    # An empty value asks for it as well; silently storing would be the worst answer.
    assert refusal_of(header.partition(":")[0] + ":").err_code == err_code


@pytest.mark.parametrize(
    "header", ["nats-ttl: 1s", "Nats-Foo: 1", "X-Nats-TTL: 1", "Nats-Batch: 1"]
)
def test_other_names_are_just_headers(header: str) -> None:
    assert parse_control(block(header)) == NO_CONTROL


def test_the_first_of_several_counts() -> None:
    control = parse_control(
        block("Nats-Msg-Id: a", "Nats-Msg-Id: b", "Liftlog-Key: k", "Liftlog-Key: l")
    )
    assert (control.message_id, control.key) == (b"a", b"k")


@pytest.mark.parametrize("number", ["x", "-1", "1.0", "+1", "1 2", "²", "9" * 21, "0x1", "1_0"])
def test_a_malformed_sequence_can_never_be_met(number: str) -> None:
    control = parse_control(block(f"Nats-Expected-Last-Sequence: {number}"))
    assert control.expected_last_sequence == -1


def test_an_empty_sequence_asks_nothing() -> None:
    assert parse_control(block("Nats-Expected-Last-Sequence:")).expected_last_sequence is None
    assert parse_control(block("Nats-Expected-Last-Sequence: 0")).expected_last_sequence == 0


@pytest.mark.parametrize(
    ("value", "tombstone"), [("true", True), ("TRUE", True), ("false", False), ("False", False)]
)
def test_tombstone(value: str, tombstone: bool) -> None:
    control = parse_control(block(f"Liftlog-Tombstone: {value}"))
    assert (control.tombstone, control.refusal) == (tombstone, None)


@pytest.mark.parametrize("value", ["", "1", "yes", "truetrue"])
def test_a_tombstone_that_is_neither_true_nor_false(value: str) -> None:
    refusal = refusal_of(f"Liftlog-Tombstone: {value}")
    assert (refusal.reason, refusal.err_code) == ("bad_tombstone", 10003)


def test_own_headers_only() -> None:
    control = parse_control(
        block(
            "Nats-TTL: 1s",
            "Nats-Msg-Id: a",
            "Nats-Expected-Stream: x",
            "Nats-Expected-Last-Sequence: 5",
            "Nats-Expected-Last-Msg-Id: b",
            "Liftlog-Key: k",
        ),
        own_only=True,
    )
    assert control == Control(message_id=b"a", key=b"k", judges_id=False)
    bad = parse_control(block("Liftlog-Tombstone: maybe"), own_only=True)
    assert bad.refusal is not None


@pytest.mark.parametrize(
    ("lines", "sequence", "subject"),
    [
        (["Nats-Expected-Last-Subject-Sequence: 7"], 7, b""),
        (["Nats-Expected-Last-Subject-Sequence: x"], -1, b""),
        (["Nats-Expected-Last-Subject-Sequence:"], None, b""),
        (["Nats-Expected-Last-Subject-Sequence-Subject: a.b"], None, b"a.b"),
        (
            [
                "Nats-Expected-Last-Subject-Sequence-Subject: a.b",
                "Nats-Expected-Last-Subject-Sequence: 0",
            ],
            0,
            b"a.b",
        ),
    ],
)
def test_the_last_sequence_of_a_subject(
    lines: list[str], sequence: int | None, subject: bytes
) -> None:
    """Whether it is met, or looked at, is for the stream to say."""
    control = parse_control(block(*lines))
    assert control.names_subject_sequence
    assert (control.expected_subject_sequence, control.expected_subject) == (sequence, subject)
    assert control.refusal is None
    assert parse_control(block(*lines), own_only=True) == Control(judges_id=False)


def test_an_id_is_bounded_where_it_is_judged() -> None:
    longest = "x" * 255
    assert parse_control(block(f"Nats-Msg-Id: {longest}")).refusal is None
    refusal = refusal_of(f"Nats-Msg-Id: {longest}x")
    assert (refusal.reason, refusal.code, refusal.err_code) == ("bad_message_id", 400, 10003)
    foreign = parse_control(block(f"Nats-Msg-Id: {longest}x"), own_only=True)
    assert (foreign.refusal, foreign.message_id) == (None, longest.encode() + b"x")


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"XX",
        b"NATS/1.0",
        b"NATS/1.0\r\n",
        b"NATS/1.0 503\r\n\r\n",
        b"NATS/1.0 \xff\xfe\r\n\r\n",
        b"NATS/1.0\r\nNats-\r\n: x\r\n\r\n",
        b"NATS/1.0\r\n\xff\xfe: \xff\r\n\r\n",
        b"Nats-Msg-Id: in the first line\r\n\r\n",
    ],
)
def test_malformed_blocks_ask_nothing(raw: bytes) -> None:
    assert parse_control(raw) == NO_CONTROL


def test_the_cheap_test_misses_nothing_that_counts() -> None:
    for line in ("Nats-Msg-Id: a", "Nats-TTL: 1", "Liftlog-Key: k", "Liftlog-Tombstone: true"):
        assert may_control(block(line))
    assert not may_control(block("Traceparent: 1"))
