"""A few threads for the scans of all clients, shared fairly.

The parties (principals) take turns, and so do the members of each (its connections): a principal
with many jobs or many connections delays only itself. `fair_input` shares the event loop in the
same way; `read_share` bounds what all consumers together may take of it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from typing import Any, ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

_Job = tuple[Future[Any], Callable[[], Any]]


class FairThreads:
    """Thread-safe. `of(party, member)` is the executor for one member's jobs."""

    def __init__(self, threads: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(threads, name)
        self._lock = threading.Lock()
        # In the order of their turns; every party and member here has a job.
        self._waiting: dict[Hashable, dict[Hashable, deque[_Job]]] = {}

    def of(self, party: Hashable, member: Hashable = None) -> Executor:
        return _Place(self, party, member)

    def submit(
        self, party: Hashable, member: Hashable, function: Callable[[], Result]
    ) -> Future[Result]:
        """Raises RuntimeError after `shutdown`."""
        future: Future[Result] = Future()
        with self._lock:
            members = self._waiting.setdefault(party, {})
            members.setdefault(member, deque()).append((future, function))
        try:
            self._pool.submit(self._run_next)
        except RuntimeError:
            future.cancel()
            raise
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """As `Executor.shutdown`."""
        if cancel_futures:
            while (job := self._take()) is not None:
                job[0].cancel()
        self._pool.shutdown(wait, cancel_futures=cancel_futures)

    def _take(self) -> _Job | None:
        with self._lock:
            if not self._waiting:
                return None
            party, members = next(iter(self._waiting.items()))
            member, jobs = next(iter(members.items()))
            job = jobs.popleft()
            # Both go to the end of their line, if they have more.
            del members[member]
            if jobs:
                members[member] = jobs
            del self._waiting[party]
            if members:
                self._waiting[party] = members
            return job

    def _run_next(self) -> None:
        """Runs once for each job that was submitted, so no job is left over."""
        job = self._take()
        if job is None:
            return
        future, function = job
        if not future.set_running_or_notify_cancel():
            return
        try:
            result = function()
        except BaseException as error:  # noqa: BLE001 - as executors do: it is the future's
            future.set_exception(error)
        else:
            future.set_result(result)


class _Place(Executor):
    def __init__(self, threads: FairThreads, party: Hashable, member: Hashable) -> None:
        self._threads, self._party, self._member = threads, party, member

    def submit(
        self,
        fn: Callable[Arguments, Result],
        /,
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Future[Result]:
        return self._threads.submit(self._party, self._member, partial(fn, *args, **kwargs))
