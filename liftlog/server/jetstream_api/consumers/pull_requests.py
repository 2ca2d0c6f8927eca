"""The requests of a pull consumer that wait, and the statuses that end them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from liftlog.sequencing.destinations import Why
from liftlog.server.jetstream_api.consumers.budget import Part
from liftlog.server.jetstream_api.consumers.cursor import Cursor
from liftlog.server.jetstream_api.consumers.delivered import Delivered, Message, size_of
from liftlog.server.jetstream_api.consumers.deliveries import Deliveries
from liftlog.server.jetstream_api.consumers.leaf import LeafLink
from liftlog.server.jetstream_api.consumers.leaf_frames import leaf_message
from liftlog.server.jetstream_api.consumers.pull_body import Pull
from liftlog.server.jetstream_api.consumers.rows import Row

SHUTDOWN = b"409 Server Shutdown"
_NS = 1_000_000_000
_MAX_EXPIRES_SECONDS = 3600.0
_GRACE_SECONDS = 2.0
"""Time, in seconds, for which a request waits for the report that its reply subject has a
subscriber. The report takes another path through NATS, so it can arrive after the request."""


class PullRequest:
    """A waiting request. `expires_at` and `heartbeat_at` are times of the event loop; None means
    never."""

    __slots__ = (
        "batch", "came_at", "delivered", "expires_at", "heartbeat_at", "heartbeat_seconds",
        "max_bytes", "no_wait", "reply", "wanted_at",
    )  # fmt: skip

    def __init__(self, reply: bytes, pull: Pull, now: float) -> None:
        self.reply = reply
        self.came_at = now
        self.wanted_at = -1
        """The version of the link's interest at which the reply subject had a subscriber."""
        self.batch = pull.batch
        """The number of messages that may still be sent."""
        self.max_bytes = pull.max_bytes
        """Bytes that may still be sent, if the pull has a limit; 0 otherwise."""
        self.no_wait = pull.no_wait
        self.delivered = 0
        self.expires_at: float | None = None
        # A request without a time limit waits for a long time. With no_wait and no time limit it
        # does not wait at all.
        if pull.expires_ns or not pull.no_wait:
            seconds = pull.expires_ns / _NS or _MAX_EXPIRES_SECONDS
            self.expires_at = now + min(seconds, _MAX_EXPIRES_SECONDS)
        self.heartbeat_seconds = pull.heartbeat_ns / _NS
        self.heartbeat_at = now + self.heartbeat_seconds if pull.heartbeat_ns else None


