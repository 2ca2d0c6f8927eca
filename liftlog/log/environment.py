"""The limits of one log, and the objects that all logs of a daemon share: the clock, open files,
the indexes of sealed segments, and caches of their sketches and subject indexes.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Protocol

from liftlog.log.files.filesystem import File, FileSystem
from liftlog.log.files.manifest import QuarantinedRange
from liftlog.log.segment.derived import DerivedFiles, sketch_path, subject_index_path
from liftlog.log.segment.index import IndexEntry, SparseIndex, index_path, read_index, write_index
from liftlog.log.segment.segment import Segment, walk_batches
from liftlog.log.segment.sketched import SegmentParts, read_parts
from liftlog.log.segment.subject_index import SubjectIndex, read_subject_index

logger = logging.getLogger("liftlog.log")


_NOWAIT = getattr(os, "RWF_NOWAIT", 0)
_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    def now_ns(self) -> int:
        """Return the wall clock in nanoseconds since 1970 UTC."""
        ...

    def monotonic_ns(self) -> int:
        """Return the time of a clock that never jumps, and that also advances while the machine
        sleeps. Only differences between two readings have a meaning."""
        ...


class SystemClock:
    def now_ns(self) -> int:
        """Return the wall clock in whole microseconds. Batches store microseconds, so no timestamp
        changes when batches are joined."""
        now = time.time_ns()
        return now - now % 1000

    def monotonic_ns(self) -> int:
        return time.clock_gettime_ns(_BOOTTIME)


class PooledFile:
    """A file with a count of its holders."""

    __slots__ = ("detached", "file", "holders")

    def __init__(self, file: File) -> None:
        self.file = file
        self.holders = 0
        self.detached = False  # no longer in the pool: its last holder closes it


class FilePool:
    """A pool of open files. The pool keeps at most `limit` files open, unless more files are in use
    at the same time, and closes the least recently used file first. Thread-safe."""

    def __init__(self, fs: FileSystem, limit: int) -> None:
        self._fs = fs
        self._limit = limit
        self._lock = threading.Lock()
        self._files: OrderedDict[Path, PooledFile] = OrderedDict()

    def __len__(self) -> int:
        return len(self._files)

    def acquire(self, path: Path) -> PooledFile:
        """Return `path` open for reading, reusing an open file. Release it after use. Raises
        OSError."""
        with self._lock:
            pooled = self._files.get(path)
            if pooled is None:
                pooled = PooledFile(self._fs.open(path, writable=False))
                self._files[path] = pooled
            else:
                self._files.move_to_end(path)
            pooled.holders += 1
            self._shrink()
            return pooled

    def read_now(self, path: Path, buffer: bytearray, position: int) -> bool:
        """Fill the buffer from `position` of a file that is open and in memory. Returns False if
        the read would wait for a disk, or for another thread that is opening a file. Raises
        OSError."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            pooled = self._files.get(path)
            if pooled is None:
                return False
            self._files.move_to_end(path)
            read = os.preadv(pooled.file.fileno(), [buffer], position, _NOWAIT)
            return read == len(buffer)
        finally:
            self._lock.release()

    def release(self, pooled: PooledFile) -> None:
        with self._lock:
            pooled.holders -= 1
            if pooled.holders == 0 and pooled.detached:
                pooled.file.close()
            else:
                self._shrink()

    def remove(self, path: Path) -> None:
        """Unlink `path`; holders of the open file can still read it. Raises OSError."""
        with self._lock:
            self._detach(path)
        # Outside of the lock, so that a slow disk does not block readers of other files.
        if self._fs.exists(path):
            self._fs.unlink(path)

    def forget_directory(self, directory: Path) -> None:
        """Drop from the pool all files of a directory that is about to be removed or renamed."""
        with self._lock:
            for path in [path for path in self._files if path.parent == directory]:
                self._detach(path)

    def _detach(self, path: Path) -> None:
        pooled = self._files.pop(path, None)
        if pooled is None:
            return
        pooled.detached = True
        if not pooled.holders:
            pooled.file.close()

    def close(self) -> None:
        """Close every idle file. Files in use are closed when they are released."""
        with self._lock:
            for path in list(self._files):
                self._detach(path)

    def _shrink(self) -> None:
        excess = len(self._files) - self._limit
        if excess <= 0:
            return
        idle = (path for path, pooled in self._files.items() if not pooled.holders)
        for path in list(islice(idle, excess)):
            self._files.pop(path).file.close()


