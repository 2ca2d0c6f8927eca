"""The daemon: it puts the parts together, runs them and stops cleanly."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import os
import ssl
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

from acl.policy import Policy
from liftlog import __version__
from liftlog.commit import commit
from liftlog.errors import DiskFull, LiftlogError
from liftlog.log import DataDir, LogEnvironment, OsFileSystem, SystemClock
from liftlog.log.data_dir import ADDRESSES_NAME
from liftlog.log.files.acked_end import ACKED_END_NAME, BOOT_ID_UNKNOWN, current_boot_id
from liftlog.log.files.filesystem import private, storage_errors
from liftlog.log.files.shared_descriptors import SharedDescriptors
from liftlog.server.checkpoints.opening import open_checkpoints
from liftlog.server.cleaning.cleaner import Cleaner
from liftlog.server.cleaning.pace import Seen
from liftlog.server.ingest.nats_link import NatsLink
from liftlog.server.ingest.seam import choose_seam
from liftlog.server.late_parts import LateHttp, import_jetstream_api, wait_for_nats
from liftlog.server.life.embedded import DEFAULT_PORT, EmbeddedNats
from liftlog.server.life.health import Health, Phase
from liftlog.server.life.logs import reopen_logs
from liftlog.server.life.reloading import OUTCOME_NAME, Reloads
from liftlog.server.life.service_manager import ServiceManager
from liftlog.server.life.signals import Signals
from liftlog.server.metadata.membership import refuse_node
from liftlog.server.node.clustered import ClusterNode
from liftlog.server.pull import PullServer
from liftlog.server.pull.certificates import load_pull_tls
from liftlog.server.pull.limits import limits_of
from liftlog.server.streams.broker import Broker
from liftlog.server.streams.housekeeping import Housekeeping, keep_house
from liftlog.server.vitals.delays import LoopWatch, SyncTimes
from liftlog.server.vitals.descriptors import Descriptors, raise_open_file_limit, shares_of
from liftlog.server.vitals.disk import DiskProbe, DiskReserve
from liftlog.settings import Settings
from liftlog.settings.checks import cautions
from liftlog.settings.keys import differing_keys
from liftlog.settings.load import load_policy

if TYPE_CHECKING:
    from liftlog.server.http.server import HttpServer

logger = logging.getLogger("liftlog.server")

_SWITCH_INTERVAL_SECONDS = 0.0005
_GC_THRESHOLD = 50_000
_EXIT_OK = 0
_EXIT_NOT_DRAINED = 1


def run(
    settings: Settings,
    *,
    assume_yes: bool = False,
    believe_clock: bool = False,
    load_again: Callable[[], Settings] | None = None,
) -> int:
    """Run the daemon until SIGTERM or SIGINT. Returns the exit code. `load_again` reads the
    settings again from their source, so that SIGHUP can report the changes that need a restart.

    If the daemon cannot start, raises a LiftlogError: ConfigError, DataDirLocked, StorageError.
    """
    # A writer thread that returns from a sync must not wait for the interpreter for 5 ms, which is
    # Python's default.
    sys.setswitchinterval(_SWITCH_INTERVAL_SECONDS)
    manager = ServiceManager.from_environment(os.environ)
    with (
        contextlib.closing(manager),
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        was_displaced = False
        while True:
            daemon = Daemon(settings, load_again, manager=manager, was_displaced=was_displaced)
            code = runner.run(daemon.run(assume_yes, believe_clock))
            was_displaced = daemon.is_displaced
            if not was_displaced or daemon.was_told_to_stop:
                return code
            gc.unfreeze()  # frees the objects of the run that has ended


class Daemon:
    """One run of the daemon, from its start to its end. If another process displaces a run, this
    process starts another run."""

    def __init__(
        self,
        settings: Settings,
        load_again: Callable[[], Settings] | None = None,
        *,
        manager: ServiceManager,
        was_displaced: bool = False,
    ) -> None:
        """If `was_displaced` is true, the previous run ended because another process became the
        same node of the cluster."""
        self.settings = settings
        self.is_displaced = False
        """True if this run has ended because another process runs as this node."""
        self.was_told_to_stop = False
        self._was_displaced = was_displaced
        self._load_again = load_again
        self.reloads = Reloads()
        self._clock = clock = SystemClock()
        self._sync_times = SyncTimes()
        self._shares = shares = shares_of(
            raise_open_file_limit(),
            read_files=settings.log.max_open_files,
            pull=settings.pull.max_connections,
            http=settings.http.max_connections,
        )
        fs = SharedDescriptors(OsFileSystem(), shares.written_files, unsynced=(ACKED_END_NAME,))
        environment = LogEnvironment.create(
            fs,
            clock,
            max_open_files=shares.read_files,
            cached_indexes=settings.log.index_cache_segments,
            synced=self._sync_times.observe,
        )
        self._data_dir = DataDir(Path(settings.data_dir), environment)
        self._loop_watch = LoopWatch()
        self._manager = manager
        self._embedded: EmbeddedNats | None = None
        self._links: list[NatsLink] = []
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._signals = Signals(
            stop=self._told_to_stop,
            hurry=self._hurry.set,
            reload=self.reloads.request,
            reopen_logs=reopen_logs,
        )

    def _told_to_stop(self) -> None:
        self.was_told_to_stop = True
        self._stop.set()

    def _displaced(self) -> None:
        self.is_displaced = True
        self._stop.set()

    async def run(self, assume_yes: bool, believe_clock: bool) -> int:
        self._signals.watch()
        policy = _load_policy(self.settings)
        tls = load_pull_tls(self.settings.pull.tls)
        seam = choose_seam(self.settings.nats.seam)
        logger.info(
            "starting version=%s commit=%s data_dir=%s seam=%s",
            __version__,
            commit() or "unknown",
            self._data_dir.path,
            seam,
        )
        self._report_descriptors()
        if not current_boot_id():
            logger.warning("boot-id-unknown problem=%s advice=%s", *BOOT_ID_UNKNOWN)
        await asyncio.to_thread(self._data_dir.open)
        async with contextlib.AsyncExitStack() as stack:
            watchdog = asyncio.create_task(self._manager.keep_watchdog(), name="watchdog")
            stack.callback(watchdog.cancel)
            broker = self._new_broker()
            stack.push_async_callback(broker.close)
            cluster = await self._join_cluster(stack, broker)
            if self._stop.is_set():
                return _EXIT_OK
            housekeeping = Housekeeping(broker, self._data_dir, broker.hosted.reserve)
            stack.push_async_callback(housekeeping.close)
            cleaner = self._keep_clean(broker)
            nats_servers = await self._nats_servers(stack)
            link = self._new_link(broker, nats_servers, seam)
            stack.push_async_callback(link.close)
            limits = replace(
                limits_of(self.settings.pull), max_connections=self._shares.pull_connections
            )
            pull = PullServer(broker, limits, policy, tls, broker.intake.ingested)
            self._make_reloadable(pull)
            health, http = self._new_health(broker, link, pull, cleaner)
            stack.push_async_callback(http.close)
            if self.settings.http.listen is not None:
                # Opening the streams may take minutes. During this time the daemon is alive, but
                # not ready.
                await http.bind(self.settings.http.listen)
            self._manager.status("recovering the streams")
            if believe_clock:
                broker.clock_guard.confirm()
            await broker.open_streams(assume_yes=assume_yes, is_stopping=self._stop.is_set)
            if self._stop.is_set():
                self._manager.stopping(self.settings.drain_timeout_seconds)
                return _EXIT_OK
            if cluster is None:
                await self._open_checkpoints(broker)
            else:
                cluster.serve_checkpoints(broker, broker.now_ns)
            broker.set_link(link)
            pull_addresses = await pull.start(self.settings.pull.listen)
            health.phase = Phase.SERVING
            _calm_garbage_collector()
            await asyncio.to_thread(broker.hosted.reserve.keep)
            link.start()
            await wait_for_nats(link)
            await self._serve_consumers(stack, broker, pull, health, nats_servers)
            if cluster is not None:
                cluster.start()
            await self._announce(broker.hosted.reserve, pull_addresses, await http.serve())
            gc.freeze()
            await self._serve(housekeeping, broker, cleaner, health)
            return await self._drain(broker, pull, health)

    def _report_descriptors(self) -> None:
        shares, pull = self._shares, self.settings.pull
        logger.info(
            "descriptors limit=%d written_files=%d read_files=%d pull_connections=%d "
            "http_connections=%d",
            shares.limit,
            shares.written_files,
            shares.read_files,
            shares.pull_connections,
            shares.http_connections,
        )
        if shares.pull_connections < pull.max_connections:
            logger.warning(
                "connections-bounded limit=%d max_connections=%d advice=%s",
                shares.limit,
                shares.pull_connections,
                "raise the limit of open files (LimitNOFILE), or lower pull.max_connections",
            )

    def _new_broker(self) -> Broker:
        broker = Broker(self.settings, self._data_dir, self._clock)
        broker.max_connections = self._shares.pull_connections
        broker.hosted.descriptors = descriptors = Descriptors()
        broker.conditions.add(descriptors.conditions)
        return broker

    def _keep_clean(self, broker: Broker) -> Cleaner:
        """Create the objects that compact and scrub streams, and pass them to the broker."""
        broker.hosted.compactor = cleaner = Cleaner(
            broker.hosts,
            broker.now_ns,
            self.settings.cleaner,
            self._data_dir,
            clock_is_trusted=broker.ages_are_judged,
            seen=lambda: self._look(broker),
        )
        return cleaner

    def _new_link(self, broker: Broker, servers: list[str], seam: str) -> NatsLink:
        link = NatsLink(
            self.settings.nats,
            servers,
            seam,
            on_chunk_end=broker.intake.chunk_ended,
            wait_until_ready_to_read=broker.intake.wait_until_ready_to_read,
            reading_is_held=broker.intake.reading_is_held,
            stood_still_seconds=self._loop_watch.stood_still_seconds,
        )
        self._links.append(link)
        return link

    async def _join_cluster(
        self, stack: contextlib.AsyncExitStack, broker: Broker
    ) -> ClusterNode | None:
        """Join the cluster. Returns None if the settings have no section `cluster`. A request to
        stop the daemon ends the attempt, because the metadata store may be unreachable for a long
        time."""
        if self.settings.cluster is None:
            await asyncio.to_thread(refuse_node, self._data_dir)
            return None
        node = ClusterNode(
            self.settings,
            self.settings.cluster,
            self._data_dir,
            was_displaced=self._was_displaced,
            on_displaced=self._displaced,
        )
        stack.push_async_callback(node.close)
        self._manager.status("joining the cluster")
        joining = asyncio.ensure_future(node.join(broker))
        stopping = asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait((joining, stopping), return_when=asyncio.FIRST_COMPLETED)
            if joining.done():
                joining.result()
        finally:
            for task in (joining, stopping):
                task.cancel()
            await asyncio.gather(joining, stopping, return_exceptions=True)
        return node

    def _look(self, broker: Broker) -> Seen:
        return Seen(
            at=time.monotonic(),
            received_bytes=broker.intake.ingested().size_bytes,
            syncs=self._sync_times.count,
            is_committing=any(host.turns.is_taken for host in broker.hosts.values()),
            cpu_seconds=time.process_time(),
        )

    def _make_reloadable(self, pull: PullServer) -> None:
        """Register the parts that SIGHUP reads again."""
        with storage_errors(f"removing {OUTCOME_NAME}"):
            self.reloads.tell_in(self._data_dir.path)
        self.reloads.add("nats", lambda: None, lambda nothing: self._ask_again())
        if self.settings.acl.file is not None:
            self.reloads.add("acl", lambda: _load_policy(self.settings), pull.set_policy)
        if self.settings.pull.tls.cert is not None:
            self.reloads.add("tls", self._load_tls, pull.set_tls)
        if self._load_again is not None:
            self.reloads.add("settings", self._load_again, self._compare_settings)

    def _ask_again(self) -> None:
        for link in self._links:
            link.ask_again()

    def _compare_settings(self, written: Settings) -> None:
        """Report the settings that have changed in their source since the start. These changes need
        a restart."""
        self.reloads.restart_needed = differing_keys(self.settings, written)
        if self.reloads.restart_needed:
            logger.warning("restart-needed changed=%s", ",".join(self.reloads.restart_needed))

    def _load_tls(self) -> ssl.SSLContext:
        context = load_pull_tls(self.settings.pull.tls)
        assert context is not None, "a certificate is configured"
        return context

    async def _serve_consumers(
        self,
        stack: contextlib.AsyncExitStack,
        broker: Broker,
        pull: PullServer,
        health: Health,
        servers: list[str],
    ) -> None:
        """Serve the JetStream API. If it is not configured, serve only the consumers with acks."""
        if self.settings.nats.jetstream_api:
            make_api = await import_jetstream_api()
            seam = choose_seam(self.settings.nats.seam)
            api = health.jetstream_api = make_api(broker, servers, seam, pull.services)
            stack.push_async_callback(api.close)
            self._links.append(api.link)
            api.start()
            return
        from liftlog.server.jetstream_api.workers.without_nats import ConsumersWithoutNats

        consumers = ConsumersWithoutNats(broker, pull.services)
        stack.push_async_callback(consumers.close)
        consumers.start()

    def _new_health(
        self, broker: Broker, link: NatsLink, pull: PullServer, cleaner: Cleaner
    ) -> tuple[Health, LateHttp]:
        disk = DiskProbe(self._data_dir.path)
        watch, cluster = self._loop_watch, self.settings.cluster
        health = Health(
            broker,
            link,
            disk,
            self.reloads,
            lambda: watch.last_lag_seconds,
            ready_after_seconds=cluster.ready_after_seconds if cluster is not None else 0.0,
        )

        def make_http() -> HttpServer:
            from liftlog.server.http_port import make_http_server, sources_of

            parts = (broker, link, pull, cleaner, health, disk, self.reloads, watch)
            limit = self._shares.http_connections
            sources = sources_of(*parts, self._sync_times, self.settings.http, limit)
            return make_http_server(self.settings, sources)

        return health, LateHttp(make_http)

    async def _serve(
        self, housekeeping: Housekeeping, broker: Broker, cleaner: Cleaner, health: Health
    ) -> None:
        """Run until the daemon is asked to stop."""
        self._manager.ready(self._serving_status(broker))
        async with asyncio.TaskGroup() as group:
            work = {
                "housekeeping": keep_house(housekeeping, broker),
                "cleaner": cleaner.run(),
                "loop-watch": self._loop_watch.run(),
                "reloads": self.reloads.serve_requests(
                    before=self._manager.reloading,
                    after=lambda: self._manager.ready(self._serving_status(broker)),
                ),
            }
            if broker.hosted.mender is not None:
                work["mender"] = broker.hosted.mender.run()
            if self._embedded is not None:
                work["embedded-nats"] = self._embedded.keep_running()
            keepers = [group.create_task(one, name=name) for name, one in work.items()]
            await self._stop.wait()
            health.phase = Phase.DRAINING
            if self.is_displaced:
                self._manager.status("another process runs as this node of the cluster")
            else:
                self._manager.stopping(self.settings.drain_timeout_seconds)
            for keeper in keepers:
                keeper.cancel()

    def _serving_status(self, broker: Broker) -> str:
        failed = broker.failed_streams()
        count = len(broker.hosts)
        text = "serving 1 stream" if count == 1 else f"serving {count} streams"
        return f"{text}, {len(failed)} have failed" if failed else text

    async def _nats_servers(self, stack: contextlib.AsyncExitStack) -> list[str]:
        if not self.settings.nats.embedded:
            return list(self.settings.nats.servers)
        self._embedded = embedded = EmbeddedNats(
            self._data_dir.path / "nats", wanted_port=DEFAULT_PORT
        )
        url = await embedded.start()
        stack.push_async_callback(embedded.stop)
        logger.info("embedded-nats url=%s jetstream=%s", url, "off")
        return [url]

    async def _announce(self, reserve: DiskReserve, pull: list[str], http: str | None) -> None:
        """Write the addresses to the log. Also write them to a file, for programs that started the
        daemon with port 0. If the disk is full, the file uses the space of the reserve."""
        try:
            self._write_addresses(pull, http)
        except DiskFull:
            async with reserve.lent():
                self._write_addresses(pull, http)
        logger.info("listening pull=%s http=%s", ",".join(pull), http)

    def _write_addresses(self, pull: list[str], http: str | None) -> None:
        path = self._data_dir.path / ADDRESSES_NAME
        temporary = path.with_suffix(".tmp")
        with storage_errors(f"writing {path}"):
            with open(temporary, "w", opener=private) as file:
                json.dump({"pull": pull, "http": http}, file)
            temporary.replace(path)

    async def _open_checkpoints(self, broker: Broker) -> None:
        """Open the stream of checkpoints. If this fails, the daemon still stores and serves
        streams, but without checkpoints."""
        try:
            broker.serve_checkpoints(await open_checkpoints(broker, broker.now_ns))
        except LiftlogError as error:
            logger.error("checkpoints-not-opened error=%s", error)  # noqa: TRY400

    # --- the end ---

    async def _drain(self, broker: Broker, pull: PullServer, health: Health) -> int:
        """Stop the intake, commit, ack and close. Returns the exit code. The exit stack closes all
        other parts, in its order."""
        code = _EXIT_OK
        try:
            async with asyncio.timeout(self.settings.drain_timeout_seconds):
                await broker.drain(self._hurry)
        except TimeoutError:
            logger.error("drain-timed-out seconds=%s", self.settings.drain_timeout_seconds)  # noqa: TRY400
            code = _EXIT_NOT_DRAINED
        if health.jetstream_api is not None:
            await health.jetstream_api.close()  # the API's consumers read with threads of `pull`
        await pull.close(0.5)
        with contextlib.suppress(OSError):
            (self._data_dir.path / ADDRESSES_NAME).unlink()
        self.reloads.close()
        logger.info("drained code=%d", code)
        return code


def _calm_garbage_collector() -> None:
    """Prevent garbage collections during commits. The objects that exist now stay until the end,
    and messages create no reference cycles. So a collection after every 700 new objects would only
    scan the same heap again and again. No collection runs here: it would take a tenth of the start,
    and find little."""
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD)


def _load_policy(settings: Settings) -> Policy | None:
    policy = None if settings.acl.file is None else load_policy(settings.acl.file)
    for one in cautions(settings, policy):
        logger.warning(
            "caution setting=%s problem=%s advice=%s", one.setting, one.problem, one.advice
        )
    return policy
