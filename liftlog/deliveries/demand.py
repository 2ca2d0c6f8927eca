"""The waiting pulls of a pull consumer: assigns messages to them, and ends them with a status. Also
the window of a push consumer."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import numpy as np

from liftlog.deliveries.block import NEVER
from liftlog.deliveries.changes import PullsChanged, StoredPull
from liftlog.deliveries.columns import Index, Ints
from liftlog.deliveries.instructions import Ending, Status
from liftlog.deliveries.priorities import Priorities
from liftlog.deliveries.pull import Pull
from liftlog.deliveries.pull import PullRequest as PullRequest
from liftlog.deliveries.settings import PriorityPolicy, Settings
from liftlog.deliveries.statuses import TIMED_OUT, exceeded, go_duration, heartbeat

_MOST_EXAMINED = 10_000
"""Maximum number of times that one turn examines a pull of a priority group."""
_NO_MESSAGES = b"404 No Messages"
_TOO_LARGE = b"409 Message Size Exceeds MaxBytes"

_ENDINGS = {
    Ending.TAKEN_OVER: (TIMED_OUT, True),
    Ending.CONSUMER_DELETED: (b"409 Consumer Deleted", False),
    Ending.LEADERSHIP_CHANGE: (b"409 Leadership Change", False),
    Ending.SERVER_SHUTDOWN: (b"409 Server Shutdown", True),
}
"""Maps each ending to its status, and to True if the status also has the remaining counts of the
pull."""


Share = tuple[bytes, Index]
"""The reply subject of a pull, and the indices of the messages that it gets."""


class Pulls:
    """The waiting pulls. As in JetStream, the pulls receive messages in turn: a pull that got a
    message goes to the end of the queue. Methods return the statuses to send."""

    def __init__(self) -> None:
        self.priorities = Priorities()
        self._waiting: deque[Pull] = deque()
        self._wanted: int | None = 0
        """Cache of `wanted`; None if `wanted` must be computed again."""
        self._expires_ns = NEVER
        """Time before which no pull expires."""
        self._next_number = 0
        self._changed: set[int] = set()
        self._ended: list[int] = []

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def replies(self) -> list[bytes]:
        return [pull.reply for pull in self._waiting]

    @property
    def wanted(self) -> int:
        """Number of messages that all waiting pulls together can still take."""
        if self._wanted is None:
            self._wanted = sum([pull.left for pull in self._waiting])
        return self._wanted

    def wanted_in_turn(self, settings: Settings) -> int:
        """Return the number of messages to deliver in one turn. With priority groups, the choice of
        the pull for one message may have to examine all waiting pulls."""
        if settings.priority_policy is PriorityPolicy.NONE:
            return self.wanted
        return min(self.wanted, max(_MOST_EXAMINED // max(len(self._waiting), 1), 1))

    @property
    def has_byte_limits(self) -> bool:
        return any(pull.left_bytes for pull in self._waiting)

    def add(
        self, request: PullRequest, available: int, settings: Settings, now_ns: int
    ) -> list[Status]:
        """Add a request to the waiting pulls, or refuse it. `available` is the number of messages
        that could be delivered now."""
        refused = self._refusal(request, settings)
        refused = refused or self.priorities.refusal(request, settings, now_ns)
        if refused is not None:
            return [refused]
        statuses = self.expire(now_ns)
        if request.no_wait:
            if not available and request.expires_ns <= 0:
                return [*statuses, Status(request.reply, _NO_MESSAGES)]
            if available and available < self.wanted:
                return [*statuses, Status(request.reply, b"408 Requests Pending")]
        if len(self._waiting) >= settings.most_waiting:
            # A client that uses heartbeats would pull again at once after a refusal. Without an
            # answer, it notices missing heartbeats and pulls later.
            if request.heartbeat_ns <= 0:
                statuses.append(Status(request.reply, b"409 Exceeded MaxWaiting"))
            return statuses
        pull = Pull(self._next_number, request, now_ns)
        self._next_number += 1
        self._wanted = self.wanted + pull.left
        if pull.expires_at_ns:
            self._expires_ns = min(self._expires_ns, pull.expires_at_ns)
        self.priorities.insert(self._waiting, pull, settings.priority_policy)
        self._changed.add(pull.number)
        return statuses

    def expire(self, now_ns: int) -> list[Status]:
        """End the pulls that have expired."""
        if now_ns < self._expires_ns:
            return []
        ended = self._end([one for one in self._waiting if one.is_over(now_ns)])
        times = [one.expires_at_ns for one in self._waiting if one.expires_at_ns]
        self._expires_ns = min(times, default=NEVER)
        return [pull.status(TIMED_OUT) for pull in ended]

    def heartbeats(self, now_ns: int, sequence: int, offset: int) -> list[Status]:
        """Return the heartbeats that are due, and count them as sent."""
        statuses = []
        for pull in self._waiting:
            if 0 < pull.heartbeat_at_ns <= now_ns:
                pull.heartbeat_at_ns = now_ns + pull.heartbeat_ns
                statuses.append(heartbeat(pull.reply, sequence, offset))
        return statuses

    def end_of_data(self) -> list[Status]:
        """End the pulls with `no_wait`, because no more messages can be delivered now. A pull that
        also has an expiry ends only if it has received a message."""
        ended = [
            one for one in self._waiting if one.no_wait and (one.delivered or not one.expires_at_ns)
        ]
        return [Status(pull.reply, _NO_MESSAGES) for pull in self._end(ended)]

    def end_all(self, why: Ending) -> list[Status]:
        words, is_counted = _ENDINGS[why]
        ended = self._end(list(self._waiting))
        if is_counted:
            return [pull.status(words) for pull in ended]
        return [Status(pull.reply, words) for pull in ended]

    def policy_changed(self, policy: PriorityPolicy) -> None:
        """Apply another policy of priority groups to the waiting pulls."""
        self.priorities.pin = b""
        self.priorities.sort(self._waiting, policy)

    def store_again(self) -> None:
        """Count all waiting pulls as changed, because a new state does not contain them."""
        self._changed.update(pull.number for pull in self._waiting)

    def prefer(self, reply: bytes) -> None:
        """Let the pull with this reply get the next message."""
        pull = next(one for one in self._waiting if one.reply == reply)
        self._waiting.remove(pull)
        self._waiting.appendleft(pull)

    def drop(self, replies: Iterable[bytes]) -> None:
        """Remove the pulls with these replies without a status."""
        gone = frozenset(replies)
        self._end([one for one in self._waiting if one.reply in gone])

    def next_event_ns(self) -> int | None:
        """Return the time of the next expiry or heartbeat of a pull; None if there is none."""
        times = [one.expires_at_ns for one in self._waiting if one.expires_at_ns]
        times += [self.priorities.unpin_at_ns] if self.priorities.unpin_at_ns else []
        times += [one.heartbeat_at_ns for one in self._waiting if one.heartbeat_at_ns]
        return min(times, default=None)

    def share(self, sizes: Ints, now_ns: int) -> tuple[list[Share], int, list[Status]]:
        """Divide messages of these sizes among the pulls.

        Returns the shares, the number of messages that were assigned, and the statuses to send
        afterwards.
        """
        statuses = self.expire(now_ns)
        self._wanted = None
        if self._are_of_one_client:
            reply, taken = self._waiting[0].reply, self._give_in_order(len(sizes), now_ns)
            return [(reply, np.arange(taken))] if taken else [], taken, statuses
        shares: dict[int, tuple[Pull, list[Index]]] = {}
        at = 0
        while at < len(sizes) and self._waiting:
            rounds = self._whole_rounds(sizes[at:])
            if rounds:
                at = self._give_rounds(sizes, at, rounds, shares)
                continue
            # Another round, message by message, before the rounds are counted again.
            for _ in range(len(self._waiting)):
                if at == len(sizes):
                    break
                pull = self._waiting[0]
                size = int(sizes[at])
                if 0 < pull.left_bytes < size:
                    statuses.append(pull.status(_TOO_LARGE))
                    self._waiting.popleft()
                    self._forget([pull])
                    continue
                self._give_one(pull, at, size, shares, statuses)
                self._requeue(pull, PriorityPolicy.NONE)
                at += 1
        return self._shared(shares, now_ns), at, statuses

    @property
    def _are_of_one_client(self) -> bool:
        """True if all pulls have the same reply subject, and no limit of bytes. The client cannot
        see which pull a message belongs to."""
        replies = {pull.reply for pull in self._waiting}
        return len(replies) == 1 and not self.has_byte_limits

    def _give_in_order(self, count: int, now_ns: int) -> int:
        """Assign at most `count` messages to the pulls, whole pulls first. Returns the number of
        messages that were assigned. This takes less time than messages in turn, and the result is
        one share."""
        given = 0
        while given < count and self._waiting:
            pull = self._waiting[0]
            taken = min(count - given, pull.left)
            given += taken
            pull.left -= taken
            pull.delivered += taken
            if pull.left:
                self._changed.add(pull.number)
            else:
                self._waiting.popleft()
                self._forget([pull])
        if given:
            for pull in self._waiting:  # the client has received messages
                if pull.heartbeat_ns:
                    pull.heartbeat_at_ns = now_ns + pull.heartbeat_ns
        return given

    def share_by_priority(
        self, sizes: Ints, pendings: Ints, held: Ints, settings: Settings, now_ns: int
    ) -> tuple[list[Share], int, list[Status]]:
        """Like `share`, by the rules of priority groups. Both `pendings` and `held` have one number
        per message, for the moment of its delivery: the number of matching records that are not
        delivered yet, and the number of unacked messages."""
        statuses = self.expire(now_ns)
        self._wanted = None
        shares: dict[int, tuple[Pull, list[Index]]] = {}
        at = 0
        while at < len(sizes) and self._waiting:
            had_pin = bool(self.priorities.pin)
            pull, ended = self.priorities.choose(
                self._waiting, settings, int(pendings[at]), int(held[at]), now_ns
            )
            self._forget(ended)
            if pull is None:
                break
            size = int(sizes[at])
            if 0 < pull.left_bytes < size:
                statuses.append(pull.status(_TOO_LARGE))
                self._waiting.popleft()
                self._forget([pull])
                if not had_pin:
                    self.priorities.pin = b""
                continue
            self._give_one(pull, at, size, shares, statuses)
            self._requeue(pull, settings.priority_policy)
            at += 1
        return self._shared(shares, now_ns), at, statuses

    def _shared(self, shares: dict[int, tuple[Pull, list[Index]]], now_ns: int) -> list[Share]:
        """Return the shares, and postpone the next heartbeat of each pull that got messages."""
        for pull, _ in shares.values():
            if pull.heartbeat_ns:
                pull.heartbeat_at_ns = now_ns + pull.heartbeat_ns
        return [(pull.reply, np.concatenate(parts)) for pull, parts in shares.values()]

    def take_changes(self, stored: dict[int, StoredPull]) -> PullsChanged | None:
        """Return the changes since the last call. `stored` are the pulls that the state already
        has."""
        waiting = tuple(
            [
                StoredPull(one.number, b"", one.left, one.left_bytes, 0)
                if one.number in stored
                else StoredPull(one.number, one.reply, one.left, one.left_bytes, one.expires_at_ns)
                for one in self._waiting
                if one.number in self._changed
            ]
        )
        ended = tuple(number for number in self._ended if number in stored)
        self._changed.clear()
        self._ended.clear()
        return PullsChanged(waiting, ended) if waiting or ended else None

    def _refusal(self, request: PullRequest, settings: Settings) -> Status | None:
        reply = request.reply
        if settings.is_push:
            return Status(reply, b"409 Consumer is push based")
        if 0 < settings.max_request_batch < request.batch:
            return exceeded(reply, "MaxRequestBatch", str(settings.max_request_batch))
        if 0 < settings.max_request_expires_ns < request.expires_ns:
            limit = go_duration(settings.max_request_expires_ns)
            return exceeded(reply, "MaxRequestExpires", limit)
        if 0 < settings.max_request_bytes < request.max_bytes:
            return exceeded(reply, "MaxRequestMaxBytes", str(settings.max_request_bytes))
        return None

    def _whole_rounds(self, sizes: Ints) -> int:
        """Return the number of rounds that can be assigned before a pull ends. A round is one
        message for each pull."""
        count = len(self._waiting)
        rounds = min(len(sizes) // count, min(pull.left for pull in self._waiting) - 1)
        for place, pull in enumerate(self._waiting):
            if rounds <= 0:
                return 0
            if pull.left_bytes:
                sums = np.cumsum(sizes[place : rounds * count : count])
                rounds = int(np.searchsorted(sums, pull.left_bytes))
        return rounds

    def _give_rounds(
        self, sizes: Ints, at: int, rounds: int, shares: dict[int, tuple[Pull, list[Index]]]
    ) -> int:
        count = len(self._waiting)
        end = at + rounds * count
        for place, pull in enumerate(self._waiting):
            index = np.arange(at + place, end, count)
            shares.setdefault(pull.number, (pull, []))[1].append(index)
            pull.left -= rounds
            pull.delivered += rounds
            if pull.left_bytes:
                pull.left_bytes -= int(sizes[index].sum())
            self._changed.add(pull.number)
        return end

    def _give_one(
        self,
        pull: Pull,
        at: int,
        size: int,
        shares: dict[int, tuple[Pull, list[Index]]],
        statuses: list[Status],
    ) -> None:
        """Assign a message to the first pull. End the pull if it is complete after that."""
        shares.setdefault(pull.number, (pull, []))[1].append(np.array([at], np.intp))
        if pull.left_bytes:
            pull.left_bytes -= size
            if not pull.left_bytes:
                pull.left = 1  # the last one: its bytes are used up
        pull.left -= 1
        pull.delivered += 1
        self._waiting.popleft()
        if not pull.left and pull.left_bytes:
            statuses.append(pull.status(b"409 Batch Completed"))

    def _requeue(self, pull: Pull, policy: PriorityPolicy) -> None:
        """Put a pull that got a message behind the other pulls, unless it is complete."""
        if pull.left:
            self.priorities.insert(self._waiting, pull, policy)
            self._changed.add(pull.number)
        else:
            self._forget([pull])

    def _forget(self, ended: list[Pull]) -> None:
        """Note that pulls no longer wait."""
        numbers = {one.number for one in ended}
        self._ended += numbers
        self._changed -= numbers

    def _end(self, ended: list[Pull]) -> list[Pull]:
        """Remove pulls, and return them."""
        if ended:
            self._wanted = None
            numbers = {one.number for one in ended}
            self._waiting = deque([one for one in self._waiting if one.number not in numbers])
            self._forget(ended)
        return ended


class PushWindow:
    """The open window of a push consumer."""

    def __init__(self, subject: bytes = b"", messages: int = 0, size_bytes: int = 0) -> None:
        self._subject = subject
        self._size_bytes = size_bytes
        self.messages = messages if size_bytes > 0 else 0

    def share(self, sizes: Ints) -> tuple[list[Share], int]:
        """Take messages of these sizes as long as the window has bytes left."""
        sums = np.cumsum(sizes[: self.messages])
        taken = min(int(np.searchsorted(sums, self._size_bytes)) + 1, len(sums))
        if taken <= 0:
            return [], 0
        self._size_bytes -= int(sums[taken - 1])
        self.messages = self.messages - taken if self._size_bytes > 0 else 0
        return [(self._subject, np.arange(taken))], taken
