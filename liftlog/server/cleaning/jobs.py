"""Runs one job for one stream in the worker process. It swaps the result into the log, or cleans up
if the job fails."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from compaction.planning import CompactionPlan
from liftlog.errors import LiftlogError, SegmentsChanged, StorageError
from liftlog.log import Log
from liftlog.log.rewrite import (
    CompactJob,
    CompactResult,
    MendJob,
    MendResult,
    RebatchJob,
    RebatchResult,
    ScrubJob,
    ScrubResult,
    SketchJob,
    apply_compaction,
    apply_mending,
    apply_rebatch,
    leftover_files,
)
from liftlog.log.segment.index import index_path
from liftlog.log.segment.segment import Segment
from liftlog.server.cleaning import worker as kinds
from liftlog.server.cleaning.compaction import compaction_of
from liftlog.server.cleaning.next_segments import job_for
from liftlog.server.cleaning.pace import BUSY_RATE_BYTES, Rates, fixed_rate, rates_of
from liftlog.server.cleaning.process import JobFailed, Worker, WorkerDied
from liftlog.server.cleaning.state import StreamCleaning
from liftlog.server.commits.host import StreamHost
from liftlog.settings import CleanerSettings

logger = logging.getLogger("liftlog.server.cleaner")

_THREADS = 2
_STALL_SECONDS = 10.0
_WAITED_FOR_RATE_BYTES = 4 * BUSY_RATE_BYTES
"""Rate, in bytes per second, of jobs that somebody waits for, while the daemon is busy."""
_SKETCH_RATE_BYTES = BUSY_RATE_BYTES // 4
"""Rate, in bytes per second, of sketching while the daemon is busy. The rate is low because no
reader waits for a sketch."""
_T = TypeVar("_T")


class JobRunner:
    """Runs jobs. It belongs to the event loop; changes of the log run in its own threads.

    Jobs raise LiftlogError, JobFailed and WorkerDied. After each of these errors, and after a
    cancellation, no file of the job is left and no part of the job runs.
    """

    def __init__(self, settings: CleanerSettings, worker: Worker) -> None:
        self._settings = settings
        self._worker = worker
        self._threads = ThreadPoolExecutor(_THREADS, "liftlog-cleaner")

    async def close(self) -> None:
        await self._worker.close()
        self._threads.shutdown(wait=False)

    async def in_thread(self, call: Callable[[], _T]) -> _T:
        """Run `call` in a thread and return its result. Even if the coroutine is cancelled, it
        returns only after `call` has ended, unless the disk stalls."""
        future = asyncio.get_running_loop().run_in_executor(self._threads, call)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.wait({future}, timeout=_STALL_SECONDS)
            future.add_done_callback(_is_of_no_interest)
            raise

    # --- compaction ---

    async def compact(
        self,
        host: StreamHost,
        state: StreamCleaning,
        segments: Sequence[Segment],
        plan: CompactionPlan,
        now_ns: Callable[[], int],
    ) -> bool:
        """Run one pass. Returns True if the pass has done all the work that was planned for
        `segments`."""
        log, started, planned_ns = host.log, time.monotonic(), now_ns()
        view = log.view
        lineage, sources = view.manifest.lineage, segments[: plan.sources]
        hidden = view.erased
        if hidden is not None:
            hidden = hidden.within(sources[0].base_offset, sources[-1].next_offset)
        job = CompactJob(
            str(log.directory),
            plan,
            tuple(segment.entry() for segment in sources),
            log_start_offset=log.log_start_offset,
            memory_bytes=self._settings.memory_bytes,
            compression=host.settings.compression,
            epochs=view.manifest.epochs,
            incarnation=log.incarnation,
            erased=hidden.to_plain() if hidden is not None else (),
        )
        logger.info(
            "compaction-started stream=%s segments=%d dirty_from=%d dirty_end=%d reasons=%s",
            host.name,
            plan.sources,
            plan.dirty_from,
            plan.dirty_end,
            "; ".join(plan.reasons),
        )
        compaction = compaction_of(host.settings)
        own_rate = None if compaction is None else compaction.max_rate_bytes
        rates = rates_of(self._settings.max_rate_bytes, own_rate)
        with host.compacting():
            answer = await self._run(kinds.COMPACT, job, host, state, rates)
            result = CompactResult.from_dict(answer)
            freed = await self._swap_in(host, job, result, lineage, now_ns)
        seconds = time.monotonic() - started
        removed = result.records_in - result.records_out
        if removed:
            host.subjects.request()
        state.note_pass(plan, result, freed, time_ns=planned_ns, seconds=seconds)
        logger.info(
            "compacted stream=%s records_removed=%d freed_bytes=%d cleaned_below=%d keys=%d "
            "complete=%s seconds=%.2f",
            host.name,
            removed,
            freed,
            log.view.manifest.cleaned_below,
            result.distinct_keys,
            result.complete,
            seconds,
        )
        return result.complete

    async def _swap_in(
        self,
        host: StreamHost,
        job: CompactJob,
        result: CompactResult,
        lineage: str,
        now_ns: Callable[[], int],
    ) -> int:
        log = host.log
        try:
            if result.tombstones_removed_below:
                # This is one exclusive call, so that no lease is granted between the check and the
                # write. If the pass is cancelled now, the manifest may still be written. It then
                # states that tombstones were removed although they still exist. An export then
                # starts over; no record is lost.
                await host.run_exclusive(lambda: _announce_removal(log, result, now_ns()))
            return await self.in_thread(lambda: apply_compaction(log, result, lineage, job.erased))
        except BaseException:
            # No swap is running now, because `in_thread` returns only after its call has ended,
            # even if it is cancelled. Completed swaps stay: `_discard` keeps their files, and the
            # next pass does the remaining work. If the disk stalls, a swap may still be running.
            # The log refuses to discard a file that it lists.
            await self.in_thread(lambda: _discard(log, result.new_files))
            raise

    # --- re-batching ---

    async def rebatch(
        self, host: StreamHost, state: StreamCleaning, job: RebatchJob, *, hurries: bool = False
    ) -> None:
        """Rewrite one segment. `hurries` is True if a client waits for the rewrite; the job then
        has a higher rate."""
        log, lineage = host.log, host.log.view.manifest.lineage
        rates = self._rates_for_waiting() if hurries else rates_of(self._settings.max_rate_bytes)
        answer = await self._run(kinds.REBATCH, job, host, state, rates)
        result = RebatchResult.from_dict(answer)
        if not result.swaps:
            return
        try:
            await self.in_thread(lambda: apply_rebatch(log, result, lineage, job.erased))
        except BaseException:
            await self.in_thread(lambda: _discard(log, result.new_files))
            raise
        if job.erased and host.subjects.is_scanning:
            # After the rewrite, the table of subjects can no longer detect which of its records are
            # erased.
            host.subjects.request()
        state.rebatched_segments += 1
        logger.info(
            "rebatched stream=%s segment=%s batches_in=%d batches_out=%d",
            host.name,
            job.source.file_name,
            result.batches_in,
            result.batches_out,
        )

    # --- repairs ---

    async def mend(
        self, host: StreamHost, state: StreamCleaning, job: MendJob, lineage: str
    ) -> int:
        """Rewrite a damaged segment. Returns the number of ranges that are readable again.
        `lineage` is the lineage of the log at the time when the job was created."""
        log = host.log
        # Readers may be waiting for the repair.
        answer = await self._run(kinds.MEND, job, host, state, self._rates_for_waiting())
        result = MendResult.from_dict(answer)
        try:
            return await self.in_thread(lambda: apply_mending(log, result, lineage))
        except BaseException:
            await self.in_thread(lambda: _discard(log, result.new_files))
            raise

    def _rates_for_waiting(self) -> Rates:
        ceiling = self._settings.max_rate_bytes
        return Rates(_WAITED_FOR_RATE_BYTES, None) if ceiling is None else fixed_rate(ceiling)

    # --- sketches ---

    async def sketch(self, host: StreamHost, state: StreamCleaning, job: SketchJob) -> None:
        """Create the sketch of one segment. The log does not change: readers find the sketch in a
        file next to the segment."""
        busy = min(_SKETCH_RATE_BYTES, self._settings.max_rate_bytes or _SKETCH_RATE_BYTES)
        await self._run(kinds.SKETCH, job, host, state, Rates(busy, self._settings.max_rate_bytes))

    # --- scrubbing ---

    async def scrub(self, host: StreamHost, state: StreamCleaning, job: ScrubJob) -> None:
        """Verify one segment. Damage is quarantined and logged. If quarantined ranges can be read
        again, readers get access to them."""
        log, name = host.log, job.source.file_name
        rates = fixed_rate(self._settings.scrub_max_rate_bytes)
        answer = await self._run(kinds.SCRUB, job, host, state, rates)
        result = ScrubResult.from_dict(answer)
        state.scrubbed_segments += 1
        state.scrubbed_bytes += result.bytes_read
        if result.damaged:
            logger.error(
                "damage-found stream=%s segment=%s ranges=%d", host.name, name, len(result.damaged)
            )
            try:
                await self.in_thread(lambda: log.structure.quarantine(name, result.damaged))
            except SegmentsChanged:
                return  # retention has deleted the segment
            host.subjects.request()
        if result.lifted:
            about = name, result.lifted, result.still
            if await self.in_thread(lambda: log.structure.lift_quarantine(*about)):
                host.subjects.request()
        if result.index_damaged:
            logger.warning("index-made-anew stream=%s segment=%s", host.name, name)
            await self.in_thread(lambda: _drop_index(log, name))

    async def examine(self, host: StreamHost, state: StreamCleaning, file_name: str) -> None:
        """Find the damaged range of a segment that a job could not read completely."""
        for segment in host.log.segments:
            if segment.sealed and segment.path.name == file_name:
                await self.scrub(host, state, job_for(host.log, segment))

    # --- running a job ---

    async def _run(
        self,
        kind: str,
        job: CompactJob | RebatchJob | ScrubJob | SketchJob | MendJob,
        host: StreamHost,
        state: StreamCleaning,
        rates: Rates,
    ) -> dict[str, object]:
        state.progress = None
        try:
            return await self._worker.run(
                kind, job.to_dict(), rates=rates, on_progress=state.note_progress
            )
        except JobFailed as error:
            # The worker has removed the files that it wrote.
            if error.reason == kinds.DAMAGED:
                await self.examine(host, state, error.file_name)
            elif not _sources_are_listed(host.log, job):
                raise SegmentsChanged(
                    f"a segment was deleted while it was read: {error}"
                ) from error
            raise
        except (WorkerDied, asyncio.CancelledError):
            # The process is dead. It writes nothing more, but it could not remove its files.
            if not isinstance(job, ScrubJob | SketchJob):
                await self.in_thread(lambda: _discard_leftovers(host.log, job))
            raise
        finally:
            state.progress = None


def _is_of_no_interest(future: asyncio.Future[_T]) -> None:
    """Retrieve the error of a future whose caller was cancelled; otherwise asyncio would log the
    error."""
    if not future.cancelled():
        future.exception()


def _announce_removal(log: Log, result: CompactResult, now_ns: int) -> None:
    """Write into the manifest that tombstones will be removed, before the first of them is removed.

    Raises an error, so that no segment is swapped, if a lease was granted after the pass was
    planned: the lease guarantees its reader that the tombstones stay.
    """
    held_from = log.leases.low_bound(now_ns)
    if held_from is not None and held_from < result.tombstones_removed_below:
        raise SegmentsChanged(f"a lease holds the tombstones from offset {held_from} on")
    log.structure.replace_segments((), (), tombstones_removed_below=result.tombstones_removed_below)


def _discard(log: Log, names: Sequence[str]) -> None:
    """Remove the files that do not belong to the log."""
    listed = {segment.path.name for segment in log.segments}
    try:
        log.structure.discard_files([name for name in names if name not in listed])
    except (LiftlogError, ValueError) as error:  # ValueError: a file is in the log
        logger.warning("files-not-discarded stream=%s error=%s", log.name, error)


def _sources_are_listed(
    log: Log, job: CompactJob | RebatchJob | ScrubJob | SketchJob | MendJob
) -> bool:
    sources = job.sources if isinstance(job, CompactJob) else (job.source,)
    listed = {segment.path.name for segment in log.segments}
    return all(source.file_name in listed for source in sources)


def _discard_leftovers(log: Log, job: CompactJob | RebatchJob | MendJob) -> None:
    try:
        _discard(log, leftover_files(log.environment.fs, job))
    except OSError as error:
        logger.warning("files-not-discarded stream=%s error=%s", log.name, error)


def _drop_index(log: Log, name: str) -> None:
    """Remove the index of a segment, and rebuild it in this thread. Otherwise the next reader would
    rebuild it on the event loop."""
    path = log.directory / name
    try:
        log.environment.fs.unlink(index_path(path))
    except FileNotFoundError:
        pass
    except OSError as error:
        raise StorageError(f"removing the index of {name}: {error.strerror}") from error
    log.environment.indexes.drop(path)
    for segment in log.segments:
        if segment.path == path:
            with contextlib.suppress(LiftlogError):  # the next reader of the segment gets the error
                log.load_index(segment)
