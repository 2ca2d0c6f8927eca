"""The input and the result of a filtered read of a log."""

from __future__ import annotations

from typing import NamedTuple

from acl import subjects as patterns
from liftlog.records.columns.heads import WantedSubjects
from liftlog.records.columns.selection import Selection, matching_all
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
    """True if the scan may be refused when a search would take long. The reader then gets all
    records as they are stored."""


class Scanned(NamedTuple):
    """The result of a scan from its first offset to `next_offset`.

    `caught_up` is True if the scan reached the high watermark. If it is False, more records may
    already exist. `is_refused` is True if the scan was optional and examined no record.
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


def wanted_subjects(selection: Selection) -> WantedSubjects | None:
    """Return the conditions on subjects; None if there are other conditions."""
    more = (selection.keys, selection.headers, selection.values, selection.slots)
    if any(one is not None for one in more):
        return None
    subjects, readable = selection.subjects, selection.readable
    if subjects is None:
        return None
    literals = None
    if all(patterns.is_literal(one) for one in subjects):
        literals = tuple(dict.fromkeys(one.encode() for one in subjects))
    conditions = (None if literals is not None else subjects, readable)
    others = tuple(one for one in conditions if one is not None)
    return WantedSubjects(literals, matching_all(others) if others else None)
