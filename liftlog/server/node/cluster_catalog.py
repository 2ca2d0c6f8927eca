"""The catalog of a node: the records in the metadata store say which streams there are.

A change is stored in the record first; each node with a copy then follows it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping

from liftlog.cluster import transitions
from liftlog.cluster.record import StreamRecord
from liftlog.errors import Conflict, LiftlogError, NotEnoughReplicas
from liftlog.protocol.messages import ANY_REPLICA
from liftlog.server.commits.host import StreamHost
from liftlog.server.node.replicated import ReplicatedStreams
from liftlog.server.streams.broker import Broker
from liftlog.server.streams.retention import check_truncation
from liftlog.server.streams.settings import origin_of, record_settings
from liftlog.settings import StreamSettings

_CONFIRM_SECONDS = 10.0


class ClusterCatalog:
    """See `Catalog`. Belongs to the event loop; `node` is this daemon as a node."""

    def __init__(self, node: ReplicatedStreams) -> None:
        self.node = node
        self._view = node.view

    @property
    def recorded(self) -> Mapping[str, StreamSettings]:
        return self.node.recorded

    def names(self) -> Iterable[str]:
        return self._view.stream_names()

    def knows(self, name: str) -> bool:
        return self._view.knows(name)

    def was_deleted(self, name: str) -> bool:
        record = self.node.mirror.records.get(name)
        return record is not None and record.deleted

    def addresses(self) -> list[str]:
        return self._view.addresses()

    # --- who answers ---

    def leads(self, name: str) -> bool:
        return self._view.leads(name)

    def leads_elsewhere(self, name: str) -> bool:
        return self._view.leads_elsewhere(name)

    def may_answer(self, name: str) -> bool:
        """As far as sessions tell. A record that says otherwise may be on its way."""
        return self.node.may_answer(name)

    def answerer(self, name: str) -> str | None:
        return self._view.answerer(name)

    def other_leaders(self) -> Mapping[str, str]:
        return self._view.other_leaders()

    def not_leader(self, name: str) -> LiftlogError:
        return self._view.not_leader(name)

    def check_leads(self, name: str) -> None:
        """Of a stream without a record, it says nothing."""
        # Until the followers have asked once, its high watermark may lag behind what clients saw.
        if self._view.knows(name) and not self.node.led_stream(name).leader.is_ready:
            raise self._view.begins_to_lead(name)

    def check_end_is_known(self, name: str) -> None:
        """A stream that has failed ends as it does."""
        led = self.node.led_here(name)
        is_ready = led is not None and led.leader.is_ready
        if not is_ready and self._view.leads(name) and not self.node.has_failed(name):
            raise self._view.begins_to_lead(name)

    def may_read_copy(self, name: str, replica: str) -> bool:
        if replica == ANY_REPLICA:
            return self._view.is_in_sync(name)
        self._view.check_is_here(replica)
        return True

    def check_incarnation(self, name: str, present: str, wanted: str) -> None:
        if self._view.knows(name):
            self.node.successors.check_incarnation(name, present, wanted)

    def check_epoch(self, name: str, epoch: int) -> None:
        if self._view.knows(name):
            self.node.successors.check_epoch(name, epoch)

    # --- changes ---

    async def update(
        self, host: StreamHost, settings: StreamSettings, apply: Callable[[], Awaitable[object]]
    ) -> None:
        """The record is first, so that no other leader goes back to the old settings. Followers
        adopt them, too."""

        def step(record: StreamRecord) -> StreamRecord | None:
            return transitions.update(record, record_settings(settings, origin_of(record)))

        if self._view.knows(host.name):
            await self.node.mirror.update(host.name, step)
        await apply()

    async def truncate(
        self, host: StreamHost, offset: int, apply: Callable[[], Awaitable[int]]
    ) -> int:
        """What would be refused here is refused before the record says it: no one takes that
        back."""
        name, log = host.name, host.log
        if self._view.knows(name):
            check_truncation(log, offset, log.environment.age_clock_ns())
            await self.node.mirror.change(name, lambda record: transitions.truncate(record, offset))
        return await apply()

    async def side_confirmed(self, name: str) -> None:
        """At once if the stream has no record."""
        if not self._view.knows(name):
            return
        try:
            async with asyncio.timeout(_CONFIRM_SECONDS):
                await self.node.led_stream(name).side_confirmed()
        except TimeoutError:
            raise NotEnoughReplicas(
                f"the other replicas of stream {name} have not stored the change",
                hint="try again when more of them are in sync; `liftlog cluster status` shows them",
            ) from None


def node_of(broker: Broker) -> ReplicatedStreams | None:
    """This daemon as a node; None if it belongs to no cluster."""
    return broker.catalog.node if isinstance(broker.catalog, ClusterCatalog) else None


def needed_node_of(broker: Broker) -> ReplicatedStreams:
    """As `node_of`. Raises Conflict if the daemon belongs to no cluster."""
    node = node_of(broker)
    if node is None:
        raise Conflict("this daemon belongs to no cluster", hint="it has no section cluster")
    return node
