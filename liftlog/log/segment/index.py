"""The sparse index of one segment: offset -> position and time -> offset.

One 16-byte entry for at most every 4 KiB of log, written at batch boundaries:

    0  4  offset - base_offset   u32
    4  4  position               u32  where the batch starts
    8  8  max timestamp_ns       i64  of everything before and in this batch

The file ends with a footer of 40 bytes, which identifies the segment:

    0  8  base offset            u64
    8  4  generation             u32  of the segment
   12  4  CRC-32C of the 32 hex digits of the incarnation
   16  8  size                   u64  bytes of the segment that the entries cover
   24  4  "LLI2"
   28  4  number of entries      u32
   32  4  CRC-32C of the entries
   36  4  CRC-32C of the 36 bytes before

An index is only an optimization. Readers ignore an index that is damaged, belongs to another
segment or points to wrong places, and rebuild it from the batch headers. Readers also rebuild an
index with the footer of version 1 ("LLIX"), which does not identify its segment. The index file of
an active segment is as old as the last checkpoint.
"""

from __future__ import annotations

import logging
import struct
from array import array
from bisect import bisect_left, bisect_right
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from crc32c import crc32c

from liftlog.errors import CorruptBatch, UnsupportedFormat
from liftlog.log.files.filesystem import File, FileSystem, is_full, write_all
from liftlog.log.files.unreadable import read_small_file, read_zeroed
from liftlog.records.format import HEADER_SIZE
from liftlog.records.header import parse_header

logger = logging.getLogger("liftlog.log")

INTERVAL_BYTES = 4096
_ENTRY_SIZE = 16
_FOOTER = struct.Struct("<QIIQ4sIII")
_FOOTER_MAGIC = b"LLI2"
_SAMPLES = 16
"""Number of entries that are compared with the segment when its index is read."""
_ENTRY_START = struct.Struct("<II")
_ENTRY_TYPE = np.dtype([("relative", "<u4"), ("position", "<u4"), ("stamp", "<i8")])


class IndexEntry(NamedTuple):
    offset: int
    position: int


