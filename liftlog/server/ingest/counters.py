"""Counts what has happened to the link to NATS."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from liftlog.server.ingest.endings import Cause


@dataclass(slots=True)
class LinkCounters:
    """Counts since the start of the daemon."""

    connects: int = 0
    disconnects: int = 0
    protocol_errors: int = 0
    slow_consumer_errors: int = 0
    watchdog_reconnects: int = 0
    acks_dropped: int = 0
    acks_refused: int = 0
    acks_oversized: int = 0
    handovers: int = 0
    disconnects_by_cause: Counter[Cause] = field(default_factory=Counter)

    @property
    def changes(self) -> int:
        """Number of connections that have begun or ended."""
        return self.connects + self.disconnects + self.handovers

    def ended(self, cause: Cause) -> None:
        """Count the end of a connection."""
        self.disconnects += 1
        self.disconnects_by_cause[cause] += 1
        self.slow_consumer_errors += cause is Cause.SLOW_CONSUMER
        self.protocol_errors += cause is Cause.PROTOCOL
