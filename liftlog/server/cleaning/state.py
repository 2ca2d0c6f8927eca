"""The state of one stream's cleaning, for reports and metrics."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from compaction.planning import CompactionBacklog, CompactionPlan
from liftlog.log import Log
from liftlog.log.rewrite import CompactResult

_MAX_BACKOFF_SECONDS = 3600.0
_MAX_HISTORY = 20


@dataclass(slots=True, eq=False)
class StreamCleaning:
    """The state of one stream's cleaning. Only the cleaner changes it. Times are seconds of the
    monotonic clock, except in `history`."""

    requested: int = 0
    """Number of requested passes; `finished` is the number of requested passes that have ended."""
    finished: int = 0
    rolled: int = 0
    """Number of the last request for which the active segment was already rolled."""
    unfinished: bool = False
    """True if the stream's turn ended before its passes were complete."""
    running: str = ""
    """Kind of the running job: "compact", "rebatch" or "scrub"; "" if no job runs."""
    progress: dict[str, Any] | None = None
    backlog: CompactionBacklog = field(default_factory=lambda: CompactionBacklog(0, 0))
    history: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=_MAX_HISTORY))
    """The most recent passes, newest first."""
    error: str = ""
    failed_kind: str = ""
    """Kind of the job that failed with `error`."""
    failures_in_a_row: int = 0
    not_before: float = 0.0
    look_again_at: float = 0.0

    passes: int = 0
    records_removed: int = 0
    bytes_freed: int = 0
    rebatched_segments: int = 0
    scrubbed_segments: int = 0
    scrubbed_bytes: int = 0
    failures: int = 0

    @property
    def last_pass(self) -> dict[str, Any] | None:
        return self.history[0] if self.history else None

    @property
    def is_requested(self) -> bool:
        return self.requested > self.finished

    @property
    def progress_ratio(self) -> float:
        if self.progress is None or not self.progress["total_bytes"]:
            return 0.0
        return float(min(1.0, self.progress["done_bytes"] / self.progress["total_bytes"]))

    def note_progress(self, phase: str, done_bytes: int, total_bytes: int) -> None:
        self.progress = {"phase": phase, "done_bytes": done_bytes, "total_bytes": total_bytes}

    def note_pass(
        self,
        plan: CompactionPlan,
        result: CompactResult,
        freed_bytes: int,
        *,
        time_ns: int,
        seconds: float,
    ) -> None:
        """Record a pass whose result was swapped in. The pass was planned at `time_ns`."""
        self.passes += 1
        self.records_removed += result.records_in - result.records_out
        self.bytes_freed += freed_bytes
        self.history.appendleft(
            {
                "time_ns": time_ns,
                "seconds": round(seconds, 3),
                "records_in": result.records_in,
                "records_out": result.records_out,
                "bytes_in": result.bytes_in,
                "bytes_out": result.bytes_out,
                "keys": result.distinct_keys,
                "complete": result.complete,
                "reasons": list(plan.reasons),
            }
        )

    def note_failure(
        self, kind: str, error: str, now: float, first_backoff_seconds: float
    ) -> float:
        """Record a failure, and return the number of seconds for which the stream is skipped."""
        self.error, self.failed_kind = error, kind
        self.failures += 1
        doubled: float = first_backoff_seconds * 2 ** min(self.failures_in_a_row, 20)
        self.failures_in_a_row += 1
        seconds = min(doubled, _MAX_BACKOFF_SECONDS)
        self.not_before = now + seconds
        return seconds

    def note_success(self) -> None:
        self.error = ""
        self.failures_in_a_row = 0
        self.not_before = 0.0

    def to_info(self, log: Log, *, enabled: bool, now: float, reason: str = "") -> dict[str, Any]:
        """Return the field `compaction` of `StreamInfo`. `reason` is the reason why the stream is
        not being compacted."""
        state = self._state(enabled=enabled, now=now)
        return {
            "state": state,
            "reason": reason if state in ("idle", "waiting") else "",
            "dirty_ratio": round(self.backlog.dirty_ratio, 4),
            "dirty_bytes": self.backlog.dirty_bytes,
            "cleaned_below": log.view.manifest.cleaned_below,
            "tombstones_removed_below": log.view.manifest.tombstones_removed_below,
            "requested": self.requested,
            "finished": self.finished,
            "passes": self.passes,
            "progress": self.progress if self.running == "compact" else None,
            "last_pass": self.last_pass,
            "error": self.error,
        }

    def _state(self, *, enabled: bool, now: float) -> str:
        if self.running == "compact":
            return "running"
        if not enabled:
            return "off"
        if self.not_before > now:
            return "backing off"
        return "waiting" if self.is_requested else "idle"
