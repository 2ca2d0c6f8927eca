"""Limits the share of the event loop's time that consumers use while messages from NATS are
waiting.

A message that is not read from NATS in time is lost, because nats-server disconnects slow clients.
A record that is not sent to a consumer now can be sent later. Therefore the work for consumers is
limited while processor time is short and NATS delivers faster than the daemon reads. It may then
use at most as much time as all other work together. Consumers then fall behind, but publishers do
not. At any other time there is no limit. (`fairness` divides this time among the consumers.)
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import Callable
from time import perf_counter
from types import TracebackType
from typing import NamedTuple

from liftlog.server.streams.intake import Ingested

_TICK_SECONDS = 0.02
_MEMORY_SECONDS = 0.1
"""Measurements are averaged over about this time (in seconds), because a single time slice is not
significant."""

_SHORT_DELAY = 0.1
"""Processor time counts as short if the loop's thread waits for a processor for more than this part
of the time."""
_SHORT_BUSY = 0.9
"""Processor time also counts as short if the thread runs for more than this part of the time."""

_LARGE_CHUNK_BYTES = 16 * 1024
"""NATS counts as faster than the daemon if the reads return chunks of this size (in bytes) on
average."""

_LEAST_PART = 0.2
"""Part of the time that consumers always get, even if all other work uses less."""

_RESUME_SECONDS = 0.002
"""Maximum time for resuming held-back fetches before the loop does other work."""


class Usage(NamedTuple):
    """The seconds for which the loop's thread has run and has waited for a processor, since the
    thread began."""

    running: float
    waiting: float
    """Time in which the thread waited for a processor."""


class ThreadUsage:
    """Measures the thread that makes the first call, with the kernel's counters. Without /proc, the
    waiting time is always 0."""

    def __init__(self) -> None:
        self._fd: int | None = None

    def __call__(self) -> Usage:
        if self._fd is None:
            try:
                self._fd = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                self._fd = -1
        if self._fd < 0:
            return Usage(time.thread_time(), 0.0)
        running, waiting, _ = os.pread(self._fd, 128, 0).split()
        return Usage(int(running) / 1e9, int(waiting) / 1e9)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd is not None and fd >= 0:
            os.close(fd)


class ReadShare:
    """Measures and limits the consumers' share of the event loop. The event loop is the one that
    runs at the first use of the object. If there are no consumers, the object uses no time.

    All work for consumers runs inside `with share`, which measures its time and may be nested.
    """

    def __init__(
        self,
        usage: Callable[[], Usage],
        ingested: Callable[[], Ingested],
        get_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.get_running_loop,
    ) -> None:
        self._get_loop = get_loop
        self._loop: asyncio.AbstractEventLoop
        self._usage = usage
        self._ingested = ingested
        self._left = math.inf  # seconds
        self._spent = 0.0  # since the last tick
        self._depth = 0
        self._entered = 0.0
        self._waiting: dict[Callable[[], None], None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._at = 0.0
        self._used = Usage(0.0, 0.0)
        self._got = Ingested(0, 0)
        self._forget()
        self.held_back_seconds = 0.0
        """The time during which at least one fetch was held back."""

    def _forget(self) -> None:
        self._others = self._busy = self._delay = 0.0  # parts of the time
        self._chunks = self._chunk_bytes = 0.0
        self._pace = 1.0  # seconds of the processor per second of the clock

    @property
    def is_open(self) -> bool:
        return self._left > 0

    @property
    def is_busy(self) -> bool:
        """True if the loop's thread runs or waits for a processor most of the time."""
        return self._busy + self._delay > 0.5

    @property
    def is_flooded(self) -> bool:
        """True if NATS delivers large chunks, so that many messages arrive together."""
        return self._chunk_bytes > _LARGE_CHUNK_BYTES * self._chunks

    def __enter__(self) -> None:
        self._depth += 1
        if self._depth == 1:
            self._entered = perf_counter()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._depth -= 1
        if not self._depth:
            seconds = (perf_counter() - self._entered) * self._pace
            self._spent += seconds
            self._left -= seconds
            if self._timer is None:
                self._begin_ticking()

    def wait(self, resume: Callable[[], None]) -> None:
        """Call `resume` once, when consumers may use time again. `resume` must then check `is_open`
        again."""
        self._waiting[resume] = None

    def leave(self, resume: Callable[[], None]) -> None:
        self._waiting.pop(resume, None)

    def _begin_ticking(self) -> None:
        self._loop = self._get_loop()
        self._at, self._used, self._got = self._loop.time(), self._usage(), self._ingested()
        self._timer = self._loop.call_later(_TICK_SECONDS, self._tick)

    def _tick(self) -> None:
        self._timer = None
        if not self._spent and not self._waiting and self._left > 0:
            self._left = math.inf
            self._forget()
            return
        passed = self._measure()
        if self._waiting:
            self.held_back_seconds += passed
        if self._is_scarce():
            granted = passed * max(self._others, _LEAST_PART)
            self._left = min(self._left + granted, granted)  # time that was not used is lost
        else:
            self._left = math.inf
        self._timer = self._loop.call_later(_TICK_SECONDS, self._tick)
        self._resume()

    def _measure(self) -> float:
        """Update the averages, and return the seconds since the last tick."""
        at, used, got = self._loop.time(), self._usage(), self._ingested()
        passed = at - self._at
        running = used.running - self._used.running
        waiting = used.waiting - self._used.waiting
        weight = 1 - math.exp(-passed / _MEMORY_SECONDS)
        self._busy += weight * (running / passed - self._busy)
        self._others += weight * (max(running - self._spent, 0.0) / passed - self._others)
        self._delay += weight * (waiting / passed - self._delay)
        # The clock also runs while the thread waits for a processor.
        self._pace = self._busy / max(self._busy + self._delay, 1e-9)
        self._chunks += weight * (got.chunks - self._got.chunks - self._chunks)
        self._chunk_bytes += weight * (got.size_bytes - self._got.size_bytes - self._chunk_bytes)
        self._at, self._used, self._got, self._spent = at, used, got, 0.0
        return passed

    def _is_scarce(self) -> bool:
        is_short = self._delay > _SHORT_DELAY or self._busy > _SHORT_BUSY
        return self.is_flooded and is_short

    def _resume(self) -> None:
        until = perf_counter() + _RESUME_SECONDS
        while self._waiting and self._left > 0:
            resume = next(iter(self._waiting))
            del self._waiting[resume]
            resume()
            if perf_counter() > until:
                self._loop.call_soon(self._resume)
                return
