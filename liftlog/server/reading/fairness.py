"""Divides the event loop and a few threads fairly among clients.

`FairInput` limits the time for which requests are read and handled in each turn of the event loop.
Reading from one connection takes little time. But a thousand connections can be readable at once.
Until the turn ends, no message is stored and no ack is sent. Connections for which a turn has no
time are read in the next turns.

`FairThreads` runs the scans of all clients in a few threads. (The module `turns` schedules the work
of requests in the event loop.)

In both classes, parties (principals) take turns, and within a party its members (connections) take
turns. So a principal with many jobs or many connections delays only itself. `read_share` limits the
share of the event loop that all consumers together may use.

`SpreadWork` runs long work for the HTTP port in small pieces over many turns of the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Container, Generator, Hashable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from time import perf_counter
from typing import Any, Generic, ParamSpec, TypeVar

_TURN_SECONDS = 0.005
_SPREAD_SECONDS = 0.002

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Item = TypeVar("Item")


class FairInput:
    """Limits the time for input in each turn of the loop. While there is little work, a call only
    reads the clock twice. Belongs to the event loop."""

    def __init__(self, turn_seconds: float = _TURN_SECONDS) -> None:
        self._turn_seconds = turn_seconds
        self._spent = 0.0  # seconds since the last known turn began
        self._is_scheduled = False
        # Parties in the order of their turns; each of them has work.
        self._waiting: dict[Hashable, dict[Callable[[], None], None]] = {}

    def run(self, party: Hashable, work: Callable[[], None]) -> None:
        """Run `work` now, or in a later turn of the loop. If the same work is passed again before
        it has run, it runs only once."""
        if self._waiting or self._spent >= self._turn_seconds:
            self._waiting.setdefault(party, {})[work] = None
        else:
            self._run(work)

    def _run(self, work: Callable[[], None]) -> None:
        began = perf_counter()
        try:
            work()
        finally:
            self._spent += perf_counter() - began
            # Only after a quarter of the time, because a scheduled call makes the loop poll its
            # sockets once more.
            if self._spent > self._turn_seconds / 4:
                self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._begin_turn)

    def _begin_turn(self) -> None:
        self._is_scheduled = False
        self._spent = 0.0
        try:
            while self._waiting and self._spent < self._turn_seconds:
                self._run(self._take())
        finally:
            if self._waiting:
                self._schedule()

    def _take(self) -> Callable[[], None]:
        party, works = next(iter(self._waiting.items()))
        work = next(iter(works))
        del works[work], self._waiting[party]
        if works:  # the party moves to the end of the queue
            self._waiting[party] = works
        return work


_FIRST = object()
"""Stands for the member of the items that precede all other items of their party."""


class FairQueue(Generic[Item]):
    """A queue in which parties take turns, and within each party its members take turns."""

    def __init__(self) -> None:
        # Parties in the order of their turns; each party and member in it has an item.
        self._waiting: dict[Hashable, OrderedDict[Hashable, deque[Item]]] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def put(self, party: Hashable, member: Hashable, item: Item) -> None:
        self._waiting.setdefault(party, OrderedDict()).setdefault(member, deque()).append(item)

    def put_first(self, party: Hashable, item: Item) -> None:
        """Put the item before all other items of its party."""
        members = self._waiting.setdefault(party, OrderedDict())
        members.setdefault(_FIRST, deque()).append(item)
        members.move_to_end(_FIRST, last=False)

    def has_others(self, party: Hashable) -> bool:
        """True if a party other than this one has an item."""
        return len(self._waiting) > (party in self._waiting)

    def take(self, without: Container[Hashable] = ()) -> Item | None:
        """Return the next item of a party that is not in `without`; None if there is none."""
        party = next((one for one in self._waiting if one not in without), _FIRST)
        members = self._waiting.get(party)
        if members is None:
            return None
        member, items = next(iter(members.items()))
        item = items.popleft()
        # The party and the member move to the end of their queues if they have more items.
        del members[member]
        if items:
            members[member] = items
        del self._waiting[party]
        if members:
            self._waiting[party] = members
        return item


class FairLock:
    """A lock that parties acquire in turns, and within each party its members in turns. Belongs to
    one event loop."""

    def __init__(self) -> None:
        self._waiting: FairQueue[asyncio.Future[None]] = FairQueue()
        self._is_held = False

    @contextlib.asynccontextmanager
    async def of(self, party: Hashable, member: Hashable = None) -> AsyncIterator[None]:
        if self._is_held:
            given: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.put(party, member, given)
            try:
                await given
            except asyncio.CancelledError:
                if given.done() and not given.cancelled():
                    self._hand_on()
                raise
        self._is_held = True
        try:
            yield
        finally:
            self._hand_on()

    def _hand_on(self) -> None:
        self._is_held = False
        while (given := self._waiting.take()) is not None:
            if not given.done():
                self._is_held = True
                given.set_result(None)
                return


_Job = tuple[Hashable, Future[Any], Callable[[], Any]]


class _Running(threading.local):
    """The job that the current thread runs for `FairThreads`."""

    job: tuple[FairThreads, Hashable] | None = None


_running = _Running()


def others_wait() -> bool:
    """Return True if another party waits for the thread that runs this job. A long job should then
    end early; its caller submits the remaining work as a further job. Returns False outside
    `FairThreads`."""
    return _running.job is not None and _running.job[0].has_others(_running.job[1])


class FairThreads:
    """A few threads that run jobs of parties in turns. `of(party, member)` returns the executor for
    the jobs of one member. Thread-safe."""

    def __init__(self, threads: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(threads, name)
        self._lock = threading.Lock()
        self._waiting: FairQueue[_Job] = FairQueue()
        self._running = 0

    @property
    def is_busy(self) -> bool:
        """True while a job runs."""
        return self._running > 0

    def of(self, party: Hashable, member: Hashable = None) -> Place:
        return Place(self, party, member)

    def has_others(self, party: Hashable) -> bool:
        """True if a party other than this one waits."""
        with self._lock:
            return self._waiting.has_others(party)

    def submit(
        self, party: Hashable, member: Hashable, function: Callable[[], Result]
    ) -> Future[Result]:
        """Queue a job and return its future. Raises RuntimeError after `shutdown`."""
        future: Future[Result] = Future()
        self._queue(party, member, future, function)
        return future

    def submit_steps(
        self, party: Hashable, member: Hashable, steps: Generator[None, None, Result]
    ) -> Future[Result]:
        """Queue a long job that runs in steps, and return the future of its result. Each step is
        queued as a separate job, so other jobs have their turns between two steps. The future can
        be cancelled between two steps. Raises RuntimeError after `shutdown`."""
        whole: Future[Result] = Future()

        def queue() -> None:
            queued: Future[None] = Future()
            queued.add_done_callback(lambda one: whole.cancel() if one.cancelled() else None)
            self._queue(party, member, queued, step)

        def step() -> None:
            try:
                if not whole.cancelled():
                    next(steps)
                    queue()
            except StopIteration as end:
                if whole.set_running_or_notify_cancel():
                    whole.set_result(end.value)
            except BaseException as error:  # noqa: BLE001 - as executors do: it is the future's
                if whole.set_running_or_notify_cancel():
                    whole.set_exception(error)

        queue()
        return whole

    def _queue(
        self,
        party: Hashable,
        member: Hashable,
        future: Future[Result],
        function: Callable[[], Result],
    ) -> None:
        with self._lock:
            self._waiting.put(party, member, (party, future, function))
        try:
            self._pool.submit(self._run_next)
        except RuntimeError:
            future.cancel()
            raise

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Stop as `Executor.shutdown` does."""
        if cancel_futures:
            self._cancel_waiting()
        self._pool.shutdown(wait, cancel_futures=cancel_futures)
        if cancel_futures:
            self._cancel_waiting()  # a job in steps may have queued its next step in the meantime

    def _cancel_waiting(self) -> None:
        while (job := self._take()) is not None:
            job[1].cancel()

    def _take(self) -> _Job | None:
        with self._lock:
            return self._waiting.take()

    def _run_next(self) -> None:
        """Run the next job in the queue. Called once for each submitted job, so no job stays in the
        queue."""
        job = self._take()
        if job is None:
            return
        party, future, function = job
        if not future.set_running_or_notify_cancel():
            return
        self._add_running(1)
        _running.job = self, party
        try:
            result = function()
        except BaseException as error:  # noqa: BLE001 - as executors do: it is the future's
            self._end_running()
            future.set_exception(error)
        else:
            self._end_running()
            future.set_result(result)

    def _end_running(self) -> None:
        _running.job = None
        self._add_running(-1)

    def _add_running(self, count: int) -> None:
        with self._lock:
            self._running += count


class Place(Executor):
    """The executor for the jobs of one member of a party."""

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

    def submit_steps(self, steps: Generator[None, None, Result]) -> Future[Result]:
        return self._threads.submit_steps(self._party, self._member, steps)


class SpreadWork:
    """Runs long work in small pieces, and pauses for the other work of the event loop between them.

    For example, untrusted content is formatted in this way, because one long call would delay every
    ack. A thread would not help: pure Python code holds the interpreter lock, and commits need this
    lock. The callers limit the size of the pieces.

    All requests of a port share one object. So all of them together use no more of a turn than a
    single request. The requests are served in the order of their arrival. Belongs to one event
    loop.
    """

    def __init__(self) -> None:
        self._one_at_a_time = asyncio.Lock()
        self._turn_began = 0.0

    async def run(
        self, piece: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result:
        """Run `piece`, then yield to the event loop if this turn has taken long."""
        async with self._one_at_a_time:
            result = piece(*args, **kwargs)
            if perf_counter() - self._turn_began > _SPREAD_SECONDS:
                await asyncio.sleep(0)
                self._turn_began = perf_counter()
            return result
