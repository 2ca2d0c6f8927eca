"""Sets the rate of cleaning: unlimited while the daemon is idle, low while it is busy.

While a job runs, the daemon measures its own work every 20 ms. An idle daemon grants full speed to
the worker process for a short time, and renews this grant while it stays idle. The daemon withdraws
the grant as soon as messages arrive. If the daemon stalls and cannot withdraw it, the grant expires
by itself.
"""

from __future__ import annotations

from typing import NamedTuple

BUSY_RATE_BYTES = 32 * 2**20
"""Rate in bytes per second. If cleaning runs at this rate at half of the daemon's peak load, no ack
fails, and the latency grows only a little; docs/explanation/performance.md has the figures."""
LOOK_SECONDS = 0.02
GRANT_SECONDS = 0.2
"""Duration of a grant, in seconds. The time is much longer than the interval of measurements, so
that a short delay of the event loop does not end full speed."""
_QUIET_SECONDS = 0.25
_IDLE_CPU_PART = 0.25


class Rates(NamedTuple):
    """Bytes per second that a job may read and write."""

    busy_bytes: int
    idle_bytes: int | None
    """Rate while the daemon is idle, in bytes per second; None stands for no limit."""


def fixed_rate(bytes_per_second: int) -> Rates:
    return Rates(bytes_per_second, bytes_per_second)


def rates_of(cleaner_bytes: int | None, stream_bytes: int | None = None) -> Rates:
    """Return the rates for two settings: `cleaner.max_rate` (None for auto), and
    `compaction.max_rate` of a stream (None if the stream has no limit). A configured rate is an
    upper limit, also while the daemon is idle."""
    ceilings = [rate for rate in (cleaner_bytes, stream_bytes) if rate is not None]
    if cleaner_bytes is not None:
        return fixed_rate(min(ceilings))
    return Rates(min([BUSY_RATE_BYTES, *ceilings]), stream_bytes)


class Seen(NamedTuple):
    """One measurement of the daemon's own work. `at` is a time and `is_committing` a state; all
    other fields are counters that only grow."""

    at: float
    """Time in seconds, on a monotonic clock."""
    received_bytes: int
    """Bytes received from NATS."""
    syncs: int
    """Number of syncs of all streams, including syncs for the daemon's own records."""
    is_committing: bool
    """True if a commit waits for the disk. Only this field distinguishes a stalled disk from an
    idle disk."""
    cpu_seconds: float
    """CPU time of the process in seconds, including the work for consumers, TLS, filters and
    requests."""


def is_busy(before: Seen, now: Seen) -> bool:
    """Return True if, between the two measurements, the daemon did work that cleaning could slow
    down."""
    return (
        now.is_committing
        or now.received_bytes != before.received_bytes
        or now.syncs != before.syncs
        or now.cpu_seconds - before.cpu_seconds > _IDLE_CPU_PART * (now.at - before.at)
    )


class IdleWatch:
    """Treats the daemon as idle when it has not been busy for a quarter of a second."""

    def __init__(self) -> None:
        self._before: Seen | None = None
        self._busy_at = 0.0

    def look(self, now: Seen) -> bool:
        """Compare the measurement with the previous one. Returns True if the daemon is idle.

        No measurements are taken between jobs. So the first measurement of a job covers the whole
        time since the last measurement of the previous job.
        """
        before, self._before = self._before, now
        if before is None or is_busy(before, now):
            self._busy_at = now.at
        return now.at - self._busy_at >= _QUIET_SECONDS
