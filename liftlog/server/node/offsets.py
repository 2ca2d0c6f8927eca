"""The checkpoints of a cluster: the stream `_offsets`, and its table on the node that leads it.

The first node creates the stream. As nodes join, the stream gets up to three replicas. A new leader
first waits until it has committed all records that earlier leaders committed. Then it loads the
checkpoints into memory. The other nodes forward requests to this leader.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from liftlog.cluster import transitions
from liftlog.cluster.placement import place
from liftlog.cluster.record import StreamMetadata, default_min_isr
from liftlog.errors import LiftlogError, NotEnoughReplicas, NotReady
from liftlog.protocol.client_connection import Exchange
from liftlog.protocol.replication import MAX_ASKED, Ends, EndsAnswer
from liftlog.server.checkpoints import OFFSETS_STREAM, Checkpoints
from liftlog.server.checkpoints.checkpoint import BoundsElsewhere, StreamBounds
from liftlog.server.checkpoints.opening import (
    make_checkpoints,
    offsets_settings,
    receive_over_nats,
    subject_prefix,
)
from liftlog.server.checkpoints.table import load_table
from liftlog.server.commits.host import SYSTEM, StreamHost
from liftlog.server.node.own_offsets import OwnCheckpoints
from liftlog.server.node.placing import candidates
from liftlog.server.node.replicated import ReplicatedStreams
from liftlog.server.replication.serving import ServedStream
from liftlog.server.streams.broker import Broker
from liftlog.server.streams.settings import record_settings, settings_of

logger = logging.getLogger("liftlog.server.checkpoints")

_LOOK_SECONDS = 0.05
_GROW_SECONDS = 1.0
_TELL_SECONDS = 2.0
_OWN_SECONDS = 5.0
_MOST_REPLICAS = 3


class ReplicatedOffsets:
    """Serves the checkpoints while this node leads their stream. `run` checks this until it is
    cancelled. Create the object before the broker has a link to NATS. Belongs to the event loop."""

    def __init__(
        self,
        broker: Broker,
        streams: ReplicatedStreams,
        wall_clock: Callable[[], int],
        own: OwnCheckpoints,
    ) -> None:
        self._broker = broker
        self._streams = streams
        self._wall_clock = wall_clock
        self._own = own
        self._serving: tuple[ServedStream, Checkpoints] | None = None
        self._last: Checkpoints | None = None
        self._told: dict[str, BoundsElsewhere] = {}
        self._loading: ServedStream | None = None
        self._grow_at = self._ask_at = self._own_until = 0.0
        self._fitting: StreamMetadata | None = None
        """The metadata of the checkpoints' stream when its settings were last found to be
        correct."""
        self._problem = ""
        receive_over_nats(broker, lambda: broker.checkpoints)

    async def run(self) -> None:
        while True:
            try:
                await self._look()
                self._problem = ""
            except (LiftlogError, TimeoutError) as error:
                if str(error) != self._problem:
                    logger.warning("checkpoints-wait reason=%s", error)
                self._problem = str(error)
            except Exception:  # a supervisor: the other streams are not affected
                logger.exception("checkpoints-failed")
                await asyncio.sleep(_GROW_SECONDS)
            await asyncio.sleep(_LOOK_SECONDS)

    async def _look(self) -> None:
        now = asyncio.get_running_loop().time()
        led = self._streams.led.get(OFFSETS_STREAM)
        if self._serving is not None and (self._serving[0] is not led or led.leader.resigned):
            self._broker.serve_checkpoints(None)
            self._serving[1].groups.close(
                NotReady("another node begins to lead the checkpoints", hint="try again")
            )
            self._serving = None
        if led is not None and not led.leader.resigned:
            if self._serving is None:
                await self._load(led)
            if now >= self._ask_at:
                self._ask_at = now + _TELL_SECONDS
                self._ask_for_ends()
        if now >= self._grow_at:
            self._grow_at = now + _GROW_SECONDS
            await self._keep_replicas()

    # --- the table ---

    async def _load(self, led: ServedStream) -> None:
        """Serve the checkpoints. First waits until all records that a previous leader may have
        returned are committed on this node."""
        host = self._broker.hosts.get(OFFSETS_STREAM)
        if host is None or not host.is_leading or not led.leader.is_ready:
            return
        table = await asyncio.to_thread(load_table, host.log)
        now = asyncio.get_running_loop().time()
        if self._loading is not led:
            self._loading, self._own_until = led, now + _OWN_SECONDS
        if now < self._own_until:
            # If this call raises or times out, it is retried. Meanwhile the clients of the
            # checkpoints wait, until `_own_until` at most.
            async with asyncio.timeout(self._own_until - now):
                await self._own.store_groups(host, table, subject_prefix(self._broker.settings))
        checkpoints = make_checkpoints(
            self._broker.settings,
            self._find,
            host,
            table,
            self._wall_clock,
            check_storable=partial(_check_storable, led),
        )
        now = asyncio.get_running_loop().time()
        if now < self._own_until:
            async with asyncio.timeout(self._own_until - now):
                await self._own.store_at(checkpoints)
        if self._streams.led.get(OFFSETS_STREAM) is not led:
            return  # another node leads the stream now
        if self._last is not None:  # keep the counters of this process
            checkpoints.commits, checkpoints.refused = self._last.commits, self._last.refused
        self._serving, self._last = (led, checkpoints), checkpoints
        self._ask_at = 0.0
        self._broker.serve_checkpoints(checkpoints)
        logger.info("checkpoints-opened count=%d epoch=%d", len(table), led.leader.epoch)

    def _find(self, name: str) -> StreamHost | StreamBounds:
        """Return the bounds for checking a checkpoint in the stream. They come from the log if this
        node leads the stream, and from the metadata otherwise. Raises StreamNotFound,
        StreamUnavailable, NotReady."""
        record = self._streams.view.known(name)
        if record is None or record.leader == self._streams.member.name:
            return self._broker.led_stream(name)
        start, end = 1, None
        host = self._broker.hosts.get(name)
        if host is not None and host.log.incarnation == record.incarnation:
            start, end = host.log.log_start_offset, host.log.high_watermark
        elif name in self._told and self._told[name].incarnation == record.incarnation:
            told = self._told[name]
            start, end = told.log_start_offset, told.high_watermark
        return StreamBounds(BoundsElsewhere(record.incarnation, record.leader_epoch, start, end))

    # --- lags ---

    def _ask_for_ends(self) -> None:
        """Request the ends of the streams that have no copy on this node."""
        by_leader: dict[str, list[str]] = defaultdict(list)
        for name, record in self._streams.mirror.records.items():
            if record.leader is not None and not record.deleted and name not in self._broker.hosts:
                by_leader[record.leader].append(name)
        knows = self._streams.view.knows
        self._told = {name: told for name, told in self._told.items() if knows(name)}
        for node, names in by_leader.items():
            if node == self._streams.member.name:
                continue
            for first in range(0, len(names), MAX_ASKED):
                request = Ends(names[first : first + MAX_ASKED])
                self._streams.link_to(node).request(request, Exchange(on_done=self._note_ends))

    def _note_ends(self, exchange: Exchange) -> None:
        answer = exchange.answer
        if not isinstance(answer, EndsAnswer):
            return
        for name, told in answer.streams.items():
            match told:
                case [str() as incarnation, int() as start, int() as end]:
                    self._told[name] = BoundsElsewhere(incarnation, 0, start, end)

    # --- the record ---

    async def _keep_replicas(self) -> None:
        """Create the stream, or add the replicas that are possible now. Raises Conflict,
        MetadataUnavailable."""
        streams, broker = self._streams, self._broker
        record = streams.view.known(OFFSETS_STREAM)
        if record is None:
            nodes = candidates(streams.mirror)
            count = min(_MOST_REPLICAS, sum(one.available for one in nodes))
            if count and not broker.closing:
                settings = offsets_settings(broker.settings, replicas=count)
                await streams.new_streams.create(
                    OFFSETS_STREAM, settings, origin=SYSTEM, is_system=True
                )
        elif streams.view.leads(OFFSETS_STREAM):
            if self._grown(record) is not None:
                await streams.mirror.change(OFFSETS_STREAM, self._grown)
            elif self._updated(record) is not None:
                await streams.mirror.change(OFFSETS_STREAM, self._updated)

    def _grown(self, record: StreamMetadata) -> StreamMetadata | None:
        """Return the record with more replicas, up to the number of nodes; None if no change is
        possible."""
        present = record.replicas
        if record.adding or record.removing or len(present) >= _MOST_REPLICAS:
            return None
        usable = [
            replace(one, available=one.available or one.node in present)
            for one in candidates(self._streams.mirror)
            if one.node not in record.observers
        ]
        count = min(_MOST_REPLICAS, sum(one.available for one in usable))
        if count <= len(present):
            return None
        return transitions.reassign(record, place(usable, count, keep=present))

    def _updated(self, record: StreamMetadata) -> StreamMetadata | None:
        """Return the record with the settings that this number of replicas, and this version of
        liftlog, require; None if the record already has them."""
        if record.leader != self._streams.member.name or record.adding or record.removing:
            return None
        if record is self._fitting:
            return None
        count = len(record.replicas)
        wanted = offsets_settings(
            self._broker.settings, replicas=count, min_isr=default_min_isr(count)
        )
        if settings_of(record) == wanted:
            self._fitting = record
            return None
        return transitions.update(record, record_settings(wanted, SYSTEM))


def _check_storable(led: ServedStream) -> None:
    leader = led.leader
    if leader.resigned:
        raise NotReady("another node begins to lead the checkpoints", hint="try again")
    if not leader.record.can_commit:
        raise NotEnoughReplicas(
            f"{OFFSETS_STREAM} has too few replicas in sync: {len(leader.record.isr)}, and a "
            f"checkpoint needs {leader.record.min_isr}"
        )
