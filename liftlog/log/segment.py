"""One segment: a file of record batches that begins at `base_offset`, and its index."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

from liftlog.errors import CorruptBatch
from liftlog.log.filesystem import File, FileSystem
from liftlog.log.index import SparseIndex, read_index, write_index
from liftlog.log.manifest import SegmentEntry
from liftlog.records.format import HEADER_SIZE
from liftlog.records.header import BatchHeader, parse_header

MAX_POSITION = 0xFFFF_0000  # positions in the index are u32; leave room for one last group
_WALK_BYTES = 64 * 1024


class Segment:
    """What is known of a segment without reading it. Only the active one changes.

    `next_offset` is where the following segment begins. `size_bytes` is how far the file is
    valid: bytes past it are ignored.
    """

    __slots__ = (
        "base_offset",
        "created_ns",
        "delete_horizon_ns",
        "generation",
        "max_timestamp_ns",
        "next_offset",
        "path",
        "record_count",
        "sealed",
        "size_bytes",
    )

    def __init__(self, directory: Path, entry: SegmentEntry, *, sealed: bool) -> None:
        self.base_offset = entry.base_offset
        self.generation = entry.generation
        self.path = directory / entry.file_name
        self.size_bytes = entry.size_bytes
        self.next_offset = entry.next_offset or entry.base_offset
        self.record_count = entry.record_count
        self.max_timestamp_ns = entry.max_timestamp_ns
        self.delete_horizon_ns = entry.delete_horizon_ns
        self.sealed = sealed
        self.created_ns = 0

    def entry(self) -> SegmentEntry:
        return SegmentEntry(
            base_offset=self.base_offset,
            generation=self.generation,
            size_bytes=self.size_bytes,
            next_offset=self.next_offset,
            record_count=self.record_count,
            max_timestamp_ns=self.max_timestamp_ns,
            delete_horizon_ns=self.delete_horizon_ns,
        )


def walk_headers(
    file: File, position: int, end: int, *, window: int = _WALK_BYTES
) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of each batch in [position, end), reading ahead in windows.

    Bodies are not checked. Raises CorruptBatch at the first position where no batch starts.
    """
    buffer = b""
    start = position
    while position < end:
        at = position - start
        if at + HEADER_SIZE > len(buffer):
            start, at = position, 0
            buffer = file.pread(min(window, end - position), position)
        header = parse_header(buffer, at)
        if position + header.length > end:
            raise CorruptBatch(f"the batch at position {position} reaches past the end")
        yield position, header
        position += header.length


def build_index(file: File, segment: Segment) -> SparseIndex:
    """Make the index anew from the batch headers. Raises CorruptBatch."""
    index = SparseIndex(segment.base_offset)
    newest = 0
    for position, header in walk_headers(file, 0, segment.size_bytes):
        newest = max(newest, header.max_timestamp_ns)
        index.maybe_add(header.base_offset, position, newest)
    return index


class IndexCache:
    """Indexes of sealed segments, the most recently used ones in memory.

    Shared by all logs of a daemon; a look-up of a cold segment reads one small file.
    """

    def __init__(self, fs: FileSystem, limit: int) -> None:
        self._fs = fs
        self._limit = limit
        self._lock = threading.Lock()
        self._indexes: OrderedDict[Path, SparseIndex] = OrderedDict()

    def get(self, segment: Segment, file: File) -> SparseIndex:
        """The index of a sealed segment; rebuilt (and stored) when its file is lost or bad."""
        with self._lock:
            index = self._indexes.get(segment.path)
            if index is not None:
                self._indexes.move_to_end(segment.path)
                return index
        index = read_index(self._fs, segment.path, segment.base_offset, sealed=True)
        if index is None:
            index = build_index(file, segment)
            write_index(self._fs, segment.path, index, sealed=True)
        self.put(segment, index)
        return index

    def put(self, segment: Segment, index: SparseIndex) -> None:
        with self._lock:
            self._indexes[segment.path] = index
            while len(self._indexes) > self._limit:
                self._indexes.popitem(last=False)

    def drop(self, path: Path) -> None:
        with self._lock:
            self._indexes.pop(path, None)

    def drop_directory(self, directory: Path) -> None:
        with self._lock:
            for path in [path for path in self._indexes if path.parent == directory]:
                del self._indexes[path]
