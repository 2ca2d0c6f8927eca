"""The manifest lists the segments of a stream. Each write of the manifest commits a change: a roll,
a retention or a swap.

A file in the stream's directory that the manifest does not list is garbage. `metadata` belongs to
the layer above (the stream's settings, for example); the log stores it without using it.

The manifest exists twice, so that a flipped bit, an unreadable sector or an old file that an
operator restored by mistake loses no data. `manifest.copy` is renamed into place before `manifest`,
and `sequence` rises with every change. After a stop between the two renames, the two files differ,
and both are valid: all segment files that the newer manifest lists were already on disk, and
clients could not see the change yet. A start uses the newer manifest. A manifest without a sequence
comes from a version that does not write copies.

A manifest that lists erased files (`erased_file.py`) has version 2, so that a program which does
not know them refuses the log instead of showing erased records. Every other manifest has version 1.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from pathlib import Path
from typing import Any

from liftlog.errors import CorruptMetadata, UnsupportedFormat
from liftlog.log.files.acked_end import known_acked_end
from liftlog.log.files.checkpoint_file import (
    checkpoint_bytes,
    read_checkpoint_file,
    to_json,
    write_checkpoint_text,
)
from liftlog.log.files.erased_file import ErasedEntry
from liftlog.log.files.filesystem import FileSystem, write_all
from liftlog.log.files.unreadable import is_passing

MANIFEST_NAME = "manifest"
COPY_NAME = "manifest.copy"
KIND = "manifest"
_NEWEST_VERSION = 2
SEGMENT_SUFFIX = ".log"
LEAST_RESERVED = 1000
MOST_RESERVED = 1_000_000
"""Maximum number of offsets that one write of the manifest reserves. In a mode that sends acks
before the sync, a slow stream reserves fewer offsets: after a power cut, all reserved offsets count
as possibly acked."""


@dataclass(frozen=True, slots=True)
class SegmentEntry:
    """One listed segment. The last segment of a manifest is the active one; only its base and
    generation are valid."""

    base_offset: int
    generation: int = 0
    size_bytes: int = 0
    next_offset: int = 0
    record_count: int = 0
    max_timestamp_ns: int = 0
    delete_horizon_ns: int | None = None

    @property
    def file_name(self) -> str:
        stem = f"{self.base_offset:020d}"
        return f"{stem}.{self.generation}.log" if self.generation else f"{stem}.log"

    def to_json(self) -> str:
        """Return the entry in the form that `json` would write. One call of `json` for a manifest
        with many thousands of entries would block the event loop."""
        horizon = self.delete_horizon_ns
        return (
            f'{{"base_offset":{self.base_offset},'
            f'"delete_horizon_ns":{"null" if horizon is None else horizon},'
            f'"file":"{self.file_name}","generation":{self.generation},'
            f'"max_timestamp_ns":{self.max_timestamp_ns},"next_offset":{self.next_offset},'
            f'"record_count":{self.record_count},"size_bytes":{self.size_bytes}}}'
        )


SKIPPED = "offsets skipped after an unreadable tail that was not acked"
"""Reason of a skipped range: no record in it was acked, but the offsets are not assigned again, to
be safe."""

NOT_SYNCED = "not yet fsynced: acked before the fsync, and lost when the machine stopped"
"""Reason of a range in which acked records may be missing, because with `durability: interval` or
`os` acks are sent before records are durable. The range ends at the last offset that may have been
assigned."""


@dataclass(frozen=True, slots=True)
class QuarantinedRange:
    """A range of lost offsets, [first_offset, next_offset), and the place of their bytes if the
    bytes exist."""

    first_offset: int
    next_offset: int
    segment: str
    position: int
    end_position: int
    reason: str

    @property
    def is_loss(self) -> bool:
        """True if the range may have held acked records."""
        return self.reason != SKIPPED

    @property
    def is_cut_tail(self) -> bool:
        """True if an earlier start found a bad tail in this range and dropped its bytes."""
        return self.position == self.end_position and self.reason in (SKIPPED, NOT_SYNCED)

    def widened(self, other: QuarantinedRange) -> QuarantinedRange:
        """Return a range that covers this range and `other`, with the reason of this range."""
        return replace(
            self,
            first_offset=min(self.first_offset, other.first_offset),
            next_offset=max(self.next_offset, other.next_offset),
            position=min(self.position, other.position),
            end_position=max(self.end_position, other.end_position),
        )


@dataclass(frozen=True, slots=True)
class Manifest:
    incarnation: str
    leader_epoch: int
    log_start_offset: int
    reserved_offset: int
    segments: tuple[SegmentEntry, ...]
    epochs: tuple[tuple[int, int], ...]  # (epoch, its first offset), ascending
    high_watermark: int = 0
    quarantined: tuple[QuarantinedRange, ...] = ()
    tombstones_removed_below: int = 0
    rolled_up_below: int | None = None  # the erased files have all that records below it hide
    cleaned_below: int = 0  # compaction has processed all offsets below this one
    acks_before_sync: bool = False  # acks may have been sent for records in the page cache
    generation: int = 0  # of new segment files; truncation raises it, so that no name is reused
    replicated: bool = False  # True if sealed segments may hold uncommitted records
    incomplete: str = ""  # why records that this replica confirmed may be missing
    metadata: dict[str, Any] = field(default_factory=dict)
    erased: tuple[ErasedEntry, ...] = ()  # the files that hold the offsets of erased records
    sequence: int = 1  # rises with every change; 0 if an older version wrote it

    @property
    def lineage(self) -> str:
        """The id of one history of offsets. Recovery points and acks of another lineage do not
        apply.

        Truncating the end of a log makes offsets available again, and so begins a new lineage.
        """
        return f"{self.incarnation}:{self.generation}" if self.generation else self.incarnation

    @property
    def unclaimed_generation(self) -> int:
        """A generation that neither a segment file nor a running rewrite uses.

        A rewrite uses the generation after the highest one of its sources, and overwrites any file
        of that name. After a truncation, such a rewrite may still be running, although its result
        is no longer usable.
        """
        return max(self.generation, *(one.generation for one in self.segments)) + 2

    @property
    def committed_segments(self) -> tuple[SegmentEntry, ...]:
        """The sealed segments in which all records are certainly committed."""
        sealed = self.segments[:-1]
        if not self.replicated:
            return sealed
        return tuple(one for one in sealed if one.next_offset <= self.high_watermark)

    def quarantined_in(self, file_name: str) -> list[QuarantinedRange]:
        """Return the quarantined ranges of one segment file."""
        return [bad for bad in self.quarantined if bad.segment == file_name]

    def with_changes(self, **changes: Any) -> Manifest:
        return replace(self, sequence=self.sequence + 1, **changes)

    def write(self, fs: FileSystem, directory: Path, *, with_copy: bool = True) -> None:
        """Write this as the manifest of `directory`; durable on return. Raises OSError."""
        copy = directory / COPY_NAME if with_copy else None
        write_checkpoint_text(
            fs, directory / MANIFEST_NAME, KIND, self._to_json(), version=self._version, copy=copy
        )

    def write_first(self, fs: FileSystem, directory: Path) -> None:
        """Write this as the first manifest of a new stream; durable on return, with the names of
        all files in `directory`.

        The directory is synced after the content of the manifest, and before its rename: the name
        of the segment must be durable first, and the file system has written it with the content of
        the manifest. The copy is written without a sync: after a power cut it may be damaged or
        missing, until `sync_copy` or the next write of the manifest. The next start writes it
        again. Raises OSError."""
        text = self._to_json()
        write_checkpoint_text(
            fs,
            directory / MANIFEST_NAME,
            KIND,
            text,
            before_rename=lambda: fs.fsync_directory(directory),
        )
        file = fs.open(directory / COPY_NAME, create=True)
        try:
            write_all(file, [checkpoint_bytes(KIND, text)], 0)
        finally:
            file.close()

    @property
    def _version(self) -> int:
        return _NEWEST_VERSION if self.erased else 1

    def _to_json(self) -> str:
        content = {
            "sequence": self.sequence,
            "incarnation": self.incarnation,
            "leader_epoch": self.leader_epoch,
            "log_start_offset": self.log_start_offset,
            "reserved_offset": self.reserved_offset,
            "high_watermark": self.high_watermark,
            "tombstones_removed_below": self.tombstones_removed_below,
            "cleaned_below": self.cleaned_below,
            "acks_before_sync": self.acks_before_sync,
            "generation": self.generation,
            "epochs": [list(entry) for entry in self.epochs],
            "segments": [],
            "quarantined": [
                {name: getattr(q, name) for name in QuarantinedRange.__slots__}
                for q in self.quarantined
            ],
            "metadata": self.metadata,
        }
        if self.replicated:
            content["replicated"] = True
        if self.rolled_up_below is not None:
            content["rolled_up_below"] = self.rolled_up_below
        if self.incomplete:
            content["incomplete"] = self.incomplete
        if self.erased:
            content["erased"] = [
                {name: getattr(one, name) for name in ErasedEntry.__slots__} for one in self.erased
            ]
        # The keys are ordered so that only numbers follow this key.
        before, _, behind = to_json(content).rpartition('"segments":[]')
        entries = ",".join([entry.to_json() for entry in self.segments])
        return f'{before}"segments":[{entries}]{behind}'


def epochs_from(epochs: Sequence[tuple[int, int]], offset: int) -> tuple[tuple[int, int], ...]:
    """Return the epochs except those that ended at or below `offset`."""
    ends = [start for _, start in epochs[1:]]
    return tuple(entry for i, entry in enumerate(epochs) if i == len(ends) or ends[i] > offset)


def epochs_below(epochs: Sequence[tuple[int, int]], offset: int) -> tuple[tuple[int, int], ...]:
    """Return the epochs that began below `offset`, and so can have records below it."""
    return tuple(entry for entry in epochs if entry[1] < offset)


def ranges_below(ranges: Sequence[QuarantinedRange], offset: int) -> tuple[QuarantinedRange, ...]:
    """Return the parts of the ranges that lie below `offset`."""
    return tuple(
        replace(bad, next_offset=min(bad.next_offset, offset))
        for bad in ranges
        if bad.first_offset < offset
    )


def epoch_before(epochs: Sequence[tuple[int, int]], offset: int) -> int:
    """Return the epoch of the record before `offset`; 0 if no epoch began below `offset`."""
    found = 0
    for epoch, start in epochs:
        if start < offset:
            found = max(found, epoch)
    return found


def end_of_epoch(manifest: Manifest, epoch: int, log_end: int) -> tuple[int, int]:
    """See `Log.end_of_epoch`."""
    epochs = manifest.epochs
    following = bisect_right(epochs, epoch, key=itemgetter(0))
    end = epochs[following][1] if following < len(epochs) else log_end
    if following:
        return epochs[following - 1][0], min(end, log_end)
    return 0, end if epochs else manifest.segments[0].base_offset


def read_manifest(fs: FileSystem, directory: Path) -> Manifest | None:
    """Read the manifest of `directory`, or its copy if the manifest is damaged. Returns None if
    both are missing.

    Raises CorruptMetadata if neither can be read, UnsupportedFormat, OSError.
    """
    try:
        manifest = _read(fs, directory, MANIFEST_NAME)
    except (CorruptMetadata, UnsupportedFormat) as error:
        copy = _read_copy(fs, directory)[0]
        is_newer = isinstance(error, UnsupportedFormat) and not _same_content(fs, directory)
        if copy is None or is_newer:
            raise
        return copy
    return _read_copy(fs, directory)[0] if manifest is None else manifest


@dataclass(frozen=True, slots=True)
class FoundManifest:
    """The valid manifest of a directory, and the problems of its two files."""

    manifest: Manifest | None
    problems: tuple[str, ...] = ()
    is_written_twice: bool = True  # both files contain it


def sync_copy(fs: FileSystem, directory: Path) -> None:
    """Make the copy that `Manifest.write_first` has written durable. Raises OSError."""
    file = fs.open(directory / COPY_NAME)
    try:
        file.fdatasync()
    finally:
        file.close()
    fs.fsync_directory(directory)


def find_manifest(fs: FileSystem, directory: Path) -> FoundManifest:
    """Return the newer of the two copies, for a caller that may write: a start or a repair.

    Raises the errors of `read_manifest`.
    """
    problems: list[str] = []
    main: Manifest | None = None
    failure: CorruptMetadata | None = None
    try:
        main = _read(fs, directory, MANIFEST_NAME)
    except UnsupportedFormat as error:
        if not _same_content(fs, directory):  # damage, not a newer version
            raise
        failure = CorruptMetadata(error.message)
        problems.append(f"the version of {MANIFEST_NAME} is damaged")
    except CorruptMetadata as error:
        failure = error
        problems.append(f"{MANIFEST_NAME} cannot be read: {error}")
    copy, problem = _read_copy(fs, directory)
    if problem:
        problems.append(problem)
    if main is None:
        if copy is None and failure is not None:
            raise failure
        if copy is not None and failure is None:
            problems.append(f"{MANIFEST_NAME} is missing")
        return FoundManifest(copy, tuple(problems), is_written_twice=False)
    if copy is None:
        return FoundManifest(main, tuple(problems), is_written_twice=False)
    if copy.incarnation != main.incarnation:
        # One of the two belongs to another stream, or to an earlier stream of this name. The slot
        # shows which one does.
        right, wrong = main, COPY_NAME
        ours = [known_acked_end(fs, directory, one.lineage) is not None for one in (main, copy)]
        if ours == [False, True]:
            right, wrong = copy, MANIFEST_NAME
        problems.append(f"{wrong} belongs to another stream")
        return FoundManifest(right, tuple(problems), is_written_twice=False)
    if not main.sequence:
        # An older version of liftlog wrote the manifest after the copy was written. The next
        # manifest needs a higher sequence than the copy, in case a power cut undoes the rename of
        # the next copy.
        newest = replace(main, sequence=copy.sequence)
        return FoundManifest(newest, tuple(problems), is_written_twice=False)
    if copy.sequence > main.sequence + 1:  # a stop between the two renames leaves a difference of 1
        problems.append(
            f"{MANIFEST_NAME} is older than its copy (change {main.sequence}, not {copy.sequence})"
        )
    newest = copy if copy.sequence > main.sequence else main
    return FoundManifest(newest, tuple(problems), is_written_twice=copy == main)


def _read_copy(fs: FileSystem, directory: Path) -> tuple[Manifest | None, str]:
    try:
        return _read(fs, directory, COPY_NAME), ""
    except (CorruptMetadata, UnsupportedFormat, OSError) as error:
        if isinstance(error, OSError) and is_passing(error):
            raise
        return None, f"{COPY_NAME} cannot be read: {error}"


def _same_content(fs: FileSystem, directory: Path) -> bool:
    """Return True if manifest and copy differ at most in their first line, and the copy is
    readable."""
    copy = _read_copy(fs, directory)[0]
    if copy is None:
        return False
    contents = []
    for name in (MANIFEST_NAME, COPY_NAME):
        file = fs.open(directory / name, writable=False)
        try:
            contents.append(file.pread(file.size(), 0).partition(b"\n")[2])
        finally:
            file.close()
    return contents[0] == contents[1]


def _read(fs: FileSystem, directory: Path, name: str) -> Manifest | None:
    content = read_checkpoint_file(fs, directory / name, KIND, _NEWEST_VERSION)
    if content is None:
        return None
    try:
        return Manifest(
            incarnation=content["incarnation"],
            leader_epoch=content["leader_epoch"],
            log_start_offset=content["log_start_offset"],
            reserved_offset=content["reserved_offset"],
            high_watermark=content["high_watermark"],
            tombstones_removed_below=content["tombstones_removed_below"],
            rolled_up_below=content.get("rolled_up_below"),
            cleaned_below=content.get("cleaned_below", 0),
            acks_before_sync=content["acks_before_sync"],
            generation=content.get("generation", 0),
            epochs=tuple((epoch, offset) for epoch, offset in content["epochs"]),
            segments=tuple(
                SegmentEntry(**{name: entry[name] for name in SegmentEntry.__slots__})
                for entry in content["segments"]
            ),
            quarantined=tuple(
                QuarantinedRange(**{name: entry[name] for name in QuarantinedRange.__slots__})
                for entry in content["quarantined"]
            ),
            replicated=content.get("replicated", False),
            incomplete=content.get("incomplete", ""),
            metadata=content["metadata"],
            erased=tuple(
                ErasedEntry(**{name: entry[name] for name in ErasedEntry.__slots__})
                for entry in content.get("erased", ())
            ),
            sequence=content.get("sequence", 0),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptMetadata(f"the {name} in {directory.name} lacks a field: {error}") from error
