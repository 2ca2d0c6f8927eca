"""Decides which job uses the log of one stream next. One job runs at a time, in a writer thread.

A job is a commit, a flush, or an *exclusive call*. An exclusive call is a log call that must not
run at the same time as a commit. Examples are a roll, retention, a lease and new settings.
Exclusive calls and messages take turns, so that neither can delay the other forever.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeVar

from liftlog.errors import StreamUnavailable
from liftlog.server.commits.writing import CommitJob, WriterPool

logger = logging.getLogger("liftlog.server.stream")

_CANCELLED_SECONDS = 10.0
"""Maximum time, in seconds, for which a cancelled caller waits for the end of its exclusive call if
the disk stalls."""

_T = TypeVar("_T")


class ExclusiveCall(NamedTuple):
    """A log call that must not run at the same time as a commit; see `StreamHost.run_exclusive`."""

    call: Callable[[], object]
    then: Callable[[], None] | None
    future: asyncio.Future[object]

    def finish(self, outcome: list[object], error: Exception | None) -> None:
        """Complete the future, unless the caller has cancelled it."""
        if self.future.done():
            return
        if error is not None:
            self.future.set_exception(error)
        else:
            self.future.set_result(outcome[0])


class LogTurns:
    """The turns of one log. Belongs to the event loop. Every writer of the log uses `begin` or
    `run_exclusive`. Only a commit inside the event loop does not, because it ends before any other
    code can run."""

    def __init__(
        self,
        stream: str,
        pool: WriterPool,
        *,
        begin_next: Callable[[], None],
        after_exclusive: Callable[[Exception | None], None],
    ) -> None:
        """`begin_next` is called after each job, to begin the next job. `after_exclusive` receives
        the outcome of an exclusive call before the caller of the exclusive call does."""
        self.is_taken = False
        """True while a job runs."""
        self.begin_next = begin_next
        self.is_closed = False
        self.before_commit: Callable[[], None] | None = None
        """Makes an exclusive call. It is called once, when messages wait for a commit."""
        self._stream = stream
        self._pool = pool
        self._after_exclusive = after_exclusive
        self._taken_since = 0.0
        self._over: asyncio.Future[None] | None = None
        self._waiting: deque[ExclusiveCall] = deque()
        self._exclusive_ran_last = False

    @property
    def taken_seconds(self) -> float:
        """Time, in seconds, since the current job began; 0.0 if no job runs."""
        return time.monotonic() - self._taken_since if self.is_taken else 0.0

    async def over(self) -> None:
        """Wait until the current job has ended."""
        while self.is_taken:
            if self._over is None:
                self._over = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._over)

    def begin(
        self,
        write: Callable[[], object],
        sync: Callable[[], object] | None,
        done: Callable[[Exception | None], None],
        written: Callable[[], None] | None = None,
    ) -> None:
        """Write and sync in a writer thread. `done` is called on the loop with the error or None;
        after that the next job begins. `written` is called on the loop between write and sync. Call
        this while no job runs."""
        self.take()
        loop = asyncio.get_running_loop()
        ended = partial(call_loop, loop, self._ended, done)
        told = None if written is None else partial(call_loop, loop, written)
        self._pool.submit(CommitJob(write, sync, ended, told))

    def _ended(self, done: Callable[[Exception | None], None], error: Exception | None) -> None:
        self.give_back()
        done(error)
        self.begin_next()

    def take(self) -> None:
        """Begin a job that ends with `give_back`. Call this while no job runs."""
        self._exclusive_ran_last = False
        self.is_taken = True
        self._taken_since = time.monotonic()

    def give_back(self) -> None:
        """End the current job. The caller then has to begin the next one."""
        self.is_taken = False
        if self._over is not None:
            self._over.set_result(None)
            self._over = None

    @property
    def are_free(self) -> bool:
        """True if messages may be committed at once: no job runs, and no call waits."""
        return not (self.is_taken or self.is_closed or self._waiting or self.before_commit)

    # --- exclusive calls ---

    def run_exclusive(
        self, call: Callable[[], object], then: Callable[[], None] | None
    ) -> asyncio.Future[object]:
        """Queue a log call; see `StreamHost.run_exclusive`."""
        future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        if self.is_closed:
            future.set_exception(self._closed_error())
            return future
        self._waiting.append(ExclusiveCall(call, then, future))
        self.begin_exclusive()
        return future

    def run_inline(self, call: Callable[[], object]) -> bool:
        """Run `call` in the event loop, in this turn, if no job runs and no call waits. Returns
        True if it ran. Raises the error of `call`."""
        if self.is_taken or self._waiting or self.is_closed:
            return False
        error: Exception | None = None
        try:
            call()
        except Exception as caught:
            error = caught
            raise
        finally:
            self._after_exclusive(error)
        return True

    async def uninterrupted(self, call: Callable[[], _T], then: Callable[[], None] | None) -> _T:
        """Run an exclusive call. A cancelled caller continues only when the call has ended; see
        `StreamHost.exclusively`."""
        outcome: list[_T] = []
        future = self.run_exclusive(lambda: outcome.append(call()), then)
        try:
            # Cancelling the future would not stop the thread. The caller would continue before its
            # change is complete, and might then begin the next change.
            await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.wait({future}, timeout=_CANCELLED_SECONDS)
            if future.done() and not future.cancelled():
                # Without this call, asyncio would report an error that was never retrieved.
                future.exception()
            raise
        return outcome[0]

    def exclusive_comes_first(self, *, messages_wait: bool) -> bool:
        """Return True if an exclusive call comes before the messages. If the result is False, the
        messages have their turn, and the next exclusive call comes before later messages."""
        if self._waiting and not (self._exclusive_ran_last and messages_wait):
            return True
        self._exclusive_ran_last = False
        return False

    def begin_before_commit(self) -> bool:
        """Begin the call that must end before the next commit. Returns False if there is no such
        call. Call this while messages wait and no job runs."""
        before, self.before_commit = self.before_commit, None
        if before is None:
            return False
        # This call overtakes the waiting calls. Otherwise a series of calls would keep the messages
        # waiting.
        waiting, self._waiting = self._waiting, deque()
        before()
        self._waiting.extend(waiting)
        self.begin_exclusive()
        return True

    def begin_exclusive(self) -> None:
        """Begin the next exclusive call, if a call waits and no job is running."""
        if self.is_taken or not self._waiting:
            return
        work = self._waiting.popleft()
        outcome: list[object] = []
        self.begin(
            lambda: outcome.append(work.call()),
            None,
            partial(self._exclusive_ended, work, outcome),
        )

    def _exclusive_ended(
        self, work: ExclusiveCall, outcome: list[object], error: Exception | None
    ) -> None:
        # `then` runs before the next job begins and before the caller gets the outcome, even if the
        # caller has cancelled its future. So later jobs always see both the durable effect of
        # `call` and the changes that `then` makes in memory.
        self._exclusive_ran_last = True
        self._after_exclusive(error)
        if error is None and work.then is not None:
            work.then()
        work.finish(outcome, error)

    def close(self) -> None:
        """Refuse all waiting exclusive calls, and all later ones. A call that a thread has begun
        runs to its end, and its caller gets the outcome."""
        self.is_closed = True
        while self._waiting:
            self._waiting.popleft().finish([], self._closed_error())

    def _closed_error(self) -> StreamUnavailable:
        return StreamUnavailable(f"stream {self._stream} is closed")


def call_loop(
    loop: asyncio.AbstractEventLoop, function: Callable[..., None], *args: object
) -> None:
    """Call a function on the loop from a writer thread. Does nothing after the loop has ended."""
    try:
        loop.call_soon_threadsafe(function, *args)
    except RuntimeError:
        logger.warning("commit-finished-after-the-loop-closed")
