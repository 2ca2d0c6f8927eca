"""The streams of the daemon: find, create, describe, attach to NATS and delete one; open and close
all of them.

Everything runs on the event loop; blocking work goes to the writer pool or to threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from liftlog.cluster.handover import SPREAD_SECONDS
from liftlog.errors import (
    Conflict,
    Forbidden,
    InvalidArgument,
    NatsRefused,
    NatsUnavailable,
    NotReady,
    ShuttingDown,
    StreamNotFound,
    StreamUnavailable,
)
from liftlog.log import Clock, DataDir, Log
from liftlog.log.files.slot import current_boot_id
from liftlog.log.segment.tail import ActiveState
from liftlog.names import is_stream_name
from liftlog.protocol.described import StreamInfo
from liftlog.server.checkpoints import OFFSETS_STREAM, Checkpoints
from liftlog.server.cleaning.cleaner import Cleaner
from liftlog.server.cleaning.mending import Mender
from liftlog.server.commits.host import SYSTEM, StreamHost
from liftlog.server.ingest.nats_link import NatsLink
from liftlog.server.ingest.subscriptions import RunHandler
from liftlog.server.metadata.file_store import FileMetaStore
from liftlog.server.metadata.records import RECORDS_NAME, StreamRecords
from liftlog.server.node.replicated import ReplicatedStreams
from liftlog.server.replication.serving import ServedStream
from liftlog.server.streams.administration import Administration
from liftlog.server.streams.attachments import Attachments, PossibleLosses, RefusedSubject
from liftlog.server.streams.catalog import Catalog
from liftlog.server.streams.clock_keeping import ClockKeeper
from liftlog.server.streams.dedupe_restoring import LearnedIds, write_dedupe_snapshot
from liftlog.server.streams.description import (
    ALL_STREAMS,
    Newer,
    describe,
    describe_broken,
    describe_elsewhere,
    stream_conditions,
    warnings_of_streams,
)
from liftlog.server.streams.intake import Intake
from liftlog.server.streams.making import StreamMaker
from liftlog.server.streams.neighbours import Neighbours
from liftlog.server.streams.own_catalog import OwnCatalog
from liftlog.server.streams.settings import check_same, origin_of, save_metadata, settings_of
from liftlog.server.vitals.clock_guard import ClockGuard
from liftlog.server.vitals.conditions import Condition, Conditions
from liftlog.server.vitals.descriptors import Descriptors
from liftlog.server.vitals.disk import DiskReserve
from liftlog.server.vitals.slices import Slices
from liftlog.settings import Settings, StreamSettings, parse_stream_settings
from liftlog.stream import Destinations

logger = logging.getLogger("liftlog.server")

_DRAIN_SECONDS = 30.0
_LAST_COMMITS_SECONDS = 3.0
_HAND_OVER_SHARE = 0.6
"""Of the time for a stop, so much is for handing streams over."""
_MAX_NAMED = 20
_OPENING_SECONDS = 10.0


class Broker:
    """Belongs to the event loop. Implements the pull server's Broker."""

    def __init__(self, settings: Settings, data_dir: DataDir, clock: Clock) -> None:
        self.settings = settings
        self.server_id = secrets.token_hex(8)
        self.max_connections = settings.pull.max_connections
        """Connections of the pull socket; less than the setting if descriptors are scarce."""
        self.hosts: dict[str, StreamHost] = {}
        self.clock_guard = ClockGuard(clock, boot_id=current_boot_id())
        data_dir.environment.age_clock_ns = self.clock_guard.now_ns
        self.clock_keeper = ClockKeeper(
            self.clock_guard,
            self.hosts,
            data_dir,
            checkpoint_seconds=settings.checkpoints.expire_after_seconds,
        )
        self.clock_keeper.recall()
        self.intake = Intake(
            settings.commit,
            settings.ingest.max_pending_bytes,
            clock,
            self.hosts,
            start_ns=self.clock_guard.now_ns(),
        )
        self.broken: dict[str, str] = {}
        """Why a stream on disk is not served, by name."""
        self._data_dir = data_dir
        self.reserve = DiskReserve(data_dir.path)
        self.conditions = Conditions()
        """The conditions of the daemon and its streams."""
        self.descriptors: Descriptors | None = None
        """Set if the process is this daemon's alone."""
        self.conditions.add(self._stream_conditions)
        self.conditions.add(self.clock_keeper.conditions)
        self.changes = asyncio.Lock()
        """Held while streams come or go."""
        self._losses = PossibleLosses(clock)
        self.attachments = Attachments(self.hosts, self.intake, self._losses.note)
        path, fs = data_dir.path / RECORDS_NAME, data_dir.environment.fs
        self.records = StreamRecords(FileMetaStore(path, shared=False, fs=fs))
        self.catalog: Catalog = OwnCatalog(self.hosts, self.records)
        """Replaced before the streams are opened, if this daemon is a node of a cluster."""
        self._neighbours = Neighbours(
            self.hosts, settings.nats.ack_subjects, lambda: self.catalog.recorded
        )
        self._has_new_neighbours = False
        self._maker = StreamMaker(
            self.hosts,
            self.broken,
            settings,
            data_dir,
            committers=self.intake,
            neighbours=self._neighbours,
            losses=self._losses,
            records=self.records,
            now_ns=self.now_ns,
            steady_ns=self.intake.steady_ns,
        )
        self.compactor: Cleaner | None = None
        self.mender: Mender | None = None
        """Set if this daemon is a node of a cluster."""
        self.replicated: ReplicatedStreams | None = None
        """Set before the streams are opened, if this daemon is a node of a cluster."""
        self.administration = Administration(self)
        self._checkpoints: Checkpoints | None = None
        self._closing = False
        self._deleting: set[str] = set()
        """These are in `broken` while their files go, but to clients they no longer exist: a reader
        that waits for records must not report a failed stream."""

    def now_ns(self) -> int:
        """The time by which ages are judged; see ClockGuard."""
        return self.clock_guard.now_ns()

    def ages_are_judged(self) -> bool:
        """True if records are deleted for their age now."""
        if self.replicated is not None and not self.replicated.clocks.may_decide():
            return False
        return self.clock_guard.wall_clock_is_trusted()

    def steady_ns(self) -> int:
        """The clock by which message ids age."""
        return self.intake.steady_ns()

    # --- start ---

    async def open_streams(
        self, *, assume_yes: bool, is_stopping: Callable[[], bool] = lambda: False
    ) -> None:
        """Open every stream on disk and apply the configuration.

        A stream that cannot be opened is left alone and shown as failed; the others are served.
        Once `is_stopping`, no further stream is opened.
        Raises ConfigError when the configuration would delete much of a stream.
        """
        await asyncio.to_thread(self.reserve.release)
        if self.replicated is not None:
            await self.replicated.open_streams()
        else:
            await self._maker.open_all(assume_yes=assume_yes, is_stopping=is_stopping)
        self.streams_changed()

    async def keep_disk_reserve(self) -> None:
        """Reserve disk space for the case that the disk is full. Call it after everything that a
        start must write, and before messages come in."""
        await asyncio.to_thread(self.reserve.keep)

    # --- system streams ---

    async def open_system_stream(self, name: str, settings: StreamSettings) -> StreamHost:
        """A stream that the daemon writes itself; created if it does not exist. Call it after
        `open_streams`. Raises StreamUnavailable when it exists and could not be opened."""
        if name in self.broken:
            raise StreamUnavailable(f"stream {name} could not be opened: {self.broken[name]}")
        host = self.hosts.get(name)
        if host is None:
            host = await self._maker.create(name, settings, origin=SYSTEM)
        elif host.settings != settings:
            await host.run_exclusive(lambda: None, then=partial(host.adopt, settings))
            await save_metadata(host)
            await self.records.changed(host.log)
        self.streams_changed()
        return host

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
        """See `StreamHosts`."""
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
        self._neighbours.joined(host)
        if before is None or before.settings != settings:
            self.streams_change()
        if before is not None and self.compactor is not None:
            await self.compactor.forget(before)
        return host

    def expects_repair(self, name: str, first: int, end: int) -> bool:
        """See `StreamHosts`."""
        host = self.hosts.get(name)
        return (
            host is not None
            and self.mender is not None
            and self.mender.is_expected(host, first, end)
        )

    async def attach_replica(self, host: StreamHost) -> bool:
        """See `StreamHosts`."""
        if self.attachments.take(host):
            return True
        if self.attachments.relay(host) is not None:
            # What is subscribed to may still bring messages that the leader before has stored.
            await self.attachments.detach(host)
            await asyncio.sleep(SPREAD_SECONDS)
        self.attachments.want(host)
        return False

    def note_possible_loss(self, host: StreamHost, reason: str) -> None:
        """See `StreamHosts`."""
        if host.origin != SYSTEM:
            self._losses.note(host, reason)

    async def rest_replica(self, host: StreamHost, *, seconds: float) -> bool:
        """See `StreamHosts`."""
        if host.is_leading:
            await self.attachments.detach(host)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await host.drained()
            return not host.failure
        return False

    async def end_replica(self, host: StreamHost, *, seconds: float) -> None:
        """See `StreamHosts`."""
        await self.attachments.detach(host)
        # On a disk that hangs that may take long, and it may be opened again after this: what is
        # still written then would come between what the next one writes.
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

    def receive_for(self, name: str, receive: RunHandler, *, is_required: bool) -> None:
        """Attach a system stream. Call it before `set_link`."""
        self.attachments.receive_for(name, receive, is_required=is_required)

    @property
    def destinations(self) -> Destinations:
        return self._neighbours.destinations

    def recording(self, subject: str) -> list[str]:
        """The streams, of the cluster too, that store and ack a message on this subject."""
        return self._neighbours.recording(subject)

    def send(self, commands: bytes) -> None:
        """Send NATS commands."""
        self.intake.send(commands)

    @property
    def checkpoints(self) -> Checkpoints:
        """Raises StreamUnavailable when they could not be opened, NotReady where they are not led
        or may not be any longer."""
        if self.replicated is not None and not self.has_checkpoints:
            raise NotReady("this node does not lead the checkpoints at present", hint="try again")
        if self._checkpoints is None:
            raise StreamUnavailable(
                "there are no checkpoints: the stream _offsets could not be opened",
                hint="the daemon's log has the cause",
            )
        return self._checkpoints

    @property
    def has_checkpoints(self) -> bool:
        """Whether this node answers for them."""
        return self._checkpoints is not None and self.catalog.may_answer(OFFSETS_STREAM)

    def serve_checkpoints(self, checkpoints: Checkpoints | None) -> None:
        """Use these checkpoints from now on; None: another node has them."""
        self._checkpoints = checkpoints

    # --- NATS ---

    def set_link(self, link: NatsLink) -> None:
        """Streams are attached through this link from now on."""
        self.attachments.set_link(link)

    @property
    def closing(self) -> bool:
        return self._closing

    @property
    def attached(self) -> bool:
        """Whether every subscription that the daemon needs is confirmed."""
        return self.attachments.all_confirmed

    def refused_subjects(self) -> list[RefusedSubject]:
        """Subscriptions that NATS refuses."""
        return self.attachments.refused()

    def streams_change(self) -> None:
        """See `StreamHosts`."""
        if not self._has_new_neighbours:
            self._has_new_neighbours = True
            asyncio.get_running_loop().call_soon(self.streams_changed)

    def streams_changed(self) -> None:
        """Call it when streams have come or gone, or settings of one have changed."""
        self._has_new_neighbours = False
        self._neighbours.changed()
        self.attachments.settings_changed()

    # --- the pull server's Broker ---

    async def create_stream(self, name: str, settings: Mapping[str, object]) -> StreamInfo:
        """Create a stream and attach it. Returns after NATS has confirmed the subscription.

        Idempotent for equal settings. Raises Conflict with the differences, InvalidArgument,
        NatsUnavailable (the stream exists then, detached, and is attached as soon as possible),
        NatsRefused (a stream that is new has been removed again, unless it has messages on other
        subjects already).
        """
        wanted_settings = parse_stream_settings(settings)
        if not is_stream_name(name):
            raise InvalidArgument(
                f"{name!r} is not a stream name",
                hint="letters, digits, `-` and `_`, at most 128, not beginning with `_` or `-`",
            )
        if self.replicated is not None:
            # Nothing changes here but by the record, so many of them may wait for it.
            self._check_creatable(name)
            return await self._create_replicated(name, wanted_settings)
        async with self.changes:
            self._check_creatable(name)
            host = self.hosts.get(name)
            is_new = host is None
            if host is not None:
                check_same(name, host.origin, host.settings, wanted_settings)
            else:
                host = await self._maker.create(name, wanted_settings, origin="api")
                self.streams_changed()
                self.attachments.want(host)
        try:
            await self.attachments.attach(host)
        except NatsRefused:
            if is_new:
                await self._undo_creation(host)
            raise
        return self.describe(host)

    def _check_creatable(self, name: str) -> None:
        """Raises ShuttingDown, StreamUnavailable, LimitExceeded."""
        if self._closing:
            raise ShuttingDown("the daemon is stopping")
        if name in self.broken:
            raise StreamUnavailable(f"stream {name} exists but failed: {self.broken[name]}")
        if self.descriptors is not None and name not in self.hosts:
            self.descriptors.check_spare()

    async def _create_replicated(self, name: str, settings: StreamSettings) -> StreamInfo:
        """The nodes that hold a replica open it as soon as they see the record."""
        assert self.replicated is not None
        record = await self.replicated.create(name, settings)
        check_same(name, origin_of(record), settings_of(record), settings)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_OPENING_SECONDS):
                await self.replicated.opened(name)
        host = self.hosts.get(name)
        if host is None or not host.is_leading:
            raise self.catalog.not_leader(name)
        # Without a connection, or where NATS refuses, the description says so: other nodes have it.
        with contextlib.suppress(NatsRefused, NatsUnavailable):
            await self.attachments.attach(host)
        return self.describe(host)

    async def _undo_creation(self, host: StreamHost) -> None:
        """NATS refuses the subscription, and the caller gets that error: leave nothing behind that
        would be subscribed again and again."""
        async with self.changes:
            if self.hosts.get(host.name) is not host or self._closing:
                return
            await self.attachments.detach(host)
            if host.sequencer.next_offset > host.settings.initial_offset:
                # NATS allows some of its subjects, and messages on those may have been acked.
                self.attachments.want(host)
                logger.warning("stream-kept stream=%s cause=nats-refused-a-part", host.name)
                return
            try:
                await self._end_host(host)
                await self._maker.remove_files(host.name)
            finally:
                self._deleting.discard(host.name)
            logger.info("stream-not-created stream=%s cause=nats-refused", host.name)

    async def describe_stream(self, name: str) -> StreamInfo:
        found = await self.conditions.now()
        return _with_warnings(self._described(name), warnings_of_streams(found))

    def _described(self, name: str) -> StreamInfo:
        if name in self.broken:
            return describe_broken(name, self.broken[name])
        if name not in self.hosts and self.replicated is not None:
            record = self.replicated.view.known(name)
            if record is not None:
                return describe_elsewhere(name, settings_of(record), record)
        return self.describe(self._host(name))

    async def list_streams(self) -> list[StreamInfo]:
        """Without the system streams. The event loop does other work in between, so each
        description is of its own moment."""
        found = []
        warnings = warnings_of_streams(await self.conditions.now())
        slices = Slices()
        for name in self.stream_names():
            await slices.pause()
            with contextlib.suppress(StreamNotFound):  # deleted meanwhile
                found.append(_with_warnings(self._described(name), warnings))
        return found

    def stream_names(self) -> list[str]:
        """In order, without the system streams; in a cluster, also of those without a copy here."""
        here = filter(is_stream_name, {*self.hosts, *self.broken})
        return sorted({*here, *self.catalog.names()})

    async def delete_stream(self, name: str) -> None:
        """Detach, commit and ack what has arrived, remove the files. Works for a stream that could
        not be opened, too. When the files cannot be removed, the stream is shown as failed and can
        be deleted again."""
        async with self.changes:
            if not is_stream_name(name):
                raise Forbidden(
                    f"stream {name} belongs to the daemon", hint="system streams cannot be deleted"
                )
            if self.replicated is None or not self.replicated.view.knows(name):
                host = None if name in self.broken else self._host(name)
            if name in self.settings.streams and name not in self._maker.lost:
                raise Conflict(
                    f"stream {name} comes from the configuration file",
                    hint="remove it there and restart the daemon, then delete it",
                )
            if self.replicated is not None and self.replicated.view.knows(name):
                await self.replicated.delete(name)
                return
            try:
                if host is not None:
                    await self._end_host(host)
                await self._maker.remove_files(name)
            finally:
                self._deleting.discard(name)
            logger.info("stream-deleted stream=%s", name)

    async def _end_host(self, host: StreamHost) -> None:
        """End a stream; its files stay, and its name is in `broken` until they are removed. Call it
        while `changes` is held."""
        # No message arrives after this, and every message before it is committed and answered.
        await self.attachments.detach(host)
        try:
            async with asyncio.timeout(_DRAIN_SECONDS):
                await host.drained()
        except TimeoutError:
            # Nothing has been taken away yet: the stream continues as before.
            self.attachments.want(host)
            raise StreamUnavailable(
                f"stream {host.name} was not deleted: its disk does not answer"
            ) from None
        # From here on no request finds the stream, and no other stream can take its name. What
        # holds on to it ends before its log is closed: exclusive calls, waiting readers, a cleaning
        # job.
        del self.hosts[host.name]
        self.broken[host.name] = "its deletion did not finish"
        self._deleting.add(host.name)
        host.close()
        if self.compactor is not None:
            await self.compactor.forget(host)
        self.streams_changed()
        await asyncio.to_thread(host.log.close)

    async def compact_stream(self, name: str) -> StreamInfo:
        """Request a compaction pass as soon as possible; returns a description that shows the
        request."""
        host = self.stream(name)
        if self.compactor is None:
            raise ShuttingDown("no stream is compacted at the moment")
        self.compactor.request(host)
        return self.describe(host)

    def compaction_history(self, name: str) -> list[dict[str, Any]]:
        """What the last passes since the start have done, newest first."""
        return [] if self.compactor is None else self.compactor.history(self._host(name))

    def stream(self, name: str) -> StreamHost:
        host = self._host(name)
        if host.failure:
            raise StreamUnavailable(f"stream {name} has failed: {host.failure}")
        return host

    def readable_stream(self, name: str) -> StreamHost:
        """A stream of which this node has a copy. Raises NotLeader if only others have one, besides
        what `stream` raises."""
        is_here = name in self.hosts or name in self.broken
        if not is_here and self.catalog.knows(name):
            raise self.catalog.not_leader(name)
        return self.stream(name)

    def led_stream(self, name: str) -> StreamHost:
        """A stream whose newest records are here. Raises NotLeader and NotReady besides what
        `stream` raises."""
        self.catalog.check_leads(name)
        return self.stream(name)

    def _host(self, name: str) -> StreamHost:
        host = self.hosts.get(name)
        if host is None:
            if name in self.broken and name not in self._deleting:
                raise StreamUnavailable(f"stream {name} could not be opened: {self.broken[name]}")
            raise StreamNotFound(f"there is no stream {name!r}")
        return host

    def describe(self, host: StreamHost) -> StreamInfo:
        compaction = self.compactor.describe(host) if self.compactor is not None else {}
        warnings = self._neighbours.warnings(host) + self.attachments.jetstream_warnings(host)
        return describe(host, self.state_of(host), warnings, compaction)

    def state_of(self, host: StreamHost) -> str:
        if host.failure:
            return "failed"
        if not host.is_leading:
            return "follower"
        if not self.attachments.is_attachable(host):
            return "internal"
        if not self.is_attached(host):
            return "detached"
        if host.settings.read_only:
            return "read-only"
        return "paused" if host.settings.paused else "attached"

    def is_attached(self, host: StreamHost) -> bool:
        """Whether NATS delivers to the stream, as far as is known."""
        return self.attachments.is_attached(host)

    def failed_streams(self) -> list[str]:
        """Streams that cannot be written, or could not be opened."""
        return [name for name, host in self.hosts.items() if host.failure] + list(self.broken)

    def _stream_conditions(self) -> Iterable[Condition]:
        if self.records.problem:
            yield Condition.of("records", self.records.problem)
        cleaning = {} if self.compactor is None else self.compactor.failures()
        jetstream = self.attachments.jetstream_warnings
        newer = {} if self.replicated is None else self.replicated.mirror.newer
        broken = {**{name: Newer(reason) for name, reason in newer.items()}, **self.broken}
        yield from stream_conditions(self.hosts, broken, cleaning, jetstream)

    def stalled_streams(self, seconds: float) -> list[str]:
        """Streams whose disk has not responded for so long."""
        return [name for name, host in self.hosts.items() if host.turns.taken_seconds > seconds]

    @property
    def nats_connected(self) -> bool:
        return self.attachments.connected

    @property
    def nats_problem(self) -> str:
        """Why messages do not reach the daemon, as far as NATS is the cause: no connection, or a
        subject that NATS refuses. Empty when all is well."""
        if not self.nats_connected:
            return f"not connected to NATS: {self.attachments.problem}"
        refused = [
            f"{one.subject} (stream {one.stream}): {one.problem}"
            for one in self.refused_subjects()
            if one.is_required
        ]
        return f"NATS refuses {'; '.join(refused[:_MAX_NAMED])}" if refused else ""

    @property
    def nats_url(self) -> str:
        """Where the NATS server is, without a login; empty without a connection."""
        return self.attachments.server_url

    @property
    def nats_version(self) -> str:
        """Version of the NATS server; empty without a connection."""
        return self.attachments.server_version

    # --- stop ---

    async def drain(self, hurry: asyncio.Event | None = None) -> None:
        """Accept no more messages; commit and answer everything that was received. What a node of a
        cluster leads is handed over before, until `hurry` is set."""
        self._closing = True
        if self.replicated is not None:
            await self._hand_over(self.replicated, hurry or asyncio.Event())
        if self._checkpoints is not None:
            self._checkpoints.groups.close(ShuttingDown("the daemon is shutting down"))
        await self.attachments.drain()
        for host in self.hosts.values():
            host.refuse_new()
        await asyncio.gather(*map(self._drained, self.hosts.values()))
        if self.replicated is not None:
            await self.replicated.leave()

    async def _hand_over(self, replicated: ReplicatedStreams, hurry: asyncio.Event) -> None:
        limit = self.settings.drain_timeout_seconds * _HAND_OVER_SHARE
        handing = asyncio.ensure_future(replicated.prepare_to_stop())
        hurrying = asyncio.ensure_future(hurry.wait())
        try:
            await asyncio.wait(
                (handing, hurrying), timeout=limit, return_when=asyncio.FIRST_COMPLETED
            )
            if handing.done():
                handing.result()
        finally:
            for task in (handing, hurrying):
                task.cancel()
            await asyncio.gather(handing, hurrying, return_exceptions=True)

    async def _drained(self, host: StreamHost) -> None:
        """What waits for other nodes is not waited for long: they may be gone. It is stored here,
        its publishers have no ack, and a later leader commits it."""
        if not host.log.config.replicated:
            await host.drained()
            return
        try:
            async with asyncio.timeout(_LAST_COMMITS_SECONDS):
                await host.drained()
        except TimeoutError:
            logger.warning("not-committed stream=%s action=stop", host.name)

    async def close(self) -> None:
        """Close every log, and mark the data directory clean with those that closed well."""
        await self._losses.close()
        for host in self.hosts.values():
            host.close()
        # Commits that the drain did not wait for: the threads finish them, and the loop, which runs
        # meanwhile, answers them. No log is closed before that.
        await asyncio.to_thread(self.intake.pool.close)
        await asyncio.to_thread(self.records.close)
        await asyncio.to_thread(self._close_logs, list(self.hosts.values()))

    def _close_logs(self, hosts: Iterable[StreamHost]) -> None:
        self.reserve.release()
        states: dict[str, ActiveState] = {}
        started = time.monotonic()
        self.clock_keeper.store()
        stepped_ns = self.now_ns() - self.intake.steady_ns()
        for host in hosts:
            if host.is_leading:  # a follower's sequencer has seen nothing
                self._save_snapshots(host, stepped_ns)
            state = None if host.failure else host.log.close()
            if state is not None:
                states[host.name] = state
        self._data_dir.mark_clean(states)
        self.reserve.keep()  # the next start may find the disk full
        self._data_dir.close(None)
        logger.info("closed streams=%d seconds=%.2f", len(states), time.monotonic() - started)

    def _save_snapshots(self, host: StreamHost, stepped_ns: int) -> None:
        try:
            write_dedupe_snapshot(host.log, host.sequencer.dedupe, stepped_ns=stepped_ns)
            host.subjects.save()
        except OSError as error:
            logger.warning("snapshot-failed stream=%s error=%s", host.name, error)


def _with_warnings(info: StreamInfo, warnings: Mapping[str, Sequence[str]]) -> StreamInfo:
    """Add the warnings of the stream and, on the node that writes it, those of all streams."""
    names = (info.name,) if info.state in ("elsewhere", "follower") else (info.name, ALL_STREAMS)
    more = [one for name in names for one in warnings.get(name, ()) if one not in info.warnings]
    return replace(info, warnings=[*info.warnings, *more]) if more else info
