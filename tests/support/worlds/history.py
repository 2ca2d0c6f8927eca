"""What publishers and readers of a replicated stream saw, and a checker of the promises.

A message has a name that no other message has, so each question has one answer: where is it, and
who saw it there. Readings tell over which offsets they are complete. Whatever stands at an offset,
by an ack or in any reading, must then stand in each reading that covers the offset: a lost message,
a record that vanished, one that a replica lacks, and one that a reader skipped are the same fault,
and only told apart to be understood. Offsets at which no one ever saw anything may stay empty: a
log gives some up when an fsync fails.

A campaign of many rounds checks each round and then lets `settle` put away what all readers have
seen: later rounds read on from there, and a reading of all of it is compared with that.

It is pure, and knows neither processes nor clocks; times are seconds of any one clock.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

_EXAMPLES = 5


class Stored(NamedTuple):
    """A record as a reader got it. `content` is all that replicas must agree on."""

    offset: int
    message: Hashable
    content: Hashable = None
    key: bytes | None = None
    deletes: bool = False
    """A tombstone: it may go, once nothing older of its key is left."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Records of [start, end), in the order in which they came; by whom, for messages. One that
    `is_last` was made when all had come to rest: nothing stands behind its end. `damaged` are the
    ranges of which the reader was told that they cannot be read."""

    reader: str
    start: int
    end: int
    records: Sequence[Stored]
    is_last: bool = False
    damaged: Sequence[tuple[int, int]] = ()

    def is_told(self, offset: int) -> bool:
        """Whether the reader knows that it lacks this one."""
        return any(first <= offset < following for first, following in self.damaged)


@dataclass(slots=True)
class Published:
    """A message from its sending on. Without an answer nothing is known of it."""

    sent_at: float
    key: bytes | None = None
    deletes: bool = False
    acked_at: float | None = None
    offset: int | None = None
    is_promised: bool = True
    """False for an ack that only the leader's disk stands for."""
    refused_with: int | None = None


class Finding(NamedTuple):
    """A promise that was broken. The same `kind` comes once, with how often, and examples."""

    kind: str
    count: int
    examples: list[str]

    def __str__(self) -> str:
        more = f" and {self.count - len(self.examples)} more" * (self.count > len(self.examples))
        return f"{self.kind} ({self.count}): {'; '.join(self.examples)}{more}"


LOST = "acked and lost"
TWICE_ACKED = "one offset acked to two messages"
MISPLACED = "acked at one offset, read at another"
PHANTOM = "read and never published"
REFUSED = "refused and stored"
DOUBLED = "stored twice"
DIVERGED = "one offset read with two contents"
MISSING = "read by one, missing in another reading"
REORDERED = "published after the ack of a message that stands behind it"
BACKWARDS = "a reading goes backwards"
REVIVED = "deleted, and read without its tombstone"
OUTSIDE = "read outside of the range that was read"
"""The last says that the test itself is wrong."""


