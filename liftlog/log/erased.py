"""The set of the offsets of erased records of one log, and the files that hold it.

No reader shows a record whose offset is in the set. The set holds offsets of stored records only,
so its size is the number of hidden records. A rewrite of a segment removes the bytes of hidden
records, and takes their offsets out of the set.
"""

from __future__ import annotations

import base64
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from liftlog.errors import CorruptMetadata
from liftlog.log.files.erased_file import (
    CHUNK_BITS,
    CHUNK_OFFSETS,
    ErasedEntry,
    bitmap,
    parse_bitmap,
    read_erased_file,
)
from liftlog.log.files.filesystem import FileSystem
from liftlog.records.columns.cutting import without_rows
from liftlog.records.decode import RecordBatch

if TYPE_CHECKING:
    from pyroaring import BitMap

Chunks = Mapping[int, "BitMap"]
"""Bitmaps of 2^24 offsets each, by number; their bits are relative to the start of the chunk, and
none is empty."""


class ErasedSet:
    """An immutable set of offsets. `unreadable` are the listed files that cannot be read; each
    offset in their ranges may belong to the set."""

    __slots__ = ("_numbers", "chunks", "unreadable")

    def __init__(self, chunks: Chunks, unreadable: Sequence[ErasedEntry] = ()) -> None:
        self.chunks = chunks
        self.unreadable = tuple(sorted(unreadable, key=lambda one: one.first_offset))
        self._numbers = sorted(chunks)

    @classmethod
    def of_ranges(cls, ranges: Iterable[tuple[int, int]]) -> ErasedSet:
        """Return all offsets of these ranges, each [first, next)."""
        chunks: dict[int, BitMap] = {}
        for first, end in ranges:
            while first < end:
                number = first >> CHUNK_BITS
                stop = min(end, (number + 1) << CHUNK_BITS)
                base = number << CHUNK_BITS
                chunks.setdefault(number, bitmap()).add_range(first - base, stop - base)
                first = stop
        return cls(chunks)

    @classmethod
    def of_offsets(cls, offsets: NDArray[np.int64]) -> ErasedSet:
        """Return these offsets, which ascend."""
        chunks: dict[int, BitMap] = {}
        numbers = offsets >> CHUNK_BITS
        for number in np.unique(numbers).tolist():
            low, high = np.searchsorted(numbers, (number, number + 1)).tolist()
            relative = (offsets[low:high] - (number << CHUNK_BITS)).astype(np.uint32)
            chunks[number] = bitmap(memoryview(relative))
        return cls(chunks)

    @classmethod
    def of_all(cls, sets: Iterable[ErasedSet]) -> ErasedSet:
        """Return the offsets of all these sets, without the unreadable files."""
        chunks: dict[int, BitMap] = {}
        for one in sets:
            for number, bits in one.chunks.items():
                if number in chunks:
                    chunks[number] |= bits
                else:
                    chunks[number] = bits.copy()
        return cls(chunks)

    def __len__(self) -> int:
        return sum([len(bits) for bits in self.chunks.values()])

    def __bool__(self) -> bool:
        return bool(self.chunks or self.unreadable)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ErasedSet):
            return NotImplemented
        return self.chunks == other.chunks and self.unreadable == other.unreadable

    def __hash__(self) -> int:
        return hash((tuple(self._numbers), self.unreadable))

    # --- asking ---

    @property
    def end_offset(self) -> int:
        """The offset after the highest one of the set; 0 if it is empty."""
        if not self._numbers:
            return 0
        number = self._numbers[-1]
        return (number << CHUNK_BITS) + int(self.chunks[number].max()) + 1

    def count_in(self, first_offset: int, next_offset: int) -> int:
        """Return how many offsets of [first_offset, next_offset) are in the set."""
        return sum(
            bits.range_cardinality(low, high)
            for _, bits, low, high in self._parts(first_offset, next_offset)
        )

    def offsets_in(self, first_offset: int, next_offset: int) -> NDArray[np.int64]:
        """Return the offsets of [first_offset, next_offset) in the set, ascending."""
        found = []
        for number, bits, low, high in self._parts(first_offset, next_offset):
            some = bits & bitmap(range(low, high)) if high - low < CHUNK_OFFSETS else bits
            relative = np.frombuffer(some.to_array(), np.uint32).astype(np.int64)
            found.append(relative + (number << CHUNK_BITS))
        return np.concatenate(found) if found else np.zeros(0, np.int64)

    def ranges(self) -> list[tuple[int, int]]:
        """Return the offsets as ranges [first, next), ascending."""
        found: list[tuple[int, int]] = []
        for number in self._numbers:
            base, bits, at = number << CHUNK_BITS, self.chunks[number], 0
            while (first := _next_bit(bits, at)) is not None:
                at = _end_of_run(bits, first)
                if found and found[-1][1] == base + first:
                    found[-1] = found[-1][0], base + at
                else:
                    found.append((base + first, base + at))
        return found

    @property
    def range_count(self) -> int:
        """The number of ranges of the set, as `ranges` divides it."""
        count, before = 0, -2
        for number in self._numbers:
            bits = self.chunks[number]
            count += len(bits) - bits.intersection_cardinality(bits.shift(1))
            joins = before == number - 1 and 0 in bits
            if joins and CHUNK_OFFSETS - 1 in self.chunks[before]:
                count -= 1
            before = number
        return count

    @property
    def size_bytes(self) -> int:
        """The size of the bitmaps in the portable format, in bytes."""
        return sum([_size_of(bits) for bits in self.chunks.values()])

    def offset_at(self, rank: int) -> int:
        """Return the offset with this rank; the lowest offset has rank 0. Raises IndexError."""
        for number in self._numbers:
            bits = self.chunks[number]
            if rank < len(bits):
                return (number << CHUNK_BITS) + int(bits[rank])
            rank -= len(bits)
        raise IndexError(rank)

    def divided(self, most_bytes: int) -> list[ErasedSet]:
        """Divide the set into sets of about `most_bytes`, the lowest offsets first. A chunk stays
        whole. Leaves out the unreadable files."""
        parts: list[dict[int, BitMap]] = []
        room = 0
        for number in self._numbers:
            size = _size_of(self.chunks[number])
            if size > room or not parts:
                parts.append({})
                room = most_bytes
            parts[-1][number] = self.chunks[number]
            room -= size
        return [ErasedSet(chunks) for chunks in parts]

    def next_at(self, offset: int) -> int | None:
        """Return the first offset at or after `offset` that is in the set or in the range of an
        unreadable file; None if there is none."""
        found = None
        for number in self._numbers[bisect_left(self._numbers, offset >> CHUNK_BITS) :]:
            base = number << CHUNK_BITS
            at = _next_bit(self.chunks[number], max(offset - base, 0))
            if at is not None:
                found = base + at
                break
        for entry in self.unreadable:
            if entry.next_offset > offset:
                first = max(entry.first_offset, offset)
                return first if found is None else min(found, first)
        return found

    def next_not_at(self, offset: int) -> int:
        """Return the first offset at or after `offset` that is not in the set."""
        while True:
            number = offset >> CHUNK_BITS
            bits, base = self.chunks.get(number), number << CHUNK_BITS
            if bits is None or offset - base not in bits:
                return offset
            end = _end_of_run(bits, offset - base)
            offset = base + end
            if end < CHUNK_OFFSETS:
                return offset

    def check_readable(self, first_offset: int, next_offset: int) -> None:
        """Raise CorruptMetadata if a file with offsets of the range cannot be read, so that nobody
        knows which of its records are erased."""
        for entry in self.unreadable:
            if entry.first_offset < next_offset and entry.next_offset > first_offset:
                raise CorruptMetadata(
                    f"the file {entry.file_name} cannot be read, which says what is erased of the "
                    f"records [{entry.first_offset}, {entry.next_offset})",
                    hint="no record of this range is shown; restore the file from a backup",
                    first_offset=entry.first_offset,
                    next_offset=entry.next_offset,
                )

    def _parts(self, first: int, end: int) -> Iterable[tuple[int, BitMap, int, int]]:
        """Yield the chunks that overlap [first, end): number, bits, and the range in them."""
        if first >= end:
            return
        at = bisect_left(self._numbers, first >> CHUNK_BITS)
        while at < len(self._numbers) and self._numbers[at] << CHUNK_BITS < end:
            number = self._numbers[at]
            base = number << CHUNK_BITS
            low, high = max(first - base, 0), min(end - base, CHUNK_OFFSETS)
            yield number, self.chunks[number], low, high
            at += 1

    def cut(self, batch: RecordBatch, *, compress: bool = True) -> RecordBatch:
        """Return a verified, untrimmed batch without its erased records; the batch itself if it has
        none. With `compress`, the result has the codec of the batch. Raises CorruptMetadata if it
        is not known which ones are erased, CorruptBatch."""
        header = batch.header
        if self.unreadable:
            self.check_readable(header.base_offset, header.next_offset)
        gone = self.offsets_in(header.base_offset, header.next_offset)
        return without_rows(batch, gone, compress=compress) if len(gone) else batch

    # --- making others ---

    def within(self, first_offset: int, next_offset: int) -> ErasedSet:
        """Return the offsets of the set in [first_offset, next_offset), without the unreadable
        files."""
        return ErasedSet(
            {
                number: some
                for number, bits, low, high in self._parts(first_offset, next_offset)
                if (some := bits & bitmap(range(low, high)))
            }
        )

    def __or__(self, other: ErasedSet) -> ErasedSet:
        chunks = dict(self.chunks)
        for number, bits in other.chunks.items():
            mine = chunks.get(number)
            chunks[number] = bits if mine is None else mine | bits
        return ErasedSet(chunks, (*self.unreadable, *other.unreadable))

    def __and__(self, other: ErasedSet) -> ErasedSet:
        return ErasedSet(
            {
                number: both
                for number, bits in self.chunks.items()
                if (theirs := other.chunks.get(number)) is not None and (both := bits & theirs)
            }
        )

    def __sub__(self, other: ErasedSet) -> ErasedSet:
        chunks = dict(self.chunks)
        for number, bits in other.chunks.items():
            if number in chunks:
                chunks[number] = chunks[number] - bits
                if not chunks[number]:
                    del chunks[number]
        return ErasedSet(chunks, self.unreadable)

    def to_plain(self) -> tuple[tuple[int, str], ...]:
        """Return the offsets in a form that JSON can represent, without the unreadable files."""
        return tuple(
            (number, base64.b64encode(self.chunks[number].serialize()).decode("ascii"))
            for number in self._numbers
        )

    @classmethod
    def from_plain(cls, content: Iterable[tuple[int, str]]) -> ErasedSet:
        """Return the set of `to_plain`."""
        return cls({number: parse_bitmap(base64.b64decode(text)) for number, text in content})


