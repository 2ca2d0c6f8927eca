"""Changes to the segments and metadata of a log: retention, swaps, quarantine.

Every change is one write of the manifest. All files that the new manifest lists are on disk before
it is written; files that it no longer lists are removed afterwards, and after a stop in between the
next start removes them. Unless a function says otherwise, another thread may append meanwhile:
nothing here touches the active segment.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from liftlog.errors import SegmentsChanged
from liftlog.log.files.filesystem import storage_errors
from liftlog.log.files.manifest import QuarantinedRange, SegmentEntry, epochs_from
from liftlog.log.segment.derived import files_of
from liftlog.log.segment.segment import Segment
from liftlog.log.segment.walk import is_covered
from liftlog.log.state import LogState, lies_behind

logger = logging.getLogger("liftlog.log")


def set_metadata(state: LogState, metadata: dict[str, Any]) -> None:
    """See `Log.set_metadata`."""
    with state.lock, storage_errors(f"updating {state.name}"):
        state.store(state.view.manifest.with_changes(metadata=metadata))


def note_incomplete(state: LogState, reason: str) -> None:
    """See `Log.note_incomplete`."""
    with state.lock, storage_errors(f"updating {state.name}"):
        state.store(state.view.manifest.with_changes(incomplete=reason))


def note_complete(state: LogState) -> None:
    """See `Log.note_complete`."""
    with state.lock, storage_errors(f"updating {state.name}"):
        if state.view.manifest.incomplete:
            state.store(state.view.manifest.with_changes(incomplete=""))


def remove_before(
    state: LogState, log_start_offset: int, delete_segments: int, delete_below: int | None
) -> int:
    """See `Log.remove_before`."""
    with state.lock, storage_errors(f"retention of {state.name}"):
        view = state.view
        manifest, segments = view.manifest, view.segments
        start = max(log_start_offset, manifest.log_start_offset)
        if start > view.committed.offset:
            raise ValueError("the log start cannot pass the high watermark")
        limit = start if delete_below is None else min(start, delete_below)
        count = 0
        for segment in segments[: min(delete_segments, len(segments) - 1)]:
            if not segment.sealed or segment.next_offset > limit:
                break
            count += 1
        gone, kept = segments[:count], segments[count:]
        names = {segment.path.name for segment in kept}
        # Other replicas read from the first stored batch on, and are compared by the epoch of the
        # record before it.
        known_from = kept[0].base_offset - 1 if state.config.replicated else start
        manifest = manifest.with_changes(
            log_start_offset=start,
            high_watermark=view.committed.offset,
            segments=tuple(segment.entry() for segment in kept),
            # Ranges below the log start stay too, while the damaged bytes are there: a job that
            # rewrites or scans the file needs them.
            quarantined=tuple(
                bad
                for bad in manifest.quarantined
                if bad.next_offset > start or bad.segment in names
            ),
            epochs=epochs_from(manifest.epochs, known_from),
        )
        # From here on no new reader gets below the log start, and no start of the daemon finds the
        # old files listed. A reader that has one open keeps it until it closes it.
        state.store(manifest, kept)
        return sum([state.remove_files(segment) for segment in gone])


# --- rewritten segments ---


def replace_segments(
    state: LogState,
    old_files: Sequence[str],
    new: Sequence[SegmentEntry],
    *,
    horizons: Mapping[str, int | None],
    cleaned_below: int,
    tombstones_removed_below: int,
    lineage: str | None,
) -> int:
    """See `Log.replace_segments`."""
    with state.lock, storage_errors(f"replacing segments of {state.name}"):
        view = state.view
        manifest = view.manifest
        at, old = _listed(state, old_files, lineage)
        if damaged := view.damaged_files.intersection(old_files):
            raise SegmentsChanged(f"{', '.join(sorted(damaged))} holds quarantined bytes")
        _check_replacement(state, old, new)
        now_ns = state.environment.clock.monotonic_ns()
        fresh = _rewritten(state, old, new)
        segments = [*view.segments[:at], *fresh, *view.segments[at + len(old) :]]
        for i, segment in enumerate(segments):
            if segment.sealed and segment.path.name in horizons:
                entry = replace(segment.entry(), delete_horizon_ns=horizons[segment.path.name])
                segments[i] = Segment(state.directory, entry, sealed=True)
                # A horizon counts from now: this pass is the first that keeps its tombstones.
                segments[i].take_times([segment], listed_since_ns=now_ns)
        # The new files cover the offsets of the old ones and are durable, so a start that finds
        # either manifest finds every live record. Readers that took their view before stay in the
        # old files, which remain readable while they hold them open. A reader that has not opened
        # its file yet finds it gone, takes the new view and retries.
        state.store(
            manifest.with_changes(
                segments=tuple(segment.entry() for segment in segments),
                high_watermark=view.committed.offset,
                quarantined=_moved(manifest.quarantined, old, new),
                cleaned_below=max(manifest.cleaned_below, cleaned_below),
                tombstones_removed_below=max(
                    manifest.tombstones_removed_below, tombstones_removed_below
                ),
            ),
            tuple(segments),
        )
        freed = sum([state.remove_files(segment) for segment in old])
        return freed - sum(segment.size_bytes for segment in fresh)


def mend_segment(
    state: LogState, old_file: str, new: Sequence[SegmentEntry], *, lineage: str | None
) -> int:
    """See `Log.mend_segment`."""
    with state.lock, storage_errors(f"mending a segment of {state.name}"):
        view = state.view
        manifest = view.manifest
        at, old = _listed(state, [old_file], lineage)
        _check_replacement(state, old, new)
        fresh = _rewritten(state, old, new)
        ended = [
            bad
            for bad in manifest.quarantined
            if bad.segment == old_file and not lies_behind(bad, old[0])
        ]
        kept = [bad for bad in manifest.quarantined if bad not in ended]
        # A stop before this leaves the damaged file and its quarantined ranges, a stop after it the
        # new file: as in `replace_segments`. Neither manifest lists a file that is missing.
        state.store(
            manifest.with_changes(
                segments=tuple(
                    segment.entry()
                    for segment in (*view.segments[:at], *fresh, *view.segments[at + 1 :])
                ),
                high_watermark=view.committed.offset,
                quarantined=_moved(kept, old, new),
                cleaned_below=min([manifest.cleaned_below, *(bad.first_offset for bad in ended)]),
            ),
            (*view.segments[:at], *fresh, *view.segments[at + 1 :]),
        )
        state.remove_files(old[0])
        return len(ended)


def _listed(
    state: LogState, files: Sequence[str], lineage: str | None
) -> tuple[int, Sequence[Segment]]:
    """Return the sealed segments of these files and the index of the first. Raises
    SegmentsChanged."""
    # A job that began before a truncation has read records that are no longer in the log.
    if lineage is not None and lineage != state.view.manifest.lineage:
        raise SegmentsChanged(f"{state.name} was truncated meanwhile")
    segments = state.view.segments
    if not files:
        return 0, ()
    names = [segment.path.name for segment in segments if segment.sealed]
    at = names.index(files[0]) if files[0] in names else len(names)
    if names[at : at + len(files)] != list(files):
        raise SegmentsChanged(f"{state.name} no longer consists of {', '.join(files)}")
    return at, segments[at : at + len(files)]


def _rewritten(
    state: LogState, old: Sequence[Segment], new: Sequence[SegmentEntry]
) -> list[Segment]:
    now_ns = state.environment.clock.monotonic_ns()
    fresh = [Segment(state.directory, entry, sealed=True) for entry in new]
    for segment in fresh:
        segment.take_times(old, listed_since_ns=now_ns)
    return fresh


def _check_replacement(
    state: LogState, old: Sequence[Segment], new: Sequence[SegmentEntry]
) -> None:
    if bool(old) != bool(new):
        raise ValueError("segments can only be replaced by segments")
    for one in (old, new):
        if any(one[i].next_offset != one[i + 1].base_offset for i in range(len(one) - 1)):
            raise ValueError("the segments do not follow each other without a gap")
    if not old:
        return
    # Uncommitted records may still be truncated, at a batch boundary of the old file.
    if state.view.committed.offset < old[-1].next_offset:
        name = old[-1].path.name
        raise SegmentsChanged(f"{name} holds records that are not committed yet")
    if (old[0].base_offset, old[-1].next_offset) != (new[0].base_offset, new[-1].next_offset):
        raise ValueError("the new segments cover other offsets than the old ones")
    if min(entry.generation for entry in new) <= max(segment.generation for segment in old):
        raise ValueError("a rewritten segment needs a generation above those of its sources")
    for entry in new:
        file = state.environment.fs.open(state.directory / entry.file_name, writable=False)
        try:
            if file.size() < entry.size_bytes:
                raise ValueError(f"{entry.file_name} is shorter than its entry says")
        finally:
            file.close()


def discard_files(state: LogState, names: Sequence[str]) -> None:
    """See `Log.discard_files`."""
    with state.lock, storage_errors(f"discarding files of {state.name}"):
        # After a failed swap the manifest on disk may list these files. Unless it can be replaced,
        # they stay.
        state.confirm_manifest()
        listed = {segment.path.name for segment in state.view.segments}
        for name in names:
            if name in listed:
                raise ValueError(f"{name} belongs to {state.name}")
            path = state.directory / name
            for one in files_of(path):
                state.environment.pool.remove(one)


def quarantine(state: LogState, file_name: str, ranges: Sequence[QuarantinedRange]) -> None:
    """See `Log.quarantine`."""
    with state.lock, storage_errors(f"quarantining in {state.name}"):
        view = state.view
        if all(segment.path.name != file_name for segment in view.segments):
            raise SegmentsChanged(f"{state.name} no longer consists of {file_name}")
        before = view.manifest.quarantined
        known = list(before)
        for bad in ranges:
            merged = replace(bad, segment=file_name)
            for other in [one for one in known if _overlap(one, merged)]:
                known.remove(other)
                # A loss must stay visible as such, even where skipped offsets overlap it.
                merged = other.widened(merged) if other.is_loss else merged.widened(other)
            known.append(merged)
        if set(known) == set(before):
            return
        for bad in set(known).difference(before):
            logger.error(
                "quarantined stream=%s first_offset=%d next_offset=%d reason=%s",
                state.name,
                bad.first_offset,
                bad.next_offset,
                bad.reason,
            )
        state.store(view.manifest.with_changes(quarantined=tuple(known)))


def lift_quarantine(
    state: LogState,
    file_name: str,
    lifted: Sequence[QuarantinedRange],
    still: Sequence[QuarantinedRange],
) -> int:
    """See `Log.lift_quarantine`."""
    with state.lock, storage_errors(f"lifting a quarantine in {state.name}"):
        manifest = state.view.manifest
        gone = [bad for bad in manifest.quarantined_in(file_name) if bad in lifted]
        if not gone:
            return 0
        kept = [bad for bad in manifest.quarantined if bad not in gone]
        kept += [bad for bad in still if not is_covered(bad.first_offset, bad.next_offset, kept)]
        for bad in gone:
            logger.warning(
                "quarantine-lifted stream=%s first_offset=%d next_offset=%d reason=%s",
                state.name,
                bad.first_offset,
                bad.next_offset,
                bad.reason,
            )
        # Compaction has skipped the file, since it was damaged.
        first = min(bad.first_offset for bad in gone)
        state.store(
            manifest.with_changes(
                quarantined=tuple(kept), cleaned_below=min(manifest.cleaned_below, first)
            )
        )
        return len(gone)


def _overlap(one: QuarantinedRange, other: QuarantinedRange) -> bool:
    return (
        one.segment == other.segment
        and one.position < other.end_position
        and other.position < one.end_position
    )


def _moved(
    ranges: Sequence[QuarantinedRange], old: Sequence[Segment], new: Sequence[SegmentEntry]
) -> tuple[QuarantinedRange, ...]:
    """Move ranges that lie after the last old segment to the last new one."""
    if not old:
        return tuple(ranges)
    last, end = old[-1], new[-1].size_bytes
    return tuple(
        replace(bad, segment=new[-1].file_name, position=end, end_position=end)
        if bad.segment == last.path.name and lies_behind(bad, last)
        else bad
        for bad in ranges
    )
