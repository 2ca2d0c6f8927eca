"""Hostile messages over real NATS, in both modes of the seam: stored or refused, counted, and the
daemon goes on. Sent from a bare socket, since no client library would."""

from __future__ import annotations

import os
import random
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

import msgpack
import pytest
from support.clients.ingesting import (
    ack_of,
    assert_no_traceback,
    describe,
    publish,
    records_of,
    refused,
    until,
)
from support.clients.raw_nats import RawNats, header_block, hpub_frame
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer

import envelope

pytestmark = pytest.mark.integration

STREAMS = {
    "in": {"subject": "in.>", "max_message_bytes": "64KiB"},
    "witness": {"subject": "in.>", "acks": "off"},
    "other": {"subject": "other.>"},
    "attacked": {"subject": "attacked.>"},
}


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with NatsServer(max_payload=2 << 20) as server:
        yield server


@pytest.fixture(scope="module", params=["parser", "client"])
def daemon(server: NatsServer, request: pytest.FixtureRequest) -> Iterator[Daemon]:
    settings = {"nats": {"seam": request.param, "reconnect_wait": "50ms"}, "streams": STREAMS}
    with Daemon(server.url, settings) as daemon:
        yield daemon
        assert daemon.running
        assert_no_traceback(daemon)


@pytest.fixture
def raw(server: NatsServer, daemon: Daemon) -> Iterator[RawNats]:
    with RawNats(server.port) as client:
        yield client


@pytest.fixture(autouse=True)
def _alive(daemon: Daemon, raw: RawNats) -> Iterator[None]:
    """After every test: a normal publish is acked, and the daemon did not reconnect.

    The witness answers no publisher: the test is over when it has recorded the last message, or
    the next test takes this one's messages for its own.
    """
    before = daemon.metric("liftlog_nats_disconnects_total")
    yield
    assert publish(raw, "other.probe", b"still there?")["stream"] == "other"
    end = end_of(daemon, "witness")
    last = uuid.uuid4().bytes
    publish(raw, "in.probe", last)
    until(lambda: last in [r.value for r in records_of(daemon, "witness", end)])
    assert daemon.metric("liftlog_nats_disconnects_total") == before
    assert daemon.metric("liftlog_nats_connected") == 1


def end_of(daemon: Daemon, stream: str = "in") -> int:
    return int(describe(daemon, stream).log_end_offset)


def stored_since(daemon: Daemon, start: int, count: int, stream: str = "in") -> list[Any]:
    until(lambda: describe(daemon, stream).high_watermark >= start + count)
    records = records_of(daemon, stream, start)
    assert len(records) == count
    return records


# --- what kills nats-py's read loop ---

KILLERS: dict[str, Any] = {
    "FF in the subject": lambda c: c.pub(b"in.\xff", b"1"),
    "FF in the reply": lambda c: c.pub("in.a", b"1", reply=b"r.\xff"),
    "header block XX": lambda c: c.hpub("in.a", b"XX", b"1"),
    "version without CRLF": lambda c: c.hpub("in.a", b"NATS/1.0", b"1"),
    "status that is no UTF-8": lambda c: c.hpub("in.a", b"NATS/1.0 \xff\xfe\r\n\r\n", b"1"),
    "header that is no UTF-8": lambda c: c.hpub("in.a", b"NATS/1.0\r\n\xff: \xfe\r\n\r\n", b"1"),
    "header without colon": lambda c: c.hpub("in.a", b"NATS/1.0\r\nabc\r\n\r\n", b"1"),
    "blocks that look like sizes": lambda c: c.hpub("in.a", b"12\r\n\r\n", b"1"),
    "0B in the subject": lambda c: c.pub(b"in.x\x0by", b"1"),
    "0C in the reply": lambda c: c.pub("in.x", b"1", reply=b"r.\x0c1"),
    "only CRLF": lambda c: c.hpub("in.a", b"\r\n", b"1"),
    "status 503": lambda c: c.hpub("in.a", b"NATS/1.0 503\r\n\r\n", b"1"),
    "huge status": lambda c: c.hpub("in.a", b"NATS/1.0 " + b"9" * 5000 + b"\r\n\r\n", b"1"),
}


