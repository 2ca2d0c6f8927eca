"""Makes the subject index of a sealed segment, for reads of the records on one subject.

The index is made in chapters: parts of the segment with one leader epoch, and with timestamps that
fit into one batch. The records of a chapter, without their values, are sorted by subject and
encoded; only one chapter is in memory at a time.
"""

from __future__ import annotations

import zlib
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from liftlog.log.files.filesystem import Buffer
from liftlog.log.files.manifest import SegmentEntry
from liftlog.log.segment.subject_index import NO_RUNS, RUN, RUN_BYTES, SUBJECT, index_parts
from liftlog.records.columns.batch_columns import can_share_batch, decode_columns, encode_columns
from liftlog.records.columns.column_set import NO_SUBJECT, BinaryColumn, Columns, concat
from liftlog.records.decode import RecordBatch
from liftlog.records.format import (
    BODY_CRC_POSITION,
    CODEC_MASK,
    CRC,
    HEADER_CRC_POSITION,
    MAX_BATCH_RECORDS,
    padded,
)

MOST_PART = 5
"""Divisor: an index takes at most 1/5 of the size of its segment."""

MOST_BYTES = 64 * 1024 * 1024
"""Maximum size of an index in bytes. The index is in memory while it is made."""

_CHAPTER_BYTES = 8 * 1024 * 1024  # without values
_LEAST_BATCH_BYTES = 4096  # average; smaller batches take too long, and a job will join them
_SOON = 4 * 1024 * 1024  # after this number of bytes, the average batch size is clear
_MANY_RUNS = 10_000  # encoding them takes a second; no index if each has few records
_MOST_RUNS = 100_000  # in a chapter, if they have few records
_LEAST_RECORDS = 8  # minimum per run on average; below it, a sketch is as fast
_LEVEL = 1  # level of zlib; level 6 takes twice as long and saves a sixteenth

_NOTHING = np.empty(0, np.uint8)  # not a view into a batch, which would keep the batch in memory

Name = tuple[bytes, bool]
"""Name of a subject as it is stored, and True if it is escaped."""


class _Subject:
    """The runs of one subject in a chapter: for each run, the number of records and the CRC-32C of
    the values."""

    __slots__ = ("bytes", "check", "count", "runs")

    def __init__(self) -> None:
        self.runs: list[tuple[int, int]] = []
        self.count = self.check = self.bytes = 0  # of the current run

    def expect(self, count: int, size: int) -> bool:
        """Note that the next `count` records come from one batch. Returns True if these records
        begin a new run."""
        if self.bytes + size > RUN_BYTES or self.count + count > MAX_BATCH_RECORDS:
            self.finish_run()
        is_first = not self.count
        self.count += count
        self.bytes += size
        return is_first

    def finish_run(self) -> None:
        if self.count:
            self.runs.append((self.count, self.check))
        self.count = self.check = self.bytes = 0


class _Encoded(NamedTuple):
    """The runs of a chapter. Each run has a name (its subject) and an entry, which contains a
    position in `content`."""

    names: list[Name]
    entries: NDArray[np.void]
    content: bytearray


