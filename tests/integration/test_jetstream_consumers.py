"""JetStream's clients read streams of the daemon in order, over a leaf node connection."""

from __future__ import annotations

import json
import re
import secrets
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.js import JetStreamContext
from nats.js.api import DeliverPolicy
from nats.js.errors import KeyNotFoundError, KeyWrongLastSequenceError
from support.clients.ingesting import assert_no_traceback, until
from support.clients.raw_nats import RawMessage, RawNats
from support.daemons.compacted import Compacted
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer

from liftlog.client import connect_sync
from liftlog.server.jetstream_api.consumers.cursor import PIECE_BYTES
from liftlog.server.jetstream_api.consumers.push_flow import WINDOW_BYTES
from liftlog.server.jetstream_api.consumers.table import MAX_OF_PARTY

pytestmark = pytest.mark.integration

SECOND = 10**9
PATIENCE = 60


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with NatsServer(leafnodes={"listen": "127.0.0.1:-1"}) as server:
        yield server


def leafnode_of(server: NatsServer) -> str:
    found = re.search(r"Listening for leafnode connections on (127\.0\.0\.1:\d+)", server.log)
    assert found is not None, server.log
    return found[1]


@pytest.fixture(scope="module")
def daemon(server: NatsServer) -> Iterator[Daemon]:
    settings = {
        "nats": {"jetstream_api": True, "leafnode": leafnode_of(server)},
        "streams": {
            "configured": {"subject": "configured.>"},
            "compacted": {"subject": "compacted", "compaction": {}, "dedupe_window": 0},
        },
    }
    with Daemon(server.url, settings) as daemon:
        with RawNats(server.port) as raw:
            until(lambda: raw.request("$JS.API.INFO", b"").payload != b"")
        yield daemon
        assert_no_traceback(daemon)


@pytest.fixture
async def js(server: NatsServer, daemon: Daemon) -> AsyncIterator[JetStreamContext]:
    client = await nats.connect(server.url)
    try:
        yield client.jetstream(timeout=60)
    finally:
        await client.close()


@pytest.fixture
def raw(server: NatsServer, daemon: Daemon) -> Iterator[RawNats]:
    with RawNats(server.port) as raw:
        yield raw


def asked(raw: RawNats, method: str, body: Any = None) -> Any:
    payload = b"" if body is None else json.dumps(body).encode()
    return raw.request(f"$JS.API.{method}", payload).json()


def new_stream(raw: RawNats) -> str:
    name = f"s{secrets.token_hex(4)}"
    answer = asked(raw, f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"{name}.>"]})
    assert "error" not in answer, answer
    return name


def new_consumer(raw: RawNats, stream: str, **config: Any) -> Any:
    body = {
        "stream_name": stream,
        "config": {"ack_policy": "none", "inactive_threshold": 60 * SECOND, **config},
    }
    return asked(raw, f"CONSUMER.CREATE.{stream}", body)


def store(raw: RawNats, *messages: tuple[bytes, bytes]) -> None:
    for subject, payload in messages:
        assert b'"error"' not in raw.request(subject, payload).payload


def pulled(raw: RawNats, stream: str, consumer: str, **request: Any) -> list[RawMessage]:
    """What one pull request brings, up to the status that ends it."""
    inbox = f"_INBOX.{secrets.token_hex(6)}"
    raw.sub(inbox)
    raw.ping()
    asks = {"batch": 100, "no_wait": True, **request}
    raw.pub(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}", json.dumps(asks), reply=inbox)
    found = []
    while len(found) < asks["batch"]:
        message = raw.next_message(timeout=60)
        found.append(message)
        if message.headers is not None and re.match(rb"NATS/1\.0 [45]", message.headers):
            break
    return found


# --- push ---


