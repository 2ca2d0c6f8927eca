"""Records that cannot be processed, at a real daemon: tried again, published elsewhere, and only
then committed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from support.clients.ingesting import assert_no_traceback
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer

from liftlog.client import Client, Record, connect, connect_sync
from liftlog.client.dead_letters import DeadLetters, SyncDeadLetters
from liftlog.client.publisher import NotPublished, Publisher
from liftlog.client.sync_publisher import SyncPublisher
from liftlog.errors import GroupFenced, InvalidArgument

pytestmark = pytest.mark.integration

STREAMS = {"orders": {"subject": "orders.>"}, "dead": {"subject": "dead.>"}}


@pytest.fixture
def daemon(server: NatsServer) -> Iterator[Daemon]:
    with Daemon(server.url, {"streams": STREAMS}) as daemon:
        yield daemon
        assert_no_traceback(daemon)


@pytest.fixture
async def client(daemon: Daemon) -> AsyncIterator[Client]:
    async with connect(daemon.pull_address) as client:
        yield client


@pytest.fixture
async def publisher(server: NatsServer, daemon: Daemon) -> AsyncIterator[Publisher]:
    async with Publisher(server.url) as publisher:
        yield publisher


class BadRecord(ValueError):
    """What this work says of a record."""


class Bill:
    """Work that cannot do with some records, and ends the loop after the last one."""

    def __init__(self, records: Any, last: int) -> None:
        self.done: list[int] = []
        self.attempts: list[int] = []
        self._records = records
        self._last = last

    async def __call__(self, record: Record) -> None:
        if record.offset >= self._last:
            self._records.stop()
        if record.value is None or record.value.startswith(b"bad"):
            self.attempts.append(record.offset)
            raise BadRecord("no\r\nsuch\x1b[31m customer")
        self.done.append(record.offset)


def letters(publisher: Publisher, **options: Any) -> DeadLetters:
    options = {"expect": ["dead"], "retries": 2, "pause": 0.001, "errors": (BadRecord,)} | options
    return DeadLetters(publisher, "dead.orders", **options)


async def dead(client: Client) -> list[Record]:
    return [record async for record in client.read("dead", "earliest", "end")]


async def test_a_bad_record_is_tried_again_published_and_passed(
    client: Client, publisher: Publisher
) -> None:
    for value, key in ((b"1", "a"), (b"bad", "a"), (b"3", "a"), (b"4", "b"), (None, "b")):
        headers = {"Trace": "t1", "Nats-Expected-Stream": "orders"}
        await publisher.publish("orders.x", value, key=key, headers=headers, expect=["orders"])
    sorter = letters(publisher)
    async with client.group("billing", "orders", session=600) as records:
        bill = Bill(records, 5)
        await sorter.run(records, bill)
    assert bill.done == [1, 3, 4]
    assert bill.attempts == [2, 2, 2, 5, 5, 5]
    assert sorter.published == 2
    info = await client.describe_group("billing", "orders")
    assert info is not None
    assert (info.lag, set(info.offsets)) == (0, {6})
    one, tombstone = await dead(client)
    assert (one.subject, one.key, one.value) == ("dead.orders", b"a", b"bad")
    assert dict(one.headers) == {
        "Trace": "t1",
        "Nats-Msg-Id": one.headers["Nats-Msg-Id"],
        "Liftlog-Key": "a",
        "Liftlog-Dead-Stream": "orders",
        "Liftlog-Dead-Offset": "2",
        "Liftlog-Dead-Subject": "orders.x",
        "Liftlog-Dead-Group": "billing",
        "Liftlog-Dead-Error": "BadRecord: no  such [31m customer",
        "Liftlog-Dead-Attempts": "3",
    }
    # A tombstone would delete the dead letters of its key.
    assert (tombstone.key, tombstone.value) == (b"b", b"")
    assert tombstone.headers["Liftlog-Dead-Tombstone"] == "true"


async def test_what_does_not_fit_a_message_is_left_out(
    client: Client, publisher: Publisher, server: NatsServer
) -> None:
    async with Publisher(server.url, use_envelope=True) as enveloped:
        await enveloped.publish("orders.x", b"bad key", key=b"\xff\0\n")
        await enveloped.publish("orders.x", b"bad, and no key", key=b"")
    long = b"bad" + b"x" * (1_048_576 - 200)
    await publisher.publish("orders.x", long, key="k" * 60)
    async with client.group("billing", "orders", session=600) as records:
        await letters(publisher).run(records, Bill(records, 3))
    binary, empty, large = await dead(client)
    assert (binary.key, binary.value) == (None, b"bad key")
    assert binary.headers["Liftlog-Dead-Left-Out"] == "key"
    assert (empty.key or b"", empty.value) == (b"", b"bad, and no key")
    # It is still in its stream, at this offset.
    assert (large.key, large.value) == (None, b"")
    assert large.headers["Liftlog-Dead-Left-Out"] == "key, headers, value"
    assert large.headers["Liftlog-Dead-Offset"] == "3"


async def test_a_dead_letter_that_no_stream_takes_ends_the_run_and_the_record_comes_again(
    client: Client, publisher: Publisher, server: NatsServer
) -> None:
    for value in (b"1", b"bad", b"3"):
        await publisher.publish("orders.x", value, key="a")
    async with Publisher(server.url, retry_for=0) as impatient:
        nowhere = DeadLetters(impatient, "nowhere", retries=0, errors=(BadRecord,))
        with pytest.raises(NotPublished) as raised:
            async with client.group("billing", "orders", session=600) as records:
                await nowhere.run(records, Bill(records, 3))
    assert isinstance(raised.value.__context__, BadRecord)
    async with client.group("billing", "orders", session=600) as records:
        bill = Bill(records, 3)
        await letters(publisher).run(records, bill)
    assert (bill.done, bill.attempts) == ([3], [2, 2, 2])
    assert [one.headers["Liftlog-Dead-Offset"] for one in await dead(client)] == ["2"]


async def test_a_process_that_dies_before_the_commit_leaves_one_dead_letter(
    client: Client, publisher: Publisher
) -> None:
    await publisher.publish("orders.x", b"bad", key="a")
    for _ in range(2):
        records = client.group("billing", "orders", session=600)
        record = await anext(records)
        done = await letters(publisher).process(records, record, Bill(records, 1))
        assert done is not None
        await records.close()  # what was returned last does not count
    assert done.duplicate
    assert len(await dead(client)) == 1
    info = await client.describe_group("billing", "orders")
    assert info is not None
    assert max(info.offsets) <= 1, "the record would not come again"


async def test_other_errors_end_the_run(client: Client, publisher: Publisher) -> None:
    await publisher.publish("orders.x", b"1", key="a")
    for error in (OSError("the database is down"), GroupFenced("another has the slot")):

        async def fail(record: Record, error: Exception = error) -> None:
            raise error

        broad = letters(publisher, errors=(BadRecord, GroupFenced))
        with pytest.raises(type(error)):
            async with client.group("billing", "orders", session=600) as records:
                await broad.run(records, fail)
    assert await dead(client) == []


async def test_a_consumer_with_a_checkpoint_and_a_dead_letter_of_its_own(
    client: Client, publisher: Publisher
) -> None:
    """The stream that it reads records the dead letters, too: they are not published again."""
    await publisher.publish("orders.x", b"bad", key="a")
    own = DeadLetters(publisher, "orders.dead", retries=0, errors=(BadRecord,))
    async with client.consumer("billing", "orders") as records:
        bill = Bill(records, 10**9)
        for _ in range(2):
            await own.process(records, await anext(records), bill)
    assert bill.attempts == [1, 2]
    found = [record async for record in client.read("orders", "earliest", "end")]
    assert [one.subject for one in found] == ["orders.x", "orders.dead"]


def test_the_blocking_twin(daemon: Daemon, server: NatsServer) -> None:
    done: list[int] = []
    attempts: list[int] = []

    def bill(record: Record) -> None:
        if record.value == b"bad":
            attempts.append(record.offset)
            raise BadRecord("no such customer")
        done.append(record.offset)
        if record.offset == 3:
            records.stop()

    with (
        SyncPublisher(server.url) as publisher,
        connect_sync(daemon.pull_address) as client,
    ):
        for value in (b"1", b"bad", b"3"):
            publisher.publish("orders.x", value, key="a", expect=["orders"])
        nowhere = SyncDeadLetters(publisher, "nowhere", retries=0, errors=(ZeroDivisionError,))
        with pytest.raises(BadRecord), client.group("billing", "orders", session=600) as records:
            nowhere.run(records, bill)
        sorter = SyncDeadLetters(
            publisher, "dead.orders", expect=["dead"], retries=2, pause=0.001, errors=(BadRecord,)
        )
        with client.group("billing", "orders", session=600) as records:
            sorter.run(records, bill)
        assert (done, attempts) == ([1, 3], [2, 2, 2, 2])
        assert sorter.published == 1
        (letter,) = client.read("dead", "earliest", "end")
        assert (letter.key, letter.value) == (b"a", b"bad")
        assert letter.headers["Liftlog-Dead-Error"] == "BadRecord: no such customer"
        assert letter.headers["Liftlog-Dead-Attempts"] == "3"
        info = client.describe_group("billing", "orders")
        assert info is not None
        assert (info.lag, info.members) == (0, [])


async def test_what_cannot_be(publisher: Publisher) -> None:
    for options in ({"retries": -1}, {"pause": -0.1}, {"pause": 31}):
        with pytest.raises(InvalidArgument):
            letters(publisher, **options)
