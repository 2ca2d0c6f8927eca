"""Reads batches from segment files, in a stream's directory or a copy of it. No daemon is needed.

Only sealed segments are read: the records of the active segment are not included. Each step of a
read loads the manifest again, so the read finds the files by which compaction has replaced other
files. A file that is open stays readable until it is closed, even if retention or compaction has
deleted it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from liftlog.errors import (
    CorruptMetadata,
    CorruptRange,
    InvalidArgument,
    StaleIncarnation,
    StorageError,
)
from liftlog.log.erased import ErasedSet, read_listed
from liftlog.log.files.erased_file import ErasedEntry
from liftlog.log.files.filesystem import OsFile, OsFileSystem, storage_errors
from liftlog.log.files.manifest import MANIFEST_NAME, Manifest, SegmentEntry, read_manifest
from liftlog.log.read.measuring import Extent, measure
from liftlog.log.segment.index import IndexEntry, SparseIndex, read_index
from liftlog.log.segment.segment import Segment
from liftlog.log.segment.walk import Found, walk
from liftlog.records.decode import RecordBatch
from liftlog.spark.options import ScanOptions
from liftlog.spark.transport import (
    Losses,
    ScanRange,
    StreamState,
    compacted_meanwhile,
    is_compacted,
)

_WINDOW_BYTES = 1024 * 1024
_STREAMS = "streams"

_fs = OsFileSystem()


class FileTransport:
    """A `Transport` that reads the stream in the directory `path`, or the named stream in a data
    directory."""

    def __init__(self, options: ScanOptions) -> None:
        assert options.path is not None
        self._stream = options.stream
        self._directory = _find_directory(Path(options.path.removeprefix("file:")), options.stream)
        self._erased: tuple[tuple[ErasedEntry, ...], ErasedSet | None] = (), None

    def state(self) -> StreamState:
        manifest = self._manifest()
        sealed = manifest.committed_segments
        end = sealed[-1].next_offset if sealed else manifest.segments[0].base_offset
        return StreamState(
            stream=self._stream,
            identity=manifest.lineage,
            leader_epoch=manifest.leader_epoch,
            log_start_offset=min(manifest.log_start_offset, end),
            end_offset=end,
            extents=tuple(
                [Extent(one.base_offset, one.next_offset, one.size_bytes) for one in sealed]
            ),
        )

    def offset_at(self, timestamp_ns: int) -> int:
        manifest, erased = self._look()
        losses = Losses(self._stream, fail=False)
        for entry in manifest.committed_segments:
            if entry.max_timestamp_ns < timestamp_ns:
                continue
            with self._opened(entry, manifest.incarnation) as (file, index):
                start = manifest.log_start_offset
                if index is not None:
                    start = max(start, index.floor_time(timestamp_ns).offset)
                for batch in _batches(
                    file, entry, index, manifest, start, entry.next_offset, losses, erased
                ):
                    stamps = zip(batch.offsets(), batch.timestamps_ns(), strict=True)
                    for offset, stamp in stamps:
                        if stamp >= timestamp_ns:
                            return offset
        return self.state().end_offset

    def check_history(self, offset: int, leader_epoch: int) -> None:
        """Do nothing, because the lineage in `identity` already shows if the log has lost its
        end."""

    def hold(self, state: StreamState, first_offset: int | None) -> StreamState:
        """Return `state`, because files cannot be protected by a lease. Raises InvalidArgument if
        the stream has records, but no record in a sealed segment, because an empty result would
        look like an empty stream."""
        manifest = self._manifest()
        if manifest.committed_segments:
            return state
        path = self._directory / manifest.segments[-1].file_name
        with storage_errors(f"looking at {path}"):
            size_bytes = path.stat().st_size if path.exists() else 0
        if manifest.segments[:-1]:
            raise InvalidArgument(
                f"{self._directory} is one of several replicas, and of none of its segments it is "
                "known here that everything is committed",
                hint="use server=, or wait until the next segment is full or old enough",
            )
        if size_bytes:
            raise InvalidArgument(
                f"{self._directory} has no sealed segment: its only one, of {size_bytes} bytes, is "
                "still being written, and is not read from files",
                hint="use server=, or wait until the segment is full or old enough (the setting "
                "segment)",
            )
        return state

    def measure(
        self, state: StreamState, first_offset: int, end_offset: int, step_bytes: int
    ) -> StreamState:
        manifest = self._manifest()
        segments = [
            Segment(self._directory, entry, sealed=True)
            for entry in manifest.committed_segments
            if entry.next_offset > first_offset and entry.base_offset < end_offset
        ]
        with storage_errors(f"measuring {self._directory}"):
            index = SparseIndex(0)
            found = measure(_fs, manifest.incarnation, segments, index, _whole, step_bytes)
        return replace(state, extents=tuple(found))

    def held(self, planned: list[ScanRange]) -> list[ScanRange]:
        """Return the ranges with the names of their files. No lease protects the files, so each
        task checks that they are unchanged."""
        manifest = self._manifest()
        if not is_compacted(manifest.metadata.get("settings")):
            return [replace(one, cleaned_below=manifest.cleaned_below) for one in planned]
        return [replace(one, files=_files(manifest, one)) for one in planned]

    def batches(self, wanted: ScanRange, losses: Losses) -> Iterator[RecordBatch]:
        reached, end = wanted.first_offset, wanted.end_offset
        missing = ""
        while reached < end:
            manifest, erased = self._look()
            self._check_same(manifest, wanted)
            if reached < manifest.log_start_offset:
                following = min(manifest.log_start_offset, end)
                losses.removed(reached, following)
                reached = following
                continue
            sealed = manifest.committed_segments
            entry = next((one for one in sealed if one.next_offset > reached), None)
            if entry is None or entry.base_offset >= end:
                _gap(manifest, reached, end, losses)
                return
            try:
                with self._opened(entry, manifest.incarnation) as (file, index):
                    _gap(manifest, reached, min(entry.base_offset, end), losses)
                    yield from _batches(file, entry, index, manifest, reached, end, losses, erased)
            except FileNotFoundError as error:
                # The file may have been replaced. Read the manifest again, at most once for each
                # file.
                if missing == entry.file_name:
                    raise StorageError(
                        f"{self._directory} lacks {missing}, which its manifest lists",
                        hint="copy the manifest first and the segments after it, or use server=",
                    ) from error
                missing = entry.file_name
                continue
            reached = entry.next_offset

    def close(self) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # --- inner ---

    def _manifest(self) -> Manifest:
        with storage_errors(f"reading {self._directory / MANIFEST_NAME}"):
            manifest = read_manifest(_fs, self._directory)
        if manifest is None or not manifest.segments:
            raise CorruptMetadata(
                f"{self._directory} has no manifest", hint="copy a stream's directory as a whole"
            )
        return manifest

    def _look(self) -> tuple[Manifest, ErasedSet | None]:
        """Read the manifest and the erased files that it lists."""
        while True:
            manifest = self._manifest()
            if manifest.erased == self._erased[0]:
                return manifest, self._erased[1]
            with storage_errors(f"reading {self._directory}"):
                erased, problems = read_listed(_fs, self._directory, manifest.erased)
            # A daemon may have replaced the files since the manifest was read.
            if not problems or self._manifest().erased == manifest.erased:
                self._erased = manifest.erased, erased
                return manifest, erased

    def _check_same(self, manifest: Manifest, wanted: ScanRange) -> None:
        if manifest.lineage != wanted.identity:
            raise StaleIncarnation(
                f"{self._stream!r} was created again or truncated since the read was planned",
                hint="read again",
            )
        changed = wanted.files is not None and _files(manifest, wanted) != wanted.files
        if wanted.cleaned_below is not None:
            changed = manifest.cleaned_below > wanted.cleaned_below or is_compacted(
                manifest.metadata.get("settings")
            )
        if changed:
            hint = "read again; read a copy of the directory; or use server="
            raise compacted_meanwhile(self._stream, hint)

    @contextmanager
    def _opened(
        self, entry: SegmentEntry, incarnation: str
    ) -> Iterator[tuple[OsFile, SparseIndex | None]]:
        """Open a segment and its index, if it has one. Raises FileNotFoundError, StorageError."""
        path = self._directory / entry.file_name
        try:
            file = _fs.open(path, writable=False)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise StorageError(f"{path}: {error.strerror or error}") from error
        try:
            with storage_errors(f"reading {path}"):
                yield file, read_index(_fs, file, entry, incarnation)
        finally:
            file.close()


def _find_directory(path: Path, stream: str) -> Path:
    for directory in (path, path / _STREAMS / stream, path / stream):
        if (directory / MANIFEST_NAME).is_file():
            return directory
    reason = "holds no stream" if path.is_dir() else "is not a directory on this host"
    raise InvalidArgument(
        f"path={str(path)!r} {reason}",
        hint="give a stream's directory, or a data directory and the option stream; "
        "the driver's host and every executor need it",
    )


def _whole(segment: Segment) -> IndexEntry:
    return IndexEntry(segment.next_offset, segment.size_bytes)


def _files(manifest: Manifest, wanted: ScanRange) -> tuple[str, ...]:
    return tuple(
        [
            entry.file_name
            for entry in manifest.committed_segments
            if entry.next_offset > wanted.first_offset and entry.base_offset < wanted.end_offset
        ]
    )


def _batches(
    file: OsFile,
    entry: SegmentEntry,
    index: SparseIndex | None,
    manifest: Manifest,
    first_offset: int,
    end_offset: int,
    losses: Losses,
    erased: ErasedSet | None = None,
) -> Iterator[RecordBatch]:
    """Yield the batches of a segment in [first_offset, end_offset), without erased records, and
    report missing records. Raises CorruptMetadata if it is not known which records are erased.

    The batches of a segment cover its offsets without gaps. So every gap is a loss: damaged bytes,
    or records that were lost before they were written.
    """
    reached = max(first_offset, entry.base_offset)
    floor = index.floor(reached) if index is not None else None
    position, base = (0, entry.base_offset) if floor is None else (floor.position, floor.offset)
    known = [  # damaged bytes that end after the first position
        (bad.position, bad.end_position, bad.first_offset, bad.next_offset)
        for bad in manifest.quarantined
        if bad.segment == entry.file_name and bad.end_position > max(position, bad.position)
    ]
    stretches: list[tuple[int, int, int, int]] = []
    for bad_position, bad_end, bad_first, bad_next in sorted(known):
        if bad_position > position and bad_first > base:
            stretches.append((position, base, bad_position, bad_first))
        position, base = bad_end, bad_next
    stretches.append((position, base, entry.size_bytes, entry.next_offset))
    for position, base, data_end, stretch_end in stretches:
        for found in walk(
            file,
            base,
            data_end,
            data_end,
            index,
            position=position,
            window_bytes=_WINDOW_BYTES,
            end_offset=stretch_end,
            epochs=manifest.epochs,
        ):
            if not isinstance(found, Found):
                continue
            header = found.batch.header
            if header.base_offset >= end_offset:
                _gap(manifest, reached, end_offset, losses)
                return
            if header.next_offset <= reached:
                continue
            _gap(manifest, reached, header.base_offset, losses)
            batch = found.batch if erased is None else erased.cut(found.batch, compress=False)
            trimmed = batch.trim(max(reached, first_offset), end_offset)
            reached = header.next_offset
            if len(trimmed):
                yield trimmed
    _gap(manifest, reached, min(end_offset, entry.next_offset), losses)


def _gap(manifest: Manifest, first_offset: int, next_offset: int, losses: Losses) -> None:
    """Report the offsets [first_offset, next_offset) as lost, except for offsets that never had an
    acked record."""
    if first_offset >= next_offset:
        return
    skipped = sorted(
        (bad.first_offset, bad.next_offset) for bad in manifest.quarantined if not bad.is_loss
    )
    for first, following in [*skipped, (next_offset, next_offset)]:
        if first_offset < min(first, next_offset):
            gone = min(first, next_offset)
            losses.damaged(
                CorruptRange(
                    f"the records [{first_offset}, {gone}) are damaged or lost",
                    first_offset=first_offset,
                    next_offset=gone,
                )
            )
        first_offset = max(first_offset, following)
