"""All consumers of this daemon, bounded in number."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

from liftlog.server.commits.host import StreamHost
from liftlog.server.jetstream_api.answers import JetStreamError
from liftlog.server.jetstream_api.consumers.budget import Budget, Budgets
from liftlog.server.jetstream_api.consumers.config import ConsumerSpec, refused
from liftlog.server.jetstream_api.consumers.consumer import Consumer
from liftlog.server.jetstream_api.consumers.cursor import Cursor
from liftlog.server.jetstream_api.consumers.deliveries import Deliveries
from liftlog.server.jetstream_api.consumers.leaf import LeafLink
from liftlog.server.jetstream_api.consumers.placing import place
from liftlog.server.jetstream_api.consumers.pull_requests import SHUTDOWN
from liftlog.server.jetstream_api.consumers.push_flow import LEAST_WINDOW_BYTES
from liftlog.server.jetstream_api.messages.ages import Ages
from liftlog.server.jetstream_api.messages.purges import AllPurges
from liftlog.server.jetstream_api.messages.shown import Shown
from liftlog.server.jetstream_api.pace import Pace
from liftlog.server.pull.services import PullServices
from liftlog.server.streams.broker import Broker

MAX_CONSUMERS = 512
MAX_OF_PARTY = 128
"""Maximum number of consumers of one client."""
IDLE_SECONDS = 5.0
"""At the maximum number of consumers, a new consumer replaces a consumer that has received no
request for this time (in seconds)."""
_MAX_NOTED, _MAX_CHOSEN, _MAX_WAITING = 1_000_000, 8_000_000, 16_384
_NOTED_SHARE = 60_000
"""Maximum number of offsets that one search may use of its budget. It can be large, because only a
few searches run at a time."""
_MAX_WINDOWS_BYTES = 16 * 2**20
"""Maximum total size of all windows, in bytes. A client that does not answer can be two windows
behind with each of its consumers. By default, NATS buffers 64 MiB for a client. Even with the
maximum number of consumers, all windows together are smaller than that."""

NO_LEAF = (
    "consumers deliver over a leaf node connection: set nats.leafnode to a server's leafnodes "
    "listener, or read with liftlog's pull API"
)


class Consumers:
    """The consumers without acks. Belongs to the event loop."""

    def __init__(
        self,
        broker: Broker,
        services: PullServices,
        ages: Ages,
        leaf: LeafLink | None,
        pace: Pace,
    ) -> None:
        self._broker = broker
        self._ages = ages
        self._services = services
        self._leaf = leaf
        self._all: dict[tuple[str, str], Consumer] = {}
        self._being_made: Counter[bytes] = Counter()
        self._budgets = Budgets(
            Budget(_MAX_NOTED, _NOTED_SHARE), Budget(_MAX_CHOSEN, _MAX_CHOSEN // MAX_CONSUMERS)
        )
        self._purges = AllPurges()
        self._waiting = Budget(_MAX_WAITING, _MAX_WAITING // MAX_CONSUMERS)
        self._windows = Budget(_MAX_WINDOWS_BYTES, LEAST_WINDOW_BYTES)
        self._pace = pace
        self._watching: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._leaf is not None:
            self._leaf.start()
            self._watching = asyncio.create_task(self._watch_interest(), name="jetstream-interest")

    async def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        for consumer in list(self._all.values()):
            await consumer.close(SHUTDOWN)
        self._all.clear()
        if self._leaf is not None:
            await self._leaf.close()

    async def _watch_interest(self) -> None:
        assert self._leaf is not None
        while True:
            await self._leaf.interest_changed()
            for consumer in list(self._all.values()):
                if consumer.spec.deliver_subject:
                    consumer.wake()

    def flow_answered(self, subject: bytes) -> None:
        """Take an answer to a request of flow control."""
        tokens = subject.decode("utf-8", "replace").split(".")
        if len(tokens) == 5:
            consumer = self._all.get((tokens[2], tokens[3]))
            if consumer is not None:
                consumer.flow_answered(subject)

    # --- what there is ---

    def count(self) -> int:
        return sum(one.is_there() for one in self._all.values())

    def of(self, stream: str) -> list[Consumer]:
        """Return the consumers of the stream that can still deliver."""
        found = [one for (name, _), one in sorted(self._all.items()) if name == stream]
        return [one for one in found if one.is_there()]

    def find(self, stream: str, name: str) -> Consumer | None:
        consumer = self._all.get((stream, name))
        return consumer if consumer is not None and consumer.is_there() else None

    async def delete(self, stream: str, name: str) -> bool:
        consumer = self._all.pop((stream, name), None)
        if consumer is None:
            return False
        await consumer.close(b"409 Consumer Deleted")
        return True

    async def create(
        self,
        spec: ConsumerSpec,
        host: StreamHost,
        readable: tuple[str, ...] | None,
        may_read: Callable[[], bool],
        party: bytes,
    ) -> Consumer:
        """Create a consumer for the client `party`. The consumer ends when `may_read` reports that
        the client may no longer read the `readable` subjects. Raises LiftlogError,
        JetStreamError."""
        leaf = self._leaf
        if leaf is None:
            raise refused(NO_LEAF)
        key = (host.name, spec.name)
        deliveries = Deliveries(self._broker, self._services.gate, host, spec.deliver_subject)
        deliveries.check()
        shown = Shown(host, self._ages, None)
        cursor = Cursor(
            self._services,
            shown,
            spec.filters,
            readable,
            spec.name,
            self._budgets,
            self._purges.of(host),
        )
        self._being_made[party] += 1
        try:
            await self._make_room(host, party)
            await leaf.wait_connected()
            await place(cursor, spec, shown)
            if self.find(*key) is not None:
                raise JetStreamError(400, 10148, "consumer already exists")
        except BaseException:
            cursor.close()
            raise
        finally:
            self._being_made -= Counter([party])

        def is_there() -> bool:
            is_led = host.is_leading and self._broker.hosts.get(host.name) is host
            return leaf.connected and is_led and may_read()

        consumer = Consumer(
            spec,
            host,
            self._services,
            leaf,
            cursor,
            deliveries,
            party=party,
            waiting=self._waiting.part(),
            window=self._windows.part(),
            pace=self._pace,
            is_there=is_there,
            on_end=self._ended,
        )
        self._all[key] = consumer
        consumer.start()
        return consumer

    async def _make_room(self, host: StreamHost, party: bytes) -> None:
        """Make room for one more consumer, and reserve it. Raises JetStreamError."""
        own = host.settings.jetstream
        most = None if own is None else own.max_consumers
        of_party = sum(one.party == party for one in self._all.values())
        is_refused = of_party + self._being_made[party] > MAX_OF_PARTY
        if is_refused or (most is not None and len(self.of(host.name)) >= most):
            raise JetStreamError(400, 10026, "maximum consumers limit reached")
        if len(self._all) + self._being_made.total() <= MAX_CONSUMERS:
            return
        idlest = max(self._all.values(), key=Consumer.idle_seconds, default=None)
        if idlest is None or idlest.idle_seconds() < IDLE_SECONDS:
            raise JetStreamError(400, 10026, "maximum consumers limit reached")
        await self.delete(idlest.host.name, idlest.spec.name)

    def _ended(self, consumer: Consumer) -> None:
        key = (consumer.host.name, consumer.spec.name)
        if self._all.get(key) is consumer:
            del self._all[key]
