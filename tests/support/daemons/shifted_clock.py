"""The wall clock of a single process, as on a machine whose clock is wrong."""

from __future__ import annotations

import mmap
import time
from pathlib import Path

_BYTES = 8


class ShiftedClock:
    """The difference between the clock of processes that follow `path` and the clock of this
    machine. It may change while they run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_bytes(bytes(_BYTES))

    def set_ahead(self, seconds: float) -> None:
        """Set how far the clock is ahead; negative if it is behind."""
        with self.path.open("r+b") as file:
            file.write(int(seconds * 1e9).to_bytes(_BYTES, "little", signed=True))


def follow_clock(path: Path) -> None:
    """Replace `time.time` and `time.time_ns` of this process by this clock, for all code that calls
    them by these names. Other clocks never jump."""
    with path.open("r+b") as file:
        shared = mmap.mmap(file.fileno(), _BYTES)
    seconds, nanoseconds = time.time, time.time_ns

    def ahead_ns() -> int:
        return int.from_bytes(shared[:_BYTES], "little", signed=True)

    time.time = lambda: seconds() + ahead_ns() / 1e9
    time.time_ns = lambda: nanoseconds() + ahead_ns()
