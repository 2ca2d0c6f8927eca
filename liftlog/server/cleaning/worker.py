"""The worker process: `python -m liftlog.server.cleaning.worker`.

It reads jobs from stdin, one per line. For each job it writes lines of progress and one line with
the result to stdout. All lines are JSON. At the end of stdin it exits at once, even in the middle
of a job. This is safe, because the files of a job have no effect until the daemon has listed them
in the manifest.

    in   {"kind": "compact", "job": {...}, "max_rate_bytes": 33554432, "idle_rate_bytes": null}
    in   {"idle_seconds": 0.2}
    out  {"progress": ["rewrite", 1048576, 8388608]}
    out  {"result": {...}}   or   {"failed": {"reason": "damaged", "message": "...", "file": "..."}}

A line with `idle_seconds` is a grant: during these seconds the rate limit is `idle_rate_bytes`
(null: no limit) instead of `max_rate_bytes`. The next such line replaces the grant. Without a
grant, the limit is `max_rate_bytes`. `file` is empty unless the reason is `damaged`.
"""

from __future__ import annotations

import errno
import json
import math
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from liftlog.log.files.filesystem import OsFileSystem
from liftlog.log.rewrite import (
    CompactJob,
    MendJob,
    PatchDamaged,
    Progress,
    RebatchJob,
    ScrubJob,
    SketchJob,
    SourceDamaged,
    compact,
    make_sketch,
    mend,
    rebatch,
    scrub,
)

COMPACT = "compact"
REBATCH = "rebatch"
SCRUB = "scrub"
SKETCH = "sketch"
MEND = "mend"

DAMAGED = "damaged"
PATCH_DAMAGED = "patch damaged"
IO_ERROR = "io"
DEFECT = "defect"

_NICENESS = 10
_PROGRESS_SECONDS = 0.2
_BURST_SECONDS = 0.1
_LOOK_EVERY_BYTES = 4 * 1024 * 1024
_MIN_FREE_BYTES = 64 * 1024 * 1024
_MIN_FREE_PART = 20
"""Divisor: on a small file system, 1/20 of its size stays free instead of `_MIN_FREE_BYTES`."""

_LEAST_FREE_PART = 10
"""Divisor: subject indexes are built only while 1/10 of the file system is free. Messages need the
space more than reads need the speed."""

_RUNNERS: dict[str, tuple[Any, Callable[..., Any]]] = {
    COMPACT: (CompactJob, compact),
    REBATCH: (RebatchJob, rebatch),
    SCRUB: (ScrubJob, scrub),
    SKETCH: (SketchJob, make_sketch),
    MEND: (MendJob, mend),
}


# --- limits of a job: its rate, and the space that it leaves on the disk ---


