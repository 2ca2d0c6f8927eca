"""Reads the log of the journal: all of it at the start, one consumer later on. Blocking."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Generator, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from liftlog.errors import CorruptBatch, CorruptRange, OffsetOutOfRange, StorageError
from liftlog.log import Log
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


class StoredConsumer(NamedTuple):
    """A consumer as stored in the journal: its snapshot, and the later changes."""

    settings: bytes
    """The latest settings, which can be newer than the snapshot."""
    state: bytes
    version: StateVersion
    """The version of the snapshot."""
    deltas: list[tuple[StateVersion, bytes]]
    is_uncertain: bool


@dataclass(slots=True)
class Content:
    """The result of reading a log."""

    ledger: Ledger = field(default_factory=Ledger)
    unsynced_losses: set[int] = field(default_factory=set)
    """First offsets of the lost ranges whose records had not been synced."""
    losses: list[int] = field(default_factory=list)
    """First offsets of all other lost ranges."""
    synced_below: int = 0
    """All records below this offset had been synced, according to later records."""


# --- all of it ---


def read_content(log: Log, unsynced_losses: Collection[int] = ()) -> Content:
    """Read and verify all records. `unsynced_losses` are those that an earlier start has found.

    Damaged records are lost, and their consumers return to an older state. If the lost records had
    been synced, every consumer that may have had one of them becomes uncertain. Raises StorageError
    if files cannot be read, NewerFormat.
    """
    content = Content(unsynced_losses=set(unsynced_losses))
    ledger = content.ledger
    keys: dict[bytes, tuple[ConsumerKey, int]] = {}  # decoded, with the size beside a value
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
    """Yield all committed records. Calls `lost` with the first offset of each damaged range when
    the iteration reaches it."""
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
        except OffsetOutOfRange as error:  # the loss reaches beyond the end
            _report(offset, log.high_watermark, error)
            lost(offset)
            return
        if piece is None:
            return
        with piece, storage_errors("reading the journal of consumers"):
            first, raw = piece.first_offset, piece.pread()
            place = Place(first, piece.next_offset)
        reached = yield from _of_batches(raw, offset, place, lost)
        if reached == offset:  # it was damaged after `read` looked at it
            reached = max(piece.next_offset, offset + 1)
            _report(offset, reached, "a damaged batch header")
            lost(offset)
        offset = reached


def _of_batches(
    raw: bytes, offset: int, place: Place, lost: Callable[[int], None]
) -> Generator[_Raw, None, int]:
    """Yield the records of whole batches from `offset` on; return the offset that follows. If the
    batches end in damage, reading from there shows how far it extends."""
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
    """Raises CorruptBatch."""
    keys = [key or b"" for key in batch.keys()]  # noqa: SIM118  # a column
    return zip(batch.offsets(), keys, [value or b"" for value in batch.values()], strict=True)


def _report(first: int, following: int, reason: object) -> None:
    logger.error("records-lost first_offset=%d next_offset=%d reason=%s", first, following, reason)


# --- one consumer ---


def read_chain(log: Log, key: ConsumerKey, entry: Entry) -> list[Change]:
    """Read the records of a consumer, from its snapshot on. All of them are committed. Raises
    StorageError, also for damage that was not there at the start."""
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
    """Read a consumer. Raises as `read_chain`."""
    chain = read_chain(log, key, entry)
    first = chain[0]
    settings = [one.settings for one in chain if one.kind is not Kind.DELTA][-1]
    deltas = [(one.version, one.state) for one in chain if one.kind is Kind.DELTA]
    return StoredConsumer(settings, first.state, first.version, deltas, entry.is_uncertain)


class _Reader:
    """Reads single records. It keeps the batches read last, since records of a chain are often
    neighbours."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._raw = b""
        self._first = self._next = 0

    def at(self, key: ConsumerKey, offset: int) -> StoredChange:
        """Raises StorageError."""
        try:
            if not self._first <= offset < self._next:
                self._read(offset)
            return self._find(key, offset)
        except (CorruptBatch, CorruptRange, OffsetOutOfRange) as error:
            raise StorageError(f"the journal cannot read {'/'.join(key)}: {error}") from error

    def _read(self, offset: int) -> None:
        # A chain leads backwards: read what lies before, too.
        start = max(offset - 256, self._log.log_start_offset)
        piece = self._log.read(start, _SEARCHED_BYTES)
        if piece is not None and piece.next_offset <= offset:
            piece.release()
            piece = self._log.read(offset, _SEARCHED_BYTES)
        if piece is None:
            raise StorageError(f"the journal has no record at offset {offset}")
        with piece, storage_errors("reading the journal of consumers"):
            self._raw = piece.pread()
            self._first, self._next = piece.first_offset, piece.next_offset

    def _find(self, key: ConsumerKey, offset: int) -> StoredChange:
        position = 0
        while position < len(self._raw):
            header = parse_header(self._raw, position)
            if header.base_offset <= offset < header.next_offset:
                batch = decode_batch(self._raw, position).trim(offset, offset + 1)
                for _, raw_key, value in _of_batch(batch):
                    if decode_key(raw_key) == key:
                        return decode_value(key, value)
                break
            position += header.length
        raise CorruptBatch(f"there is another record at offset {offset}")
