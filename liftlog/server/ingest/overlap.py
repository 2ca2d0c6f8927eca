"""Messages that come over two connections at once, each taken once.

While the daemon moves from a server that is about to stop to another one, both subscribe, because
a cluster takes a moment until all of it knows a subscription, and what is published meanwhile must
come over one of them. Core NATS gives messages no number, so the copies are found by what they
consist of: subject, reply, headers and payload.

    old connection   ----a--b--c--d--e|            everything is delivered at once
    new connection             c--d--e--f--g--     held back; c, d and e go when their copies come
                              ^       ^
                        subscribed    the old one is drained: f is delivered, then g

So the order of a publisher's messages stays, and each is counted: two equal messages that came
over both connections are two, not one and not four. A publisher that sends equal messages all the
time could have one from before the new subscription taken for the copy of one from after the old
one ended; therefore the youngest equal message is taken first, and none that is older than
`pair_seconds`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Protocol

from liftlog.stream.run import MESSAGE_OVERHEAD_BYTES, MessageRun


class Receiver(Protocol):
    """A subscription, which both connections have."""

    @property
    def handler(self) -> Callable[[MessageRun], None]: ...


class Overlap:
    """Pure; belongs to the event loop."""

    def __init__(
        self,
        now: Callable[[], float],
        *,
        pair_seconds: float,
        max_unpaired: int,
        max_held_bytes: int,
    ) -> None:
        self._now = now
        self._pair_seconds = pair_seconds
        self._max_unpaired = max_unpaired
        self._max_held_bytes = max_held_bytes
        self._old: dict[bytes, list[float]] = {}
        """When the old connection brought messages whose copies have not come; oldest first."""
        self._old_count = 0
        self._held: dict[int, _Held] = {}
        self._held_by_digest: dict[bytes, list[int]] = {}
        self._next_number = 0
        self.held_bytes = 0
        self.copies = 0
        """Messages that came over both."""

    @property
    def is_full(self) -> bool:
        """Whether it should end soon, since it takes too much memory."""
        return self._old_count > self._max_unpaired or self.held_bytes > self._max_held_bytes

    # --- while both are subscribed ---

    def from_old(self, receiver: Receiver, run: MessageRun) -> None:
        """To be delivered, whatever comes over the other one."""
        self.note(receiver, _parts(run))

    def note(self, receiver: Receiver, parts: Sequence[_Parts]) -> None:
        """These have been dealt with: drop their copies."""
        now = self._now()
        self._expire(now)
        for one in parts:
            digest = _digest(receiver, one)
            numbers = self._held_by_digest.get(digest)
            if numbers:
                self._drop(numbers.pop(0))
                if not numbers:
                    del self._held_by_digest[digest]
            else:
                times = self._old.pop(digest, None) or []
                times.append(now)
                self._old[digest] = times
                self._old_count += 1

    def from_new(self, receiver: Receiver, run: MessageRun) -> None:
        """Hold back what has not come over the old one."""
        for row, one in enumerate(_parts(run)):
            digest = _digest(receiver, one)
            if self._is_copy(digest):
                continue
            number = self._next_number
            self._next_number += 1
            held = _Held(receiver, run, row, sum(map(len, one)) + MESSAGE_OVERHEAD_BYTES)
            self._held[number] = held
            self._held_by_digest.setdefault(digest, []).append(number)
            self.held_bytes += held.size_bytes

    # --- after the old one is drained ---

    def release(self) -> list[tuple[Receiver, MessageRun]]:
        """What was held back, in the order in which it came."""
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
        self._held.clear()
        self._held_by_digest.clear()
        self.held_bytes = 0
        return found

    def late(self, receiver: Receiver, run: MessageRun) -> MessageRun | None:
        """What of a run over the new connection is no late copy."""
        rows = [
            row for row, one in enumerate(_parts(run)) if not self._is_copy(_digest(receiver, one))
        ]
        return select(run, rows) if rows else None

    # --- inner ---

    def _is_copy(self, digest: bytes) -> bool:
        times = self._old.get(digest)
        if not times or self._now() - times[-1] > self._pair_seconds:
            return False
        times.pop()
        if not times:
            del self._old[digest]
        self._old_count -= 1
        self.copies += 1
        return True

    def _drop(self, number: int) -> None:
        self.held_bytes -= self._held.pop(number).size_bytes
        self.copies += 1

    def _expire(self, now: float) -> None:
        """Forget what is too old to have a copy. The order of the dict is by the youngest."""
        while self._old:
            digest = next(iter(self._old))
            times = self._old[digest]
            if now - times[-1] <= self._pair_seconds:
                return
            self._old_count -= len(times)
            del self._old[digest]


class _Held:
    __slots__ = ("receiver", "row", "run", "size_bytes")

    def __init__(self, receiver: Receiver, run: MessageRun, row: int, size_bytes: int) -> None:
        self.receiver = receiver
        self.run = run
        self.row = row
        self.size_bytes = size_bytes


_Parts = tuple[bytes, bytes, bytes, bytes]
"""Subject, reply, headers, payload."""


def _parts(run: MessageRun) -> list[_Parts]:
    headers = run.headers if run.headers is not None else [b""] * len(run)
    return list(zip(run.subjects, run.replies, headers, run.payloads, strict=True))


def _digest(receiver: Receiver, parts: _Parts) -> bytes:
    subject, reply, headers, payload = parts
    # By address: a subscription lives longer than its overlap.
    lengths = b"%d %d %d %d " % (id(receiver), len(subject), len(reply), len(headers))
    return blake2b(b"".join((lengths, subject, reply, headers, payload)), digest_size=16).digest()


def select(run: MessageRun, rows: Sequence[int]) -> MessageRun:
    """The run with these rows only."""
    if len(rows) == len(run):
        return run
    return MessageRun(
        [run.subjects[row] for row in rows],
        [run.replies[row] for row in rows],
        [run.payloads[row] for row in rows],
        None if run.headers is None else [run.headers[row] for row in rows],
        has_cookie=run.has_cookie,
    )
