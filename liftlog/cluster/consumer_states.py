"""The rules by which a leader sends the states of a stream's consumers with acks to the followers.

Every change of a consumer has a number in the leader's epoch. A follower at number n has every
change up to n of every consumer, and possibly later changes of some consumers. `LeaderStates`
decides which data a follower receives: the changes after its number if they are still in memory,
and otherwise the whole state of each consumer that has changed after this number. `FollowerStates`
decides which of the received changes a follower writes.

At the start of its epoch, a leader gives a number to each of its consumers. A follower with states
from another epoch receives all consumers, and drops consumers that the leader does not have. The
follower's `base` is the leader's newest number at the beginning of this transfer. Until the
follower has received all consumers, its number is below `base`, and it has confirmed nothing.

Consumers are sent as a whole in the order of their newest changes, in several answers. Between two
answers, the `cursor` is the newest change of the consumer that was sent last. If a consumer changes
between two answers, its newest change is after the cursor, so the consumer is sent again.

The leader sends a delivery when all nodes for which the high watermark waits have written the
change of the delivery. The leader confirms an ack when these nodes have synced the change of the
ack. So every later leader has these changes.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

MAX_KEPT_BYTES = 1024 * 1024
"""Maximum size of the changes of one stream that the leader keeps in memory for its followers."""
MAX_KEPT_DELETIONS = 10_000
"""Maximum number of deleted consumers whose names the leader keeps. A follower that has missed more
deletions receives all consumers again."""
_NOTHING = -1


class Position(NamedTuple):
    """The changes of the leader's epoch that a follower has."""

    base: int
    """The leader's number when it began to send all consumers to this follower."""
    written: int
    """Each change up to this number is written, and survives a crash of the process."""
    synced: int
    """Each change up to this number is synced, and survives a power cut."""
    cursor: int
    """If the newest change of a consumer has at most this number, the follower has written the
    state of this consumer, too. While consumers are sent as a whole, the cursor is ahead of
    `written`; otherwise both are equal."""


T = TypeVar("T")


class Changes(NamedTuple, Generic[T]):
    """The follower receives these changes, and is then at `number`."""

    changes: list[T]
    number: int


class Snapshots(NamedTuple):
    """The follower receives the whole states of these consumers, in this order. When the follower
    has all these states, and has dropped the consumers in `deleted`, it is at `number`."""

    base: int
    written: int
    """The number at which the follower stays until it has received all of these consumers."""
    numbers: dict[str, int]
    deleted: dict[str, int]
    number: int

    def reached(self, count: int) -> tuple[int, int]:
        """Return `written` and `cursor` of a follower that has received the first `count`
        consumers."""
        if count == len(self.numbers):
            return self.number, self.number
        return self.written, list(self.numbers.values())[count - 1]


@dataclass(slots=True)
class _Copy:
    """A leader's view of the states that a follower has, in one process run of the follower."""

    start: int
    caught_up: float | None
    """Time at which the follower last had all changes; None if the time is not known yet."""
    written: int = _NOTHING
    synced: int = _NOTHING
    heard: float = -math.inf
    leader_number: int = 0
    """The leader's number at the last request."""
    told_sync: int = 0
    parked: bool = False


