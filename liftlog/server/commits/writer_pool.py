"""Threads that write and sync, so that a slow disk never stops the event loop."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass

_MAX_JOBS_AT_ONCE = 64


@dataclass(slots=True, eq=False)
class CommitJob:
    """`write`, `written` and `sync` run in a writer thread, in this order; `done` gets the first
    error, or None, in that thread. After a failed `write` there is nothing but `done`. `written`
    comes when all jobs of a batch have written, and never raises."""

    write: Callable[[], object]
    sync: Callable[[], object] | None
    done: Callable[[Exception | None], None]
    written: Callable[[], object] | None = None
    error: Exception | None = None


class WriterPool:
    """A bounded number of writer threads over one queue.

    A thread takes the jobs that wait, and does all writes before all syncs: the first sync then
    makes the file system's journal commit what the others need as well.
    """

    def __init__(self, threads: int) -> None:
        self._jobs: queue.SimpleQueue[CommitJob | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, name=f"liftlog-writer-{i}", daemon=True)
            for i in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, job: CommitJob) -> None:
        self._jobs.put(job)

    @property
    def waiting_jobs(self) -> int:
        """Jobs that no thread has taken yet."""
        return self._jobs.qsize()

    def close(self) -> None:
        """Finish what was submitted, then end the threads."""
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        last = False
        while not last:
            job = self._jobs.get()
            if job is None:
                return
            batch = [job]
            # Leave the rest to the other threads, which may be idle.
            limit = max(1, min(_MAX_JOBS_AT_ONCE, self._jobs.qsize() // len(self._threads)))
            while len(batch) < limit:
                try:
                    job = self._jobs.get_nowait()
                except queue.Empty:
                    break
                if job is None:
                    last = True
                    break
                batch.append(job)
            _run_batch(batch)


def _run_batch(batch: list[CommitJob]) -> None:
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
