"""The input and the result of a filtered read of a log."""

from __future__ import annotations

from typing import NamedTuple

from liftlog.records.columns.selection import Selection
from liftlog.server.reading.pieces import SharedPieces


class Scan(NamedTuple):
    """Describes a filtered read: the first offset, and the wanted records. `stop_offset` is
    exclusive; None stands for the high watermark."""

    offset: int
    stop_offset: int | None
    max_bytes: int
    selection: Selection
    shared: SharedPieces | None = None
    """The pieces that the members of a group share; None if the reader is not a member of a
    group."""
    is_optional: bool = False
    """True if the scan may be refused. The reader then gets all records as they are stored, if a
    search would take long."""


class Scanned(NamedTuple):
    """The result of a scan from its first offset to `next_offset`.

    `caught_up` is True if the scan reached the high watermark; otherwise more records may exist
    already. `is_refused` is True if the scan was optional and examined nothing.
    """

    incarnation: str
    first_offset: int
    next_offset: int
    record_count: int
    batches: tuple[bytearray, ...]
    caught_up: bool
    is_refused: bool = False

    @property
    def size_bytes(self) -> int:
        return sum([len(batch) for batch in self.batches])

    @property
    def body(self) -> bytes:
        """Return a copy of all batches as one block of bytes."""
        return b"".join(self.batches)
