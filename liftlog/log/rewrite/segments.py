"""Reads sealed segments for a rewrite, and writes the new segments. Verifies every checksum.

Only the manifest gives the end of a source segment. An error, a short read, or a batch that does
not continue the segment is damage, and never the end of the segment.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from liftlog.errors import CorruptBatch, LiftlogError, UnsupportedFormat
from liftlog.log.erased import ErasedSet
from liftlog.log.files.filesystem import Buffer, File, FileSystem, write_all
from liftlog.log.files.manifest import SegmentEntry
from liftlog.log.files.unreadable import is_unreadable
from liftlog.log.rewrite.job import Throttle, path_of
from liftlog.log.segment.index import SparseIndex, write_index
from liftlog.log.segment.segment import MAX_POSITION
from liftlog.records.decode import RecordBatch, decode_batch
from liftlog.records.encode import extend_batch
from liftlog.records.format import HEADER_SIZE, LENGTH, LENGTH_POSITION
from liftlog.records.header import BatchHeader, parse_header
from liftlog.records.place import Epochs, Place

WINDOW_BYTES = 1024 * 1024
_MAX_INFLATED_BYTES = 16 * WINDOW_BYTES

MAX_RELATIVE_OFFSET = 0xFFFF_FFFF
_WRITE_BYTES = 1024 * 1024
_SYNC_BYTES = 4 * 1024 * 1024
"""Number of bytes between two syncs of a job: 4 MiB. Because of this limit, a sync of the daemon
waits only for few bytes of the job."""


class SourceDamaged(LiftlogError):
    """Raised if the source segment `file_name` cannot be read to its end. The daemon must scrub
    it."""

    name = "SOURCE_DAMAGED"

    def __init__(self, message: str, *, file_name: str) -> None:
        super().__init__(message, file_name=file_name)
        self.file_name = file_name


@contextmanager
def blaming(entry: SegmentEntry) -> Iterator[None]:
    """Convert damage that a `with` block finds to a SourceDamaged of this segment."""
    try:
        yield
    except (CorruptBatch, UnsupportedFormat) as error:
        name = entry.file_name
        raise SourceDamaged(f"{name}: {error.message}", file_name=name) from error


def read_windows(
    fs: FileSystem,
    directory: str | Path,
    entry: SegmentEntry,
    throttle: Throttle,
    epochs: Epochs = (),
    erased: ErasedSet | None = None,
) -> Iterator[list[RecordBatch]]:
    """Yield all batches of a sealed segment, about 1 MiB at a time, without the records that
    `erased` contains.

    Each batch is verified, and the batches cover the segment's offsets without a gap. The views of
    a batch stay valid as long as a reference to them exists. Raises SourceDamaged and OSError.
    """
    file = fs.open(path_of(directory, entry), writable=False)
    try:
        with blaming(entry):
            place = Place(entry.base_offset, entry.next_offset, epochs=epochs)
            for window in _windows(file, entry, throttle, place):
                yield window if erased is None else [erased.cut(batch) for batch in window]
    finally:
        file.close()


def _windows(
    file: File, entry: SegmentEntry, throttle: Throttle, place: Place
) -> Iterator[list[RecordBatch]]:
    position, size = 0, entry.size_bytes
    while position < size:
        wanted = min(WINDOW_BYTES, size - position)
        throttle(wanted)
        raw = _read(file, wanted, position)
        if (length := parse_header(raw).length) > wanted:
            if position + length > size:
                raise CorruptBatch(f"the batch at {position} reaches past the segment's end")
            throttle(length - wanted)
            raw = _read(file, length, position)
        batches = []
        at, end = 0, len(raw) - HEADER_SIZE
        inflated = 0
        while at <= end and inflated < _MAX_INFLATED_BYTES:
            if at + LENGTH.unpack_from(raw, at + LENGTH_POSITION)[0] > len(raw):
                parse_header(raw, at)  # the damaged field may be the length
                break
            batch = decode_batch(raw, at)
            place.take(batch.header)
            batches.append(batch)
            inflated += len(batch.raw)
            at += batch.header.length
        position += at
        yield batches
    place.check_end()


def _read(file: File, length: int, position: int) -> bytes:
    try:
        raw = file.pread(length, position)
    except OSError as error:
        if not is_unreadable(error):
            raise
        raise CorruptBatch(f"the disk cannot read {length} bytes at {position}") from error
    if len(raw) < length:
        raise CorruptBatch(f"only {len(raw)} of {length} bytes can be read at {position}")
    return raw


class SegmentWriter:
    """Writes batches that cover the offsets from `base_offset` on, without a gap, into new files.

    Usually writes one file; begins another file if positions would become too large for an index.
    `finish` makes the files durable. If `finish` is not called, the files are garbage. The caller
    fsyncs the directory. Methods raise OSError.
    """

    def __init__(
        self,
        fs: FileSystem,
        directory: Path,
        base_offset: int,
        generation: int,
        *,
        throttle: Throttle,
        names: list[str],
        max_bytes: int = MAX_POSITION,
        incarnation: str = "",
    ) -> None:
        """Start at `base_offset`. The writer adds the names of all files that it creates to
        `names`, so that the caller can remove them if the job fails. `incarnation` is the
        incarnation of the log."""
        self._fs = fs
        self._directory = directory
        self._generation = generation
        self._throttle = throttle
        self._max_bytes = max_bytes
        self._incarnation = incarnation
        self._done: list[SegmentEntry] = []
        self._file: File | None = None
        self._names = names
        self.next_offset = base_offset
        self._last: BatchHeader | None = None
        self._records = self._newest_ns = 0
        self._reset()

    def write(self, raw: Buffer, header: BatchHeader) -> None:
        """Add a batch. `raw` must not change until the next batch is added."""
        if header.base_offset != self.next_offset:
            raise ValueError(f"batch at offset {header.base_offset}, expected {self.next_offset}")
        if self._file is None:
            self._begin()
        elif self._position + len(raw) > self._max_bytes:
            self._seal()
            self._begin()
        elif self._buffered >= _WRITE_BYTES:
            self._flush()
        self._newest_ns = max(self._newest_ns, header.max_timestamp_ns)
        self._index.maybe_add(header.base_offset, self._position, self._newest_ns)
        self._buffers.append(raw)
        self._buffered += len(raw)
        self._position += len(raw)
        self._records += header.record_count
        self._last = header
        self.next_offset = header.next_offset

    def extend(self, header: BatchHeader) -> bool:
        """Extend the last batch over the offsets of a batch that has no record left.

        Returns False if there is no last batch, if it belongs to another leader epoch, or if the
        extended batch would be too long.
        """
        before = self._last
        if (
            before is None
            or before.leader_epoch != header.leader_epoch
            or header.last_offset - before.base_offset > MAX_RELATIVE_OFFSET
        ):
            return False
        last = self._buffers[-1]
        if not isinstance(last, bytearray):
            self._buffers[-1] = last = bytearray(last)
        extend_batch(last, header.last_offset)
        self.next_offset = header.next_offset
        return True

    def finish(self, delete_horizon_ns: int | None) -> tuple[SegmentEntry, ...]:
        """Make the files durable, except for their directory entries; return the segments for the
        manifest."""
        self._seal()
        return tuple(replace(one, delete_horizon_ns=delete_horizon_ns) for one in self._done)

    def close(self) -> None:
        """Close the file that is being written, if there is one."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _begin(self) -> None:
        self._reset()
        entry = SegmentEntry(base_offset=self.next_offset, generation=self._generation)
        self._names.append(entry.file_name)
        self._path = self._directory / entry.file_name
        self._file = self._fs.open(self._path, create=True)

    def _reset(self) -> None:
        self._base_offset = self.next_offset
        self._index = SparseIndex(self.next_offset)
        self._buffers: list[Buffer] = []
        self._last = None
        self._buffered = self._position = self._unsynced = 0
        self._records = self._newest_ns = 0

    def _flush(self) -> None:
        assert self._file is not None
        self._throttle(self._buffered)
        write_all(self._file, self._buffers, self._position - self._buffered)
        self._unsynced += self._buffered
        self._buffers, self._buffered = [], 0
        if self._unsynced >= _SYNC_BYTES:
            self._file.fdatasync()
            self._unsynced = 0

    def _seal(self) -> None:
        assert self._file is not None, "a segment without a batch"
        self._flush()
        self._file.fdatasync()
        self.close()
        entry = SegmentEntry(
            base_offset=self._base_offset,
            generation=self._generation,
            size_bytes=self._position,
            next_offset=self.next_offset,
            record_count=self._records,
            max_timestamp_ns=self._newest_ns,
        )
        write_index(self._fs, self._path, self._index, entry, self._incarnation)
        self._done.append(entry)