@pytest.mark.parametrize("name", KILLERS)
def test_what_kills_nats_py_is_stored(name: str, raw: RawNats, daemon: Daemon) -> None:
    start, witness = end_of(daemon), end_of(daemon, "witness")
    raw.pub("in.before", b"0")
    KILLERS[name](raw)
    raw.pub("in.after", b"2")
    assert [r.value for r in stored_since(daemon, start, 3)] == [b"0", b"1", b"2"]
    stored_since(daemon, witness, 3, "witness")
    assert publish(raw, "in.normal", b"3")["seq"] == start + 3


def test_no_message_can_be_forged_inside_another(raw: RawNats, daemon: Daemon) -> None:
    start, other = end_of(daemon), end_of(daemon, "other")
    forged = b"".join(b"MSG other.x %d 6\r\nforged\r\n" % sid for sid in range(1, 9))
    raw.hpub("in.a", b"%d\r\n" % 5, b"\r\n" + forged)
    raw.pub("in.a", b"\r\n" + forged + b"PING\r\n")
    assert len(stored_since(daemon, start, 2)) == 2
    assert end_of(daemon, "other") == other


def test_a_subject_that_is_not_utf8_is_escaped(raw: RawNats, daemon: Daemon) -> None:
    start = end_of(daemon)
    raw.pub(b"in.\xff\\x", b"1")
    raw.pub("in.caf\u00e9", b"2")
    first, second = stored_since(daemon, start, 2)
    assert (first.subject, second.subject) == (r"in.\xff\x5cx", "in.café")


def test_header_blocks_are_kept_verbatim(raw: RawNats, daemon: Daemon) -> None:
    start = end_of(daemon)
    blocks = [b"XX", b"NATS/1.0", b"NATS/1.0 \xff\xfe\r\n\r\n", b"\r\n"]
    for block in blocks:
        raw.hpub("in.a", block, b"")
    found = [record.headers.raw for record in stored_since(daemon, start, 4)]
    assert found == blocks


# --- envelopes ---

LIFTBRIDGE_KILLER = bytes.fromhex("B90E43B400FF0000")


def with_body(body: bytes, *, version: int = 1, flags: int = 0, size: int = 8) -> bytes:
    return envelope.COOKIE + bytes([version, flags]) + size.to_bytes(2, "little") + body


def hostile_envelopes() -> dict[str, bytes]:
    good = envelope.encode(b"v", key=b"k")
    bomb = b"\x81\xa1h" + b"\x81\xa1h" * 10_000 + b"\xc0"
    found = {
        "liftbridge": LIFTBRIDGE_KILLER,
        "liftbridge with our cookie": envelope.COOKIE + bytes.fromhex("00FF0000"),
        "cookie alone": envelope.COOKIE,
        "seven bytes": good[:7],
        "version 2": with_body(b"\x81\xa1v\xc4\x01x", version=2),
        "unknown flag": with_body(b"\x81\xa1v\xc4\x01x", flags=2),
        "header length past the end": with_body(b"\x81\xa1v\xc4\x01x", size=65535),
        "header length 0": with_body(b"\x81\xa1v\xc4\x01x", size=0),
        "CRC wrong": good[:-1] + bytes([good[-1] ^ 1]),
        "trailing byte": with_body(msgpack.packb({"v": b"x"}) + b"\x00"),
        "nested bomb": with_body(bomb),
        "array bomb": with_body(b"\x81\xa1v" + b"\x91" * 20_000 + b"\xc0"),
        "map of 4 billion": with_body(b"\xdf\xff\xff\xff\xff"),
        "bytes of 4 billion": with_body(b"\x81\xa1v\xc6\xff\xff\xff\xff"),
        "many headers": with_body(
            msgpack.packb({"v": b"x", "h": {f"h{i}": "x" for i in range(65)}})
        ),
        "CRLF in a header": with_body(msgpack.packb({"v": b"x", "h": {"a": "b\r\nNats-TTL: 1"}})),
        "unknown field": with_body(msgpack.packb({"v": b"x", "z": 1})),
        "tombstone without key": with_body(msgpack.packb({"v": None})),
        "offset below 0": with_body(msgpack.packb({"v": b"x", "e": -1})),
    }
    for name, subject in {
        "blank": "a b",
        "wildcard": "a.*",
        "full wildcard": ">",
        "CR LF": "a\r\nPUB in.forged 0\r\n",
        "JetStream API": "$JS.API.STREAM.PURGE.X",
        "system": "$SYS.REQ.SERVER.PING",
        "ours": "liftlog.offsets.x",
        "empty": "",
        "empty token": "a..b",
        "endless": "a" * 10_000,
    }.items():
        found[f"ack subject: {name}"] = with_body(msgpack.packb({"v": b"x", "a": subject}))
    return found


