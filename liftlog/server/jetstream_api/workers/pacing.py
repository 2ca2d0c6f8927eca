"""Slows deliveries down: `rate_limit_bps` of a push consumer, `replay_policy: original`. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from liftlog.server.jetstream_api.consumers.config import ConsumerSpec
from liftlog.server.jetstream_api.consumers.rows import Row

_BURST_NS = 100_000_000
_NS = 1_000_000_000
_SHORT_NS = 1_000_000
"""As in JetStream, intervals of at most this length (ns) cause no pause."""


class ByteRate:
    """A limit on the bytes per second that are pushed. The last message of a turn may exceed the
    limit; the next message then waits longer."""

    def __init__(self, bits_per_second: int) -> None:
        self._bytes_per_second = max(bits_per_second / 8, 1 / 8)
        self._most = self._bytes_per_second * _BURST_NS / _NS
        self._credit = self._most
        self._at_ns = 0

    def room(self, now_ns: int) -> int:
        """Return the number of bytes that may be sent now; if it is 0 or less, no byte may be
        sent."""
        earned = (now_ns - self._at_ns) * self._bytes_per_second / _NS if self._at_ns else 0.0
        self._credit = min(self._credit + earned, self._most)
        self._at_ns = now_ns
        return int(max(self._credit, 1)) if self._credit > 0 else 0

    def spend(self, size_bytes: int, now_ns: int) -> None:
        self.room(now_ns)
        self._credit -= size_bytes

    def due_ns(self) -> int:
        """Return the time at which bytes may be sent again."""
        missing = max(-self._credit, 0)
        return self._at_ns + int(missing / self._bytes_per_second * _NS) + 1


def rate_of(spec: ConsumerSpec) -> ByteRate | None:
    return ByteRate(spec.rate_limit_bps) if spec.rate_limit_bps else None


class Replay:
    """Delays records by the intervals between their timestamps, until the end of the stream is
    reached for the first time."""

    def __init__(self) -> None:
        self._stamp_ns = 0
        self._sent_ns = 0
        self.is_over = False

    def ready(self, rows: Sequence[Row], now_ns: int) -> int:
        """Return the number of rows, from the first one on, that may be delivered now."""
        if self.is_over or not rows:
            return len(rows)
        if now_ns < self.due_ns(rows[0]):
            return 0
        count = 1
        while count < len(rows) and self._pause(rows[count - 1], rows[count]) <= _SHORT_NS:
            count += 1
        return count

    def due_ns(self, row: Row) -> int:
        """Return the time at which the next row may be sent."""
        pause = row.timestamp_ns - self._stamp_ns
        return self._sent_ns + pause if self._stamp_ns and pause > _SHORT_NS else 0

    def delivered(self, stamp_ns: int, now_ns: int) -> None:
        """Note the timestamp of the newest record that was delivered."""
        self._stamp_ns, self._sent_ns = stamp_ns, now_ns

    @staticmethod
    def _pause(before: Row, after: Row) -> int:
        return after.timestamp_ns - before.timestamp_ns
