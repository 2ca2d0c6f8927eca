"""The sketch of one sealed segment. It states which blocks can hold records of a subject, a key or
a time, and has checksums of the parts of batches (`parts`). A read of few records skips the other
blocks; a read of few columns reads only those columns.

A block is a run of batches of about 64 KiB. The file is beside the segment:

     0  4  "LLSK"
     4  4  version 2                        u32
     8  4  number of blocks                 u32
    12  4  CRC-32C of the log's lineage     u32  and of the generation: `derived.history_check`
    16  8  size of the segment in bytes     u64
    24  8  offset after the segment         u64
    32  4  CRC-32C of the filters           u32
    36  4  number of batches                u32
    40  4  CRC-32C of the value checks      u32
    44  4  CRC-32C of bytes 0 to 43 and of all entries  u32
    48     one entry of 32 bytes for each block, one of 16 bytes for each batch, the filters, and
           the value checks to the end of the file

The entry of a block: offset - base u32, position u32, oldest and newest timestamp in ns i64, start
of its filter among the filters u32, bytes of the filter u32. The entry of a batch: see `parts`.

The filter of a block is a Bloom filter over its subjects ("s" and the stored bytes) and keys ("k"
and the bytes): PROBES bits for each, at (c + i * d) modulo the number of bits, where c is the
CRC-32C and d is (c * 0x9E3779B97F4A7C15 modulo 2^64) >> 32, made odd. Bit n is bit n % 8 of byte
n // 8.

A sketch is derived from its segment and may be missing. Without a sketch, readers read the whole
segment. A sketch is valid only for the lineage, size and end that it contains, so readers ignore a
sketch from before a truncation. The file is not fsynced: if a crash leaves it incomplete, readers
detect this by its checksum. A damaged segment has no sketch. A sketch of version 1, which has no
checksums of parts, counts as missing.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from liftlog.log.files.filesystem import File, FileSystem
from liftlog.log.files.manifest import SegmentEntry
from liftlog.log.files.unreadable import is_unreadable
from liftlog.log.segment.derived import (
    history_check,
    is_named,
    names_segment,
    sketch_path,
    write_derived,
)
from liftlog.log.segment.parts import PART, PartsBuilder
from liftlog.records.decode import RecordBatch

BLOCK_BYTES = 64 * 1024
PROBES = 7
_BITS_PER_ITEM = 10
_MOST_PART = 32
"""Divisor: a filter has at most 1/32 of the size of its block. Because of this limit, a filter with
many items is less selective."""

_MAGIC = b"LLSK"
_VERSION = 2
_HEAD = struct.Struct("<4sIIIQQIIII")
_ENTRY = np.dtype(
    [
        ("relative", "<u4"),
        ("position", "<u4"),
        ("oldest", "<i8"),
        ("newest", "<i8"),
        ("filter", "<u4"),
        ("filter_bytes", "<u4"),
    ]
)
_SUBJECT, _KEY = crc32c(b"s"), crc32c(b"k")
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_STEPS = np.arange(PROBES, dtype=np.uint64)


@dataclass(frozen=True, slots=True)
class Probe:
    """The conditions of a read: only records of these times are wanted, and if a subject or key is
    given, only records with it."""

    not_before_ns: int = -(2**63)
    not_after_ns: int = 2**63 - 1
    subject: bytes | None = None
    key: bytes | None = None

    def hashes(self) -> list[int]:
        found = []
        if self.subject is not None:
            found.append(crc32c(self.subject, _SUBJECT))
        if self.key is not None:
            found.append(crc32c(self.key, _KEY))
        return found


class Blocks(NamedTuple):
    """The blocks of a segment, and for each block a flag: True if the block may hold a wanted
    record. Block i has the offsets [borders[i], borders[i + 1])."""

    borders: NDArray[np.int64]
    sizes_bytes: NDArray[np.int64]
    may_match: NDArray[np.bool_]


class ValueChecks(NamedTuple):
    """The place and the checksum of the value checks, which extend to the end of the file. One
    checksum covers all value checks."""

    position: int
    size_bytes: int
    check: int


class Sketch:
    """A sketch that was read and checked."""

    def __init__(
        self,
        entry: SegmentEntry,
        entries: NDArray[np.void],
        filters: bytes,
        parts: NDArray[np.void],
        value_checks: ValueChecks,
    ) -> None:
        self._segment = entry
        self._entries = entries
        self._filters = filters
        self.parts = parts
        """One PART for each batch of the segment; empty if the batches are small."""
        self.value_checks = value_checks

    def blocks(self, probe: Probe) -> Blocks:
        """Return all blocks, each with a flag: True if it may have a matching record."""
        entries, segment = self._entries, self._segment
        may_match = (entries["newest"] >= probe.not_before_ns) & (
            entries["oldest"] <= probe.not_after_ns
        )
        for item in probe.hashes():
            may_match &= self._holds(item)
        borders = entries["relative"] + np.int64(segment.base_offset)
        positions = np.append(entries["position"].astype(np.int64), segment.size_bytes)
        return Blocks(np.append(borders, segment.next_offset), np.diff(positions), may_match)

    def _holds(self, item: int) -> NDArray[np.bool_]:
        """Return a flag for each block: True if its filter may contain the item."""
        entries = self._entries
        bits = 8 * entries["filter_bytes"].astype(np.uint64)
        found: NDArray[np.bool_] = bits > 0
        at = _bits_of(np.array([item], np.uint32)) % np.maximum(bits, 1)[:, None]
        at += 8 * entries["filter"].astype(np.uint64)[:, None]
        at[~found] = 0
        filters = np.frombuffer(self._filters or b"\0", np.uint8)
        hits = filters[at >> np.uint64(3)] >> (at & np.uint64(7)).astype(np.uint8) & 1
        found &= hits.all(axis=1)
        return found


def _bits_of(items: NDArray[np.uint32]) -> NDArray[np.uint64]:
    """Return the bit numbers of each item, before the modulo."""
    first = items.astype(np.uint64)
    step = (first * _SPREAD) >> np.uint64(32) | np.uint64(1)
    places: NDArray[np.uint64] = first[:, None] + step[:, None] * _STEPS
    return places


class SketchBuilder:
    """Builds a sketch from the batches of one segment, which are added in order. Never divides a
    batch."""

    def __init__(self, base_offset: int) -> None:
        self._base = base_offset
        self._entries: list[tuple[int, int, int, int, int, int]] = []
        self._filters: list[bytes] = []
        self._filter_bytes = 0
        self._first = self._position = -1
        self._end = 0
        self._stamps = (0, 0)
        self._items: set[int] = set()
        self._parts = PartsBuilder()

    def add(self, position: int, batch: RecordBatch) -> None:
        """Add a batch. Raises CorruptBatch if its columns contradict each other."""
        header = batch.header
        self._parts.add(position, batch)
        stamps = header.base_timestamp_ns, header.max_timestamp_ns
        if self._first < 0:
            self._first, self._position, self._stamps = header.base_offset, position, stamps
        else:
            self._stamps = min(stamps[0], self._stamps[0]), max(stamps[1], self._stamps[1])
        if header.record_count:
            self._items.update([crc32c(one.encode(), _SUBJECT) for one in set(batch.subjects())])
            keys = set(batch.keys())
            keys.discard(None)
            self._items.update([crc32c(one, _KEY) for one in keys if one is not None])
        self._end = position + header.length
        if self._end - self._position >= BLOCK_BYTES:
            self._finish_block()

    def _finish_block(self) -> None:
        if self._first < 0:
            return
        made = _filter_of(self._items, self._end - self._position)
        place = self._filter_bytes, len(made)
        self._entries.append((self._first - self._base, self._position, *self._stamps, *place))
        self._filters.append(made)
        self._filter_bytes += len(made)
        self._first, self._items = -1, set()

    def to_bytes(self, segment: SegmentEntry, lineage: str) -> bytes:
        """Return the content of the file. Call it after the last batch."""
        self._finish_block()
        parts, value_checks = self._parts.to_bytes()
        entries = np.array(self._entries, _ENTRY).tobytes() + parts
        filters = b"".join(self._filters)
        fields = (len(self._entries), history_check(segment, lineage))
        about = (segment.size_bytes, segment.next_offset, crc32c(filters))
        of_parts = (len(parts) // PART.itemsize, crc32c(value_checks))
        head = _HEAD.pack(_MAGIC, _VERSION, *fields, *about, *of_parts, 0)[:-4]
        check = struct.pack("<I", crc32c(entries, crc32c(head)))
        return b"".join([head, check, entries, filters, value_checks])


def _filter_of(items: Iterable[int], block_bytes: int) -> bytes:
    found = np.fromiter(items, np.uint32)
    if not len(found):
        return b""
    size = min(_BITS_PER_ITEM * len(found), max(block_bytes // _MOST_PART * 8, 64))
    size = -(-size // 8) * 8
    bits = np.zeros(size, np.uint8)
    bits[(_bits_of(found) % np.uint64(size)).ravel()] = 1
    return np.packbits(bits, bitorder="little").tobytes()


def write_sketch(fs: FileSystem, log_path: Path, content: bytes) -> None:
    """Write the sketch next to its segment. Raises OSError."""
    write_derived(fs, sketch_path(log_path), [content])


def is_sketched(fs: FileSystem, log_path: Path, segment: SegmentEntry, lineage: str) -> bool:
    """Return True if a sketch of this segment exists. Reads only the head of the file."""
    return names_segment(fs, sketch_path(log_path), (_MAGIC, _VERSION), segment, lineage)


def read_sketch(
    fs: FileSystem, log_path: Path, segment: SegmentEntry, lineage: str
) -> Sketch | None:
    """Read a sketch; None if the sketch is missing, damaged, or belongs to another state of the
    segment. Does not read the value checks, which are the longest part of a sketch;
    `read_value_checks` reads them. Raises OSError for transient errors."""
    path = sketch_path(log_path)
    try:
        if not fs.exists(path):
            return None
        with closing(fs.open(path, writable=False)) as file:
            return _read(file, segment, lineage)
    except OSError as error:
        if isinstance(error, FileNotFoundError) or is_unreadable(error):
            return None
        raise


def _read(file: File, segment: SegmentEntry, lineage: str) -> Sketch | None:
    raw = file.pread(_HEAD.size, 0)
    if len(raw) < _HEAD.size or not is_named(raw, (_MAGIC, _VERSION), segment, lineage):
        return None
    fields = _HEAD.unpack(raw)
    count, filters_check, part_count, value_check, check = fields[2], *fields[6:]
    blocks_end = count * _ENTRY.itemsize
    end = blocks_end + part_count * PART.itemsize
    if not count or _HEAD.size + end > file.size():
        return None
    entries = file.pread(end, _HEAD.size)
    if crc32c(entries, crc32c(raw[:-4])) != check:
        return None
    blocks = np.frombuffer(entries, _ENTRY, count)
    size = int(blocks["filter"][-1]) + int(blocks["filter_bytes"][-1])
    filters = file.pread(size, _HEAD.size + end)
    if crc32c(filters) != filters_check:
        return None
    parts = np.frombuffer(entries, PART, part_count, blocks_end)
    at = _HEAD.size + end + size
    behind = ValueChecks(at, max(file.size() - at, 0), value_check)
    return Sketch(segment, blocks, filters, parts, behind)


def read_value_checks(
    fs: FileSystem, log_path: Path, place: ValueChecks
) -> NDArray[np.uint32] | None:
    """Return all value checks of a sketch; None if they are unreadable or damaged."""
    try:
        with closing(fs.open(sketch_path(log_path), writable=False)) as file:
            raw = file.pread(place.size_bytes, place.position)
    except OSError:
        return None
    return None if len(raw) % 4 or crc32c(raw) != place.check else np.frombuffer(raw, "<u4")
