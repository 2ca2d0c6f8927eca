"""What JetStream would have deleted is not shown, and does not count: what was purged, what is too
old, what a newer value supersedes. It stays so when the daemon is killed, and clients can create it
anew."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from collections.abc import AsyncIterator, Iterator
from typing import Any

import nats
import pytest
from nats.js import JetStreamContext
from nats.js.errors import APIError, KeyNotFoundError, NoKeysError
from nats.js.kv import KeyValue
from support.clients.ingesting import assert_no_traceback, until
from support.clients.raw_nats import RawNats, header_block, hpub_frame, pub_frame
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer

from liftlog.client import connect_sync

pytestmark = pytest.mark.integration

MAX_AGE_SECONDS = 2.0


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with NatsServer(leafnodes={"listen": "127.0.0.1:-1"}) as server:
        yield server


@pytest.fixture(scope="module")
def daemon(server: NatsServer) -> Iterator[Daemon]:
    leafnode = re.search(r"for leafnode connections on (\S+)", server.log)
    assert leafnode is not None, server.log
    settings = {"nats": {"jetstream_api": True, "leafnode": leafnode[1]}}
    with Daemon(server.url, settings) as daemon:
        answers(server)
        yield daemon
        assert_no_traceback(daemon)


def answers(server: NatsServer) -> None:
    with RawNats(server.port) as raw:
        until(lambda: raw.request("$JS.API.INFO", b"").payload != b"")


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


async def new_bucket(js: JetStreamContext, **config: Any) -> KeyValue:
    return await js.create_key_value(bucket=f"b{secrets.token_hex(4)}", **config)


def stream_of(bucket: KeyValue) -> str:
    """nats-py has no public name for it."""
    return bucket._stream


def subject_of(bucket: KeyValue, key: str) -> str:
    return f"{bucket._pre}{key}"


def asked(raw: RawNats, method: str, **body: Any) -> Any:
    return raw.request(f"$JS.API.{method}", json.dumps(body).encode()).json()


def purged(raw: RawNats, bucket: KeyValue, pattern: str, **more: int) -> Any:
    found = asked(
        raw, f"STREAM.PURGE.{stream_of(bucket)}", filter=subject_of(bucket, pattern), **more
    )
    return found.get("purged", found.get("error"))


async def shown(bucket: KeyValue) -> dict[str, bytes]:
    """What a watcher gets at its begin: the markers of deleted keys, too."""
    watcher = await bucket.watchall()
    found = {}
    while (update := await watcher.updates(timeout=60)) is not None:
        found[update.key] = update.value or b""
    await watcher.stop()
    return found


async def is_gone(bucket: KeyValue, key: str) -> bool:
    try:
        await bucket.get(key)
    except KeyNotFoundError as error:
        return error.entry is None  # not even its marker is there
    return False


@pytest.mark.parametrize("history", [1, 5])
async def test_a_subject_is_purged_and_stays_so(
    js: JetStreamContext, raw: RawNats, server: NatsServer, daemon: Daemon, history: int
) -> None:
    bucket = await new_bucket(js, history=history)
    for key in ("a.x", "a.y", "b"):
        for value in (b"1", b"2"):
            await bucket.put(key, value)
    assert purged(raw, bucket, "a.*") == 2 * min(history, 2)
    assert purged(raw, bucket, "a.*") == 0
    assert await shown(bucket) == {"b": b"2"}
    assert await is_gone(bucket, "a.x")

    daemon.kill()
    daemon.start()
    answers(server)
    assert await shown(bucket) == {"b": b"2"}
    assert await is_gone(bucket, "a.y")
    found = asked(
        raw, f"STREAM.INFO.{stream_of(bucket)}", subjects_filter=">", deleted_details=True
    )["state"]
    assert found["subjects"] == {subject_of(bucket, "b"): min(history, 2)}
    assert found["num_subjects"] == 1
    assert found["messages"] == min(history, 2)
    if history == 1:
        assert found["deleted"] == [1, 2, 3, 4, 5, 7, 8]
    await bucket.create("a.x", b"anew")
    assert await shown(bucket) == {"b": b"2", "a.x": b"anew"}


async def test_revisions_that_jetstream_would_not_have_are_not_found(
    js: JetStreamContext, raw: RawNats
) -> None:
    bucket = await new_bucket(js, history=1)
    revisions = [await bucket.put("a", b"%d" % number) for number in range(3)]
    with pytest.raises(KeyNotFoundError):
        await bucket.get("a", revision=revisions[0])
    assert (await bucket.get("a", revision=revisions[2])).value == b"2"
    assert purged(raw, bucket, "a") == 1
    with pytest.raises(KeyNotFoundError):
        await bucket.get("a", revision=revisions[2])


async def test_a_part_of_a_history_is_purged(
    js: JetStreamContext, raw: RawNats, server: NatsServer, daemon: Daemon
) -> None:
    bucket = await new_bucket(js, history=3)
    revisions = [await bucket.put("a", b"%d" % number) for number in range(4)]

    async def kept() -> list[int]:
        return [one.revision for one in await bucket.history("a")]

    assert purged(raw, bucket, "a", keep=3) == 0
    assert purged(raw, bucket, "a", seq=revisions[1]) == 0, "only three are shown"
    assert purged(raw, bucket, "a", seq=revisions[2]) == 1
    assert await kept() == revisions[2:]
    with pytest.raises(KeyNotFoundError):
        await bucket.get("a", revision=revisions[1])
    assert (await bucket.get("a")).value == b"3"
    assert purged(raw, bucket, "a", keep=1) == 1
    daemon.kill()
    daemon.start()
    answers(server)
    assert await kept() == revisions[3:]
    assert asked(raw, f"STREAM.INFO.{stream_of(bucket)}")["state"]["messages"] == 1
    latest = await bucket.update("a", b"4", last=revisions[3])
    assert await kept() == [revisions[3], latest]
    assert purged(raw, bucket, "a", seq=latest + 1) == 2
    with pytest.raises(NoKeysError):
        await bucket.history("a")


async def test_keep_counts_all_keys_together(js: JetStreamContext, raw: RawNats) -> None:
    bucket = await new_bucket(js, history=5)
    for key in ("a.x", "a.y", "a.x", "b", "a.x", "a.y"):
        await bucket.put(key, b"1")
    assert purged(raw, bucket, "a.*", keep=2) == 3
    counts = asked(raw, f"STREAM.INFO.{stream_of(bucket)}", subjects_filter=">")["state"][
        "subjects"
    ]
    assert counts == {subject_of(bucket, key): 1 for key in ("a.x", "a.y", "b")}
    assert purged(raw, bucket, "a.*", keep=9) == 0


@pytest.mark.parametrize("history", [1, 5])
async def test_markers_of_deleted_keys_are_purged(
    js: JetStreamContext, raw: RawNats, history: int
) -> None:
    bucket = await new_bucket(js, history=history)
    for key in "abc":
        await bucket.put(key, b"x")
    await bucket.delete("a")
    await bucket.purge("b")
    assert await shown(bucket) == {"a": b"", "b": b"", "c": b"x"}
    await bucket.purge_deletes()  # of these, which are young, only the markers stay
    assert await shown(bucket) == {"a": b"", "b": b"", "c": b"x"}
    assert asked(raw, f"STREAM.INFO.{stream_of(bucket)}")["state"]["messages"] == 3
    await bucket.purge_deletes(olderthan=-1)
    assert await shown(bucket) == {"c": b"x"}
    assert asked(raw, f"STREAM.INFO.{stream_of(bucket)}")["state"]["messages"] == 1


async def test_a_watcher_waits_for_changes_after_a_purge(
    js: JetStreamContext, raw: RawNats
) -> None:
    """What is purged last is not among what a watcher is told to wait for."""
    bucket = await new_bucket(js, history=1)
    await bucket.put("a", b"1")
    await bucket.put("b", b"1")
    watcher = await bucket.watchall()
    begin = [await watcher.updates(timeout=60) for _ in range(3)]
    assert [one and one.key for one in begin] == ["a", "b", None]
    assert purged(raw, bucket, "b") == 1
    await bucket.put("c", b"1")
    change = await watcher.updates(timeout=60)
    assert change is not None
    assert change.key == "c"
    await watcher.stop()
    assert await shown(bucket) == {"a": b"1", "c": b"1"}


async def test_readers_of_the_log_see_tombstones(
    js: JetStreamContext, raw: RawNats, daemon: Daemon
) -> None:
    bucket = await new_bucket(js, history=1)
    await bucket.put("a", b"1")
    purged(raw, bucket, "a")
    with connect_sync(daemon.pull_address) as client:
        found = list(client.read(stream_of(bucket), start="earliest", until="end"))
    key = subject_of(bucket, "a")
    assert [(one.subject, one.key, one.value) for one in found] == [
        (key, key.encode(), b"1"),
        (key, key.encode(), None),
    ]


async def test_what_is_too_old_is_not_there(js: JetStreamContext, raw: RawNats) -> None:
    bucket = await new_bucket(js, history=1, ttl=MAX_AGE_SECONDS)
    first = await bucket.put("a", b"1")
    await bucket.put("b", b"1")
    async with asyncio.timeout(60):
        while not await is_gone(bucket, "a"):
            await bucket.put("b", b"2")
    await bucket.create("a", b"anew")
    with pytest.raises(KeyNotFoundError):
        await bucket.get("a", revision=first)
    assert await shown(bucket) == {"a": b"anew", "b": b"2"}
    state = asked(raw, f"STREAM.INFO.{stream_of(bucket)}")["state"]
    assert state["messages"] == 2
    assert state["first_seq"] > first


async def test_a_part_that_was_purged_leaves_the_last_value_of_a_shorter_history(
    js: JetStreamContext, raw: RawNats
) -> None:
    bucket = await new_bucket(js, history=5)
    for value in (b"1", b"2", b"3"):
        await bucket.put("a", value)
    assert purged(raw, bucket, "a", keep=1) == 2
    config = (await js.stream_info(stream_of(bucket))).config
    config.max_msgs_per_subject = 1
    await js.update_stream(config)
    assert await shown(bucket) == {"a": b"3"}
    assert (await bucket.get("a")).value == b"3"


async def test_a_key_is_found_while_it_changes(js: JetStreamContext) -> None:
    """What was its last value when it was looked up is superseded before it is read."""
    bucket = await new_bucket(js, history=1)
    await bucket.put("a", b"0")
    changes = True

    async def change() -> None:
        while changes:
            await bucket.put("a", b"x")

    async with asyncio.TaskGroup() as tasks:
        for _ in range(8):
            tasks.create_task(change())
        try:
            for _ in range(300):
                await bucket.get("a")
        finally:
            changes = False


async def test_a_bucket_is_full_of_its_newest_values_only(
    js: JetStreamContext, raw: RawNats, server: NatsServer, daemon: Daemon
) -> None:
    """Values that newer ones supersede are on the disk, many times as much as the bucket may
    have."""
    most, value = 200_000, b"x" * 10_000
    bucket = await new_bucket(js, history=1, max_bytes=most)

    async def overwritten(times: int) -> None:
        for number in range(times):
            async with asyncio.timeout(60):
                while not await is_put(bucket, f"k.{number % 5}", value):
                    await asyncio.sleep(0.05)  # it is counted some times a second

    await overwritten(60)
    assert await fill(bucket, value) in range(9, 15), "beside 5 values of 10 kB"
    assert not await is_put(bucket, "another", value)
    daemon.kill()
    daemon.start()
    answers(server)
    async with asyncio.timeout(60):
        while await is_put(bucket, f"after-{secrets.token_hex(4)}", value):
            pass
    assert (await bucket.get("k.1")).value == value
    assert purged(raw, bucket, "k.*") == 5
    async with asyncio.timeout(60):
        while not await is_put(bucket, "another", value):
            await asyncio.sleep(0.05)


async def is_put(bucket: KeyValue, key: str, value: bytes) -> bool:
    try:
        await bucket.put(key, value)
    except APIError as error:
        if error.err_code != 10077:
            raise
        return False
    return True


async def fill(bucket: KeyValue, value: bytes) -> int:
    """How many values it takes until it is full for longer than a count takes."""
    count, refused = 0, 0
    while refused < 10:
        if await is_put(bucket, f"more-{count}", value):
            count, refused = count + 1, 0
        else:
            refused += 1
            await asyncio.sleep(0.1)
    return count


async def test_a_worker_does_not_get_what_is_too_old_or_was_purged(
    js: JetStreamContext, raw: RawNats
) -> None:
    name = f"s{secrets.token_hex(4)}"
    await js.add_stream(
        name=name, subjects=[f"{name}.>"], max_age=MAX_AGE_SECONDS, max_msgs_per_subject=5
    )
    worker = await js.pull_subscribe(f"{name}.>", durable="w", stream=name)
    for key in ("a", "b", "b"):
        await js.publish(f"{name}.{key}", b"1")
    asked(raw, f"STREAM.PURGE.{name}", filter=f"{name}.a")
    assert (await worker.consumer_info()).num_pending == 2
    await asyncio.sleep(MAX_AGE_SECONDS + 0.5)
    assert (await worker.consumer_info()).num_pending == 0
    for key in ("a", "c"):
        await js.publish(f"{name}.{key}", b"2")
    asked(raw, f"STREAM.PURGE.{name}", filter=f"{name}.a")
    found = await worker.fetch(5, timeout=1)
    assert [one.subject for one in found] == [f"{name}.c"]


@pytest.mark.parametrize("policy", ["none", "explicit"])
async def test_a_watcher_gets_a_value_that_is_rolled_up_at_once(
    js: JetStreamContext, raw: RawNats, policy: str
) -> None:
    """JetStream would have delivered it before the roll-up."""
    bucket = await new_bucket(js, history=5)
    inbox, stream, subject = f"_INBOX.{policy}", stream_of(bucket), subject_of(bucket, "k")
    raw.sub(inbox)
    raw.ping()
    config = {"deliver_subject": inbox, "ack_policy": policy}
    asked(raw, f"CONSUMER.CREATE.{stream}", stream_name=stream, config=config)
    raw.pub(subject, b"first")
    assert raw.next_message(timeout=10).payload == b"first"
    rollup = header_block({"Nats-Rollup": "sub", "KV-Operation": "PURGE"})
    for round_number in range(10):
        value = b"%d" % round_number
        raw.send(pub_frame(subject, value) + hpub_frame(subject, rollup))
        assert raw.next_message(timeout=10).payload == value
        assert raw.next_message(timeout=10).payload == b""
