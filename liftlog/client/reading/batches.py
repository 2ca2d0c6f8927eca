"""Converts the body of an answer into checked batches that contain only the requested records."""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from liftlog.errors import CorruptBatch, CorruptRange, UnsupportedFormat
from liftlog.protocol.messages import FetchHeader
from liftlog.records.decode import Record, RecordBatch, decode_batch
from liftlog.records.format import ALIGNMENT, HEADER_SIZE, LENGTH_POSITION, MAGIC
from liftlog.records.header import BatchHeader, parse_header, verify_body
from liftlog.records.place import Place

if TYPE_CHECKING:
    from liftlog.records.columns.positions import Batches
    from liftlog.records.columns.small_batches import SmallBatches

_LENGTH = struct.Struct("<I")

_LOOK_BYTES = 8 * 1024
"""Minimum number of bytes for decoding small batches together. With fewer bytes, decoding together
costs more time than it saves."""

_RARELY_BYTES = 64 * 1024
"""The longest distance in bytes between two searches for small batches, after searches that found
none."""


class DamagedHeader(Exception):
    """The end of the batch that should begin at `offset` is unknown: its header is damaged, or
    another batch is in its place. The answer ends at `next_offset`. Only this package uses this
    exception."""

    def __init__(self, offset: int, position: int, next_offset: int) -> None:
        super().__init__(offset, position, next_offset)
        self.offset = offset
        self.position = position
        self.next_offset = next_offset


