"""The state of a log at one moment, and the only functions that replace it.

Readers use a `ReadView`, an immutable value that refers to everything they need. `LogState` holds
the newest view and the active segment (`active_segment.py`), and replaces the view as a whole. A
reader in any thread takes one reference to the view and uses only that.

Three rules keep the view correct:

1. The manifest on disk changes first, the view second. If the process stops between the two
   changes, the new state is on disk, but no reader or publisher has used it.
2. Segments and manifest change under `lock`, so two changes never start from the same view.
3. The high watermark moves without `lock`: a commit must not wait for the manifest write of another
   thread. The lock `_swapping` protects only the replacement of the view, so that such a move and a
   change under `lock` never undo each other.
"""

from __future__ import annotations

import logging
import threading
import uuid
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from liftlog.errors import StorageError
from liftlog.log.active_segment import ActiveSegment, LogEnd
from liftlog.log.environment import IndexCache, LogConfig, LogEnvironment
from liftlog.log.erased import ErasedSet, clip
from liftlog.log.files.erased_file import ErasedEntry
from liftlog.log.files.filesystem import File, storage_errors
from liftlog.log.files.manifest import (
    LEAST_RESERVED,
    MOST_RESERVED,
    Manifest,
    QuarantinedRange,
    SegmentEntry,
)
from liftlog.log.segment.derived import files_of
from liftlog.log.segment.index import IndexEntry, SparseIndex
from liftlog.log.segment.segment import Segment

logger = logging.getLogger("liftlog.log")

_SAME = ErasedSet({})
"""Stands for the erased set of the present view."""
NOTHING = ErasedSet({})


