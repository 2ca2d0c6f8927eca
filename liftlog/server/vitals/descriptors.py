"""Divides the file descriptors of the process at the start, and counts the free descriptors.

The daemon raises its soft limit to the hard limit. Streams and connections get separate shares, so
that neither can use the descriptors of the other. Some descriptors are reserved for NATS, and for
files that a commit, a start or a deletion opens for a short time.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import resource
import time
from collections.abc import Iterator
from dataclasses import dataclass

from liftlog.errors import ConfigError, LimitExceeded
from liftlog.server.vitals.conditions import Condition

logger = logging.getLogger("liftlog.server")

KEPT_BACK = 64
"""Number of descriptors that are reserved for files other than connections and the files of
streams."""
LEAST = 256
"""Minimum number of descriptors with which the daemon starts."""
_SPARE = 16
"""If fewer descriptors than this are free, no stream is created."""
_NEAR = 1000
"""If fewer descriptors than this are free, they are counted again before each new stream."""
_PER_STREAM = 4
"""Number of descriptors that a new stream may open before the next count."""
_MOST = 65_536
_FRESH_SECONDS = 1.0


def raise_open_file_limit() -> int:
    """Raise the soft limit to the hard limit if the system permits it. Return the soft limit that
    then applies. The soft limit of most systems (1024) is meant for programs that use `select`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    return _bounded(soft)


def for_want_of_descriptors(error: Exception) -> LimitExceeded | None:
    """Return the error for clients if `error` means that no descriptor was free. Return None
    otherwise."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in (errno.EMFILE, errno.ENFILE):
            return LimitExceeded(
                "the daemon has no file descriptor left to answer this",
                hint="try again later; if it persists, raise the daemon's limit (LimitNOFILE)",
            )
        cause = cause.__cause__
    return None


@dataclass(frozen=True, slots=True)
class Shares:
    """The descriptors for files that streams write, for segments that are read, and for connections
    of the pull socket and of the HTTP port."""

    limit: int
    written_files: int
    read_files: int
    pull_connections: int
    http_connections: int


def shares_of(limit: int, *, read_files: int, pull: int, http: int) -> Shares:
    """Divide `limit` descriptors. The other three arguments come from the settings.

    If the limit is small, each share is a fixed part of the limit. Otherwise connections and
    readers get their configured numbers, and streams get the remaining descriptors. Raises
    ConfigError if the limit is below `LEAST`.
    """
    if limit < LEAST:
        raise ConfigError(
            f"the daemon may open {limit} files, and needs {LEAST}",
            hint="raise the limit: LimitNOFILE= of the unit, `ulimit -n` in a shell",
        )
    usable = limit - KEPT_BACK
    read_files = min(read_files, usable // 6)
    http = min(http, usable // 6)
    pull = min(pull, usable // 3)
    return Shares(limit, usable - read_files - http - pull, read_files, pull, http)


class Descriptors:
    """Counts the open files of the process, at most once a second. Belongs to the event loop."""

    def __init__(self) -> None:
        self._open = 0
        self._good_until = float("-inf")

    def left(self) -> tuple[int, int]:
        """Return the number of free descriptors, and the limit. If the system does not report the
        number of open descriptors, all descriptors count as free."""
        now = time.monotonic()
        if now >= self._good_until:
            with contextlib.suppress(OSError):
                self._open = len(os.listdir("/proc/self/fd")) - 1  # noqa: PTH208 - ten times faster
            self._good_until = now + _FRESH_SECONDS
        limit = _bounded(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        return max(0, limit - self._open), limit

    def check_spare(self) -> None:
        """Raise LimitExceeded if there are too few free descriptors to create a stream."""
        left, limit = self.left()
        if left < _NEAR:  # counting the descriptors of thousands of streams takes milliseconds
            self._good_until = float("-inf")
            left, limit = self.left()
        self._open += _PER_STREAM
        if left < _SPARE:
            raise LimitExceeded(
                f"the daemon has {left} of its {limit:,} file descriptors left",
                hint="raise its limit (LimitNOFILE= of the unit), or close connections",
            )

    def conditions(self) -> Iterator[Condition]:
        left, limit = self.left()
        if left < _SPARE:
            yield Condition.of("descriptors", f"{left} of {limit:,} are left")


def _bounded(limit: int) -> int:
    return _MOST if limit == resource.RLIM_INFINITY else limit