class LeaderStates(Generic[T]):
    """The leader's part: numbers the changes of a stream's consumers in one epoch, and chooses the
    data for each follower. Times are monotonic seconds. `T` is the type of a change; this class
    does not examine the content of changes."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        """Begin the epoch with the consumers of these names."""
        self._numbers = {name: number for number, name in enumerate(sorted(names), 1)}
        # In the order of the numbers, because a change moves its consumer to the end.
        self.number = self.begin_number = len(self._numbers)
        """Number of the newest change."""
        self.written = self.synced = 0
        """All nodes for which the high watermark waits have written the changes up to `written`,
        and have synced the changes up to `synced`."""
        self._wants_sync = 0
        self._kept: deque[tuple[T, int]] = deque()
        self._kept_bytes = 0
        self._deleted: dict[str, int] = {}
        self._forgotten = 0  # deletions up to this number are not in `_deleted` any more
        self._copies: dict[str, _Copy] = {}

    @property
    def is_used(self) -> bool:
        """True once the stream has, or had, a consumer in this epoch."""
        return self.number > 0

    @property
    def names(self) -> list[str]:
        """The consumers of the stream."""
        return list(self._numbers)

    def number_of(self, name: str) -> int:
        """Return the number of a consumer's newest change, 0 if there is no such consumer."""
        return self._numbers.get(name, 0)

    # --- changes ---

    def changed(self, name: str, *, is_deletion: bool = False) -> int:
        """Record a change of a consumer, and return the number of the change. `keep` stores the
        content of the change."""
        self.number += 1
        self._numbers.pop(name, None)
        self._deleted.pop(name, None)
        if is_deletion:
            self._deleted[name] = self.number
            if len(self._deleted) > MAX_KEPT_DELETIONS:
                oldest = next(iter(self._deleted))
                self._forgotten = self._deleted.pop(oldest)
        else:
            self._numbers[name] = self.number
        return self.number

    def keep(self, change: T, size_bytes: int) -> None:
        """Keep the content of the newest change for the followers. Called for every change."""
        self._kept.append((change, size_bytes))
        self._kept_bytes += size_bytes
        while self._kept_bytes > MAX_KEPT_BYTES:
            self._kept_bytes -= self._kept.popleft()[1]

    def want_sync(self, number: int) -> None:
        """Make the followers sync the changes up to `number` at once, because an answer waits for
        this sync."""
        self._wants_sync = max(self._wants_sync, number)

    # --- followers ---

    def fetched(self, node: str, start: int, has: Position | None, now: float) -> bool:
        """Record a follower's request. Returns True if the request must be answered now, and False
        if it waits until `woken` returns the follower. `has` is the follower's position; None if
        the follower has no states of this epoch."""
        copy = self._copies.get(node)
        if copy is None or copy.start != start:
            copy = self._copies[node] = _Copy(start, now)
        copy.written = copy.synced = _NOTHING
        if has is not None and self._is_known(has):
            copy.written = has.written if has.written >= has.base else _NOTHING
            copy.synced = has.synced if has.synced >= has.base else _NOTHING
        if copy.written >= self.number:
            copy.caught_up = now
        elif copy.written >= copy.leader_number:
            copy.caught_up = max(copy.caught_up or copy.heard, copy.heard)
        copy.heard, copy.leader_number = now, self.number
        copy.parked = not self._has_news(copy)
        return not copy.parked

    def start_of(self, node: str) -> int:
        """Return the newest known process run of a follower; 0 if it has sent no request."""
        copy = self._copies.get(node)
        return 0 if copy is None else copy.start

    def is_fetched_by(self, node: str, start: int) -> bool:
        """Return True if this process run of a follower has sent a request."""
        copy = self._copies.get(node)
        return copy is not None and copy.start == start and copy.heard > -math.inf

    def silent_seconds(self, node: str, now: float) -> float:
        """Return the time since a follower's last request; 0 if it has sent no request."""
        copy = self._copies.get(node)
        return 0.0 if copy is None or copy.heard == -math.inf else max(now - copy.heard, 0.0)

    def woken(self, now: float, *, also: str = "") -> list[str]:
        """Return the followers whose waiting requests must be answered now. `also` is a follower
        whose request has waited for a long time."""
        found = []
        for node, copy in self._copies.items():
            if copy.parked and (node == also or self._has_news(copy)):
                copy.parked = False
                copy.caught_up = now  # the follower had everything at this time
                found.append(node)
        return found

    def asked_to_sync(self, node: str) -> int:
        """Return the number up to which the answer to `node` requests a sync; 0 if it requests no
        sync."""
        copy = self._copies.get(node)
        if copy is None or copy.synced >= self._wants_sync:
            return 0
        copy.told_sync = self._wants_sync
        return self._wants_sync

    def _has_news(self, copy: _Copy) -> bool:
        return copy.written < self.number or (
            copy.synced < self._wants_sync and copy.told_sync < self._wants_sync
        )

    def _is_known(self, has: Position) -> bool:
        """Return True if the leader can determine which changes are missing at this position of a
        follower."""
        most = max(has.base, has.written)
        return self._forgotten <= most <= self.number

    def plan(self, has: Position | None) -> Changes[T] | Snapshots:
        """Return the data to send next to a follower at the position `has`."""
        if has is None or not self._is_known(has):
            return Snapshots(self.number, 0, dict(self._numbers), {}, self.number)
        first_kept = self.number - len(self._kept) + 1
        is_whole = has.written >= has.base and has.written == has.cursor
        if is_whole and has.written >= first_kept - 1:
            kept = [change for change, _ in self._kept]
            return Changes(kept[has.written + 1 - first_kept :], self.number)
        numbers = {name: one for name, one in self._numbers.items() if one > has.cursor}
        least = max(has.base, has.written)
        deleted = {name: one for name, one in self._deleted.items() if one > least}
        return Snapshots(has.base, has.written, numbers, deleted, self.number)

    # --- what is safe ---

    def confirm(self, nodes: Iterable[str]) -> bool:
        """Advance `written` and `synced` to the changes that all of these nodes have. Returns True
        if one of the two has changed. Neither ever decreases."""
        written = synced = self.number
        for node in nodes:
            copy = self._copies.get(node)
            if copy is None:
                return False
            written, synced = min(written, copy.written), min(synced, copy.synced)
        has_moved = written > self.written or synced > self.synced
        self.written, self.synced = max(self.written, written), max(self.synced, synced)
        return has_moved

    def has_all(self, node: str) -> bool:
        """Return True if the follower has all confirmed changes, and all changes that former
        leaders may have confirmed."""
        if not self.is_used:
            return True
        copy = self._copies.get(node)
        least = max(self.begin_number, self.synced)
        return copy is not None and copy.synced >= least and copy.written >= self.written

    def waits_idly(self, nodes: Iterable[str]) -> bool:
        """Return True if each of these nodes has all changes and waits for more. In this case no
        node can begin to lag before the next change."""
        copies = [self._copies.get(node) for node in nodes]
        return not self.is_used or all(
            one is not None and one.parked and one.written >= self.number for one in copies
        )

    def lags(self, node: str, now: float, lag_max: float) -> bool:
        """Return True if a follower has been without the newest states for too long."""
        if not self.is_used:
            return False
        copy = self._copies.setdefault(node, _Copy(0, now))
        if copy.parked and copy.written >= self.number:
            return False
        if copy.caught_up is None:
            copy.caught_up = now
        return now - copy.caught_up > lag_max

    def forget(self, starts: Mapping[str, int], others: Collection[str]) -> None:
        """Drop the positions of process runs before `starts`, and of nodes that are not among
        `others`."""
        for node, copy in list(self._copies.items()):
            if node not in others:
                del self._copies[node]
            elif copy.start < starts.get(node, 0):
                self._copies[node] = _Copy(starts[node], None)