class ArrivingBatches:
    """The batches of a body that may still be arriving.

    A batch is returned only if its checksums are right and it begins where the previous one ends:
    the batches of an answer cover the range of offsets in the answer's header without gaps. Records
    below the requested offset or the log start, and records at or above `stop_offset`, are dropped.
    Batches without records are skipped. A batch is decoded as soon as it has arrived completely,
    while its bytes are still in the processor's cache.
    """

    __slots__ = ("_body", "_first_wanted", "_header", "_look_at", "_look_step", "_pending",
                 "_place", "_position", "_reached", "_stop", "_stream", "needed_bytes")  # fmt: skip

    def __init__(
        self, stream: str, header: FetchHeader, body: memoryview, stop_offset: int | None
    ) -> None:
        self._stream = stream
        self._header = header
        self._body = body
        self._stop = stop_offset
        self._first_wanted = max(header.offset, header.log_start_offset)
        self._place = Place(header.first_offset, header.next_offset)
        self._position = 0
        self._pending: list[RecordBatch] = []
        """Batches that are checked and not returned yet, the next one last."""
        self._reached = self.next_offset  # end of the returned batches, while others are pending
        # The position of the next search for small batches. The search needs numpy, whose import
        # takes a tenth of a second, so it is used only if the program has imported numpy.
        self._look_at = 0 if "numpy" in sys.modules else sys.maxsize
        self._look_step = 1
        self.needed_bytes = 0
        """Number of bytes of the body that must have arrived before `next` can return more."""

    @property
    def next_offset(self) -> int:
        """The offset that follows the batches returned so far."""
        if self._pending:
            return self._reached
        return max(self._place.offset, self._first_wanted)

    @property
    def exhausted(self) -> bool:
        return self._position >= len(self._body) and not self._pending

    def next_some(self, arrived_bytes: int) -> Batches | None:
        """Like `next`, but returns adjacent small batches together."""
        if not self._pending:
            some = self._take_small_batches(arrived_bytes)
            if some is not None:
                return some
        return self.next(arrived_bytes)

    def next(self, arrived_bytes: int) -> RecordBatch | None:
        """Return the next batch; None if there are no more batches, or the batch has not arrived
        completely.

        Raises CorruptRange if the body of a batch fails its check; the next call continues after
        that batch. Raises DamagedHeader if the header fails its check or the batch is misplaced;
        then no more batches of this answer are returned. Before an error is raised, all batches
        before the damage have been returned.
        """
        pending = self._pending
        if not pending and self._position >= self._look_at:
            some = self._take_small_batches(arrived_bytes)
            if some is not None:
                pending += reversed(some.batches())
        if pending:
            batch = pending.pop()
            self._reached = batch.header.next_offset
            return batch
        body, place = self._body, self._place
        accept = place.accept
        end = len(body)
        while (position := self._position) < end:
            if arrived_bytes < end and not self._is_whole(position, arrived_bytes):
                return None
            try:
                batch = decode_batch(body, position)
                if not accept(batch.header):
                    raise CorruptBatch(place.problem(batch.header))
            except CorruptBatch as error:
                reached = self.next_offset
                bad = self._header_at(position)
                if self._stop is not None and reached >= self._stop:
                    self._position = end
                    return None
                if bad is None:
                    self._position = end
                    raise DamagedHeader(reached, position, self._header.next_offset) from error
                self._position = position + bad.length
                place.pass_by(bad)
                if bad.next_offset <= reached:
                    continue  # the whole batch is below the requested offset
                raise corrupt_range(self._stream, reached, bad.next_offset) from error
            self._position = position + batch.header.length
            header, stop = batch.header, self._stop
            if header.base_offset < self._first_wanted or (
                stop is not None and header.next_offset > stop
            ):
                batch = batch.trim(self._first_wanted, stop)
            if len(batch):
                return batch
        self._check_end()
        return None

    def _take_small_batches(self, arrived_bytes: int) -> SmallBatches | None:
        """Return the next small batches, up to the first damaged batch; None if the next batch must
        be decoded alone."""
        position = self._position
        if position < self._look_at or arrived_bytes - position < _LOOK_BYTES:
            return None
        from liftlog.records.columns.small_batches import take_small_batches

        body = self._body[:arrived_bytes]
        found = take_small_batches(body, position, self._place, self._first_wanted, self._stop)
        if found is None:
            self._look_at = position + self._look_step
            self._look_step = min(8 * self._look_step, _RARELY_BYTES)
            return None
        some, self._position = found
        self._look_step = 1
        return some

    def _check_end(self) -> None:
        """Raise DamagedHeader if the last batch does not reach the end of the answer."""
        reached = self.next_offset
        end = self._header.next_offset
        if reached < end and (self._stop is None or reached < self._stop):
            raise DamagedHeader(reached, len(self._body), end)

    def _is_whole(self, position: int, arrived_bytes: int) -> bool:
        """Return True if the batch at `position` has arrived completely. The length field of the
        batch is not verified yet: at worst, a wrong length makes the reader wait for the rest of
        the body."""
        needed = position + HEADER_SIZE
        if needed <= arrived_bytes:
            (length,) = _LENGTH.unpack_from(self._body, position + LENGTH_POSITION)
            needed = position + max(length, HEADER_SIZE)
        self.needed_bytes = min(needed, len(self._body))
        return needed <= arrived_bytes

    def _header_at(self, position: int) -> BatchHeader | None:
        """Return the header of a batch whose body is damaged; None if the header is damaged, too,
        or the batch does not begin where the previous one ends."""
        try:
            header = parse_header(self._body, position)
        except CorruptBatch:
            return None
        whole = position + header.length <= len(self._body)
        return header if whole and self._place.holds(header) else None


def checked_batches(stream: str, header: FetchHeader, body: memoryview) -> Iterator[RecordBatch]:
    """Yield the batches of a body that has arrived completely. Raises CorruptRange."""
    batches = ArrivingBatches(stream, header, body, None)
    while True:
        try:
            batch = batches.next(len(body))
        except DamagedHeader as damage:
            found = find_good_batch(body, damage.position, damage.offset, damage.next_offset)
            # If the end of the damaged batch is unknown, only its first record is reported as
            # damaged. The next fetch begins after that record: the daemon, which has the index,
            # finds the end.
            following = damage.offset + 1 if found is None else found
            raise corrupt_range(stream, damage.offset, following) from damage
        if batch is None:
            return
        yield batch


