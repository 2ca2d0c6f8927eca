"""Messages in Liftbridge's envelope: judged like all others, answered as Liftbridge answers."""

from __future__ import annotations

import json
from typing import Any

import pytest

import envelope
from envelope import liftbridge
from envelope.liftbridge import Ack, Publish, decode_ack, encode_publish
from liftlog.records import decode_batch
from liftlog.sequencing import DedupeWindow, Destinations, MessageRun, Sequencer, SequencerConfig
from liftlog.sequencing.refusals import (
    DISK_FULL,
    OVERLOADED,
    PAUSED,
    READ_ONLY,
    SHUTTING_DOWN,
    STORE_FAILED,
    RefusalReason,
)

S = 1_000_000_000
T0 = 1_700_000_000 * S
COMMIT_TIME = T0 + 5
KILLER = bytes.fromhex("B90E43B400FF0000")


def make(*, next_offset: int = 1, **config: Any) -> Sequencer:
    return Sequencer(
        SequencerConfig(
            "orders", **{"recognise_liftbridge": True, "subjects": ("orders.*",)} | config
        ),
        DedupeWindow(120 * S, 1000),
        Destinations(["orders.*"]),
        next_offset=next_offset,
        commit_clock=lambda: COMMIT_TIME,
    )


def wrap(value: bytes = b"v", **fields: Any) -> bytes:
    return encode_publish(Publish(value=value, ack_inbox="acks.1")._replace(**fields))


def run_of(
    *payloads: bytes, reply: bytes = b"_INBOX.r", headers: list[bytes] | None = None
) -> MessageRun:
    count = len(payloads)
    return MessageRun([b"orders.a"] * count, [reply] * count, payloads, headers, has_cookie=True)


def answers(commands: bytes) -> list[tuple[str, Any]]:
    """(subject, Ack or JSON) of each answer, in order."""
    found: list[tuple[str, Any]] = []
    while commands:
        line, _, rest = commands.partition(b"\r\n")
        _, subject, size = line.split(b" ")
        body, commands = rest[: int(size)], rest[int(size) + 2 :]
        found.append((subject.decode(), decode_ack(body) or json.loads(body)))
    return found


def judged(sequencer: Sequencer, run: MessageRun) -> tuple[list[Any], list[tuple[str, Any]]]:
    """(records, answers after the commit)"""
    sequencer.judge(run, T0)
    group = sequencer.take_group()
    assert group is not None
    records: list[Any] = []
    if len(group):
        encoded = group.encode(leader_epoch=1, commit_group=1, max_records=100, max_bytes=2**20)
        for data, *_ in encoded:
            records += decode_batch(bytes(data)).records()
    sequencer.prepare_answers(group)
    return records, answers(sequencer.committed(group))


def expected_ack(**fields: Any) -> Ack:
    return Ack(
        stream="orders",
        partition_subject="orders.*",
        msg_subject="orders.a",
        ack_inbox="acks.1",
        reception_timestamp=T0,
        commit_timestamp=COMMIT_TIME,
    )._replace(**fields)


def test_a_publish_is_stored_and_acked() -> None:
    payload = wrap(
        b"paid",
        offset=-1,
        key=b"k1",
        headers={"Trace": "é9".encode()},
        correlation_id="c7",
        ack_policy=liftbridge.ALL,
    )
    block = b"NATS/1.0\r\nTrace: other\r\ntrace: kept\r\nA: b\r\n\r\n"
    records, sent = judged(make(), run_of(payload, headers=[block]))
    assert [(r.offset, r.subject, r.key, r.value) for r in records] == [
        (1, "orders.a", b"k1", b"paid")
    ]
    assert dict(records[0].headers) == {
        "trace": "kept",
        "A": "b",
        "Trace": "é9",
        "Liftlog-Correlation-Id": "c7",
    }
    assert sent == [
        ("acks.1", expected_ack(offset=1, correlation_id="c7", ack_policy=liftbridge.ALL))
    ]


