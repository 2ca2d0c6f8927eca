"""Finding the run of whole batches that answers a fetch, without reading the batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType

from liftlog.errors import CorruptBatch, CorruptRange
from liftlog.log.file_pool import FilePool, PooledFile
from liftlog.log.filesystem import File
from liftlog.log.index import SparseIndex
from liftlog.log.manifest import QuarantinedRange
from liftlog.log.segment import Segment, walk_headers
from liftlog.records.decode import decode_batch

_WALK_WINDOW = 4096 + 256  # index entries lie about 4 KiB apart

IndexOf = Callable[[Segment, File], SparseIndex]


class LogSlice:
    """Whole batches, contiguous in one file. Release it once the bytes are sent.

    `record_count` is an upper bound. `first_offset` is where the first batch begins, at or below
    the offset that was asked for; `next_offset` is where to read on.
    """

    __slots__ = (
        "_pool",
        "_pooled",
        "first_offset",
        "length",
        "next_offset",
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

    @property
    def fd(self) -> int:
        """Valid until `release`."""
        assert self._pooled is not None, "the slice was released"
        return self._pooled.file.fileno()

    def pread(self) -> bytes:
        """The bytes themselves, for readers in the same process."""
        assert self._pooled is not None, "the slice was released"
        return self._pooled.file.pread(self.length, self.position)

    def release(self) -> None:
        """Let go of the file; calling it again does nothing."""
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


def slice_segment(
    pool: FilePool,
    segment: Segment,
    index_of: IndexOf,
    quarantined: Sequence[QuarantinedRange],
    *,
    offset: int,
    limit: int,
    end_offset: int,
    max_bytes: int,
    max_records: int | None,
) -> LogSlice | None:
    """The slice that begins with the batch holding `offset` (or what follows it).

    `limit` is the position that readers may not pass and `end_offset` the offset there. None when
    nothing readable is left in this segment.
    """
    pooled = pool.acquire(segment.path)
    taken = False
    try:
        file = pooled.file
        index = index_of(segment, file)
        start, limit, end_offset = _bounds(index, quarantined, offset, limit, end_offset)
        found = _find_start(file, index, start, limit, offset)
        if found is None:
            return None
        position, first_offset, first_end, first_next = found
        end, next_offset = _find_end(
            file, index, first_end, first_next, limit, end_offset,
            stop_position=position + max_bytes,
            stop_offset=None if max_records is None else offset + max_records,
        )  # fmt: skip
        taken = True
        return LogSlice(pool, pooled, position, end - position, first_offset, next_offset)
    finally:
        if not taken:
            pool.release(pooled)


def _bounds(
    index: SparseIndex,
    quarantined: Sequence[QuarantinedRange],
    offset: int,
    limit: int,
    end_offset: int,
) -> tuple[int, int, int]:
    """Where to begin the walk, and the limit, so that no quarantined bytes are walked or sent."""
    start = index.floor(offset).position
    for bad in quarantined:
        if bad.first_offset <= offset:
            start = max(start, bad.end_position)
        elif bad.position < limit:
            limit, end_offset = bad.position, bad.first_offset
    return start, limit, end_offset


def _find_start(
    file: File, index: SparseIndex, start: int, limit: int, offset: int
) -> tuple[int, int, int, int] | None:
    """(position, base offset, end position, next offset) of the first batch that ends after
    `offset`; raises CorruptRange when the way there is damaged."""
    expected = offset
    reached = start
    try:
        for position, header in walk_headers(file, start, limit, window=_WALK_WINDOW):
            reached = position + header.length
            if header.next_offset > offset and header.record_count:
                return position, header.base_offset, reached, header.next_offset
            expected = header.next_offset
    except CorruptBatch as error:
        following = index.after_position(reached)
        next_offset = following.offset if following else expected + 1
        raise CorruptRange(
            f"records from offset {max(expected, offset)} on are damaged: {error}",
            first_offset=max(expected, offset),
            next_offset=max(next_offset, offset + 1),
        ) from error
    return None


def _find_end(
    file: File,
    index: SparseIndex,
    end: int,
    next_offset: int,
    limit: int,
    end_offset: int,
    *,
    stop_position: int,
    stop_offset: int | None,
) -> tuple[int, int]:
    """The batch boundary where the answer ends, and the offset there.

    Index entries lie on batch boundaries, so the last entry inside the budget is a good end and
    no header has to be read; only when there is none, the batches are walked one by one.
    """
    if stop_position >= limit and (stop_offset is None or end_offset <= stop_offset):
        return limit, end_offset
    entry = index.floor_position(min(stop_position, limit))
    if stop_offset is not None:
        entry = min(entry, index.floor(stop_offset))
    if entry.position > end:
        return entry.position, entry.offset
    try:
        for position, header in walk_headers(file, end, limit, window=_WALK_WINDOW):
            past = position + header.length > stop_position or (
                stop_offset is not None and header.base_offset >= stop_offset
            )
            if past:
                break
            end, next_offset = position + header.length, header.next_offset
    except CorruptBatch:
        pass  # the damage lies behind what is sent now; whoever reads on there will be told
    return end, next_offset


def find_time_in_segment(
    pool: FilePool, segment: Segment, index_of: IndexOf, timestamp_ns: int
) -> int | None:
    """The first offset in the segment stamped at or after `timestamp_ns`, or None."""
    pooled = pool.acquire(segment.path)
    try:
        file = pooled.file
        start = index_of(segment, file).floor_time(timestamp_ns).position
        for position, header in walk_headers(file, start, segment.size_bytes, window=_WALK_WINDOW):
            if header.max_timestamp_ns < timestamp_ns or not header.record_count:
                continue
            batch = decode_batch(file.pread(header.length, position))
            for offset, stamp in zip(batch.offsets(), batch.timestamps_ns(), strict=True):
                if stamp >= timestamp_ns:
                    return offset
    except CorruptBatch as error:
        raise CorruptRange(
            f"looking for a time hit damage: {error}",
            first_offset=segment.base_offset,
            next_offset=segment.next_offset,
        ) from error
    finally:
        pool.release(pooled)
    return None
