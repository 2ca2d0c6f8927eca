"""Makes a backup of a data directory, while the daemon runs.

Sealed segments never change, so the backup copies them unchanged. It also copies the acked part of
the active segment, as a sealed segment. If the daemon deletes or rewrites a segment during the
backup, the file of the segment is missing, and the backup examines the stream again. `_offsets` is
copied first, so that no checkpoint in the backup is past the end of its stream in the backup.

The backup's manifest is written last: if the backup is interrupted earlier, the directory does not
count as a backup.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from liftlog import __version__
from liftlog.errors import CorruptMetadata, InvalidArgument, StreamUnavailable
from liftlog.log.backup.files import (
    BackedUpFile,
    BackedUpStream,
    Backup,
    copy_file,
    describe_file,
    lost_in_holes,
)
from liftlog.log.backup.source import Committed, Source, look, loss_in_words, seal_active
from liftlog.log.data_dir import STREAMS_NAME, make_durable_directory
from liftlog.log.erased import clip
from liftlog.log.files.erased_file import ErasedEntry, read_erased_file
from liftlog.log.files.filesystem import FileSystem, OsFileSystem, ReadOnlyFileSystem, is_full
from liftlog.log.files.manifest import MANIFEST_NAME, QuarantinedRange, SegmentEntry
from liftlog.log.segment.index import index_path
from liftlog.log.segment.walk import is_covered
from liftlog.names import is_stream_name

logger = logging.getLogger("liftlog.log.backup")

OFFSETS_STREAM = "_offsets"
_FIRST = ("_deliveries", OFFSETS_STREAM)
"""Streams that are copied first: the journal of consumers and the checkpoints. Because of this
order, no position in them is beyond the end of its stream in the backup."""
_ROUNDS = 20
_CATCH_UP_ROUNDS = 3
"""Number of rounds of copying before the active segment is copied. Each round copies the segments
that were sealed during the previous round."""

Progress = Callable[[str, int, int], None]
"""A callback that receives the stream, the number of bytes copied, and the number of bytes found so
far."""


def create_backup(
    data_dir: Path,
    target: Path,
    *,
    created_ns: int,
    streams: frozenset[str] | None = None,
    committed: Mapping[str, Committed] | None = None,
    progress: Progress = lambda stream, done, total: None,
    source_fs: FileSystem | None = None,
    target_fs: FileSystem | None = None,
    boot_id: str | None = None,
) -> Backup:
    """Copy the acked records of `streams` (all if None) into `target`, which is empty or missing.

    `committed` gives the committed end of each replica. Determine the end of `_offsets` before the
    other ends, so that no checkpoint in the backup is past the end of its stream. Durable on
    return. Raises InvalidArgument if `target` exists and is not empty, StreamUnavailable if the end
    of a stream is unknown, CorruptMetadata for a stream without a manifest, OSError. After an error
    `target` is not a backup.
    """
    source = source_fs or ReadOnlyFileSystem()
    fs = target_fs or OsFileSystem()
    if fs.exists(target) and fs.list_directory(target):
        raise InvalidArgument(
            f"{target} is not empty", hint="make each backup in a directory of its own"
        )
    make_durable_directory(fs, target / STREAMS_NAME)
    done = []
    for name in _names(source, data_dir):
        if streams is not None and name not in streams:
            continue
        known = (committed or {}).get(name, Committed())
        copy = _StreamCopy(source, data_dir, fs, target, name, progress, boot_id, known)
        found = copy.run()
        if found is not None:
            done.append(found)
    fs.fsync_directory(target / STREAMS_NAME)
    backup = Backup(created_ns, __version__, tuple(done))
    backup.write(fs, target)
    return backup


def _names(fs: FileSystem, data_dir: Path) -> list[str]:
    found = fs.list_directory(data_dir / STREAMS_NAME)
    names = [name for name in found if is_stream_name(name, may_be_system=True)]
    return sorted(names, key=lambda name: (name not in _FIRST, name))


@dataclass(slots=True)
class _StreamCopy:
    """Copies one stream; each object is used once."""

    source: FileSystem
    data_dir: Path
    fs: FileSystem
    target: Path
    name: str
    progress: Progress
    boot_id: str | None
    committed: Committed
    copied: dict[str, tuple[SegmentEntry, list[BackedUpFile]]] = field(default_factory=dict)
    missing: set[str] = field(default_factory=set)
    lost: set[str] = field(default_factory=set)
    unreadable: dict[str, tuple[QuarantinedRange, ...]] = field(default_factory=dict)
    incarnation: str = ""
    done_bytes: int = 0

    @property
    def from_directory(self) -> Path:
        return self.data_dir / STREAMS_NAME / self.name

    @property
    def directory(self) -> Path:
        return self.target / STREAMS_NAME / self.name

    def run(self) -> BackedUpStream | None:
        """Copy the stream. Returns None if the stream does not exist or was deleted during the
        copy."""
        for number in range(_ROUNDS):
            found = look(self.source, self.data_dir, self.name, self.boot_id, self.committed)
            if found is None:
                self._forget_all()
                return None
            self.fs.make_directory(self.directory)
            if found.manifest.incarnation != self.incarnation:
                self._forget_all()  # the first round, or a stream that was created again
                self.fs.make_directory(self.directory)
                self.incarnation = found.manifest.incarnation
            more = self._copy_sealed(found)
            if more and number < _CATCH_UP_ROUNDS:
                continue
            if self._is_complete(found):
                finished = self._finish(found)
                if finished is not None:
                    return finished
        raise StreamUnavailable(f"stream {self.name} changes faster than it can be copied")

    def _copy_sealed(self, found: Source) -> bool:
        """Copy the sealed segments that are not copied yet. Returns True if it copied a segment."""
        wanted = [one for one in found.sealed if not self._has(one)]
        total = self.done_bytes + sum(entry.size_bytes for entry in wanted)
        for entry in wanted:
            if entry.file_name in self.lost:
                continue
            try:
                self.copied[entry.file_name] = (entry, self._copy_segment(entry, total))
                self.missing.discard(entry.file_name)
            except FileNotFoundError:
                # The file was deleted after the manifest was read. If the next manifest still lists
                # the file, the file is lost.
                if entry.file_name in self.missing:
                    self.lost.add(entry.file_name)
                self.missing.add(entry.file_name)
        return bool(wanted)

    def _has(self, entry: SegmentEntry) -> bool:
        there = self.copied.get(entry.file_name)
        return there is not None and there[0].size_bytes == entry.size_bytes

    def _is_complete(self, found: Source) -> bool:
        return all(self._has(one) or one.file_name in self.lost for one in found.sealed)

    def _copy_segment(self, entry: SegmentEntry, total: int) -> list[BackedUpFile]:
        begun = self.done_bytes

        def tell(size: int) -> None:
            self.done_bytes += size
            self.progress(self.name, self.done_bytes, total)

        path = self.from_directory / entry.file_name
        new = self.directory / entry.file_name
        holes: list[range] = []
        try:
            files = [copy_file((self.source, path), (self.fs, new), entry.size_bytes, tell, holes)]
        except FileNotFoundError:
            self.done_bytes = begun
            if not entry.size_bytes:
                return []  # this segment never held a record
            raise
        try:
            pair = (self.source, index_path(path)), (self.fs, index_path(new))
            files.append(copy_file(*pair))
        except OSError as error:
            if is_full(error):
                raise
            self._forget_index(index_path(new))  # the daemon rebuilds it when needed
        self.unreadable[entry.file_name] = lost_in_holes(
            self.fs, new, entry, holes, self.incarnation
        )
        return files

    def _forget_index(self, path: Path) -> None:
        if self.fs.exists(path):
            self.fs.unlink(path)

    def _finish(self, found: Source) -> BackedUpStream | None:
        """Seal the acked part of the active segment, and write the stream's manifest. Returns None
        if the daemon has deleted the active segment during the backup. The caller must then copy
        the segments after it."""
        manifest, end = found.manifest, found.end_offset
        active = seal_active(
            self.source, self.from_directory, self.fs, self.directory, found, self.missing
        )
        if active is None:
            return None
        self._forget_unlisted(found)
        unreadable = [
            bad
            for found_bad in self.unreadable.values()
            for bad in found_bad
            if not is_covered(bad.first_offset, bad.next_offset, manifest.quarantined)
        ]
        listed, _ = clip(manifest.erased, None, 0, end)
        try:
            erased = [self._copy_erased(entry) for entry in listed]
        except FileNotFoundError:
            return None  # another file has just replaced it
        fresh = SegmentEntry(end, manifest.unclaimed_generation)
        segments = [*found.sealed, *([active.entry] if active.entry else []), fresh]
        self.fs.open(self.directory / fresh.file_name, create=True).close()
        manifest = replace(
            manifest,
            segments=tuple(segments),
            high_watermark=end,
            reserved_offset=max(manifest.reserved_offset, end),
            epochs=tuple(one for one in manifest.epochs if one[1] <= end),
            quarantined=(*active.quarantined, *unreadable),
            cleaned_below=min(manifest.cleaned_below, end),
            tombstones_removed_below=min(manifest.tombstones_removed_below, end),
            acks_before_sync=False,
            generation=fresh.generation,
            erased=listed,
        )
        manifest.write(self.fs, self.directory, with_copy=False)  # syncs the directory too
        written = [file for entry, files in self.copied.values() for file in files]
        written += erased
        written += [
            describe_file(self.fs, self.directory / name)
            for name in (*active.file_names, fresh.file_name, MANIFEST_NAME)
        ]
        return BackedUpStream(
            self.name,
            manifest.incarnation,
            manifest.leader_epoch,
            manifest.log_start_offset,
            end,
            tuple(sorted(written, key=lambda file: file.name)),
            (
                *_known_losses(found),
                *self._missing_segments(found),
                *map(loss_in_words, unreadable),
                *active.damaged,
            ),
            found.may_lack,
        )

    def _copy_erased(self, entry: ErasedEntry) -> BackedUpFile:
        """Copy an erased file, durably. Raises FileNotFoundError, CorruptMetadata if both halves
        are damaged, OSError."""
        found = read_erased_file(self.source, self.from_directory, entry)
        if found.bits is None:
            if not self.source.exists(self.from_directory / entry.file_name):
                raise FileNotFoundError(entry.file_name)
            raise CorruptMetadata(
                f"{found.problem}; it says which records of stream {self.name} are erased"
            )
        name = entry.file_name
        return copy_file(
            (self.source, self.from_directory / name), (self.fs, self.directory / name)
        )

    def _missing_segments(self, found: Source) -> list[str]:
        """Return the segments that the manifest lists but whose files are missing. Leaves out
        segments that are fully quarantined."""
        return [
            f"the segment {one.file_name} is missing"
            for one in found.sealed
            if one.file_name in self.lost
            and not is_covered(one.base_offset, one.next_offset, found.manifest.quarantined)
        ]

    def _forget_unlisted(self, found: Source) -> None:
        """Delete the copies of segments that the daemon has deleted or rewritten since they were
        copied."""
        listed = {entry.file_name for entry in found.sealed}
        for name in [name for name in self.copied if name not in listed]:
            _, files = self.copied.pop(name)
            self.unreadable.pop(name, None)
            for file in files:
                self.fs.unlink(self.directory / file.name)

    def _forget_all(self) -> None:
        self.copied.clear()
        self.missing.clear()
        self.lost.clear()
        self.unreadable.clear()
        self.done_bytes = 0
        if self.fs.exists(self.directory):
            for name in self.fs.list_directory(self.directory):
                self.fs.unlink(self.directory / name)
            self.fs.remove_directory(self.directory)


def _known_losses(found: Source) -> list[str]:
    """Return descriptions of the quarantined ranges that retention has not reached yet."""
    manifest = found.manifest
    return [
        f"offsets {max(bad.first_offset, manifest.log_start_offset)} to "
        f"{min(bad.next_offset, found.end_offset) - 1} are lost: {bad.reason}"
        for bad in sorted(manifest.quarantined, key=lambda one: one.first_offset)
        if bad.is_loss
        and bad.next_offset > manifest.log_start_offset
        and bad.first_offset < found.end_offset
    ]
