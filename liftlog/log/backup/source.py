"""Determines the part of a stream to copy, while a daemon may append, roll, rewrite and delete.

The part ends at the acked end at the time of reading. If the daemon runs, or was killed since the
last boot, the acked-end slot holds the exact value. If the daemon was stopped cleanly, the clean
marker holds the acked end. Otherwise the end is unknown until a recovery has examined the tail of
the log, and no backup is possible.

For a replica, the end is its high watermark, because records below the offset in its slot may never
be committed. The high watermark in the files may be half a minute old; `Committed` holds the
current end, as reported by the daemon. If a stream has only one replica, the slot is exact, too.

The slot is read before the manifest, so a segment that was rolled in between is already sealed in
the manifest. Therefore the part of the active segment below the end is complete, whatever the
daemon writes later. The backup stores that part as a sealed segment.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace
from pathlib import Path

from liftlog.errors import CorruptMetadata, StreamUnavailable
from liftlog.log.backup.files import copy_file, lost_in_holes
from liftlog.log.data_dir import STREAMS_NAME, read_known_states
from liftlog.log.files.acked_end import AckedEnd, known_acked_end
from liftlog.log.files.filesystem import File, FileSystem
from liftlog.log.files.manifest import Manifest, QuarantinedRange, SegmentEntry, read_manifest
from liftlog.log.segment.index import IndexEntry, SparseIndex, index_path, write_index
from liftlog.log.segment.resync import is_whole
from liftlog.log.segment.segment import SteppedOver, walk_batches
from liftlog.log.segment.tail import find_data_end
from liftlog.log.segment.walk import is_covered
from liftlog.records.place import Epochs

_TRIES = 100
_NOT_ASKED = (
    "the daemon was not asked how far it is committed, and what is stored of that may be half a "
    "minute old"
)


@dataclass(frozen=True, slots=True)
class Committed:
    """The committed end of a replica at this moment, as reported by its daemon.

    `end` is None if the daemon did not report the end. `behind` is the reason why acked records may
    be missing; empty if no acked record is missing. `is_only` means that no other node has a
    replica, so all records that this node has acked are committed.
    """

    incarnation: str = ""
    end: int | None = None
    behind: str = ""
    is_only: bool = False


_UNKNOWN = Committed()


@dataclass(frozen=True, slots=True)
class Source:
    """The state of a stream at one moment. All records below `end_offset` were acked or are in
    sealed segments."""

    manifest: Manifest
    end_offset: int
    may_lack: str = ""
    """Reason why records at or past the end may have been acked; empty if no such record was
    acked."""

    @property
    def sealed(self) -> tuple[SegmentEntry, ...]:
        return self.manifest.segments[:-1]

    @property
    def active(self) -> SegmentEntry:
        return self.manifest.segments[-1]


def look(
    fs: FileSystem,
    data_dir: Path,
    name: str,
    boot_id: str | None = None,
    committed: Committed = _UNKNOWN,
) -> Source | None:
    """Examine a stream. `committed` applies to a replica.

    Returns None if the stream does not exist, because its creation did not finish, or because it
    was deleted. Raises StreamUnavailable if the end of the log is unknown, CorruptMetadata,
    OSError.
    """
    directory = data_dir / STREAMS_NAME / name
    for _ in range(_TRIES):
        before = read_manifest(fs, directory)
        if before is None:
            if _has_data(fs, directory):
                raise CorruptMetadata(f"stream {name} has files but no manifest")
            return None
        end: int | None
        may_lack = ""
        if before.replicated:
            end, may_lack = _committed_end(fs, data_dir, name, before, boot_id, committed)
        else:
            end = _end(fs, data_dir, name, before, boot_id)
        manifest = read_manifest(fs, directory)
        if manifest is None or manifest.lineage != before.lineage:
            continue  # the stream was just deleted, created again or truncated
        if not manifest.segments:
            raise CorruptMetadata(f"the manifest of stream {name} lists no segment")
        if end is None:
            raise StreamUnavailable(
                f"the acked end of stream {name} is unknown since the machine was restarted",
                hint="start the daemon once: its recovery settles that",
            )
        if manifest.replicated:
            manifest = _up_to(manifest, end)
        else:
            end = max(end, manifest.segments[-1].base_offset)
        if manifest.log_start_offset <= end:
            return Source(manifest, end, may_lack)
    raise StreamUnavailable(f"stream {name} changes faster than it can be read")


def _up_to(manifest: Manifest, end: int) -> Manifest:
    """Return the manifest without segments that begin at or past `end`. The caller handles the last
    segment of the result like an active segment, because possibly only a part of it is
    committed."""
    segments = manifest.segments
    count = max(bisect_left(segments, end, key=lambda one: one.base_offset), 1)
    return replace(manifest, segments=segments[:count])


def _has_data(fs: FileSystem, directory: Path) -> bool:
    try:
        return any(name.endswith(".log") for name in fs.list_directory(directory))
    except FileNotFoundError:
        return False


def _end(
    fs: FileSystem, data_dir: Path, name: str, manifest: Manifest, boot_id: str | None
) -> int | None:
    """Return the end of the acked records; None if it is unknown."""
    if not manifest.segments:
        return None
    clean = read_known_states(fs, data_dir, name).clean
    if clean is not None and clean.is_of(manifest.incarnation, manifest.segments[-1]):
        # If acked records are missing at the end, the manifest lists a hole after the last record.
        return max(clean.next_offset, manifest.high_watermark)
    slot = _slot(fs, data_dir, name, manifest.lineage, boot_id)
    return slot.acked_end if slot is not None and slot.exact else None


def _committed_end(
    fs: FileSystem,
    data_dir: Path,
    name: str,
    manifest: Manifest,
    boot_id: str | None,
    committed: Committed,
) -> tuple[int, str]:
    """Return the end of the committed records, and the reason why more records may have been
    acked."""
    states, active = read_known_states(fs, data_dir, name), manifest.segments[-1:]
    known = (
        [one.high_watermark for one in states.of(manifest.incarnation, *active)] if active else []
    )
    stored = max([manifest.high_watermark, *known])
    if committed.end is not None and committed.incarnation == manifest.incarnation:
        return max(stored, committed.end), committed.behind
    if committed.is_only:
        slot = _slot(fs, data_dir, name, manifest.lineage, boot_id)
        if slot is not None and slot.exact:
            return max(stored, slot.acked_end), ""
        if (
            active
            and states.clean is not None
            and states.clean.is_of(manifest.incarnation, *active)
        ):
            return stored, ""
    return stored, committed.behind or _NOT_ASKED


def _slot(
    fs: FileSystem, data_dir: Path, name: str, lineage: str, boot_id: str | None
) -> AckedEnd | None:
    return known_acked_end(fs, data_dir / STREAMS_NAME / name, lineage, boot_id=boot_id)


@dataclass(frozen=True, slots=True)
class SealedActive:
    """The copied part of an active segment. `entry` is None if the segment has no record below the
    end."""

    entry: SegmentEntry | None
    file_names: tuple[str, ...]
    quarantined: tuple[QuarantinedRange, ...]
    damaged: tuple[str, ...]


def seal_active(
    source: FileSystem,
    from_directory: Path,
    fs: FileSystem,
    directory: Path,
    found: Source,
    missing: set[str],
) -> SealedActive | None:
    """Copy the records of the active segment below `found.end_offset`, and write their index; both
    are fdatasynced.

    If the file of the segment is missing, adds its name to `missing` and returns None: the daemon
    has sealed the segment and then rewritten or deleted it, and the caller must examine the stream
    again. If `missing` already contains the name, the file is lost, and an empty segment takes its
    place. Raises OSError.
    """
    manifest, end, active = found.manifest, found.end_offset, found.active
    quarantined = tuple(
        replace(bad, next_offset=min(bad.next_offset, end))
        for bad in manifest.quarantined
        if bad.first_offset < end
    )
    if end <= active.base_offset:
        return SealedActive(None, (), quarantined, ())
    path, walked = directory / active.file_name, None
    holes: list[range] = []
    try:
        file = source.open(from_directory / active.file_name, writable=False)
        try:
            walked = _Walk(file, active, end, quarantined, manifest.epochs)
        finally:
            file.close()
        origin = source, from_directory / active.file_name
        copy_file(origin, (fs, path), walked.position, holes=holes)
    except FileNotFoundError:
        if active.file_name not in missing:
            missing.add(active.file_name)
            return None
        walked = _Walk(None, active, end, quarantined, ())
        fs.open(path, create=True).close()
    entry = replace(
        active,
        size_bytes=walked.position,
        next_offset=walked.next_offset,
        record_count=walked.record_count,
        max_timestamp_ns=walked.max_timestamp_ns,
    )
    write_index(fs, path, walked.index, entry, manifest.incarnation)
    lost = (
        *_behind(quarantined, active, walked.next_offset, walked.position, end),
        *(
            bad
            for bad in lost_in_holes(fs, path, entry, holes, manifest.incarnation)
            if not is_covered(bad.first_offset, bad.next_offset, quarantined)
        ),
    )
    damaged = (*walked.damaged, *map(loss_in_words, lost))
    names = (active.file_name, index_path(path).name)
    return SealedActive(entry, names, (*quarantined, *lost), damaged)


class _Walk:
    """Walks the batches of `file` below `end`; without a file there are no batches. Each object is
    used once."""

    def __init__(
        self,
        file: File | None,
        active: SegmentEntry,
        end: int,
        quarantined: tuple[QuarantinedRange, ...],
        epochs: Epochs,
    ) -> None:
        self.position = 0
        self.next_offset = active.base_offset
        self.record_count = 0
        self.max_timestamp_ns = 0
        self.index = SparseIndex(active.base_offset)
        self.damaged: tuple[str, ...] = ()
        if file is not None:
            here = [bad for bad in quarantined if bad.segment == active.file_name]
            self._run(file, end, here, epochs)

    def _run(
        self, file: File, end: int, quarantined: list[QuarantinedRange], epochs: Epochs
    ) -> None:
        start = IndexEntry(self.next_offset, 0)
        limit = IndexEntry(end, find_data_end(file, 0))
        stepped: list[SteppedOver] = []
        bad: list[str] = []
        batches = walk_batches(
            file,
            start,
            limit,
            quarantined=quarantined,
            stepped_over=stepped,
            size_bytes=file.size(),
            epochs=epochs,
        )
        for position, header in batches:
            if header.next_offset > end:
                break
            if not is_whole(file, position, header):
                bad.append(f"the batch at offset {header.base_offset} is damaged")
            self.position = position + header.length
            self.next_offset = header.next_offset
            self.record_count += header.record_count
            self.max_timestamp_ns = max(self.max_timestamp_ns, header.max_timestamp_ns)
            self.index.maybe_add(header.base_offset, position, self.max_timestamp_ns)
            if self.next_offset == end:
                break  # the rest may be an unfinished write
        bad += [
            f"offsets {one.first_offset} to {one.next_offset - 1} are damaged"
            for one in stepped
            if not one.known and one.next_offset <= self.next_offset
        ]
        self.damaged = tuple(bad)


def _behind(
    known: tuple[QuarantinedRange, ...],
    active: SegmentEntry,
    offset: int,
    position: int,
    end: int,
) -> tuple[QuarantinedRange, ...]:
    """Return the offsets from `offset` to `end` that are neither stored nor recorded as lost."""
    for bad in sorted(known, key=lambda one: one.first_offset):
        if bad.first_offset <= offset < bad.next_offset:
            offset = bad.next_offset
    if offset >= end:
        return ()
    reason = "missing when the backup was made"
    return (QuarantinedRange(offset, end, active.file_name, position, position, reason),)


def loss_in_words(bad: QuarantinedRange) -> str:
    return f"offsets {bad.first_offset} to {bad.next_offset - 1} are {bad.reason}"
