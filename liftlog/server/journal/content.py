"""Reads the log of the journal: the whole log at the start, and single consumers later.
Blocking."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Collection, Generator, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from liftlog.errors import CorruptBatch, CorruptRange, OffsetOutOfRange, StorageError
from liftlog.log import Log, LogSlice
from liftlog.log.files.filesystem import storage_errors
from liftlog.records.decode import RecordBatch, decode_batch
from liftlog.records.header import parse_header
from liftlog.records.place import Place
from liftlog.server.commits.damage import quarantine_found
from liftlog.server.journal.ledger import Entry, Ledger
from liftlog.server.journal.records import (
    Change,
    ConsumerKey,
    Kind,
    StateVersion,
    StoredChange,
    decode_head,
    decode_key,
    decode_value,
    size_of_key,
)

logger = logging.getLogger("liftlog.server.journal")

_READ_BYTES = 1024 * 1024
_SEARCHED_BYTES = 64 * 1024
_FIRST_SPAN = 256


class StoredConsumer(NamedTuple):
    """A consumer as stored in the journal: its snapshot, and the later changes."""

    settings: bytes
    """The latest settings. They can be newer than the snapshot."""
    state: bytes
    version: StateVersion
    """The version of the snapshot."""
    deltas: list[tuple[StateVersion, bytes]]
    is_uncertain: bool

    @property
    def size_bytes(self) -> int:
        """Size, in bytes, of the snapshot and of the later changes."""
        return len(self.state) + sum(len(delta) for _, delta in self.deltas)


@dataclass(slots=True)
class Content:
    """The result of reading a log."""

    ledger: Ledger = field(default_factory=Ledger)
    unsynced_losses: set[int] = field(default_factory=set)
    """First offsets of the lost ranges whose records had not been synced."""
    losses: list[int] = field(default_factory=list)
    """First offsets of the lost ranges whose records may have been synced."""
    synced_below: int = 0
    """Later records show that all records below this offset had been synced."""


# --- all of it ---


def read_content(log: Log, unsynced_losses: Collection[int] = ()) -> Content:
    """Read and verify all records. `unsynced_losses` are the losses that an earlier start has
    found.

    Damaged records are lost, and their consumers return to an older state. If the lost records had
    been synced, each consumer that may have had one of them becomes uncertain. Raises StorageError
    if files cannot be read. Raises NewerFormat.
    """
    content = Content(unsynced_losses=set(unsynced_losses))
    ledger = content.ledger
    keys: dict[bytes, tuple[ConsumerKey, int]] = {}  # the number is the size without the value
    for offset, raw_key, value in _records(log, lambda first: _lose(content, first)):
        try:
            found = keys.get(raw_key)
            if found is None:
                key = decode_key(raw_key)
                found = keys[raw_key] = key, size_of_key(key)
            head = decode_head(value)
        except CorruptBatch as error:
            _report(offset, offset + 1, error)
            _lose(content, offset)
            continue
        content.synced_below = max(content.synced_below, offset - head[4])
        ledger.replay(found[0], head, found[1] + len(value), offset, content.losses)
    for first in content.losses:
        if first < content.synced_below:
            ledger.doubt_before(first)
        else:
            content.unsynced_losses.add(first)
    return content


def _lose(content: Content, first: int) -> None:
    if first not in content.unsynced_losses:
        content.losses.append(first)


_Raw = tuple[int, bytes, bytes]
"""Offset, key and value."""


def _records(log: Log, lost: Callable[[int], None]) -> Iterator[_Raw]:
    """Yield all committed records. When the iteration reaches a damaged range, it calls `lost` with
    the first offset of the range."""
    offset = log.log_start_offset
    while offset < log.high_watermark:
        try:
            piece = log.read(offset, _READ_BYTES)
        except CorruptRange as error:
            quarantine_found(log, error)
            _report(error.first_offset, error.next_offset, error)
            lost(error.first_offset)
            offset = error.next_offset
            continue
        except OffsetOutOfRange as error:  # the loss extends beyond the end of the log
            _report(offset, log.high_watermark, error)
            lost(offset)
            return
        if piece is None:
            return
        with piece, storage_errors("reading the journal of consumers"):
            first, raw = piece.first_offset, piece.pread()
            place = Place(first, piece.next_offset)
        reached = yield from _of_batches(raw, offset, place, lost)
        if reached == offset:  # the batch was damaged after `read` had examined it
            reached = max(piece.next_offset, offset + 1)
            _report(offset, reached, "a damaged batch header")
            lost(offset)
        offset = reached


def _of_batches(
    raw: bytes, offset: int, place: Place, lost: Callable[[int], None]
) -> Generator[_Raw, None, int]:
    """Yield the records of whole batches from `offset` on. Returns the offset that follows. If the
    batches end in damage, a read from this offset shows how far the damage extends."""
    reached, position = offset, 0
    while position < len(raw):
        try:
            header = parse_header(raw, position)
            place.take(header)
        except CorruptBatch:
            break
        try:
            batch = decode_batch(raw, position).trim(offset)
            found = list(_of_batch(batch))
        except CorruptBatch as error:
            _report(header.base_offset, header.next_offset, error)
            lost(header.base_offset)
        else:
            yield from found
        position += header.length
        reached = max(offset, header.next_offset)
    return reached


def _of_batch(batch: RecordBatch) -> Iterator[_Raw]:
    """Decode the records of one batch. Raises CorruptBatch."""
    keys = [key or b"" for key in batch.keys()]  # noqa: SIM118  # a column
    return zip(batch.offsets(), keys, [value or b"" for value in batch.values()], strict=True)


def _report(first: int, following: int, reason: object) -> None:
    logger.error("records-lost first_offset=%d next_offset=%d reason=%s", first, following, reason)


# --- one consumer ---


def read_chain(log: Log, key: ConsumerKey, entry: Entry) -> list[Change]:
    """Read the records of a consumer, from its snapshot on. All these records must be committed.
    Raises StorageError, also for damage from after the start."""
    chain: list[Change] = []
    reader = _Reader(log)
    offset = entry.last
    while True:
        stored = reader.at(key, offset)
        chain.append(stored.change)
        if offset == entry.base:
            break
        previous = stored.chaining.previous
        if not entry.base <= previous < offset:
            raise StorageError(f"the records of {'/'.join(key)} in the journal are not connected")
        offset = previous
    chain.reverse()
    return chain


def read_consumer(log: Log, key: ConsumerKey, entry: Entry) -> StoredConsumer:
    """Read a consumer. Raises the errors of `read_chain`."""
    chain = read_chain(log, key, entry)
    first = chain[0]
    settings = [one.settings for one in chain if one.kind is not Kind.DELTA][-1]
    deltas = [(one.version, one.state) for one in chain if one.kind is Kind.DELTA]
    return StoredConsumer(settings, first.state, first.version, deltas, entry.is_uncertain)


class _Reader:
    """Reads single records. The reader keeps the batches of its last read, because the records of a
    chain are often near to each other."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._raw = b""
        self._first = self._next = 0
        self._batches: list[tuple[int, int]] = []
        """Base offset and position of the examined batches in `_raw`."""
        self._parsed_bytes = 0
        self._span = _FIRST_SPAN
        """Distance, in offsets, from the start of a read to the wanted record."""

    def at(self, key: ConsumerKey, offset: int) -> StoredChange:
        """Return the record at an offset. Raises StorageError."""
        try:
            if not self._first <= offset < self._next:
                self._read(offset)
            return self._find(key, offset)
        except (CorruptBatch, CorruptRange, OffsetOutOfRange) as error:
            raise StorageError(f"the journal cannot read {'/'.join(key)}: {error}") from error

    def _read(self, offset: int) -> None:
        piece = self._before(offset)
        if piece is None:
            piece = self._log.read(offset, _SEARCHED_BYTES)
        if piece is None:
            raise StorageError(f"the journal has no record at offset {offset}")
        with piece, storage_errors("reading the journal of consumers"):
            self._raw = piece.pread()
            self._first, self._next = piece.first_offset, piece.next_offset
        self._batches, self._parsed_bytes = [], 0

    def _before(self, offset: int) -> LogSlice | None:
        """Return the batch that includes `offset`, and some batches before it, because a chain
        continues at lower offsets. Returns None if records before `offset` are damaged or large."""
        log = self._log
        for _ in range(2):
            start = max(offset - self._span, log.log_start_offset)
            try:
                piece = log.read(start, _SEARCHED_BYTES)
            except (CorruptRange, OffsetOutOfRange):
                return None
            if piece is None:
                return None
            self._span = max((piece.next_offset - start) * 3 // 4, 1)
            if piece.next_offset > offset:
                return piece
            piece.release()
        return None

    def _find(self, key: ConsumerKey, offset: int) -> StoredChange:
        position = self._position(offset)
        batch = decode_batch(self._raw, position).trim(offset, offset + 1)
        for _, raw_key, value in _of_batch(batch):
            if decode_key(raw_key) == key:
                return decode_value(key, value)
        raise CorruptBatch(f"there is another record at offset {offset}")

    def _position(self, offset: int) -> int:
        """Return the position of the batch that may contain `offset`. Raises CorruptBatch."""
        batches, size = self._batches, len(self._raw)
        while self._parsed_bytes < size and not (batches and batches[-1][0] >= offset):
            header = parse_header(self._raw, self._parsed_bytes)
            batches.append((header.base_offset, self._parsed_bytes))
            self._parsed_bytes += header.length
        number = bisect_right(batches, (offset, size)) - 1
        if number < 0:
            raise CorruptBatch(f"there is no record at offset {offset}")
        return batches[number][1]
