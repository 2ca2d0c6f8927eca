"""Periodic housekeeping: rolls, retention, recovery points, old checkpoints.

A few streams are processed at a time, and a stream whose disk stalls does not delay the others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from compaction import RetentionDecision
from liftlog.errors import DiskFull, LiftlogError
from liftlog.log import DataDir
from liftlog.log.segment.tail import ActiveState
from liftlog.server.checkpoints.expiring import expire, restamp_ahead
from liftlog.server.commits.host import StreamHost
from liftlog.server.replication.log_start import follow_log_start
from liftlog.server.streams.broker import Broker
from liftlog.server.streams.retention import decide_retention, remove_decided
from liftlog.server.vitals.clock_guard import STEP_NS
from liftlog.server.vitals.disk import DiskReserve
from liftlog.settings import StreamSettings

logger = logging.getLogger("liftlog.server")

_DECIDERS = 4


class Housekeeping:
    """Runs the periodic work on the event loop; log calls and decisions run in threads.

    If a stream takes longer than `patience_seconds`, its place is given to the next stream.
    """

    def __init__(
        self,
        broker: Broker,
        data_dir: DataDir,
        reserve: DiskReserve,
        *,
        patience_seconds: float = 1.0,
    ) -> None:
        self._broker = broker
        self._data_dir = data_dir
        self._reserve = reserve
        # Retention has its own threads, because a decision may read from a disk that stalls.
        self._deciders = ThreadPoolExecutor(_DECIDERS, "liftlog-retention")
        self._retention = SideBySide("retention", patience_seconds=patience_seconds)
        self._recovery_points = SideBySide("recovery-point", patience_seconds=patience_seconds)
        self._states: dict[StreamHost, ActiveState] = {}

    async def close(self) -> None:
        await self._retention.close()
        await self._recovery_points.close()
        self._deciders.shutdown(wait=False, cancel_futures=True)

    # --- retention ---

    async def apply_retention(self, *, by_time: bool) -> None:
        """Roll idle segments that are too old, then delete records that exceed the limits."""
        hosts = [host for host in self._broker.hosts.values() if _may_be_due(host)]
        await self._retention.run(hosts, partial(self._retain_or_make_room, by_time=by_time))

    async def _retain_or_make_room(self, host: StreamHost, *, by_time: bool) -> None:
        try:
            await self._retain(host, by_time=by_time)
        except DiskFull:
            await asyncio.get_running_loop().run_in_executor(
                self._deciders, host.log.leases.void, "the disk is full"
            )
            # A deletion first needs a little space for the new manifest.
            async with self._reserve.lent():
                await self._retain(host, by_time=by_time, at_once=True)

    async def _retain(self, host: StreamHost, *, by_time: bool, at_once: bool = False) -> None:
        """Apply retention to one stream. If `at_once` is true, files are deleted even while a
        compaction pass reads them. The pass then starts again."""
        if host.log.writer.is_roll_due():
            await host.run_exclusive(host.log.writer.roll_if_due)
        settings = host.settings
        # The stream's leader decides, and the log start on this node follows.
        if not host.is_leading:
            log, now_ns = host.log, self._broker.now_ns()
            oldest = log.segments[0]
            if oldest.size_bytes and oldest.next_offset <= log.log_start_offset:
                await host.exclusively(
                    lambda: follow_log_start(log, log.log_start_offset, settings, now_ns)
                )
            return
        # The time is read first, so that the next check also covers the time of the read.
        now_ns = self._broker.now_ns()
        by_time = by_time and self._broker.ages_are_judged()
        decision = await asyncio.get_running_loop().run_in_executor(
            self._deciders,
            lambda: self._decide(host, settings, now_ns, by_time=by_time),
        )
        if decision is None:
            return
        # A compaction pass takes long. If its sources were deleted each time, it would never
        # finish.
        count = 0 if host.rewriting and not at_once else decision.delete_segments
        if not count and decision.log_start_offset <= host.log.log_start_offset:
            return

        def remove() -> int | None:
            # Settings change only in exclusive calls, so they cannot change while this call runs.
            if host.settings is not settings:
                return None  # the decision used the old settings; the next round uses the new ones
            return remove_decided(host.log, decision, self._broker.now_ns(), delete_segments=count)

        freed = await host.run_exclusive(remove)
        if freed is None:
            return
        logger.info(
            "retention stream=%s log_start=%d deleted_segments=%d freed_bytes=%s",
            host.name,
            decision.log_start_offset,
            count,
            freed,
        )

    def _decide(
        self, host: StreamHost, settings: StreamSettings, now_ns: int, *, by_time: bool
    ) -> RetentionDecision | None:
        """Decide which records to delete. Runs in a thread. If the disk is full, ends the leases,
        because publishers have priority over readers."""
        if self._reserve.is_disk_full():
            host.log.leases.void("the disk is full")
        return decide_retention(host.log, settings, now_ns, by_time=by_time)

    # --- recovery points ---

    async def save_recovery_points(self) -> None:
        """Store the durable end of each stream, so that a recovery has to scan only a little."""
        changed = [
            host for host in self._broker.hosts.values() if not host.failure and host.has_moved
        ]
        await self._recovery_points.run(changed, self._take_recovery_point)
        # The states of streams that stalled in an earlier round are included.
        states, self._states = self._states, {}
        if states:
            try:
                await self._write(states)
            except LiftlogError as error:
                logger.warning("recovery-points-not-written error=%s", error)

    async def _take_recovery_point(self, host: StreamHost) -> None:
        state = await host.run_exclusive(host.log.checkpoint)
        assert isinstance(state, ActiveState)
        self._states[host] = state

    async def _write(self, states: Mapping[StreamHost, ActiveState]) -> None:
        async with self._broker.hosted.changes:  # a deletion changes the same table
            hosts = self._broker.hosts
            known = {h: state for h, state in states.items() if hosts.get(h.name) is h}
            write: Callable[[dict[str, ActiveState]], None] = self._data_dir.write_recovery_points
            await asyncio.to_thread(write, {h.name: state for h, state in known.items()})
            for host, state in known.items():
                host.recovery_point_saved(state.next_offset)


def _may_be_due(host: StreamHost) -> bool:
    """Return True if the stream may need work. Because of this check, idle streams cost little."""
    if host.failure:
        return False
    log, limits = host.log, host.settings.retention
    if limits.max_age_seconds or limits.max_bytes or limits.max_messages:
        return True
    # Retention must read the leases first, and compaction waits for this.
    if not log.leases.are_known:
        return True
    # Files below the log start may be kept until the dedupe window or a lease ends.
    return log.writer.is_roll_due() or log.segments[0].next_offset <= log.log_start_offset


# --- a few streams at a time ---


class SideBySide:
    """Does one kind of work for many streams, at most once at a time for each stream.

    At most `at_once` streams have a place. If the work of a stream takes longer than
    `patience_seconds`, its place is given to the next stream. The work then continues, and later
    rounds skip the stream until the work is done.
    """

    def __init__(self, what: str, *, at_once: int = 2, patience_seconds: float = 1.0) -> None:
        self._what = what
        self._at_once = at_once
        self._patience_seconds = patience_seconds
        self._running: dict[StreamHost, asyncio.Task[None]] = {}

    @property
    def stalled(self) -> int:
        """Number of streams whose work still runs after the last round."""
        return len(self._running)

    async def run(
        self,
        hosts: Iterable[StreamHost],
        work: Callable[[StreamHost], Coroutine[Any, Any, None]],
    ) -> None:
        """Do `work` for each stream. Waits until the work of every stream has ended or has stalled.
        Errors are logged."""
        places = asyncio.Semaphore(self._at_once)

        async def take_turn(host: StreamHost) -> None:
            async with places:
                task = asyncio.get_running_loop().create_task(self._supervise(host, work))
                self._running[host] = task
                done, _ = await asyncio.wait({task}, timeout=self._patience_seconds)
                if not done:
                    logger.warning(f"{self._what}-stalled stream=%s", host.name)

        free = [host for host in hosts if host not in self._running]
        await asyncio.gather(*map(take_turn, free))

    async def _supervise(
        self, host: StreamHost, work: Callable[[StreamHost], Coroutine[Any, Any, None]]
    ) -> None:
        try:
            await work(host)
        except LiftlogError as error:
            logger.warning(f"{self._what}-failed stream=%s error=%s", host.name, error)
        except Exception:  # a supervisor: housekeeping must not end the daemon
            logger.exception(f"{self._what}-failed stream=%s", host.name)
        finally:
            del self._running[host]

    async def close(self) -> None:
        """Cancel the running work. Log calls that a thread has begun run to their end."""
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def keep_house(housekeeping: Housekeeping, broker: Broker) -> None:
    """Run retention, rolls, recovery points and the expiry of old checkpoints until cancelled."""

    async def retention() -> None:
        await broker.clock_keeper.look()
        await housekeeping.apply_retention(by_time=broker.ages_are_judged())

    async def expiry() -> None:
        await expire_unused(broker)

    log = broker.settings.log
    async with asyncio.TaskGroup() as group:
        group.create_task(_every(log.retention_interval_seconds, retention))
        group.create_task(
            _every(log.recovery_checkpoint_interval_seconds, housekeeping.save_recovery_points)
        )
        group.create_task(_every(log.retention_interval_seconds, expiry))


async def expire_unused(broker: Broker) -> None:
    """Delete the checkpoints that were not used for the time in the settings, unless the clock is
    in doubt."""
    seconds = broker.settings.checkpoints.expire_after_seconds
    if seconds is None or not broker.has_checkpoints or not broker.ages_are_judged():
        return
    now_ns = broker.now_ns()
    await restamp_ahead(broker.checkpoints, now_ns + STEP_NS)
    before_ns = now_ns - int(seconds * 1_000_000_000)
    # If a jump ahead was trusted, the clock was behind before it. Checkpoints from before the jump
    # count as stored at the moment of the jump.
    if broker.clock_guard.believed_ns < before_ns:
        await expire_checkpoints(broker, before_ns)


async def expire_checkpoints(broker: Broker, before_ns: int) -> int:
    """Delete old checkpoints; see `expire`. In a cluster, asks the leader of a stream if this node
    has no copy of the stream."""
    return await expire(
        broker.checkpoints,
        broker.readable_stream,
        before_ns,
        elsewhere=broker.catalog.first_since,
    )


async def _every(seconds: float, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Repeat `work`. A failure is logged and does not stop the repetition."""
    while True:
        await asyncio.sleep(seconds)
        try:
            await work()
        except Exception:  # a supervisor: housekeeping must not end the daemon
            logger.exception("housekeeping-failed work=%s", work.__name__)
