"""The streams of which this daemon has a copy: opens a host for each stream, attaches it to NATS,
and closes it.

A catalog selects these streams, and the replicas of a node determine their roles.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor

from liftlog.cluster.handover import SPREAD_SECONDS
from liftlog.errors import (
    ShuttingDown,
    StorageError,
    StreamNotFound,
    StreamUnavailable,
)
from liftlog.log import Log
from liftlog.log.segment.tail import ActiveState
from liftlog.protocol.described import StreamInfo
from liftlog.server.cleaning.cleaner import Cleaner
from liftlog.server.cleaning.mending import Mender
from liftlog.server.commits.host import SYSTEM, StreamHost
from liftlog.server.journal.holding import JournalHolder
from liftlog.server.replication.serving import ServedStream
from liftlog.server.replication.serving_consumers import ServedConsumers
from liftlog.server.streams.attachments import Attachments, PossibleLosses
from liftlog.server.streams.dedupe_restoring import LearnedIds, write_dedupe_snapshot
from liftlog.server.streams.description import describe
from liftlog.server.streams.making import StreamMaker
from liftlog.server.streams.neighbours import Neighbours
from liftlog.server.vitals.descriptors import Descriptors
from liftlog.server.vitals.disk import DiskReserve
from liftlog.settings import StreamSettings

logger = logging.getLogger("liftlog.server")

_DRAIN_SECONDS = 30.0
_LAST_COMMITS_SECONDS = 3.0
_CLOSED_AT_ONCE = 8
"""Number of logs that are closed at the same time. Their syncs share the commits of the file
system."""


class HostedStreams:
    """The streams with a copy on this daemon. Belongs to the event loop."""

    def __init__(
        self,
        hosts: dict[str, StreamHost],
        broken: dict[str, str],
        maker: StreamMaker,
        attachments: Attachments,
        neighbours: Neighbours,
        losses: PossibleLosses,
        reserve: DiskReserve,
        journal: JournalHolder,
        steady_ns: Callable[[], int],
    ) -> None:
        """`steady_ns` is the clock that determines the ages of message ids."""
        self.hosts = hosts
        self.broken = broken
        """The reasons why streams on disk are not served, by name."""
        self.attachments = attachments
        self.neighbours = neighbours
        self.reserve = reserve
        self.journal = journal
        self.consumers: dict[str, ServedConsumers] = {}
        """The states of consumers of the streams that this node of a cluster leads, by stream."""
        self.on_led: list[Callable[[str], None]] = []
        """Functions that are called when this node begins to lead a stream."""
        self.on_deleted: list[Callable[[str], object]] = []
        """Functions that are called, on a daemon without a cluster, when a stream was deleted."""
        self.steady_ns = steady_ns
        self.compactor: Cleaner | None = None
        self.mender: Mender | None = None
        """Repairs damage from other replicas; None without a cluster."""
        self.descriptors: Descriptors | None = None
        """Counts open files; None if the daemon shares the process with other code."""
        self.changes = asyncio.Lock()
        """A lock that is held while streams are deleted."""
        self.names = Names()
        self.closing = False
        """True as soon as the daemon accepts no more messages."""
        self._maker = maker
        self._losses = losses
        self._has_new_neighbours = False
        self._deleting: set[str] = set()
        """Streams that are being deleted. They are in `broken` until their files are removed.
        Clients get the error that such a stream does not exist, and not the error of a failed
        stream."""

    # --- finding a stream ---

    def find(self, name: str) -> StreamHost:
        """Return a stream with a host. Raises StreamNotFound, and StreamUnavailable for a stream
        that could not be opened."""
        host = self.hosts.get(name)
        if host is None:
            if name in self.broken and name not in self._deleting:
                raise StreamUnavailable(f"stream {name} could not be opened: {self.broken[name]}")
            raise StreamNotFound(f"there is no stream {name!r}")
        return host

    def stream(self, name: str) -> StreamHost:
        """Return a stream with a host that has not failed. Raises StreamNotFound, and
        StreamUnavailable for a stream that could not be opened or has failed."""
        host = self.find(name)
        if host.failure:
            raise StreamUnavailable(f"stream {name} has failed: {host.failure}")
        return host

    def describe(self, host: StreamHost) -> StreamInfo:
        compaction = self.compactor.describe(host) if self.compactor is not None else {}
        warnings = self.neighbours.warnings(host) + self.attachments.jetstream_warnings(host)
        return describe(host, self.state_of(host), warnings, compaction)

    def state_of(self, host: StreamHost) -> str:
        if host.failure:
            return "failed"
        if not host.is_leading:
            return "follower"
        if not self.attachments.is_attachable(host):
            return "internal"
        if not self.attachments.is_attached(host):
            return "detached"
        if host.settings.read_only:
            return "read-only"
        return "paused" if host.settings.paused else "attached"

    # --- changes that concern all ---

    def check_creatable(self, name: str) -> None:
        """Raise an error if a stream of this name cannot be created now: ShuttingDown,
        StreamUnavailable, LimitExceeded."""
        if self.closing:
            raise ShuttingDown("the daemon is stopping")
        if name in self.broken:
            raise StreamUnavailable(f"stream {name} exists but failed: {self.broken[name]}")
        if self.descriptors is not None and name not in self.hosts:
            self.descriptors.check_spare()

    def streams_changed(self) -> None:
        """Update all neighbours. Call this after streams were created or deleted, or after settings
        of a stream have changed."""
        self._has_new_neighbours = False
        self.neighbours.changed()
        self.attachments.settings_changed()

    def stream_added(self, host: StreamHost) -> None:
        """Update the neighbours of a new stream. Unlike `streams_changed`, the time of this method
        does not grow with the number of streams."""
        self.neighbours.added(host)

    def streams_change(self) -> None:
        """Call `streams_changed` soon: once for all streams that change in this turn of the loop,
        on this node or other nodes."""
        if not self._has_new_neighbours:
            self._has_new_neighbours = True
            asyncio.get_running_loop().call_soon(self.streams_changed)

    # --- replicas ---

    async def host_replica(
        self,
        name: str,
        settings: StreamSettings,
        log: Log,
        *,
        origin: str,
        led: ServedStream | None,
        ids: LearnedIds | None = None,
    ) -> StreamHost:
        """Serve an open log with a new host. It replaces the stream's earlier host. `led` contains
        the stream's gate if this node leads the stream, and is None if this node follows it. `ids`
        are the ids that were learned in advance."""
        before = self.hosts.get(name)
        host = await self._maker.host(
            name,
            settings,
            log,
            origin,
            gate=None if led is None else led.gate,
            is_leading=led is not None,
            ids=ids,
        )
        self.neighbours.joined(host)
        if before is None or before.settings != settings:
            self.streams_change()
        if before is not None and self.compactor is not None:
            await self.compactor.forget(before)
        return host

    def leads(self, name: str, consumers: ServedConsumers) -> None:
        """Note that this node of a cluster has begun to lead a stream."""
        self.consumers[name] = consumers
        for began in self.on_led:
            began(name)

    def consumers_deleted(self, host: StreamHost) -> None:
        """Delete the consumers of a stream that was deleted, on a daemon without a cluster."""
        self.journal.stream_deleted(host.log.incarnation)
        for deleted in self.on_deleted:
            deleted(host.name)

    def expects_repair(self, name: str, first: int, end: int) -> bool:
        """Return True if damage in [first, end) will soon be repaired from another replica."""
        host = self.hosts.get(name)
        return (
            host is not None
            and self.mender is not None
            and self.mender.is_expected(host, first, end)
        )

    async def attach_replica(self, host: StreamHost) -> bool:
        """Subscribe for this node, which leads the stream. Returns True if the subscription existed
        before, so that no message was missed."""
        if self.attachments.take(host):
            return True
        if self.attachments.relay(host) is not None:
            # The current subscription may still deliver messages that the previous leader has
            # stored.
            await self.attachments.detach(host)
            await asyncio.sleep(SPREAD_SECONDS)
        self.attachments.want(host)
        return False

    def note_possible_loss(self, host: StreamHost, reason: str) -> None:
        """Note that the stream may have missed messages. Does nothing for the daemon's own streams,
        because they cannot miss messages."""
        if host.origin != SYSTEM:
            self._losses.note(host, reason)

    async def rest_replica(self, host: StreamHost, *, seconds: float) -> bool:
        """Detach a stream, and wait for pending work. Returns True if the log is in order and only
        readers still use it."""
        if host.is_leading:
            await self.attachments.detach(host)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await host.drained()
            return not host.failure
        return False

    async def end_replica(self, host: StreamHost, *, seconds: float) -> None:
        """Stop serving a stream: detach it, wait for pending work, close its log."""
        await self.attachments.detach(host)
        # If the disk hangs, this wait may take long. Without the wait, the log could be opened
        # again while a late write is pending, and this write would mix with the writes of the next
        # owner.
        await host.turns.over()
        async with self.changes:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await host.drained()
            del self.hosts[host.name]
            host.close()
            if self.compactor is not None:
                await self.compactor.forget(host)
            if self.mender is not None:
                await self.mender.forget(host)
            self.streams_changed()
            await asyncio.to_thread(host.log.close)

    # --- the end ---

    async def remove(self, name: str, host: StreamHost | None) -> None:
        """End a stream and remove its files; `host` is None for a stream that could not be opened.
        Call this while `changes` is held."""
        try:
            if host is not None:
                await self._end(host)
            await self._maker.remove_files(name)
        finally:
            self._deleting.discard(name)

    async def _end(self, host: StreamHost) -> None:
        """End a stream. Its files stay, and its name is in `broken` until the files are removed."""
        # After this call no message arrives. The drain then commits and answers all messages that
        # have arrived.
        await self.attachments.detach(host)
        try:
            async with asyncio.timeout(_DRAIN_SECONDS):
                await host.drained()
        except TimeoutError:
            # Nothing has been removed yet, so the stream continues.
            self.attachments.want(host)
            raise StreamUnavailable(
                f"stream {host.name} was not deleted: its disk does not answer"
            ) from None
        # From here on no request finds the stream, and no other stream can take its name. Its users
        # (exclusive calls, waiting readers, a cleaning job) end before its log is closed.
        del self.hosts[host.name]
        self.broken[host.name] = "its deletion did not finish"
        self._deleting.add(host.name)
        host.close()
        if self.compactor is not None:
            await self.compactor.forget(host)
        self.streams_changed()
        await asyncio.to_thread(host.log.close)

    async def drain(self) -> None:
        """Accept no more messages; commit and answer every received message."""
        await self.attachments.drain()
        for host in self.hosts.values():
            host.refuse_new()
        await asyncio.gather(*map(_drained, self.hosts.values()))

    async def close(self) -> None:
        """Stop serving. Commits may still be in progress, and the logs stay open."""
        await self._losses.close()
        for host in self.hosts.values():
            host.close()

    def close_logs(self, stepped_ns: int) -> dict[str, ActiveState]:
        """Close the logs, several at a time, and return the ends of the logs that closed cleanly.
        `stepped_ns` is the difference between the clock of ages and the steady clock. Blocking."""

        def close(host: StreamHost) -> ActiveState | None:
            if host.is_leading:  # only a leader's sequencer has judged messages
                _save_snapshots(host, stepped_ns)
            return None if host.failure else host.log.close()

        hosts = list(self.hosts.values())
        with ThreadPoolExecutor(_CLOSED_AT_ONCE, thread_name_prefix="close") as threads:
            closing = [threads.submit(close, host) for host in hosts]
        # Only here, because after an error `map` would drop the remaining results.
        states = [one.result() for one in closing]
        return {
            host.name: state for host, state in zip(hosts, states, strict=True) if state is not None
        }


class Names:
    """Locks for the names of streams. Only one creation or deletion of a name runs at a time, while
    streams of other names can be created at the same time. Belongs to the event loop."""

    def __init__(self) -> None:
        self._locks: dict[str, asyncio.Lock] = {}
        self._users: Counter[str] = Counter()

    @contextlib.asynccontextmanager
    async def held(self, name: str) -> AsyncIterator[None]:
        """Hold the lock of a name."""
        lock = self._locks.setdefault(name, asyncio.Lock())
        self._users[name] += 1
        try:
            async with lock:
                yield
        finally:
            self._users[name] -= 1
            if not self._users[name]:
                del self._users[name], self._locks[name]


async def _drained(host: StreamHost) -> None:
    """Wait for the stream's commits. If they need other nodes, wait only for a short time, because
    these nodes may not answer. A short wait loses no acked record: an uncommitted record is stored
    on this node, its publisher has no ack, and a later leader commits it."""
    if not host.log.config.replicated:
        await host.drained()
        return
    try:
        async with asyncio.timeout(_LAST_COMMITS_SECONDS):
            await host.drained()
    except TimeoutError:
        logger.warning("not-committed stream=%s action=stop", host.name)


def _save_snapshots(host: StreamHost, stepped_ns: int) -> None:
    try:
        write_dedupe_snapshot(host.log, host.sequencer.dedupe, stepped_ns=stepped_ns)
        host.log.structure.list_hidden()
        host.subjects.save()
    except (OSError, StorageError) as error:
        logger.warning("snapshot-failed stream=%s error=%s", host.name, error)
