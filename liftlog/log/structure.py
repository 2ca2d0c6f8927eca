"""Changes the segments and metadata of a log: retention, swaps, quarantine, erasures.

Every change is one write of the manifest. All files that the new manifest lists are on disk before
it is written. Files that the new manifest no longer lists are removed afterwards; if the process
stops before that, the next start removes them. Another thread may append at the same time, because
these changes never concern the active segment.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from liftlog.errors import SegmentsChanged
from liftlog.log.erased import ErasedSet, clip
from liftlog.log.erasing import Chosen, Selection, after_swap, choose, erase, list_hidden
from liftlog.log.files.filesystem import storage_errors
from liftlog.log.files.manifest import QuarantinedRange, SegmentEntry, epochs_from
from liftlog.log.segment.derived import files_of
from liftlog.log.segment.segment import Segment
from liftlog.log.segment.walk import is_covered
from liftlog.log.state import LogState, lies_behind

logger = logging.getLogger("liftlog.log")


class LogStructure:
    """Changes the segments and metadata of one log. Any thread may call its methods, also while
    another thread appends."""

    def __init__(self, state: LogState) -> None:
        self._state = state

    def set_metadata(self, metadata: dict[str, Any]) -> None:
        """Replace the metadata that the layer above stores in the manifest; durable on return."""
        state = self._state
        with state.lock, storage_errors(f"updating {state.name}"):
            state.store(state.view.manifest.with_changes(metadata=metadata))

    def note_incomplete(self, reason: str) -> None:
        """Record that this copy may lack confirmed records, for example after a loss. Durable on
        return. Raises StorageError, DiskFull."""
        state = self._state
        with state.lock, storage_errors(f"updating {state.name}"):
            state.store(state.view.manifest.with_changes(incomplete=reason))

    def note_complete(self) -> None:
        """Clear the `incomplete` mark. Call this method when the other replicas no longer rely on
        records that this replica had confirmed. Durable on return. Raises StorageError,
        DiskFull."""
        state = self._state
        with state.lock, storage_errors(f"updating {state.name}"):
            if state.view.manifest.incomplete:
                state.store(state.view.manifest.with_changes(incomplete=""))

    def remove_before(
        self, log_start_offset: int, delete_segments: int, *, delete_below: int | None = None
    ) -> int:
        """Move the log start and drop the oldest sealed segments; returns the bytes freed.

        Removes at most `delete_segments` segments. A removed segment must also end at or below both
        the new log start and `delete_below`, because segments may have been merged after the caller
        counted them. A reader of a removed file keeps the file open until its answer is sent.
        Raises StorageError, DiskFull.
        """
        state = self._state
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
            # Other replicas read from the first stored batch on, and compare the epoch of the
            # record before it.
            known_from = kept[0].base_offset - 1 if state.config.replicated else start
            before = manifest.erased
            listed, erased = clip(before, view.erased, kept[0].base_offset, 2**63)
            manifest = manifest.with_changes(
                erased=listed,
                log_start_offset=start,
                high_watermark=view.committed.offset,
                segments=tuple(segment.entry() for segment in kept),
                # Ranges below the log start stay while the file with the damaged bytes exists,
                # because a job that rewrites or scans the file needs them.
                quarantined=tuple(
                    bad
                    for bad in manifest.quarantined
                    if bad.next_offset > start or bad.segment in names
                ),
                epochs=epochs_from(manifest.epochs, known_from),
            )
            # From here on no new reader reads below the log start, and the manifest on disk does
            # not list the old files. A reader that has an old file open can read it until it closes
            # it.
            dropped = state.unlisted.within(0, kept[0].base_offset)
            state.store(manifest, kept, erased, settled=dropped)
            state.remove_erased_files(before)
            return sum([state.remove_files(segment) for segment in gone])

    def replace_segments(
        self,
        old_files: Sequence[str],
        new: Sequence[SegmentEntry],
        *,
        horizons: Mapping[str, int | None] | None = None,
        cleaned_below: int | None = None,
        tombstones_removed_below: int | None = None,
        lineage: str | None = None,
        erased: ErasedSet | None = None,
    ) -> int:
        """Replace segments by rewritten ones; returns the bytes freed. Durable on return.

        `old_files` are consecutive sealed segments. `new` covers the same offsets without a gap, in
        files of a higher generation, which are on disk and fsynced with their indexes and the
        directory. Raises SegmentsChanged if the log's lineage is no longer `lineage`, which means
        that the log was truncated after the job began. `horizons` sets or clears the delete horizon
        of sealed segments that stay; file names that are no longer listed are ignored.
        `cleaned_below` and `tombstones_removed_below` only ever rise. `erased` are the offsets of
        the records that the job left out, because they were erased when the job began. Those in the
        replaced range leave the erased set. Records that were erased since then stay erased. If
        `old_files` is empty, only the values for compaction are stored. The whole change is one
        write of the manifest.

        Raises SegmentsChanged if the manifest does not list the files in this order, or if they
        contain quarantined bytes or uncommitted records; the log is then unchanged. After
        SegmentsChanged, StorageError or DiskFull, call `discard_files` for the new files, which
        removes only files that are safe to remove. Raises ValueError if `new` cannot replace the
        old files.
        """
        state, horizons = self._state, horizons or {}
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
            hidden = after_swap(state, old, fresh, erased)
            for i, segment in enumerate(segments):
                if segment.sealed and segment.path.name in horizons:
                    entry = replace(segment.entry(), delete_horizon_ns=horizons[segment.path.name])
                    segments[i] = Segment(state.directory, entry, sealed=True)
                    # The horizon counts from now, because this pass is the first that keeps the
                    # tombstones.
                    segments[i].take_times([segment], listed_since_ns=now_ns)
            # The new files cover the offsets of the old ones and are durable, so a start that finds
            # either manifest finds every record that was not compacted away. Readers with an older
            # view can read the old files that they hold open. Others get an error and retry.
            state.store(
                manifest.with_changes(
                    segments=tuple(segment.entry() for segment in segments),
                    high_watermark=view.committed.offset,
                    quarantined=_moved(manifest.quarantined, old, new),
                    cleaned_below=max(manifest.cleaned_below, cleaned_below or 0),
                    tombstones_removed_below=max(
                        manifest.tombstones_removed_below, tombstones_removed_below or 0
                    ),
                    erased=hidden.entries,
                ),
                tuple(segments),
                hidden.erased,
                settled=hidden.gone,
            )
            state.remove_erased_files(manifest.erased)
            freed = sum([state.remove_files(segment) for segment in old])
            return freed - sum(segment.size_bytes for segment in fresh)

    def mend_segment(
        self, old_file: str, new: Sequence[SegmentEntry], *, lineage: str | None = None
    ) -> int:
        """Replace a damaged segment by one that was repaired from another replica.

        Returns the number of damaged ranges that are repaired. Durable on return. `new` is as for
        `replace_segments`, and was verified to its end: all offsets that were quarantined in the
        old file are readable. Compaction processes the offsets from the first repaired offset on
        again, because the other replica may have kept records that this replica had removed.

        Raises SegmentsChanged if the file is no longer listed or holds uncommitted records; the
        caller then discards the new files. Raises ValueError if `new` cannot replace the file,
        StorageError, DiskFull.
        """
        state = self._state
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
            cleaned_below = min([manifest.cleaned_below, *(bad.first_offset for bad in ended)])
            # As in `replace_segments`: if the process stops before this write, the manifest lists
            # the damaged file and its quarantined ranges. If it stops after this write, the
            # manifest lists the new file. Neither manifest lists a missing file.
            state.store(
                manifest.with_changes(
                    segments=tuple(
                        segment.entry()
                        for segment in (*view.segments[:at], *fresh, *view.segments[at + 1 :])
                    ),
                    high_watermark=view.committed.offset,
                    quarantined=_moved(kept, old, new),
                    cleaned_below=cleaned_below,
                ),
                (*view.segments[:at], *fresh, *view.segments[at + 1 :]),
            )
            state.remove_files(old[0])
            return len(ended)

    def discard_files(self, names: Sequence[str]) -> None:
        """Unlink segment files, and their indexes, that a job wrote and the manifest does not list.

        After a failed `replace_segments` the manifest on disk may list the files although the view
        does not. In this case the manifest is first written again, and if this write fails, no file
        is removed. Raises StorageError, DiskFull; the next start removes the files that stay.
        """
        state = self._state
        with state.lock, storage_errors(f"discarding files of {state.name}"):
            # After a failed swap the manifest on disk may list these files. If that manifest cannot
            # be replaced, the files stay.
            state.confirm_manifest()
            listed = {segment.path.name for segment in state.view.segments}
            for name in names:
                if name in listed:
                    raise ValueError(f"{name} belongs to {state.name}")
                path = state.directory / name
                for one in files_of(path):
                    state.environment.pool.remove(one)

    def select(self, wanted: ErasedSet) -> Chosen:
        """Return the committed records among these offsets that are not erased yet. Reads batch
        headers. Raises StorageError, UnsupportedFormat."""
        return choose(self._state, wanted)

    def erase(self, wanted: ErasedSet, chosen: Chosen | None = None) -> Selection:
        """Hide the committed records among these offsets, and return them.

        Durable on return: no read that begins afterwards shows one of them, also after a kill or a
        power cut. Their bytes stay until a rewrite. Records that cannot be read are not erased; the
        answer names their ranges. Takes as long as reading the headers of the batches, unless
        `chosen` is the result of `select` for the same offsets and still right. Raises
        LimitExceeded, StorageError, DiskFull, UnsupportedFormat. After an error no record is
        hidden, but after the next start all of them may be hidden.
        """
        return erase(self._state, wanted, chosen)

    def hide(self, offsets: ErasedSet) -> None:
        """Hide stored records that committed ones hide, while the log is being opened.
        `list_hidden` makes this durable."""
        self._state.move_high_watermark(self._state.view.committed, offsets)

    def list_hidden(self) -> None:
        """Write the offsets of records to files that committed records hide (`Log.commit_up_to`),
        and note in the manifest up to which offset the files have all of them. Durable on return.
        Raises StorageError, DiskFull."""
        list_hidden(self._state)

    @property
    def has_unlisted(self) -> bool:
        """True if `list_hidden` has something to write."""
        return bool(self._state.unlisted)

    def quarantine(self, file_name: str, ranges: Sequence[QuarantinedRange]) -> None:
        """Record damaged ranges of a segment; readers skip them from now on. Durable on return.

        Ranges in the active segment must be below the high watermark. A range that is already
        recorded changes nothing. A range that overlaps a recorded range widens the recorded range.
        Raises SegmentsChanged if the segment is gone, StorageError, DiskFull.
        """
        state = self._state
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
                    # A loss must stay visible as a loss, even if skipped offsets overlap it.
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
        self,
        file_name: str,
        lifted: Sequence[QuarantinedRange],
        still: Sequence[QuarantinedRange] = (),
    ) -> int:
        """End the quarantine of ranges of a segment that are readable again.

        A walk over the whole segment has shown that these ranges are readable (`readable_again`);
        `still` are the parts of these ranges that are damaged. Returns the number of lifted ranges.
        Durable on return. Raises StorageError, DiskFull.
        """
        state = self._state
        with state.lock, storage_errors(f"lifting a quarantine in {state.name}"):
            manifest = state.view.manifest
            gone = [bad for bad in manifest.quarantined_in(file_name) if bad in lifted]
            if not gone:
                return 0
            kept = [bad for bad in manifest.quarantined if bad not in gone]
            kept += [
                bad for bad in still if not is_covered(bad.first_offset, bad.next_offset, kept)
            ]
            for bad in gone:
                logger.warning(
                    "quarantine-lifted stream=%s first_offset=%d next_offset=%d reason=%s",
                    state.name,
                    bad.first_offset,
                    bad.next_offset,
                    bad.reason,
                )
            # Compaction has skipped the file because it was damaged.
            first = min(bad.first_offset for bad in gone)
            state.store(
                manifest.with_changes(
                    quarantined=tuple(kept), cleaned_below=min(manifest.cleaned_below, first)
                )
            )
            return len(gone)


def _listed(
    state: LogState, files: Sequence[str], lineage: str | None
) -> tuple[int, Sequence[Segment]]:
    """Return the sealed segments of these files, and the place of the first one among all segments.
    Raises SegmentsChanged."""
    # A job that began before a truncation has read records that the log no longer contains.
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


def _overlap(one: QuarantinedRange, other: QuarantinedRange) -> bool:
    return (
        one.segment == other.segment
        and one.position < other.end_position
        and other.position < one.end_position
    )


def _moved(
    ranges: Sequence[QuarantinedRange], old: Sequence[Segment], new: Sequence[SegmentEntry]
) -> tuple[QuarantinedRange, ...]:
    """Assign ranges that lie after the last old segment to the last new segment."""
    if not old:
        return tuple(ranges)
    last, end = old[-1], new[-1].size_bytes
    return tuple(
        replace(bad, segment=new[-1].file_name, position=end, end_position=end)
        if bad.segment == last.path.name and lies_behind(bad, last)
        else bad
        for bad in ranges
    )
