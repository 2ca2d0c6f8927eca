"""Selects the next cleaning job; one job runs at a time.

A round first compacts the streams that are due, the dirtiest first. Then re-batching, sketching and
scrubbing each get a share of the time. Requested passes precede all others.

If the keys of a stream do not fit into memory, its compaction takes several passes. After some time
the turn of such a stream ends, and the next stream follows. The next round continues its
compaction. So no stream delays other streams for long. A failed job affects only its own stream:
the cleaner skips that stream for a time that grows with each failure.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from liftlog.errors import InvalidArgument, LiftlogError, SegmentsChanged, StorageError
from liftlog.log import DataDir
from liftlog.log.erased import ErasedSet
from liftlog.log.segment.segment import Segment
from liftlog.server.cleaning.compaction import (
    compaction_of,
    measure_backlog,
    plan_pass,
    policy_of,
    why_idle,
)
from liftlog.server.cleaning.jobs import JobRunner
from liftlog.server.cleaning.next_segments import (
    ScrubSchedule,
    SmallBatches,
    Unsketched,
    erased_job,
)
from liftlog.server.cleaning.pace import IdleWatch, Seen
from liftlog.server.cleaning.process import JobFailed, Worker, WorkerDied
from liftlog.server.cleaning.removing import Removals
from liftlog.server.cleaning.state import StreamCleaning
from liftlog.server.commits.host import StreamHost
from liftlog.settings import CleanerSettings

logger = logging.getLogger("liftlog.server.cleaner")

_SECOND_NS = 1_000_000_000
_MAX_DROPPED_PASSES = 3
_MAX_SCRUB_ATTEMPTS = 3  # after that, the scrub goes on with the next segment
_LOOKING_PART = 200
"""Divisor: checks of a stream may take at most 1/200 of the time. The limit exists because a check
takes longer if the stream has more segments."""


class Cleaner:
    """Runs the cleaning of all streams. Belongs to the event loop. `run` does the work; the other
    methods may be called while it runs.

    `hosts` contains the streams of the daemon. `now_ns` returns the time from which ages are
    computed. `seen` measures the daemon's own work. It is called often while a job runs, and its
    result determines the rate of the job. Without `seen` the daemon counts as busy.
    """

    def __init__(
        self,
        hosts: Mapping[str, StreamHost],
        now_ns: Callable[[], int],
        settings: CleanerSettings,
        data_dir: DataDir,
        worker: Worker | None = None,
        *,
        clock_is_trusted: Callable[[], bool] = lambda: True,
        seen: Callable[[], Seen] | None = None,
    ) -> None:
        self._hosts = hosts
        self._now_ns = now_ns
        self._clock_is_trusted = clock_is_trusted
        self._settings = settings
        self._worker = worker or Worker(daemon_is_idle=_idleness(seen))
        self._jobs = JobRunner(settings, self._worker)
        self._states: dict[StreamHost, StreamCleaning] = {}
        self._small: dict[StreamHost, SmallBatches] = {}
        self._unsketched: dict[StreamHost, Unsketched] = {}
        self._scrubs: ScrubSchedule | None = None
        if settings.scrub_interval_seconds is not None:
            self._scrubs = ScrubSchedule(
                data_dir.environment.fs,
                data_dir.path,
                int(settings.scrub_interval_seconds * _SECOND_NS),
            )
        self.removals = Removals(self._jobs, now_ns)
        self._poke = asyncio.Event()
        self._current: tuple[StreamHost, asyncio.Task[bool]] | None = None

    # --- for the rest of the daemon ---

    def state_of(self, host: StreamHost) -> StreamCleaning:
        return self._states.setdefault(host, StreamCleaning())

    @property
    def is_working(self) -> bool:
        return self._current is not None

    @property
    def is_at_idle_rate(self) -> bool:
        """True if the running job uses a higher rate because the daemon is idle."""
        return self._worker.has_grant

    def describe(self, host: StreamHost) -> dict[str, Any]:
        """Return the field `compaction` of `StreamInfo`."""
        state = self.state_of(host)
        enabled = compaction_of(host.settings) is not None
        reason = ""
        if enabled:
            now_ns = self._now_ns()
            state.backlog = measure_backlog(host.log, host.settings, now_ns)
            reason = self._why_idle(host, state, now_ns)
        return state.to_info(host.log, enabled=enabled, now=time.monotonic(), reason=reason)

    def _why_idle(self, host: StreamHost, state: StreamCleaning, now_ns: int) -> str:
        if host.failure:
            return "the stream has failed"
        if not self._clock_is_trusted():
            return "the clock has jumped, so ages are not judged until it is trusted again"
        try:
            return why_idle(
                host.log, host.settings, state.backlog, now_ns, on_demand=state.is_requested
            )
        except StorageError as error:
            return f"the leases of the stream cannot be read: {error.message}"

    def failures(self) -> dict[str, str]:
        """Return a sentence for each stream whose last job failed: the error, and the number of
        failures in a row."""
        found = {}
        for host, state in self._states.items():
            if state.failures_in_a_row and self._hosts.get(host.name) is host:
                times = state.failures_in_a_row
                again = max(0.0, state.not_before - time.monotonic())
                found[host.name] = (
                    f"{state.failed_kind} failed {'once' if times == 1 else f'{times} times'}, is "
                    f"tried again in {again:.0f} s: {state.error}"
                )
        return found

    def history(self, host: StreamHost) -> list[dict[str, Any]]:
        """Return the results of the most recent passes since the start of the daemon, the newest
        first."""
        return list(self.state_of(host).history)

    def request(self, host: StreamHost) -> None:
        """Compact this stream as soon as possible, regardless of its dirty ratio.

        Raises InvalidArgument when compaction is not enabled for the stream.
        """
        if compaction_of(host.settings) is None:
            raise InvalidArgument(
                f"stream {host.name} has no compaction",
                hint="enable it with `liftlog stream update NAME --set compaction={}`, or in the "
                "configuration file if the stream comes from there",
            )
        state = self.state_of(host)
        state.requested += 1
        state.not_before = 0.0
        self._poke.set()

    def remove_now(self, host: StreamHost, offsets: ErasedSet) -> None:
        """Remove the bytes of these erased records as soon as possible."""
        self.removals.request(host, offsets)
        self.state_of(host).not_before = 0.0
        self._poke.set()

    async def interrupt(self, host: StreamHost) -> None:
        """End the running job of a stream whose settings have changed. When the call returns, the
        job has ended. The next round plans a new job."""
        if self._current is not None and self._current[0] is host:
            task = self._current[1]
            task.cancel()
            await asyncio.wait({task})
        if host in self._states:
            self._states[host].look_again_at = 0.0

    async def forget(self, host: StreamHost) -> None:
        """End all jobs of a stream that is being deleted. When the call returns, no job runs for
        the stream, and none starts later."""
        await self.interrupt(host)
        self._states.pop(host, None)
        self._small.pop(host, None)
        self._unsketched.pop(host, None)
        self.removals.forget(host)

    # --- rounds ---

    async def run(self) -> None:
        """Run until cancelled."""
        try:
            if self._scrubs is not None:
                await self._load_scrubs(self._scrubs)
            await self.removals.recall(list(self._hosts.values()))
            while True:
                if not await self._guarded(self._round()):
                    await self._wait()
        finally:
            await self._jobs.close()

    async def _load_scrubs(self, scrubs: ScrubSchedule) -> None:
        try:
            await self._jobs.in_thread(scrubs.load)
        except LiftlogError as error:  # for example, a file of a newer version: start over
            logger.warning("scrub-rounds-ignored error=%s", error)

    async def _wait(self) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + self._settings.interval_seconds
        while (left := end - loop.time()) > 0:
            try:
                async with asyncio.timeout(left):
                    await self._poke.wait()
            except TimeoutError:
                return
            await self._guarded(self._serve_requests())

    async def _guarded(self, work: Coroutine[Any, Any, bool | None]) -> bool:
        """Run `work`, and return its result. If it fails, log the error and return False. An error
        in cleaning must not end the daemon."""
        try:
            return bool(await work)
        except Exception:  # a supervisor
            logger.exception("cleaning-round-failed")
            return False

    async def _round(self) -> bool:
        """Run one round. Returns True if more work can be done at once."""
        await self._serve_requests()
        for host in self._due():
            await self._work(host, "compact", self._compact(host, on_demand=False))
            await self._serve_requests()
        more = await self._remove_erased()
        more |= await self._rebatch_some()
        if self._settings.sketches:
            more |= await self._sketch_some()
        if self._scrubs is not None:
            more |= await self._scrub_some(self._scrubs)
        return more or self._has_unfinished()

    def _has_unfinished(self) -> bool:
        """Return True if a stream whose turn ended early can continue now."""
        return any(
            state.unfinished
            and self._may_work_on(host)
            and compaction_of(host.settings) is not None
            and (state.is_requested or self._clock_is_trusted())
            for host, state in self._states.items()
        )

    async def _serve_requests(self) -> None:
        self._poke.clear()
        for host in self.removals.requested():
            while self.removals.is_requested(host) and self._may_work_on(host):
                await self._work(host, "rebatch", self.removals.step(host, self.state_of(host)))
        now = time.monotonic()
        for host, state in list(self._states.items()):
            if compaction_of(host.settings) is None:  # compaction was disabled after the request
                state.finished = state.requested
            elif state.is_requested and state.not_before <= now and not host.failure:
                await self._work(host, "compact", self._compact(host, on_demand=True))

    def _may_work_on(self, host: StreamHost) -> bool:
        """Return True if the stream exists, is healthy, and is not skipped after a failure."""
        if self._hosts.get(host.name) is not host or host.failure:
            return False
        return self.state_of(host).not_before <= time.monotonic()

    async def _work(self, host: StreamHost, kind: str, work: Coroutine[Any, Any, None]) -> bool:
        """Run `work` in a separate task, so that a failure or a cancellation ends only this task.
        Returns True if it was successful."""
        if self._hosts.get(host.name) is not host:
            work.close()
            return False
        state = self.state_of(host)
        task = asyncio.get_running_loop().create_task(self._supervise(host, state, kind, work))
        self._current = (host, task)
        state.running = kind
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait({task})
            raise
        finally:
            self._current = None
            state.running = ""
        return not task.cancelled() and task.result()

    async def _supervise(
        self, host: StreamHost, state: StreamCleaning, kind: str, work: Coroutine[Any, Any, None]
    ) -> bool:
        try:
            await work
        except SegmentsChanged as error:  # retention deleted them: the next round plans again
            logger.info("cleaning-dropped stream=%s kind=%s reason=%s", host.name, kind, error)
        except (LiftlogError, JobFailed, WorkerDied, OSError) as error:
            self._note_failure(host, state, kind, str(error))
        except Exception as error:  # a supervisor: cleaning must not end the daemon
            logger.exception("cleaning-failed stream=%s kind=%s", host.name, kind)
            self._note_failure(host, state, kind, repr(error))
        else:
            state.note_success()
            return True
        return False

    def _note_failure(self, host: StreamHost, state: StreamCleaning, kind: str, error: str) -> None:
        now = time.monotonic()
        seconds = state.note_failure(kind, error, now, self._settings.interval_seconds)
        logger.error(
            "cleaning-failed stream=%s kind=%s again_in_seconds=%.0f error=%s",
            host.name,
            kind,
            seconds,
            error,
        )

    # --- compaction ---

    def _due(self) -> list[StreamHost]:
        """Return the streams to compact, the dirtiest first. Returns no stream while the clock is
        not trusted. After a jump of the clock, new records and tombstones would seem old."""
        found: list[tuple[float, StreamHost]] = []
        if not self._clock_is_trusted():
            return []
        now_ns = self._now_ns()
        for host in self._hosts.values():
            if compaction_of(host.settings) is None or host.failure:
                continue
            state = self.state_of(host)
            started = time.monotonic()
            look_again_at = 0.0 if state.unfinished else state.look_again_at
            if max(state.not_before, look_again_at) > started:
                continue
            plan = plan_pass(
                host.log, host.log.segments, host.settings, now_ns, on_demand=state.unfinished
            )
            if plan is not None:
                state.backlog = plan.backlog
                found.append((plan.backlog.dirty_ratio, host))
            now = time.monotonic()
            state.look_again_at = now + (now - started) * _LOOKING_PART
        found.sort(key=lambda one: one[0], reverse=True)
        return [host for _, host in found]

    async def _compact(self, host: StreamHost, *, on_demand: bool) -> None:
        """Run passes until the stream is compacted or its turn ends. A pass on demand first rolls
        the active segment."""
        state, log = self.state_of(host), host.log
        wanted = state.requested
        forced = on_demand or state.unfinished
        state.unfinished = False
        if on_demand and state.rolled < wanted:
            await host.run_exclusive(log.writer.roll)
            state.rolled = wanted
        turn_ends = time.monotonic() + self._settings.interval_seconds
        dropped = 0
        while compaction_of(host.settings) is not None:
            is_doubted = not self._clock_is_trusted()
            if is_doubted and policy_of(host.settings).min_lag_ns:
                break  # without a trusted clock, it is unknown which records are old enough
            now_ns, segments = self._now_ns(), log.segments
            plan = plan_pass(
                log,
                segments,
                host.settings,
                now_ns,
                on_demand=forced,
                keep_tombstones=is_doubted,
            )
            if plan is None:
                break
            cleaned_below = log.view.manifest.cleaned_below
            try:
                if await self._jobs.compact(host, state, segments, plan, self._now_ns):
                    break
            except SegmentsChanged:  # retention or truncation removed the segments
                dropped += 1
                if dropped == _MAX_DROPPED_PASSES:
                    raise
                continue
            if log.view.manifest.cleaned_below <= cleaned_below:
                raise StorageError("a pass made no progress")
            if time.monotonic() >= turn_ends:
                state.unfinished = True
                return
            forced = True  # the pass ran out of memory: its remaining work is due
        if on_demand:
            state.finished = wanted

    # --- erased records, re-batching and scrubbing ---

    async def _remove_erased(self) -> bool:
        """Rewrite segments without their erased records, for about as long as the pause between
        rounds. Returns True if work remains. Does nothing while the clock is not trusted, because
        message ids would seem old."""
        end = time.monotonic() + self._settings.interval_seconds
        for host in list(self._hosts.values()) if self._clock_is_trusted() else ():
            while self._may_work_on(host):
                job = erased_job(host.log, host.settings, self._now_ns())
                if job is None:
                    break
                if time.monotonic() > end:
                    return True
                await self._work(
                    host, "rebatch", self._jobs.rebatch(host, self.state_of(host), job)
                )
                await self._serve_requests()
        return False

    async def _rebatch_some(self) -> bool:
        """Re-batch for about as long as the pause between rounds. Returns True if work remains."""
        end = time.monotonic() + self._settings.interval_seconds
        for host in list(self._hosts.values()):
            while self._may_work_on(host):
                small = self._small.setdefault(host, SmallBatches())
                candidates = small.candidates(host.log, host.settings, self._now_ns())
                if not candidates:
                    break
                if time.monotonic() > end:
                    return True
                await self._work(host, "rebatch", self._rebatch(host, small, candidates))
                await self._serve_requests()
        return False

    async def _rebatch(
        self, host: StreamHost, small: SmallBatches, candidates: Sequence[Segment]
    ) -> None:
        compression = host.settings.compression
        job = await self._jobs.in_thread(lambda: small.find(host.log, candidates, compression))
        if job is None:
            return
        try:
            await self._jobs.rebatch(host, self.state_of(host), job)
        except BaseException:
            small.look_again(job.source.file_name)
            raise

    async def _sketch_some(self) -> bool:
        """Create sketches for about as long as the pause between rounds. Returns True if work
        remains."""
        end = time.monotonic() + self._settings.interval_seconds
        for host in list(self._hosts.values()):
            while self._may_work_on(host):
                unsketched = self._unsketched.setdefault(
                    host, Unsketched(with_subjects=self._settings.subject_indexes)
                )
                candidates = unsketched.candidates(host.log)
                if not candidates:
                    break
                if time.monotonic() > end:
                    return True
                await self._work(host, "sketch", self._sketch(host, unsketched, candidates))
                await self._serve_requests()
        return False

    async def _sketch(
        self, host: StreamHost, unsketched: Unsketched, candidates: Sequence[Segment]
    ) -> None:
        job = await self._jobs.in_thread(lambda: unsketched.find(host.log, candidates))
        if job is None:
            return
        try:
            await self._jobs.sketch(host, self.state_of(host), job)
        except BaseException:
            unsketched.look_again(job.source.file_name)
            raise

    async def _scrub_some(self, scrubs: ScrubSchedule) -> bool:
        """Scrub for about as long as the pause between rounds. Returns True if work remains."""
        end = time.monotonic() + self._settings.interval_seconds
        more = False
        for host in list(self._hosts.values()):
            while self._may_work_on(host) and not more:
                job = scrubs.next_job(host.log, self._now_ns())
                if job is None:
                    break
                state = self.state_of(host)
                was_read = await self._work(host, "scrub", self._jobs.scrub(host, state, job))
                if was_read or state.failures_in_a_row >= _MAX_SCRUB_ATTEMPTS:
                    scrubs.done(host.log, job)
                await self._serve_requests()
                more = time.monotonic() > end
        try:
            await self._jobs.in_thread(lambda: scrubs.save(list(self._hosts)))
        except OSError as error:
            logger.warning("scrub-rounds-not-saved error=%s", error)
        return more


def _idleness(seen: Callable[[], Seen] | None) -> Callable[[], bool]:
    if seen is None:
        return lambda: False
    watch = IdleWatch()
    return lambda: watch.look(seen())