class ReadView(NamedTuple):
    """A consistent state of a log; never changed, only replaced.

    The last segment is the active one. This segment and its index grow while readers use them;
    readers do not read beyond `committed` in either.
    """

    committed: LogEnd
    segments: tuple[Segment, ...]
    manifest: Manifest
    active_index: SparseIndex
    erased: ErasedSet | None = None
    """The offsets of erased records; None if the manifest lists no erased file."""
    erased_total: int = 0
    """Number of records that were erased since the log was opened. Unlike the size of `erased`, it
    does not fall when a rewrite removes bytes."""

    def readable_end(self, segment: Segment) -> IndexEntry:
        """Return the position up to which readers may read `segment`."""
        committed = self.committed
        # A sealed segment that is committed to its end may have been rewritten since then. In this
        # case `committed` holds a position in the old file, and the new file needs no limit.
        if segment.sealed and segment.next_offset <= committed.offset:
            return IndexEntry(segment.next_offset, segment.size_bytes)
        if segment.base_offset == committed.segment_base:
            return IndexEntry(committed.offset, committed.position)
        return IndexEntry(segment.base_offset, 0)  # the segment begins at or after the HW

    def sealed_segment_at(self, offset: int) -> Segment | None:
        """Return the sealed segment that holds `offset`; None if it has recorded damage."""
        at = bisect_right(self.segments, offset, key=lambda one: one.base_offset) - 1
        segment = self.segments[at]
        if at < 0 or not segment.sealed or segment.next_offset <= offset or self.damaged(segment):
            return None
        return segment

    def damaged(self, segment: Segment) -> list[QuarantinedRange]:
        return self.manifest.quarantined_in(segment.path.name)

    def index_of(self, segment: Segment, file: File, cache: IndexCache) -> SparseIndex:
        """Return the index of one of the segments. May read or rebuild the index of a sealed
        segment."""
        if not segment.sealed:
            return self.active_index
        return cache.get(segment, file, self.manifest.incarnation, self.damaged(segment))

    @property
    def first_stored_offset(self) -> int:
        """The first offset of the oldest segment, or of a gap before it; not above the log
        start."""
        return min(self.segments[0].base_offset, self.manifest.log_start_offset)

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.segments)

    @property
    def left_bytes(self) -> int:
        """The size of the segments without the share of erased records, in proportion to their
        number."""
        if self.erased is None:
            return self.size_bytes
        return sum(
            segment.size_bytes * self.remaining_records(segment) // max(segment.record_count, 1)
            for segment in self.segments
        )

    @property
    def max_timestamp_ns(self) -> int:
        return max(segment.max_timestamp_ns for segment in self.segments)

    @property
    def record_count(self) -> int:
        """The number of readable records; an upper bound if a compacted segment is damaged or was
        cut."""
        segments, manifest = self.segments, self.manifest
        start, end = manifest.log_start_offset, self.committed.offset
        total = sum([segment.record_count for segment in segments])
        # Segments that are readable in full take a fast path: a log may have many thousands of
        # them, and the event loop calls this.
        lost = dict.fromkeys(self._cut_places(start, end), 0)
        for bad in manifest.quarantined:
            i = max(_index_from(segments, bad.first_offset + 1) - 1, 0)
            while i < len(segments) and segments[i].base_offset < bad.next_offset:
                low, high = max(segments[i].base_offset, start), min(segments[i].next_offset, end)
                gone = min(bad.next_offset, high) - max(bad.first_offset, low)
                lost[i] = lost.get(i, 0) + max(gone, 0)
                i += 1
        for i, count in lost.items():
            low, high = max(segments[i].base_offset, start), min(segments[i].next_offset, end)
            total -= max(segments[i].record_count - max(high - low - count, 0), 0)
        if self.erased is not None:
            hidden = self.erased.count_in(start, end)
            for bad in manifest.quarantined:  # these are subtracted already
                low, high = max(bad.first_offset, start), min(bad.next_offset, end)
                hidden -= self.erased.count_in(low, high)
            total = max(total - hidden, 0)
        return total

    def _cut_places(self, start: int, end: int) -> list[int]:
        """Return the places, in `segments`, of the segments that may have offsets outside [start,
        end)."""
        below_start = _index_from(self.segments, start)
        past_end = max(_index_from(self.segments, end) - 1, 0)
        return [*range(below_start), *range(past_end, len(self.segments))]

    def count_between(self, first_offset: int, next_offset: int) -> int | None:
        """Return the number of readable records in [first_offset, next_offset). The range must not
        extend above the high watermark. Returns None if offsets are missing for another reason than
        an erasure. Only a read can then count the records."""
        start, end = self.manifest.log_start_offset, self.committed.offset
        hidden = 0 if self.erased is None else self.erased.count_in(start, end)
        if self.record_count + hidden != end - start or (hidden and self.manifest.quarantined):
            return None
        for segment in [self.segments[place] for place in self._cut_places(start, end)]:
            # `record_count` is an upper bound if one of these segments has gaps.
            low, high = max(segment.base_offset, start), min(segment.next_offset, end)
            offsets = segment.next_offset - segment.base_offset
            if low < high and high - low < offsets and segment.record_count != offsets:
                return None
        first_offset = max(first_offset, start)
        gone = 0 if self.erased is None else self.erased.count_in(first_offset, next_offset)
        return max(next_offset - first_offset - gone, 0)

    def hides(self, offset: int) -> bool:
        """Return True if the record at `offset` is erased, or if it is unknown whether it is
        erased."""
        return self.erased is not None and self.erased.next_at(offset) == offset

    def remaining_records(self, segment: Segment) -> int:
        """Return the number of stored records of a segment that are not erased."""
        if self.erased is None:
            return segment.record_count
        hidden = self.erased.count_in(segment.base_offset, segment.next_offset)
        return max(segment.record_count - hidden, 0)

    @property
    def damaged_files(self) -> frozenset[str]:
        """Names of segment files that hold quarantined bytes; they are never rewritten."""
        found: set[str] = set()
        for bad in self.manifest.quarantined:
            base_offset = int(bad.segment.partition(".")[0])
            i = _index_from(self.segments, base_offset)
            segment = self.segments[i] if i < len(self.segments) else None
            if segment is None or segment.path.name != bad.segment:
                continue
            if not lies_behind(bad, segment):
                found.add(bad.segment)
        return frozenset(found)


