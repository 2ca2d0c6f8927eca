"""Records the results of publishers and readers of a replicated stream, and checks the promises.

Each message has a unique name, so its offset and its readers are always known. Readings contain the
ranges of offsets over which they are complete. If an ack or any reading shows a record at an
offset, each reading that covers this offset must contain the record. So a lost message, a record
that disappeared, a record that a replica lacks, and a record that a reader skipped are the same
error, and are only distinguished for the report. Offsets at which nobody has seen a record may be
empty, because a log gives up some offsets when an fsync fails.

A campaign of many rounds checks each round, and then calls `settle` to store what all readers have
seen. Later rounds read from there on, and a complete reading is compared with the stored state.

The module is pure: it uses no processes and no clocks. Times are seconds of any single clock.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

_EXAMPLES = 5


class Stored(NamedTuple):
    """A record as a reader received it. `content` is everything that must be equal on all
    replicas."""

    offset: int
    message: Hashable
    content: Hashable = None
    key: bytes | None = None
    deletes: bool = False
    """True for a tombstone. It may be removed when no older record of its key is left."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Records of [start, end) in the order of their arrival. `by` names the reader in messages. A
    reading that `is_last` was made after all changes, so no record follows its end. `damaged` are
    the ranges for which the reader got an error."""

    reader: str
    start: int
    end: int
    records: Sequence[Stored]
    is_last: bool = False
    damaged: Sequence[tuple[int, int]] = ()

    def is_told(self, offset: int) -> bool:
        """Return True if the reader got an error for this offset."""
        return any(first <= offset < following for first, following in self.damaged)


@dataclass(slots=True)
class Published:
    """A message since it was sent. Without an answer, its outcome is unknown."""

    sent_at: float
    key: bytes | None = None
    deletes: bool = False
    acked_at: float | None = None
    offset: int | None = None
    is_promised: bool = True
    """False for an ack that only the leader's disk guarantees."""
    refused_with: int | None = None


class Finding(NamedTuple):
    """A broken promise. Findings of the same `kind` are joined, with their number and examples."""

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
"""Kinds of findings. The last kind shows an error of the test itself."""


@dataclass(slots=True)
class History:
    """All results. `is_compacted`: a record may be missing if a later record of its key exists.
    `refused_may_be_stored`: disks failed while answers were in flight."""

    is_compacted: bool = False
    refused_may_be_stored: bool = False
    published: dict[Hashable, Published] = field(default_factory=dict)
    readings: list[Reading] = field(default_factory=list)
    _settled: dict[int, Stored] = field(default_factory=dict)
    """The records at offsets whose state is final, in order."""
    _places: dict[Hashable, int] = field(default_factory=dict)
    """The offset of each settled message. Some of them have been compacted since."""
    _deleted: dict[bytes, list[int]] = field(default_factory=dict)
    """The offsets of the settled tombstones of each key."""
    _settled_sent: float = -math.inf

    def sent(
        self, message: Hashable, at: float, key: bytes | None = None, *, deletes: bool = False
    ) -> None:
        """Note that a message is sent for the first time. A repetition with the same id is no other
        message."""
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
        """Store the final state of the offsets below `end`, after a check without findings, when
        all readers have read up to `end`. Records that no reader has any more were compacted."""
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
        """Return all contradictions to the promises; empty if there are none."""
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
        """Check that a message that was published after an ack is stored after the acked
        message."""
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
        """Check that each reading contains every known record at the offsets that it covers."""
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
        """Return the offsets of the tombstones of each key; empty for a stream that keeps all
        records."""
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
        """Return the message, its key if the stream is compacted, and True if it deletes."""
        if offset in standing:
            record = standing[offset][0]
            message, key, deletes = record.message, record.key, record.deletes
        else:
            message = promised[offset]
            one = self.published[message]
            key, deletes = one.key, one.deletes
        return message, key if self.is_compacted else None, deletes


def _last_below(offsets: Sequence[int], end: int) -> int:
    """Return the last of the ascending `offsets` that is below `end`; -1 if there is none."""
    at = bisect_left(offsets, end)
    return offsets[at - 1] if at else -1
