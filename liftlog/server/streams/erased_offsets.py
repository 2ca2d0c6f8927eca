"""Collects the offsets of all records of a stream that were erased by a request, also of those
whose bytes are gone, so that copies outside the stream can remove them, too. Blocking.

Records that a roll-up has erased are left out: they are superseded, and a copy may keep them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

from liftlog.log import Log
from liftlog.log.erased import ErasedSet
from liftlog.log.files.erasures import Erasure, ErasureReader, newest_erasure
from liftlog.log.files.filesystem import storage_errors
from liftlog.protocol.administration import MAX_ERASED_PARTS, ErasedOffsetsAnswer

STEP = 250
"""Maximum number of erasures that one step handles."""
STEP_BYTES = 256 * 1024
"""Approximate size of the bitmaps that one step handles, in bytes of base64."""
ANSWER_BYTES = 4 * 1024 * 1024
_UNLISTED = "unlisted"
"""Stands for the newest erasure if records are erased, but the list is missing, as after the
restoration of a backup."""


class ErasedOffsetsReader:
    """Reads the list of erasures step by step. Used by one thread at a time."""

    def __init__(self, log: Log, after: str, part: int) -> None:
        self._log, self._after, self._part = log, after, part
        self._newest = ""
        self._unknown = 0
        self._shown: list[str] = []
        self._is_listed = True
        self._chunks = ErasedSet({})
        self._erased = log.view.erased or ErasedSet({})
        self._steps = self._read()

    def step(self) -> bool:
        """Do some milliseconds of work; return False at the end. Raises StorageError."""
        with storage_errors(f"reading the erasures of {self._log.name}"):
            return next(self._steps, False)

    def _read(self) -> Iterator[bool]:
        log = self._log
        fs, directory = log.environment.fs, log.directory
        self._newest = newest_erasure(fs, directory)
        if not self._newest and self._erased and not log.config.rolls_up:
            self._newest = _UNLISTED
        if self._is_known():
            return
        reader = ErasureReader.open(fs, directory)
        while reader.step(STEP):
            yield True
        entries = reader.entries
        erasure_id = self._after.partition(":")[0]
        if erasure_id not in ("", _UNLISTED):
            self._is_listed = any(one.erasure_id == erasure_id for one in entries)
        for some in _in_steps(entries):
            self._chunks |= ErasedSet.of_all([self._offsets_of(one) for one in some])
            yield True
        if not log.config.rolls_up:  # the list may be new, as after the restoration of a backup
            self._chunks |= ErasedSet.of_all([self._erased])
        if self._shown:
            # Their records may be hidden later, without another entry in the list.
            self._newest += f":{hashlib.sha256(' '.join(self._shown).encode()).hexdigest()[:16]}"
            if self._is_known():
                self._chunks, self._unknown = ErasedSet({}), 0

    def _is_known(self) -> bool:
        """True if the client knows all erasures. It asks for later parts only if it does not."""
        return not self._part and self._newest == self._after

    def _offsets_of(self, one: Erasure) -> ErasedSet:
        """Return the offsets of an erasure whose records are hidden. An entry without offsets may
        stand for many erasures. Its ranges count as a whole only if every record of them was
        erased; otherwise only those of their records count whose bytes are still there."""
        if one.offsets:
            offsets = ErasedSet.from_plain([pair for pair in one.offsets if pair[0] >= self._part])
        elif one.count == sum([end - first for first, end in one.ranges]):
            offsets = ErasedSet.of_ranges(one.ranges)
        else:
            offsets = self._erased & ErasedSet.of_ranges(one.ranges)
            self._unknown += max(one.count - len(offsets), 0)
        if not one.done:  # it runs, was interrupted or has failed: readers may still get records
            shown = self._log.structure.select(offsets).selection.offsets
            if shown:
                self._shown.append(f"{one.erasure_id}-{len(shown)}")
            offsets -= shown
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
        return ErasedOffsetsAnswer(
            self._newest, parts, bitmaps, following, self._unknown, self._is_listed
        )


def _in_steps(entries: Iterable[Erasure]) -> Iterator[list[Erasure]]:
    """Divide the entries among steps."""
    some: list[Erasure] = []
    size = 0
    for one in entries:
        some.append(one)
        size += sum([len(text) for _, text in one.offsets])
        if len(some) >= STEP or size >= STEP_BYTES:
            yield some
            some, size = [], 0
    if some:
        yield some
