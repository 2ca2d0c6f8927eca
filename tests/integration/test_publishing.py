"""Publishing in every way that NATS offers, against a real daemon."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator

import nats
import pytest
from nats.aio.client import Client
from nats.js.errors import APIError
from support.clients.ingesting import (
    ack_of,
    assert_no_traceback,
    describe,
    publish,
    records_of,
    refused,
    until,
    values_of,
)
from support.clients.raw_nats import RawNats, header_block, pub_frame
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer

import envelope

pytestmark = pytest.mark.integration

STREAMS = {
    "orders": {"subject": "orders.>"},
    "headers": {"subject": "headers"},
    "refusals": {"subject": "refusals"},
    "wrapped": {"subject": "wrapped"},
    "silent": {"subject": "silent", "acks": "off"},
    "envelopes": {"subject": "envelopes", "acks": "envelope"},
    "weak": {
        "subject": "weak",
        "durability": "interval",
        "flush": {"messages": 5, "interval": "30s"},
    },
    "timed": {"subject": "timed", "durability": "interval", "flush": {"interval": "300ms"}},
    "lazy": {"subject": "lazy", "durability": "os"},
    "middle": {"subject": "wild.*.end"},
    "deep": {"subject": "wild.>", "acks": "off"},
    "first": {"subject": "twin.>"},
    "second": {"subject": "twin.*"},
    "left": {"subject": "shared.>", "queue_group": "pool"},
    "right": {"subject": "shared.>", "queue_group": "pool"},
    "paused": {"subject": "paused", "paused": True},
    "closed": {"subject": "closed", "read_only": True},
    "small": {"subject": "small", "max_message_bytes": "100"},
}


@pytest.fixture(scope="module")
def daemon(server: NatsServer) -> Iterator[Daemon]:
    with Daemon(server.url, {"streams": STREAMS}) as daemon:
        yield daemon
        assert_no_traceback(daemon)


@pytest.fixture
def raw(server: NatsServer, daemon: Daemon) -> Iterator[RawNats]:
    with RawNats(server.port) as client:
        yield client


@pytest.fixture
async def nc(server: NatsServer, daemon: Daemon) -> AsyncIterator[Client]:
    client = await nats.connect(server.url)
    yield client
    await client.close()


# --- four ways ---


async def test_plain_with_reply_with_headers_and_by_jetstream(nc: Client, daemon: Daemon) -> None:
    await nc.publish("orders.plain", b"1")
    answer = await nc.request("orders.asked", b"2")
    assert json.loads(answer.data) == {"stream": "orders", "seq": 2}
    ack = await nc.jetstream().publish("orders.js", b"3", headers={"A": "b", "Nats-Msg-Id": "m3"})
    assert (ack.stream, ack.seq, ack.duplicate) == ("orders", 3, None)
    wrapped = envelope.encode(b"4", key=b"k", headers={"C": "d"}, correlation_id="c9")
    answer = await nc.request("orders.wrapped", wrapped)
    assert json.loads(answer.data) == {"stream": "orders", "seq": 4, "correlation_id": "c9"}

    records = records_of(daemon, "orders")
    assert [(r.offset, r.subject, r.key, r.value) for r in records] == [
        (1, "orders.plain", None, b"1"),
        (2, "orders.asked", None, b"2"),
        (3, "orders.js", None, b"3"),
        (4, "orders.wrapped", b"k", b"4"),
    ]
    assert dict(records[2].headers) == {"A": "b", "Nats-Msg-Id": "m3"}
    assert dict(records[3].headers) == {"C": "d", "Liftlog-Correlation-Id": "c9"}
    stamps = [record.timestamp_ns for record in records]
    assert stamps == sorted(stamps)


async def test_headers_are_stored_verbatim(nc: Client, daemon: Daemon) -> None:
    await nc.request("headers", b"", headers={"Traceparent": "00-ab", "X": "ü"})
    [record] = records_of(daemon, "headers")
    assert record.headers.raw == "NATS/1.0\r\nTraceparent: 00-ab\r\nX: ü\r\n\r\n".encode()


def test_keys_and_tombstones_by_header(raw: RawNats, daemon: Daemon) -> None:
    assert publish(raw, "wrapped", b"v", Liftlog_Key="k1")["seq"] == 1
    assert publish(raw, "wrapped", b"", Liftlog_Key="k1", Liftlog_Tombstone="true")["seq"] == 2
    refusal = publish(raw, "wrapped", b"", Liftlog_Tombstone="true")
    assert refusal["error"]["err_code"] == 10003
    gone = ack_of(raw.request("wrapped", envelope.encode(None, key=b"k2")))
    assert gone["seq"] == 3
    found = [(r.key, r.value) for r in records_of(daemon, "wrapped")]
    assert found == [(b"k1", b"v"), (b"k1", None), (b"k2", None)]


# --- refusals, as an unmodified nats-py reports them ---


async def test_refusals_reach_js_publish(nc: Client, daemon: Daemon) -> None:
    js = nc.jetstream()

    async def refuse(**headers: str) -> tuple[int | None, int | None, str | None]:
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        with pytest.raises(APIError) as caught:
            await js.publish("refusals", b"x", headers=names)
        return caught.value.code, caught.value.err_code, caught.value.description

    assert (await js.publish("refusals", b"1", headers={"Nats-Msg-Id": "a"})).seq == 1
    assert (await js.publish("refusals", b"2")).seq == 2
    assert await refuse(Nats_Expected_Stream="nope") == (
        400,
        10060,
        "expected stream does not match",
    )
    assert await refuse(Nats_Expected_Last_Sequence="1") == (400, 10071, "wrong last sequence: 2")
    assert await refuse(Nats_Expected_Last_Sequence="what") == (
        400,
        10071,
        "wrong last sequence: 2",
    )
    assert (await refuse(Nats_Expected_Last_Msg_Id="a"))[:2] == (400, 10070)
    assert (await refuse(Nats_TTL="1s"))[:2] == (400, 10166)
    assert (await refuse(Nats_Rollup="sub"))[:2] == (500, 10111)
    assert (await refuse(Nats_Incr="+1"))[:2] == (400, 10168)
    assert (await refuse(Nats_Expected_Last_Subject_Sequence="0"))[:2] == (400, 10003)
    assert (await refuse(Nats_Schedule="@every 5s"))[0] == 400
    assert (await refuse(Nats_Batch_Id="b"))[0] == 400

    good = {"Nats-Expected-Stream": "refusals", "Nats-Expected-Last-Sequence": "2"}
    assert (await js.publish("refusals", b"3", headers=good | {"Nats-Msg-Id": "b"})).seq == 3
    assert (await js.publish("refusals", b"4", headers={"Nats-Expected-Last-Msg-Id": "b"})).seq == 4
    duplicate = await js.publish("refusals", b"5", headers={"Nats-Msg-Id": "b"})
    assert (duplicate.seq, duplicate.duplicate) == (3, True)
    assert values_of(daemon, "refusals") == [b"1", b"2", b"3", b"4"]
    assert refused(daemon, "refusals", "unsupported_header") == 6
    assert refused(daemon, "refusals", "wrong_last_sequence") == 2
    assert daemon.metric("liftlog_duplicates_total", stream="refusals") == 1


async def test_too_large_paused_and_read_only(nc: Client, daemon: Daemon) -> None:
    js = nc.jetstream()
    codes = []
    for subject, size in (("small", 101), ("paused", 1), ("closed", 1)):
        with pytest.raises(APIError) as caught:
            await js.publish(subject, b"x" * size)
        codes.append((caught.value.code, caught.value.err_code))
    assert codes == [(400, 10054), (503, 10077), (400, 10109)]
    assert (await js.publish("small", b"x" * 100)).seq == 1
    assert refused(daemon, "small", "too_large") == 1
    assert refused(daemon, "paused", "paused") == 1
    assert refused(daemon, "closed", "read_only") == 1


def test_conditions_inside_one_chunk_see_each_other(raw: RawNats, daemon: Daemon) -> None:
    """Eight writers race for each of many places, all in one write: one wins each."""
    start = describe(daemon, "orders").log_end_offset
    inbox = raw.new_reply().rpartition(b".")[0]
    frames = []
    for place in range(start - 1, start + 49):
        block = header_block({"Nats-Expected-Last-Sequence": str(place)})
        for writer in range(8):
            reply = inbox + b".%d-%d" % (place, writer)
            head = b"HPUB orders.race %b %d %d\r\n" % (reply, len(block), len(block) + 1)
            frames.append(head + block + b"x\r\n")
    raw.send(b"".join(frames))
    answers = [ack_of(raw.next_message()) for _ in range(400)]
    won = sorted(answer["seq"] for answer in answers if "error" not in answer)
    assert won == list(range(start, start + 50))
    assert {a["error"]["err_code"] for a in answers if "error" in a} == {10071}


# --- acks: off and envelope ---


def test_a_silent_witness_stores_everything(raw: RawNats, daemon: Daemon) -> None:
    block = header_block({"Nats-Msg-Id": "a", "Nats-TTL": "1s", "Nats-Expected-Stream": "x"})
    for _ in range(2):
        raw.hpub("silent", block, b"v", reply=raw.new_reply())
    wrapped = envelope.encode(b"in", ack_subject=raw.new_reply().decode())
    raw.pub("silent", wrapped)
    until(lambda: describe(daemon, "silent").high_watermark == 4)
    assert values_of(daemon, "silent") == [b"v", b"v", wrapped]
    assert raw.no_message()


def test_acks_only_where_the_envelope_says(raw: RawNats, daemon: Daemon) -> None:
    mine = raw.new_reply()
    reply = raw.new_reply()
    raw.pub("envelopes", b"plain", reply=reply)
    raw.pub("envelopes", envelope.encode(b"no subject", correlation_id="c0"), reply=reply)
    raw.pub(
        "envelopes",
        envelope.encode(b"quiet", ack_subject=mine.decode(), ack_policy="none"),
        reply=reply,
    )
    raw.pub(
        "envelopes",
        envelope.encode(b"asked", ack_subject=mine.decode(), correlation_id="c1", message_id="i1"),
        reply=reply,
    )
    raw.pub("envelopes", envelope.encode(b"asked", ack_subject=mine.decode(), message_id="i1"))
    raw.hpub("envelopes", header_block({"Nats-Msg-Id": "i1"}), b"not judged")
    first, second = raw.next_message(), raw.next_message()
    assert first.subject == second.subject == mine
    assert first.json() == {"stream": "envelopes", "seq": 4, "correlation_id": "c1"}
    assert second.json() == {"stream": "envelopes", "seq": 4, "duplicate": True}
    until(lambda: describe(daemon, "envelopes").high_watermark == 6)
    assert raw.no_message()
    assert values_of(daemon, "envelopes") == [
        b"plain",
        b"no subject",
        b"quiet",
        b"asked",
        b"not judged",
    ]


# --- durability ---


def test_interval_says_so_and_hides_until_the_flush(raw: RawNats, daemon: Daemon) -> None:
    acks = [publish(raw, "weak", b"%d" % i) for i in range(4)]
    assert acks == [{"stream": "weak", "seq": i, "durability": "interval"} for i in range(1, 5)]
    info = describe(daemon, "weak")
    assert (info.high_watermark, info.log_end_offset) == (1, 5)
    assert values_of(daemon, "weak") == []
    assert daemon.metric("liftlog_fsync_total", stream="weak") == 0
    publish(raw, "weak", b"4")  # the fifth
    info = describe(daemon, "weak")
    assert (info.high_watermark, info.log_end_offset) == (6, 6)
    assert daemon.metric("liftlog_fsync_total", stream="weak") == 1
    assert values_of(daemon, "weak") == [b"%d" % i for i in range(5)]


def test_interval_flushes_by_time(raw: RawNats, daemon: Daemon) -> None:
    publish(raw, "timed", b"v")
    assert describe(daemon, "timed").log_end_offset == 2
    until(lambda: describe(daemon, "timed").high_watermark == 2, timeout=5)
    assert daemon.metric("liftlog_fsync_total", stream="timed") == 1


def test_os_follows_the_write(raw: RawNats, daemon: Daemon) -> None:
    assert publish(raw, "lazy", b"v") == {"stream": "lazy", "seq": 1, "durability": "os"}
    assert describe(daemon, "lazy").high_watermark == 2
    assert daemon.metric("liftlog_fsync_total", stream="lazy") == 0


# --- subjects and groups ---


def test_wildcards(raw: RawNats, daemon: Daemon) -> None:
    for subject in ("wild.a.end", "wild.a.b", "wild.a.b.end", "wild.end"):
        raw.pub(subject, subject.encode())
    assert publish(raw, "wild.b.end", b"wild.b.end")["stream"] == "middle"
    until(lambda: describe(daemon, "deep").high_watermark == 6)
    assert [r.subject for r in records_of(daemon, "middle")] == ["wild.a.end", "wild.b.end"]
    assert len(values_of(daemon, "deep")) == 5


def test_two_streams_on_one_subject_both_store(raw: RawNats, daemon: Daemon) -> None:
    reply = raw.new_reply()
    raw.pub("twin.a", b"v", reply=reply)
    answers = sorted(raw.next_message().json()["stream"] for _ in range(2))
    assert answers == ["first", "second"]
    assert any("second" in text for text in describe(daemon, "first").warnings)


def test_the_expected_stream_alone_answers(raw: RawNats, daemon: Daemon) -> None:
    before = refused(daemon, "first", "wrong_stream")
    reply = raw.new_reply()
    raw.hpub("twin.b", header_block({"Nats-Expected-Stream": "second"}), b"v", reply=reply)
    assert raw.next_message().json()["stream"] == "second"
    # `second` records `twin.*` only: no other stream would answer here.
    raw.hpub("twin.b.c", header_block({"Nats-Expected-Stream": "second"}), b"v", reply=reply)
    assert raw.next_message().json()["error"]["err_code"] == 10060
    raw.hpub("twin.b", header_block({"Nats-Expected-Stream": "nobody"}), b"v", reply=reply)
    codes = [raw.next_message().json()["error"]["err_code"] for _ in range(2)]
    assert codes == [10060, 10060]
    assert raw.no_message()
    assert refused(daemon, "first", "wrong_stream") == before + 3


def test_a_queue_group_shares(raw: RawNats, daemon: Daemon) -> None:
    inbox = raw.new_reply().rpartition(b".")[0]
    count = 2000
    raw.send(
        b"".join(pub_frame("shared.x", b"%d" % i, reply=inbox + b".%d" % i) for i in range(count))
    )
    answers = {m.subject: m.json() for m in (raw.next_message() for _ in range(count))}
    assert len(answers) == count
    left, right = values_of(daemon, "left"), values_of(daemon, "right")
    assert len(left) + len(right) == count
    assert sorted(int(v or b"-1") for v in left + right) == list(range(count))
    assert min(len(left), len(right)) > count // 10
    assert describe(daemon, "left").warnings == []
    # A message for one member that NATS gave to the other is refused, not swallowed in silence.
    replies = [inbox + b".w%d" % i for i in range(50)]
    block = header_block({"Nats-Expected-Stream": "left"})
    for reply in replies:
        raw.hpub("shared.x", block, b"", reply=reply)
    answers = {m.subject: m.json() for m in (raw.next_message() for _ in replies)}
    assert len(answers) == 50
    assert {a.get("error", {}).get("err_code") for a in answers.values()} == {None, 10060}


# --- dedupe across restarts ---


@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_dedupe_survives(server: NatsServer, how: str) -> None:
    streams = {"d": {"subject": f"d.{how}"}, "e": {"subject": f"e.{how}", "acks": "envelope"}}
    with Daemon(server.url, {"streams": streams}) as daemon:
        nc = await nats.connect(server.url)
        js = nc.jetstream()
        for name in ("a", "b"):
            await js.publish(f"d.{how}", name.encode(), headers={"Nats-Msg-Id": name})
        wrapped = envelope.encode(b"c", message_id="c")
        await nc.request(f"d.{how}", wrapped)
        with RawNats(server.port) as raw:
            mine = raw.new_reply().decode()
            enveloped = envelope.encode(b"v", message_id="i", ack_subject=mine)
            raw.pub(f"e.{how}", enveloped)
            assert raw.next_message().json()["seq"] == 1

            getattr(daemon, how)()
            await asyncio.to_thread(daemon.start)

            for seq, name in ((1, "a"), (2, "b"), (3, "c")):
                again = await js.publish(f"d.{how}", b"again", headers={"Nats-Msg-Id": name})
                assert (again.seq, again.duplicate) == (seq, True)
            raw.pub(f"e.{how}", enveloped)
            assert raw.next_message().json() == {"stream": "e", "seq": 1, "duplicate": True}
        # The id of the last record is known, too.
        headers = {"Nats-Expected-Last-Msg-Id": "c", "Nats-Expected-Last-Sequence": "3"}
        assert (await js.publish(f"d.{how}", b"next", headers=headers)).seq == 4
        assert values_of(daemon, "d") == [b"a", b"b", b"c", b"next"]
        assert any(describe(daemon, "d").possible_losses)
        await nc.close()
        assert_no_traceback(daemon)