def test_mixed_with_others_in_one_run() -> None:
    own = envelope.encode(b"2", ack_subject="acks.own", correlation_id="c")
    sequencer = make()
    records, sent = judged(sequencer, run_of(b"1", own, wrap(b"3"), KILLER, wrap(b"5")))
    assert [r.value for r in records] == [b"1", b"2", b"3", KILLER, b"5"]
    assert sorted(sent, key=repr) == sorted(
        [
            ("_INBOX.r", {"stream": "orders", "seq": 1}),
            ("acks.own", {"stream": "orders", "seq": 2, "correlation_id": "c"}),
            ("acks.1", expected_ack(offset=3)),
            ("_INBOX.r", {"stream": "orders", "seq": 4}),
            ("acks.1", expected_ack(offset=5)),
        ],
        key=repr,
    )
    assert sequencer.pending_bytes == 0


def test_off_by_default() -> None:
    payload = wrap()
    for config in ({"recognise_liftbridge": False}, {"acks": "off"}):
        records, sent = judged(make(**config), run_of(payload))
        assert [r.value for r in records] == [payload]
        assert not [subject for subject, _ in sent if subject == "acks.1"]


def test_our_own_envelope_can_be_off_beside_it() -> None:
    own = envelope.encode(b"own")
    records, _ = judged(make(recognise_envelopes=False), run_of(own, wrap(b"theirs")))
    assert [r.value for r in records] == [own, b"theirs"]


@pytest.mark.parametrize("acks", ["on", "envelope"])
def test_without_an_inbox_the_stream_answers_as_ever(acks: str) -> None:
    _, sent = judged(make(acks=acks), run_of(wrap(ack_inbox="", correlation_id="c")))
    ack = ("_INBOX.r", {"stream": "orders", "seq": 1, "correlation_id": "c"})
    assert sent == ([ack] if acks == "on" else [])
    _, sent = judged(make(acks=acks), run_of(wrap()))
    assert sent == [("acks.1", expected_ack(offset=1))]


@pytest.mark.parametrize("policy", [liftbridge.NONE, 7, -1])
def test_the_policy_none_and_unknown_ones_want_no_ack(policy: int) -> None:
    records, sent = judged(make(), run_of(wrap(ack_policy=policy)))
    assert len(records) == 1
    assert sent == []


@pytest.mark.parametrize(
    "inbox",
    ["$JS.API.STREAM.PURGE.X", "liftlog.x", "orders.loop", "a b", "a.*", "a\r\nPUB x 0\r\n", "é"],
)
def test_acks_go_only_where_acks_may_go(inbox: str) -> None:
    sequencer = make()
    records, sent = judged(sequencer, run_of(wrap(ack_inbox=inbox)))
    assert len(records) == 1
    assert sent == []
    assert sequencer.acks_suppressed == 1


# --- the expected offset ---


@pytest.mark.parametrize("offset", [-1, 0, 42])
def test_the_expected_offset_is_met(offset: int) -> None:
    records, sent = judged(make(next_offset=42), run_of(wrap(offset=offset)))
    assert [r.offset for r in records] == [42]
    assert sent == [("acks.1", expected_ack(offset=42))]


@pytest.mark.parametrize("offset", [1, 41, 43, -2, -(2**63), 2**63 - 1])
def test_the_expected_offset_is_not_met(offset: int) -> None:
    sequencer = make(next_offset=42)
    records, sent = judged(sequencer, run_of(wrap(offset=offset)))
    assert records == []
    nack = expected_ack(ack_error=liftbridge.INCORRECT_OFFSET, commit_timestamp=0)
    assert sent == [("acks.1", nack)]
    assert sequencer.refused == {"wrong_last_sequence": 1}


def test_one_of_two_who_want_the_same_offset_gets_it() -> None:
    run = run_of(wrap(b"a", offset=5), wrap(b"b", offset=5), wrap(b"c", offset=6))
    records, sent = judged(make(next_offset=5), run)
    assert [(r.offset, r.value) for r in records] == [(5, b"a"), (6, b"c")]
    assert sorted((ack.offset, ack.ack_error) for _, ack in sent) == [(0, 2), (5, 0), (6, 0)]