class _Chapter:
    def __init__(self, batch: RecordBatch) -> None:
        """Begin a chapter with its first batch."""
        self.size_bytes = 0  # without the values
        self.run_count = 0
        self._header = batch.header
        self._stamps = batch.header.base_timestamp_ns, batch.header.max_timestamp_ns
        self._subjects: dict[Name, tuple[int, _Subject]] = {}
        self._numbers: list[NDArray[np.int64]] = []  # of the subject of each record
        self._columns: list[Columns] = []  # without subjects, and without the bytes of values
        self._lengths: list[NDArray[np.int32]] = []  # of the values
        self._places: list[NDArray[np.uint32]] = []  # of the values

    def has_room_for(self, batch: RecordBatch) -> bool:
        header = batch.header
        stamps = header.base_timestamp_ns, header.max_timestamp_ns
        return (
            self.size_bytes < _CHAPTER_BYTES
            and header.leader_epoch == self._header.leader_epoch
            and can_share_batch(self._stamps, stamps)
        )

    def add(self, position: int, batch: RecordBatch) -> None:
        """Add a batch. Raises CorruptBatch if its columns contradict each other."""
        header, columns = batch.header, decode_columns(batch)
        oldest, newest = self._stamps
        self._stamps = min(oldest, header.base_timestamp_ns), max(newest, header.max_timestamp_ns)
        values, count = columns.values, len(columns)
        ids = columns.subject_ids
        if ids is None:
            ids = np.zeros(count, np.uint16)
        kept = replace(
            columns,
            subjects=NO_SUBJECT,
            subject_ids=None,
            keys=_copied(columns.keys),
            headers=_copied(columns.headers),
            values=BinaryColumn(np.zeros(count + 1, np.int32), _NOTHING, values.valid),
        )
        lengths = np.diff(values.ends)
        sizes = np.diff(kept.sizes(), prepend=0)
        self.size_bytes += int(sizes.sum())
        counts = np.bincount(ids, minlength=len(columns.subjects))
        totals = np.bincount(ids, sizes + lengths, minlength=len(columns.subjects))
        numbers = np.zeros(len(counts), np.int64)
        some: list[_Subject] = []
        for i in np.flatnonzero(counts).tolist():
            name = columns.subjects[i]
            found = self._subjects.get(name)
            if found is None:
                found = self._subjects[name] = len(self._subjects), _Subject()
            numbers[i], subject = found
            self.run_count += subject.expect(int(counts[i]), int(totals[i]))
            some.append(subject)
        used = np.cumsum(counts > 0) - 1
        content, ends = values.data.tobytes(), values.ends.tolist()
        for i, start, stop in zip(used[ids].tolist(), ends[:-1], ends[1:], strict=True):
            subject = some[i]
            subject.check = crc32c(content[start:stop], subject.check)
        first = position + batch._layout.values.data
        self._places.append((values.starts.astype(np.int64) + first).astype(np.uint32))
        self._lengths.append(lengths)
        self._numbers.append(numbers[ids])
        self._columns.append(kept)

    def encode(self, base_offset: int) -> _Encoded:
        """Encode all runs. Raises ValueError if one is too large for a batch."""
        order = np.argsort(np.concatenate(self._numbers), kind="stable")
        columns, places = concat(self._columns), np.concatenate(self._places)
        lengths = np.concatenate(self._lengths)
        names: list[Name] = []
        entries: list[tuple[int, ...]] = []
        content = bytearray()
        first = 0
        for name, (_, subject) in self._subjects.items():
            subject.finish_run()
            for count, check in subject.runs:
                chosen = order[first : first + count]
                first += count
                some = replace(columns.at(chosen), subjects=(name,))
                entry, raw = self._run(some, lengths[chosen], places[chosen], check, base_offset)
                names.append(name)
                entries.append((*entry[:2], len(content), *entry[3:]))
                content += raw
        return _Encoded(names, np.array(entries, RUN), content)

    def _run(
        self,
        columns: Columns,
        lengths: NDArray[np.int32],
        places: NDArray[np.uint32],
        check: int,
        base_offset: int,
    ) -> tuple[tuple[int, ...], bytes]:
        first, last = int(columns.offsets[0]), int(columns.offsets[-1])
        ends = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(lengths, out=ends[1:])
        size = int(ends[-1])
        if size >= 1 << 31:
            raise ValueError(f"{size} bytes of values are more than a batch can hold")
        zeros = np.zeros(size, np.uint8)
        values = BinaryColumn(ends.astype(np.int32), zeros, columns.values.valid)
        batch = encode_columns(
            replace(columns, values=values),
            base_offset=first,
            last_offset=last,
            leader_epoch=self._header.leader_epoch,
            commit_group=self._header.commit_group,
        )
        _put_values(batch, size, check)
        head_bytes = len(batch) - padded(size)
        raw = zlib.compress(batch[:head_bytes] + places.tobytes(), _LEVEL)
        of_batch = (head_bytes, len(places), len(batch))
        return (first - base_offset, last - base_offset, 0, len(raw), *of_batch, crc32c(raw)), raw


def _copied(column: BinaryColumn | None) -> BinaryColumn | None:
    """Return a copy, which is not a view into the batch."""
    if column is None:
        return None
    return BinaryColumn(column.ends - column.ends[0], column.content().copy(), column.valid)