class PullRequests:
    """The waiting requests, in order. Methods return the commands for the leaf link; the caller
    sends them."""

    def __init__(self, most: int, waiting: Part, to: Deliveries, leaf: LeafLink) -> None:
        """Limit the number of waiting requests to `most`. `waiting` is this consumer's part of the
        limit on the waiting requests of all consumers. `leaf` determines whether a reply subject
        has a subscriber."""
        self._most = most
        self._part = waiting
        self._to = to
        self._leaf = leaf
        self._waiting: deque[PullRequest] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, request: PullRequest) -> bytes:
        """Let a request wait if there is room. Returns the status that refuses the request; empty
        if the request waits. A client that uses heartbeats gets no refusal, because it would send
        the next request at once after each refusal. Such a client detects the failure by missing
        heartbeats."""
        count = len(self._waiting)
        if count >= self._most or not self._part.resize(count + 1):
            if request.heartbeat_seconds:
                return b""
            return self._status(request, b"409 Exceeded MaxWaiting")
        self._waiting.append(request)
        return b""

    def release_part(self) -> None:
        """Give back the part of the budget that ended requests have used."""
        self._part.resize(len(self._waiting))

    def close(self) -> None:
        self._part.close()

    def end_all(self, words: bytes) -> list[bytes]:
        """End all requests with the status `words`. If `words` is empty, end them without a
        status."""
        ended, self._waiting = self._waiting, deque()
        is_counted = words == SHUTDOWN
        return [self._status(one, words, counted=is_counted) for one in ended] if words else []

    def expire(self, now: float) -> bytes:
        """End the requests that have expired, and the requests whose clients are gone. A request
        without a client gets no status."""
        self._take(lambda one: self._is_abandoned(one, now))
        ended = self._take(lambda one: one.expires_at is not None and one.expires_at <= now)
        statuses = [self._status(one, b"408 Request Timeout", counted=True) for one in ended]
        return b"".join(statuses)

    def end_no_wait(self) -> bytes:
        """End the requests with `no_wait`, because there are no more records for them."""
        ended = self._take(
            lambda one: one.no_wait and (one.delivered > 0 or one.expires_at is None)
        )
        return b"".join([self._status(one, b"404 No Messages") for one in ended])

    def heartbeats(self, now: float, position: bytes) -> list[bytes]:
        """Return the heartbeats that are due, and count them as sent. `position` contains the
        header lines that show the progress of the consumer."""
        commands = []
        for request in self._waiting:
            if request.heartbeat_at is not None and request.heartbeat_at <= now:
                request.heartbeat_at = now + request.heartbeat_seconds
                commands.append(self._status(request, b"100 Idle Heartbeat", position))
        return commands

    def due(self) -> Iterator[float]:
        """Yield the times at which a request expires or a heartbeat is due."""
        for request in self._waiting:
            if request.expires_at is not None:
                yield request.expires_at
            if request.heartbeat_at is not None:
                yield request.heartbeat_at

    def answer(self, rows: deque[Row], delivered: Delivered, cursor: Cursor, now: float) -> bytes:
        """Take the requested rows from `rows`, and return the messages that carry them."""
        commands: list[bytes] = []
        while rows and self._waiting:
            request = self._waiting[0]
            target = self._to.pulls(request.reply)
            if isinstance(target, Why) or self._is_abandoned(request, now):
                self._waiting.popleft()
                continue
            had_limit = request.max_bytes > 0
            count = min(request.batch, len(rows))
            is_exceeded = False
            if had_limit:
                messages = delivered.messages(list(islice(rows, count)), cursor.left)
                fitting = _fitting(request, messages)
                count, is_exceeded = fitting, fitting < len(messages) and request.max_bytes > 0
            found = [rows.popleft() for _ in range(count)]
            commands += delivered.commands(target, found, cursor, self._leaf.queues(target))
            request.batch -= count
            request.delivered += count
            if request.heartbeat_at is not None:
                request.heartbeat_at = now + request.heartbeat_seconds
            if is_exceeded:
                words = b"409 Message Size Exceeds MaxBytes"
            elif request.batch <= 0 and request.max_bytes:
                words = b"409 Batch Completed"
            else:
                words = b""
            if words:
                commands.append(self._status(request, words, counted=True))
            if words or request.batch <= 0 or (had_limit and not request.max_bytes):
                self._waiting.popleft()
        return b"".join(commands)

    def _is_abandoned(self, request: PullRequest, now: float) -> bool:
        version = self._leaf.interest_version
        if request.wanted_at == version or now - request.came_at < _GRACE_SECONDS:
            return False
        if not self._leaf.has_interest(request.reply):
            return True
        request.wanted_at = version
        return False

    def _take(self, ends: Callable[[PullRequest], bool]) -> list[PullRequest]:
        """Remove the requests that end, and return them."""
        ended = list(filter(ends, self._waiting))
        if ended:
            self._waiting = deque([one for one in self._waiting if not ends(one)])
        return ended

    def _status(
        self, request: PullRequest, words: bytes, lines: bytes = b"", *, counted: bool = False
    ) -> bytes:
        """Return the command that sends a status to a request; empty if nothing may be sent to its
        subject. If `counted` is true, the status contains the remaining counts of the request."""
        target = self._to.statuses(request.reply)
        if target is None:
            return b""
        if counted:
            lines = b"Nats-Pending-Messages: %d\r\nNats-Pending-Bytes: %d\r\n" % (
                request.batch,
                request.max_bytes,
            )
        return leaf_message(target, b"", status_block(words, lines), b"", self._leaf.queues(target))


def _fitting(request: PullRequest, messages: Sequence[Message]) -> int:
    """Return the number of these messages that fit into the bytes of the request, and subtract
    their sizes."""
    for count, message in enumerate(messages):
        size = size_of(message)
        if size > request.max_bytes:
            return count
        request.max_bytes -= size
    return len(messages)


def status_block(words: bytes, lines: bytes = b"") -> bytes:
    return b"NATS/1.0 %b\r\n%b\r\n" % (words, lines)