# --- other refusals ---


def test_too_large_is_named() -> None:
    sequencer = make(max_message_bytes=100)
    _, sent = judged(sequencer, run_of(wrap(b"x" * 101, correlation_id="c")))
    nack = expected_ack(
        ack_error=liftbridge.TOO_LARGE, commit_timestamp=0, correlation_id="c", offset=0
    )
    assert sent == [("acks.1", nack)]
    assert sequencer.refused == {"too_large": 1}


@pytest.mark.parametrize(
    "fields",
    [{"key": b"k" * 65_536}, {"correlation_id": "c\r\nd"}, {"correlation_id": "c" * 256}],
)
def test_what_fits_no_record_is_refused_without_a_word(fields: dict[str, Any]) -> None:
    """Its client would take any Ack for "stored"."""
    sequencer = make()
    records, sent = judged(sequencer, run_of(wrap(**fields)))
    assert (records, sent) == ([], [])
    assert sequencer.refused == {"bad_envelope": 1}
    assert sequencer.pending_bytes == 0


def test_headers_of_any_name_and_value_are_stored() -> None:
    given = {
        "a": b"\xff\x00",
        "b": b"c\r\nNats-TTL: 1s",
        "a: b": b"",
        "": b"empty",
        "liftlog-binary-x": b"y",
        "plain": "é".encode(),
        "Nats-Msg-Id": b"\xfe",
    } | {f"h{i}": b"" for i in range(100)}
    records, sent = judged(make(), run_of(wrap(headers=given)))
    assert sent == [("acks.1", expected_ack(offset=1))]
    headers = dict(records[0].headers)
    assert headers["Liftlog-Binary-a"] == "/wA="
    assert headers["plain"] == "é"
    assert liftbridge.liftbridge_headers(headers) == given


def test_a_duplicate_is_acked_with_the_first_offset() -> None:
    wrapped = wrap(headers={"Nats-Msg-Id": b"m1"})
    records, sent = judged(make(), run_of(wrapped, wrapped))
    assert len(records) == 1
    assert sent == [("acks.1", expected_ack(offset=1))] * 2


def test_a_tombstone_by_header() -> None:
    wrapped = wrap(b"", key=b"k", headers={"Liftlog-Tombstone": b"true"})
    records, _ = judged(make(), run_of(wrapped, wrap(b"", key=b"k")))
    assert [(r.key, r.value) for r in records] == [(b"k", None), (b"k", b"")]


def test_a_failed_commit_is_not_answered() -> None:
    sequencer = make()
    sequencer.judge(run_of(wrap(correlation_id="c"), b"plain"), T0)
    group = sequencer.take_group()
    assert group is not None
    sequencer.prepare_answers(group)
    [(subject, answer)] = answers(sequencer.failed(group, STORE_FAILED))
    assert (subject, answer["error"]["err_code"]) == ("_INBOX.r", 10077)
    assert sequencer.next_offset == 1
    assert sequencer.refused == {"store_failed": 2}


@pytest.mark.parametrize("refusal", [PAUSED, READ_ONLY, OVERLOADED, SHUTTING_DOWN, DISK_FULL])
def test_a_stream_that_takes_nothing_is_silent(refusal: RefusalReason) -> None:
    """So that the publisher runs into its timeout and does not take the Ack for "stored"."""
    sequencer = make()
    sequencer.judge(run_of(b"first"), T0)
    run = run_of(wrap(), wrap(ack_policy=liftbridge.NONE), b"plain")
    [(subject, answer)] = answers(sequencer.refuse_run(run, refusal))
    assert (subject, answer["error"]["err_code"]) == ("_INBOX.r", refusal.err_code)
    assert sequencer.refused == {refusal.reason: 3}


def test_without_a_clock_the_newest_record_dates_the_commit() -> None:
    config = SequencerConfig("orders", recognise_liftbridge=True)
    sequencer = Sequencer(config, DedupeWindow(0, 1), Destinations(), next_offset=1)
    _, sent = judged(sequencer, run_of(wrap()))
    assert sent[0][1].commit_timestamp == T0