def test_hostile_envelopes_are_plain_messages(raw: RawNats, daemon: Daemon) -> None:
    spy = raw.sub(">")
    raw.ping()
    start = end_of(daemon)
    payloads = list(hostile_envelopes().values())
    for payload in payloads:
        raw.pub("in.e", payload)
    assert [r.value for r in stored_since(daemon, start, len(payloads))] == payloads
    raw.send(b"UNSUB %d\r\n" % spy)
    raw.ping()
    seen = [message.subject for message in raw.messages]
    raw.messages.clear()
    assert seen == [b"in.e"] * len(payloads), "no ack left for anywhere"


def test_an_ack_never_goes_into_a_stream(raw: RawNats, daemon: Daemon) -> None:
    start, suppressed = end_of(daemon), daemon.metric("liftlog_acks_suppressed_total", stream="in")
    raw.pub("in.e", envelope.encode(b"1", ack_subject="in.loop"))
    raw.pub("in.e", envelope.encode(b"2", ack_subject="other.loop"))
    raw.pub("in.e", b"3", reply="in.loop")
    assert [r.value for r in stored_since(daemon, start, 3)] == [b"1", b"2", b"3"]
    assert daemon.metric("liftlog_acks_suppressed_total", stream="in") == suppressed + 3
    assert end_of(daemon) == start + 3


def test_random_envelopes(raw: RawNats, daemon: Daemon) -> None:
    chance = random.Random(7)
    good = envelope.encode(b"value", key=b"key", headers={"a": "b"}, message_id="m")
    payloads = []
    for _ in range(500):
        data = bytearray(good)
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(4, len(data))] = chance.randrange(256)
        payloads.append(bytes(data[: chance.randint(1, len(data))]))
    start = end_of(daemon, "witness")
    for payload in payloads:
        raw.pub("in.random", payload)
    assert [r.value for r in stored_since(daemon, start, 500, "witness")] == payloads


# --- replies ---


@pytest.mark.parametrize(
    "reply",
    [
        b"$JS.API.STREAM.PURGE.ORDERS",
        b"$SYS.REQ.SERVER.PING",
        b"liftlog.x.offsets.a.b",
        b"r" * 300,
        b"r.\xc3\xa9",
        b"r.\x01",
    ],
)
def test_hostile_reply_subjects_get_nothing(reply: bytes, raw: RawNats, daemon: Daemon) -> None:
    raw.sub(">")
    raw.ping()
    start, suppressed = end_of(daemon), daemon.metric("liftlog_acks_suppressed_total", stream="in")
    raw.pub("in.r", b"1", reply=reply)
    raw.hpub("in.r", header_block({"Nats-TTL": "1s"}), b"1", reply=reply)
    assert [r.value for r in stored_since(daemon, start, 1)] == [b"1"]
    until(lambda: end_of(daemon, "witness") > 0)
    metric = "liftlog_acks_suppressed_total"
    until(lambda: daemon.metric(metric, stream="in") == suppressed + 2)
    raw.ping()
    assert [message.subject for message in raw.messages] == [b"in.r", b"in.r"]
    raw.messages.clear()


# --- sizes ---


