"""The daemon: put the parts together, run, stop cleanly."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import uvloop

from acl import AclError
from acl.policy import Policy
from liftlog import __version__
from liftlog.errors import ConfigError, LiftlogError
from liftlog.log import DataDir, LogEnvironment, OsFileSystem, SystemClock
from liftlog.log.filesystem import storage_errors
from liftlog.protocol.limits import WireLimits
from liftlog.server.broker import Broker
from liftlog.server.checkpoints.expiry import expire
from liftlog.server.checkpoints.opening import open_checkpoints
from liftlog.server.cleaning.cleaner import Cleaner
from liftlog.server.embedded import EmbeddedNats
from liftlog.server.housekeeping import Housekeeping
from liftlog.server.http.assembly import make_http_server
from liftlog.server.ingest.nats_link import NatsLink
from liftlog.server.ingest.seam import choose_seam
from liftlog.server.metrics import make_exposition
from liftlog.server.pull import PullLimits, PullServer
from liftlog.server.pull.certificates import load_pull_tls
from liftlog.settings import Settings

logger = logging.getLogger("liftlog.server")

ADDRESSES_NAME = "addresses.json"
_SWITCH_INTERVAL_SECONDS = 0.0005
_GC_THRESHOLD = 50_000
_EXIT_OK = 0
_EXIT_NOT_DRAINED = 1


def run(settings: Settings, *, assume_yes: bool = False) -> int:
    """Run the daemon until SIGTERM or SIGINT; returns the exit code.

    Raises LiftlogError when it cannot start: ConfigError, DataDirLocked, StorageError.
    """
    # A writer thread that comes back from a sync must not wait 5 ms for the interpreter.
    sys.setswitchinterval(_SWITCH_INTERVAL_SECONDS)
    raise_open_file_limit()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(Daemon(settings).run(assume_yes=assume_yes))


class Daemon:
    """One daemon; `run` is its whole life."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        clock = SystemClock()
        environment = LogEnvironment.create(
            OsFileSystem(),
            clock,
            max_open_files=settings.log.max_open_files,
            cached_indexes=settings.log.index_cache_segments,
        )
        self._clock = clock
        self._data_dir = DataDir(Path(settings.data_dir), environment)
        self._embedded: EmbeddedNats | None = None
        self._draining = False
        self._stop = asyncio.Event()
        self._signals = 0

    async def run(self, *, assume_yes: bool) -> int:
        self._watch_signals()
        policy = _load_policy(self.settings)
        tls = load_pull_tls(self.settings.pull.tls)
        seam = choose_seam(self.settings.nats.seam)
        logger.info(
            "starting version=%s data_dir=%s seam=%s", __version__, self._data_dir.path, seam
        )
        await asyncio.to_thread(self._data_dir.open)
        async with contextlib.AsyncExitStack() as stack:
            broker = Broker(self.settings, self._data_dir, self._clock)
            stack.push_async_callback(broker.close)
            await broker.open_streams(assume_yes=assume_yes)
            await self._open_checkpoints(broker)
            housekeeping = Housekeeping(broker, self._data_dir, broker.reserve)
            stack.push_async_callback(housekeeping.close)
            cleaner = Cleaner(
                broker,
                self.settings.cleaner,
                self._data_dir,
                clock_is_trusted=broker.clock_guard.wall_clock_is_trusted,
            )
            broker.compactor = cleaner
            link = NatsLink(
                self.settings.nats,
                await self._nats_servers(stack),
                seam,
                on_chunk_end=broker.intake.kick_dirty,
                on_gap=broker.on_gap,
                on_state=lambda: None,
                wait_until_ready_to_read=broker.intake.wait_until_ready_to_read,
                reading_is_held=broker.intake.reading_is_held,
            )
            stack.push_async_callback(link.close)
            broker.set_link(link)
            pull = PullServer(broker, _pull_limits(self.settings), policy, tls)
            pull_addresses = await pull.start(self.settings.pull.listen)
            http = make_http_server(
                self.settings,
                readiness=lambda: self._problems(broker, link),
                exposition=make_exposition(broker, link, pull, cleaner),
                broker=broker,
                pull=pull,
                link=link,
            )
            stack.push_async_callback(http.close)
            http_address = None
            if self.settings.http.listen is not None:
                http_address = await http.start(self.settings.http.listen)
            self._announce(pull_addresses, http_address)
            _calm_garbage_collector()
            await broker.keep_disk_reserve()
            link.start()
            async with asyncio.TaskGroup() as group:
                keepers = [
                    group.create_task(self._keep(housekeeping, broker)),
                    group.create_task(cleaner.run()),
                ]
                if self._embedded is not None:
                    keepers.append(group.create_task(self._embedded.keep_running()))
                await self._stop.wait()
                for keeper in keepers:
                    keeper.cancel()
            return await self._drain(broker, pull)

    async def _nats_servers(self, stack: contextlib.AsyncExitStack) -> list[str]:
        if not self.settings.nats.embedded:
            return list(self.settings.nats.servers)
        self._embedded = embedded = EmbeddedNats(self._data_dir.path / "nats")
        url = await embedded.start()
        stack.push_async_callback(embedded.stop)
        logger.info("embedded-nats url=%s", url)
        return [url]

    def _announce(self, pull: list[str], http: str | None) -> None:
        """Tell where we listen: in the log, and in a file for programs that chose port 0."""
        path = self._data_dir.path / ADDRESSES_NAME
        temporary = path.with_suffix(".tmp")
        with storage_errors(f"writing {path}"):
            temporary.write_text(json.dumps({"pull": pull, "http": http}))
            temporary.replace(path)
        logger.info("listening pull=%s http=%s", ",".join(pull), http)

    def _problems(self, broker: Broker, link: NatsLink) -> dict[str, str]:
        problems = {}
        if self._draining:
            problems["draining"] = "the daemon is stopping"
        if not link.connected:
            problems["nats"] = "not connected to NATS"
        elif not broker.attached:
            problems["streams"] = "subscriptions are not yet confirmed by NATS"
        failed = [name for name, host in broker.hosts.items() if host.failure] + list(broker.broken)
        if failed:
            problems["failed_streams"] = ", ".join(sorted(failed))
        return problems

    async def _open_checkpoints(self, broker: Broker) -> None:
        """Without them streams are recorded and read all the same."""
        try:
            broker.serve_checkpoints(await open_checkpoints(broker, self._clock.now_ns))
        except LiftlogError as error:
            logger.error("checkpoints-not-opened error=%s", error)  # noqa: TRY400

    # --- housekeeping ---

    async def _keep(self, housekeeping: Housekeeping, broker: Broker) -> None:
        """Retention, rolls and recovery points, each at its own pace."""
        log, guard = self.settings.log, broker.clock_guard

        async def retention() -> None:
            await housekeeping.apply_retention(by_time=guard.wall_clock_is_trusted())

        async def expiry() -> None:
            seconds = self.settings.checkpoints.expire_after_seconds
            if seconds is not None and broker.has_checkpoints and guard.wall_clock_is_trusted():
                before_ns = broker.now_ns() - int(seconds * 1_000_000_000)
                await expire(broker.checkpoints, broker.stream, before_ns)

        async with asyncio.TaskGroup() as group:
            group.create_task(_every(log.retention_interval_seconds, retention))
            group.create_task(
                _every(log.recovery_checkpoint_interval_seconds, housekeeping.save_recovery_points)
            )
            group.create_task(_every(log.retention_interval_seconds, expiry))

    # --- the end ---

    def _watch_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: signal.Signals) -> None:
        self._signals += 1
        logger.info("signal name=%s", number.name)
        if self._signals > 1 and number == signal.SIGINT:
            # Twice Ctrl-C: at once. What was acked is on disk; the next start recovers.
            logger.warning("stopping-at-once")
            logging.shutdown()
            os._exit(128 + number)
        self._stop.set()

    async def _drain(self, broker: Broker, pull: PullServer) -> int:
        """Stop intake, commit, ack, close. The order of closing is the exit stack's."""
        self._draining = True
        code = _EXIT_OK
        try:
            async with asyncio.timeout(self.settings.drain_timeout_seconds):
                await broker.drain()
        except TimeoutError:
            logger.error("drain-timed-out seconds=%s", self.settings.drain_timeout_seconds)  # noqa: TRY400
            code = _EXIT_NOT_DRAINED
        await pull.close(0.5)
        with contextlib.suppress(OSError):
            (self._data_dir.path / ADDRESSES_NAME).unlink()
        logger.info("drained code=%d", code)
        return code


