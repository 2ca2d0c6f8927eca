"""The body of an answer -> checked batches that hold only what was asked for."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from liftlog.client.resync import find_good_batch
from liftlog.errors import CorruptBatch, CorruptRange
from liftlog.protocol.messages import FetchHeader
from liftlog.records.decode import RecordBatch, decode_batch
from liftlog.records.format import HEADER_SIZE, LENGTH_POSITION
from liftlog.records.header import BatchHeader, parse_header
from liftlog.records.place import Place

_LENGTH = struct.Struct("<I")


class DamagedHeader(Exception):
    """The batch of `offset` cannot be told from what follows: its header is damaged, and with it
    the word on how far it reaches; or another batch stands in its place. The answer ends at
    `next_offset`. For this package's own use."""

    def __init__(self, offset: int, position: int, next_offset: int) -> None:
        super().__init__(offset, position, next_offset)
        self.offset = offset
        self.position = position
        self.next_offset = next_offset


class ArrivingBatches:
    """The batches of a body that may still be on its way.

    Every checksum is verified before its batch is handed out, and that it continues the one before:
    the batches of an answer tile the offsets that its header names. Records below the asked offset
    and the log start, and at or above `stop_offset`, are dropped, and batches left without
    records are skipped. A batch is looked at as soon as it is whole: its bytes have just been
    copied then and are still in the processor's cache.
    """

    __slots__ = ("_body", "_first_wanted", "_header", "_place", "_position", "_stop", "_stream",
                 "needed_bytes")  # fmt: skip

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
        self.needed_bytes = 0
        """How many bytes of the body must be here before `next` has more to say."""

    @property
    def next_offset(self) -> int:
        """What follows the batches that were handed out."""
        return max(self._place.offset, self._first_wanted)

    @property
    def exhausted(self) -> bool:
        return self._position >= len(self._body)

    def next(self, arrived_bytes: int) -> RecordBatch | None:
        """The next batch, or None: exhausted, or the bytes of the next one are not here.

        Raises CorruptRange for a batch whose body fails its check (the next call goes on behind
        it), DamagedHeader for one whose header does or that belongs somewhere else (this answer is
        over then). What came before has been handed out.
        """
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
                    continue  # all of it lies below what was asked for
                raise corrupt_range(self._stream, reached, bad.next_offset) from error
            self._position = position + batch.header.length
            batch = batch.trim(self._first_wanted, self._stop)
            if len(batch):
                return batch
        self._check_end()
        return None

    def _check_end(self) -> None:
        """Raises DamagedHeader when the last batch does not reach to where the answer ends."""
        reached = self.next_offset
        end = self._header.next_offset
        if reached < end and (self._stop is None or reached < self._stop):
            raise DamagedHeader(reached, len(self._body), end)

    def _is_whole(self, position: int, arrived_bytes: int) -> bool:
        """Whether the batch at `position` has arrived; what it says of itself is not checked yet,
        so the worst that a wrong length can do is to wait for the rest of the body."""
        needed = position + HEADER_SIZE
        if needed <= arrived_bytes:
            (length,) = _LENGTH.unpack_from(self._body, position + LENGTH_POSITION)
            needed = position + max(length, HEADER_SIZE)
        self.needed_bytes = min(needed, len(self._body))
        return needed <= arrived_bytes

    def _header_at(self, position: int) -> BatchHeader | None:
        """The header of a batch whose body is damaged; None unless it continues the answer."""
        try:
            header = parse_header(self._body, position)
        except CorruptBatch:
            return None
        whole = position + header.length <= len(self._body)
        return header if whole and self._place.holds(header) else None


def checked_batches(stream: str, header: FetchHeader, body: memoryview) -> Iterator[RecordBatch]:
    """The batches of a whole body. Raises CorruptRange."""
    batches = ArrivingBatches(stream, header, body, None)
    while True:
        try:
            batch = batches.next(len(body))
        except DamagedHeader as damage:
            found = find_good_batch(body, damage.position, damage.offset, damage.next_offset)
            # Without proof of where it ends only its first record is certain; whoever fetches
            # behind that is told the rest by the daemon, which has the index.
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


class FetchAnswer:
    """One answer of the low-level `fetch`: where the log stands, and the batches."""

    __slots__ = ("_body", "_stream", "header")

    def __init__(self, stream: str, header: FetchHeader, body: memoryview | None) -> None:
        self.header = header
        self._stream = stream
        self._body = body

    @property
    def next_offset(self) -> int:
        """Where to fetch next."""
        return self.header.next_offset

    @property
    def high_watermark(self) -> int:
        """The stream's: everything below is committed."""
        return self.header.high_watermark

    def __len__(self) -> int:
        """Bytes of the body."""
        return 0 if self._body is None else len(self._body)

    def batches(self) -> Iterator[RecordBatch]:
        """Checked and trimmed. Raises CorruptRange; fetch on at its `next_offset`."""
        if self._body is None:
            return iter(())
        return checked_batches(self._stream, self.header, self._body)
