"""The worker process: `python -m liftlog.server.cleaning.worker`.

It reads jobs from stdin, one a line, and writes lines of progress and one line of outcome to
stdout, all of them JSON. At the end of stdin it exits at once, even in the middle of a job: the
files of a job are garbage until the daemon lists them.

    in   {"kind": "compact", "job": {...}, "max_rate_bytes": 33554432}
    in   {"max_rate_bytes": 1099511627776}   from now on, for the job that runs
    out  {"progress": ["rewrite", 1048576, 8388608]}
    out  {"result": {...}}   or   {"failed": {"reason": "damaged", "message": "...", "file": "..."}}

`file` is empty unless the reason is `damaged`.
"""

from __future__ import annotations

import errno
import json
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from liftlog.log.filesystem import OsFileSystem
from liftlog.log.rewrite import (
    CompactJob,
    Progress,
    RebatchJob,
    ScrubJob,
    SourceDamaged,
    compact,
    rebatch,
    scrub,
)

COMPACT = "compact"
REBATCH = "rebatch"
SCRUB = "scrub"

DAMAGED = "damaged"
IO_ERROR = "io"
DEFECT = "defect"

_NICENESS = 10
_PROGRESS_SECONDS = 0.2
_BURST_SECONDS = 0.1
_LOOK_SECONDS = 0.5
"""A change of the rate is seen after so long, even in the middle of a long wait."""
_LOOK_EVERY_BYTES = 4 * 1024 * 1024
_MIN_FREE_BYTES = 64 * 1024 * 1024
_MIN_FREE_PART = 20
"""On a small file system one part in so many stays free instead."""

_RUNNERS: dict[str, tuple[Any, Callable[..., Any]]] = {
    COMPACT: (CompactJob, compact),
    REBATCH: (RebatchJob, rebatch),
    SCRUB: (ScrubJob, scrub),
}


# --- limits of a job: its rate, and the space that it leaves on the disk ---


class RateLimit:
    """Sleeps so that no more than `bytes_per_second` pass, apart from a short burst. Another thread
    may change that number."""

    def __init__(
        self,
        bytes_per_second: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.bytes_per_second = bytes_per_second
        self._clock = clock
        self._sleep = sleep
        self._due = clock()

    def __call__(self, size_bytes: int) -> None:
        now, rate = self._clock(), self.bytes_per_second
        self._due = max(self._due, now - _BURST_SECONDS) + size_bytes / rate
        while self._due > now:
            self._sleep(min(self._due - now, _LOOK_SECONDS))
            now, before, rate = self._clock(), rate, self.bytes_per_second
            if rate != before:
                self._due = now + max(self._due - now, 0.0) * before / rate


class FreeRoom:
    """Ends a job with ENOSPC before the disk is full: the rest of the space is for messages.

    Otherwise messages would be refused while a job uses up the last bytes, although its output will
    replace something larger.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._passed = _LOOK_EVERY_BYTES  # the first look is before the first byte

    def __call__(self, size_bytes: int) -> None:
        self._passed += size_bytes
        if self._passed < _LOOK_EVERY_BYTES:
            return
        self._passed = 0
        found = os.statvfs(self._directory)
        wanted = min(_MIN_FREE_BYTES, found.f_blocks * found.f_frsize // _MIN_FREE_PART)
        if found.f_bavail * found.f_frsize < wanted:
            raise OSError(errno.ENOSPC, "less space is left than cleaning may use")


# --- jobs ---


def perform(
    order: dict[str, Any],
    say: Callable[[dict[str, Any]], None],
    limit: RateLimit | None = None,
) -> dict[str, Any]:
    """Run one job; returns the line of its outcome. `limit` replaces that of the order."""
    kind, run = _RUNNERS[order["kind"]]
    job = kind.from_dict(order["job"])
    limit = limit or RateLimit(order["max_rate_bytes"])
    room = FreeRoom(Path(job.directory))
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
    except OSError as error:
        return _failed(IO_ERROR, f"{error.strerror or error}")
    except Exception:  # noqa: BLE001  # a supervisor: the daemon logs the defect
        return _failed(DEFECT, traceback.format_exc())
    return {"result": result.to_dict()}


def _failed(reason: str, message: str, *, file_name: str = "") -> dict[str, Any]:
    return {"failed": {"reason": reason, "message": message, "file": file_name}}


def main() -> None:
    # A terminal sends these to the whole process group; the daemon decides when this one ends.
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.nice(_NICENESS)
    orders: queue.SimpleQueue[tuple[dict[str, Any], RateLimit]] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(orders,), daemon=True).start()
    while True:
        order, limit = orders.get()
        _say(perform(order, _say, limit))


def _listen(orders: queue.SimpleQueue[tuple[dict[str, Any], RateLimit]]) -> None:
    limit = RateLimit(1)
    for line in sys.stdin.buffer:
        order = json.loads(line)
        if "kind" in order:
            limit = RateLimit(order["max_rate_bytes"])
            orders.put((order, limit))
        else:
            limit.bytes_per_second = order["max_rate_bytes"]
    os._exit(0)


def _say(line: dict[str, Any]) -> None:
    try:
        sys.stdout.buffer.write(json.dumps(line).encode() + b"\n")
        sys.stdout.buffer.flush()
    except OSError:
        os._exit(0)  # the daemon no longer listens


if __name__ == "__main__":
    main()