async def test_an_ordered_consumer_gets_every_record_under_its_own_subject(
    js: JetStreamContext, raw: RawNats
) -> None:
    stream = new_stream(raw)
    sent = [(f"{stream}.{number % 3}", b"x" * number) for number in range(200)]
    for subject, payload in sent:
        await js.publish(subject, payload, headers={"Number": str(len(payload))})
    reader = await js.subscribe(f"{stream}.>", stream=stream, ordered_consumer=True)
    for number, (subject, payload) in enumerate(sent, 1):
        message = await reader.next_msg(timeout=60)
        assert (message.subject, message.data) == (subject, payload)
        assert message.headers == {"Number": str(len(payload))}
        assert message.metadata.sequence.stream == number
        assert message.metadata.num_pending == len(sent) - number
    await js.publish(f"{stream}.later", b"later")
    assert (await reader.next_msg(timeout=60)).subject == f"{stream}.later"


async def test_a_consumer_begins_with_the_last_record_of_each_subject(
    js: JetStreamContext, raw: RawNats
) -> None:
    stream = new_stream(raw)
    for number in range(30):
        await js.publish(f"{stream}.{number % 4}", str(number).encode())
    reader = await js.subscribe(
        f"{stream}.>",
        stream=stream,
        ordered_consumer=True,
        deliver_policy=DeliverPolicy.LAST_PER_SUBJECT,
    )
    got = [await reader.next_msg(timeout=60) for _ in range(4)]
    assert [message.data for message in got] == [b"26", b"27", b"28", b"29"]
    assert [message.metadata.num_pending for message in got] == [3, 2, 1, 0]


async def test_holes_that_compaction_leaves_are_no_loss(
    js: JetStreamContext, raw: RawNats, daemon: Daemon
) -> None:
    """The client makes its consumer again if it misses a record: it counts what it gets, and does
    not look at the offsets."""
    records = Compacted(raw, "compacted")
    records.put_many([f"k{number % 7}" for number in range(60)])
    with connect_sync(daemon.pull_address) as client:
        client.compact_stream("compacted", wait=True)
    records.put_many(["k1", "new"])
    reader = await js.subscribe("compacted", ordered_consumer=True)
    name = (await reader.consumer_info()).name
    found = [(await reader.next_msg(PATIENCE)).metadata.sequence for _ in records.newest]
    while found[-1].stream < records.next_offset - 1:
        found.append((await reader.next_msg(PATIENCE)).metadata.sequence)
    offsets = [one.stream for one in found]
    assert len(offsets) < 60, "there are holes"
    assert offsets == sorted(offsets)
    assert {offset for offset, _ in records.newest.values()} <= set(offsets)
    assert [one.consumer for one in found] == list(range(1, len(found) + 1))
    assert (await reader.consumer_info()).name == name, "it is still the first consumer"


def test_a_push_consumer_ends_with_its_client(server: NatsServer, raw: RawNats) -> None:
    stream = new_stream(raw)
    inbox = f"_INBOX.{secrets.token_hex(6)}"
    with RawNats(server.port) as client:
        client.sub(inbox)
        client.ping()
        made = new_consumer(raw, stream, deliver_subject=inbox, inactive_threshold=SECOND)
        store(raw, (f"{stream}.a".encode(), b"1"))
        assert client.next_message(timeout=60).subject == f"{stream}.a".encode()
    until(
        lambda: "error" in asked(raw, f"CONSUMER.INFO.{stream}.{made['name']}"),
        what="the consumer ends",
    )


