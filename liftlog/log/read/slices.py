"""Finds the slice of one segment that answers a fetch: consecutive whole batches. The search does
not read the bodies of batches. `reading.py` reads across segments.

A slice ends before the first batch with an erased record. A slice that begins with such a batch is
a copy in memory, without the erased records. Its batches cover the same offsets as the stored ones,
like batches after a compaction.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType

import numpy as np

from liftlog.errors import CorruptBatch, CorruptMetadata, CorruptRange
from liftlog.log.environment import FilePool, LogEnvironment, PooledFile
from liftlog.log.erased import ErasedSet
from liftlog.log.files.filesystem import File
from liftlog.log.files.manifest import QuarantinedRange
from liftlog.log.files.unreadable import read_around, read_zeroed
from liftlog.log.segment.index import IndexEntry, SparseIndex
from liftlog.log.segment.segment import Segment, SteppedOver, walk_batches
from liftlog.log.state import ReadView
from liftlog.records.columns.column_set import Offsets
from liftlog.records.columns.cutting import cut_rows
from liftlog.records.decode import decode_batch, decode_body
from liftlog.records.format import RECORD_COUNT, RECORD_COUNT_POSITION
from liftlog.records.header import parse_header
from liftlog.records.place import Epochs, Place

LATEST_NS = 2**63 - 1
_CUT_BYTES = 1024 * 1024
"""Maximum number of stored bytes, after the first batch, that one read examines to cut erased
records. The limit also applies after decompression. Such a cut takes about a millisecond; see
`reading.cuts_at`."""
CLEAN_BYTES = 128 * 1024
"""Minimum size of a stretch of batches without erased records that is not copied. The cut slice
ends before such a stretch, and the next read gets it from the file."""
_MOST_GROWTH = 4
"""A batch is compressed again after a cut only if it would be more than this number of times as
long. Compression takes several times as long as the cut, and the reader decompresses again."""
_SMALL_PART_BYTES = 16 * 1024
_WALK_WINDOW = 4096 + 256  # index entries lie about 4 KiB apart


class LogSlice:
    """Consecutive whole batches in one file. The holder must release it after the bytes are sent.

    `record_count` is an upper bound. `first_offset` is the first offset of the first batch, which
    may be below the requested offset; `next_offset` is the offset at which the next read continues.
    """

    __slots__ = (
        "_pool",
        "_pooled",
        "erased",
        "first_offset",
        "length",
        "next_offset",
        "on_damage",
        "position",
        "record_count",
    )

    def __init__(
        self,
        pool: FilePool,
        pooled: PooledFile,
        position: int,
        length: int,
        first_offset: int,
        next_offset: int,
    ) -> None:
        self._pool = pool
        self._pooled: PooledFile | None = pooled
        self.position = position
        self.length = length
        self.first_offset = first_offset
        self.next_offset = next_offset
        self.record_count = next_offset - first_offset
        self.erased: ErasedSet | None = None
        """The records that the reader must leave out; only for reads with `masked`."""
        self.on_damage: Callable[[int, int], object] | None = None
        """A callback for a slice that the disk cannot read completely. It receives the first and
        the next offset of the slice."""

    @property
    def body(self) -> bytes | None:
        """The bytes of the slice if they are only in memory; None if they are in the file."""
        return None

    @property
    def bodies(self) -> tuple[bytes | bytearray, ...]:
        """The bytes of `body` as a sequence of parts, without copying them; empty if they are in
        the file."""
        return ()

    @property
    def fd(self) -> int:
        """The descriptor of the file; valid until `release`."""
        assert self._pooled is not None, "the slice was released"
        return self._pooled.file.fileno()

    @property
    def path(self) -> Path:
        """The path of the segment; valid until `release`."""
        assert self._pooled is not None, "the slice was released"
        return self._pooled.file.path

    def read_some(self, position: int, length: int) -> bytes:
        """Return `length` bytes at `position` in the slice, without checking them. Unreadable bytes
        are zeros; returns fewer bytes at the end of the file. Raises OSError."""
        assert self._pooled is not None, "the slice was released"
        return read_zeroed(self._pooled.file, length, self.position + position)

    def read_many(self, places: Iterable[tuple[int, int]]) -> list[bytes]:
        """Return the bytes of each (position, length) in the file, without checking them; fewer at
        the end of the file. Raises OSError, also for unreadable bytes."""
        assert self._pooled is not None, "the slice was released"
        pread = self._pooled.file.pread
        return [pread(length, position) for position, length in places]

    def pread(self) -> bytes:
        """Return the bytes of the slice, without checking them, for readers in the same process.

        Unreadable pages are zeros in the result, and are quarantined before the call returns.
        Raises OSError. Raises StorageError or DiskFull if the quarantine failed.
        """
        assert self._pooled is not None, "the slice was released"
        raw, holes = read_around(self._pooled.file, self.length, self.position)
        if holes or len(raw) < self.length:
            self.quarantine()
        return raw.ljust(self.length, b"\0")

    def quarantine(self) -> None:
        """Verify the slice and quarantine its damaged parts; durable on return. Blocking. Raises
        StorageError, DiskFull."""
        if self.on_damage is not None:
            self.on_damage(self.first_offset, self.next_offset)

    def release(self) -> None:
        """Release the file; a second call does nothing."""
        if self._pooled is not None:
            self._pool.release(self._pooled)
            self._pooled = None

    def __enter__(self) -> LogSlice:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


class CutSlice(LogSlice):
    """A slice without the erased records of its batches. Its bytes are in memory."""

    __slots__ = ("_bodies",)

    def __init__(
        self,
        bodies: Sequence[bytes | bytearray],
        first_offset: int,
        next_offset: int,
        record_count: int,
    ) -> None:
        self._pooled = None
        self.position = 0
        self.length = sum(map(len, bodies))
        if self.length <= _SMALL_PART_BYTES * len(bodies):
            bodies = (b"".join(bodies),)
        self._bodies = tuple(bodies)
        self.first_offset = first_offset
        self.next_offset = next_offset
        self.record_count = record_count
        self.erased = self.on_damage = None

    @property
    def body(self) -> bytes:
        if len(self._bodies) != 1 or not isinstance(self._bodies[0], bytes):
            self._bodies = (b"".join(self._bodies),)
        return self._bodies[0]  # type: ignore[return-value]  # it is bytes

    @property
    def bodies(self) -> tuple[bytes | bytearray, ...]:
        return self._bodies

    def read_some(self, position: int, length: int) -> bytes:
        return self.body[position : position + length]

    def read_many(self, places: Iterable[tuple[int, int]]) -> list[bytes]:
        body = self.body
        return [body[position : position + length] for position, length in places]

    def pread(self) -> bytes:
        return self.body


def sealed_segment_of(view: ReadView, piece: LogSlice) -> Segment | None:
    """Return the sealed segment of a slice, if `view` lists it with the same file and without
    damage. Returns None for a slice in memory."""
    if piece.body is not None:
        return None
    segment = view.sealed_segment_at(piece.first_offset)
    return segment if segment is not None and segment.path == piece.path else None


def slice_segment(
    view: ReadView,
    environment: LogEnvironment,
    segment: Segment,
    quarantined: Sequence[QuarantinedRange],
    *,
    offset: int,
    end: IndexEntry,
    max_bytes: int,
    max_records: int | None,
    with_empty: bool = False,
) -> LogSlice | None:
    """Return the slice that begins with the batch that holds `offset`, or with the next batch.

    Skips batches without records at the start, unless `with_empty`. `end` is the limit for readers.
    A slice ends where a new leader epoch begins, so all its batches have the same epoch. This
    function compares only the first batch with the epochs of the manifest. The receiver compares
    the batches with each other. Returns None if the segment has no readable batch left. Raises
    CorruptRange at damage that is not recorded yet, and CorruptMetadata if it is not known which
    records of the first batch are erased.

    The batches in the result have no record that `view.erased` contains. So a result may be without
    any record.
    """
    pool, epochs = environment.pool, view.manifest.epochs
    pooled = pool.acquire(segment.path)
    taken = False
    try:
        file = pooled.file
        index = view.index_of(segment, file, environment.indexes)
        if not quarantined:
            start = index.floor(offset)
            found = _find_start(file, index, start, end, offset, epochs, with_empty)
        else:
            for start, end in _stretches(index, quarantined, offset, end):  # noqa: B020
                found = _find_start(file, index, start, end, offset, epochs, with_empty)
                if found is not None:
                    break
        if found is None:
            return None
        position, first_offset, first_end = found
        stop_offset = None if max_records is None else offset + max_records
        following = bisect_right(epochs, first_offset, key=lambda entry: entry[1])
        if following < len(epochs):
            epoch_end = epochs[following][1]
            stop_offset = epoch_end if stop_offset is None else min(stop_offset, epoch_end)
        is_cut = False
        if view.erased is not None:
            erased_at = view.erased.next_at(first_offset)
            if erased_at is not None and erased_at < first_end.offset:
                is_cut, max_bytes = True, min(max_bytes, _CUT_BYTES)
            elif erased_at is not None:
                stop_offset = erased_at if stop_offset is None else min(stop_offset, erased_at)
        stop = _find_end(
            file, index, first_end, end,
            stop_position=position + max_bytes,
            stop_offset=stop_offset,
        )  # fmt: skip
        if is_cut:
            assert view.erased is not None
            begin = IndexEntry(first_offset, position)
            cut = _without_erased(file, index, view.erased, begin, first_end, stop, max_bytes)
            environment.cuts.add(segment, cut.length)
            return cut
        taken = True
        length = stop.position - position
        return LogSlice(pool, pooled, position, length, first_offset, stop.offset)
    finally:
        if not taken:
            pool.release(pooled)


def _stretches(
    index: SparseIndex, quarantined: Sequence[QuarantinedRange], offset: int, end: IndexEntry
) -> Iterator[tuple[IndexEntry, IndexEntry]]:
    """Yield the ranges that are not quarantined, from `offset` on."""
    start = index.floor(offset)
    for bad in sorted(quarantined, key=lambda one: one.position):
        if bad.end_position <= start.position or bad.position >= end.position:
            continue
        if bad.position > start.position and bad.first_offset > offset:
            yield start, IndexEntry(bad.first_offset, bad.position)
        start = IndexEntry(bad.next_offset, bad.end_position)
    yield start, end


def _find_start(
    file: File,
    index: SparseIndex,
    start: IndexEntry,
    end: IndexEntry,
    offset: int,
    epochs: Epochs,
    with_empty: bool,
) -> tuple[int, int, IndexEntry] | None:
    """Return position, base offset and end of the first batch that ends after `offset`."""
    stepped: list[SteppedOver] = []
    walk = walk_batches(
        file,
        start,
        end,
        index=index,
        stepped_over=stepped,
        window=_WALK_WINDOW,
        epochs=epochs,
    )
    for position, header in walk:
        following = header.next_offset
        if following > offset and (header.record_count or with_empty):
            if stepped:
                _refuse_damaged(stepped, offset, header.base_offset)
            return position, header.base_offset, IndexEntry(following, position + header.length)
    _refuse_damaged(stepped, offset, end.offset)
    return None


def _refuse_damaged(stepped: list[SteppedOver], offset: int, found_offset: int) -> None:
    """Raise CorruptRange if the walk skipped damaged bytes that held requested records."""
    for bad in stepped:
        if offset < bad.next_offset <= found_offset:
            first = max(bad.first_offset, offset)
            raise CorruptRange(
                f"the records [{first}, {bad.next_offset}) are damaged on disk",
                hint=f"read on with start={bad.next_offset}",
                first_offset=first,
                next_offset=bad.next_offset,
            )


def _find_end(
    file: File,
    index: SparseIndex,
    first_end: IndexEntry,
    end: IndexEntry,
    *,
    stop_position: int,
    stop_offset: int | None,
) -> IndexEntry:
    """Return the batch boundary where the answer ends.

    Index entries lie on batch boundaries. So the last entry within the limits is a valid end, and
    no header has to be read. If no entry lies within the limits, the function walks the batches one
    by one.
    """
    if stop_position >= end.position and (stop_offset is None or end.offset <= stop_offset):
        return end
    entry = index.floor_position(min(stop_position, end.position))
    if stop_offset is not None:
        entry = min(entry, index.floor(stop_offset))
    if entry.position > first_end.position:
        return entry
    reached = first_end
    for position, header in walk_batches(file, first_end, end, window=_WALK_WINDOW):
        if (
            position != reached.position  # damage in between; the next read reports it
            or position + header.length > stop_position
            or (stop_offset is not None and header.next_offset > stop_offset)
        ):
            break
        reached = IndexEntry(header.next_offset, position + header.length)
    return reached


def _without_erased(
    file: File,
    index: SparseIndex,
    erased: ErasedSet,
    start: IndexEntry,
    first_end: IndexEntry,
    stop: IndexEntry,
    max_bytes: int,
) -> CutSlice:
    """Return the batches from `start` to `stop` without the erased records. The slice ends early
    before a long stretch without erased records, after `max_bytes` of decompressed bytes, and
    before a damaged batch. Raises CorruptRange or CorruptMetadata if the first batch, which ends at
    `first_end`, is damaged, and UnsupportedFormat."""
    gone = erased.offsets_in(start.offset, stop.offset)
    if not erased.unreadable:
        stop = _before_clean(index, gone, start, stop)
    size = stop.position - start.position
    raw, holes = read_around(file, size, start.position)
    view = memoryview(raw)
    parts: list[bytes | bytearray] = []
    place = Place(start.offset, stop.offset)
    at = done = count = inflated = clean_from = 0
    reached = start.offset
    while at < size and inflated < max_bytes:
        try:
            header = parse_header(view, at)
            end, following = at + header.length, header.next_offset
            if end > len(raw) or (holes and holes[0].start < start.position + end):
                raise CorruptBatch("the disk cannot read the batch")
            place.take(header)
            if erased.unreadable:
                erased.check_readable(header.base_offset, following)
            before, done = done, int(gone.searchsorted(following))
            made = None
            if done > before:
                batch = decode_body(view, at, header)
                inflated += len(batch.raw)
                is_large = len(batch.raw) > _MOST_GROWTH * header.length
                made = cut_rows(batch, gone[before:done], compress=is_large)
        except (CorruptBatch, CorruptMetadata) as error:
            if reached > start.offset:
                break  # the next read begins with this batch
            if isinstance(error, CorruptMetadata):
                raise
            raise CorruptRange(
                f"the records [{start.offset}, {first_end.offset}) are damaged on disk",
                hint=f"read on with start={first_end.offset}",
                first_offset=start.offset,
                next_offset=first_end.offset,
            ) from error
        if made is not None:
            if clean_from < at:
                parts.append(view[clean_from:at].tobytes())
            parts.append(made)
            clean_from = end
            count += RECORD_COUNT.unpack_from(made, RECORD_COUNT_POSITION)[0]
        else:
            count += header.record_count
        at, reached = end, following
    if clean_from < at:
        parts.append(view[clean_from:at].tobytes())
    return CutSlice(parts, start.offset, reached, count)


def _before_clean(
    index: SparseIndex, gone: Offsets, start: IndexEntry, stop: IndexEntry
) -> IndexEntry:
    """Return the first batch boundary that is followed by `CLEAN_BYTES` without an erased record,
    or `stop` if there is none. `gone` are the erased offsets in [start, stop)."""
    size = stop.position - start.position
    if size < CLEAN_BYTES or not len(gone):
        return stop
    borders = np.append(gone, stop.offset)
    gaps = borders[1:] - borders[:-1]
    likely = gaps * size >= (stop.offset - start.offset) * CLEAN_BYTES
    for i in np.flatnonzero(likely).tolist():
        after = index.after_position(index.floor(int(gone[i])).position)
        clean_end = min(index.floor(int(borders[i + 1])), stop)
        if after is not None and clean_end.position - after.position >= CLEAN_BYTES:
            return after
    return stop


def find_time_in_segment(
    view: ReadView,
    environment: LogEnvironment,
    segment: Segment,
    quarantined: Sequence[QuarantinedRange],
    timestamp_ns: int,
    *,
    first_offset: int,
    latest_ns: int = LATEST_NS,
) -> tuple[int, int] | None:
    """Find the first readable record at or after `first_offset` that is stamped in [timestamp_ns,
    latest_ns]. Returns its offset and timestamp, or None. Skips unreadable records."""
    end = view.readable_end(segment)
    pooled = environment.pool.acquire(segment.path)
    try:
        file = pooled.file
        index = view.index_of(segment, file, environment.indexes)
        start = max(index.floor_time(timestamp_ns), index.floor(first_offset))
        for bad in quarantined:
            if bad.position <= start.position < bad.end_position:
                start = IndexEntry(bad.next_offset, bad.end_position)
        walk = walk_batches(
            file, start, end, index=index, quarantined=quarantined, window=_WALK_WINDOW
        )
        for position, header in walk:
            if header.max_timestamp_ns < timestamp_ns or header.next_offset <= first_offset:
                continue
            if header.base_timestamp_ns > latest_ns:
                continue
            try:
                batch = decode_batch(read_zeroed(file, header.length, position)).trim(first_offset)
                for offset, stamp in zip(batch.offsets(), batch.timestamps_ns(), strict=True):
                    if timestamp_ns <= stamp <= latest_ns and not view.hides(offset):
                        return offset, stamp
            except CorruptBatch:
                continue
    finally:
        environment.pool.release(pooled)
    return None
