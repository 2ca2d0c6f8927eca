"""A filtered read of a log: its conditions and its result."""

from __future__ import annotations

from typing import NamedTuple

from liftlog.records.columns.selection import Selection
from liftlog.server.reading.pieces import SharedPieces


class Scan(NamedTuple):
    """The place to scan, and the wanted records. `stop_offset` is exclusive; None: up to the high
    watermark."""

    offset: int
    stop_offset: int | None
    max_bytes: int
    selection: Selection
    shared: SharedPieces | None = None
    """For a member of a group."""
    is_optional: bool = False
    """True if the reader accepts all records as they are stored when searching them takes long."""


class Scanned(NamedTuple):
    """The result between the scan's offset and `next_offset`.

    `caught_up`: the high watermark was reached. Otherwise more records may be there already.
    `is_refused`: the scan was optional, and nothing was examined.
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
        """Return a copy of the batches, joined."""
        return b"".join(self.batches)
