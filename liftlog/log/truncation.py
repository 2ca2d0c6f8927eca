"""Truncates a log at either end.

Followers truncate their logs: they cut off records that the leader does not have, and drop records
that the leader has removed. A single node never truncates its log in this way.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from dataclasses import replace

from liftlog.errors import OffsetOutOfRange
from liftlog.log.active_segment import LogEnd
from liftlog.log.files.filesystem import storage_errors
from liftlog.log.files.manifest import epochs_from
from liftlog.log.segment.index import IndexEntry, write_index
from liftlog.log.segment.segment import Segment, walk_batches
from liftlog.log.state import LogState
from liftlog.log.structure import LogStructure
from liftlog.log.writing import LogWriter

logger = logging.getLogger("liftlog.log")


def truncate_suffix(writer: LogWriter, offset: int) -> int:
    """See `Log.truncate_suffix`."""
    state = writer.state
    with state.lock, storage_errors(f"truncating {state.name}"):
        log_end = state.active.end.offset
        if offset >= log_end:
            return log_end
        view = state.view
        segments = view.segments
        first = min(segments[0].base_offset, view.manifest.log_start_offset)
        if offset < first:
            raise OffsetOutOfRange(
                f"stream {state.name} begins at {first}, after {offset}",
                log_start_offset=view.manifest.log_start_offset,
                log_end_offset=log_end,
            )
        # All kept segments become sealed, and the next start trusts sealed segments.
        writer.sync()
        if offset < segments[0].base_offset:  # `offset` is in a hole at the beginning of the log
            writer.begin_lineage(LogEnd(first, first, 0), ())
            return first
        at = bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1
        old = segments[at]
        rest = _shortened(state, old, offset)
        if rest is None:
            # This segment keeps no record. If the process stops before the manifest is renamed, the
            # next start finds the old log. If it stops later, the next start removes this segment
            # and all later ones, because the manifest no longer lists them.
            writer.begin_lineage(LogEnd(old.base_offset, old.base_offset, 0), segments[:at])
            return old.base_offset
        if not old.sealed:  # a sealed segment already has its index on disk
            index = view.active_index.copy()
            index.truncate(rest.size_bytes)
            write_index(state.environment.fs, rest.path, index, rest, view.manifest.incarnation)
            state.environment.indexes.put(rest, index)
        # The cut takes effect when the manifest contains the end of `rest`, because readers ignore
        # bytes after the end of a sealed segment. So the file itself is cut last. If the process
        # stops before the manifest is renamed, the old log has all its bytes; a failure to cut the
        # file costs only space.
        end = LogEnd.of(rest)
        writer.begin_lineage(end, (*segments[:at], rest))
        if rest is not old:
            _cut_file(state, rest)
        return end.offset


def leave_active_segment(writer: LogWriter) -> None:
    """See `Log.leave_active_segment`."""
    state = writer.state
    with state.lock, storage_errors(f"leaving the active segment of {state.name}"):
        active, kept = state.active, state.view.segments[:-1]
        if active.end.position:
            incarnation = state.view.manifest.incarnation
            kept = (*kept, active.seal(active.end, state.environment, incarnation))
        writer.begin_lineage(active.end, kept)


def _shortened(state: LogState, segment: Segment, offset: int) -> Segment | None:
    """Return the part of `segment` before `offset`, sealed; None if nothing remains."""
    quarantined = state.view.damaged(segment)
    if segment.sealed and offset >= segment.next_offset:  # `offset` is in a hole after the segment
        return segment if segment.size_bytes else None
    reached, count, newest = IndexEntry(segment.base_offset, 0), 0, 0
    if not any(
        bad.first_offset <= segment.base_offset and bad.next_offset > offset for bad in quarantined
    ):
        end = IndexEntry(segment.next_offset, segment.size_bytes)
        file = state.environment.fs.open(segment.path, writable=False)
        try:
            for position, header in walk_batches(file, reached, end, quarantined=quarantined):
                if header.base_offset <= offset:
                    reached = IndexEntry(header.base_offset, position)
                if header.next_offset > offset:
                    break
                reached = IndexEntry(header.next_offset, position + header.length)
                count += header.record_count
                newest = max(newest, header.max_timestamp_ns)
        finally:
            file.close()
    if not reached.position:
        return None
    entry = replace(
        segment.entry(),
        size_bytes=reached.position,
        next_offset=reached.offset,
        record_count=count,
        max_timestamp_ns=newest,
    )
    shorter = Segment(state.directory, entry, sealed=True)
    shorter.take_times([segment], listed_since_ns=segment.listed_since_ns)
    return shorter


def _cut_file(state: LogState, segment: Segment) -> None:
    """Drop the bytes and index entries past the segment's end. The log no longer uses them, so a
    failure only costs disk space."""
    environment = state.environment
    try:
        file = environment.fs.open(segment.path)
        try:
            known, incarnation = state.view.damaged(segment), state.view.manifest.incarnation
            index = environment.indexes.get(segment, file, incarnation, known).copy()
            index.truncate(segment.size_bytes)
            environment.indexes.put(segment, index)
            write_index(environment.fs, segment.path, index, segment, incarnation)
            file.truncate(segment.size_bytes)
        finally:
            file.close()
    except OSError as error:
        logger.warning("file-not-cut path=%s error=%s", segment.path, error)


def start_over(
    writer: LogWriter, offset: int, epoch_before: int, tombstones_removed_below: int
) -> None:
    """See `Log.start_over`."""
    state = writer.state
    with state.lock, storage_errors(f"starting over {state.name}"):
        writer.begin_lineage(
            LogEnd(offset, offset, 0),
            (),
            log_start_offset=offset,
            high_watermark=offset,
            epochs=((epoch_before, offset - 1),) if epoch_before else (),
            leader_epoch=max(state.view.manifest.leader_epoch, epoch_before),
            quarantined=(),
            cleaned_below=0,
            tombstones_removed_below=tombstones_removed_below,
        )


def truncate_prefix(writer: LogWriter, offset: int) -> None:
    """See `Log.truncate_prefix`."""
    state = writer.state
    view = state.view
    if offset <= view.manifest.log_start_offset:
        return
    if offset < state.active.end.offset:
        if offset > view.committed.offset:
            raise ValueError("the log start cannot lie in an uncommitted tail")
        LogStructure(state).remove_before(offset, len(view.segments))
        return
    with state.lock, storage_errors(f"truncating {state.name}"):
        # No record of the log stays, so no batch boundary has to be found: the new manifest lists
        # an empty segment, and then the old files are removed.
        writer.begin_at(offset, epochs_from(state.view.manifest.epochs, offset))
