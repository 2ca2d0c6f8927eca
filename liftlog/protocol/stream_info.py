"""What `describe` and `list` say about a stream."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from liftlog.protocol.described import Described


@dataclass(frozen=True, slots=True)
class StreamInfo(Described):
    """A stream as the daemon sees it at one moment. Sizes in bytes, offsets as in the log."""

    name: str = ""
    subject: str = ""
    queue_group: str | None = None
    state: str = "unknown"
    origin: str = "api"
    incarnation: str = ""
    log_start_offset: int = 0
    high_watermark: int = 0
    log_end_offset: int = 0
    record_count: int | None = None
    """How many records are left between log start and high watermark; None from a daemon that does
    not say. Exact but for records behind a damage and, after compaction, those of the first segment
    that lie below the log start: then it is an upper bound."""
    size_bytes: int = 0
    segment_count: int = 0
    leader_epoch: int = 0
    acks: str = ""
    durability: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    possible_losses: list[dict[str, Any]] = field(default_factory=list)
    quarantined: list[dict[str, Any]] = field(default_factory=list)
    compaction: dict[str, Any] = field(default_factory=dict)
    readable_subjects: list[str] = field(default_factory=list)
    """When not empty: who asked gets only the records on these. Told by `describe` alone."""

    @property
    def records(self) -> int:
        """`record_count`, or the number of offsets where that is not known."""
        if self.record_count is not None:
            return self.record_count
        return max(self.high_watermark - self.log_start_offset, 0)
