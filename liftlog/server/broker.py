"""The streams of the daemon: open, create, describe, delete; attach to NATS; keep in order.

Everything runs on the event loop; blocking work goes to the writer pool or to threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Protocol

from liftlog.errors import (
    ConfigError,
    Conflict,
    Forbidden,
    InvalidArgument,
    LiftlogError,
    ShuttingDown,
    StreamNotFound,
    StreamUnavailable,
)
from liftlog.log import Clock, DataDir, Log, RecoveryReport
from liftlog.log.recovery import ActiveState
from liftlog.protocol.stream_info import StreamInfo
from liftlog.server.administration import Administration
from liftlog.server.checkpoints import Checkpoints
from liftlog.server.clock_guard import ClockGuard
from liftlog.server.disk_reserve import DiskReserve
from liftlog.server.ingest.nats_link import LinkSubscription, NatsLink, RunHandler
from liftlog.server.intake import Intake
from liftlog.server.stream_description import describe, describe_broken
from liftlog.server.stream_host import StreamHost
from liftlog.server.stream_opening import log_config, make_sequencer, write_dedupe_snapshot
from liftlog.server.stream_retention import removes_too_much
from liftlog.server.stream_settings import check_same, rivals, share_messages, with_switches
from liftlog.settings import Settings, StreamSettings, is_valid_stream_name, parse_stream_settings
from liftlog.stream import AckSubjects

logger = logging.getLogger("liftlog.server")

SYSTEM = "system"
"""Origin of the streams that the daemon made for itself; nobody else changes them."""

_MAX_NOTED_LOSSES = 100
_DRAIN_SECONDS = 30.0


class Compactor(Protocol):
    """What cleans the streams' sealed segments."""

    def describe(self, host: StreamHost) -> dict[str, Any]: ...
    def request(self, host: StreamHost) -> None: ...
    async def forget(self, host: StreamHost) -> None: ...
    async def interrupt(self, host: StreamHost) -> None: ...


