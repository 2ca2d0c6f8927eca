"""Reads across segments, on one view of the log. Holds no lock while it reads files."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import NamedTuple

from compaction.ages import TOLERANCE_NS
from liftlog.errors import CorruptRange, OffsetOutOfRange, SegmentsChanged
from liftlog.log.environment import LogEnvironment
from liftlog.log.files.filesystem import storage_errors
from liftlog.log.files.manifest import QuarantinedRange
from liftlog.log.read.ages import first_stamp_ns
from liftlog.log.read.slices import LATEST_NS, LogSlice, find_time_in_segment, slice_segment
from liftlog.log.segment.segment import Segment
from liftlog.log.segment.walk import Missing, is_covered, walk
from liftlog.log.state import LogState, ReadView
from liftlog.log.structure import LogStructure

_DAMAGE_WINDOW_BYTES = 256 * 1024


class Gap(NamedTuple):
    """Offsets for which this log has no records, and will never have any.

    `is_loss` means that the gap may have contained acked records. Otherwise no acked record was
    lost, and readers skip the gap silently.
    """

    first_offset: int
    next_offset: int
    reason: str
    is_loss: bool


OnDamage = Callable[[int, int], object]


class _reading(storage_errors):  # noqa: N801  # used as a function
    """Map errors like `storage_errors`, and drop the open files of the log from the pool after an
    error, because a stale file handle never becomes valid again."""

    __slots__ = ("_state",)

    def __init__(self, state: LogState) -> None:
        super().__init__(f"reading {state.name}")
        self._state = state

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, OSError):
            self._state.environment.pool.forget_directory(self._state.directory)
        super().__exit__(kind, error, trace)


def read_from(
    state: LogState,
    offset: int,
    max_bytes: int,
    max_records: int | None,
    on_damage: OnDamage,
    *,
    masked: bool = False,
    stored: bool = False,
) -> LogSlice | None:
    """See `Log.read`. With `stored`, also reads stored records below the log start, and erased
    ones."""
    with _reading(state):
        while True:
            view = state.view
            start, erased = offset, view.erased
            if stored:
                view = view._replace(erased=None)
                start = max(offset, view.segments[0].base_offset)
            else:
                # `offset` may lie before the first segment, in a loss that retention has reached.
                _check_bounds(state, view, offset)
                if masked and erased is not None and not erased.unreadable:
                    view = view._replace(erased=None)
                    start = erased.next_not_at(offset)
            try:
                found = read_slice(view, state.environment, start, max_bytes, max_records)
                if found is not None:
                    found.on_damage = on_damage
                    if masked and view.erased is None:
                        found.erased = erased
                return found
            except FileNotFoundError:
                # The file may have been removed after this function took the view.
                if view.segments is state.view.segments:
                    raise


def cuts_at(view: ReadView, environment: LogEnvironment, offset: int) -> bool:
    """Return True if a read at `offset` may cut erased records out of batches. Such a read takes
    some milliseconds and may wait for the disk. This method does not wait."""
    erased = view.erased
    if erased is None:
        return False
    offset = erased.next_not_at(offset)
    i = max(bisect_right(view.segments, offset, key=lambda one: one.base_offset) - 1, 0)
    segment = view.segments[i]
    index = view.active_index if not segment.sealed else environment.indexes.in_memory(segment)
    if index is None:
        return True
    start = index.floor(offset)
    first = erased.next_at(start.offset)
    following = index.after_position(start.position)
    return first is not None and (following is None or first < following.offset)


def read_replica(
    state: LogState, offset: int, max_bytes: int, on_damage: OnDamage
) -> LogSlice | Gap | None:
    """See `Log.read_replica`."""
    with _reading(state):
        while True:
            view = state.written_view
            # If all segments below a gap were deleted, the oldest segment begins past the log
            # start.
            start = min(view.segments[0].base_offset, view.manifest.log_start_offset)
            end = view.committed.offset
            if not start <= offset <= end:
                raise OffsetOutOfRange(
                    f"offset {offset} is outside [{start}, {end}], which stream {state.name} holds",
                    log_start_offset=start,
                    log_end_offset=end,
                )
            try:
                found = _next_slice(
                    view, state.environment, offset, max_bytes, None, with_empty=True
                )
            except FileNotFoundError:  # as in `read_from`
                if view.segments is state.view.segments:
                    raise
                continue
            following = end if found is None else found.first_offset
            if following > offset:
                if found is not None:
                    found.release()
                return _gap(view.manifest.quarantined, offset, following)
            if found is not None:
                found.on_damage = on_damage
            return found


def _gap(ranges: Sequence[QuarantinedRange], offset: int, following: int) -> Gap:
    """Return the gap [offset, following), or only the first part if the gap consists of parts with
    different reasons."""
    known = [bad for bad in ranges if bad.next_offset > offset and bad.first_offset < following]
    known.sort(key=lambda bad: (not bad.is_loss, bad.first_offset))
    for bad in known:
        if bad.first_offset <= offset:
            end = min(bad.next_offset, following)
            return Gap(offset, end, bad.reason, bad.is_loss)
        following = min(following, bad.first_offset)  # up to a loss that begins later
    return Gap(offset, following, "no segment holds these offsets", is_loss=True)


def _check_bounds(state: LogState, view: ReadView, offset: int) -> None:
    start, end = view.manifest.log_start_offset, state.active.end.offset
    if start <= offset <= max(end, view.committed.offset):
        return
    raise OffsetOutOfRange(
        f"offset {offset} is outside [{start}, {end}] of stream {state.name}",
        hint="start at `earliest` or `latest`, or at an offset inside the range",
        log_start_offset=start,
        log_end_offset=end,
    )


def offset_for_timestamp(state: LogState, timestamp_ns: int) -> int:
    """See `Log.offset_for_timestamp`."""
    with _reading(state):
        while True:
            view = state.view
            try:
                return first_offset_at(view, state.environment, timestamp_ns)
            except FileNotFoundError:  # as in `read_from`
                if view.segments is state.view.segments:
                    raise


def quarantine_damage(state: LogState, first_offset: int, next_offset: int) -> None:
    """See `Log.quarantine_damage`."""
    with storage_errors(f"examining {state.name}"):
        # Other replicas also read uncommitted records, and may find damage in them.
        view = state.written_view if state.config.replicated else state.view
        for segment in view.segments:
            if segment.next_offset <= first_offset or segment.base_offset >= next_offset:
                continue
            try:
                found = find_damage(view, state.environment, segment, first_offset, next_offset)
                if found:
                    LogStructure(state).quarantine(segment.path.name, found)
            except (FileNotFoundError, SegmentsChanged):
                continue  # the file was replaced or removed meanwhile


def _all_gone(damaged: Sequence[QuarantinedRange], first_offset: int, end_offset: int) -> bool:
    """Return True if one range covers all of [first_offset, end_offset); the file may then be
    missing."""
    return any(
        bad.first_offset <= first_offset and bad.next_offset >= end_offset for bad in damaged
    )


def read_slice(
    view: ReadView,
    environment: LogEnvironment,
    offset: int,
    max_bytes: int,
    max_records: int | None,
) -> LogSlice | None:
    """Return the slice that begins with the batch that holds `offset`, or with the next batch.

    Returns None at the end. Raises CorruptRange if records between `offset` and the slice are lost,
    and OSError.
    """
    try:
        found = _next_slice(view, environment, offset, max_bytes, max_records)
    except CorruptRange as damage:
        # The search may have skipped recorded losses before this damage. Readers get the errors for
        # these losses first.
        _raise_for_losses(view.manifest.quarantined, offset, damage.first_offset)
        raise
    if view.manifest.quarantined:
        end = view.committed.offset if found is None else found.first_offset
        try:
            _raise_for_losses(view.manifest.quarantined, offset, end)
        except CorruptRange:
            if found is not None:
                found.release()
            raise
    return found


def _raise_for_losses(ranges: Sequence[QuarantinedRange], offset: int, end: int) -> None:
    """Raise CorruptRange for lost records in [offset, end), so that no reader skips them
    silently."""
    for bad in sorted(ranges, key=lambda one: one.first_offset):
        if bad.is_loss and bad.next_offset > offset and bad.first_offset < end:
            first = max(bad.first_offset, offset)
            raise CorruptRange(
                f"the records [{first}, {bad.next_offset}) are lost: {bad.reason}",
                hint=f"read on with start={bad.next_offset}",
                first_offset=first,
                next_offset=bad.next_offset,
            )


def _next_slice(
    view: ReadView,
    environment: LogEnvironment,
    offset: int,
    max_bytes: int,
    max_records: int | None,
    *,
    with_empty: bool = False,
) -> LogSlice | None:
    committed, segments, erased = view.committed, view.segments, view.erased
    if erased is not None and not with_empty:
        offset = erased.next_not_at(offset)
    i = max(bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1, 0)
    while offset < committed.offset and i < len(segments):
        segment = segments[i]
        if erased is not None and segment.sealed and segment.next_offset <= offset:
            i += 1
            continue
        end = view.readable_end(segment)
        damaged = view.damaged(segment) if view.manifest.quarantined else ()
        if not damaged or not _all_gone(damaged, offset, end.offset):
            found = slice_segment(
                view,
                environment,
                segment,
                damaged,
                offset=offset,
                end=end,
                max_bytes=max_bytes,
                max_records=max_records,
                with_empty=with_empty,
            )
            if found is not None:
                if erased is None or found.record_count or with_empty:
                    return found
                offset = erased.next_not_at(found.next_offset)
                continue  # none of these batches has a record left
        i += 1
        if i < len(segments):
            offset = max(offset, segments[i].base_offset)
    return None


def first_offset_at(view: ReadView, environment: LogEnvironment, timestamp_ns: int) -> int:
    """Return the first readable offset stamped at or after `timestamp_ns`; the high watermark if
    there is no such record.

    A timestamp in the future is wrong. If a record with a wrong timestamp is followed by a record
    with a credible timestamp before `timestamp_ns`, both records are older than `timestamp_ns`, and
    the search continues.
    """
    latest_ns = environment.clock.now_ns() + TOLERANCE_NS
    start = view.manifest.log_start_offset
    while True:
        found = _find_time(view, environment, timestamp_ns, LATEST_NS, start)
        if found is None:
            return view.committed.offset
        offset, stamp = found
        if stamp <= latest_ns or timestamp_ns > latest_ns:
            return offset
        following = _find_time(
            view,
            environment,
            0,
            latest_ns,
            _start_of_credible(view, environment, offset, latest_ns),
        )
        if following is None or following[1] >= timestamp_ns:
            return offset
        start = following[0] + 1


def _find_time(
    view: ReadView, environment: LogEnvironment, from_ns: int, latest_ns: int, start: int
) -> tuple[int, int] | None:
    """Return offset and timestamp of the first record at or after `start` whose timestamp is in
    [from_ns, latest_ns]."""
    for segment in view.segments:
        if segment.base_offset > view.committed.segment_base:
            break
        if segment.max_timestamp_ns < from_ns or segment.next_offset <= start:
            continue
        damaged = view.damaged(segment)
        if _all_gone(damaged, segment.base_offset, segment.next_offset):
            continue
        found = find_time_in_segment(
            view,
            environment,
            segment,
            damaged,
            from_ns,
            first_offset=start,
            latest_ns=latest_ns,
        )
        if found is not None:
            return found
    return None


def _start_of_credible(
    view: ReadView, environment: LogEnvironment, offset: int, latest_ns: int
) -> int:
    """Return the offset from which to search for a credible timestamp. Also skips each segment
    whose successor begins with a wrong timestamp. Reads one header per segment."""
    segments = view.segments
    at = bisect_right(segments, offset, key=lambda one: one.base_offset) - 1
    while at + 1 < len(segments) and first_stamp_ns(environment, segments[at + 1]) > latest_ns:
        at += 1
    return max(offset + 1, segments[at].base_offset)


def find_damage(
    view: ReadView,
    environment: LogEnvironment,
    segment: Segment,
    first_offset: int,
    next_offset: int,
) -> list[QuarantinedRange]:
    """Return the damage in [first_offset, next_offset) of `segment` that is not quarantined yet.

    Reads the bytes and verifies every checksum. Raises OSError, UnsupportedFormat.
    """
    known, end = view.damaged(segment), view.readable_end(segment)
    found: list[QuarantinedRange] = []
    pooled = environment.pool.acquire(segment.path)
    try:
        file = pooled.file
        index = view.index_of(segment, file, environment.indexes)
        start = index.floor(first_offset)
        for item in walk(
            file,
            start.offset,
            end.position,
            end.position,
            index,
            position=start.position,
            window_bytes=_DAMAGE_WINDOW_BYTES,
            end_offset=end.offset,
            epochs=view.manifest.epochs,
        ):
            if not isinstance(item, Missing):
                if item.batch.next_offset >= next_offset:
                    break
                continue
            if item.first_offset >= next_offset:
                break
            following = end.offset if item.next_offset is None else item.next_offset
            first = item.first_offset
            if following > first_offset and not is_covered(first, following, known):
                name, reason = segment.path.name, item.reason
                found.append(
                    QuarantinedRange(
                        first, following, name, item.position, item.end_position, reason
                    )
                )
            if following >= next_offset:
                break
    finally:
        environment.pool.release(pooled)
    return found
