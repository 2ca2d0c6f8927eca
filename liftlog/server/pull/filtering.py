"""The answer to a fetch with a filter or a choice of columns: found, and encoded anew.

Runs in a thread, reads a bounded amount of the log, and checks every byte that it reads: what
is wrong ends the answer in front of it, and begins the next one as CORRUPT_RANGE.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple

from liftlog.errors import (
    CorruptBatch,
    CorruptRange,
    OffsetOutOfRange,
    StreamUnavailable,
    UnsupportedFormat,
)
from liftlog.log.rewrite.chunks import Chunk, chunks_of
from liftlog.protocol.limits import KIB, MIB
from liftlog.records.column_set import Columns
from liftlog.records.decode import RecordBatch, decode_batch
from liftlog.records.place import Place
from liftlog.records.selection import Selection
from liftlog.server.commits.damage import quarantine_damage, quarantine_found
from liftlog.server.pull.building import AnswerBuilder
from liftlog.server.pull.seams import LogSlice, ReadableLog

SCAN_BYTES = 16 * MIB
"""Read of the log for one answer, at most (or one batch, if that is larger)."""

SCAN_SECONDS = 0.1
"""Of the processor, for one answer, roughly: synchronous publishers leave batches of one record,
which cost ten times as much per byte. Other scans wait for their turn."""

MAX_ANSWER_BYTES = 1 * MIB
"""Encoded for one answer, at most (or one record). Such answers lie in memory until they are
sent, other than slices of files."""

_INFLATED_BYTES = 16 * 1024 * KIB
_READ_BYTES = 512 * KIB


class Scan(NamedTuple):
    """Where to look, and for what. `stop_offset` is exclusive; None: up to the high watermark."""

    offset: int
    stop_offset: int | None
    max_bytes: int
    selection: Selection


class Scanned(NamedTuple):
    """What was found between the scan's offset and `next_offset`.

    `caught_up` says that the high watermark was reached; without it there may be more at once.
    """

    incarnation: str
    first_offset: int
    next_offset: int
    record_count: int
    body: bytes
    caught_up: bool


def scan_log(log: ReadableLog, scan: Scan) -> Scanned:
    """Blocking. Raises OffsetOutOfRange, CorruptRange, StorageError; StreamUnavailable when it
    cannot decompress what it looks at."""
    try:
        return _Scanner(log, scan).run()
    except UnsupportedFormat as error:
        raise StreamUnavailable(
            f"the records cannot be looked into: {error.message}",
            hint="a fetch without filter and columns leaves that to the client",
        ) from error


class _Damaged(Exception):
    """Bytes that fail a check; everything before `reached` was looked at."""


class _Scanner:
    def __init__(self, log: ReadableLog, scan: Scan) -> None:
        self._log = log
        self._scan = scan
        self._builder = AnswerBuilder(scan.max_bytes)
        self._reached = scan.offset  # everything below was looked at
        self._left = SCAN_BYTES
        self._deadline = time.thread_time() + SCAN_SECONDS

    def run(self) -> Scanned:
        incarnation = self._log.incarnation
        caught_up = self._go()
        builder = self._builder
        end = builder.finish(self._reached)
        first_offset = self._scan.offset if builder.first_offset is None else builder.first_offset
        return Scanned(
            incarnation,
            first_offset,
            end,
            builder.record_count,
            builder.body(),
            caught_up and end >= self._reached,
        )

    def _go(self) -> bool:
        """Look at batch after batch; True when the high watermark was reached."""
        scan, log = self._scan, self._log
        while self._left > 0 and not self._is_late():
            if scan.stop_offset is not None and self._reached >= scan.stop_offset:
                return False
            high_watermark = log.high_watermark  # before reading: what is not found is not there
            try:
                piece = log.read(self._reached, min(_READ_BYTES, self._left))
                if piece is None:
                    self._reached = max(self._reached, high_watermark)
                    return True
                if not self._take(piece):
                    return False
            except (_Damaged, CorruptRange, OffsetOutOfRange, UnsupportedFormat) as error:
                if self._reached > scan.offset:
                    return False  # the next fetch begins with it
                if isinstance(error, CorruptRange):
                    quarantine_found(log, error)
                if not isinstance(error, _Damaged):
                    raise
                self._take_one_batch()
        return False

    def _take_one_batch(self) -> None:
        """The first bytes looked at are wrong. How far that reaches the log knows, which has the
        index: it names the range, or cuts out the one batch."""
        piece = self._log.read(self._reached, 1)
        if piece is None:
            return
        following = piece.next_offset
        try:
            self._take(piece)
        except _Damaged as damage:
            quarantine_damage(self._log, self._reached, following)
            raise CorruptRange(
                f"the records [{self._reached}, {following}) are damaged on disk",
                hint=f"read on at {following}",
                first_offset=self._reached,
                next_offset=following,
            ) from damage

    def _take(self, piece: LogSlice) -> bool:
        """Look at these batches; False when the answer is full, or late. Raises _Damaged."""
        try:
            self._left -= piece.length
            raw = piece.pread()
        finally:
            piece.release()
        try:
            place = Place(piece.first_offset, piece.next_offset)
            for chunk in _chunks(raw, place):
                # Compressed batches may become a thousand times as long as the piece.
                if not self._take_chunk(chunk) or self._is_late():
                    return False
        except CorruptBatch as error:
            raise _Damaged from error
        self._reached = max(self._reached, piece.next_offset)
        return True

    def _is_late(self) -> bool:
        """Never without progress."""
        return self._reached > self._scan.offset and time.thread_time() >= self._deadline

    def _take_chunk(self, chunk: Chunk) -> bool:
        header = chunk.header
        stop = self._scan.stop_offset
        if header.record_count:
            wanted = _between(chunk.columns(), self._reached, stop)
            selected = self._scan.selection.of(wanted)
            taken = self._builder.add(selected, header)
            if taken < len(selected):
                self._reached = int(selected.offsets[taken])
                return False
        self._reached = max(self._reached, header.next_offset)
        if stop is not None and self._reached >= stop:
            self._reached = stop
            return False
        return True


def _chunks(raw: bytes, place: Place) -> Iterator[Chunk]:
    """What can be looked at in one step each, up to damage. Raises CorruptBatch there."""
    whole: list[RecordBatch] = []
    damage: CorruptBatch | UnsupportedFormat | None = None
    position = inflated = 0
    while position < len(raw):
        try:
            batch = decode_batch(raw, position)
            place.take(batch.header)
        except (CorruptBatch, UnsupportedFormat) as error:
            damage = error
            break
        whole.append(batch)
        position += batch.header.length
        inflated += len(batch.raw)
        if inflated >= _INFLATED_BYTES:  # compressed batches become much longer than they lie here
            yield from chunks_of(whole)
            whole, inflated = [], 0
    yield from chunks_of(whole)
    if damage is not None:
        raise damage
    place.check_end()


def _between(records: Columns, first_offset: int, stop_offset: int | None) -> Columns:
    offsets = records.offsets
    low = int(offsets.searchsorted(first_offset))
    high = len(offsets) if stop_offset is None else int(offsets.searchsorted(stop_offset))
    if low == 0 and high == len(offsets):
        return records
    return records.part(low, max(low, high))
