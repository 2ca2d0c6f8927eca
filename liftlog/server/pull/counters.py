"""What the pull server counts; the metrics page reads it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from liftlog.errors import LiftlogError
from liftlog.protocol.messages import FetchHeader


@dataclass(slots=True)
class PullCounters:
    connections_total: int = 0
    connections_refused_total: int = 0
    fetches_total: int = 0
    records_total: int = 0
    """Upper bound: batches are not opened to count."""
    body_bytes_total: int = 0
    refusals_total: Counter[str] = field(default_factory=Counter)
    """By name of the error."""

    def fetch(self, header: FetchHeader) -> None:
        self.fetches_total += 1
        self.records_total += header.record_count
        self.body_bytes_total += header.body_length

    def refusal(self, error: LiftlogError) -> None:
        self.refusals_total[error.name] += 1