def raise_open_file_limit() -> None:
    """Up to what the system allows: each stream holds two files open, each connection one, and
    the soft limit of most systems (1024) is meant for programs that use `select`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _calm_garbage_collector() -> None:
    """What was loaded until now stays for good, and messages make no cycles: a collection every 700
    objects would look at the same heap again and again, in the middle of commits."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD)


async def _every(seconds: float, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run `work` again and again; one failure is logged and does not end the others."""
    while True:
        await asyncio.sleep(seconds)
        try:
            await work()
        except Exception:  # a supervisor: housekeeping must not end the daemon
            logger.exception("housekeeping-failed work=%s", work.__name__)


def _load_policy(settings: Settings) -> Policy | None:
    if settings.acl.file is None:
        return None
    try:
        return Policy.load(Path(settings.acl.file).read_text())
    except OSError as error:
        raise ConfigError(f"acl.file: cannot read {settings.acl.file}: {error.strerror}") from error
    except AclError as error:
        raise ConfigError(f"acl.file: {settings.acl.file}: {error}") from error


def _pull_limits(settings: Settings) -> PullLimits:
    pull = settings.pull
    return PullLimits(
        wire=WireLimits(
            max_request_bytes=pull.max_frame_bytes,
            max_in_flight=pull.max_in_flight,
            max_fetch_bytes=pull.max_fetch_bytes,
            max_wait_ms=int(pull.max_wait_seconds * 1000),
        ),
        max_connections=pull.max_connections,
        hello_timeout_seconds=pull.hello_timeout_seconds,
        max_hello_bytes=pull.max_hello_frame_bytes,
        default_fetch_bytes=pull.default_fetch_bytes,
        max_unsent_bytes=pull.max_unsent_bytes,
        max_unsent_memory_bytes=pull.max_unsent_memory_bytes,
        linger_seconds=pull.linger_seconds,
    )
