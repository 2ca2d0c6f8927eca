"""What one stream's commits look like from outside: how long acks take, how much they share."""

from __future__ import annotations

import time
from collections import deque

from liftlog.server.vitals.histogram import COUNT_BOUNDS, LATENCY_BOUNDS, Histogram


class StreamObservations:
    """One note per run and per commit group, none per message. Belongs to the event loop."""

    __slots__ = ("_arrivals", "ack_seconds", "group_records")

    def __init__(self) -> None:
        self.ack_seconds = Histogram(LATENCY_BOUNDS)
        self.group_records = Histogram(COUNT_BOUNDS)
        self._arrivals: deque[tuple[float, int]] = deque()

    def arrived(self, messages: int) -> None:
        """They will be answered with the groups to come, in this order."""
        self._arrivals.append((time.perf_counter(), messages))

    def answered(self, messages: int, records: int) -> None:
        """A group is committed and its acks are on their way."""
        if records:
            self.group_records.observe(records)
        now = time.perf_counter()
        arrivals = self._arrivals
        while messages > 0 and arrivals:
            since, count = arrivals.popleft()
            self.ack_seconds.observe(now - since, count)
            messages -= count

    def failed(self) -> None:
        """Everything that waited was refused."""
        self._arrivals.clear()