def build_index(
    file: File, segment: Segment, quarantined: Sequence[QuarantinedRange] = ()
) -> SparseIndex:
    """Rebuild the index from the batch headers; skips damaged parts."""
    index = SparseIndex(segment.base_offset)
    newest = 0
    start = IndexEntry(segment.base_offset, 0)
    end = IndexEntry(segment.next_offset, segment.size_bytes)
    for position, header in walk_batches(file, start, end, quarantined=quarantined):
        newest = max(newest, header.max_timestamp_ns)
        index.maybe_add(header.base_offset, position, newest)
    return index


class IndexCache:
    """A cache of the indexes of sealed segments; keeps the most recently used ones in memory.

    All logs of a daemon share it. A look-up in a segment whose index is not in memory reads one
    small file.
    """

    def __init__(self, fs: FileSystem, limit: int) -> None:
        self._fs = fs
        self._limit = limit
        self._lock = threading.Lock()
        self._indexes: OrderedDict[Path, SparseIndex] = OrderedDict()

    def __len__(self) -> int:
        """Number of indexes in memory."""
        return len(self._indexes)

    def in_memory(self, segment: Segment) -> SparseIndex | None:
        """Return the index of a sealed segment if it is in memory."""
        with self._lock:
            return self._indexes.get(segment.path)

    def get(
        self,
        segment: Segment,
        file: File,
        incarnation: str,
        quarantined: Sequence[QuarantinedRange] = (),
    ) -> SparseIndex:
        """Return the index of a sealed segment. Rebuilds and stores the index if its file is
        missing, damaged or of another segment."""
        with self._lock:
            index = self._indexes.get(segment.path)
            if index is not None:
                self._indexes.move_to_end(segment.path)
                return index
        index = read_index(self._fs, file, segment, incarnation)
        if index is None:
            index = build_index(file, segment, quarantined)
            try:
                write_index(self._fs, segment.path, index, segment, incarnation)
                if not self._fs.exists(segment.path):
                    # Retention removed the segment before this file was written.
                    self._fs.unlink(index_path(segment.path))
            except OSError as error:  # reads must work on a full disk
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


class CutBytes:
    """Counts, for each segment file, the bytes of the batches from which reads have cut erased
    records. Thread-safe."""

    _MOST = 4096

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bytes: OrderedDict[Path, int] = OrderedDict()

    def add(self, segment: Segment, size_bytes: int) -> None:
        with self._lock:
            self._bytes[segment.path] = self._bytes.pop(segment.path, 0) + size_bytes
            if len(self._bytes) > self._MOST:
                self._bytes.popitem(last=False)

    def of(self, segment: Segment) -> int:
        """Return the number of bytes for a sealed segment. A rewrite creates a new file, whose
        count begins at 0."""
        return self._bytes.get(segment.path, 0)


@dataclass(frozen=True, slots=True)
class LogConfig:
    """The settings of a stream that the log itself needs; sizes in bytes.

    A `replicated` log is one of several copies. A record is committed only when enough copies have
    it. A replica cuts off a damaged end and fetches the records again, while a single log keeps as
    many records as it can. In a log that `rolls_up`, a record may hide older ones
    (`LogState.unlisted`).
    """

    segment_max_bytes: int = 256 * 1024 * 1024
    segment_max_age_ns: int | None = 24 * 3600 * 1_000_000_000
    replicated: bool = False
    rolls_up: bool = False


@dataclass(slots=True)
class LogEnvironment:
    """The objects that all logs of a daemon share."""

    fs: FileSystem
    clock: Clock
    pool: FilePool
    indexes: IndexCache
    parts: DerivedFiles[SegmentParts]
    subject_indexes: DerivedFiles[SubjectIndex]
    synced: Callable[[float], None]
    """A callback that runs in the thread that has fdatasynced a segment file. It receives the
    duration in seconds."""
    cuts: CutBytes
    age_clock_ns: Callable[[], int]
    """The clock for ages of segments: the wall clock, unless the daemon suspects that it is
    wrong."""

    @classmethod
    def create(
        cls,
        fs: FileSystem,
        clock: Clock,
        *,
        max_open_files: int = 256,
        cached_indexes: int = 64,
        synced: Callable[[float], None] = lambda seconds: None,
    ) -> LogEnvironment:
        pool, indexes = FilePool(fs, max_open_files), IndexCache(fs, cached_indexes)
        parts = DerivedFiles(fs, sketch_path, read_parts)
        subjects = DerivedFiles(fs, subject_index_path, read_subject_index)
        return cls(fs, clock, pool, indexes, parts, subjects, synced, CutBytes(), clock.now_ns)