def _put_values(batch: bytearray, size: int, check: int) -> None:
    """Set the checksums of `batch`, which has `size` zeros in place of its values, to the checksums
    of the batch with the values. `check` is the CRC-32C of the values."""
    # The checksum of two joined parts is the XOR of three checksums: of the first part followed by
    # zeros, of the zeros, and of the second part.
    zeros = bytes(padded(size))
    behind = crc32c(zeros[size:], check)
    [body] = CRC.unpack_from(batch, BODY_CRC_POSITION)
    CRC.pack_into(batch, BODY_CRC_POSITION, body ^ crc32c(zeros) ^ behind)
    CRC.pack_into(batch, HEADER_CRC_POSITION, crc32c(memoryview(batch)[:HEADER_CRC_POSITION]))


class SubjectIndexBuilder:
    """Builds a subject index from the batches of one segment. Add the batches in order."""

    def __init__(self, base_offset: int) -> None:
        self._base = base_offset
        self._chapter: _Chapter | None = None
        self._numbers: dict[Name, int] = {}  # of the subjects
        self._of_runs: list[NDArray[np.int64]] = []  # the subject number of each run
        self._entries: list[NDArray[np.void]] = []  # of the runs, with positions in all content
        self._content: list[bytearray] = []
        self._size = 0  # of all runs, entries and names
        self._batches = self._records = self._end = 0
        self.is_useful = True
        """False if no index will be made, regardless of the batches that follow."""

    def add(self, position: int, batch: RecordBatch) -> None:
        """Add a batch. Raises CorruptBatch if its columns contradict each other."""
        header = batch.header
        self._end = position + header.length
        self._batches += 1
        self._records += header.record_count
        if header.attributes & CODEC_MASK or self._is_hopeless():
            self._give_up()
        if not self.is_useful or not header.record_count:
            return
        if self._chapter is not None and not self._chapter.has_room_for(batch):
            self._finish_chapter()
        if self._chapter is None:
            self._chapter = _Chapter(batch)
        self._chapter.add(position, batch)

    def parts(self, segment: SegmentEntry, lineage: str) -> list[Buffer]:
        """Return the content of the file, in parts. Call it after the last batch."""
        self._finish_chapter()
        if not self.is_useful or not self._is_worth_it() or len(self._numbers) < 2:
            return index_parts(segment, lineage, [], NO_RUNS, [])
        names = sorted(self._numbers)
        rank = np.empty(len(names), np.int64)
        rank[[self._numbers[name] for name in names]] = np.arange(len(names))
        ranks = rank[np.concatenate(self._of_runs)]
        entries = np.concatenate(self._entries)[np.argsort(ranks, kind="stable")]
        counts = np.bincount(ranks)
        firsts = (np.cumsum(counts) - counts).tolist()
        subjects = [(*name, first) for name, first in zip(names, firsts, strict=True)]
        return index_parts(segment, lineage, subjects, entries, self._content)

    def _give_up(self) -> None:
        self.is_useful, self._chapter, self._content = False, None, []

    def _is_hopeless(self) -> bool:
        """Return True if it is already clear that no index will be made."""
        runs = 0 if self._chapter is None else self._chapter.run_count
        has_small_batches = self._end < _LEAST_BATCH_BYTES * self._batches
        return (self._end > _SOON and has_small_batches) or (
            runs > _MOST_RUNS and self._has_short_runs()
        )

    def _has_short_runs(self) -> bool:
        return self._records < _LEAST_RECORDS * self._run_count()

    def _run_count(self) -> int:
        runs = 0 if self._chapter is None else self._chapter.run_count
        return sum(map(len, self._entries)) + runs

    def _is_worth_it(self) -> bool:
        """Return True if the encoded runs save more than the index costs."""
        return (
            self._size <= MOST_BYTES
            and MOST_PART * self._size <= self._end
            and self._end >= _LEAST_BATCH_BYTES * self._batches
            and not self._has_short_runs()
        )

    def _finish_chapter(self) -> None:
        if self._run_count() > _MANY_RUNS and self._has_short_runs():
            self._give_up()
        chapter, self._chapter = self._chapter, None
        if chapter is None:
            return
        try:
            names, entries, content = chapter.encode(self._base)
        except ValueError:
            self._give_up()
            return
        entries["position"] += sum(map(len, self._content))
        for name in names:
            if name not in self._numbers:
                self._numbers[name] = len(self._numbers)
                self._size += SUBJECT.itemsize + len(name[0])
        self._of_runs.append(np.array([self._numbers[name] for name in names], np.int64))
        self._entries.append(entries)
        self._content.append(content)
        self._size += len(content) + entries.nbytes
        if self._end > _SOON and not self._is_worth_it():
            self._give_up()
