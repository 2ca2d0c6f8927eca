"""Replaces the connections to NATS on a daemon whose consumers with acks have only workers on the
pull socket."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from liftlog.server.ingest.nats_link import NatsLink
from liftlog.server.jetstream_api.answers import JetStreamError
from liftlog.server.jetstream_api.consumers.leaf import LeafLink
from liftlog.server.jetstream_api.messages.ages import Ages
from liftlog.server.jetstream_api.workers.acked_table import AckedConsumers
from liftlog.server.jetstream_api.workers.socket_door import SocketDoor
from liftlog.server.jetstream_api.workers.worker_link import WorkerLink
from liftlog.server.pull.services import PullServices
from liftlog.server.streams.broker import Broker


class NoLeaf(LeafLink):
    """A leaf node connection that is never connected."""

    def __init__(self) -> None:
        """Do nothing, because there is no connection."""
        self.max_payload_bytes = 0

    @property
    def connected(self) -> bool:
        return False

    def has_interest(self, subject: bytes) -> bool:
        return False

    def queues(self, subject: bytes) -> bytes:
        return b""

    def offer(self, commands: bytes) -> bool:
        return False

    async def send(self, commands: bytes) -> None:
        """Drop messages and statuses. They answer pulls from before the restart of the daemon."""

    async def wait_connected(self) -> None:
        raise JetStreamError(
            503,
            10008,
            "consumers over NATS need the setting nats.leafnode; without it, workers use the pull "
            "socket",
        )


class _Nowhere:
    """Drops answers to acks over NATS, because no acks arrive over NATS."""

    def send(self, commands: bytes) -> None: ...


class NoWorkerLink(WorkerLink):
    """A link without subscriptions."""

    def __init__(self) -> None:
        """Do nothing, because there are no subscriptions."""
        self.link = cast(NatsLink, _Nowhere())

    def lead(self, stream: str) -> None:
        """Do nothing."""

    async def wait_confirmed(self, streams: Iterable[str], seconds: float) -> None:
        """Return at once."""

    def leave(self, stream: str) -> None:
        """Do nothing."""

    def pass_on(self) -> None:
        """Do nothing, because no acks arrive."""

    def subscribed_at(self, stream: str) -> float:
        return 0.0


class ConsumersWithoutNats:
    """The consumers with acks of a daemon that does not serve JetStream's API."""

    def __init__(self, broker: Broker, services: PullServices) -> None:
        self._broker = broker
        ages = Ages(broker, services.cold_readers)
        self._table = AckedConsumers(broker, services, ages, NoLeaf(), NoWorkerLink())

    def start(self) -> None:
        self._table.start()
        self._broker.consumers = SocketDoor(self._broker, self._table)

    async def close(self) -> None:
        self._broker.consumers = None
        await self._table.close()
