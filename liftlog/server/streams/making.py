"""Creates hosts of streams: for streams on disk, for streams of the configuration, and for new
streams.

The code runs on the event loop; files are accessed in threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

from liftlog.cluster.record import StreamMetadata
from liftlog.errors import ConfigError, LiftlogError, StreamUnavailable, UnsupportedFormat
from liftlog.log import DataDir, Log, RecoveryReport
from liftlog.log.files.filesystem import storage_errors
from liftlog.names import is_stream_name
from liftlog.records.codecs import codec_named
from liftlog.sequencing import DedupeWindow, Destinations, Sequencer
from liftlog.server.commits.configs import log_config, sequencer_config, window_ns
from liftlog.server.commits.gate import CommitGate
from liftlog.server.commits.host import SYSTEM, Committers, Overrides, StreamHost, new_metadata
from liftlog.server.commits.rollups import restore_rollups
from liftlog.server.commits.subjects import new_table, restore_subjects
from liftlog.server.journal.opening import JOURNAL
from liftlog.server.metadata.records import RECORDS_NAME, StreamRecords
from liftlog.server.streams.attachments import PossibleLosses
from liftlog.server.streams.dedupe_restoring import (
    LearnedIds,
    last_message_id,
    learn_more,
    restore_dedupe,
)
from liftlog.server.streams.description import history_warnings, why_broken
from liftlog.server.streams.neighbours import Neighbours
from liftlog.server.streams.retention import removes_too_much
from liftlog.server.streams.settings import (
    has_new_settings,
    save_metadata,
    stored_settings,
    with_overrides,
)
from liftlog.settings import Settings, StreamSettings
from liftlog.settings.stored import stored_form

logger = logging.getLogger("liftlog.server")

_DEFAULTS = StreamSettings.model_construct()
CREATED_AT_ONCE = 16
"""Number of streams whose files are created at the same time. One disk sync serves many of them."""
_LOADED_AHEAD = 4
"""Number of streams whose files are read at the same time at the start. While one thread waits for
the disk, others decode."""


class StreamMaker:
    """Opens and creates streams. Adds streams to the broker's `hosts` and `broken`, but changes no
    other part of the broker."""

    def __init__(
        self,
        hosts: dict[str, StreamHost],
        broken: dict[str, str],
        settings: Settings,
        data_dir: DataDir,
        *,
        committers: Committers,
        neighbours: Neighbours,
        losses: PossibleLosses,
        records: StreamRecords,
        now_ns: Callable[[], int],
        steady_ns: Callable[[], int],
    ) -> None:
        self._hosts = hosts
        self._broken = broken
        self._settings = settings
        self._data_dir = data_dir
        self._committers = committers
        self._neighbours = neighbours
        self._losses = losses
        self._records = records
        self._now_ns = now_ns
        self._steady_ns = steady_ns
        self._threads = ThreadPoolExecutor(CREATED_AT_ONCE, thread_name_prefix="create")
        self.lost: set[str] = set()
        """Streams whose directories are missing."""

    def close(self) -> None:
        """End the threads. No stream is created afterwards. Blocking."""
        self._threads.shutdown()

    # --- the start ---

    async def open_all(self, *, assume_yes: bool, is_stopping: Callable[[], bool]) -> None:
        """Open and create the streams of the daemon; see `Broker.open_streams`."""
        names = await asyncio.to_thread(self._data_dir.stream_names)
        names = [name for name in names if name != JOURNAL]
        await self._open_each(names, assume_yes, is_stopping)
        await self._create_configured(is_stopping)

    async def _open_each(
        self, names: list[str], assume_yes: bool, is_stopping: Callable[[], bool]
    ) -> None:
        for name in await self._records.load(names):
            self._miss(name)
        now_ns = self._steady_ns()
        loading: deque[asyncio.Task[tuple[LoadedStream, Sequencer]]] = deque()
        left = iter(names)
        try:
            for name in names:
                for later in islice(left, _LOADED_AHEAD - len(loading)):
                    loading.append(asyncio.create_task(self._load(later, now_ns)))
                if is_stopping():
                    return
                await self._open(name, loading.popleft(), assume_yes=assume_yes)
        finally:
            for task in loading:
                await self._drop(task)
        await self._records.store()
        await self._records.hold(names)

    def _miss(self, name: str) -> None:
        """Show a stream as failed because its directory is missing. The stream is not created
        again. Otherwise other messages would get the old offsets."""
        self.lost.add(name)
        if is_stream_name(name):
            gone = f"`liftlog stream delete {name}`; a start creates what is configured"
        else:  # clients cannot change the daemon's own streams
            gone = (
                f"take the file {RECORDS_NAME} away while the daemon is stopped, if all other "
                "streams are there: consumers and groups begin anew"
            )
        path = self._data_dir.stream_path(name)
        self._broken[name] = (
            f"its directory {path} is missing, and this data directory had it: is a file system "
            "not mounted? Mount it or put the directory back, then restart the daemon. If it is "
            f"gone for good, {gone}"
        )
        logger.error("stream-missing stream=%s path=%s", name, path)

    def _doubt(self, name: str) -> None:
        """Show a stream of the configuration as failed: its directory is missing, and it is unknown
        whether the stream ever existed."""
        self._broken[name] = (
            "it is not there, and is not created, since it is not known whether this data "
            f"directory had it: {self._records.problem}. If it is new, or gone for good, "
            f"take {RECORDS_NAME} away and restart the daemon, which writes it again"
        )
        logger.error("stream-not-created stream=%s error=%s", name, self._records.problem)

    async def _open(
        self, name: str, loading: asyncio.Task[tuple[LoadedStream, Sequencer]], *, assume_yes: bool
    ) -> None:
        try:
            found, sequencer = await loading
            host = await self._host_of(found, sequencer)
        except LiftlogError as error:
            self._leave_alone(name, error)
            return
        except Exception as error:  # a supervisor: the other streams are served
            self._broken[name] = f"internal error: {error!r}"
            logger.exception("stream-not-opened stream=%s", name)
            return
        log, report = host.log, found.report
        if host.metadata() != log.view.manifest.metadata:
            if host.origin == "config" and not assume_yes and has_new_settings(host):
                await self._refuse_large_deletion(log, host.settings)
            await save_metadata(host)
        await self._enter_epoch(host, self._records.opened(log, clean=report.clean))
        logger.info(
            "stream-opened stream=%s clean=%s log_start=%d log_end=%d scanned_bytes=%d",
            name,
            report.clean,
            log.log_start_offset,
            log.log_end_offset,
            report.scanned_bytes,
        )
        if log.log_end_offset > host.settings.initial_offset and host.origin != SYSTEM:
            self._losses.note(host, "the daemon was not running")

    async def _enter_epoch(self, host: StreamHost, epoch: int) -> None:
        """Continue in the leader epoch of the metadata record. This epoch equals the epoch of the
        log, unless the directory was restored to an older state."""
        log = host.log
        if epoch <= log.leader_epoch:
            return
        logger.warning("stream-set-back stream=%s leader_epoch=%d", host.name, epoch)
        try:
            await host.run_exclusive(lambda: log.writer.begin_epoch(epoch))
        except LiftlogError as error:
            host.fail(f"its leader epoch cannot be stored: {error}")

    def _leave_alone(self, name: str, error: LiftlogError) -> None:
        self._broken[name] = why_broken(error)
        logger.error("stream-not-opened stream=%s error=%s", name, error)

    async def _load(self, name: str, now_ns: int) -> tuple[LoadedStream, Sequencer]:
        configured = self._settings.streams.get(name)
        destinations = self._neighbours.destinations

        def load() -> tuple[LoadedStream, Sequencer]:
            found = load_stream(self._data_dir, name, configured)
            try:
                return found, make_sequencer(name, found.settings, found.log, destinations, now_ns)
            except Exception:
                found.log.close()
                raise

        return await asyncio.to_thread(load)

    async def _host_of(self, found: LoadedStream, sequencer: Sequencer) -> StreamHost:
        log = found.log
        try:
            return await self.host(
                log.name, found.settings, log, found.origin, found.overrides, sequencer=sequencer
            )
        except Exception:
            await self._close_unserved(log)
            raise

    async def _drop(self, loading: asyncio.Task[tuple[LoadedStream, Sequencer]]) -> None:
        """Close a log that was opened in advance and is not served."""
        try:
            found, _ = await loading
        except Exception:  # the start ends anyway, for another reason  # noqa: BLE001
            return
        await self._close_unserved(found.log)

    async def _close_unserved(self, log: Log) -> None:
        state = await asyncio.to_thread(log.close)
        self._data_dir.keep_clean(log.name, state)

    async def _refuse_large_deletion(self, log: Log, settings: StreamSettings) -> None:
        if await asyncio.to_thread(removes_too_much, log, settings, self._now_ns()):
            raise ConfigError(
                f"streams.{log.name}.retention would delete more than a tenth of the stream at "
                "once",
                hint="start once with --yes if that is what you want",
            )

    async def _create_configured(self, is_stopping: Callable[[], bool]) -> None:
        """Create the missing streams of the configuration file; their metadata records are stored
        with one write."""
        new: dict[str, StreamSettings] = {}
        for name, settings in self._settings.streams.items():
            if name in self._hosts or name in self._broken:
                continue
            try:
                codec_named(settings.compression)
            except UnsupportedFormat as error:
                self._leave_alone(name, error)
            else:
                new[name] = settings
        if not new or is_stopping():
            return
        if self._records.problem:
            for name in new:
                self._doubt(name)
            return
        records = await self._records.create(
            {name: stored_form(settings) for name, settings in new.items()}
        )
        made = []
        for name, settings in new.items():
            if is_stopping():
                break
            await self.create(name, settings, origin="config", record=records[name])
            made.append(name)
        await self._records.hold(made)

    # --- one stream ---

    async def create(
        self,
        name: str,
        settings: StreamSettings,
        *,
        origin: str,
        record: StreamMetadata | None = None,
    ) -> StreamHost:
        """Create a new, empty stream. `record` is the metadata record of the stream, if one is
        already stored. The caller reports the change to the neighbours."""
        metadata, drawn = new_metadata(settings, origin), None
        if record is None:
            record = drawn = self._records.draw(
                name, metadata["settings"], is_system=origin == SYSTEM
            )
        log: Log | None = None
        # Empty as soon as the thread begins, or as soon as this call gives up.
        unclaimed = {name: True}
        claim = partial(unclaimed.pop, name)
        make = partial(self._make, name, settings, metadata, record.incarnation, claim)
        try:
            made = await asyncio.get_running_loop().run_in_executor(self._threads, make)
            log = made[0]
            host = await self.host(name, settings, log, origin, sequencer=made[1])
        except Exception:
            if unclaimed.pop(name, False):
                raise  # nothing was created: files of this name belong to another stream
            # The caller gets an error, so the stream must not exist after the next start.
            if log is not None:
                await asyncio.to_thread(log.close)
            with contextlib.suppress(LiftlogError):
                await self.remove_files(name)
            raise
        if drawn is not None:  # without one, the caller records the stream together with others
            self._records.created(drawn)
        logger.info("stream-created stream=%s subject=%s", name, settings.shown_subjects)
        for warning in self._neighbours.warnings(host):
            logger.warning("stream-warning stream=%s %s", name, warning)
        return host

    def _make(
        self,
        name: str,
        settings: StreamSettings,
        metadata: dict[str, Any],
        incarnation: str,
        claim: Callable[[], object],
    ) -> tuple[Log, Sequencer]:
        """Create the files of a stream, and its sequencer. `claim` is called when the directory is
        known to be missing. It raises KeyError if the caller has given up. Blocking; durable on
        return."""
        with storage_errors(f"creating {name}"):
            exists = self._data_dir.environment.fs.exists(self._data_dir.stream_path(name))
        if exists:
            # The files appeared after the start; a new stream would overwrite them.
            raise StreamUnavailable(
                f"there are files of a stream {name} which this daemon has not opened",
                hint="restart the daemon to serve the stream, or move the files away",
            )
        claim()
        log = self._data_dir.create_log(
            name,
            log_config(settings),
            initial_offset=settings.initial_offset,
            metadata=metadata,
            incarnation=incarnation,
        )
        try:
            return log, make_sequencer(
                name, settings, log, self._neighbours.destinations, self._steady_ns()
            )
        except Exception:
            log.close()
            raise

    async def host(
        self,
        name: str,
        settings: StreamSettings,
        log: Log,
        origin: str,
        overrides: Overrides | None = None,
        *,
        gate: CommitGate | None = None,
        is_leading: bool = True,
        ids: LearnedIds | None = None,
        sequencer: Sequencer | None = None,
    ) -> StreamHost:
        """Create the host of an open log. It replaces the stream's earlier host. `ids` are the
        known message ids of the log. Creates a sequencer if none is given."""
        if sequencer is None:
            sequencer = await asyncio.to_thread(
                make_sequencer,
                name,
                settings,
                log,
                self._neighbours.destinations,
                self._steady_ns(),
                is_leading=is_leading,
                ids=ids,
            )
        before = self._hosts.get(name)
        if before is not None:
            # From here to the end of the function there is no await, so no task can begin to use
            # the log through the old host.
            await before.drained()
        host = StreamHost(
            name,
            settings,
            log,
            sequencer,
            self._committers,
            origin=origin,
            overrides=overrides,
            gate=gate,
            is_leading=is_leading,
        )
        if self._settings.nats.jetstream_api:
            host.newest.expect_count()
        self._hosts[name] = host
        if before is not None:
            before.close()  # readers that wait find the new host
        host.subjects.adopt(settings)
        for warning in history_warnings(settings) if is_leading else ():
            logger.warning("stream-warning stream=%s %s", name, warning)
        return host

    async def remove_files(self, name: str) -> None:
        """Remove the files of a stream that is no longer served. Raises StorageError if they cannot
        be removed; the stream is then shown as failed."""
        # The metadata record is removed before the files. So if the daemon stops between the two
        # steps, a directory without a record remains, and never a record without a directory.
        await self._records.removed(name)
        try:
            await asyncio.to_thread(self._data_dir.delete_log, name)
        except LiftlogError as error:
            if await asyncio.to_thread(self._data_dir.stream_path(name).exists):
                self._broken[name] = f"its deletion failed: {error}"
                raise
            # The directory was already renamed: it is no stream, and a start removes the rest.
            logger.warning("stream-files-left stream=%s error=%s", name, error)
        self._broken.pop(name, None)
        self.lost.discard(name)


# --- reading the files: the parts of a StreamHost. Blocking ---


@dataclass(frozen=True, slots=True)
class LoadedStream:
    """A log that is open, and the content of its manifest."""

    log: Log
    report: RecoveryReport
    settings: StreamSettings
    origin: str
    overrides: Overrides
    """The settings that the API has overridden; see `with_overrides`."""


def load_stream(data_dir: DataDir, name: str, configured: StreamSettings | None) -> LoadedStream:
    """Open the log of a stream and read its settings; `configured` are the settings in the
    configuration file. Raises LiftlogError, without a change of the files; for example
    UnsupportedFormat if the package for the stream's compression is not installed."""
    log, report = data_dir.open_log(name, log_config(configured or _DEFAULTS))
    try:
        overrides: Overrides = {}
        origin = str(log.view.manifest.metadata.get("origin", "api"))
        if configured is not None:
            settings, overrides = with_overrides(
                configured, log.view.manifest.metadata.get("switches")
            )
            origin = "config"
        else:
            settings = stored_settings(name, log)
            if origin == "config":
                origin = "api"  # the stream is no longer in the file, so the API may change it now
        codec_named(settings.compression)
        log.config = log_config(settings)
    except Exception:
        data_dir.keep_clean(name, log.close())
        raise
    return LoadedStream(log, report, settings, origin, overrides)


