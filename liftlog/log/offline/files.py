"""Finds the files of a stream, reads them without writing, and sets their owner."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from liftlog.errors import CorruptMetadata, LiftlogError
from liftlog.log.data_dir import STREAMS_NAME, read_known_states
from liftlog.log.erased import ErasedSet, read_listed
from liftlog.log.files.acked_end import AckedEnd, known_acked_end
from liftlog.log.files.filesystem import OsFile, ReadOnlyFileSystem
from liftlog.log.files.manifest import (
    MANIFEST_NAME,
    Manifest,
    SegmentEntry,
    find_manifest,
    read_manifest,
)
from liftlog.log.segment.index import SparseIndex, read_index
from liftlog.log.segment.tail import find_data_end
from liftlog.log.segment.walk import Found, Missing, walk
from liftlog.records.place import Epochs

FILES = ReadOnlyFileSystem()


@contextmanager
def opened(path: Path) -> Iterator[OsFile]:
    file = FILES.open(path)
    try:
        yield file
    finally:
        file.close()


class NoLog(LiftlogError, FileNotFoundError):
    """The given path contains no log."""

    name = "NO_LOG"


@dataclass(frozen=True, slots=True)
class StreamFiles:
    """A stream on disk. `data_dir` is None if its directory is not in a data directory."""

    name: str
    path: Path
    data_dir: Path | None


def find_streams(directory: Path) -> list[StreamFiles]:
    """Return the streams of a data directory, or the one stream of a stream's directory. Raises
    NoLog."""
    if not directory.is_dir():
        raise NoLog(
            f"{directory} is not a directory",
            hint="give a data directory (data_dir) or the directory of one stream in it",
        )
    directory = directory.absolute()
    streams = directory / STREAMS_NAME
    if streams.is_dir():
        return [
            StreamFiles(path.name, path, directory)
            for path in sorted(streams.iterdir())
            if path.is_dir() and not path.name.startswith(".")
        ]
    if directory.name == STREAMS_NAME and any(map(_is_stream, directory.iterdir())):
        return find_streams(directory.parent)
    if _is_stream(directory):
        above = directory.parent
        return [
            StreamFiles(
                directory.name, directory, above.parent if above.name == STREAMS_NAME else None
            )
        ]
    raise NoLog(
        f"{directory} holds no log",
        hint="a data directory has a folder `streams`, a stream's directory a file `manifest`",
    )


def _is_stream(directory: Path) -> bool:
    return (directory / MANIFEST_NAME).exists() or any(directory.glob("*.log"))


@dataclass(frozen=True, slots=True)
class StreamFacts:
    """The contents of the small files of a stream."""

    manifest: Manifest | None
    problem: str  # the problem with the manifest; empty if it is intact
    slot: AckedEnd | None
    recovery_point: int  # everything below it was fsynced
    copies: tuple[str, ...] = ()  # problems of the manifest's two copies
    erased: ErasedSet | None = None  # the offsets of erased records
    erased_problems: tuple[str, ...] = ()  # of the files that hold them

    @property
    def acked_end(self) -> int:
        """The end of the records that may have been acked, according to these files."""
        return max(self.recovery_point, self.slot.acked_end if self.slot else 0)


def read_facts(stream: StreamFiles) -> StreamFacts:
    """Read the small files of a stream. The slot is read before the manifest: if a daemon writes in
    between, the log contains more records than the slot shows, never fewer."""
    try:
        while True:
            before = read_manifest(FILES, stream.path)
            if before is None:
                return StreamFacts(None, "", None, 0)
            slot = known_acked_end(FILES, stream.path, before.lineage)
            recovery_point = _recovery_point(stream, before)
            manifest = read_manifest(FILES, stream.path)
            if manifest is None or manifest.lineage != before.lineage:
                continue
            erased, problems = read_listed(FILES, stream.path, manifest.erased)
            if problems and read_manifest(FILES, stream.path) != manifest:
                continue  # a daemon has just replaced the files
            return StreamFacts(
                manifest,
                "",
                slot,
                recovery_point,
                _problems_of_copies(stream.path),
                erased,
                tuple(problems),
            )
    except CorruptMetadata as error:
        return StreamFacts(None, error.message, None, 0)


def _problems_of_copies(directory: Path) -> tuple[str, ...]:
    """Return the problems of the two copies of the manifest. A daemon may write both copies between
    our two reads, so a difference is only a problem if the next read finds it again."""
    problems = find_manifest(FILES, directory).problems
    while problems:
        again = find_manifest(FILES, directory).problems
        if again == problems:
            break
        problems = again
    return problems


def _recovery_point(stream: StreamFiles, manifest: Manifest) -> int:
    """Return the fsynced end from the clean marker or the recovery points; 0 if neither is
    usable."""
    if not manifest.segments:
        return 0
    states = read_known_states(FILES, stream.data_dir, stream.name)
    known = states.of(manifest.incarnation, manifest.segments[-1])
    return max((state.next_offset for state in known), default=0)


def stored_bytes(directories: Iterable[Path]) -> int:
    """Return the size of the segments of these streams on disk."""
    total = 0
    for directory in directories:
        for path in directory.glob("*.log"):
            try:
                found = path.stat()
            except FileNotFoundError:
                continue  # the daemon has just deleted it
            total += min(found.st_size, found.st_blocks * 512)
    return total


@dataclass(frozen=True, slots=True)
class SegmentBytes:
    """The valid part of a segment's file. It is determined before the batches are read."""

    file: OsFile
    base_offset: int
    knows_end: bool  # the manifest contains the end of the segment
    size: int  # no batch reaches past it
    data_end: int  # zeros allocated ahead lie between `data_end` and `size`
    end_offset: int | None  # the offset at which the log continues at `data_end`, if that is known
    index: SparseIndex | None
    epochs: Epochs

    def walk(self) -> Iterator[Found | Missing]:
        """Yield the batches and gaps. Raises OSError, UnsupportedFormat."""
        return walk(
            self.file,
            self.base_offset,
            self.size,
            self.data_end,
            self.index,
            end_offset=self.end_offset,
            epochs=self.epochs,
        )


