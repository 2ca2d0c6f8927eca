"""Counters and measurements of one stream: messages received, commits, the time that acks take."""

from __future__ import annotations

import time
from collections import Counter, deque

from liftlog.server.vitals.histogram import COUNT_BOUNDS, LATENCY_BOUNDS, Histogram

_REFUSING_SECONDS = 5.0
"""After this time (in seconds) without a failed commit, the stream no longer counts as refusing."""


class StreamObservations:
    """Counters of one stream. They are updated once per run, commit group and answer, never per
    message.

    Belongs to the event loop. The thread that appends copied batches updates the counters of copied
    batches.
    """

    __slots__ = (
        "_arrivals",
        "ack_seconds",
        "commit_failures",
        "commits",
        "copied_bytes",
        "copied_offsets",
        "erased",
        "erasures",
        "group_records",
        "inline_commits",
        "read_bytes",
        "read_records",
        "received_bytes",
        "records",
        "refusing",
        "refusing_first",
        "refusing_since",
        "repaired_ranges",
    )

    def __init__(self) -> None:
        self.ack_seconds = Histogram(LATENCY_BOUNDS)
        self.group_records = Histogram(COUNT_BOUNDS)
        self.received_bytes = 0
        self.commits = 0
        self.inline_commits = 0
        self.commit_failures = 0
        self.records = 0
        """Number of committed records."""
        self.copied_offsets = 0
        """Number of offsets that were copied from the log of the leader."""
        self.copied_bytes = 0
        self.read_records = 0
        """Upper bound of the number of records sent to consumers. It is only a bound, because
        batches are sent without counting their records."""
        self.read_bytes = 0
        self.repaired_ranges = 0
        """Number of damaged ranges restored from another replica."""
        self.erasures: Counter[str] = Counter()
        """Number of erasures, by cause."""
        self.erased: Counter[str] = Counter()
        """Number of erased records, by cause."""
        self.refusing = ""
        """The reason why the last commit failed; empty if it succeeded, or if there was no commit
        yet."""
        self.refusing_since = 0.0
        """Time of the last failed commit, by the monotonic clock."""
        self.refusing_first = 0.0
        """Time of the first failed commit after the last successful commit."""
        self._arrivals: deque[tuple[float, int]] = deque()

    def read(self, records: int, size_bytes: int) -> None:
        """Count the answer to a fetch of a consumer."""
        self.read_records += records
        self.read_bytes += size_bytes

    def copied(self, offsets: int, size_bytes: int) -> None:
        """Count an answer of the leader that was appended."""
        self.copied_offsets += offsets
        self.copied_bytes += size_bytes

    def arrived(self, messages: int) -> None:
        """Count messages that arrived. They will be answered with the next groups, in this
        order."""
        self._arrivals.append((time.perf_counter(), messages))

    @property
    def wait_seconds(self) -> float:
        """Time, in seconds, for which the oldest message without an answer has waited; 0.0 if no
        message waits."""
        return time.perf_counter() - self._arrivals[0][0] if self._arrivals else 0.0

    def answered(self, messages: int, records: int) -> None:
        """Count a committed group whose acks have been queued."""
        self.commits += 1
        self.refusing = ""
        self.records += records
        if records:
            self.group_records.observe(records)
        now = time.perf_counter()
        arrivals = self._arrivals
        while messages > 0 and arrivals:
            since, count = arrivals.popleft()
            self.ack_seconds.observe(now - since, count)
            messages -= count

    def failed(self, reason: str, still_waiting: int = 0) -> None:
        """Count a failed commit. All waiting messages were refused, except the first
        `still_waiting`."""
        self.commit_failures += 1
        self.refusing_since = time.monotonic()
        if not self.refusing:
            self.refusing_first = self.refusing_since
        self.refusing = reason
        arrivals, self._arrivals = self._arrivals, deque()
        while still_waiting > 0 and arrivals:
            self._arrivals.append(arrivals.popleft())
            still_waiting -= self._arrivals[-1][1]

    def refuses_seconds(self) -> float:
        """Time, in seconds, for which all commits have failed; 0.0 if the last commit succeeded, or
        was a long time ago."""
        now = time.monotonic()
        if not self.refusing or now - self.refusing_since > _REFUSING_SECONDS:
            return 0.0
        return now - self.refusing_first

    def unanswered(self) -> None:
        """Note that no waiting message will be answered."""
        self._arrivals.clear()
