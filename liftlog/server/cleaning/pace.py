"""Decides how fast cleaning may go: without a limit while the daemon is idle, slowly beside its
work.

While a job runs, the daemon measures itself every 20 ms and sends the worker process the time for
which it may go at full speed. Such a grant is short and has to be renewed: when messages come it is
withdrawn at once, and if the daemon cannot withdraw it because it stalls, the grant ends by itself.
"""

from __future__ import annotations

from typing import NamedTuple

BUSY_RATE_BYTES = 32 * 2**20
"""Per second. Beside a daemon at half of its peak load this costs no message its ack, and little
of the latency; docs/explanation/performance.md has the figures."""
LOOK_SECONDS = 0.02
GRANT_SECONDS = 0.2
"""Much longer than the interval of measurements: full speed would otherwise be lost whenever the
event loop is a little late."""
_QUIET_SECONDS = 0.25
_IDLE_CPU_PART = 0.25


class Rates(NamedTuple):
    """Bytes per second that a job may read and write."""

    busy_bytes: int
    idle_bytes: int | None
    """Rate while the daemon is idle; None means no limit."""


def fixed_rate(bytes_per_second: int) -> Rates:
    return Rates(bytes_per_second, bytes_per_second)


def rates_of(cleaner_bytes: int | None, stream_bytes: int | None = None) -> Rates:
    """Return the rates from `cleaner.max_rate` (None: auto) and `compaction.max_rate` of a stream
    (None: no limit of its own). A configured figure is a ceiling, whether the daemon is idle or
    not."""
    ceilings = [rate for rate in (cleaner_bytes, stream_bytes) if rate is not None]
    if cleaner_bytes is not None:
        return fixed_rate(min(ceilings))
    return Rates(min([BUSY_RATE_BYTES, *ceilings]), stream_bytes)


class Seen(NamedTuple):
    """One measurement of the daemon's own work. All fields but `at` and `is_committing` only ever
    grow."""

    at: float
    """Seconds, on a monotonic clock."""
    received_bytes: int
    """Bytes received from NATS."""
    syncs: int
    """Syncs of all streams, including those for the daemon's own records."""
    is_committing: bool
    """True if a stream waits for the disk. Only this distinguishes a stalled disk from an idle
    one."""
    cpu_seconds: float
    """CPU time of the process. It includes consumers that read, TLS, filters and requests."""


def is_busy(before: Seen, now: Seen) -> bool:
    """Return True if between two measurements there was work that cleaning could slow down."""
    return (
        now.is_committing
        or now.received_bytes != before.received_bytes
        or now.syncs != before.syncs
        or now.cpu_seconds - before.cpu_seconds > _IDLE_CPU_PART * (now.at - before.at)
    )


class IdleWatch:
    """Treats the daemon as idle once it has not been busy for a quarter of a second."""

    def __init__(self) -> None:
        self._before: Seen | None = None
        self._busy_at = 0.0

    def look(self, now: Seen) -> bool:
        """Return True if the daemon is idle.

        There are no measurements between jobs: the first one of a job judges the whole time since
        the last one of the job before.
        """
        before, self._before = self._before, now
        if before is None or is_busy(before, now):
            self._busy_at = now.at
        return now.at - self._busy_at >= _QUIET_SECONDS