def segment_bytes(
    directory: Path,
    entry: SegmentEntry,
    file: OsFile,
    manifest: Manifest | None,
    *,
    is_active: bool,
) -> SegmentBytes:
    """Find the valid part of a segment. `is_active` means that the manifest does not contain the
    segment's end."""
    epochs = manifest.epochs if manifest is not None else ()
    base, size = entry.base_offset, file.size()
    if manifest is None or is_active:
        return SegmentBytes(file, base, False, size, find_data_end(file, 0), None, None, epochs)
    size = min(size, entry.size_bytes)
    end_offset = entry.next_offset if size == entry.size_bytes else None
    index = read_index(FILES, file, entry, manifest.incarnation)
    return SegmentBytes(file, base, True, size, size, end_offset, index, epochs)


def segments_on_disk(directory: Path) -> list[SegmentEntry]:
    """Find the segments of a stream without a manifest by the names of its files. Return the newest
    generation of each base offset."""
    newest: dict[int, SegmentEntry] = {}
    for path in directory.glob("*.log"):
        base, _, generation = path.name.removesuffix(".log").partition(".")
        if not base.isdigit() or (generation and not generation.isdigit()):
            continue
        entry = SegmentEntry(base_offset=int(base), generation=int(generation or 0))
        known = newest.get(entry.base_offset)
        if known is None or known.generation < entry.generation:
            newest[entry.base_offset] = entry
    return [newest[base] for base in sorted(newest)]


def give_to_owner(directory: Path) -> None:
    """Give files that root has written to the owner of the directory, the daemon's user, so that
    the daemon can use them."""
    if os.geteuid():
        return
    owner = directory.stat()
    for path in directory.rglob("*"):
        os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)


def existing_part(path: Path) -> Path:
    """Return the path, or its nearest existing parent. A path that this user may not access, or
    that is not a valid file name, counts as missing."""
    found = path.absolute()
    return next(one for one in (found, *found.parents) if _exists(one))


def _exists(path: Path) -> bool:
    """Return True if the path exists. Returns False if it is missing, may not be accessed, or is
    not a valid name."""
    return os.path.exists(path)  # noqa: PTH110
