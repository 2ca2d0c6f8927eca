"""Changes of what a log consists of: metadata, retention, swaps, quarantine.

Every change is one write of the manifest. What has to be on disk for it is there before; files that
it no longer lists go after it, and a stop in between leaves garbage that the next start removes.
Unless a method says otherwise, appends of another thread may go on meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from liftlog.errors import SegmentsChanged
from liftlog.log.filesystem import storage_errors
from liftlog.log.index import index_path
from liftlog.log.manifest import QuarantinedRange, SegmentEntry, epochs_from
from liftlog.log.segment import Segment
from liftlog.log.state import lies_behind
from liftlog.log.writing import LogWriting

logger = logging.getLogger("liftlog.log")


class LogStructure(LogWriting):
    def set_metadata(self, metadata: dict[str, Any]) -> None:
        """Replace what the layer above keeps in the manifest; durable on return."""
        with self._lock, storage_errors(f"updating {self.name}"):
            self._write_manifest(self._manifest.with_changes(metadata=metadata))

    def remove_before(
        self, log_start_offset: int, delete_segments: int, *, delete_below: int | None = None
    ) -> int:
        """Move the log start and drop the oldest sealed segments; returns the bytes freed.

        At most `delete_segments` go, and only what ends at or below the new log start and
        `delete_below`: the caller may have counted before segments were merged. Whoever reads a
        removed file keeps it until the answer is sent.
        """
        with self._lock, storage_errors(f"retention of {self.name}"):
            start = max(log_start_offset, self._manifest.log_start_offset)
            if start > self._committed.offset:
                raise ValueError("the log start cannot pass the high watermark")
            limit = start if delete_below is None else min(start, delete_below)
            count = 0
            for segment in self._segments[: min(delete_segments, len(self._segments) - 1)]:
                if not segment.sealed or segment.next_offset > limit:
                    break
                count += 1
            gone, kept = self._segments[:count], self._segments[count:]
            names = {segment.path.name for segment in kept}
            manifest = self._manifest.with_changes(
                log_start_offset=start,
                high_watermark=self._committed.offset,
                segments=tuple(segment.entry() for segment in kept),
                # Below the log start too, as long as the damaged bytes are there: whoever rewrites
                # or scans the file has to know of them.
                quarantined=tuple(
                    bad
                    for bad in self._manifest.quarantined
                    if bad.next_offset > start or bad.segment in names
                ),
                epochs=epochs_from(self._manifest.epochs, start),
            )
            self._write_manifest(manifest)
            self._segments = kept
            return sum([self._remove_files(segment) for segment in gone])

    # --- rewritten segments ---

    def replace_segments(
        self,
        old_files: Sequence[str],
        new: Sequence[SegmentEntry],
        *,
        horizons: Mapping[str, int | None] | None = None,
        cleaned_below: int | None = None,
        tombstones_removed_below: int | None = None,
        lineage: str | None = None,
    ) -> int:
        """Put rewritten segments in the place of others; returns the bytes freed. Durable.

        `old_files` are consecutive sealed segments. `new` tiles the same offsets in files of a
        higher generation, which are on disk, fsynced with their indexes and the directory.
        With `lineage` nothing is done in another one: a job that outlived a truncation.
        `horizons` sets or clears the delete horizon of sealed segments that stay; names that are
        not listed any more are passed over. Both offsets only ever rise. Without files, only
        these are stored. One write of the manifest does all of it.

        Raises SegmentsChanged when the files are not listed like this (any more), hold quarantined
        bytes, or records that are not committed yet: then nothing happened and the new files are
        to be discarded, with `discard_files`. After StorageError or DiskFull too: `discard_files`
        knows what is safe. Raises ValueError when `new` cannot stand in for the old ones.
        """
        with self._lock, storage_errors(f"replacing segments of {self.name}"):
            manifest = self._manifest
            if lineage is not None and lineage != manifest.lineage:
                raise SegmentsChanged(f"{self.name} was truncated meanwhile")
            at, old = self._listed(old_files)
            self._check_replacement(old, new)
            if old and self._committed.offset < old[-1].next_offset:
                name = old[-1].path.name
                raise SegmentsChanged(f"{name} holds records that are not committed yet")
            fresh = [Segment(self.directory, entry, sealed=True) for entry in new]
            segments = [*self._segments[:at], *fresh, *self._segments[at + len(old) :]]
            for i, segment in enumerate(segments):
                if segment.sealed and segment.path.name in (horizons or {}):
                    horizon = (horizons or {})[segment.path.name]
                    entry = replace(segment.entry(), delete_horizon_ns=horizon)
                    segments[i] = Segment(self.directory, entry, sealed=True)
            self._write_manifest(
                manifest.with_changes(
                    segments=tuple(segment.entry() for segment in segments),
                    high_watermark=self._committed.offset,
                    quarantined=_moved(manifest.quarantined, old, new),
                    cleaned_below=max(manifest.cleaned_below, cleaned_below or 0),
                    tombstones_removed_below=max(
                        manifest.tombstones_removed_below, tombstones_removed_below or 0
                    ),
                )
            )
            self._segments = tuple(segments)
            freed = sum([self._remove_files(segment) for segment in old])
            return freed - sum(segment.size_bytes for segment in fresh)

    def _listed(self, files: Sequence[str]) -> tuple[int, Sequence[Segment]]:
        """The sealed segments of these files and where they stand. Raises SegmentsChanged."""
        segments = self._segments
        if not files:
            return 0, ()
        names = [segment.path.name for segment in segments if segment.sealed]
        at = names.index(files[0]) if files[0] in names else len(names)
        if names[at : at + len(files)] != list(files):
            raise SegmentsChanged(f"{self.name} no longer consists of {', '.join(files)}")
        return at, segments[at : at + len(files)]

    def _check_replacement(self, old: Sequence[Segment], new: Sequence[SegmentEntry]) -> None:
        if damaged := self.damaged_files.intersection(segment.path.name for segment in old):
            raise SegmentsChanged(f"{', '.join(sorted(damaged))} holds quarantined bytes")
        if bool(old) != bool(new):
            raise ValueError("segments can only be replaced by segments")
        for one in (old, new):
            if any(one[i].next_offset != one[i + 1].base_offset for i in range(len(one) - 1)):
                raise ValueError("the segments do not follow each other without a gap")
        if not old:
            return
        if (old[0].base_offset, old[-1].next_offset) != (new[0].base_offset, new[-1].next_offset):
            raise ValueError("the new segments stand for other offsets than the old ones")
        if min(entry.generation for entry in new) <= max(segment.generation for segment in old):
            raise ValueError("a rewritten segment needs a generation above those of its sources")
        for entry in new:
            file = self.environment.fs.open(self.directory / entry.file_name, writable=False)
            try:
                if file.size() < entry.size_bytes:
                    raise ValueError(f"{entry.file_name} is shorter than its entry says")
            finally:
                file.close()

    def discard_files(self, names: Sequence[str]) -> None:
        """Unlink segment files, and their indexes, that a job wrote and nobody lists.

        After a failed `replace_segments` the disk may list them, whatever is known here: then it
        is told otherwise first, and while that fails nothing is removed. Raises StorageError,
        DiskFull; what stays is removed by the next start.
        """
        with self._lock, storage_errors(f"discarding files of {self.name}"):
            if self._manifest_in_doubt:
                self._write_manifest(self._manifest)
            listed = {segment.path.name for segment in self._segments}
            for name in names:
                if name in listed:
                    raise ValueError(f"{name} belongs to {self.name}")
                path = self.directory / name
                for one in (path, index_path(path)):
                    self.environment.pool.remove(one)

    def quarantine(self, file_name: str, ranges: Sequence[QuarantinedRange]) -> None:
        """Note damaged ranges of a segment; readers pass over them from now on. Durable. In the
        active segment they lie below the high watermark.

        What is known already changes nothing; a range that overlaps a known one widens it. Raises
        SegmentsChanged when the segment is gone, StorageError, DiskFull.
        """
        with self._lock, storage_errors(f"quarantining in {self.name}"):
            if all(segment.path.name != file_name for segment in self._segments):
                raise SegmentsChanged(f"{self.name} no longer consists of {file_name}")
            known = list(self._manifest.quarantined)
            for bad in ranges:
                merged = replace(bad, segment=file_name)
                for other in [one for one in known if _overlap(one, merged)]:
                    known.remove(other)
                    # Offsets that were only skipped must not make a loss look like one of them.
                    merged = other.widened(merged) if other.is_loss else merged.widened(other)
                known.append(merged)
            if set(known) == set(self._manifest.quarantined):
                return
            for bad in set(known).difference(self._manifest.quarantined):
                logger.error(
                    "quarantined stream=%s first_offset=%d next_offset=%d reason=%s",
                    self.name,
                    bad.first_offset,
                    bad.next_offset,
                    bad.reason,
                )
            self._write_manifest(self._manifest.with_changes(quarantined=tuple(known)))


def _overlap(one: QuarantinedRange, other: QuarantinedRange) -> bool:
    return (
        one.segment == other.segment
        and one.position < other.end_position
        and other.position < one.end_position
    )


def _moved(
    ranges: Sequence[QuarantinedRange], old: Sequence[Segment], new: Sequence[SegmentEntry]
) -> tuple[QuarantinedRange, ...]:
    """A hole behind the last old segment is now one behind the last new one."""
    if not old:
        return tuple(ranges)
    last, end = old[-1], new[-1].size_bytes
    return tuple(
        replace(bad, segment=new[-1].file_name, position=end, end_position=end)
        if bad.segment == last.path.name and lies_behind(bad, last)
        else bad
        for bad in ranges
    )
