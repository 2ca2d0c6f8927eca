"""Compares the files of a log with its manifest: removes unlisted files, records missing ones."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from liftlog.log.erased import ErasedSet, read_listed
from liftlog.log.files.acked_end import ACKED_END_NAME
from liftlog.log.files.erased_file import ERASED_SUFFIX
from liftlog.log.files.filesystem import File, FileSystem, write_all
from liftlog.log.files.manifest import (
    COPY_NAME,
    MANIFEST_NAME,
    FoundManifest,
    Manifest,
    QuarantinedRange,
    SegmentEntry,
)
from liftlog.log.files.unreadable import read_zeroed
from liftlog.log.segment.index import IndexEntry
from liftlog.log.segment.segment import Segment, walk_batches

logger = logging.getLogger("liftlog.log")

_DERIVED = (".sketch", ".subjects")
_BESIDE = (".index", *_DERIVED)
"""Suffixes of the files that belong to a segment."""
BROKEN_SUFFIX = ".broken"
UNLISTED_SUFFIX = ".unlisted"
_COPY_BYTES = 4 * 1024 * 1024
_MAX_TAIL_BYTES = 64 * 1024 * 1024
_MAX_TAILS = 8
_SEGMENT_NAME = re.compile(r"(\d{20})(?:\.(\d+))?\.log", re.ASCII)
_TAIL_NAME = re.compile(r"(\d{20})(?:\.\d+)?\.log\.(\d+)" + re.escape(BROKEN_SUFFIX), re.ASCII)


@dataclass(slots=True)
class RecoveryReport:
    """The result of opening a log; `events` are sentences for the daemon's log."""

    clean: bool = True
    scanned_bytes: int = 0
    cut_bytes: int = 0
    events: list[str] = field(default_factory=list)
    incomplete: str = ""
    """The value of `Manifest.incomplete`, which exists only in a replicated log."""


