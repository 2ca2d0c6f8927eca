"""Writes a commit group to disk, and chooses the thread for it.

`GroupWriter` divides a group into batches, and compresses and appends them. If the group is part of
a round, or if `InlineBudget` allows it, this runs inside the event loop. Otherwise it runs in a
thread of the `WriterPool`.

A small group that is synced inline is acked without two handovers between threads. If there is only
one publisher, the handovers would be most of its latency. However, the loop must not wait for a
slow disk. So inline writes are allowed only while recent syncs were fast, and only for a limited
time per chunk that is read.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from liftlog.log import EncodedBatch, Log
from liftlog.records.codecs import codec_named, compress_batch
from liftlog.sequencing import CommitGroup
from liftlog.settings import StreamSettings

_INLINE_BYTES = 64 * 1024
"""A group larger than this (in bytes) is compressed in a writer thread, not on the event loop."""

STALLED_SECONDS = 0.05
"""A write or a sync that takes longer than this (in seconds) is stalled. The stream then commits
alone, in a thread, until a write and a sync are faster."""

_FAST_SYNC_SECONDS = 0.001
_REMEMBERED_SYNCS = 15
_MAX_JOBS_AT_ONCE = 64


def compressed(batches: list[EncodedBatch], compression: str) -> list[EncodedBatch]:
    """Return each batch compressed, or unchanged if compression would not make it smaller.

    Compresses about 100 MB per second. Releases the GIL.
    """
    codec = codec_named(compression)
    if codec is None:
        return batches
    return [batch._replace(data=compress_batch(batch.data, codec)) for batch in batches]


class GroupWriter:
    """Encodes and appends groups. Created again when the settings change. Its methods use only the
    log, so `write` may run in a thread."""

    def __init__(self, log: Log, settings: StreamSettings) -> None:
        self._log = log
        self._batch = settings.batch
        self._compression = settings.compression
        self._acks_early = settings.durability != "fsync"
        self.max_inline_bytes = math.inf if self._compression == "none" else _INLINE_BYTES
        """Maximum size, in bytes, of a group that is written inline. Compressing a larger group
        would block the event loop for too long."""
        self.syncs_at: float = 0
        """The group is synced if at least this number of records are unsynced, including the
        records of the group."""
        if self._acks_early:
            self.syncs_at = math.inf
            if settings.durability == "interval":
                self.syncs_at = settings.flush.messages
        self.written: list[EncodedBatch] = []
        """The batches of the last `write`."""
        self.stalls = False
        """True if the last `write` took longer than `STALLED_SECONDS`."""

    def encode(self, group: CommitGroup) -> list[EncodedBatch]:
        batch = self._batch
        return group.encode(
            leader_epoch=self._log.leader_epoch,
            commit_group=self._log.writer.commit_group,
            max_records=batch.max_records,
            max_bytes=batch.max_bytes,
        )

    def only_appends(self, size_bytes: int, next_offset: int) -> bool:
        """Return True if a group of about this size, up to this offset, would only be appended.
        This means that no roll and no reservation is due, and that no earlier write has to be
        repaired."""
        writer = self._log.writer
        state = writer.state
        in_doubt = state.manifest_in_doubt or state.active.has_leftovers or writer.slot.in_doubt
        is_reserved = next_offset <= state.view.manifest.reserved_offset
        return is_reserved and not in_doubt and not writer.must_roll(size_bytes, next_offset)

    def write(self, batches: list[EncodedBatch]) -> None:
        """Append the batches, without a sync."""
        started = time.monotonic()
        try:
            self._write(batches)
        finally:
            self.stalls = time.monotonic() - started > STALLED_SECONDS

    def _write(self, batches: list[EncodedBatch]) -> None:
        if self._compression != "none":
            batches = compressed(batches, self._compression)
        if self._acks_early:
            # Acks of this group may be sent before it is durable. The manifest must say so before
            # that.
            self._log.writer.admit_early_acks()
        self._log.append(batches)
        self.written = batches


class InlineBudget:
    """Decides when a commit may run inside the event loop. Shared by all streams of a daemon."""

    def __init__(self, max_messages: int, budget_seconds: float) -> None:
        self.max_messages = max_messages
        self._budget_seconds = budget_seconds
        self._left_seconds = budget_seconds
        self._recent_slow: deque[bool] = deque(
            [False] * _REMEMBERED_SYNCS, maxlen=_REMEMBERED_SYNCS
        )
        self._slow_count = 0

    def allows(self, messages: int) -> bool:
        return (
            messages <= self.max_messages
            and self._left_seconds > 0
            and self._slow_count <= _REMEMBERED_SYNCS // 2
        )

    def observe(self, sync_seconds: float) -> None:
        """Note the duration of a sync, inline or in a thread.

        The median of recent syncs decides. So one slow sync does not stop inline commits, and one
        fast sync does not allow them again. However, one stalled sync stops inline commits at once,
        because the event loop stalls together with the disk. Inline commits begin again when enough
        fast syncs in threads have lowered the median.
        """
        if sync_seconds > STALLED_SECONDS:
            self.stalled()
            return
        slow = sync_seconds > _FAST_SYNC_SECONDS
        self._slow_count += slow - self._recent_slow[0]
        self._recent_slow.append(slow)

    def stalled(self) -> None:
        """Note that a sync has stalled. It takes long, and may not have ended yet."""
        self._recent_slow.extend([True] * _REMEMBERED_SYNCS)
        self._slow_count = _REMEMBERED_SYNCS

    def spent(self, seconds: float) -> None:
        """Subtract the time of work in the event loop from the budget of the current chunk."""
        self._left_seconds -= seconds

    def begin_chunk(self) -> None:
        """Begin a chunk: inline commits have the full budget again."""
        self._left_seconds = self._budget_seconds


@dataclass(slots=True, eq=False)
class CommitJob:
    """One commit in a writer thread. `write`, `written` and `sync` run in this order. `done` gets
    the first error, or None, in the same thread.

    After a failed `write` only `done` is called. `written` is called when all jobs of a batch have
    been written, and never raises.
    """

    write: Callable[[], object]
    sync: Callable[[], object] | None
    done: Callable[[Exception | None], None]
    written: Callable[[], object] | None = None
    error: Exception | None = None


class WriterPool:
    """A fixed number of threads over one queue, so that a slow disk never stops the event loop.

    A thread takes several waiting jobs, and does all writes before all syncs. The first sync makes
    the file system commit all these writes to its journal, so the other syncs are fast.
    """

    def __init__(self, threads: int) -> None:
        self._jobs: queue.SimpleQueue[CommitJob | Callable[[], object] | None]
        self._jobs = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, name=f"liftlog-writer-{i}", daemon=True)
            for i in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def thread_count(self) -> int:
        return len(self._threads)

    def submit(self, job: CommitJob) -> None:
        self._jobs.put(job)

    def run_on(self, threads: int, call: Callable[[], object]) -> None:
        """Call `call` in this number of threads, at most `thread_count`. If all threads are busy, a
        call may begin late, or only after the other calls have ended. `call` must not raise."""
        for _ in range(threads):
            self._jobs.put(call)

    @property
    def waiting_jobs(self) -> int:
        """Number of jobs that no thread has taken yet. A round counts once for each thread that it
        needs."""
        return self._jobs.qsize()

    def close(self) -> None:
        """Finish the submitted jobs, then end the threads."""
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while True:
            job = self._jobs.get()
            if isinstance(job, CommitJob):
                job = self._run_with_others(job)
            if job is None:
                return
            job()

    def _run_with_others(self, job: CommitJob) -> Callable[[], object] | None:
        """Run this job and other waiting jobs. Returns what the thread must do next: a call, or
        None if the thread must end."""
        batch = [job]
        # Leave other jobs to the other threads, which may be idle.
        limit = max(1, min(_MAX_JOBS_AT_ONCE, self._jobs.qsize() // len(self._threads)))
        following: Callable[[], object] | None = _nothing
        while len(batch) < limit:
            try:
                other = self._jobs.get_nowait()
            except queue.Empty:
                break
            if not isinstance(other, CommitJob):
                following = other
                break
            batch.append(other)
        run_batch(batch)
        return following


def _nothing() -> None: ...


def run_batch(batch: list[CommitJob]) -> None:
    for job in batch:
        try:
            job.write()
        except Exception as error:  # noqa: BLE001  # a supervisor: the owner of the job decides
            job.error = error
    for job in batch:
        if job.written is not None and job.error is None:
            job.written()
    for job in batch:
        if job.error is None and job.sync is not None:
            try:
                job.sync()
            except Exception as error:  # noqa: BLE001  # as above
                job.error = error
        job.done(job.error)
