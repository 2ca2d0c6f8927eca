"""Delivers each message once while two connections receive the same messages.

While the daemon moves to another server, both connections are subscribed. A cluster needs some time
to propagate a subscription. Messages that are published during this time must arrive over one of
the connections. Core NATS does not number messages, so copies are found by their content: subject,
reply, headers and payload.

    old connection   ----a--b--c--d--e|            everything is delivered at once
    new connection             c--d--e--f--g--     held back; c, d and e are dropped as copies
                              ^       ^
                        subscribed    the old one is drained: f is delivered, then g

The order of each publisher's messages is kept. Messages are counted: two equal messages that arrive
over both connections are delivered twice, not once and not four times.

Equal messages need more care. Some of them may have arrived over the old connection before the new
subscription took effect. Such messages have no copies, and must not be paired with equal messages
that arrive after the end of the old connection.

While both connections are quiet, the number of messages without a copy is known: it is the
difference between the numbers of messages that the two connections have delivered. If equal
messages arrive so fast that there is no quiet moment, this number is estimated. The estimate tends
to be too high. So a few messages may be stored twice, but no message is lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Protocol

from liftlog.sequencing.run import MESSAGE_OVERHEAD_BYTES, MessageRun

_CLEARLY = 2
_HIGH_PART = 0.9


class Receiver(Protocol):
    """A subscription that both connections have."""

    @property
    def handler(self) -> Callable[[MessageRun], None]: ...


class Overlap:
    """Pairs the messages of two connections. Pure; belongs to the event loop."""

    def __init__(
        self,
        now: Callable[[], float],
        *,
        pair_seconds: float,
        max_messages: int,
        max_held_bytes: int,
    ) -> None:
        """`pair_seconds` is the time within which both copies of a message arrive."""
        self._now = now
        self._pair_seconds = pair_seconds
        self._max_messages = max_messages
        self._max_held_bytes = max_held_bytes
        self._seen: dict[bytes, _Seen] = {}
        self._held: dict[int, _Held] = {}
        self._next_number = 0
        self.held_bytes = 0
        self.copies = 0
        """Number of messages that arrived over both connections."""

    @property
    def is_full(self) -> bool:
        """True if the overlap should end soon, because it uses too much memory."""
        return len(self._seen) > self._max_messages or self.held_bytes > self._max_held_bytes

    # --- while both are subscribed ---

    def from_old(self, receiver: Receiver, run: MessageRun) -> None:
        """Note a run that arrived over the old connection. The caller delivers the run, so copies
        of its messages will be dropped."""
        now = self._now()
        for one in parts_of(run):
            seen = self._seen_of(receiver, one)
            seen.pass_time(now)
            seen.old += 1
            seen.old_at = now
            if seen.held:
                number = seen.held.popleft()
                self.held_bytes -= self._held.pop(number).size_bytes
                seen.copies += 1
                self.copies += 1

    def from_new(self, receiver: Receiver, run: MessageRun) -> None:
        """Hold back the messages of a run over the new connection that have not arrived over the
        old connection."""
        now = self._now()
        for row, one in enumerate(parts_of(run)):
            seen = self._seen_of(receiver, one)
            seen.pass_time(now)
            if seen.old > seen.copies and now - seen.old_at <= self._pair_seconds:
                seen.copies += 1
                self.copies += 1
                if seen.old > 1:
                    seen.example = (receiver, run, row)
                continue
            self._next_number += 1
            held = _Held(receiver, run, row, sum(map(len, one)) + MESSAGE_OVERHEAD_BYTES)
            self._held[self._next_number] = held
            seen.held.append(self._next_number)
            self.held_bytes += held.size_bytes

    # --- after the old one is drained ---

    def release(self) -> list[tuple[Receiver, MessageRun]]:
        """Return the messages that were held back, in the order of arrival."""
        now = self._now()
        found: list[tuple[Receiver, MessageRun]] = []
        rows: list[int] = []
        last: _Held | None = None
        for held in self._held.values():
            if last is not None and held.run is not last.run:
                found.append((last.receiver, select(last.run, rows)))
                rows = []
            rows.append(held.row)
            last = held
        if last is not None:
            found.append((last.receiver, select(last.run, rows)))
        for seen in self._seen.values():
            seen.pass_time(now)
            too_many = seen.copies - seen.expected_copies
            if too_many > 0 and seen.example is not None:
                receiver, run, row = seen.example
                found += [(receiver, select(run, [row]))] * too_many
                seen.copies -= too_many
                self.copies -= too_many
        self._held.clear()
        self.held_bytes = 0
        return found

    def late(self, receiver: Receiver, run: MessageRun) -> MessageRun | None:
        """Return the messages of a run over the new connection that are not late copies. Return
        None if all of them are late copies."""
        rows = []
        now = self._now()
        for row, one in enumerate(parts_of(run)):
            seen = self._seen.get(digest_of(receiver, one))
            if (
                seen is not None
                and seen.copies < seen.expected_copies
                and now - seen.old_at <= self._pair_seconds
            ):
                seen.copies += 1
                self.copies += 1
            else:
                rows.append(row)
        return select(run, rows) if rows else None

    def _seen_of(self, receiver: Receiver, parts: Parts) -> _Seen:
        digest = digest_of(receiver, parts)
        seen = self._seen.get(digest)
        if seen is None:
            seen = self._seen[digest] = _Seen()
        return seen


class _Seen:
    """The counts of a set of equal messages."""

    __slots__ = ("_expected", "at", "copies", "example", "held", "old", "old_at", "seconds")

    def __init__(self) -> None:
        self.old = 0
        """Number of messages that arrived over the old connection."""
        self.old_at = 0.0
        self.copies = 0
        """Number of messages over the new connection that were treated as copies."""
        self.held: deque[int] = deque()
        self.example: tuple[Receiver, MessageRun, int] | None = None
        self.seconds: dict[int, float] = {}
        """A lead is the number of messages by which the old connection is ahead. Maps each lead to
        the seconds for which the connection had this lead."""
        self.at = 0.0
        self._expected: int | None = None

    def pass_time(self, now: float) -> None:
        """Add the time since the last change to `seconds`. Call this before each change. Does
        nothing after a single message: one message does not show which connection is ahead."""
        if self.old > 1:
            ahead = self.old - self.copies - len(self.held)
            self.seconds[ahead] = self.seconds.get(ahead, 0.0) + now - self.at
        self.at = now
        self._expected = None

    @property
    def expected_copies(self) -> int:
        """Return the number of messages of the old connection that also arrive over the new
        connection."""
        # Cached, because the value is needed for each late message, and `seconds` may have one
        # entry per message.
        if self._expected is None:
            self._expected = self.old - min(max(self._without_copy(), 0), self.old)
        return self._expected

    def _without_copy(self) -> int:
        if self.old < 2 or not self.seconds:
            return 0
        most, *others = sorted(self.seconds, key=self.seconds.__getitem__, reverse=True)
        if not others or self.seconds[most] >= self.seconds[others[0]] * _CLEARLY:
            return most
        wanted = sum(self.seconds.values()) * _HIGH_PART
        for ahead in sorted(self.seconds):
            wanted -= self.seconds[ahead]
            if wanted <= 0:
                return ahead
        return most


class _Held:
    __slots__ = ("receiver", "row", "run", "size_bytes")

    def __init__(self, receiver: Receiver, run: MessageRun, row: int, size_bytes: int) -> None:
        self.receiver = receiver
        self.run = run
        self.row = row
        self.size_bytes = size_bytes


Parts = tuple[bytes, bytes, bytes, bytes]
"""Subject, reply, headers, payload."""


def parts_of(run: MessageRun) -> list[Parts]:
    headers = run.headers if run.headers is not None else [b""] * len(run)
    return list(zip(run.subjects, run.replies, headers, run.payloads, strict=True))


def digest_of(receiver: Receiver, parts: Parts) -> bytes:
    subject, reply, headers, payload = parts
    # The address identifies the receiver, because a subscription outlives the overlap.
    lengths = b"%d %d %d %d " % (id(receiver), len(subject), len(reply), len(headers))
    return blake2b(b"".join((lengths, subject, reply, headers, payload)), digest_size=16).digest()


def select(run: MessageRun, rows: Sequence[int]) -> MessageRun:
    """Return a run that contains only these rows."""
    if len(rows) == len(run):
        return run
    return MessageRun(
        [run.subjects[row] for row in rows],
        [run.replies[row] for row in rows],
        [run.payloads[row] for row in rows],
        None if run.headers is None else [run.headers[row] for row in rows],
        has_cookie=run.has_cookie,
    )
