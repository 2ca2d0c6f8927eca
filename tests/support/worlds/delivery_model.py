"""A model of a consumer with acks: a dict of messages. It handles one message and one pull at a
time."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from liftlog.deliveries.acks import AckKind, Verdict
from liftlog.deliveries.demand import PullRequest
from liftlog.deliveries.settings import AckPolicy, Settings


@dataclass
class Message:
    sequence: int
    stamp_ns: int
    since_ns: int
    count: int = 1
    until_ns: int | None = None
    """Set while a nak delays the message."""


@dataclass
class Pull:
    request: PullRequest
    left: int
    left_bytes: int
    expires_ns: int
    heartbeat_ns: int
    delivered: int = 0


@dataclass
class Model:
    settings: Settings
    next: int
    sequence: int = 0
    delivered_end: int = 0
    floor: int = 0
    floor_sequence: int = 0
    messages: dict[int, Message] = field(default_factory=dict)
    queue: list[int] = field(default_factory=list)
    exhausted: list[int] = field(default_factory=list)
    pulls: list[Pull] = field(default_factory=list)
    sent: dict[bytes, list[Any]] = field(default_factory=lambda: defaultdict(list))
    """Messages and statuses by reply, since `sent` was cleared."""
    advisories: list[tuple[str, int, int]] = field(default_factory=list)

    # --- demand ------------------------------------------------------------------

    def pull(self, request: PullRequest, num_pending: int, now_ns: int) -> None:
        limits = self.settings
        reply, available = request.reply, num_pending + len(self.queue)
        if 0 < limits.max_request_batch < request.batch:
            self._status(reply, f"409 Exceeded MaxRequestBatch of {limits.max_request_batch}")
            return
        self.expire_pulls(now_ns)
        if request.no_wait and not available and not request.expires_ns:
            self._status(reply, "404 No Messages")
        elif request.no_wait and 0 < available < sum(pull.left for pull in self.pulls):
            self._status(reply, "408 Requests Pending")
        elif len(self.pulls) >= limits.max_waiting:
            if not request.heartbeat_ns:
                self._status(reply, "409 Exceeded MaxWaiting")
        else:
            expires_ns = request.expires_ns and now_ns + request.expires_ns
            heartbeat_ns = request.heartbeat_ns and now_ns + request.heartbeat_ns
            self.pulls.append(
                Pull(request, request.batch, request.max_bytes, expires_ns, heartbeat_ns)
            )

    def expire_pulls(self, now_ns: int) -> None:
        for pull in list(self.pulls):
            if 0 < pull.expires_ns <= now_ns:
                self._end(pull, "408 Request Timeout", counted=True)

    def end_of_data(self) -> None:
        for pull in list(self.pulls):
            if pull.request.no_wait and (pull.delivered or not pull.expires_ns):
                self._end(pull, "404 No Messages")

    def _take(self, size: int, now_ns: int) -> Pull | None:
        """Return the pull that gets a message of this size."""
        self.expire_pulls(now_ns)
        while self.pulls:
            pull = self.pulls[0]
            if pull.left_bytes and size > pull.left_bytes:
                self._end(pull, "409 Message Size Exceeds MaxBytes", counted=True)
                continue
            if pull.left_bytes:
                pull.left_bytes -= size
                if not pull.left_bytes:
                    pull.left = 1
            pull.left -= 1
            pull.delivered += 1
            if pull.request.heartbeat_ns:
                pull.heartbeat_ns = now_ns + pull.request.heartbeat_ns
            self.pulls.remove(pull)
            if pull.left:
                self.pulls.append(pull)
            return pull
        return None

    def share(self, sizes: list[int], now_ns: int) -> dict[bytes, list[int]]:
        """Assign messages of these sizes to the pulls. Returns the indexes of the messages for each
        reply."""
        found: dict[bytes, list[int]] = defaultdict(list)
        for place, size in enumerate(sizes):
            pull = self._take(size, now_ns)
            if pull is None:
                break
            found[pull.request.reply].append(place)
            self._end_if_full(pull)
        return dict(found)

    def _send(self, pull: Pull, *message: int) -> None:
        self.sent[pull.request.reply].append(message)
        self._end_if_full(pull)

    def _end_if_full(self, pull: Pull) -> None:
        if not pull.left and pull.left_bytes:
            self._status(pull.request.reply, "409 Batch Completed", 0, pull.left_bytes)

    def _end(self, pull: Pull, words: str, counted: bool = False) -> None:
        self.pulls.remove(pull)
        self._status(pull.request.reply, words, *((pull.left, pull.left_bytes) if counted else ()))

    def _status(self, reply: bytes, words: str, *headers: int) -> None:
        self.sent[reply].append((words, *headers))

    # --- deliveries --------------------------------------------------------------

    def room(self) -> int:
        if self.settings.ack_policy == AckPolicy.NONE:
            return 10**6
        return self.settings.max_ack_pending - len(self.messages)

    def _reply_size(self, count: int, offset: int, sequence: int, pending: int) -> int:
        prefix = self.settings.ack_prefix_bytes
        return prefix + len(f"{count}.{offset}.{sequence}.{10**18}.{pending}")

    def redeliver(
        self, asked: list[int], log: dict[int, int], num_pending: int, now_ns: int
    ) -> None:
        """Deliver again. `log` has the sizes of existing records."""
        for offset in [one for one in asked if one not in log]:
            self.done(offset)
        for offset in [one for one in asked if one in log]:
            message = self.messages[offset]
            size = self._reply_size(message.count + 1, offset, self.sequence + 1, num_pending)
            pull = self._take(size + log[offset], now_ns)
            if pull is None:
                return
            self.sequence += 1
            message.count += 1
            message.since_ns = now_ns
            self.queue.remove(offset)
            self._send(pull, offset, self.sequence, message.count, num_pending)

    def deliver(
        self,
        found: list[tuple[int, int, int]],
        end: int,
        is_at_end: bool,
        num_pending: int,
        now_ns: int,
    ) -> None:
        """Deliver for the first time. `found` has offset, size and timestamp of the matching
        records from `next` to `end`."""
        for number, (offset, size, stamp_ns) in enumerate(found):
            left = num_pending - number - 1
            size += self._reply_size(1, offset, self.sequence + 1, left)
            pull = self._take(size, now_ns) if self.room() > 0 else None
            if pull is None:
                return
            self.sequence += 1
            self.next = self.delivered_end = offset + 1
            if self.settings.ack_policy == AckPolicy.NONE:
                self.floor, self.floor_sequence = offset + 1, self.sequence
            else:
                self.messages[offset] = Message(self.sequence, stamp_ns, now_ns)
            self._send(pull, offset, self.sequence, 1, left)
        self.next = end
        if is_at_end and not self.queue and self.room() > 0:
            self.end_of_data()

    # --- acks --------------------------------------------------------------------

    def acknowledge(
        self, offset: int, count: int, stamp_ns: int, kind: AckKind, delay_ns: int, now_ns: int
    ) -> set[Verdict]:
        """Return the verdicts that are allowed."""
        if self.settings.ack_policy == AckPolicy.NONE or not 0 <= offset < self.next:
            return {Verdict.IGNORED}
        message = self.messages.get(offset)
        is_end = kind in (AckKind.ACK, AckKind.TERM)
        if message is None:
            again = Verdict.AGAIN if is_end else Verdict.OUTDATED
            return {again} if stamp_ns > 0 else {again, Verdict.IGNORED}
        if stamp_ns <= 0:
            return {Verdict.IGNORED}
        if not is_end and count != message.count:
            return {Verdict.OUTDATED}
        if is_end:
            if kind == AckKind.TERM:
                self.advisories.append(("terminated", offset, message.count))
            if self.settings.ack_policy == AckPolicy.ALL:
                for other in [one for one in self.messages if one <= offset]:
                    self.done(other)
                self.floor = max(self.floor, offset + 1)
            else:
                self.done(offset)
        elif kind == AckKind.PROGRESS:
            if message.until_ns is not None:
                return {Verdict.OUTDATED}
            message.since_ns = now_ns
            self._unqueue(offset)
        else:
            self.advisories.append(("nak", offset, message.count))
            if delay_ns:
                self._unqueue(offset)
                message.until_ns = now_ns + delay_ns
            elif offset not in self.queue:
                self.fall_due([offset])
        return {Verdict.COUNTED}

    def done(self, offset: int) -> None:
        self.messages.pop(offset, None)
        self._unqueue(offset)
        self.raise_floor()

    def raise_floor(self) -> None:
        if not self.messages:
            self.floor, self.floor_sequence = max(self.floor, self.delivered_end), self.sequence
            return
        first = min(self.messages)
        if self.messages[first].sequence - 1 > self.floor_sequence:
            self.floor, self.floor_sequence = first, self.messages[first].sequence - 1

    def _unqueue(self, offset: int) -> None:
        self.queue = [one for one in self.queue if one != offset]

    # --- time, log, settings -----------------------------------------------------

    def due_at(self, message: Message) -> int:
        if message.until_ns is not None:
            return message.until_ns
        waits = self.settings.backoff_ns or (self.settings.ack_wait_ns,)
        return message.since_ns + waits[min(message.count, len(waits)) - 1]

    def tick(self, now_ns: int) -> None:
        self.fall_due(
            [
                offset
                for offset, message in sorted(self.messages.items())
                if offset not in self.queue and self.due_at(message) <= now_ns
            ]
        )
        self.expire_pulls(now_ns)
        for pull in self.pulls:
            if 0 < pull.heartbeat_ns <= now_ns:
                pull.heartbeat_ns = now_ns + pull.request.heartbeat_ns
                words = "100 Idle Heartbeat"
                self._status(pull.request.reply, words, self.sequence, self.next - 1)
        if now_ns < self.settings.pause_until_ns:
            self.end_of_data()

    def fall_due(self, offsets: list[int]) -> None:
        for offset in offsets:
            message = self.messages[offset]
            message.until_ns = None
            if 0 < self.settings.max_deliver <= message.count:
                self.advisories.append(("max_deliver", offset, message.count))
                self.exhausted = [*self.exhausted, offset][-1000:]
                self.done(offset)
            else:
                self.queue.append(offset)

    def update(self, settings: Settings, now_ns: int) -> None:
        self.settings = settings
        queued, self.queue = self.queue, []
        last = [one for one in queued if 0 < settings.max_deliver <= self.messages[one].count]
        self.queue = [one for one in queued if one not in last]
        self.fall_due(sorted(last))
        self.tick(now_ns)

    def log_started(self, start: int) -> None:
        for offset in [one for one in self.messages if one < start]:
            del self.messages[offset]
            self._unqueue(offset)
        self.next = max(self.next, start)
        self.delivered_end = max(self.delivered_end, start)
        self.raise_floor()
        self.floor = max(self.floor, start)
        self.exhausted = [one for one in self.exhausted if one >= start]

    def log_truncated(self, end: int) -> None:
        for offset in [one for one in self.messages if one >= end]:
            del self.messages[offset]
            self._unqueue(offset)
        self.next = min(self.next, end)
        self.delivered_end = min(self.delivered_end, end)
        self.raise_floor()
        self.floor = min(self.floor, end)
        self.exhausted = [one for one in self.exhausted if one < end]

    def take_over(self, stored: list[Pull], now_ns: int) -> None:
        for pull in stored:
            words = "408 Request Timeout"
            self._status(pull.request.reply, words, pull.left, pull.left_bytes)
        self.pulls = []
        for message in self.messages.values():
            message.since_ns = now_ns
