"""The state of one member of a consumer group: its slots, its progress, and the content of its
commits and heartbeats. No I/O.

A member reads its slots in *lanes*. A lane is a read of the stream for some slots, from one offset
on. Slots that are assigned later may be far behind the others. They get their own lane, so that the
first lane can continue, and join the first lane once both have read equally far.

The member returns no more records of a slot that it has to give up. Once the caller has finished
the records already returned, the member commits the slot's offset, and only then leaves the slot
out of its heartbeats. So the next owner begins after these records.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType

UNKNOWN = -1
"""The offset of a slot that is being given up while the caller still works on its records."""


class Lane:
    """`slots` maps each slot to its first offset to return. Everything below `done` is processed;
    the caller may be working on records below `end` in the slots `in_hand`.
    """

    def __init__(self, slots: dict[int, int]) -> None:
        self.slots = slots
        self.done = self.end = min(slots.values(), default=0)
        self.in_hand: frozenset[int] = frozenset()
        self.epoch = 0
        """The stream's leader epoch up to `done`; 0 if it is not known."""

    def returns(self, slot: int, offset: int) -> bool:
        """Return True if the caller is to get this record."""
        start = self.slots.get(slot)
        return start is not None and offset >= start

    @property
    def latest_start(self) -> int:
        """The offset from which everything in its slots is to be returned."""
        return max(self.slots.values(), default=0)

    def next_of(self, slot: int) -> int:
        """Return the offset from which on no record of this slot is processed."""
        return max(self.done, self.slots[slot])


class _Leaving:
    """A slot that is being given up. The next owner continues at `offset`."""

    def __init__(self, lane: Lane, since: int, offset: int) -> None:
        self.lane = lane
        self.since = since
        self.offset = offset