class LogState:
    """Holds the newest view and the active segment, and changes both.

    Any thread may read `view`. `active` belongs to the current writer, which replaces it under
    `lock`; other threads hold `lock` to read it.
    """

    def __init__(
        self,
        directory: Path,
        environment: LogEnvironment,
        config: LogConfig,
        manifest: Manifest,
        sealed: Sequence[Segment],
        active: ActiveSegment,
        *,
        committed: LogEnd | None = None,
        erased: ErasedSet | None = None,
    ) -> None:
        """Make the state from its parts. Without `committed`, all records count as committed.
        `erased` is the content of the erased files that `manifest` lists."""
        self.directory = directory
        self.name = directory.name
        self.environment = environment
        self.config = config
        self.active = active
        segments = (*sealed, active.segment)
        self.view = ReadView(committed or active.end, segments, manifest, active.index, erased)
        self.lock = threading.RLock()
        self.manifest_in_doubt = False
        self.copy_in_doubt = False
        """True if a power cut may destroy the copy of the manifest; see `Manifest.write_first`."""
        self.closed = False
        self.unlisted = NOTHING
        """The erased offsets that no file lists yet, because a committed record hides them; they
        also belong to the set of the view. Changes under `_swapping`."""
        self._swapping = threading.Lock()

    @classmethod
    def create(
        cls,
        directory: Path,
        environment: LogEnvironment,
        config: LogConfig,
        initial_offset: int,
        metadata: dict[str, Any],
        incarnation: str | None = None,
        sync_parent: Callable[[], None] | None = None,
    ) -> LogState:
        """Create a new log on disk and return its state. Durable on return. The manifest is renamed
        into place last: a directory without a manifest counts as an unfinished creation. Until the
        parent directory is synced at the end, the whole directory may be missing after a power cut
        (`DataDir.open` syncs the parent after a kill).
        `sync_parent` makes this sync; other creations may share it. Raises StorageError, DiskFull.
        """
        fs = environment.fs
        with storage_errors(f"creating {directory.name}"):
            fs.make_directory(directory)
            entry = SegmentEntry(base_offset=initial_offset, next_offset=initial_offset)
            manifest = Manifest(
                incarnation=incarnation or uuid.uuid4().hex,
                leader_epoch=1,
                log_start_offset=initial_offset,
                reserved_offset=initial_offset + MOST_RESERVED,
                high_watermark=initial_offset,
                segments=(entry,),
                epochs=((1, initial_offset),),
                replicated=config.replicated,
                metadata=metadata,
            )
            segment = Segment(directory, entry, sealed=False)
            file = fs.open(segment.path, create=True)
            try:
                manifest.write_first(fs, directory)
                if sync_parent is None:
                    fs.fsync_directory(directory.parent)
                else:
                    sync_parent()
            except BaseException:
                file.close()
                raise
            active = ActiveSegment(segment, file, SparseIndex(initial_offset))
            state = cls(directory, environment, config, manifest, (), active)
            state.copy_in_doubt = True
            return state

    @property
    def written_view(self) -> ReadView:
        """Return the newest view, extended from the high watermark to the end of the written bytes.
        Other replicas and maintenance jobs use this view; consumers never do. Any thread may call
        it."""
        while True:
            view, active = self.view, self.active
            if active.segment is view.segments[-1]:  # else `begin_segment` is replacing both
                return view._replace(committed=active.end)

    # --- the manifest ---

    def write_manifest(self, manifest: Manifest) -> None:
        """Write the manifest to disk, without changing the view. Raises OSError.

        The write may fail after the rename, so the disk may already contain the new manifest. In
        this case no append is allowed before `confirm_manifest` has written the manifest of the
        view again. Otherwise appended records could be lost: the manifest on disk may list the
        active segment as sealed, and the next start ignores bytes beyond the end of a sealed
        segment.
        """
        if self.closed:
            # Another process may use the directory by now.
            raise StorageError(f"the log of {self.name} is closed")
        try:
            manifest.write(self.environment.fs, self.directory)
        except OSError:
            self.manifest_in_doubt = True
            raise
        self.manifest_in_doubt = self.copy_in_doubt = False

    def confirm_manifest(self) -> None:
        """Write the manifest of the view again if the disk may contain another manifest. Raises
        OSError."""
        if self.manifest_in_doubt:
            with self.lock:
                self.write_manifest(self.view.manifest)

    def store(
        self,
        manifest: Manifest,
        segments: tuple[Segment, ...] | None = None,
        erased: ErasedSet | None = _SAME,
        *,
        settled: ErasedSet = NOTHING,
    ) -> None:
        """Write `manifest` and put it into the view. If the segments change, `segments` are the new
        segments; the active segment stays the same. If `manifest` lists other erased files than
        before, `erased` is their content. `settled` are offsets that these files list, or whose
        records do not exist any more. The caller holds `lock`. Raises OSError; after an error the
        view is unchanged.
        """
        self.write_manifest(manifest)
        with self._swapping:
            before = self.view
            self.unlisted -= settled
            hidden = before.erased if erased is _SAME else self._with_unlisted(erased)
            total = before.erased_total
            if hidden is not before.erased:
                total += max(len(hidden or ()) - len(before.erased or ()), 0)
            listed = before.segments if segments is None else segments
            rest = manifest, before.active_index, hidden, total
            self.view = ReadView(before.committed, listed, *rest)

    def _with_unlisted(self, erased: ErasedSet | None) -> ErasedSet | None:
        """Return a set that was made from an earlier view, with the offsets that were hidden since
        then. The caller holds `_swapping`."""
        return (erased or NOTHING) | self.unlisted if self.unlisted else erased

    def hidden_now(self) -> tuple[ReadView, ErasedSet]:
        """Return the view, and the part of its erased offsets that no file lists yet."""
        with self._swapping:
            return self.view, self.unlisted

    def rolled_up_below(self, end: int) -> int | None:
        """Return the value of this field for a manifest of a log that ends at `end`."""
        with self._swapping:
            view, before = self.view, self.view.manifest.rolled_up_below
            if self.config.rolls_up and not self.unlisted:
                before = view.committed.offset
            elif not self.unlisted and view.committed.offset >= end:
                return None  # the log does not roll up any more
            return None if before is None else min(before, end)

    # --- the two ends ---

    def move_high_watermark(self, end: LogEnd, hidden: ErasedSet | None = None) -> None:
        """Let readers read up to `end`, the end of an append. Only the current writer calls it.
        `hidden` are the offsets of older records that the new ones hide. No reader gets a record
        and one that it hides from the same view."""
        with self._swapping:
            if hidden:
                self.unlisted = self.unlisted | hidden
                view = self.view
                after = hidden if view.erased is None else view.erased | hidden
                total = view.erased_total + len(after) - len(view.erased or ())
                self.view = view._replace(committed=end, erased=after, erased_total=total)
                return
            # This runs once per commit. The constructor of the NamedTuple would take twice as long.
            self.view = tuple.__new__(ReadView, (end, *self.view[1:]))

    def begin_segment(
        self,
        kept: tuple[Segment, ...],
        base_offset: int,
        *,
        is_committed: bool = False,
        **changes: Any,
    ) -> None:
        """Replace the segments of the log by the sealed ones in `kept` and a new, empty active one.

        With `is_committed` the high watermark moves to `base_offset`, because the remaining records
        below `base_offset` all count as committed. `changes` are new values of other manifest
        fields. Only the current writer calls it, and holds `lock`. Raises OSError; after an error
        the view and the active segment are unchanged.

        If the process stops before the manifest is renamed, the next start finds the old manifest,
        which lists the old segments, and removes the new file. If it stops later, all files that
        the new manifest lists are on disk: the caller has synced the segments that it seals, and
        the directory is fsynced before the manifest is written. Without this fsync, a power cut
        could keep the new manifest and lose the name of the new file. Files that are no longer
        listed are removed last.
        """
        view, old = self.view, self.active
        manifest = view.manifest
        generation: int = changes.get("generation", manifest.generation)
        if base_offset == old.segment.base_offset:
            # A new file of the same name would truncate the old one while the manifest still lists
            # it.
            generation = max(generation, old.segment.generation + 1)
        entry = SegmentEntry(base_offset, generation, next_offset=base_offset)
        ahead = LEAST_RESERVED if manifest.acks_before_sync else MOST_RESERVED
        # Offsets from `base_offset` on will be assigned to new records, which are not erased.
        first_offset = kept[0].base_offset if kept else base_offset
        listed_erased, erased = clip(manifest.erased, view.erased, first_offset, base_offset)
        fields = {
            "erased": listed_erased,
            "segments": (*(segment.entry() for segment in kept), entry),
            "high_watermark": view.committed.offset,
            "replicated": self.config.replicated,
            "reserved_offset": max(manifest.reserved_offset, base_offset + ahead),
            "rolled_up_below": self.rolled_up_below(base_offset),
        }
        manifest = manifest.with_changes(**(fields | changes))
        fs = self.environment.fs
        file = fs.open(self.directory / entry.file_name, create=True)
        try:
            fs.fsync_directory(self.directory)
            self.write_manifest(manifest)
        except BaseException:
            file.close()
            raise
        segment = Segment(self.directory, entry, sealed=False)
        active = ActiveSegment(segment, file, SparseIndex(base_offset))
        with self._swapping:
            committed = self.view.committed
            if is_committed or committed.offset == base_offset:
                committed = active.end
            self.unlisted = self.unlisted.within(0, base_offset)
            erased = self._with_unlisted(erased)
            rest = (*kept, segment), manifest, active.index, erased, view.erased_total
            self.view = ReadView(committed, *rest)
        self.active = active
        old.file.close()
        self.remove_erased_files(view.manifest.erased)
        listed = {one.path for one in kept}
        for one in view.segments:
            if one.path not in listed:
                self.remove_files(one)

    def remove_files(self, segment: Segment) -> int:
        """Unlink the files of a segment that the manifest no longer lists; return the segment's
        size in bytes. The next start removes files that cannot be removed now."""
        self.environment.indexes.drop(segment.path)
        for path in files_of(segment.path):
            try:
                self.environment.pool.remove(path)
            except OSError as error:
                logger.warning("file-not-removed path=%s error=%s", path, error)
        return segment.size_bytes

    def remove_erased_files(self, entries: Sequence[ErasedEntry]) -> None:
        """Unlink the given erased files, except files that the manifest still lists. The next start
        removes files that cannot be removed now."""
        listed = {one.file_name for one in self.view.manifest.erased}
        for name in {one.file_name for one in entries} - listed:
            try:
                self.environment.fs.unlink(self.directory / name)
            except OSError as error:
                logger.warning("file-not-removed file=%s error=%s", name, error)


def _index_from(segments: Sequence[Segment], offset: int) -> int:
    """Return the place, in `segments`, of the first one that begins at or after `offset`."""
    return bisect_left(segments, offset, key=lambda segment: segment.base_offset)


def lies_behind(bad: QuarantinedRange, segment: Segment) -> bool:
    """Return True if the range contains only offsets after the segment, and none of the segment's
    bytes."""
    return bad.first_offset >= segment.next_offset and bad.end_position == bad.position
