"""The body of an answer -> checked batches that hold only what was asked for."""

from __future__ import annotations

from collections.abc import Iterator

from liftlog.errors import CorruptBatch, CorruptRange
from liftlog.protocol.messages import FetchHeader
from liftlog.records.decode import RecordBatch, decode_batch
from liftlog.records.header import parse_header


def checked_batches(
    stream: str, header: FetchHeader, body: memoryview, stop_offset: int | None
) -> Iterator[RecordBatch]:
    """Every checksum is verified before its batch is handed out.

    Records below the asked offset and the log start, and at or above `stop_offset`, are
    dropped, and batches left without records are skipped. Raises CorruptRange at the first
    batch that fails its check; what came before it has been handed out.
    """
    first_wanted = max(header.offset, header.log_start_offset)
    position, end = 0, len(body)
    reached = header.first_offset
    while position < end:
        try:
            batch = decode_batch(body, position)
        except CorruptBatch as error:
            raise _corrupt(stream, header, body, position, max(reached, first_wanted)) from error
        position += batch.header.length
        reached = batch.header.next_offset
        batch = batch.trim(first_wanted, stop_offset)
        if len(batch):
            yield batch


def _corrupt(
    stream: str, header: FetchHeader, body: memoryview, position: int, first_offset: int
) -> CorruptRange:
    """Only one batch is lost when its header is intact, else the rest of the answer."""
    try:
        next_offset = parse_header(body, position).next_offset
    except CorruptBatch:
        next_offset = header.next_offset
    next_offset = max(next_offset, first_offset + 1)
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
        return self.header.high_watermark

    def __len__(self) -> int:
        """Bytes of the body."""
        return 0 if self._body is None else len(self._body)

    def batches(self) -> Iterator[RecordBatch]:
        """Checked and trimmed. Raises CorruptRange."""
        if self._body is None:
            return iter(())
        return checked_batches(self._stream, self.header, self._body, None)
