"""How fast cleaning may go when no rate is configured: as fast as it can while the daemon is idle,
and slowly beside its work, since both share the disk and the processors."""

from __future__ import annotations

import time
from collections.abc import Callable

BESIDE_WORK = 32 * 2**20
"""Bytes per second. A compaction at this rate leaves publishers their throughput."""
UNBOUNDED = 2**40
"""Bytes per second."""
LOOK_EVERY_SECONDS = 0.1

_QUIET_SECONDS = 1.0
_IDLE_CPU = 0.1


class Pace:
    """Belongs to the event loop. The daemon works while logs grow, or while its threads take more
    than a tenth of a core, as they do for consumers."""

    def __init__(
        self,
        records: Callable[[], int],
        *,
        clock: Callable[[], float] = time.monotonic,
        cpu: Callable[[], float] = time.process_time,
    ) -> None:
        """`records` counts all records that were ever stored, `cpu` the processor time in seconds;
        both only ever grow, or change when streams come and go."""
        self._records = records
        self._clock = clock
        self._cpu = cpu
        self._seen = 0
        self._cpu_seen = self._looked_at = self._worked_at = 0.0

    def begin(self) -> None:
        """A job begins. What happened since the last one says nothing about now, so the daemon is
        taken to be at work until it was seen to be idle."""
        self._seen, self._cpu_seen = self._records(), self._cpu()
        self._looked_at = self._worked_at = self._clock()

    def rate(self) -> int:
        """In bytes per second. Called every `LOOK_EVERY_SECONDS` while a job runs."""
        now, records, cpu = self._clock(), self._records(), self._cpu()
        elapsed = now - self._looked_at
        if records != self._seen or cpu - self._cpu_seen > elapsed * _IDLE_CPU:
            self._worked_at = now
        self._seen, self._cpu_seen, self._looked_at = records, cpu, now
        return UNBOUNDED if now - self._worked_at >= _QUIET_SECONDS else BESIDE_WORK
