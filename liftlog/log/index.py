"""The sparse index of one segment: offset -> position and time -> offset.

One 16-byte entry for at most every 4 KiB of log, written at batch boundaries:

    0  4  offset - base_offset   u32
    4  4  position               u32  where the batch starts
    8  8  max timestamp_ns       i64  of everything before and in this batch

It ends with a 16-byte footer: "LLIX", entry count u32, CRC-32C of the entries u32, CRC-32C of the
12 bytes before u32. Without a good footer it is rebuilt from the batch headers. The file of an
active segment is as old as the last checkpoint. A reader checks the batch header that an entry
leads to.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from pathlib import Path
from typing import NamedTuple

import numpy as np
from crc32c import crc32c

from liftlog.log.filesystem import File, FileSystem, write_all
from liftlog.log.unreadable import read_small_file

INTERVAL_BYTES = 4096
ENTRY_SIZE = 16
_FOOTER = struct.Struct("<4sIII")
_FOOTER_MAGIC = b"LLIX"
_ENTRY_START = struct.Struct("<II")
_ENTRY_TYPE = np.dtype([("relative", "<u4"), ("position", "<u4"), ("stamp", "<i8")])


class IndexEntry(NamedTuple):
    offset: int
    position: int


class SparseIndex:
    """In memory, three parallel arrays. One thread appends, others may look up meanwhile."""

    __slots__ = ("_positions", "_relative", "_stamps", "base_offset")

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self._relative = array("I")
        self._positions = array("I")
        self._stamps = array("q")

    def __len__(self) -> int:
        return len(self._relative)

    def maybe_add(self, offset: int, position: int, max_timestamp_ns: int) -> None:
        """Add an entry for the batch at `position` unless the last one is less than 4 KiB away.

        `max_timestamp_ns` is the largest stamp in the segment up to and with this batch.
        """
        if self._positions and position - self._positions[-1] < INTERVAL_BYTES:
            return
        # The relative offset goes last: a reader that sees it finds the other two in place.
        self._positions.append(position)
        self._stamps.append(max_timestamp_ns)
        self._relative.append(offset - self.base_offset)

    def floor(self, offset: int) -> IndexEntry:
        """The last entry at or before `offset`; the segment's start when there is none."""
        i = bisect_right(self._relative, offset - self.base_offset) - 1
        return self._entry(i)

    def floor_position(self, position: int) -> IndexEntry:
        """The last entry at or before `position`."""
        return self._entry(bisect_right(self._positions, position, hi=len(self._relative)) - 1)

    def floor_time(self, timestamp_ns: int) -> IndexEntry:
        """An entry such that everything before it is older than `timestamp_ns`."""
        i = bisect_left(self._stamps, timestamp_ns, hi=len(self._relative)) - 1
        return self._entry(i)

    def _entry(self, i: int) -> IndexEntry:
        if i < 0:
            return IndexEntry(self.base_offset, 0)
        return IndexEntry(self.base_offset + self._relative[i], self._positions[i])

    def after_position(self, position: int) -> IndexEntry | None:
        """The first entry past `position`: where to continue after damage."""
        i = bisect_right(self._positions, position, hi=len(self._relative))
        return self._entry(i) if i < len(self._relative) else None

    def copy(self) -> SparseIndex:
        """A snapshot that a slower thread may write out."""
        count = len(self._relative)
        twin = SparseIndex(self.base_offset)
        twin._relative = self._relative[:count]
        twin._positions = self._positions[:count]
        twin._stamps = self._stamps[:count]
        return twin

    def truncate(self, end_position: int) -> None:
        """Drop entries at or past `end_position`. Not while others look up: copy it first."""
        keep = bisect_left(self._positions, end_position)
        for column in (self._relative, self._positions, self._stamps):
            del column[keep:]

    # --- bytes ---

    def to_bytes(self) -> bytes:
        """The index file."""
        entries = np.empty(len(self._relative), _ENTRY_TYPE)
        entries["relative"] = self._relative
        entries["position"] = self._positions
        entries["stamp"] = self._stamps
        raw = entries.tobytes()
        head = _FOOTER.pack(_FOOTER_MAGIC, len(entries), crc32c(raw), 0)[:12]
        return raw + head + struct.pack("<I", crc32c(head))

    @classmethod
    def from_bytes(cls, base_offset: int, raw: bytes) -> SparseIndex | None:
        """None when there is no good footer, or entries do not ascend."""
        if len(raw) < _FOOTER.size:
            return None
        magic, count, check, footer_check = _FOOTER.unpack_from(raw, len(raw) - _FOOTER.size)
        body = raw[: -_FOOTER.size]
        if (
            magic != _FOOTER_MAGIC
            or len(body) != count * ENTRY_SIZE
            or crc32c(raw[-_FOOTER.size : -4]) != footer_check
            or crc32c(body) != check
        ):
            return None
        entries = np.frombuffer(body, _ENTRY_TYPE)
        if len(entries) > 1 and not (
            np.all(np.diff(entries["relative"].astype(np.int64)) > 0)
            and np.all(np.diff(entries["position"].astype(np.int64)) > 0)
            and np.all(np.diff(entries["stamp"]) >= 0)
        ):
            return None
        index = cls(base_offset)
        index._relative.frombytes(entries["relative"].tobytes())
        index._positions.frombytes(entries["position"].tobytes())
        index._stamps.frombytes(entries["stamp"].tobytes())
        return index


def count_entries(file: File) -> int:
    """How many entries an index file of this size has. Raises OSError."""
    return max(0, file.size() - _FOOTER.size) // ENTRY_SIZE


def read_entry(file: File, number: int, base_offset: int) -> IndexEntry:
    """One entry of an index file, unchecked; that of the segment's start where the file has become
    shorter. Raises OSError."""
    raw = file.pread(_ENTRY_START.size, number * ENTRY_SIZE)
    if len(raw) < _ENTRY_START.size:
        return IndexEntry(base_offset, 0)
    relative, position = _ENTRY_START.unpack(raw)
    return IndexEntry(base_offset + relative, position)


def index_path(log_path: Path) -> Path:
    return log_path.with_suffix(".index")


def write_index(fs: FileSystem, log_path: Path, index: SparseIndex) -> None:
    """Write the index beside its segment; fsynced on return. Raises OSError."""
    file = fs.open(index_path(log_path), create=True)
    try:
        write_all(file, [index.to_bytes()], 0)
        file.fdatasync()
    finally:
        file.close()


def read_index(fs: FileSystem, log_path: Path, base_offset: int) -> SparseIndex | None:
    """The index beside `log_path`, or None when it is missing or cannot be trusted.

    None too when the disk does not give it: all that it says stands in the segment. Raises OSError
    for other errors.
    """
    raw = read_small_file(fs, index_path(log_path))
    return SparseIndex.from_bytes(base_offset, raw) if isinstance(raw, bytes) else None
