"""Collects the offsets of all records of a stream that were erased, also of those whose bytes are
gone, so that copies outside the stream can remove them, too. Blocking."""

from __future__ import annotations

from collections.abc import Iterator

from liftlog.log import Log
from liftlog.log.erased import ErasedSet
from liftlog.log.files.erasures import Erasure, ErasureReader, newest_erasure
from liftlog.log.files.filesystem import storage_errors
from liftlog.protocol.administration import MAX_ERASED_PARTS, ErasedOffsetsAnswer

STEP = 250
"""Number of erasures that one step handles."""
ANSWER_BYTES = 4 * 1024 * 1024


class ErasedOffsetsReader:
    """Reads the list of erasures step by step. Used by one thread at a time."""

    def __init__(self, log: Log, after: str, part: int) -> None:
        self._log, self._after, self._part = log, after, part
        self._newest = ""
        self._unknown = 0
        self._chunks = ErasedSet({})
        self._steps = self._read()

    def step(self) -> bool:
        """Do some milliseconds of work; return False at the end. Raises StorageError."""
        with storage_errors(f"reading the erasures of {self._log.name}"):
            return next(self._steps, False)

    def _read(self) -> Iterator[bool]:
        log = self._log
        fs, directory = log.environment.fs, log.directory
        self._newest = newest_erasure(fs, directory)
        if self._newest == self._after:
            return
        reader = ErasureReader.open(fs, directory)
        while reader.step(STEP):
            yield True
        entries = reader.entries
        for at in range(0, len(entries), STEP):
            found = [self._offsets_of(one) for one in entries[at : at + STEP]]
            self._chunks |= ErasedSet.of_all(found)
            yield True
        if (erased := log.view.erased) is not None:
            self._chunks |= ErasedSet.of_all([erased])

    def _offsets_of(self, one: Erasure) -> ErasedSet:
        """Return the offsets of an erasure whose records are hidden. An entry without offsets may
        stand for many erasures, so its ranges count only if every record of them was erased."""
        if one.offsets:
            offsets = ErasedSet.from_plain([pair for pair in one.offsets if pair[0] >= self._part])
        elif one.count == sum([end - first for first, end in one.ranges]):
            offsets = ErasedSet.of_ranges(one.ranges)
        else:
            self._unknown += one.count
            return ErasedSet({})
        if not one.done:  # it was interrupted, or has failed: readers may still get the records
            offsets -= self._log.structure.select(offsets).selection.offsets
        return offsets

    def answer(self) -> ErasedOffsetsAnswer:
        parts: list[int] = []
        bitmaps: list[bytes] = []
        left = [number for number in sorted(self._chunks.chunks) if number >= self._part]
        size = 0
        for number in left[:MAX_ERASED_PARTS]:
            bits = self._chunks.chunks[number].serialize()
            if parts and size + len(bits) > ANSWER_BYTES:
                break
            size += len(bits)
            parts.append(number)
            bitmaps.append(bits)
        following = left[len(parts)] if len(parts) < len(left) else None
        return ErasedOffsetsAnswer(self._newest, parts, bitmaps, following, self._unknown)