class Inventory:
    """Compares the files of a log with its manifest, and collects the lost ranges that it finds."""

    def __init__(self, directory: Path, fs: FileSystem, manifest: Manifest) -> None:
        self.directory = directory
        self.fs = fs
        self.manifest = manifest
        self.report = RecoveryReport()
        self.quarantined: list[QuarantinedRange] = list(manifest.quarantined)

    def _note(self, event: str) -> None:
        self.report.events.append(event)
        logger.warning("recovery stream=%s %s", self.directory.name, event)

    def _quarantine(
        self, path: Path, first: int, following: int, start: int, end: int, reason: str
    ) -> None:
        bad = QuarantinedRange(first, following, path.name, start, end, reason)
        self.quarantined.append(bad)
        if not bad.is_loss:  # the cut of the tail has been reported
            return
        logger.error(
            "quarantined stream=%s first_offset=%d next_offset=%d reason=%s",
            self.directory.name,
            first,
            following,
            reason,
        )

    def _quarantined_in(self, path: Path) -> list[QuarantinedRange]:
        return [bad for bad in self.quarantined if bad.segment == path.name]

    def write_missing_copy(self, found: FoundManifest) -> None:
        """Write the manifest again if its two files differ; then remove unlisted files.

        Both files are valid (see `manifest.py`), so nothing is lost when the newer manifest is
        written to both. If the write fails (a full disk), no file is removed: the next start may
        find only the older manifest, which may list files that the newer manifest no longer lists.
        """
        for problem in found.problems:
            self._note(f"{problem}; the other copy is used")
        if not found.is_written_twice:
            self.manifest = self.manifest.with_changes()
            try:
                self.manifest.write(self.fs, self.directory)
            except OSError as error:
                logger.warning("manifest-not-copied stream=%s error=%s", self.directory.name, error)
                return
        self._remove_garbage()

    def read_erased(self) -> ErasedSet | None:
        """Read the erased files. If an erased file cannot be read, it is unknown which records in
        its range of offsets are erased, so all reads of this range will fail. Raises OSError for a
        transient failure."""
        erased, problems = read_listed(self.fs, self.directory, self.manifest.erased)
        for problem in problems:
            self._note(problem)
        for entry in () if erased is None else erased.unreadable:
            logger.error(
                "erased-file-unreadable stream=%s file=%s first_offset=%d next_offset=%d",
                self.directory.name,
                entry.file_name,
                entry.first_offset,
                entry.next_offset,
            )
        return erased

    def _remove_garbage(self) -> None:
        """Delete files that the manifest does not list; a crash between two steps leaves such
        files.

        If the manifest is outdated, renames segments and indexes instead of deleting them.
        """
        listed = {entry.file_name for entry in self.manifest.segments}
        listed |= {entry.file_name for entry in self.manifest.erased}
        stems = {name.removesuffix(".log") for name in listed}
        names = self.fs.list_directory(self.directory)
        unlisted: list[str] = []
        self._remove_old_tails([name for name in names if name.endswith(BROKEN_SUFFIX)])
        for name in names:
            known = (
                name in listed
                or name in (MANIFEST_NAME, COPY_NAME, ACKED_END_NAME)
                or name.endswith(BROKEN_SUFFIX)
                or (name.endswith(_BESIDE) and name.rpartition(".")[0] in stems)
            )
            if not known and name.endswith((".log", *_BESIDE, ERASED_SUFFIX, ".tmp")):
                unlisted.append(name)
        outdated = self._manifest_is_outdated(unlisted)
        if outdated:
            self._confirmed_is_missing("an older manifest was put back")
        # The files are removed in the order of their offsets. The files which show that the
        # manifest is outdated have the highest offsets, so they are removed last. If the removal is
        # interrupted, the next start still finds them.
        for name in unlisted:
            if outdated and not name.endswith((*_DERIVED, ".tmp")):
                self._keep_aside(name)
            elif self.fs.exists(self.directory / name):
                self._remove(name)

    def _manifest_is_outdated(self, unlisted: Sequence[str]) -> bool:
        """Return True if files show that a newer manifest existed. An old manifest was then
        restored.

        A crash leaves no such files. The manifest lists a segment before the segment gets its first
        bytes. So an unlisted segment after the active segment is empty, unless it comes from before
        a truncation and has an older generation. Also, all files that a manifest lists were on disk
        before the manifest was written, so a crash makes no listed file disappear.
        """
        *sealed, active = self.manifest.segments
        for name in unlisted:
            match = _SEGMENT_NAME.fullmatch(name)
            if match is None:
                continue
            base_offset, generation = int(match[1]), int(match[2] or 0)
            if (base_offset, generation) <= (active.base_offset, active.generation):
                continue
            if generation >= self.manifest.generation and self._size(name):
                return True
        if not unlisted:
            return False
        return not self.fs.exists(self.directory / active.file_name) or any(
            entry.size_bytes
            and not self.fs.exists(self.directory / entry.file_name)
            and not self._is_known_lost(entry)
            for entry in sealed
        )

    def _is_known_lost(self, entry: SegmentEntry) -> bool:
        return any(
            bad.first_offset <= entry.base_offset and bad.next_offset >= entry.next_offset
            for bad in self.manifest.quarantined_in(entry.file_name)
        )

    def _size(self, name: str) -> int:
        file = self.fs.open(self.directory / name, writable=False)
        try:
            return file.size()
        finally:
            file.close()

    def _confirmed_is_missing(self, reason: str) -> None:
        """Note that durable records may be missing. Called before a change that would hide the
        loss."""

    def _keep_aside(self, name: str) -> None:
        number, target = 1, self.directory / f"{name}{UNLISTED_SUFFIX}"
        while self.fs.exists(target):
            number += 1
            target = self.directory / f"{name}.{number}{UNLISTED_SUFFIX}"
        self.fs.rename(self.directory / name, target)
        self._note(
            f"the manifest does not list {name}, and files show that there was a newer manifest: "
            f"it is kept as {target.name}"
        )

    def _copy_aside(self, file: File, position: int, size: int) -> tuple[int, str]:
        """Copy the bytes from `position` on to a new file, before they are dropped. Returns the
        number of bytes, and a text that names the copy."""
        length = max(min(size, file.size()) - position, 0)
        kept = min(length, _MAX_TAIL_BYTES)
        name = f"{file.path.name}.{position}{BROKEN_SUFFIX}"
        try:
            aside = self.fs.open(self.directory / name, create=True)
            try:
                for done in range(0, kept, _COPY_BYTES):
                    piece = read_zeroed(file, min(_COPY_BYTES, kept - done), position + done)
                    write_all(aside, [piece], done)
                aside.fdatasync()
            finally:
                aside.close()
            self.fs.fsync_directory(self.directory)
        except OSError as error:
            # The copy is dispensable, because these bytes were not acked, and the stream must be
            # able to start on a full disk.
            return length, f"it could not be kept: {error.strerror or error}"
        return length, f"{'it is' if kept == length else f'{kept} of them are'} kept in {name}"

    def _remove_old_tails(self, names: list[str]) -> None:
        """Remove copies of tails, except for the newest copies with offsets that retention has not
        removed yet."""
        first = self.manifest.segments[0].base_offset
        # Other files with this suffix, such as `manifest.broken`, come from an operator.
        tails = [match for name in names if (match := _TAIL_NAME.fullmatch(name)) is not None]
        ages = sorted((int(match[1]), int(match[2]), match[0]) for match in tails)
        for i, (base_offset, _, name) in enumerate(ages):
            if base_offset < first or i < len(ages) - _MAX_TAILS:
                self._remove(name)

    def _remove(self, name: str) -> None:
        """Remove a leftover file. If the removal fails, for example because the file is a
        directory, the file only takes space, and the next start retries."""
        try:
            self.fs.unlink(self.directory / name)
        except OSError as error:
            logger.warning(
                "file-not-removed stream=%s file=%s error=%s", self.directory.name, name, error
            )

    def _check_sealed(self, sealed: list[Segment]) -> None:
        """Check that all sealed files exist in full length, and record the missing parts as lost.

        The content of sealed files is trusted, because they were synced before the manifest listed
        them. No crash shortens them, so missing records count as acked. The rest of a shortened
        file stays readable.
        """
        for segment in sealed:
            known = self._quarantined_in(segment.path)
            if not segment.size_bytes or self._is_known_lost(segment.entry()):
                continue
            if not self.fs.exists(segment.path):
                self._note(f"the sealed segment {segment.path.name} is missing")
                self._quarantine(
                    segment.path, segment.base_offset, segment.next_offset, 0, 0,
                    "the file is missing",
                )  # fmt: skip
                continue
            file = self.fs.open(segment.path, writable=False)
            try:
                end = max((bad.end_position for bad in known), default=0)
                if max(file.size(), end) < segment.size_bytes:
                    self._quarantine_lost_end(segment, file)
            finally:
                file.close()

    def _quarantine_lost_end(self, segment: Segment, file: File) -> None:
        self._note(f"{segment.path.name} has {file.size()} of {segment.size_bytes} bytes")
        reached = IndexEntry(segment.base_offset, 0)
        end = IndexEntry(segment.next_offset, segment.size_bytes)
        known = self._quarantined_in(segment.path)
        for position, header in walk_batches(file, reached, end, quarantined=known):
            if position + header.length > file.size():
                break
            reached = IndexEntry(header.next_offset, position + header.length)
        self._quarantine(
            segment.path, reached.offset, segment.next_offset, reached.position,
            segment.size_bytes, "the end of the file is missing",
        )  # fmt: skip
