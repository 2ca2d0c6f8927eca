"""The consumers with acks of a broker, without NATS. Messages that would be sent are collected."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

from support.daemons.local_broker import Running

from liftlog.server.commits.host import StreamHost
from liftlog.server.jetstream_api.consumers.config import parse_consumer
from liftlog.server.jetstream_api.messages.ages import Ages
from liftlog.server.jetstream_api.workers.acked_consumer import AckedConsumer
from liftlog.server.jetstream_api.workers.acked_table import AckedConsumers
from liftlog.server.jetstream_api.workers.building import Builder
from liftlog.server.jetstream_api.workers.stored import load
from liftlog.server.journal import ConsumerKey, Journal
from liftlog.server.pull.limits import PullLimits
from liftlog.server.pull.services import PullServices
from liftlog.server.streams.broker import Broker

STREAM = "jobs"


class Leaf:
    """A leaf node connection to a server. All subjects on this server have subscribers."""

    connected = True
    max_payload_bytes = 0

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.on_interest: Any = None

    async def wait_connected(self) -> None:
        pass

    def has_interest(self, subject: bytes) -> bool:
        return True

    def queues(self, subject: bytes) -> bytes:
        return b""

    async def send(self, commands: bytes) -> None:
        self.sent.append(commands)

    def offer(self, commands: bytes) -> bool:
        self.sent.append(commands)
        return True


class Link:
    """The connection of workers."""

    def __init__(self) -> None:
        self.led: set[str] = set()
        self.is_held = False
        self.sent: list[bytes] = []
        self.link = self
        self.on_read_end: Any = None
        self.urgency: Any = None
        self.passed_on = 0
        self.on_finish: Callable[[], None] = lambda: None
        self.on_wait: Callable[[], Awaitable[object]] = lambda: asyncio.sleep(0)

    def lead(self, stream: str) -> None:
        self.led.add(stream)

    def leave(self, stream: str) -> None:
        self.led.discard(stream)

    async def confirm(self, stream: str) -> None:
        assert stream in self.led

    async def wait_confirmed(self, streams: Iterable[str], seconds: float) -> None:
        assert self.led.issuperset(streams)
        await self.on_wait()

    def hold(self) -> None:
        self.is_held = True

    def release(self) -> None:
        self.is_held = False

    def finish(self) -> None:
        self.on_finish()

    def pass_on(self) -> None:
        self.passed_on += 1

    def send(self, commands: bytes) -> None:
        self.sent.append(commands)


class SlowJournal:
    """Replaces `Journal.synced`. Syncs wait while `gate` is not set, and can then be made to
    fail."""

    def __init__(self, journal: Journal) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.error: Exception | None = None
        self.waiting = 0
        self._real = journal.synced
        cast(Any, journal).synced = self._synced

    def _synced(self, position: int) -> asyncio.Future[None]:
        return asyncio.ensure_future(self._wait(position))

    async def _wait(self, position: int) -> None:
        self.waiting += 1
        try:
            await self.gate.wait()
        finally:
            self.waiting -= 1
        if self.error is not None:
            raise self.error
        await self._real(position)


class World:
    def __init__(
        self,
        broker: Broker,
        table: AckedConsumers,
        leaf: Leaf,
        link: Link,
        running: Running,
        services: PullServices,
    ) -> None:
        self.broker, self.table, self.leaf, self.link = broker, table, leaf, link
        self.running = running
        self.services = services
        self.builder = Builder(broker, services, Ages(broker, services.cold_readers))

    @property
    def host(self) -> StreamHost:
        return self.broker.hosts[STREAM]

    async def create(self, name: str, party: bytes = b"_INBOX.a", **config: Any) -> AckedConsumer:
        given = {"durable_name": name, "ack_policy": "explicit", **config}
        return await self.table.create(parse_consumer(given, name), self.host, party)

    async def update(self, name: str, **config: Any) -> None:
        consumer = self.table.find(STREAM, name)
        assert consumer is not None
        await self.table.update(
            consumer, lambda old: parse_consumer({**old.config, **config}, old.name)
        )

    async def slow_journal(self) -> SlowJournal:
        return SlowJournal(await self.broker.journal.get())

    async def stored(self, name: str) -> dict[str, Any] | None:
        """Return the configuration in the journal."""
        journal = await self.broker.journal.get()
        found = await journal.load(ConsumerKey(self.host.log.incarnation, name))
        return None if found is None else dict(json.loads(found.settings)["config"])

    async def stored_offset(self, name: str) -> int:
        """Return the offset in the journal at which the consumer continues."""
        journal = await self.broker.journal.get()
        found = await journal.load(ConsumerKey(self.host.log.incarnation, name))
        assert found is not None
        return load(found, name).state.next_offset


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.001)


@asynccontextmanager
async def acked_world(
    directory: Path, leaf: Leaf | None = None, link: Link | None = None, **stream: Any
) -> AsyncIterator[World]:
    """Yield the consumers of a broker with the stream `jobs`."""
    running = Running(directory, **{STREAM: stream or {"subject": "in"}})
    broker = await running.start()
    services = PullServices(broker, PullLimits(), None, broker.intake.ingested)
    leaf, link = leaf or Leaf(), link or Link()
    ages = Ages(broker, services.cold_readers)
    table = AckedConsumers(broker, services, ages, cast(Any, leaf), cast(Any, link))
    table.start()
    await table.opened(STREAM)
    try:
        yield World(broker, table, leaf, link, running, services)
    finally:
        await table.close()
        await services.close()
        await broker.close()
