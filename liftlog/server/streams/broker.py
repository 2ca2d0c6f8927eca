"""The streams of the daemon: finds, creates, describes, attaches and deletes single streams; opens
and closes all of them.

The code runs on the event loop; blocking work runs in the writer pool or in threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import liftlog
from liftlog.commit import commit
from liftlog.errors import (
    Forbidden,
    InvalidArgument,
    LiftlogError,
    ShuttingDown,
    StreamNotFound,
)
from liftlog.log import Clock, DataDir
from liftlog.log.files.acked_end import current_boot_id
from liftlog.log.files.leases import MAX_DURATION_NS, MAX_LEASES
from liftlog.names import is_stream_name
from liftlog.protocol.described import DaemonInfo, StreamInfo
from liftlog.protocol.messages import REQUESTS
from liftlog.sequencing import Destinations
from liftlog.server.checkpoints import OFFSETS_STREAM, Checkpoints
from liftlog.server.commits.host import StreamHost
from liftlog.server.consumers.door import Door
from liftlog.server.ingest.nats_link import NatsLink
from liftlog.server.ingest.subscriptions import RunHandler
from liftlog.server.journal.holding import JournalHolder
from liftlog.server.journal.opening import JOURNAL
from liftlog.server.metadata.file_store import FileMetaStore
from liftlog.server.metadata.records import RECORDS_NAME, StreamRecords
from liftlog.server.streams.administration import Administration
from liftlog.server.streams.attachments import Attachments, PossibleLosses, RefusedSubject
from liftlog.server.streams.catalog import Catalog
from liftlog.server.streams.clock_keeping import ClockKeeper
from liftlog.server.streams.description import (
    ALL_STREAMS,
    Newer,
    describe_broken,
    stream_conditions,
    warnings_of_streams,
    why_broken,
)
from liftlog.server.streams.erasing import Erasing, Finder
from liftlog.server.streams.hosted import HostedStreams
from liftlog.server.streams.intake import Intake
from liftlog.server.streams.making import StreamMaker
from liftlog.server.streams.neighbours import Neighbours
from liftlog.server.streams.own_catalog import OwnCatalog
from liftlog.server.vitals.clock_guard import ClockGuard
from liftlog.server.vitals.conditions import Condition, Conditions, by_kind, first_of_each_kind
from liftlog.server.vitals.disk import DiskReserve
from liftlog.server.vitals.slices import Slices
from liftlog.settings import Settings, StreamSettings, parse_stream_settings

logger = logging.getLogger("liftlog.server")

_HAND_OVER_SHARE = 0.6
"""The share of a stop's time limit that may be used for handing over streams."""
_MAX_NAMED = 20
_MS_NS = 1_000_000