def test_sizes(raw: RawNats, daemon: Daemon) -> None:
    start, witness = end_of(daemon), end_of(daemon, "witness")
    count = refused(daemon, "in", "too_large")
    assert publish(raw, "in.size", b"")["seq"] == start
    assert publish(raw, "in.size", b"x" * 65_536)["seq"] == start + 1
    assert publish(raw, "in.size", b"x" * 65_537)["error"]["err_code"] == 10054
    large = os.urandom(1_500_000)
    answer = ack_of(raw.request("in.size", large, headers=header_block({"A": "b"})))
    assert answer["error"]["err_code"] == 10054
    assert refused(daemon, "in", "too_large") == count + 2
    assert publish(raw, "in.size", b"")["seq"] == start + 2
    found = stored_since(daemon, witness, 5, "witness")
    assert [len(record.value) for record in found] == [0, 65_536, 65_537, 1_500_000, 0]
    assert found[3].value == large


# --- headers ---


def test_duplicate_and_malformed_control_headers(raw: RawNats, daemon: Daemon) -> None:
    start = end_of(daemon)

    def ask(block: bytes) -> Any:
        return ack_of(raw.request("in.h", b"v", headers=block))

    twice = b"NATS/1.0\r\nNats-Msg-Id: one%d\r\nNats-Msg-Id: two\r\n\r\n" % start
    assert ask(twice) == {"stream": "in", "seq": start}
    assert ask(twice) == {"stream": "in", "seq": start, "duplicate": True}
    assert (
        ask(b"NATS/1.0\r\nNats-Expected-Last-Sequence: 1e3\r\n\r\n")["error"]["err_code"] == 10071
    )
    assert ask(b"NATS/1.0\r\nNats-TTL\r\n\r\n")["seq"] == start + 1
    assert ask(b"NATS/1.0\r\nNats-Msg-Id: \xff\xfe%d\r\n\r\n" % start)["seq"] == start + 2
    wrong = ask(b"NATS/1.0\r\nNats-Expected-Last-Msg-Id: x\r\n\r\n")
    assert wrong["error"]["err_code"] == 10070
    endless = b"NATS/1.0\r\n" + b"A: b\r\n" * 5000 + b"\r\n"
    assert ask(endless)["seq"] == start + 3
    assert [len(r.headers.raw) for r in stored_since(daemon, start, 4)][3] == len(endless)


def test_ids_are_bounded_and_not_repeated(raw: RawNats, daemon: Daemon) -> None:
    """Each message refused for its precondition would be answered with a megabyte, escaped, and
    NATS ends the connection of who sends more than `max_payload`."""
    bomb = b"NATS/1.0\r\nNats-Msg-Id: " + b"\x01" * 600_000 + b"\r\n\r\n"
    longest = b"NATS/1.0\r\nNats-Msg-Id: " + b"\x01" * 255 + b"\r\n\r\n"
    too_long = b"NATS/1.0\r\nNats-Msg-Id: " + b"i" * 256 + b"\r\n\r\n"
    start = end_of(daemon, "attacked")

    def ask(block: bytes) -> Any:
        return ack_of(raw.request("attacked.id", b"", headers=block))

    assert ask(bomb)["error"]["err_code"] == 10097
    assert ask(too_long)["error"] == {
        "code": 400,
        "err_code": 10003,
        "description": "the Nats-Msg-Id is longer than 255 bytes",
    }
    assert ask(longest) == {"stream": "attacked", "seq": start}
    condition = header_block({"Nats-Expected-Last-Msg-Id": "other"})
    replies = raw.new_reply().rpartition(b".")[0]
    frames = [
        hpub_frame("attacked.id", condition, b"", reply=replies + b".%d" % n) for n in range(1000)
    ]
    raw.send(b"".join(frames))
    answers = [raw.next_message() for _ in range(1000)]
    assert {answer.json()["error"]["err_code"] for answer in answers} == {10070}
    assert max(len(answer.payload) for answer in answers) < 2000
    assert daemon.metric("liftlog_acks_oversized_total") == 0


def hostile_headers() -> dict[str, bytes]:
    """A message each, about a megabyte."""
    blocks = {
        "many lines": b"a:b\r\n" * 200_000,
        "many ids": b"Nats-Msg-Id: i\r\n" * 60_000,
        "one line": b"a: " + b"x" * 1_000_000 + b"\r\n",
        "many conditions": b"Nats-Expected-Last-Sequence: 1\r\n" * 30_000,
        "never a name": b"Nats-Batch-\r\n" * 70_000,
    }
    return {name: b"NATS/1.0\r\n" + lines + b"\r\n" for name, lines in blocks.items()}


