"""Proves that the bytes of erased records are gone. Parses every file that may hold records of a
stream, including files that the manifest does not list.

A batch header gives the offsets of its batch, so most bodies are not read. Bytes that are neither a
batch nor zeros may be parts of records, so the result names them. The proof covers only files with
a name in the directory. It does not cover free blocks of the disk, or removed files that a reader
still has open.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from liftlog.errors import CorruptBatch, UnsupportedFormat
from liftlog.log.erased import ErasedSet
from liftlog.log.files.acked_end import ACKED_END_NAME
from liftlog.log.files.checkpoint_file import read_dispensable_file
from liftlog.log.files.erased_file import ERASED_SUFFIX
from liftlog.log.files.erasures import ERASURES_NAME
from liftlog.log.files.filesystem import File, FileSystem
from liftlog.log.files.kept_ids import KEPT_IDS_NAME
from liftlog.log.files.leases import LEASES_NAME
from liftlog.log.files.manifest import COPY_NAME, MANIFEST_NAME, Manifest
from liftlog.log.files.unreadable import read_zeroed
from liftlog.log.segment.derived import DERIVED_SUFFIXES
from liftlog.records.decode import decode_batch
from liftlog.records.format import HEADER_SIZE, MAGIC
from liftlog.records.header import BatchHeader, parse_header

DEDUPE_NAME = "dedupe"
_WITHOUT_CONTENT = frozenset(
    (
        MANIFEST_NAME,
        COPY_NAME,
        ACKED_END_NAME,
        ERASURES_NAME,
        KEPT_IDS_NAME,
        LEASES_NAME,
        "subjects",
    )
)
"""Files without subjects, keys, ids and values: they hold offsets, and keyed hashes."""
_WINDOW_BYTES = 256 * 1024
PAUSE_BYTES = 4 * 1024 * 1024
"""Number of bytes of a file after which the search pauses."""
_MOST_RANGES = 8


class Examined(NamedTuple):
    """The result for one file: `found` is the number of wanted records in it; the first one has the
    offset `first_offset`. `is_listed` is True if the manifest lists the file. `problem` describes
    the part that could not be examined."""

    file: str
    is_listed: bool
    size_bytes: int
    found: ErasedSet
    problem: str = ""


def examine(
    fs: FileSystem,
    directory: Path,
    kept: Path | None,
    wanted: ErasedSet,
    manifest: Callable[[], Manifest],
) -> Iterator[Examined | None]:
    """Search the files of a stream for these records. `kept` is the directory with the copies of
    repairs; `manifest` returns the present manifest. Yields the result for each file, and None
    after each few megabytes, for a pause. If files are rewritten during the search, the new files
    are searched, too. Raises OSError."""
    seen = set[str]()
    while names := sorted({*fs.list_directory(directory)} - seen):
        seen.update(names)
        listed = {one.file_name for one in manifest().segments}
        for name in names:
            with suppress(FileNotFoundError):  # removed since the directory was listed
                yield from _examine_one(fs, directory, name, wanted, listed)
    if kept is not None:
        for folder in _folders(fs, kept, directory.name):
            for name in sorted(fs.list_directory(folder)):
                shown = f"{kept.name}/{folder.name}/{name}"
                yield from _records(fs, folder / name, shown, wanted, is_listed=False)


def _examine_one(
    fs: FileSystem, directory: Path, name: str, wanted: ErasedSet, listed: Collection[str]
) -> Iterator[Examined | None]:
    """Search a file of the stream's directory; see `examine`. `listed` are the names of the segment
    files that the manifest lists."""
    if name in _WITHOUT_CONTENT:
        return
    stem, _, suffix = name.rpartition(".")
    beside = f".{suffix}"
    if name == DEDUPE_NAME:
        yield _message_ids(fs, directory, wanted)
    elif beside in DERIVED_SUFFIXES:
        if f"{stem}.log" not in listed:
            problem = "belongs to a segment that is not listed any more"
            yield Examined(name, False, _size(fs, directory / name), ErasedSet({}), problem)
    elif beside not in (ERASED_SUFFIX, ".index"):  # they hold offsets, positions and times
        yield from _records(fs, directory / name, name, wanted, is_listed=name in listed)


def _folders(fs: FileSystem, kept: Path, stream: str) -> list[Path]:
    if not fs.exists(kept):
        return []
    return [kept / one for one in sorted(fs.list_directory(kept)) if one.startswith(f"{stream}-2")]


def _size(fs: FileSystem, path: Path) -> int:
    file = fs.open(path, writable=False)
    try:
        return file.size()
    finally:
        file.close()


def _message_ids(fs: FileSystem, directory: Path, wanted: ErasedSet) -> Examined:
    """Examine the snapshot of message ids of the last clean stop."""
    content = read_dispensable_file(fs, directory / DEDUPE_NAME, DEDUPE_NAME) or {}
    entries = content.get("remembered", content.get("ids", ()))
    try:
        offsets = np.array(sorted({int(one[2]) for one in entries}), np.int64)
        found = ErasedSet.of_offsets(offsets) & wanted
    except (TypeError, ValueError, IndexError):
        found = ErasedSet({})
    problem = "may have the message ids of these records" if found else ""
    return Examined(DEDUPE_NAME, True, _size(fs, directory / DEDUPE_NAME), ErasedSet({}), problem)


def _records(
    fs: FileSystem, path: Path, name: str, wanted: ErasedSet, *, is_listed: bool
) -> Iterator[Examined | None]:
    """Search a file with batches."""
    try:
        file = fs.open(path, writable=False)
    except FileNotFoundError:  # removed since the directory was listed
        return
    except OSError as error:
        yield Examined(name, is_listed, 0, ErasedSet({}), f"cannot be opened: {error.strerror}")
        return
    try:
        search = _FileSearch(file, wanted)
        for _ in search.run():
            yield None
        yield Examined(name, is_listed, search.size, search.found, search.problem)
    except OSError as error:
        yield Examined(name, is_listed, 0, ErasedSet({}), f"cannot be read: {error.strerror}")
    finally:
        file.close()


class _FileSearch:
    """Searches the batches of one file."""

    def __init__(self, file: File, wanted: ErasedSet) -> None:
        self._file, self._wanted = file, wanted
        self.size = file.size()
        self.found = ErasedSet({})
        self._strange: list[tuple[int, int]] = []
        self._buffer, self._at = b"", 0

    @property
    def problem(self) -> str:
        """A sentence about the bytes that could not be parsed; empty if there are none."""
        if not self._strange:
            return ""
        shown = [f"{first:,} to {end - 1:,}" for first, end in self._strange[:_MOST_RANGES]]
        more = "" if len(self._strange) <= _MOST_RANGES else ", and more"
        return f"cannot be parsed at the bytes {', '.join(shown)}{more}"

    def run(self) -> Iterator[None]:
        """Search the file; pauses after each few megabytes."""
        position = paused = 0
        while position < self.size:
            header = self._header(position)
            if header is None:
                position = self._skip(position)
            else:
                self._take(header, position)
                position += header.length
            if position - paused >= PAUSE_BYTES:
                paused = position
                yield

    def _header(self, position: int) -> BatchHeader | None:
        inside = position - self._at
        if inside < 0 or inside + HEADER_SIZE > len(self._buffer):
            self._at, inside = position, 0
            length = min(_WINDOW_BYTES, self.size - position)
            self._buffer = read_zeroed(self._file, length, position)
        try:
            header = parse_header(self._buffer, inside)
        except (CorruptBatch, UnsupportedFormat):
            return None
        return header if position + header.length <= self.size else None

    def _take(self, header: BatchHeader, position: int) -> None:
        some = self._wanted.within(header.base_offset, header.next_offset)
        if not some or not header.record_count:
            return
        if header.record_count < header.last_offset_delta + 1:
            try:
                raw = read_zeroed(self._file, header.length, position)
                offsets = np.array(decode_batch(raw, verify=False).offsets(), np.int64)
                some &= ErasedSet.of_offsets(offsets)
            except (CorruptBatch, UnsupportedFormat):
                self._add_strange(position, position + header.length)
                return
        self.found |= some

    def _skip(self, position: int) -> int:
        """Return the position of the next batch; zeros before it do not count."""
        at = position
        while at < self.size:
            piece = read_zeroed(self._file, min(_WINDOW_BYTES, self.size - at), at)
            start = piece.find(MAGIC, 1 if at == position else 0)
            used = piece if start < 0 else piece[:start]
            if used.strip(b"\0"):
                self._add_strange(at, at + len(used.rstrip(b"\0")))
            if start >= 0:
                return at + start
            # The magic may begin in this piece and end in the next one.
            at += len(piece) if at + len(piece) >= self.size else len(piece) - len(MAGIC) + 1
        return self.size

    def _add_strange(self, first: int, end: int) -> None:
        if self._strange and self._strange[-1][1] >= first:
            self._strange[-1] = self._strange[-1][0], end
        else:
            self._strange.append((first, end))
