"""The state of one member of a consumer group: its slots, its progress, and the content of its
commits and heartbeats. Does no I/O.

A member reads its slots in *lanes*. A lane is a read of the stream for some slots, from one offset
on. Slots that are assigned later may be far behind the other slots. So they get a lane of their
own, and the first lane can continue. When the new lane has caught up with the first one, the two
lanes are merged.

The member returns no more records of a slot that it has to release. When the caller has finished
the records that were already returned, the member commits the slot's offset. Only after this commit
does the member leave the slot out of its heartbeats. So the slot's next owner begins after these
records.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType

UNKNOWN = -1
"""Stands for the offset of a slot that is being released while the caller still processes records
of the slot."""


class Lane:
    """A read of the stream for some slots. `slots` maps each slot to the offset of its first record
    to return. All records below `done` are processed. The caller has received the records of the
    slots `in_hand` at offsets from `done` to `end`, and may still be processing them.
    """

    def __init__(self, slots: dict[int, int]) -> None:
        self.slots = slots
        self.done = self.end = min(slots.values(), default=0)
        self.in_hand: frozenset[int] = frozenset()
        self.epoch = 0
        """The stream's leader epoch at `done`; 0 if the epoch is not known."""

    def returns(self, slot: int, offset: int) -> bool:
        """Return True if the lane returns records of this slot at this offset to the caller."""
        start = self.slots.get(slot)
        return start is not None and offset >= start

    @property
    def latest_start(self) -> int:
        """The offset from which the lane returns the records of all its slots."""
        return max(self.slots.values(), default=0)

    def next_of(self, slot: int) -> int:
        """Return the offset up to which all records of this slot are processed (exclusive)."""
        return max(self.done, self.slots[slot])


class _Leaving:
    """A slot that the member is releasing. The next owner continues at `offset`."""

    def __init__(self, lane: Lane, since: int, offset: int) -> None:
        self.lane = lane
        self.since = since
        self.offset = offset


class GroupMember:
    """The state of a member. Times are in seconds, by any clock that never goes back."""

    def __init__(self, session_seconds: float) -> None:
        self._session = session_seconds
        self.lanes: list[Lane] = []
        self.joined = 0
        self.generation = 0
        self.deadline = -math.inf
        """The time at which the member's session ends, unless an answer of the coordinator extends
        it."""
        self._since: dict[int, int] = {}  # owned slot -> `since` of the ownership
        self._left: dict[int, int] = {}  # slot -> `since` when it was last released
        self._leaving: dict[int, _Leaving] = {}
        self._stored: dict[int, int] = {}  # slot -> the offset that the daemon has stored

    # --- membership ---

    @property
    def owned(self) -> list[int]:
        """The slots in the member's heartbeats: the slots that it reads, and the slots that it is
        still releasing."""
        return sorted(self._since)

    @property
    def slots(self) -> list[int]:
        """The slots whose records the member returns."""
        return sorted(self._since.keys() - self._leaving.keys())

    @property
    def is_moving(self) -> bool:
        """True while the member is releasing slots."""
        return bool(self._leaving)

    def may_return(self, now: float) -> bool:
        """True while the member's session lasts. After that, other members may already own its
        slots."""
        return now < self.deadline

    def heard(self, sent: float) -> None:
        """Extend the session, because the coordinator has answered a request that was sent at
        `sent`."""
        self.deadline = max(self.deadline, sent + self._session)

    def lost(self) -> list[int]:
        """Drop the state, because the membership has ended. Returns the slots that the member
        had."""
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
        """Update the state from the answer to a join or heartbeat, which was sent at `sent`.
        `slots` are tuples (slot, since, offset). Returns the slots that the member gains, and those
        that it has to release."""
        if joined != self.joined:
            self.lost()
            self.joined = joined
        self.heard(sent)
        if generation < self.generation:
            return [], []  # an old answer
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
        """Note that records of these slots, all below `end`, are returned to the caller."""
        lane.in_hand, lane.end = frozenset(slots), end

    def processed(self) -> None:
        """Note that the caller has processed all records that were returned to it."""
        for lane in self.lanes:
            if lane.in_hand:
                for leaving in self._leaving.values():
                    if leaving.lane is lane and leaving.offset == UNKNOWN:
                        leaving.offset = lane.end
                lane.done, lane.in_hand = lane.end, frozenset()
        self._drop_empty()

    def passed(self, lane: Lane, offset: int) -> None:
        """Note that all remaining records of the lane are at or above this offset. Has no effect
        while the caller processes records of the lane."""
        if not lane.in_hand:
            lane.done = lane.end = max(lane.done, offset)

    def merge(self, one: Lane, other: Lane) -> bool:
        """Merge the lane `other` into the lane `one`, if `other` has read at least as far as `one`
        and the caller processes no record of the two lanes. Returns True after a merge."""
        if one.done > other.done or one.in_hand or other.in_hand or one is other:
            return False
        one.slots |= {slot: other.next_of(slot) for slot in other.slots}
        one.epoch = max(one.epoch, other.epoch)
        for leaving in self._leaving.values():
            if leaving.lane is other:
                leaving.lane = one
        self.lanes.remove(other)
        return True

    # --- releasing slots ---

    def _leave(self, slot: int) -> None:
        lane = next(lane for lane in self.lanes if slot in lane.slots)
        offset = UNKNOWN if slot in lane.in_hand else lane.next_of(slot)
        del lane.slots[slot]
        self._leaving[slot] = _Leaving(lane, self._since[slot], offset)
        self._drop_empty()

    def _drop_empty(self) -> None:
        self.lanes = [lane for lane in self.lanes if lane.slots or lane.in_hand]

    def finished(self, offsets: Mapping[int, int] = MappingProxyType({})) -> list[int]:
        """Return the finished slots among those that are being released. A slot is finished if the
        caller has processed all returned records of the slot, and the slot's offset is committed or
        is one of `offsets`, which are about to be stored."""
        return [
            slot
            for slot, leaving in self._leaving.items()
            if leaving.offset != UNKNOWN
            and max(self._stored[slot], offsets.get(slot, 0)) >= leaving.offset
        ]

    def give_up(self, slots: Iterable[int] | None = None) -> list[int]:
        """Leave out `slots` from the next heartbeat, and return them. By default these are all
        finished slots."""
        given = self.finished() if slots is None else [one for one in slots if one in self._leaving]
        for slot in given:
            self._left[slot] = self._leaving.pop(slot).since
            del self._since[slot], self._stored[slot]
        return given

    # --- commits ---

    def uncommitted(self) -> dict[int, int]:
        """Return the offsets to commit, by slot: the offsets that the daemon has not stored yet."""
        found = {slot: lane.next_of(slot) for lane in self.lanes for slot in lane.slots}
        for slot, leaving in self._leaving.items():
            if leaving.offset != UNKNOWN:
                found[slot] = leaving.offset
        return {slot: offset for slot, offset in found.items() if offset > self._stored[slot]}

    def committed(self, joined: int, offsets: dict[int, int], sent: float) -> None:
        """Note that the daemon has stored these offsets, in answer to a commit of the membership
        `joined` that was sent at `sent`."""
        if joined != self.joined:
            return
        self.heard(sent)
        for slot, offset in offsets.items():
            if slot in self._stored:
                self._stored[slot] = max(self._stored[slot], offset)