@pytest.mark.parametrize("size", [65_000, 1_000_000])
@pytest.mark.parametrize("enveloped", [False, True])
def test_headers_on_one_stream_do_not_delay_another(
    server: NatsServer, raw: RawNats, daemon: Daemon, size: int, enveloped: bool
) -> None:
    payload = envelope.encode(b"v", headers={"a": "b"}) if enveloped else b"v"
    blocks = [block[:size] + b"\r\n\r\n" for block in hostile_headers().values()]
    frames = [hpub_frame("attacked.h", block, payload) for block in blocks]
    volley = b"".join(frames) * (20_000_000 // sum(map(len, frames)))
    before = end_of(daemon, "attacked")

    def longest_wait() -> float:
        waits: list[float] = []
        with RawNats(server.port) as attacker:
            thread = threading.Thread(target=attacker.send, args=(volley,))
            thread.start()
            while thread.is_alive() or len(waits) < 20:
                began = time.monotonic()
                assert publish(raw, "other.victim", b"v")["stream"] == "other"
                waits.append(time.monotonic() - began)
            thread.join()
            attacker.ping()
        return max(waits)

    # The clock also counts what other tests take. A delay that the attack causes comes each time.
    longest = longest_wait()
    assert longest < 0.5 or longest_wait() < 0.5, longest
    if size > 65_535:
        assert end_of(daemon, "attacked") == before
        assert refused(daemon, "attacked", "headers_too_large") > 0


NAMES = [
    b"Nats-Msg-Id",
    b"nats-msg-id",
    b"NATS-MSG-ID",
    b"Nats-Msg-Id ",
    b"Nats-Expected-Last-Msg-Id",
    b"Nats-Expected-Last-Sequence",
    b"Nats-Expected-Last-Subject-Sequence",
    b"Liftlog-Key",
    b"liftlog-key",
    b"Liftlog-Tombstone",
    b"A",
    b"\xff\xfe",
    b"",
]
VALUES = [
    b"",
    b" ",
    b"a",
    b"A",
    b"x" * 255,
    b"x" * 256,
    b'"\\\x01',
    "ü\u2028".encode(),
    b"\xff",
    b"1",
]
ENDS = [b"\r\n"] * 8 + [b"\r", b"\n", b"\r\r\n", b":\r\n"]


def random_block(chance: random.Random) -> bytes:
    lines = []
    for _ in range(chance.choice([1, 2, 3, 5, 400])):
        value = chance.choice(VALUES) * chance.choice([1, 1, 1, 3])
        colon = chance.choice([b":", b": ", b":\t", b" : ", b""])
        lines.append(chance.choice(NAMES) + colon + value + chance.choice(ENDS))
    head = chance.choice([b"NATS/1.0\r\n", b"NATS/1.0\r\n", b"NATS/1.0 100 x\r\n", b"\r\n", b""])
    return head + b"".join(lines) + chance.choice([b"\r\n", b""])


def test_random_header_blocks(raw: RawNats, daemon: Daemon) -> None:
    """Each is stored verbatim or refused with a short answer; the witness has them all."""
    chance = random.Random(23)
    blocks = [random_block(chance) for _ in range(400)]
    start, witness = end_of(daemon), end_of(daemon, "witness")
    stored = {}
    for number, block in enumerate(blocks):
        message = raw.request("in.random", b"%d" % number, headers=block)
        assert len(message.payload) < 2000
        answer = message.json()
        if "error" in answer:
            assert answer["error"]["err_code"] in (10003, 10070, 10071)
        elif not answer.get("duplicate"):
            stored[answer["seq"]] = block
    assert list(stored) == list(range(start, end_of(daemon)))
    found = stored_since(daemon, start, len(stored))
    assert [record.headers.raw for record in found] == list(stored.values())
    seen = stored_since(daemon, witness, len(blocks), "witness")
    assert [record.headers.raw for record in seen] == blocks
    assert len(stored) > 100