class Broker:
    """Implements the pull server's Broker."""

    def __init__(self, settings: Settings, data_dir: DataDir, clock: Clock) -> None:
        self.settings = settings
        self.server_id = secrets.token_hex(8)
        self.hosts: dict[str, StreamHost] = {}
        self.intake = Intake(settings.commit, settings.ingest.max_pending_bytes, clock, self.hosts)
        self.broken: dict[str, str] = {}
        self.possible_loss_events = 0
        self._data_dir = data_dir
        self.reserve = DiskReserve(data_dir.path)
        self.changes = asyncio.Lock()
        self._clock = clock
        self.clock_guard = ClockGuard(clock)
        self._link: NatsLink | None = None
        self._subscriptions: dict[str, LinkSubscription] = {}
        self._ack_subjects = AckSubjects()
        self.compactor: Compactor | None = None
        self.administration = Administration(self)
        self._checkpoints: Checkpoints | None = None
        self._own_receivers: dict[str, RunHandler] = {}
        self._closing = False
        self._background: set[asyncio.Task[None]] = set()
        self._deleting: set[str] = set()
        """Whoever waits for records of these must not take them for failed."""

    def now_ns(self) -> int:
        """For judging ages, see ClockGuard."""
        return self.clock_guard.now_ns()

    # --- start ---

    async def open_streams(self, *, assume_yes: bool) -> None:
        """Open every stream on disk and apply the configuration.

        A stream that cannot be opened is left alone and shown as failed; the others are served.
        Raises ConfigError when the configuration would delete much of a stream.
        """
        await asyncio.to_thread(self.reserve.release)
        names = await asyncio.to_thread(self._data_dir.stream_names)
        for name in names:
            await self._open_stream(name, assume_yes=assume_yes)
        for name, settings in self.settings.streams.items():
            if name not in self.hosts and name not in self.broken:
                await self._create_host(name, settings, origin="config")
        self.streams_changed()

    async def keep_disk_reserve(self) -> None:
        """Set room aside for the day when the disk is full. Call it before messages come in, and
        after everything that a start must write."""
        await asyncio.to_thread(self.reserve.keep)

    async def _open_stream(self, name: str, *, assume_yes: bool) -> None:
        try:
            host, report = await self._load_host(name)
        except LiftlogError as error:
            self.broken[name] = str(error)
            logger.error("stream-not-opened stream=%s error=%s", name, error)  # noqa: TRY400
            return
        except Exception as error:  # a supervisor: the other streams are served
            self.broken[name] = f"internal error: {error!r}"
            logger.exception("stream-not-opened stream=%s", name)
            return
        log = host.log
        changed = host.settings != _stored_settings(name, log)
        if host.origin == "config" and changed and not assume_yes:
            self._refuse_large_deletion(log, host.settings)
        if self.metadata_of(host) != log.metadata:
            await self._save_metadata(host)
        logger.info(
            "stream-opened stream=%s clean=%s log_start=%d log_end=%d scanned_bytes=%d",
            name,
            report.clean,
            log.log_start_offset,
            log.log_end_offset,
            report.scanned_bytes,
        )
        if log.log_end_offset > host.settings.initial_offset and host.origin != SYSTEM:
            self._note_possible_loss(host, "the daemon was not running")

    async def _load_host(self, name: str) -> tuple[StreamHost, RecoveryReport]:
        configured = self.settings.streams.get(name)
        log, report = await asyncio.to_thread(
            self._data_dir.open_log, name, log_config(configured or _DEFAULTS)
        )
        try:
            switches: dict[str, list[bool]] = {}
            if configured is not None:
                settings, switches = with_switches(configured, log.metadata.get("switches"))
            else:
                settings = _stored_settings(name, log)
            log.config = log_config(settings)
            origin = "config" if configured is not None else str(log.metadata.get("origin", "api"))
            if configured is None and origin == "config":
                origin = "api"  # no longer in the file: from now on the API may change it
            host = await self._make_host(name, settings, log, origin)
            host.switches = switches
            return host, report
        except Exception:
            await asyncio.to_thread(log.close)
            raise

    def _refuse_large_deletion(self, log: Log, settings: StreamSettings) -> None:
        if removes_too_much(log, settings, self.now_ns()):
            raise ConfigError(
                f"streams.{log.directory.name}.retention would delete more than a tenth of the "
                "stream at once",
                hint="start once with --yes if that is what you want",
            )

    async def _make_host(
        self, name: str, settings: StreamSettings, log: Log, origin: str
    ) -> StreamHost:
        sequencer = await asyncio.to_thread(
            make_sequencer, name, settings, log, self._ack_subjects, self.now_ns()
        )
        host = StreamHost(name, settings, log, sequencer, self.intake, origin=origin)
        host.possible_losses = list(log.metadata.get("possible_losses", []))
        self.hosts[name] = host
        return host

    async def _create_host(self, name: str, settings: StreamSettings, origin: str) -> StreamHost:
        metadata = {"settings": settings.to_yaml_dict(), "origin": origin, "possible_losses": []}
        log: Log | None = None
        try:
            log = await asyncio.to_thread(
                self._data_dir.create_log,
                name,
                log_config(settings),
                initial_offset=settings.initial_offset,
                metadata=metadata,
            )
            host = await self._make_host(name, settings, log, origin)
        except Exception:
            # Nobody was told that it exists: it must not be there after the next start.
            if log is not None:
                await asyncio.to_thread(log.close)
            with contextlib.suppress(LiftlogError):
                await self._remove_files(name)
            raise
        logger.info("stream-created stream=%s subject=%s", name, settings.subject)
        for warning in self._warnings(host):
            logger.warning("stream-warning stream=%s %s", name, warning)
        return host

    def metadata_of(self, host: StreamHost) -> dict[str, Any]:
        """What the manifest of a stream says beside the log's own."""
        metadata = {
            "settings": host.settings.to_yaml_dict(),
            "origin": host.origin,
            "possible_losses": host.possible_losses,
        }
        return metadata | ({"switches": host.switches} if host.switches else {})

    # --- the system's own streams ---

    async def open_system_stream(self, name: str, settings: StreamSettings) -> StreamHost:
        """A stream that the daemon writes itself; made if there is none. Call it behind
        `open_streams`. Raises StreamUnavailable when it is there and could not be opened."""
        if name in self.broken:
            raise StreamUnavailable(f"stream {name} could not be opened: {self.broken[name]}")
        host = self.hosts.get(name)
        if host is None:
            host = await self._create_host(name, settings, origin=SYSTEM)
        elif host.settings != settings:
            await host.run_exclusive(lambda: None, then=partial(host.adopt, settings))
            await self._save_metadata(host)
        self.streams_changed()
        return host

    def receive_for(self, name: str, receive: RunHandler) -> None:
        """Attach a stream of the system's own. Call it before `set_link`."""
        self._own_receivers[name] = receive

    @property
    def ack_subjects(self) -> AckSubjects:
        return self._ack_subjects

    def send(self, commands: bytes) -> None:
        """NATS commands."""
        self.intake.send(commands)

    @property
    def checkpoints(self) -> Checkpoints:
        """Raises StreamUnavailable when they could not be opened."""
        if self._checkpoints is None:
            raise StreamUnavailable(
                "there are no checkpoints: the stream _offsets could not be opened",
                hint="the daemon's log has the cause",
            )
        return self._checkpoints

    @property
    def has_checkpoints(self) -> bool:
        return self._checkpoints is not None

    def serve_checkpoints(self, checkpoints: Checkpoints) -> None:
        """From now on these are the checkpoints."""
        self._checkpoints = checkpoints

    # --- NATS ---

    def set_link(self, link: NatsLink) -> None:
        """Streams are attached through this link from now on."""
        self._link = self.intake.link = link
        for host in self.hosts.values():
            self._want(host)

    def _want(self, host: StreamHost) -> LinkSubscription | None:
        if self._link is None or not self._is_attachable(host):
            return None
        receive = self._own_receivers.get(host.name) or self.intake.receiver(host)
        wanted = self._link.want(host.settings.subject, host.settings.queue_group, receive)
        self._subscriptions[host.name] = wanted
        return wanted

    @property
    def closing(self) -> bool:
        return self._closing

    @property
    def attached(self) -> bool:
        """Every stream's subscription is confirmed."""
        return all(
            name in self._subscriptions and self._subscriptions[name].confirmed
            for name, host in self.hosts.items()
            if self._is_attachable(host)
        )

    def _is_attachable(self, host: StreamHost) -> bool:
        """Whether it is to receive messages: what the system has for itself may get none."""
        return host.origin != SYSTEM or host.name in self._own_receivers

    def on_gap(self, reason: str) -> None:
        """Messages may have passed us by: remember where, for every stream."""
        for host in self.hosts.values():
            if self._is_attachable(host):
                self._note_possible_loss(host, reason)

    def _note_possible_loss(self, host: StreamHost, reason: str) -> None:
        self.possible_loss_events += 1
        event = {
            "offset": host.sequencer.next_offset,
            "time_ns": self._clock.now_ns(),
            "reason": reason,
        }
        host.possible_losses = [*host.possible_losses, event][-_MAX_NOTED_LOSSES:]
        logger.warning(
            "possible-loss stream=%s offset=%d reason=%s", host.name, event["offset"], reason
        )
        self._in_background(self._save_metadata(host))

    async def _save_metadata(self, host: StreamHost) -> None:
        try:
            await host.run_exclusive(lambda: host.log.set_metadata(self.metadata_of(host)))
        except LiftlogError as error:
            logger.warning("metadata-not-saved stream=%s error=%s", host.name, error)

    def _in_background(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def streams_changed(self) -> None:
        """Subjects that acks must not go to, and who is a neighbour of whom."""
        hosts = list(self.hosts.values())
        self._ack_subjects = AckSubjects(
            [host.settings.subject for host in hosts if host.settings.acks != "off"],
            [host.settings.subject for host in hosts if host.settings.acks == "off"],
        )
        for host in hosts:
            host.sequencer.ack_subjects = self._ack_subjects
            host.sequencer.sibling_streams = {
                other.name.encode(): other.settings.subject
                for other in hosts
                if other is not host and not share_messages(host.settings, other.settings)
            }

    # --- the pull server's Broker ---

    async def create_stream(self, name: str, settings: Mapping[str, object]) -> StreamInfo:
        """Make a stream and attach it; returns after NATS confirmed the subscription.

        Idempotent for equal settings. Raises Conflict with the differences, InvalidArgument,
        NatsUnavailable (the stream then exists, detached, and is attached as soon as possible).
        """
        wanted_settings = parse_stream_settings(settings)
        if not is_valid_stream_name(name):
            raise InvalidArgument(
                f"{name!r} is not a stream name",
                hint="letters, digits, `-` and `_`, at most 128, not beginning with `_` or `-`",
            )
        async with self.changes:
            if self._closing:
                raise ShuttingDown("the daemon is stopping")
            if name in self.broken:
                raise StreamUnavailable(f"stream {name} exists but failed: {self.broken[name]}")
            host = self.hosts.get(name)
            if host is not None:
                check_same(name, host.origin, host.settings, wanted_settings)
            else:
                host = await self._create_host(name, wanted_settings, origin="api")
                self.streams_changed()
                self._want(host)
        await self._attach(host)
        return self.describe(host)

    async def _attach(self, host: StreamHost) -> None:
        wanted = self._subscriptions.get(host.name)
        if self._link is not None and wanted is not None:
            await self._link.attach(wanted)

    async def describe_stream(self, name: str) -> StreamInfo:
        if name in self.broken:
            return describe_broken(name, self.broken[name])
        return self.describe(self._host(name))

    async def list_streams(self) -> list[StreamInfo]:
        """Without the system's own."""
        names = sorted({*self.hosts, *self.broken})
        return [await self.describe_stream(name) for name in names if is_valid_stream_name(name)]

    async def delete_stream(self, name: str) -> None:
        """Detach, commit and ack what arrived, remove the files; also of a stream that could not
        be opened. When the files will not go, the stream is shown as failed and can be deleted
        again."""
        async with self.changes:
            if not is_valid_stream_name(name):
                raise Forbidden(f"stream {name} belongs to the daemon", hint="it is left as it is")
            host = None if name in self.broken else self._host(name)
            if name in self.settings.streams:
                raise Conflict(
                    f"stream {name} comes from the configuration file",
                    hint="remove it there and restart the daemon, then delete it",
                )
            try:
                if host is not None:
                    await self._end_host(host)
                await self._remove_files(name)
            finally:
                self._deleting.discard(name)
            logger.info("stream-deleted stream=%s", name)

    async def _end_host(self, host: StreamHost) -> None:
        wanted = self._subscriptions.pop(host.name, None)
        if self._link is not None and wanted is not None:
            await self._link.unwant(wanted)
        try:
            await asyncio.wait_for(host.drained(), _DRAIN_SECONDS)
        except TimeoutError:
            self._want(host)
            raise StreamUnavailable(
                f"stream {host.name} was not deleted: its disk does not answer"
            ) from None
        del self.hosts[host.name]
        self.broken[host.name] = "its deletion did not finish"
        self._deleting.add(host.name)
        host.close()
        if self.compactor is not None:
            await self.compactor.forget(host)
        self.streams_changed()
        await asyncio.to_thread(host.log.close)

    async def _remove_files(self, name: str) -> None:
        try:
            await asyncio.to_thread(self._data_dir.delete_log, name)
        except LiftlogError as error:
            if await asyncio.to_thread(self._data_dir.stream_path(name).exists):
                self.broken[name] = f"its deletion failed: {error}"
                raise
            # Under its new name it is no stream any more; the next start removes the rest.
            logger.warning("stream-files-left stream=%s error=%s", name, error)
        self.broken.pop(name, None)

    async def compact_stream(self, name: str) -> StreamInfo:
        """Ask for a pass as soon as possible; describe the stream with the request noted."""
        host = self.stream(name)
        if self.compactor is None:
            raise ShuttingDown("nothing is compacted at the moment")
        self.compactor.request(host)
        return self.describe(host)

    def stream(self, name: str) -> StreamHost:
        host = self._host(name)
        if host.failure:
            raise StreamUnavailable(f"stream {name} has failed: {host.failure}")
        return host

    def _host(self, name: str) -> StreamHost:
        host = self.hosts.get(name)
        if host is None:
            if name in self.broken and name not in self._deleting:
                raise StreamUnavailable(f"stream {name} could not be opened: {self.broken[name]}")
            raise StreamNotFound(f"there is no stream {name!r}")
        return host

    def describe(self, host: StreamHost) -> StreamInfo:
        compaction = self.compactor.describe(host) if self.compactor is not None else {}
        return describe(host, self.state_of(host), self._warnings(host), compaction)

    def state_of(self, host: StreamHost) -> str:
        if host.failure:
            return "failed"
        if not self._is_attachable(host):
            return "internal"
        wanted = self._subscriptions.get(host.name)
        if not (self.nats_connected and wanted and wanted.confirmed):
            return "detached"
        if host.settings.read_only:
            return "read-only"
        return "paused" if host.settings.paused else "attached"

    @property
    def nats_connected(self) -> bool:
        return self._link is not None and self._link.connected

    @property
    def nats_version(self) -> str:
        """Of the server; empty without a connection."""
        return self._link.server_version if self._link is not None else ""

    def _warnings(self, host: StreamHost) -> list[str]:
        others = {other.name: other.settings for other in self.hosts.values()}
        return rivals(host.name, host.settings, others)

    # --- stop ---

    async def drain(self) -> None:
        """Take no more messages; commit and answer everything that was received."""
        self._closing = True
        if self._link is not None:
            await self._link.drain()
        for host in self.hosts.values():
            host.refuse_new()
        await asyncio.gather(*(host.drained() for host in self.hosts.values()))

    async def close(self) -> None:
        """Close every log; a clean marker is written when all of them closed well."""
        for task in list(self._background):
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        for host in self.hosts.values():
            host.close()
        # Commits that a drain did not wait for end on the loop, before the logs are closed.
        await asyncio.to_thread(self.intake.pool.close)
        await asyncio.to_thread(self._close_logs, list(self.hosts.values()))

    def _close_logs(self, hosts: Iterable[StreamHost]) -> None:
        self.reserve.release()
        states: dict[str, ActiveState] = {}
        started = time.monotonic()
        for host in hosts:
            try:
                write_dedupe_snapshot(host.log, host.sequencer.dedupe)
            except OSError as error:
                logger.warning("dedupe-snapshot-failed stream=%s error=%s", host.name, error)
            state = None if host.failure else host.log.close()
            if state is not None:
                states[host.name] = state
        self._data_dir.close(states)
        logger.info("closed streams=%d seconds=%.2f", len(states), time.monotonic() - started)


_DEFAULTS = StreamSettings.model_construct()


def _stored_settings(name: str, log: Log) -> StreamSettings:
    try:
        return parse_stream_settings(log.metadata["settings"])
    except (KeyError, TypeError) as error:
        raise StreamUnavailable(f"the manifest of stream {name} holds no settings") from error
