"""Records that a member of a group has received and not yet returned, and their slots. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from liftlog.client.groups.group_member import Lane
from liftlog.records.checksum import crc32c
from liftlog.records.decode import Record


def slots_of(records: Sequence[Record], count: int) -> list[int]:
    """Return the slot of each record. The slot is computed from the record's key, or from its
    subject if it has no key."""
    return [
        crc32c(subject.encode() if key is None else key) * count >> 32
        for _, _, subject, key, _, _ in records
    ]


class Arrived:
    """The records of one batch that belong to the lane, and the end of the batch. The records
    before `index` were returned; the records before `counted` are counted in the member's state."""

    def __init__(self, records: list[Record], slots: list[int] | None, end: int) -> None:
        self.records = records
        self.end = end
        self.index = self.counted = 0
        self._slots = slots  # None: not computed yet

    @property
    def next_offset(self) -> int:
        """The offset of the next record to return, or the end of the batch if there is no such
        record. All records below this offset were returned."""
        return self.records[self.index].offset if self.index < len(self.records) else self.end

    @property
    def knows_slots(self) -> bool:
        return self._slots is not None

    def slots(self, first: int, end: int, slot_count: int) -> list[int]:
        """Return the slots of the records [first, end)."""
        if self._slots is None:
            return slots_of(self.records[first:end], slot_count)
        return self._slots[first:end]

    def keep(self, lane: Lane, slot_count: int) -> None:
        """Drop the records that are not yet returned and whose slots the lane no longer has."""
        first, count = self.index, len(self.records)
        slots = self.slots(first, count, slot_count)
        pairs = zip(self.records[first:], slots, strict=True)
        kept = [(record, slot) for record, slot in pairs if slot in lane.slots]
        self.records = [record for record, _ in kept]
        self._slots = [slot for _, slot in kept]
        self.index = self.counted = 0
