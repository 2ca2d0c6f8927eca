"""The indexes of sealed segments: the latest used ones in memory, lost ones rebuilt."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

from liftlog.log.filesystem import File, FileSystem
from liftlog.log.index import IndexEntry, SparseIndex, index_path, read_index, write_index
from liftlog.log.manifest import QuarantinedRange
from liftlog.log.segment import Segment, walk_batches

logger = logging.getLogger("liftlog.log")


def build_index(
    file: File, segment: Segment, quarantined: Sequence[QuarantinedRange] = ()
) -> SparseIndex:
    """Rebuild the index from the batch headers, stepping over damage."""
    index = SparseIndex(segment.base_offset)
    newest = 0
    start = IndexEntry(segment.base_offset, 0)
    end = IndexEntry(segment.next_offset, segment.size_bytes)
    for position, header in walk_batches(file, start, end, quarantined=quarantined):
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

    def get(
        self, segment: Segment, file: File, quarantined: Sequence[QuarantinedRange] = ()
    ) -> SparseIndex:
        """The index of a sealed segment; rebuilt (and stored) when its file is lost or bad."""
        with self._lock:
            index = self._indexes.get(segment.path)
            if index is not None:
                self._indexes.move_to_end(segment.path)
                return index
        index = read_index(self._fs, segment.path, segment.base_offset)
        if index is None:
            index = build_index(file, segment, quarantined)
            try:
                write_index(self._fs, segment.path, index)
                if not self._fs.exists(segment.path):
                    # Retention was quicker, and removed the segment before this file was there.
                    self._fs.unlink(index_path(segment.path))
            except OSError as error:  # a full disk must not keep anyone from reading
                logger.warning("index-not-stored segment=%s error=%s", segment.path, error)
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