class Broker:
    """All streams of the daemon. Belongs to the event loop. Implements the pull server's Broker."""

    consumers: Door | None = None
    """The consumers with acks; None until the daemon serves them."""

    _checkpoints: Checkpoints | None = None

    finder: Finder | None = None
    """Searches streams for records to erase; None until the daemon serves clients."""

    def __init__(self, settings: Settings, data_dir: DataDir, clock: Clock) -> None:
        self.settings = settings
        self.server_id = secrets.token_hex(8)
        self.max_connections = settings.pull.max_connections
        """Limit of the pull socket. It is below the setting if file descriptors are scarce."""
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
        """The reasons why streams on disk are not served, by name."""
        self.data_dir = data_dir
        self.conditions = Conditions()
        """The conditions of the daemon and its streams."""
        path, fs = data_dir.path / RECORDS_NAME, data_dir.environment.fs
        self.records = StreamRecords(FileMetaStore(path, shared=False, fs=fs))
        records = None if settings.cluster else self.records
        self.journal = JournalHolder(data_dir, self.intake.pool, settings.consumers, records)
        self.conditions.add(self._stream_conditions)
        self.conditions.add(self.clock_keeper.conditions)
        self.conditions.add(self.journal.conditions)
        losses = PossibleLosses(clock)
        self.attachments = Attachments(self.hosts, self.intake, losses.note)
        self._neighbours = neighbours = Neighbours(
            self.hosts, settings.nats.ack_subjects, lambda: self.catalog.recorded
        )
        self._maker = maker = StreamMaker(
            self.hosts,
            self.broken,
            settings,
            data_dir,
            committers=self.intake,
            neighbours=neighbours,
            losses=losses,
            records=self.records,
            now_ns=self.now_ns,
            steady_ns=self.intake.steady_ns,
        )
        self.hosted = HostedStreams(
            self.hosts,
            self.broken,
            maker,
            self.attachments,
            neighbours,
            losses,
            DiskReserve(data_dir.path),
            self.journal,
            self.intake.steady_ns,
        )
        self.own = OwnCatalog(self.hosted, maker, self.records, settings)
        self.catalog: Catalog = self.own
        """The catalog. A node of a cluster replaces it before the streams are opened."""
        self.administration = Administration(
            self.hosted, lambda: self.catalog, self.now_ns, self.ages_are_judged
        )
        self.erasing = Erasing(self.administration, self.hosted, self.now_ns, lambda: self.finder)
        self._started_ns, self._started = time.time_ns(), time.monotonic()

    def now_ns(self) -> int:
        """Return the time that determines ages; see ClockGuard."""
        return self.clock_guard.now_ns()

    def ages_are_judged(self) -> bool:
        """Return True if the daemon currently deletes records by age."""
        return self.catalog.may_judge_ages() and self.clock_guard.wall_clock_is_trusted()

    def steady_ns(self) -> int:
        """Return the time of the clock that determines the ages of message ids."""
        return self.intake.steady_ns()

    # --- start ---

    async def open_streams(
        self, *, assume_yes: bool, is_stopping: Callable[[], bool] = lambda: False
    ) -> None:
        """Open every stream on disk and apply the configuration.

        A stream that cannot be opened does not change, and is shown as failed; all other streams
        are served. After `is_stopping` returns True, no further stream is opened. Raises
        ConfigError if the configuration would delete much of a stream.
        """
        await asyncio.to_thread(self.hosted.reserve.release)
        await self._open_journal()  # this comes first, because streams that a node leads need it
        await self.catalog.open(assume_yes=assume_yes, is_stopping=is_stopping)
        problem = await self.journal.check_held()
        if problem:
            self.broken[JOURNAL] = problem
            logger.error("journal-missing path=%s", self.data_dir.stream_path(JOURNAL))
        # On a node of a cluster, the streams follow their records later.
        if not (self.broken or self.catalog.in_cluster or is_stopping()):
            self.journal.keep_only({host.log.incarnation for host in self.hosts.values()})
        self.hosted.streams_changed()

    async def _open_journal(self) -> None:
        """Open the journal of consumers. If it cannot be opened, the daemon reports it like a
        failed stream."""
        try:
            await self.journal.open()
        except LiftlogError as error:
            self.broken[JOURNAL] = why_broken(error)
            logger.error("journal-not-opened error=%s", error)  # noqa: TRY400

    # --- system streams ---

    async def open_system_stream(self, name: str, settings: StreamSettings) -> StreamHost:
        """Open a stream that the daemon writes itself; create it if it does not exist. Call this
        after `open_streams`. Raises StreamUnavailable if the stream exists but could not be
        opened."""
        return await self.own.open_system(name, settings)

    # --- messages ---

    def receive_for(self, name: str, receive: RunHandler, *, is_required: bool) -> None:
        """Attach a system stream, whose messages are passed to `receive`. Call this before
        `set_link`."""
        self.attachments.receive_for(name, receive, is_required=is_required)

    @property
    def destinations(self) -> Destinations:
        return self._neighbours.destinations

    def recording(self, subject: str) -> list[str]:
        """Return the streams that store and ack a message on this subject. This includes streams of
        other nodes."""
        return self._neighbours.recording(subject)

    def overlapping(self, subjects: Sequence[str]) -> Mapping[str, StreamSettings]:
        """Return the streams that may store a message on one of these patterns. This includes the
        daemon's own streams and streams of other nodes."""
        return self._neighbours.overlapping(subjects)

    def send(self, commands: bytes) -> None:
        """Send NATS commands."""
        self.intake.send(commands)

    @property
    def checkpoints(self) -> Checkpoints:
        """The checkpoints. Raises StreamUnavailable if the checkpoints could not be opened. Raises
        NotReady if this node does not lead their stream, or may no longer lead it."""
        if self._checkpoints is None or not self.has_checkpoints:
            raise self.catalog.no_checkpoints()
        return self._checkpoints

    @property
    def has_checkpoints(self) -> bool:
        """True while this node answers requests for checkpoints."""
        return self._checkpoints is not None and self.catalog.may_answer(OFFSETS_STREAM)

    def serve_checkpoints(self, checkpoints: Checkpoints | None) -> None:
        """Use these checkpoints from now on. None means that another node leads their stream."""
        self._checkpoints = checkpoints

    # --- NATS ---

    def set_link(self, link: NatsLink) -> None:
        """Attach streams through this link from now on."""
        self.attachments.set_link(link)

    @property
    def closing(self) -> bool:
        return self.hosted.closing

    @property
    def attached(self) -> bool:
        """True while NATS has confirmed every subscription that the daemon needs."""
        return self.attachments.all_confirmed

    def refused_subjects(self) -> list[RefusedSubject]:
        """Return the subscriptions that NATS refuses."""
        return self.attachments.refused()

    # --- the pull server's Broker ---

    async def create_stream(self, name: str, settings: Mapping[str, object]) -> StreamInfo:
        """Create a stream and attach it. Returns after NATS has confirmed the subscription.

        If the stream exists with equal settings, the call succeeds. If it exists with other
        settings, the call raises Conflict with the differences. Also raises InvalidArgument. After
        NatsUnavailable the stream exists, and is attached as soon as possible. After NatsRefused
        the new stream no longer exists, unless it has already received messages on other subjects.
        """
        wanted_settings = parse_stream_settings(settings)
        if not is_stream_name(name):
            raise InvalidArgument(
                f"{name!r} is not a stream name",
                hint="letters, digits, `-` and `_`, at most 128, not beginning with `_` or `-`",
            )
        return self.hosted.describe(await self.catalog.create(name, wanted_settings))

    async def describe_stream(self, name: str) -> StreamInfo:
        found = await self.conditions.now()
        return _with_warnings(self._described(name), warnings_of_streams(found))

    def _described(self, name: str) -> StreamInfo:
        if name in self.broken:
            return describe_broken(name, self.broken[name])
        elsewhere = None if name in self.hosts else self.catalog.describe_elsewhere(name)
        return elsewhere or self.hosted.describe(self.hosted.find(name))

    async def list_streams(self) -> list[StreamInfo]:
        """Return descriptions of all streams except the system streams. While it creates them, the
        event loop does other work, so the descriptions belong to slightly different times."""
        found = []
        warnings = warnings_of_streams(await self.conditions.now())
        slices = Slices()
        for name in self.stream_names():
            await slices.pause()
            with contextlib.suppress(StreamNotFound):  # the stream was deleted in the meantime
                found.append(_with_warnings(self._described(name), warnings))
        return found

    def stream_names(self) -> list[str]:
        """Return the sorted names of all streams except the system streams. In a cluster this
        includes streams that have no copy on this node."""
        here = filter(is_stream_name, {*self.hosts, *self.broken})
        return sorted({*here, *self.catalog.names()})

    async def delete_stream(self, name: str) -> None:
        """Detach a stream, commit and ack the messages that have arrived, and remove its files.

        The call also deletes a stream that could not be opened. If the files cannot be removed, the
        stream is shown as failed and can be deleted again. The deletion continues if the caller is
        cancelled.
        """
        if not is_stream_name(name):
            raise Forbidden(
                f"stream {name} belongs to the daemon", hint="system streams cannot be deleted"
            )
        await self.catalog.delete(name)

    async def compact_stream(self, name: str) -> StreamInfo:
        """Request a compaction pass as soon as possible. Returns a description that shows the
        request."""
        host = self.stream(name)
        if self.hosted.compactor is None:
            raise ShuttingDown("no stream is compacted at the moment")
        self.hosted.compactor.request(host)
        return self.hosted.describe(host)

    def compaction_history(self, name: str) -> list[dict[str, Any]]:
        """Return the results of the last passes since the start of the daemon, newest first."""
        compactor = self.hosted.compactor
        return [] if compactor is None else compactor.history(self.hosted.find(name))

    def stream(self, name: str) -> StreamHost:
        """Return a stream that has a host on this node. Raises StreamNotFound, and
        StreamUnavailable for a stream that has failed."""
        return self.hosted.stream(name)

    def readable_stream(self, name: str) -> StreamHost:
        """Return a stream with a copy on this node. Raises NotLeader if only other nodes have a
        copy, and the errors of `stream`."""
        is_here = name in self.hosts or name in self.broken
        if not is_here and self.catalog.knows(name):
            raise self.catalog.not_leader(name)
        return self.stream(name)

    def led_stream(self, name: str) -> StreamHost:
        """Return a stream that this node leads. The leader has the newest records. Raises NotLeader
        and NotReady, and the errors of `stream`."""
        self.catalog.check_leads(name)
        return self.stream(name)

    def failed_streams(self) -> list[str]:
        """Return the streams that cannot be written, or could not be opened."""
        return [name for name, host in self.hosts.items() if host.failure] + list(self.broken)

    def _stream_conditions(self) -> Iterable[Condition]:
        if self.records.problem:
            yield Condition.of("records", self.records.problem)
        cleaning = {} if self.hosted.compactor is None else self.hosted.compactor.failures()
        jetstream = self.attachments.jetstream_warnings
        newer = self.catalog.newer
        broken = {**{name: Newer(reason) for name, reason in newer.items()}, **self.broken}
        yield from stream_conditions(self.hosts, broken, cleaning, jetstream)

    def stalled_streams(self, seconds: float) -> list[str]:
        """Return the streams whose disk has not responded for this number of seconds."""
        return [name for name, host in self.hosts.items() if host.turns.taken_seconds > seconds]

    @property
    def nats_problem(self) -> str:
        """The reason why messages do not reach the daemon: there is no connection to NATS, or NATS
        refuses a subject. Empty if messages reach the daemon."""
        if not self.attachments.connected:
            return f"not connected to NATS: {self.attachments.problem}"
        refused = [
            f"{one.subject} (stream {one.stream}): {one.problem}"
            for one in self.refused_subjects()
            if one.is_required
        ]
        return f"NATS refuses {'; '.join(refused[:_MAX_NAMED])}" if refused else ""

    def daemon_info(
        self,
        may_read: Callable[[str], bool] = lambda name: True,
        conditions: Sequence[Condition] = (),
    ) -> DaemonInfo:
        """Describe the daemon. Counts only the streams for which `may_read` is true, like `stream
        ls`."""
        pull, attachments = self.settings.pull, self.attachments
        return DaemonInfo(
            name=self.settings.name,
            version=liftlog.__version__,
            commit=commit(),
            server_id=self.server_id,
            started_ns=self._started_ns,
            uptime_seconds=round(time.monotonic() - self._started, 3),
            nats={
                "connected": attachments.connected,
                "server_version": attachments.server_version,
                "url": attachments.server_url,
                "problem": self.nats_problem,
            },
            limits={
                "max_request_bytes": pull.max_frame_bytes,
                "max_in_flight": pull.max_in_flight,
                "max_fetch_bytes": pull.max_fetch_bytes,
                "max_wait_ms": int(pull.max_wait_seconds * 1000),
                "max_connections": self.max_connections,
                "max_unsent_bytes": pull.max_unsent_bytes,
                "default_fetch_bytes": pull.default_fetch_bytes,
                "max_leases": MAX_LEASES,
                "max_lease_ms": MAX_DURATION_NS // _MS_NS,
            },
            stream_count=sum(map(may_read, self.stream_names())),
            features=sorted(REQUESTS),
            warnings=by_kind(one for one in conditions if not one.is_unready),
            conditions=[one.to_wire() for one in first_of_each_kind(conditions)],
            nodes=self.catalog.addresses(),
        )

    # --- stop ---

    async def drain(self, hurry: asyncio.Event | None = None) -> None:
        """Hand over the streams that this node leads. Stop handing over when `hurry` is set. Then
        accept no more messages, and commit and answer every received message."""
        self.hosted.closing = True
        limit = self.settings.drain_timeout_seconds * _HAND_OVER_SHARE
        await self.catalog.stop(hurry or asyncio.Event(), limit)
        if self._checkpoints is not None:
            self._checkpoints.groups.close(ShuttingDown("the daemon is shutting down"))
        await self.hosted.drain()
        await self.catalog.leave()

    async def close(self) -> None:
        """Close every log, and record in the data directory the logs that closed cleanly."""
        await self.hosted.close()
        await self.journal.close()
        # The threads finish the commits that the drain did not wait for, and the event loop, which
        # keeps running, answers them. Only then are the logs closed.
        await asyncio.to_thread(self.intake.pool.close)
        await asyncio.to_thread(self._maker.close)
        await self.records.flush()
        await asyncio.to_thread(self.records.close)
        await asyncio.to_thread(self._close_logs)

    def _close_logs(self) -> None:
        reserve, started = self.hosted.reserve, time.monotonic()
        reserve.release()
        self.clock_keeper.store()
        states = self.hosted.close_logs(self.now_ns() - self.intake.steady_ns())
        self.data_dir.mark_clean(states)
        reserve.keep()  # without the reserve, the next start may find the disk full
        self.data_dir.close(None)
        logger.info("closed streams=%d seconds=%.2f", len(states), time.monotonic() - started)


def _with_warnings(info: StreamInfo, warnings: Mapping[str, Sequence[str]]) -> StreamInfo:
    """Return the description, with the warnings of the stream. On the leader of the stream, it also
    contains the warnings that concern all streams."""
    names = (info.name,) if info.state in ("elsewhere", "follower") else (info.name, ALL_STREAMS)
    more = [one for name in names for one in warnings.get(name, ()) if one not in info.warnings]
    return replace(info, warnings=[*info.warnings, *more]) if more else info