def corrupt_range(stream: str, first_offset: int, next_offset: int) -> CorruptRange:
    return CorruptRange(
        f"the records [{first_offset}, {next_offset}) of {stream!r} fail their checksum",
        hint=f"read on with start={next_offset}",
        first_offset=first_offset,
        next_offset=next_offset,
    )


def take_records(waiting: list[Batches]) -> tuple[list[Record], list[Batches]]:
    """Return the records of the first item, and the items that follow it. Raises CorruptBatch.

    If one of several small batches in an item is corrupt, the item is split into single batches, so
    that the records before the corrupt batch are returned first.
    """
    some, *rest = waiting
    if isinstance(some, RecordBatch):
        return some.records(), rest
    from liftlog.records.columns.many import records_of  # numpy is imported already

    try:
        return records_of(some), rest
    except CorruptBatch:
        return [], [*some.batches(), *rest]


class FetchAnswer:
    """The answer to one `fetch`: the state of the log, and the batches."""

    __slots__ = ("_body", "_stream", "header")

    def __init__(self, stream: str, header: FetchHeader, body: memoryview | None) -> None:
        self.header = header
        self._stream = stream
        self._body = body

    @property
    def next_offset(self) -> int:
        """The offset from which the next fetch continues."""
        return self.header.next_offset

    @property
    def high_watermark(self) -> int:
        """The stream's high watermark: all records below it are committed."""
        return self.header.high_watermark

    def __len__(self) -> int:
        """The number of bytes of the body."""
        return 0 if self._body is None else len(self._body)

    def batches(self) -> Iterator[RecordBatch]:
        """Yield the batches. They are verified, and contain only requested records. Raises
        CorruptRange for damaged records. To read the records after the damage, fetch at the
        error's `next_offset`."""
        if self._body is None:
            return iter(())
        return checked_batches(self._stream, self.header, self._body)


def find_good_batch(body: memoryview, position: int, offset: int, end_offset: int) -> int | None:
    """Return the offset of the first good batch after a damaged batch. The damaged batch begins at
    `position`, and its first offset should be `offset`.

    `end_offset` is the end of the answer according to its header; it is returned if no good batch
    follows. A batch counts as good if a chain of headers leads from it to the end of the answer and
    to `end_offset`, each header beginning where the previous batch ends. Without such a chain, a
    header may belong to a batch before more damage, or may be part of the value of a record. In
    this case the result is None, and the caller must ask the daemon.
    """
    raw = body.tobytes()
    at = raw.find(MAGIC, position + ALIGNMENT)
    while at >= 0:
        header = _header_at(body, at) if at % ALIGNMENT == 0 else None
        if header is not None and header.base_offset > offset:
            if not _leads_to_end(body, at, header, end_offset):
                return None
            if _is_whole(body, at, header):
                return header.base_offset
        at = raw.find(MAGIC, at + 1)
    return end_offset


def _header_at(body: memoryview, position: int) -> BatchHeader | None:
    if position + HEADER_SIZE > len(body):
        return None
    try:
        return parse_header(body, position)
    except (CorruptBatch, UnsupportedFormat):
        return None


def _is_whole(body: memoryview, position: int, header: BatchHeader) -> bool:
    try:
        verify_body(body[position : position + header.length], header)
    except CorruptBatch:
        return False
    return True


def _leads_to_end(body: memoryview, position: int, header: BatchHeader, end_offset: int) -> bool:
    current: BatchHeader | None = header
    while current is not None:
        position += current.length
        offset, epoch = current.next_offset, current.leader_epoch
        if position == len(body):
            return offset == end_offset
        current = _header_at(body, position)
        if current is not None and (current.base_offset != offset or current.leader_epoch < epoch):
            current = None
    return False