class Indexed(Protocol):
    """The segment that an index belongs to: a `SegmentEntry` of the manifest, or a `Segment` in
    memory."""

    @property
    def base_offset(self) -> int: ...
    @property
    def generation(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...


class SparseIndex:
    """The index in memory: three parallel arrays. One thread may append while other threads
    search."""

    __slots__ = ("_positions", "_relative", "_stamps", "base_offset")

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self._relative = array("I")
        self._positions = array("I")
        self._stamps = array("q")

    def __len__(self) -> int:
        return len(self._relative)

    def maybe_add(self, offset: int, position: int, max_timestamp_ns: int) -> None:
        """Add an entry for the batch at `position`, unless the last entry is less than 4 KiB before
        that position.

        `max_timestamp_ns` is the largest timestamp in the segment up to the end of this batch.
        """
        if self._positions and position - self._positions[-1] < INTERVAL_BYTES:
            return
        # The relative offset is added last. So a reader that finds an offset also finds the other
        # two values.
        self._positions.append(position)
        self._stamps.append(max_timestamp_ns)
        self._relative.append(offset - self.base_offset)

    def floor(self, offset: int) -> IndexEntry:
        """Return the last entry at or before `offset`; the segment's start if there is none."""
        i = bisect_right(self._relative, offset - self.base_offset) - 1
        return self._entry(i)

    def floor_position(self, position: int) -> IndexEntry:
        """Return the last entry at or before `position`."""
        return self._entry(bisect_right(self._positions, position, hi=len(self._relative)) - 1)

    def floor_time(self, timestamp_ns: int) -> IndexEntry:
        """Return an entry. All records before the entry are older than `timestamp_ns`."""
        i = bisect_left(self._stamps, timestamp_ns, hi=len(self._relative)) - 1
        return self._entry(i)

    def _entry(self, i: int) -> IndexEntry:
        if i < 0:
            return IndexEntry(self.base_offset, 0)
        return IndexEntry(self.base_offset + self._relative[i], self._positions[i])

    def after_position(self, position: int) -> IndexEntry | None:
        """Return the first entry past `position`, at which a reader can continue after damage; None
        if there is no such entry."""
        i = bisect_right(self._positions, position, hi=len(self._relative))
        return self._entry(i) if i < len(self._relative) else None

    def copy(self) -> SparseIndex:
        """Return a snapshot that another thread may write to disk."""
        count = len(self._relative)
        twin = SparseIndex(self.base_offset)
        twin._relative = self._relative[:count]
        twin._positions = self._positions[:count]
        twin._stamps = self._stamps[:count]
        return twin

    def truncate(self, end_position: int) -> None:
        """Drop the entries at or past `end_position`. If other threads may search the index, the
        caller must copy it first."""
        keep = bisect_left(self._positions, end_position)
        for column in (self._relative, self._positions, self._stamps):
            del column[keep:]

    # --- bytes ---

    def to_bytes(self, segment: Indexed, incarnation: str) -> bytes:
        """Return the content of the index file; its entries cover `segment.size_bytes`."""
        entries = np.empty(len(self._relative), _ENTRY_TYPE)
        entries["relative"] = self._relative
        entries["position"] = self._positions
        entries["stamp"] = self._stamps
        raw = entries.tobytes()
        name = segment.base_offset, segment.generation, crc32c(incarnation.encode())
        about = segment.size_bytes, _FOOTER_MAGIC, len(entries), crc32c(raw)
        footer = _FOOTER.pack(*name, *about, 0)[:-4]
        return raw + footer + struct.pack("<I", crc32c(footer))

    @classmethod
    def from_bytes(cls, raw: bytes, segment: Indexed, incarnation: str) -> SparseIndex | None:
        """Parse an index file. Returns None if the footer is damaged, if it names another segment
        or covers fewer bytes than `segment` has, or if the entries do not ascend. Without
        `incarnation`, accepts any incarnation."""
        count = _count(raw[-_FOOTER.size :], segment, incarnation)
        body = raw[: -_FOOTER.size]
        if count is None or len(body) != count * _ENTRY_SIZE:
            return None
        if crc32c(body) != _FOOTER.unpack(raw[-_FOOTER.size :])[6]:
            return None
        entries = np.frombuffer(body, _ENTRY_TYPE)
        if len(entries) > 1 and not (
            np.all(np.diff(entries["relative"].astype(np.int64)) > 0)
            and np.all(np.diff(entries["position"].astype(np.int64)) > 0)
            and np.all(np.diff(entries["stamp"]) >= 0)
        ):
            return None
        index = cls(segment.base_offset)
        index._relative.frombytes(entries["relative"].tobytes())
        index._positions.frombytes(entries["position"].tobytes())
        index._stamps.frombytes(entries["stamp"].tobytes())
        index.truncate(segment.size_bytes)  # the segment may have been truncated since
        return index

    def is_refuted_by(self, file: File) -> bool:
        """Return True if most of a few sampled entries do not point to a batch with the offset of
        the entry. Then the index is wrong: damage of the segment would affect fewer entries. Raises
        OSError."""
        count = len(self._relative)
        numbers = {i * (count - 1) // (_SAMPLES - 1) for i in range(_SAMPLES)} if count else set()
        wrong = sum([not self._leads_to_batch(file, i) for i in numbers])
        return 2 * wrong > len(numbers)

    def _leads_to_batch(self, file: File, i: int) -> bool:
        entry = self._entry(i)
        try:
            header = parse_header(read_zeroed(file, HEADER_SIZE, entry.position))
        except (CorruptBatch, UnsupportedFormat):
            return False
        return header.base_offset == entry.offset


def _count(footer: bytes, segment: Indexed, incarnation: str) -> int | None:
    """Return the number of entries before this footer; None if the footer is damaged or belongs to
    another segment."""
    if len(footer) < _FOOTER.size or crc32c(footer[:-4]) != _FOOTER.unpack(footer)[7]:
        return None
    base_offset, generation, history, size_bytes, magic, count, *_ = _FOOTER.unpack(footer)
    is_of_segment = (
        magic == _FOOTER_MAGIC
        and (base_offset, generation) == (segment.base_offset, segment.generation)
        and size_bytes >= segment.size_bytes
        and (not incarnation or history == crc32c(incarnation.encode()))
    )
    return int(count) if is_of_segment else None


def count_entries(file: File, segment: Indexed, incarnation: str) -> int:
    """Return the number of entries of an index file; 0 if the file names another segment. The
    entries are not checked. Raises OSError."""
    end = file.size() - _FOOTER.size
    count = None
    if end >= 0:
        count = _count(file.pread(_FOOTER.size, end), segment, incarnation)
    return count if count is not None and count * _ENTRY_SIZE == end else 0


def read_entry(file: File, number: int, base_offset: int) -> IndexEntry:
    """Return one entry of an index file without checking it; the segment's start if the file has
    become shorter. Raises OSError."""
    raw = file.pread(_ENTRY_START.size, number * _ENTRY_SIZE)
    if len(raw) < _ENTRY_START.size:
        return IndexEntry(base_offset, 0)
    relative, position = _ENTRY_START.unpack(raw)
    return IndexEntry(base_offset + relative, position)


def index_path(log_path: Path) -> Path:
    return log_path.with_suffix(".index")


def write_index(
    fs: FileSystem, log_path: Path, index: SparseIndex, segment: Indexed, incarnation: str
) -> None:
    """Write the index next to its segment; fsynced on return. Raises OSError."""
    file = fs.open(index_path(log_path), create=True)
    try:
        write_all(file, [index.to_bytes(segment, incarnation)], 0)
        file.fdatasync()
    finally:
        file.close()


def keep_index(
    fs: FileSystem, log_path: Path, index: SparseIndex, segment: Indexed, incarnation: str
) -> None:
    """Call `write_index`, and ignore all errors except a full disk. Readers rebuild a missing or
    incomplete index when they need it. Raises OSError only if the disk is full."""
    try:
        write_index(fs, log_path, index, segment, incarnation)
    except OSError as error:
        if is_full(error):
            raise
        logger.warning("index-not-stored segment=%s error=%s", log_path, error)


def read_index(
    fs: FileSystem, file: File, segment: Indexed, incarnation: str
) -> SparseIndex | None:
    """Read the index that belongs to the open file of a segment. Returns None if the index is
    missing, unreadable or wrong; the caller can rebuild it from the segment. Raises OSError if the
    segment itself cannot be read."""
    try:
        raw = read_small_file(fs, index_path(file.path))
    except OSError as error:
        logger.warning("index-not-read segment=%s error=%s", file.path, error)
        return None
    if not isinstance(raw, bytes):
        return None
    index = SparseIndex.from_bytes(raw, segment, incarnation)
    return None if index is None or index.is_refuted_by(file) else index
