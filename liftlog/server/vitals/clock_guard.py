"""Detects a wall clock that suddenly jumps ahead, so that no record seems older than it is.

A clock that is ahead makes all records seem old, so that limits by age would delete them. Therefore
the daemon measures ages with its own time, which advances with the monotonic clock. When the wall
clock suddenly jumps ahead, the daemon's own time stays behind it by the length of the jump. The own
time is stored in the data directory, in the file `clock`, so that a restart does not change it.

A jump ahead is trusted in three cases:

- after an hour, if the jump is at most a tenth of the time for which each stream keeps its records
- when an operator confirms it (`liftlog serve --believe-clock`)
- when the other nodes of the cluster have the same time

The daemon follows a jump back at once, because such a jump makes no record seem older.

In a cluster the file also stores whether this clock was ahead of other clocks at the last
measurement. While the file cannot be read, the daemon assumes a jump, and deletes no records by
age.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import asdict, dataclass
from pathlib import Path

from liftlog.errors import CorruptMetadata, StorageError, UnsupportedFormat
from liftlog.log import Clock, FileSystem
from liftlog.log.files.checkpoint_file import read_checkpoint_file, write_checkpoint_file
from liftlog.log.files.filesystem import storage_errors

logger = logging.getLogger("liftlog.server")

CLOCK_NAME = "clock"
STEP_NS = 600 * 1_000_000_000
_CONFIRM_NS = 3600 * 1_000_000_000
_DOWN_NS = 3600 * 1_000_000_000
"""A jump of less than this time (in ns) across a reboot is trusted, because the machine may have
been off for that time."""


@dataclass(frozen=True, slots=True)
class ClockState:
    """A reading of the clocks. `monotonic_ns` counts from the start of the machine. `ahead_ns` is
    the wall clock minus the time from which ages are computed. `believed_ns` is the time at which a
    jump ahead was last trusted."""

    wall_ns: int
    monotonic_ns: int
    boot_id: str
    ahead_ns: int = 0
    dispute: str = ""
    believed_ns: int = 0


def read_clock_state(fs: FileSystem, data_dir: Path) -> ClockState | None:
    """Return the stored state. Returns None if the file does not exist or is damaged. In both cases
    the wall clock is trusted.

    Raises StorageError if the file cannot be read.
    """
    try:
        with storage_errors(f"reading {CLOCK_NAME}"):
            content = read_checkpoint_file(fs, data_dir / CLOCK_NAME, CLOCK_NAME)
        if content is None:
            return None
        wall_ns, monotonic_ns, ahead_ns = (
            int(content[name]) for name in ("wall_ns", "monotonic_ns", "ahead_ns")
        )
        return ClockState(
            wall_ns,
            monotonic_ns,
            str(content["boot_id"]),
            ahead_ns,
            str(content.get("dispute", "")),
            int(content.get("believed_ns", 0)),
        )
    except (CorruptMetadata, UnsupportedFormat, KeyError, TypeError, ValueError) as error:
        if isinstance(error.__cause__, OSError):  # the disk cannot return its bytes at present
            raise StorageError(str(error)) from error
        logger.warning("clock-file-ignored error=%s", error)
        return None


def write_clock_state(fs: FileSystem, data_dir: Path, state: ClockState) -> None:
    """Write the file. Durable on return. Raises OSError."""
    write_checkpoint_file(fs, data_dir / CLOCK_NAME, CLOCK_NAME, asdict(state))


class ClockGuard:
    """Provides the time from which ages are computed. Thread-safe.

    A step is a change of the wall clock relative to the monotonic clock by more than ten minutes,
    or by more than an hour while the machine was off.
    """

    def __init__(
        self, clock: Clock, before: ClockState | None = None, boot_id: str | None = None
    ) -> None:
        """`before` is the state that an earlier process has stored."""
        self._clock = clock
        self._boot_id = boot_id or ""
        self._lock = threading.Lock()
        self._wall_ns = self._first_wall_ns = clock.now_ns()
        self._monotonic_ns = self._first_monotonic_ns = clock.monotonic_ns()
        self._stepped_at_ns: int | None = None
        self._ahead_ns = 0
        self._steps = 0
        self._believed_ns = 0
        self.dispute = ""
        """The difference between this clock and other nodes' clocks at the last measurement, as
        text; empty if the clock was right."""
        self.unread = ""
        """The reason why the state of an earlier process cannot be read; empty if the state was
        read."""
        if before is not None:
            self._continue(before)

    def wall_clock_is_trusted(self) -> bool:
        """Return False for an hour after a step, and while the state of the earlier process cannot
        be read. While the result is False, no record is deleted by age."""
        with self._lock:
            self._look()
            return self._stepped_at_ns is None and not self.unread

    def now_ns(self) -> int:
        """Return the time from which ages are computed. A jump of the wall clock, ahead or back,
        does not make records seem older than they are."""
        with self._lock:
            self._look()
            return self._wall_ns - max(self._ahead_ns, 0)

    @property
    def doubt_seconds(self) -> float:
        """The wall clock minus the time from which ages are computed, in seconds; 0.0 if the clock
        is trusted."""
        with self._lock:
            self._look()
            return max(self._ahead_ns, 0) / 1e9

    def believe(self, reason: str, *, steps: int | None = None) -> None:
        """Compute ages from the wall clock from now on. Does nothing if another step was detected
        after the caller read `steps`."""
        with self._lock:
            self._look()
            if steps not in (None, self._steps):
                return
            if self._ahead_ns > 0:
                seconds = self._ahead_ns // 10**9
                logger.warning("wall-clock-believed seconds=%d reason=%s", seconds, reason)
                self._believed_ns = self._wall_ns
            self._stepped_at_ns, self._ahead_ns, self.unread = None, 0, ""

    @property
    def believed_ns(self) -> int:
        """The time at which a jump ahead was last trusted; 0 if there was no such jump. Before that
        jump the clock was behind, so times from before the jump are too early."""
        with self._lock:
            self._look()
            return self._believed_ns

    @property
    def steps(self) -> int:
        """Number of steps detected so far."""
        with self._lock:
            self._look()
            return self._steps

    def confirm(self) -> None:
        """Trust the wall clock regardless of earlier measurements, because an operator confirms
        that it is right."""
        self.dispute = ""
        self.believe("the operator has confirmed it")

    def resume(self, before: ClockState | None) -> None:
        """Apply the state of an earlier process that could not be read at the start (`unread`).
        Steps that this process has detected since its start still count."""
        with self._lock:
            self._look()
            self.unread = ""
            if before is not None:
                self._continue(before)

    def state(self) -> ClockState:
        """The state to store for the next process."""
        with self._lock:
            self._look()
            ahead_ns = max(self._ahead_ns, 0)
            return ClockState(
                self._wall_ns,
                self._monotonic_ns,
                self._boot_id,
                ahead_ns,
                self.dispute,
                self._believed_ns,
            )

    def _continue(self, before: ClockState) -> None:
        passed = self._first_monotonic_ns - before.monotonic_ns
        step = self._first_wall_ns - before.wall_ns
        self._ahead_ns += before.ahead_ns
        self._believed_ns = max(self._believed_ns, before.believed_ns)
        self.dispute = self.dispute or before.dispute
        if self._boot_id and before.boot_id == self._boot_id and passed >= 0:
            self._step(step - passed, STEP_NS)
        elif step < 0:
            self._step(step, STEP_NS)
        else:
            self._step(step, _DOWN_NS)
        if self._ahead_ns:
            self._stepped_at_ns = self._monotonic_ns  # a restart does not confirm the clock

    def _look(self) -> None:
        wall, monotonic = self._clock.now_ns(), self._clock.monotonic_ns()
        step = (wall - self._wall_ns) - (monotonic - self._monotonic_ns)
        self._wall_ns, self._monotonic_ns = wall, monotonic
        self._step(step, STEP_NS)
        if self._stepped_at_ns is not None and monotonic - self._stepped_at_ns > _CONFIRM_NS:
            self._stepped_at_ns, self._ahead_ns = None, max(self._ahead_ns, 0)

    def _step(self, step: int, largest: int) -> None:
        if abs(step) <= largest:
            return
        self._stepped_at_ns = self._monotonic_ns
        self._steps += 1
        self._ahead_ns += step
        if abs(self._ahead_ns) <= STEP_NS:  # the clock was set back
            self._ahead_ns = 0
        if self._believed_ns > self._wall_ns:  # the jump that was trusted was wrong
            self._believed_ns = 0
        logger.warning("wall-clock-stepped seconds=%d retention_by_time=suspended", step // 10**9)