def test_an_idle_push_consumer_sends_heartbeats(server: NatsServer, raw: RawNats) -> None:
    stream = new_stream(raw)
    store(raw, (f"{stream}.a".encode(), b"1"))
    inbox = f"_INBOX.{secrets.token_hex(6)}"
    raw.sub(inbox)
    raw.ping()
    with RawNats(server.port) as other:
        config = {"deliver_subject": inbox, "idle_heartbeat": SECOND // 5, "flow_control": True}
        assert "error" not in new_consumer(other, stream, **config)
    heard = [raw.next_message(timeout=60)]
    while heard[-1].payload != b"1":
        heard.append(raw.next_message(timeout=60))  # it may have been idle before
    beat = raw.next_message(timeout=60)
    assert beat.headers is not None
    assert beat.headers.startswith(b"NATS/1.0 100 Idle Heartbeat\r\n")
    assert b"Nats-Last-Consumer: 1\r\nNats-Last-Stream: 1\r\n" in beat.headers


def test_flow_control_waits_for_the_client(server: NatsServer, raw: RawNats) -> None:
    """A client that does not answer gets a bounded number of bytes, then heartbeats that name what
    it has to answer; with the answers, it gets everything."""
    stream = new_stream(raw)
    count, size = 40, 8 * WINDOW_BYTES // 40
    store(raw, *[(f"{stream}.a".encode(), b"x" * size) for _ in range(count)])
    inbox = f"_INBOX.{secrets.token_hex(6)}"
    raw.sub(inbox)
    raw.ping()
    with RawNats(server.port) as other:
        config = {"deliver_subject": inbox, "idle_heartbeat": SECOND // 5, "flow_control": True}
        assert "error" not in new_consumer(other, stream, **config)
    got, stalls, most = 0, 0, 0
    since = 0
    while got < count:
        message = raw.next_message(timeout=60)
        if message.payload:
            got += 1
            since += size
            most = max(most, since)
            continue
        assert message.headers is not None
        question = re.search(rb"Nats-Consumer-Stalled: (\S+)", message.headers)
        if question is not None:
            stalls += 1
            since = 0
            raw.pub(question[1], b"")
    assert stalls >= 2
    assert WINDOW_BYTES <= most <= 2 * WINDOW_BYTES + 2 * PIECE_BYTES


@pytest.mark.parametrize("kind", ["push", "pull"])
def test_records_are_delivered_as_they_are_committed(kind: str) -> None:
    """Each at once, however long consumers of the pull socket wait for more."""
    with NatsServer(leafnodes={"listen": "127.0.0.1:-1"}) as server:
        settings = {
            "nats": {"jetstream_api": True, "leafnode": leafnode_of(server)},
            "pull": {"linger": 2 * PATIENCE},
        }
        with Daemon(server.url, settings), RawNats(server.port) as raw:
            until(lambda: raw.request("$JS.API.INFO", b"").payload != b"")
            stream, count = new_stream(raw), 10
            inbox = f"_INBOX.{secrets.token_hex(6)}"
            raw.sub(inbox)
            raw.ping()
            if kind == "push":
                new_consumer(raw, stream, deliver_subject=inbox)
            else:
                name = new_consumer(raw, stream)["name"]
                asks = json.dumps({"batch": count, "expires": 3600 * SECOND})
                raw.pub(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{name}", asks, reply=inbox)
            for number in range(count):
                store(raw, (f"{stream}.a".encode(), b"%d" % number))
                assert raw.next_message(timeout=PATIENCE).payload == b"%d" % number


async def test_a_client_that_never_reads_does_not_delay_others(
    server: NatsServer, js: JetStreamContext, raw: RawNats
) -> None:
    """It asks for a stream many times, pushed and pulled, without flow control. NATS holds some of
    that for it and then cuts it off; what others read comes all the time."""
    flood, quiet = new_stream(raw), new_stream(raw)
    for number in range(500):
        await js.publish(f"{flood}.a", bytes(16_384), headers={"Number": str(number)})
    reader = await js.subscribe(f"{quiet}.>", stream=quiet, ordered_consumer=True)
    with RawNats(server.port) as greedy:
        greedy.sub("never.>")
        greedy.ping()
        for number in range(8):
            new_consumer(raw, flood, deliver_subject=f"never.{number}")
            name = new_consumer(raw, flood)["name"]
            asks = json.dumps({"batch": 100_000}).encode()
            raw.pub(f"$JS.API.CONSUMER.MSG.NEXT.{flood}.{name}", asks, reply=f"never.p{number}")
        slowest = 0.0
        for number in range(40):
            began = time.monotonic()
            await js.publish(f"{quiet}.a", b"%d" % number)
            assert (await reader.next_msg(timeout=PATIENCE)).data == b"%d" % number
            slowest = max(slowest, time.monotonic() - began)
    assert slowest < PATIENCE / 2
    assert asked(raw, f"STREAM.INFO.{quiet}")["state"]["messages"] == 40


# --- pull ---


def test_pull_requests_get_what_they_ask_for(raw: RawNats) -> None:
    stream = new_stream(raw)
    name = new_consumer(raw, stream)["name"]
    [status] = pulled(raw, stream, name)
    assert status.headers is not None
    assert status.headers.startswith(b"NATS/1.0 404 No Messages\r\n")
    store(raw, *[(f"{stream}.{n}".encode(), b"%d" % n) for n in range(10)])
    found = pulled(raw, stream, name, batch=3)
    assert [one.payload for one in found] == [b"0", b"1", b"2"]
    assert [one.subject for one in found] == [f"{stream}.{n}".encode() for n in range(3)]
    *found, status = pulled(raw, stream, name)
    assert [one.payload for one in found] == [b"%d" % n for n in range(3, 10)]
    assert status.headers == b"NATS/1.0 404 No Messages\r\n\r\n"
    info = asked(raw, f"CONSUMER.INFO.{stream}.{name}")
    assert info["delivered"]["consumer_seq"] == info["delivered"]["stream_seq"] == 10
    assert info["num_pending"] == 0


def test_what_is_pending_counts_what_came_while_records_wait(raw: RawNats) -> None:
    stream = new_stream(raw)
    name = new_consumer(raw, stream, filter_subject=f"{stream}.a")["name"]
    store(raw, *[(f"{stream}.a".encode(), b"%d" % n) for n in range(10)])
    pulled(raw, stream, name, batch=3)  # the others wait in the consumer
    for count in (10, 20):
        store(raw, *[(f"{stream}.{one}".encode(), b"") for one in "aabb" for _ in range(5)])
        assert asked(raw, f"CONSUMER.INFO.{stream}.{name}")["num_pending"] == 7 + count
    assert len(pulled(raw, stream, name, batch=27)) == 27
    assert asked(raw, f"CONSUMER.INFO.{stream}.{name}")["num_pending"] == 0


def test_a_pull_request_waits_as_long_as_it_says(raw: RawNats) -> None:
    stream = new_stream(raw)
    name = new_consumer(raw, stream)["name"]
    [status] = pulled(raw, stream, name, no_wait=False, expires=SECOND // 5)
    assert status.headers is not None
    assert status.headers.startswith(b"NATS/1.0 408 Request Timeout\r\n")
    assert b"Nats-Pending-Messages: 100\r\n" in status.headers


def test_what_exceeds_the_bytes_of_a_request_stays(raw: RawNats) -> None:
    stream = new_stream(raw)
    store(raw, *[(f"{stream}.a".encode(), b"x" * 1000) for _ in range(4)])
    name = new_consumer(raw, stream)["name"]
    *found, status = pulled(raw, stream, name, max_bytes=3000)
    assert len(found) == 2
    assert status.headers is not None
    assert b" 409 " in status.headers
    assert len(pulled(raw, stream, name, batch=2)) == 2


def test_a_consumer_that_does_not_exist_does_not_respond(raw: RawNats) -> None:
    stream = new_stream(raw)
    [status] = pulled(raw, stream, "unknown")
    assert status.headers is not None
    assert status.headers.startswith(b"NATS/1.0 503")


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, [b"0", b"1", b"2", b"3", b"4", b"5"]),
        ({"deliver_policy": "new"}, []),
        ({"deliver_policy": "last"}, [b"5"]),
        ({"deliver_policy": "by_start_sequence", "opt_start_seq": 4}, [b"3", b"4", b"5"]),
        (
            {"deliver_policy": "by_start_time", "opt_start_time": "2001-01-01T00:00:00Z"},
            [b"0", b"1", b"2", b"3", b"4", b"5"],
        ),
        ({"deliver_policy": "by_start_time", "opt_start_time": "2101-01-01T00:00:00+01:00"}, []),
        ({"filter_subject": "STREAM.even"}, [b"0", b"2", b"4"]),
        ({"filter_subjects": ["STREAM.odd", "STREAM.none"]}, [b"1", b"3", b"5"]),
        ({"filter_subject": "STREAM.even", "deliver_policy": "last"}, [b"4"]),
        ({"headers_only": True}, [b""] * 6),
    ],
)
def test_where_a_consumer_begins_and_what_it_wants(
    raw: RawNats, config: dict[str, Any], expected: list[bytes]
) -> None:
    stream = new_stream(raw)
    store(raw, *[(f"{stream}.{('even', 'odd')[n % 2]}".encode(), b"%d" % n) for n in range(6)])
    named = json.loads(json.dumps(config).replace("STREAM", stream))
    made = new_consumer(raw, stream, **named)
    assert made["num_pending"] == len(expected), made
    *found, _ = pulled(raw, stream, made["name"])
    assert [one.payload for one in found] == expected
    if config.get("headers_only"):
        assert found[0].headers == b"NATS/1.0\r\nNats-Msg-Size: 1\r\n\r\n"


def test_strange_subjects_and_large_records_arrive(raw: RawNats) -> None:
    stream = new_stream(raw)
    messages = [
        (f"{stream}.".encode() + b"\xff\xfe", b"not utf-8"),
        (f"{stream}.a@b.@".encode(), b"at"),
        (f"{stream}.é".encode(), bytes(range(256))),
        (f"{stream}.large".encode(), secrets.token_bytes(1_000_000)),
        (f"{stream}.empty".encode(), b""),
    ]
    store(raw, *messages)
    name = new_consumer(raw, stream)["name"]
    found = pulled(raw, stream, name, batch=len(messages))
    assert [(one.subject, one.payload) for one in found] == messages


def test_a_consumer_ends_with_its_stream(raw: RawNats) -> None:
    stream = new_stream(raw)
    name = new_consumer(raw, stream)["name"]
    assert asked(raw, f"CONSUMER.NAMES.{stream}")["consumers"] == [name]
    asked(raw, f"STREAM.DELETE.{stream}")
    asked(raw, f"STREAM.CREATE.{stream}", {"name": stream, "subjects": [f"{stream}.>"]})
    until(lambda: asked(raw, f"CONSUMER.NAMES.{stream}")["total"] == 0)


def test_the_name_may_be_in_the_subject_alone(raw: RawNats) -> None:
    stream = new_stream(raw)
    body = {"stream_name": stream, "config": {"ack_policy": "none", "filter_subject": "a.b"}}
    made = asked(raw, f"CONSUMER.CREATE.{stream}.mine.a.b", body)
    assert (made["name"], made["config"]["filter_subject"]) == ("mine", "a.b")
    other = asked(raw, f"CONSUMER.CREATE.{stream}.other.a.c", body)
    assert other["error"]["err_code"] == 10131


def test_one_client_does_not_take_all_consumers(server: NatsServer, raw: RawNats) -> None:
    stream = new_stream(raw)
    answers = [new_consumer(raw, stream) for _ in range(MAX_OF_PARTY + 1)]
    assert [one.get("error", {}).get("err_code") for one in answers[-2:]] == [None, 10026]
    with RawNats(server.port) as other:
        assert "error" not in new_consumer(other, stream)
    asked(raw, f"CONSUMER.DELETE.{stream}.{answers[0]['name']}")
    assert "error" not in new_consumer(raw, stream)
    assert asked(raw, f"STREAM.DELETE.{stream}")["success"]


def test_a_consumer_is_deleted(raw: RawNats) -> None:
    stream = new_stream(raw)
    name = new_consumer(raw, stream, name="mine")["name"]
    assert name == "mine"
    assert asked(raw, f"CONSUMER.DELETE.{stream}.{name}")["success"] is True
    assert asked(raw, f"CONSUMER.DELETE.{stream}.{name}")["error"]["err_code"] == 10014


# --- key-value buckets ---


async def test_a_bucket_works_as_clients_expect(js: JetStreamContext, raw: RawNats) -> None:
    bucket = await js.create_key_value(bucket=f"b{secrets.token_hex(4)}", history=1)
    first = await bucket.put("a.b", b"1")
    assert (await bucket.get("a.b")).value == b"1"
    with pytest.raises(KeyWrongLastSequenceError):
        await bucket.create("a.b", b"again")
    second = await bucket.update("a.b", b"2", last=first)
    with pytest.raises(KeyWrongLastSequenceError):
        await bucket.update("a.b", b"3", last=first)
    assert second > first
    await bucket.delete("a.b")
    with pytest.raises(KeyNotFoundError):
        await bucket.get("a.b")
    await bucket.create("a.b", b"4")
    await bucket.put("c", b"5")
    await bucket.purge("c")
    await bucket.put("d", b"6")
    assert sorted(await bucket.keys()) == ["a.b", "d"]


async def test_a_watcher_sees_the_newest_values_and_then_changes(
    js: JetStreamContext, raw: RawNats
) -> None:
    bucket = await js.create_key_value(bucket=f"b{secrets.token_hex(4)}", history=1)
    for number in range(5):
        await bucket.put("a", b"%d" % number)
    await bucket.put("b", b"")
    watcher = await bucket.watchall()
    seen = [await watcher.updates(timeout=60) for _ in range(3)]
    assert [one and (one.key, one.value) for one in seen] == [("a", b"4"), ("b", b""), None]
    await bucket.delete("a")
    change = await watcher.updates(timeout=60)
    assert change is not None
    assert (change.key, change.operation) == ("a", "DEL")
    await watcher.stop()


async def test_what_changes_meanwhile_is_not_pending_when_a_consumer_is_made(
    js: JetStreamContext, raw: RawNats
) -> None:
    """Watchers take the first answer for the number of records of the present state."""
    stream = new_stream(raw)
    for number in range(4):
        await js.publish(f"{stream}.{number % 2}", b"%d" % number)
    made = new_consumer(raw, stream, deliver_policy="last_per_subject")
    assert made["num_pending"] == 2
    await js.publish(f"{stream}.0", b"4")
    found = pulled(raw, stream, made["name"], batch=3)
    assert [one.payload for one in found] == [b"2", b"3", b"4"]


@pytest.mark.parametrize("history", [1, 3])
async def test_the_history_of_a_key_has_as_many_values_as_were_asked_for(
    js: JetStreamContext, raw: RawNats, history: int
) -> None:
    bucket = await js.create_key_value(bucket=f"b{secrets.token_hex(4)}", history=history)
    for number in range(6):
        await bucket.put("a", b"%d" % number)
    values = [one.value for one in await bucket.history("a")]
    assert values == [b"%d" % number for number in range(6)][-history:]
    await bucket.purge("a")
    await bucket.put("a", b"new")
    found = [(one.operation, one.value) for one in await bucket.history("a")]
    assert found == [("PURGE", b""), (None, b"new")][-history:]


ACL = """
principals: {{local: {{unix_uid: 0}}}}
nats: {{allow: [{allowed}], streams: ["*"], attach: [">"]}}
"""


def test_a_consumer_ends_when_its_stream_may_no_longer_be_read(tmp_path: Path) -> None:
    acl = tmp_path / "acl.yaml"
    acl.write_text(ACL.format(allowed="create, read"))
    acl.chmod(0o600)
    with NatsServer(leafnodes={"listen": "127.0.0.1:-1"}) as server:
        settings = {
            "nats": {"jetstream_api": True, "leafnode": leafnode_of(server)},
            "acl": {"file": str(acl)},
        }
        with Daemon(server.url, settings) as daemon, RawNats(server.port) as raw:
            until(lambda: raw.request("$JS.API.INFO", b"").payload != b"")
            stream = new_stream(raw)
            store(raw, (f"{stream}.a".encode(), b"1"), (f"{stream}.a".encode(), b"2"))
            made = new_consumer(raw, stream)
            assert "error" not in made, made
            assert pulled(raw, stream, made["name"], batch=1)[0].payload == b"1"
            acl.write_text(ACL.format(allowed="create"))
            daemon.process.send_signal(signal.SIGHUP)
            until(lambda: '"reloaded"' in daemon.log)
            inbox = "_INBOX.revoked"
            raw.sub(inbox)
            subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{made['name']}"
            raw.pub(subject, b'{"batch": 1, "expires": 1000000000}', reply=inbox)
            answer = raw.next_message(timeout=60)
            assert answer.payload == b""
            assert answer.headers is not None
            assert re.match(rb"NATS/1\.0 [45]", answer.headers)
