"""Publishers that speak Liftbridge's envelope, against a real nats-server and a real daemon."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from support.clients.ingesting import (
    ack_of,
    assert_no_traceback,
    describe,
    records_of,
    refused,
    until,
)
from support.clients.raw_nats import RawNats, pub_frame
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer

from envelope import liftbridge
from envelope.liftbridge import Ack, Publish, decode_ack, encode_publish

pytestmark = pytest.mark.integration

STREAMS = {
    "orders": {"subject": "orders.*", "liftbridge": True, "acks": "envelope"},
    "race": {"subject": "race", "liftbridge": True},
    "small": {"subject": "small", "liftbridge": True, "max_message_bytes": "100"},
    "paused": {"subject": "paused", "liftbridge": True, "paused": True},
    "without": {"subject": "without"},
}
KILLER = bytes.fromhex("B90E43B400FF0000")


@pytest.fixture(scope="module", params=["parser", "client"])
def daemon(server: NatsServer, request: pytest.FixtureRequest) -> Iterator[Daemon]:
    settings = {"streams": STREAMS, "nats": {"seam": request.param}}
    with Daemon(server.url, settings) as daemon:
        yield daemon
        assert_no_traceback(daemon)


@pytest.fixture
def raw(server: NatsServer, daemon: Daemon) -> Iterator[RawNats]:
    with RawNats(server.port) as client:
        yield client


def publish(raw: RawNats, subject: str, value: bytes = b"v", **fields: Any) -> Ack:
    """Publish with a fresh ack inbox and wait for the Ack."""
    inbox = raw.new_reply().decode()
    wanted = Publish(offset=-1, value=value, ack_inbox=inbox)._replace(**fields)
    raw.pub(subject, encode_publish(wanted, crc=bool(fields)))
    message = raw.next_message()
    assert message.subject.decode() == inbox
    ack = decode_ack(message.payload)
    assert ack is not None, message.payload
    return ack


def test_stored_and_acked(raw: RawNats, daemon: Daemon) -> None:
    before = time.time_ns()
    start = describe(daemon, "orders").log_end_offset
    headers = {"trace": b"t9"}
    ack = publish(raw, "orders.eu", b"paid", key=b"k1", headers=headers, correlation_id="c7")
    assert ack._replace(ack_inbox="", reception_timestamp=0, commit_timestamp=0) == Ack(
        stream="orders",
        partition_subject="orders.*",
        msg_subject="orders.eu",
        offset=start,
        correlation_id="c7",
    )
    assert before <= ack.reception_timestamp <= ack.commit_timestamp <= time.time_ns()
    [record] = records_of(daemon, "orders", start)
    assert (record.offset, record.subject, record.key, record.value) == (
        start,
        "orders.eu",
        b"k1",
        b"paid",
    )
    assert dict(record.headers) == {"trace": "t9", "Liftlog-Correlation-Id": "c7"}
    # A microsecond is what the log keeps of it.
    assert abs(record.timestamp_ns - ack.reception_timestamp) < 1000


def test_beside_plain_messages_many_at_once(raw: RawNats, daemon: Daemon) -> None:
    """One write, so that one chunk holds both kinds; each is answered in its own way."""
    start = describe(daemon, "race").log_end_offset
    inbox = raw.new_reply().rpartition(b".")[0]
    frames = []
    for number in range(0, 400, 2):
        subject = (inbox + b".%d" % number).decode()
        wrapped = Publish(value=b"%d" % number, ack_inbox=subject, correlation_id=str(number))
        frames.append(pub_frame("race", encode_publish(wrapped)))
        frames.append(pub_frame("race", b"%d" % (number + 1), reply=inbox + b".%d" % (number + 1)))
    raw.send(b"".join(frames))
    offsets = {}
    for _ in range(400):
        message = raw.next_message()
        number = int(message.subject.rpartition(b".")[2])
        ack = decode_ack(message.payload)
        if number % 2:
            offsets[number] = ack_of(message)["seq"]
        else:
            assert ack is not None
            assert (ack.correlation_id, ack.ack_error) == (str(number), liftbridge.OK)
            offsets[number] = ack.offset
    assert offsets == {number: start + number for number in range(400)}
    values = [record.value for record in records_of(daemon, "race", start)]
    assert values == [b"%d" % number for number in range(400)]


def test_errors_as_liftbridge_names_them(raw: RawNats, daemon: Daemon) -> None:
    next_offset = describe(daemon, "race").log_end_offset
    assert publish(raw, "race", offset=next_offset).offset == next_offset
    for offset in (next_offset, next_offset + 2):
        late = publish(raw, "race", offset=offset)
        assert (late.offset, late.ack_error) == (0, liftbridge.INCORRECT_OFFSET)
    assert publish(raw, "race", offset=next_offset + 1).offset == next_offset + 1
    large = publish(raw, "small", b"x" * 100)
    assert (large.ack_error, large.stream) == (liftbridge.TOO_LARGE, "small")
    for stream, fields in (("paused", {}), ("race", {"key": b"k" * 65_536})):
        silent = Publish(offset=-1, ack_inbox=raw.new_reply().decode())._replace(**fields)
        raw.pub(stream, encode_publish(silent))
    counted = [("race", "wrong_last_sequence", 2), ("race", "bad_envelope", 1)]
    counted += [("small", "too_large", 1), ("paused", "paused", 1)]
    for stream, reason, count in counted:
        until(lambda s=stream, r=reason, c=count: refused(daemon, s, r) == c)
    # Answers leave in the order of the messages of a stream.
    assert publish(raw, "race").offset == next_offset + 2
    assert raw.no_message()


def test_headers_of_any_bytes_are_stored(raw: RawNats, daemon: Daemon) -> None:
    given = {"a": b"\x00\xff", "b c": b"1\r\nNats-TTL: 1s", "d": b"e"}
    ack = publish(raw, "race", headers=given)
    [record] = records_of(daemon, "race", ack.offset)
    assert record.headers["Liftlog-Binary-a"] == "AP8="
    assert liftbridge.liftbridge_headers(record.headers) == given


def test_acks_that_would_be_obeyed_are_not_sent(raw: RawNats, daemon: Daemon) -> None:
    spy = raw.sub(">")
    raw.ping()
    start = describe(daemon, "race").log_end_offset
    hostile = ["$JS.API.STREAM.PURGE.X", "liftlog.x", "race", "a b", "a.*", "a\r\nPUB in.forged 0"]
    payloads = [encode_publish(Publish(value=b"v", ack_inbox=inbox)) for inbox in hostile]
    for payload in payloads:
        raw.pub("race", payload)
    until(lambda: describe(daemon, "race").high_watermark == start + len(hostile))
    assert raw.no_message() is False
    raw.send(b"UNSUB %d\r\n" % spy)
    raw.ping()
    seen = [message.subject for message in raw.messages]
    raw.messages.clear()
    assert seen == [b"race"] * len(hostile), "no ack left for anywhere"
    assert daemon.metric("liftlog_acks_suppressed_total", stream="race") >= len(hostile)


def test_what_is_no_envelope_is_stored_verbatim(raw: RawNats, daemon: Daemon) -> None:
    start = describe(daemon, "race").log_end_offset
    good = encode_publish(Publish(value=b"v", ack_inbox="acks.1"))
    payloads = [KILLER, good[:-1], good + b"x", good[:4], KILLER[:7] + b"\x01", b"\x1a" * 100]
    payloads += [good[:n] + b"\xff" + good[n + 1 :] for n in range(4, len(good))]
    for payload in payloads:
        assert ack_of(raw.request("race", payload))["seq"] >= start
    assert [record.value for record in records_of(daemon, "race", start)] == payloads


def test_streams_without_the_setting_store_it_as_it_is(raw: RawNats, daemon: Daemon) -> None:
    start = describe(daemon, "without").log_end_offset
    payload = encode_publish(Publish(value=b"v", ack_inbox=raw.new_reply().decode()))
    assert ack_of(raw.request("without", payload))["seq"] == start
    [record] = records_of(daemon, "without", start)
    assert record.value == payload
    assert raw.no_message()
