"""The catalog of a node: the metadata records in the store define the streams.

A change is stored in a stream's record first; each node with a copy then applies it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace

from liftlog.cluster import transitions
from liftlog.cluster.record import StreamMetadata
from liftlog.errors import (
    Conflict,
    LiftlogError,
    NatsRefused,
    NatsUnavailable,
    NotEnoughReplicas,
    NotReady,
    StreamNotFound,
)
from liftlog.names import is_stream_name
from liftlog.protocol.described import StreamInfo
from liftlog.protocol.messages import ANY_REPLICA, Fetch, FetchHeader
from liftlog.protocol.replication import ClusterInfo
from liftlog.server.commits.host import StreamHost
from liftlog.server.node.replicated import ReplicatedStreams
from liftlog.server.replication.repair import ask
from liftlog.server.replication.serving import ServedStream
from liftlog.server.streams.broker import Broker
from liftlog.server.streams.description import describe_elsewhere
from liftlog.server.streams.own_catalog import OwnCatalog
from liftlog.server.streams.retention import check_truncation
from liftlog.server.streams.settings import check_same, origin_of, record_settings, settings_of
from liftlog.settings import StreamSettings

logger = logging.getLogger("liftlog.server.replication")
checkpoints_logger = logging.getLogger("liftlog.server.checkpoints")

_OPENING_SECONDS = 10.0
_CONFIRM_SECONDS = 10.0


class ClusterCatalog:
    """A `Catalog` of the cluster's streams. Belongs to the event loop; `node` is this daemon as a
    node."""

    in_cluster = True

    def __init__(self, node: ReplicatedStreams, own: OwnCatalog) -> None:
        """`own` deletes copies that have no record."""
        self.node = node
        self._view = node.view
        self._own = own
        self._hosted = own.hosted

    @property
    def recorded(self) -> Mapping[str, StreamSettings]:
        return self.node.settings.by_stream

    @property
    def newer(self) -> Mapping[str, str]:
        return self.node.mirror.newer

    # --- from the start to the end ---

    async def open(self, *, assume_yes: bool, is_stopping: Callable[[], bool]) -> None:
        """Open the streams that have records. The streams of the configuration are added later."""
        await self.node.opening.open_streams()

    async def stop(self, hurry: asyncio.Event, seconds: float) -> None:
        handing = asyncio.ensure_future(self.node.prepare_to_stop())
        hurrying = asyncio.ensure_future(hurry.wait())
        try:
            await asyncio.wait(
                (handing, hurrying), timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
            if handing.done():
                handing.result()
        finally:
            for task in (handing, hurrying):
                task.cancel()
            await asyncio.gather(handing, hurrying, return_exceptions=True)

    async def leave(self) -> None:
        await self.node.leave()

    # --- the streams ---

    def names(self) -> Iterable[str]:
        return self._view.stream_names()

    def knows(self, name: str) -> bool:
        return self._view.knows(name)

    def describe_elsewhere(self, name: str) -> StreamInfo | None:
        record = self._view.known(name)
        return None if record is None else describe_elsewhere(name, settings_of(record), record)

    async def look_for(self, name: str) -> None:
        if not self._view.knows(name):
            await self._read(name)

    async def look_again(self, name: str) -> None:
        if self._view.knows(name):
            await self._read(name)

    async def _read(self, name: str) -> None:
        if is_stream_name(name):
            with contextlib.suppress(LiftlogError):
                await self.node.mirror.change(name, lambda present: None)

    def was_deleted(self, name: str) -> bool:
        record = self.node.mirror.records.get(name)
        return record is not None and record.deleted

    def reaches(self, node: str) -> bool:
        return self._view.reaches(node)

    def addresses(self) -> list[str]:
        return self._view.addresses()

    def describe_cluster(self, may_read: Callable[[str], bool]) -> ClusterInfo:
        node = self.node
        found = self._view.describe(self._hosted.hosts, may_read, node.clocks.shown_seconds)
        session, now = node.session, time.monotonic()
        return replace(found, is_store_lost=session is not None and now >= session.deadline)

    # --- the nodes that answer ---

    def leads(self, name: str) -> bool:
        return self._view.leads(name)

    def leads_elsewhere(self, name: str) -> bool:
        return self._view.leads_elsewhere(name)

    def may_answer(self, name: str) -> bool:
        """Return True if this node leads according to its session. A newer record with another
        leader may still be on its way to this node."""
        return self.node.candidacy.may_answer(name)

    def answerer(self, name: str) -> str | None:
        return self._view.answerer(name)

    def other_leaders(self) -> Mapping[str, str]:
        return self._view.other_leaders()

    def not_leader(self, name: str) -> LiftlogError:
        return self._view.not_leader(name)

    def no_checkpoints(self) -> LiftlogError:
        return NotReady("this node does not lead the checkpoints at present", hint="try again")

    def check_leads(self, name: str) -> None:
        """Raise an error unless this node leads the stream and is ready. Does nothing for a stream
        without a record."""
        # Until each follower has fetched once, the high watermark may be lower than the high
        # watermark that clients have received.
        if self._view.knows(name) and not self._led(name).leader.is_ready:
            raise self._view.begins_to_lead(name)

    def _led(self, name: str) -> ServedStream:
        led = self.node.led.get(name)
        if led is None:
            raise self._view.not_leader(name)
        return led

    def begins_to_lead(self, name: str) -> bool:
        led = self.node.led.get(name)
        is_ready = led is not None and led.leader.is_ready
        return not is_ready and self._view.leads(name)

    def check_end_is_known(self, name: str) -> None:
        """Raise NotReady if this node has just begun to lead, and has not determined the end of the
        stream yet. The end of a failed stream is known, because it no longer changes."""
        if self.begins_to_lead(name) and not self.node.has_failed(name):
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

    # --- ages ---

    def may_judge_ages(self) -> bool:
        return self.node.clocks.may_decide()

    async def first_since(self, name: str, time_ns: int) -> tuple[str, int] | None:
        record = self._view.known(name)
        if record is None or record.leader in (None, self.node.member.name):
            return None
        leader = str(record.leader)
        message = Fetch(
            name,
            timestamp_ns=time_ns,
            max_bytes=1,
            min_bytes=0,
            incarnation=record.incarnation,
            replica=leader,
        )
        try:
            exchange = await ask(self.node.link_to(leader), message)
        except LiftlogError as error:
            checkpoints_logger.info(
                "time-not-told stream=%s node=%s reason=%s", name, leader, error
            )
            return None
        header = exchange.answer
        return (header.incarnation, header.offset) if isinstance(header, FetchHeader) else None

    # --- changes ---

    async def create(self, name: str, settings: StreamSettings) -> StreamHost:
        """Create the record of a stream and wait for the stream. The nodes that hold a replica open
        it when they receive the record. This method changes nothing else, so many creations can
        wait at the same time."""
        self._hosted.check_creatable(name)
        record = await self.node.new_streams.create_for_client(name, settings)
        check_same(name, origin_of(record), settings_of(record), settings)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_OPENING_SECONDS):
                await self.node.replicas.opened(name)
        host = self._hosted.hosts.get(name)
        if host is None or not host.is_leading:
            raise self.not_leader(name)
        # If there is no connection, or if NATS refuses, the creation does not fail, because other
        # nodes have the stream. The description of the stream reports the problem.
        with contextlib.suppress(NatsRefused, NatsUnavailable):
            await self._hosted.attachments.attach(host)
        return host

    async def update(
        self, host: StreamHost, settings: StreamSettings, apply: Callable[[], Awaitable[object]]
    ) -> None:
        """Change the stream's metadata first, so that no other leader returns to the old settings;
        then call `apply`. Followers also adopt the settings."""

        def step(record: StreamMetadata) -> StreamMetadata | None:
            return transitions.update(record, record_settings(settings, origin_of(record)))

        if self._view.knows(host.name):
            await self.node.mirror.update(host.name, step)
        await apply()

    async def truncate(
        self, host: StreamHost, offset: int, apply: Callable[[], Awaitable[int]]
    ) -> int:
        """Change the stream's metadata, then call `apply`. This change cannot be undone, so the
        method first checks the truncation against the log of this node."""
        name, log = host.name, host.log
        if self._view.knows(name):
            check_truncation(log, offset, log.environment.age_clock_ns())
            await self.node.mirror.change(name, lambda record: transitions.truncate(record, offset))
        return await apply()

    async def delete(self, name: str) -> None:
        """Mark the record as deleted. Each node then removes its copy."""
        if not self._view.knows(name):
            await self._own.delete(name)
            return
        self._own.check_deletable(name)
        if await self.node.mirror.change(name, transitions.delete) is None:
            raise StreamNotFound(f"there is no stream {name!r}")
        logger.info("stream-deleted stream=%s", name)

    async def side_confirmed(self, name: str) -> None:
        """Wait until the side state is confirmed. Returns at once if the stream has no record."""
        if not self._view.knows(name):
            return
        try:
            async with asyncio.timeout(_CONFIRM_SECONDS):
                await self._led(name).side_confirmed()
        except TimeoutError:
            raise NotEnoughReplicas(
                f"the other replicas of stream {name} have not stored the change",
                hint="try again when more replicas are in sync: see `liftlog cluster status`",
            ) from None


def node_of(broker: Broker) -> ReplicatedStreams | None:
    """Return this daemon as a node; None if it belongs to no cluster."""
    return broker.catalog.node if isinstance(broker.catalog, ClusterCatalog) else None


def needed_node_of(broker: Broker) -> ReplicatedStreams:
    """Return this daemon as a node. Raises Conflict if the daemon belongs to no cluster."""
    node = node_of(broker)
    if node is None:
        raise Conflict(
            "this daemon belongs to no cluster", hint="its settings have no section cluster"
        )
    return node