@dataclass(slots=True)
class History:
    """`is_compacted`: a record may be missing where a later one of its key is there.
    `refused_may_be_stored`: where disks failed while answers were under way."""

    is_compacted: bool = False
    refused_may_be_stored: bool = False
    published: dict[Hashable, Published] = field(default_factory=dict)
    readings: list[Reading] = field(default_factory=list)
    _settled: dict[int, Stored] = field(default_factory=dict)
    """What stands at offsets of which all is known, in their order."""
    _places: dict[Hashable, int] = field(default_factory=dict)
    """Where each message is that has been put away; some are compacted since."""
    _deleted: dict[bytes, list[int]] = field(default_factory=dict)
    """Where the tombstones of each key are that have been put away."""
    _settled_sent: float = -math.inf

    def sent(
        self, message: Hashable, at: float, key: bytes | None = None, *, deletes: bool = False
    ) -> None:
        """The first time. Repeating a message with its id is no other message."""
        if message not in self._places:
            self.published.setdefault(message, Published(at, key, deletes))

    def acked(self, message: Hashable, offset: int, at: float, *, promised: bool = True) -> None:
        if (place := self._places.get(message)) is not None:
            if promised and place != offset:
                raise ValueError(f"{message} stands at {place}, and was acked at {offset}")
            return
        one = self.published[message]
        if one.offset is not None and one.offset != offset and promised and one.is_promised:
            raise ValueError(f"{message} was acked at {one.offset}, and again at {offset}")
        if one.acked_at is None or (promised and not one.is_promised):
            one.acked_at, one.offset, one.is_promised = at, offset, promised

    def refused(self, message: Hashable, code: int) -> None:
        if message not in self._places:
            self.published[message].refused_with = code

    def settle(self, end: int) -> None:
        """After a check that found nothing, when all have read up to `end`: what is below has one
        place for good. What none of them has any more is compacted."""
        standing = {one.offset: one for reading in self.readings for one in reading.records}
        if self.is_compacted:
            first = min((reading.start for reading in self.readings), default=end)
            for at in [at for at in self._settled if at >= first and at not in standing]:
                del self._settled[at]
        for at in sorted(at for at in standing if at < end):
            one = standing[at]
            self._settled[at] = one
            self._put_away(one.message, at, one.key, deletes=one.deletes)
        for message, known in list(self.published.items()):
            if known.offset is not None and known.offset < end and known.is_promised:
                self._put_away(message, known.offset, known.key, deletes=known.deletes)
        self.readings.clear()

    def _put_away(
        self, message: Hashable, offset: int, key: bytes | None, *, deletes: bool
    ) -> None:
        known = self.published.pop(message, None)
        if known is not None and known.offset is not None and known.is_promised:
            self._settled_sent = max(self._settled_sent, known.sent_at)
        self._places[message] = offset
        if deletes and key is not None:
            insort(self._deleted.setdefault(key, []), offset)

    def read(self, reading: Reading) -> None:
        self.readings.append(reading)

    @property
    def acks(self) -> int:
        return sum(one.offset is not None for one in self.published.values())

    def check(self) -> list[Finding]:
        """Everything that contradicts the promises; empty is good."""
        found: dict[str, list[str]] = {}
        checks = (
            self._acks_against_acks,
            self._order,
            self._readings_alone,
            self._readings_together,
        )
        for check in checks:
            for kind, what in check():
                found.setdefault(kind, []).append(what)
        return [Finding(kind, len(all_), all_[:_EXAMPLES]) for kind, all_ in found.items()]

    # --- the rules ------------------------------------------------------------------

    def _promises(self) -> Iterator[tuple[int, Hashable, Published]]:
        for message, one in self.published.items():
            if one.offset is not None and one.is_promised:
                yield one.offset, message, one

    def _acks_against_acks(self) -> Iterator[tuple[str, str]]:
        owner: dict[int, Hashable] = {}
        for offset, message, _ in self._promises():
            other = owner.setdefault(offset, message)
            if other != message:
                yield TWICE_ACKED, f"{offset} to {other} and to {message}"

    def _order(self) -> Iterator[tuple[str, str]]:
        """What is published after an ack stands behind the message that was acked."""
        earliest, whose = math.inf, None
        for offset, message, one in sorted(self._promises(), key=lambda it: it[0], reverse=True):
            if one.sent_at > earliest:
                yield REORDERED, f"{message} at {offset}, before {whose}"
            assert one.acked_at is not None
            if one.acked_at < earliest:
                earliest, whose = one.acked_at, message
        if self._settled_sent > earliest:
            yield REORDERED, f"one that was put away, before {whose}"

    def _readings_alone(self) -> Iterator[tuple[str, str]]:
        for reading in self.readings:
            last = -1
            places: dict[Hashable, int] = {}
            for record in reading.records:
                where = f"{record.offset} by {reading.reader}"
                if record.offset <= last:
                    yield BACKWARDS, f"{where}, after {last}"
                last = record.offset
                if not reading.start <= last < reading.end:
                    yield OUTSIDE, f"{where}, of [{reading.start}, {reading.end})"
                if places.setdefault(record.message, record.offset) != record.offset:
                    yield DOUBLED, f"{record.message} at {places[record.message]} and {where}"
                yield from self._provenance(record, where)

    def _provenance(self, record: Stored, where: str) -> Iterator[tuple[str, str]]:
        if (place := self._places.get(record.message)) is not None:
            if place != record.offset:
                yield DOUBLED, f"{record.message} at {place} and {where}"
            return
        one = self.published.get(record.message)
        if one is None:
            yield PHANTOM, f"{record.message} at {where}"
        elif one.refused_with is not None and one.offset is None:
            if not self.refused_may_be_stored:
                yield REFUSED, f"{record.message} ({one.refused_with}) at {where}"
        elif one.offset not in (None, record.offset) and one.is_promised:
            yield MISPLACED, f"{record.message} acked at {one.offset}, at {where}"

    def _readings_together(self) -> Iterator[tuple[str, str]]:
        """Each reading holds whatever stands at the offsets that it covers."""
        lowest = min((reading.start for reading in self.readings), default=0)
        standing = {
            offset: (record, "readers before")
            for offset, record in self._settled.items()
            if offset >= lowest
        }
        for reading in self.readings:
            for record in reading.records:
                first, by = standing.setdefault(record.offset, (record, reading.reader))
                if first != record:
                    yield DIVERGED, f"{record.offset} by {by} and by {reading.reader}"
        promised = {offset: message for offset, message, _ in self._promises()}
        offsets = sorted(standing.keys() | promised)
        deleted = self._tombstones(standing, promised)
        for reading in self.readings:
            had = {record.offset for record in reading.records}
            newest = {record.key: record.offset for record in reading.records}
            first_at = bisect_left(offsets, reading.start)
            end = len(offsets) if reading.is_last else bisect_left(offsets, reading.end)
            for offset in offsets[first_at:end]:
                if offset in had or reading.is_told(offset):
                    continue
                message, key, deletes = self._at(offset, standing, promised)
                if key is not None:
                    by = _last_below(deleted.get(key, ()), reading.end)
                    if deletes or max(newest.get(key, -1), by) > offset:
                        continue
                kind = LOST if offset in promised else MISSING
                yield kind, f"{message} at {offset}, not by {reading.reader}"
            for one_key, last in newest.items():
                by = _last_below(deleted.get(one_key, ()), reading.end) if one_key else -1
                if last < by and not reading.is_told(by):
                    yield REVIVED, f"{one_key!r} at {last} by {reading.reader}, deleted at {by}"

    def _tombstones(
        self,
        standing: Mapping[int, tuple[Stored, str]],
        promised: Mapping[int, Hashable],
    ) -> dict[bytes | None, list[int]]:
        """Where each key was deleted; nowhere in a stream that keeps everything."""
        if not self.is_compacted:
            return {}
        found: dict[bytes | None, set[int]] = {key: set(at) for key, at in self._deleted.items()}
        for offset in [*standing, *promised]:
            _, key, deletes = self._at(offset, standing, promised)
            if deletes:
                found.setdefault(key, set()).add(offset)
        return {key: sorted(offsets) for key, offsets in found.items()}

    def _at(
        self,
        offset: int,
        standing: Mapping[int, tuple[Stored, str]],
        promised: Mapping[int, Hashable],
    ) -> tuple[Hashable, bytes | None, bool]:
        """Message, key if the stream is compacted, and whether it deletes."""
        if offset in standing:
            record = standing[offset][0]
            message, key, deletes = record.message, record.key, record.deletes
        else:
            message = promised[offset]
            one = self.published[message]
            key, deletes = one.key, one.deletes
        return message, key if self.is_compacted else None, deletes


def _last_below(offsets: Sequence[int], end: int) -> int:
    """The last of the ascending `offsets` that is below `end`; -1 for none."""
    at = bisect_left(offsets, end)
    return offsets[at - 1] if at else -1