class IdleGrant:
    """The end of the daemon's current grant. One thread stores grants as they arrive, and another
    thread runs the job."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ends_at = -math.inf
        self._noted = threading.Condition()

    def note(self, seconds: float) -> None:
        """Store a grant of this duration; 0 means that the daemon is busy."""
        with self._noted:
            self._ends_at = self._clock() + seconds
            self._noted.notify_all()

    def holds(self) -> bool:
        return self._clock() < self._ends_at

    def sleep(self, seconds: float) -> None:
        """Sleep for this time, or until the next line of the daemon arrives, because that line may
        change the rate."""
        with self._noted:
            self._noted.wait(seconds)


class RateLimit:
    """Limits the rate of a job by sleeping. The limit is `bytes_per_second`, apart from a short
    burst, or `idle_bytes_per_second` while `grant` is valid."""

    def __init__(
        self,
        bytes_per_second: float,
        idle_bytes_per_second: float | None = None,
        *,
        grant: IdleGrant | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] | None = None,
    ) -> None:
        """Create the limit. If `idle_bytes_per_second` is infinity, the rate of an idle daemon is
        unlimited. If it is None, the rate is `bytes_per_second`."""
        self._grant = grant or IdleGrant(clock)
        self._busy_rate = bytes_per_second
        self._idle_rate = idle_bytes_per_second or bytes_per_second
        self._clock = clock
        self._sleep = sleep or self._grant.sleep
        self._rate = bytes_per_second
        self._paid_at = clock()
        self._owed_bytes = 0.0
        """Number of bytes by which the job is ahead of its rate. A negative number is the number of
        bytes that may pass at once."""

    def __call__(self, size_bytes: int) -> None:
        self._pay()
        self._owed_bytes += size_bytes
        while self._owed_bytes >= 1 and self._rate != math.inf:
            self._sleep(self._owed_bytes / self._rate)
            self._pay()

    def _pay(self) -> None:
        """Reduce `_owed_bytes` by the bytes that the rate has allowed since the last call, and
        determine the current rate."""
        now = self._clock()
        if self._rate == math.inf:
            self._owed_bytes = 0.0  # at the end of full speed, no burst is allowed
        else:
            paid = self._owed_bytes - (now - self._paid_at) * self._rate
            self._owed_bytes = max(paid, -_BURST_SECONDS * self._rate)
        self._paid_at = now
        self._rate = self._idle_rate if self._grant.holds() else self._busy_rate


class FreeRoom:
    """Ends a job with ENOSPC before the disk is full, because the last space is reserved for
    messages.

    Without this check, a job could use the last bytes of the disk, and messages would be refused.
    This would happen although the job's output will replace larger files.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._passed = _LOOK_EVERY_BYTES  # so that the first check precedes the first byte

    def __call__(self, size_bytes: int) -> None:
        self._passed += size_bytes
        if self._passed < _LOOK_EVERY_BYTES:
            return
        self._passed = 0
        found = os.statvfs(self._directory)
        wanted = min(_MIN_FREE_BYTES, found.f_blocks * found.f_frsize // _MIN_FREE_PART)
        if found.f_bavail * found.f_frsize < wanted:
            raise OSError(errno.ENOSPC, "less space is left than cleaning may use")

    def is_plenty(self) -> bool:
        """Return True if there is enough space for files that are useful but not necessary."""
        found = os.statvfs(self._directory)
        return found.f_bavail * _LEAST_FREE_PART >= found.f_blocks


# --- jobs ---


def perform(
    order: dict[str, Any],
    say: Callable[[dict[str, Any]], None],
    grant: IdleGrant | None = None,
) -> dict[str, Any]:
    """Run one job. Returns the line with its result."""
    kind, run = _RUNNERS[order["kind"]]
    job = kind.from_dict(order["job"])
    busy_rate, idle_rate = order["max_rate_bytes"], order["idle_rate_bytes"]
    limit = RateLimit(busy_rate, math.inf if idle_rate is None else idle_rate, grant=grant)
    room = FreeRoom(Path(job.directory))
    if kind is SketchJob and job.with_subjects and not room.is_plenty():
        job = replace(job, with_subjects=False)
    said, phase = 0.0, ""

    def throttle(size_bytes: int) -> None:
        if kind is not ScrubJob:
            room(size_bytes)
        limit(size_bytes)

    def progress(at: Progress) -> None:
        nonlocal said, phase
        now = time.monotonic()
        if now - said >= _PROGRESS_SECONDS or at.phase != phase:
            said, phase = now, at.phase
            say({"progress": list(at)})

    try:
        result = run(job, OsFileSystem(), progress, throttle)
    except SourceDamaged as error:
        return _failed(DAMAGED, str(error), file_name=error.file_name)
    except PatchDamaged as error:
        return _failed(PATCH_DAMAGED, str(error))
    except OSError as error:
        return _failed(IO_ERROR, f"{error.strerror or error}")
    except Exception:  # noqa: BLE001  # a supervisor: the daemon logs the defect
        return _failed(DEFECT, traceback.format_exc())
    return {"result": result.to_dict()}


def _failed(reason: str, message: str, *, file_name: str = "") -> dict[str, Any]:
    return {"failed": {"reason": reason, "message": message, "file": file_name}}


def main() -> None:
    # A terminal sends these signals to the whole process group, but only the daemon decides when
    # this process ends.
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.nice(_NICENESS)
    orders: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    grant = IdleGrant()
    threading.Thread(target=_listen, args=(orders, grant), daemon=True).start()
    while True:
        _say(perform(orders.get(), _say, grant))


def _listen(orders: queue.SimpleQueue[dict[str, Any]], grant: IdleGrant) -> None:
    for line in sys.stdin.buffer:
        told = json.loads(line)
        if "idle_seconds" in told:
            grant.note(told["idle_seconds"])
        else:
            orders.put(told)
    os._exit(0)


def _say(line: dict[str, Any]) -> None:
    try:
        sys.stdout.buffer.write(json.dumps(line).encode() + b"\n")
        sys.stdout.buffer.flush()
    except OSError:
        os._exit(0)  # the daemon has closed the pipe


if __name__ == "__main__":
    main()