def _size_of(bits: BitMap) -> int:
    return len(bits.serialize())


def _next_bit(bits: BitMap, at: int) -> int | None:
    return bits.next_set_bit(at) if at <= bits.max() else None


def _end_of_run(bits: BitMap, at: int) -> int:
    """Return the first number above `at` that is not in `bits`. `at` itself is in `bits`."""
    low, step = at + 1, 1
    while low < CHUNK_OFFSETS and bits.contains_range(low, min(low + step, CHUNK_OFFSETS)):
        low = min(low + step, CHUNK_OFFSETS)
        step *= 2
    high = low + step
    while low < CHUNK_OFFSETS and high - low > 1:
        middle = (low + high) // 2
        if bits.contains_range(low, middle):
            low = middle
        else:
            high = middle
    return low


def read_listed(
    fs: FileSystem, directory: Path, entries: Sequence[ErasedEntry]
) -> tuple[ErasedSet | None, list[str]]:
    """Read the listed files. Returns None for an empty set, and the problems of the files. Raises
    OSError for a failure that passes."""
    chunks: dict[int, BitMap] = {}
    unreadable: list[ErasedEntry] = []
    problems: list[str] = []
    for entry in entries:
        found = read_erased_file(fs, directory, entry)
        if found.problem:
            problems.append(found.problem)
        if found.bits is None:
            unreadable.append(entry)
        elif found.bits:
            mine = chunks.get(entry.chunk)
            chunks[entry.chunk] = found.bits if mine is None else mine | found.bits
    erased = ErasedSet(chunks, unreadable)
    return erased or None, problems


def clip(
    entries: tuple[ErasedEntry, ...], erased: ErasedSet | None, first_offset: int, next_offset: int
) -> tuple[tuple[ErasedEntry, ...], ErasedSet | None]:
    """Return the entries and the set without the offsets outside of [first_offset, next_offset).

    A file that begins before `first_offset` and ends after it stays as it is."""
    kept = tuple(
        _ending(one, next_offset)
        for one in entries
        if one.first_offset < next_offset and one.next_offset > first_offset
    )
    if erased is None or kept == entries:
        return kept, erased
    names = {one.file_name: one for one in kept}
    unreadable = [names[one.file_name] for one in erased.unreadable if one.file_name in names]
    # Files are dropped as a whole at the start, so some offsets below it stay.
    first = min([one.first_offset for one in kept], default=next_offset)
    clipped = ErasedSet(erased.within(first, next_offset).chunks, unreadable)
    return kept, clipped or None


def _ending(entry: ErasedEntry, next_offset: int) -> ErasedEntry:
    if entry.next_offset <= next_offset:
        return entry
    return ErasedEntry(
        entry.first_offset,
        next_offset,
        entry.number,
        entry.count,
        entry.size_bytes,
        entry.crc32c,
    )