class Received(NamedTuple):
    """One change in an answer. A snapshot can consist of several changes: the later changes
    continue the first."""

    name: str
    number: int
    is_snapshot: bool
    is_deletion: bool
    continues: bool


class FollowerStates:
    """The follower's part: decides in one epoch which of the received changes the follower
    writes."""

    def __init__(self) -> None:
        self.position: Position | None = None
        """The position of this follower; None before the first answer of this epoch."""
        self.is_complete = False
        """True if all states on this node are the same as the leader's, and are being written."""
        self._seen: set[str] = set()
        self._ahead: dict[str, int] = {}  # snapshots of a higher number than the position

    def answered(
        self, base: int, written: int, received: Iterable[Received], here: Collection[str]
    ) -> tuple[list[int], list[str]]:
        """Handle the answer to the open request. Returns the received changes to write, and the
        consumers to delete after that. `here` are all consumers whose states this node has stored.
        After the writes and deletions, the caller calls `written`."""
        before = self.position
        if before is None or before.base != base:
            self.is_complete, self._seen, self._ahead = False, set(), {}
            before = Position(base, 0, 0, 0)
        wanted: list[int] = []
        deleted: set[str] = set()
        takes = False
        for index, one in enumerate(received):
            if not one.continues:
                takes = one.number > self._ahead.get(one.name, before.written)
            if not takes:
                continue
            wanted.append(index)
            if one.is_deletion:
                self._seen.discard(one.name)
                deleted.add(one.name)
            elif not self.is_complete:
                self._seen.add(one.name)
            if one.is_snapshot:
                self._ahead[one.name] = one.number
        self._ahead = {name: one for name, one in self._ahead.items() if one > written}
        gone: list[str] = []
        if not self.is_complete and written >= base:
            gone = [name for name in here if name not in self._seen and name not in deleted]
            self.is_complete, self._seen = True, set()
        self.position = before
        return wanted, gone

    def written(self, number: int, cursor: int) -> None:
        """Record that the answer is written."""
        assert self.position is not None
        self.position = self.position._replace(written=number, cursor=cursor)

    def synced(self, base: int, number: int) -> bool:
        """Record that the changes up to `number` are synced. Returns True if more changes are
        synced than before."""
        has = self.position
        if has is None or has.base != base or number <= has.synced:
            return False
        self.position = has._replace(synced=number)
        return True