def make_sequencer(
    name: str,
    settings: StreamSettings,
    log: Log,
    destinations: Destinations,
    now_ns: int,
    *,
    is_leading: bool = True,
    ids: LearnedIds | None = None,
) -> Sequencer:
    """Create a sequencer that continues at the end of the log. Message ids come from a snapshot, or
    are read from the log; if `ids` is given, only from the end of `ids` on. A follower's sequencer
    judges no messages, and needs no ids."""
    known = None if ids is None else learn_more(log, ids, now_ns)
    if known is not None:
        dedupe = known.dedupe
        dedupe.resize(window_ns(settings), settings.dedupe.max_ids)
    else:
        dedupe = DedupeWindow(window_ns(settings), settings.dedupe.max_ids)
        if is_leading:
            restore_dedupe(log, dedupe, now_ns)
    sequencer = Sequencer(
        sequencer_config(name, settings, log),
        dedupe,
        destinations,
        next_offset=log.log_end_offset,
        last_timestamp_ns=log.view.max_timestamp_ns,
        last_message_id=last_message_id(log),
        commit_clock=log.environment.clock.now_ns,
    )
    if is_leading:
        sequencer.subjects = new_table(settings, log, log.log_end_offset)
        restore_rollups(log)
    if sequencer.subjects is not None:
        restore_subjects(log, sequencer.subjects)
    return sequencer
