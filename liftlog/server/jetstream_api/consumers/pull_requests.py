"""The requests of a pull consumer: which ones wait, and the statuses that end them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from liftlog.sequencing.destinations import Why
from liftlog.server.jetstream_api.consumers.budget import Part
from liftlog.server.jetstream_api.consumers.cursor import Cursor, Row
from liftlog.server.jetstream_api.consumers.delivered import Delivered
from liftlog.server.jetstream_api.consumers.deliveries import Deliveries
from liftlog.server.jetstream_api.consumers.leaf import leaf_message


@dataclass(slots=True)
class PullRequest:
    """`expires_at` and `heartbeat_at` are times of the event loop; None: never."""

    reply: bytes
    batch: int
    max_bytes: int = 0
    no_wait: bool = False
    expires_at: float | None = None
    heartbeat_seconds: float = 0.0
    heartbeat_at: float | None = None
    delivered: int = field(default=0)


class PullRequests:
    """Those that wait, in order. Methods return the commands for the leaf link; the caller sends
    them."""

    def __init__(self, most: int, waiting: Part, to: Deliveries) -> None:
        """At most `most` wait. `waiting` is their part of the requests that wait on all
        consumers."""
        self._most = most
        self._part = waiting
        self._to = to
        self._waiting: deque[PullRequest] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, request: PullRequest) -> bytes:
        """Let a request wait. Returns the status that refuses it; empty if it waits."""
        count = len(self._waiting)
        if count >= self._most or not self._part.resize(count + 1):
            return self._status(request, b"409 Exceeded MaxWaiting")
        self._waiting.append(request)
        return b""

    def release_part(self) -> None:
        """Give back the part of those that have ended."""
        self._part.resize(len(self._waiting))

    def close(self) -> None:
        self._part.close()

    def end_all(self, words: bytes) -> list[bytes]:
        """End all requests with a status; without one if `words` is empty."""
        ended, self._waiting = self._waiting, deque()
        return [self._status(one, words) for one in ended] if words else []

    def expire(self, now: float) -> bytes:
        """End the requests whose time is over."""
        ended = self._take(lambda one: one.expires_at is not None and one.expires_at <= now)
        statuses = [self._status(one, b"408 Request Timeout", counted=True) for one in ended]
        return b"".join(statuses)

    def end_no_wait(self) -> bytes:
        """End the requests that do not wait: there is nothing more for them."""
        ended = self._take(
            lambda one: one.no_wait and (one.delivered > 0 or one.expires_at is None)
        )
        words = [b"408 Request Timeout" if one.delivered else b"404 No Messages" for one in ended]
        pairs = zip(ended, words, strict=True)
        return b"".join([self._status(one, word, counted=True) for one, word in pairs])

    def heartbeats(self, now: float) -> list[bytes]:
        """Return the heartbeats that are due, and note that they are sent."""
        commands = []
        for request in self._waiting:
            if request.heartbeat_at is not None and request.heartbeat_at <= now:
                request.heartbeat_at = now + request.heartbeat_seconds
                commands.append(self._status(request, b"100 Idle Heartbeat"))
        return commands

    def due(self) -> Iterator[float]:
        """Yield the times at which something is to be done for a request."""
        for request in self._waiting:
            if request.expires_at is not None:
                yield request.expires_at
            if request.heartbeat_at is not None:
                yield request.heartbeat_at

    def answer(self, rows: deque[Row], delivered: Delivered, cursor: Cursor, now: float) -> bytes:
        """Take from `rows` what is asked for, and return the messages that carry it."""
        commands: list[bytes] = []
        while rows and self._waiting:
            request = self._waiting[0]
            target = self._to.pulls(request.reply)
            if isinstance(target, Why):
                self._waiting.popleft()
                continue
            found, is_full = _rows_for(request, rows, len(delivered.ack_head))
            commands += delivered.commands(target, found, cursor)
            request.batch -= len(found)
            request.delivered += len(found)
            if request.heartbeat_at is not None:
                request.heartbeat_at = now + request.heartbeat_seconds
            if is_full or request.batch <= 0:
                self._waiting.popleft()
                if is_full and request.batch > 0:
                    word = (
                        b"409 Batch Completed"
                        if request.delivered
                        else b"409 Message Size Exceeds MaxBytes"
                    )
                    commands.append(self._status(request, word, counted=True))
        return b"".join(commands)

    def _take(self, ends: Callable[[PullRequest], bool]) -> list[PullRequest]:
        """Remove the requests that end, and return them."""
        ended = list(filter(ends, self._waiting))
        if ended:
            self._waiting = deque([one for one in self._waiting if not ends(one)])
        return ended

    def _status(self, request: PullRequest, words: bytes, *, counted: bool = False) -> bytes:
        """Return the command that sends a status to a request; empty if nothing may be sent there.
        `counted`: with the remaining counts of the request."""
        target = self._to.statuses(request.reply)
        if target is None:
            return b""
        lines = b""
        if counted:
            lines = b"Nats-Pending-Messages: %d\r\nNats-Pending-Bytes: %d\r\n" % (
                max(request.batch, 0),
                max(request.max_bytes, 0),
            )
        return leaf_message(target, b"", status_block(words, lines), b"")


def _rows_for(request: PullRequest, rows: deque[Row], ack_head_size: int) -> tuple[list[Row], bool]:
    """Take what goes to this request now. Returns it, and whether its bytes are used up."""
    found: list[Row] = []
    while rows and len(found) < request.batch:
        if request.max_bytes:
            row = rows[0]
            size = (
                len(row.value)
                + len(row.headers)
                + len(row.subject)
                + len(request.reply)
                + ack_head_size
                + 48
            )
            if size > request.max_bytes:
                return found, True
            request.max_bytes -= size
        found.append(rows.popleft())
    return found, request.max_bytes < 0


def status_block(words: bytes, lines: bytes = b"") -> bytes:
    return b"NATS/1.0 %b\r\n%b\r\n" % (words, lines)
