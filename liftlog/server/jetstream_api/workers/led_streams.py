"""The streams that this node of a cluster leads. The node serves the consumers of these streams.

When this node begins to lead a stream, the stream's consumers are opened from the journal. When the
leadership ends, the consumers end without messages to their clients, because the next leader
answers the clients.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from liftlog.errors import Conflict, LiftlogError
from liftlog.server.commits.host import StreamHost
from liftlog.server.jetstream_api.workers.changes import ReplicatedChanges
from liftlog.server.jetstream_api.workers.shared import Shared
from liftlog.server.jetstream_api.workers.worker_link import Arrived
from liftlog.server.metadata.membership import CONSUMERS_WITH_ACKS
from liftlog.server.node.cluster_catalog import needed_node_of
from liftlog.server.replication.serving_consumers import ServedConsumers
from liftlog.server.streams.broker import Broker

logger = logging.getLogger("liftlog.server.jetstream_api")

_LOOK_SECONDS = 0.02
_MAX_HELD = 1_000
"""Maximum number of reads of the workers' connection whose acks and pulls are held for one
stream."""


class LedStream:
    """One stream, from the beginning of a leadership to its end."""

    def __init__(self, host: StreamHost, served: ServedConsumers) -> None:
        self.host = host
        self.served = served
        self.changes: ReplicatedChanges | None = None
        self.held: list[Arrived] = []
        """Acks and pulls that have arrived while the consumers were being opened."""
        self.problem = ""
        """The reason why the consumers could not be opened; empty if there is no problem."""
        self.opened = asyncio.Event()
        """An event that is set when the consumers are open, or when the leadership has ended."""


class LedStreams:
    """The streams that this node leads. Belongs to the event loop."""

    def __init__(
        self,
        broker: Broker,
        open_consumers: Callable[[LedStream], Awaitable[None]],
        lost: Callable[[LedStream], None],
        take: Callable[[Arrived], None],
    ) -> None:
        """`open_consumers` is called when this node leads a stream and has determined its end.
        `take` then gets the acks and pulls that were held. `lost` is called when this node no
        longer leads the stream; it must not wait or raise."""
        self._broker = broker
        self._open_consumers = open_consumers
        self._lost = lost
        self._take = take
        self._by_name: dict[str, LedStream] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        hosted = self._broker.hosted
        hosted.on_led.append(self._began)
        for name in [*hosted.consumers]:
            self._began(name)

    async def close(self) -> None:
        if self._began in self._broker.hosted.on_led:
            self._broker.hosted.on_led.remove(self._began)
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def problem_of(self, name: str) -> str:
        """Return the reason why a stream's consumers could not be opened; empty if there is no
        problem."""
        led = self._by_name.get(name)
        return "" if led is None else led.problem

    def check(self, host: StreamHost) -> None:
        """Raise Conflict if another node has a replica of the stream, but has an older version
        without consumers with acks. Raise NotLeader if another node leads."""
        record = self._led(host).served.leader.record
        nodes = needed_node_of(self._broker).mirror.directory.nodes
        older = [
            name
            for name in record.members
            if name not in nodes or CONSUMERS_WITH_ACKS not in nodes[name].features
        ]
        if older:
            raise Conflict(
                f"the nodes {', '.join(older)} have an older version, without consumers with acks",
                hint="upgrade all nodes of the cluster first",
            )

    def _led(self, host: StreamHost) -> LedStream:
        led = self._by_name.get(host.name)
        if led is None or led.host is not host:
            raise self._broker.catalog.not_leader(host.name)
        return led

    def changes_of(self, host: StreamHost, shared: Shared) -> ReplicatedChanges:
        """Return the object that accepts changes of a stream's consumers. Raises NotLeader."""
        led = self._led(host)
        if led.changes is None:
            cluster = self._broker.settings.cluster
            assert cluster is not None
            led.changes = ReplicatedChanges(cluster.name, led.served, shared.journal, shared.outbox)
        return led.changes

    async def opened(self, name: str) -> None:
        """If this node leads the stream, wait until the stream's consumers are open."""
        led = self._by_name.get(name)
        if led is not None:
            await led.opened.wait()

    def is_open(self, name: str) -> bool:
        """Return True if `opened` would return at once."""
        led = self._by_name.get(name)
        return led is None or led.opened.is_set()

    def holds(self, arrived: Arrived) -> bool:
        """Hold acks and pulls of a stream whose consumers are being opened. Returns False if the
        consumers are open, or if too many acks and pulls wait."""
        led = self._by_name.get(arrived.stream)
        if led is None or led.opened.is_set() or len(led.held) >= _MAX_HELD:
            return False
        led.held.append(arrived)
        return True

    def drop_pull(self, stream: str, name: str, reply: bytes) -> None:
        """Drop the first held pull of a client that has received an answer. Later pulls with the
        same reply subject get separate answers."""
        led = self._by_name.get(stream)
        for arrived in () if led is None else led.held:
            for place, one in enumerate(arrived.pulls):
                if (one.consumer, one.reply) == (name, reply):
                    del arrived.pulls[place]
                    return

    def _began(self, name: str) -> None:
        hosted = self._broker.hosted
        served, host = hosted.consumers[name], hosted.hosts[name]
        led = self._by_name[name] = LedStream(host, served)

        def changed() -> None:
            if served.is_closed and self._by_name.get(name) is led:
                del self._by_name[name]
                led.opened.set()
                self._lost(led)

        served.watch(changed)
        task = asyncio.create_task(self._open(led), name=f"consumers-open {name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _open(self, led: LedStream) -> None:
        try:
            # Until this moment, this node may not have all records that were delivered.
            while self._broker.catalog.begins_to_lead(led.host.name):  # noqa: ASYNC110  no event
                await asyncio.sleep(_LOOK_SECONDS)
            if not led.served.is_closed:
                await self._open_consumers(led)
        except LiftlogError as error:
            led.problem = f"the states of consumers cannot be read: {error.message}"
            logger.exception("consumers-not-opened stream=%s", led.host.name)
        except Exception as error:  # a supervisor: the other streams continue
            led.problem = "the states of consumers cannot be read"
            logger.exception("consumers-not-opened stream=%s error=%r", led.host.name, error)
        finally:
            led.opened.set()
            held, led.held = led.held, []
            for arrived in held:
                self._take(arrived)