class GroupMember:
    """Times are seconds of any clock that only goes forward."""

    def __init__(self, session_seconds: float) -> None:
        self._session = session_seconds
        self.lanes: list[Lane] = []
        self.joined = 0
        self.generation = 0
        self.deadline = -math.inf
        """The time until which its session lasts."""
        self._since: dict[int, int] = {}  # by slot that it owns
        self._left: dict[int, int] = {}  # slot -> `since` of the last ownership that it gave up
        self._leaving: dict[int, _Leaving] = {}
        self._stored: dict[int, int] = {}  # slot -> the offset that the daemon has stored

    # --- membership ---

    @property
    def owned(self) -> list[int]:
        """The slots in the member's heartbeats: slots that it reads, or has not finished yet."""
        return sorted(self._since)

    @property
    def slots(self) -> list[int]:
        """The slots whose records the member returns."""
        return sorted(self._since.keys() - self._leaving.keys())

    @property
    def is_moving(self) -> bool:
        """True while the member is giving up slots."""
        return bool(self._leaving)

    def may_return(self, now: float) -> bool:
        """True while the member's session lasts. After that, other members may already own its
        slots."""
        return now < self.deadline

    def heard(self, sent: float) -> None:
        """Extend the session: the coordinator has answered a request that was sent at that time."""
        self.deadline = max(self.deadline, sent + self._session)

    def lost(self) -> list[int]:
        """The membership has ended. Returns the slots that the member had."""
        had = self.owned
        self.joined = self.generation = 0
        self.deadline = -math.inf
        self.lanes = []
        for known in (self._since, self._left, self._leaving, self._stored):
            known.clear()
        return had

    def told(
        self, joined: int, generation: int, slots: Iterable[Sequence[int]], sent: float
    ) -> tuple[list[int], list[int]]:
        """Take the answer to a join or a heartbeat that was sent at that time: slots as (slot,
        since, offset). Returns the slots that the member gains, and the slots that it has to give
        up."""
        if joined != self.joined:
            self.lost()
            self.joined = joined
        self.heard(sent)
        if generation < self.generation:
            return [], []  # late
        self.generation = generation
        assigned = {slot: (since, offset) for slot, since, offset in slots}
        revoked = [slot for slot in self.slots if slot not in assigned]
        for slot in revoked:
            self._leave(slot)
        gained = {
            slot: offset
            for slot, (since, offset) in sorted(assigned.items())
            if slot not in self._since and since > self._left.get(slot, 0)
        }
        if gained:
            self.lanes.append(Lane(dict(gained)))
            self._stored |= gained
            self._since |= {slot: assigned[slot][0] for slot in gained}
        return list(gained), revoked

    # --- records ---

    def hand_out(self, lane: Lane, slots: Collection[int], end: int) -> None:
        """Records of these slots, all below `end`, are returned to the caller."""
        lane.in_hand, lane.end = frozenset(slots), end

    def processed(self) -> None:
        """The caller has processed the records that it has."""
        for lane in self.lanes:
            if lane.in_hand:
                for leaving in self._leaving.values():
                    if leaving.lane is lane and leaving.offset == UNKNOWN:
                        leaving.offset = lane.end
                lane.done, lane.in_hand = lane.end, frozenset()
        self._drop_empty()

    def passed(self, lane: Lane, offset: int) -> None:
        """The lane has nothing to return below this offset, and the caller has none of its
        records."""
        if not lane.in_hand:
            lane.done = lane.end = max(lane.done, offset)

    def merge(self, one: Lane, other: Lane) -> bool:
        """Continue with `one` for the slots of both, if the other has read at least as far."""
        if one.done > other.done or one.in_hand or other.in_hand or one is other:
            return False
        one.slots |= {slot: other.next_of(slot) for slot in other.slots}
        one.epoch = max(one.epoch, other.epoch)
        for leaving in self._leaving.values():
            if leaving.lane is other:
                leaving.lane = one
        self.lanes.remove(other)
        return True

    # --- giving up ---

    def _leave(self, slot: int) -> None:
        lane = next(lane for lane in self.lanes if slot in lane.slots)
        offset = UNKNOWN if slot in lane.in_hand else lane.next_of(slot)
        del lane.slots[slot]
        self._leaving[slot] = _Leaving(lane, self._since[slot], offset)
        self._drop_empty()

    def _drop_empty(self) -> None:
        self.lanes = [lane for lane in self.lanes if lane.slots or lane.in_hand]

    def finished(self, offsets: Mapping[int, int] = MappingProxyType({})) -> list[int]:
        """Return the slots that are finished and committed, of those being given up, once `offsets`
        are stored."""
        return [
            slot
            for slot, leaving in self._leaving.items()
            if leaving.offset != UNKNOWN
            and max(self._stored[slot], offsets.get(slot, 0)) >= leaving.offset
        ]

    def give_up(self, slots: Iterable[int] | None = None) -> list[int]:
        """Leave `slots`, or all finished ones, out of the next heartbeat; return them."""
        given = self.finished() if slots is None else [one for one in slots if one in self._leaving]
        for slot in given:
            self._left[slot] = self._leaving.pop(slot).since
            del self._since[slot], self._stored[slot]
        return given

    # --- commits ---

    def uncommitted(self) -> dict[int, int]:
        """Return slot -> offset, for offsets that the daemon has not stored yet."""
        found = {slot: lane.next_of(slot) for lane in self.lanes for slot in lane.slots}
        for slot, leaving in self._leaving.items():
            if leaving.offset != UNKNOWN:
                found[slot] = leaving.offset
        return {slot: offset for slot, offset in found.items() if offset > self._stored[slot]}

    def committed(self, joined: int, offsets: dict[int, int], sent: float) -> None:
        """The daemon has stored these offsets, sent at that time, for the membership `joined`."""
        if joined != self.joined:
            return
        self.heard(sent)
        for slot, offset in offsets.items():
            if slot in self._stored:
                self._stored[slot] = max(self._stored[slot], offset)
