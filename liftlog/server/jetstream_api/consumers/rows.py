"""The records that consumers deliver over NATS."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import compress, repeat
from operator import itemgetter
from typing import NamedTuple

from liftlog.log.state import ReadView
from liftlog.records.columns.column_set import Flags
from liftlog.records.decode import RecordBatch, iter_batches
from liftlog.server.jetstream_api.answers import without_statuses

_OFFSET = itemgetter(0)


class Row(NamedTuple):
    offset: int
    timestamp_ns: int
    subject: bytes
    headers: bytes
    """A NATS header block; empty without headers."""
    value: bytes


class SharedRow(Row):
    """A row that several consumers deliver."""

    wire: tuple[bytes, bytes, bytes] | None = None
    """Parts of the message that are equal for all consumers; see `leaf_frames.common_parts`. None
    until the first consumer has made them."""


def rows_in(body: bytes, *, keeps_tombstones: bool) -> Iterable[Row]:
    for batch in iter_batches(body, verify=False):
        yield from rows_of(batch, None, keeps_tombstones=keeps_tombstones)


def rows_of(
    batch: RecordBatch,
    wanted: Flags | None,
    *,
    keeps_tombstones: bool,
    kind: type[Row] = Row,
) -> Iterable[Row]:
    """Yield the records of a batch for which `wanted` is true; all records if it is None. The rows
    are objects of `kind`."""
    values = batch.values()
    columns = (
        batch.offsets(),
        batch.timestamps_ns(),
        batch.raw_subjects(),
        without_statuses(batch.headers()),
        [value or b"" for value in values],
    )
    # The constructor of the NamedTuple takes three times as long.
    rows: Iterable[Row] = map(tuple.__new__, repeat(kind), zip(*columns, strict=True))
    if wanted is not None:
        rows = compress(rows, wanted)
    if keeps_tombstones or not batch.has_tombstones:
        return rows
    kept = [value is not None for value in values]
    return compress(rows, kept if wanted is None else compress(kept, wanted))


def without_erased(rows: Iterable[Row], view: ReadView) -> list[Row]:
    """Leave out the records that were erased after this consumer had read them."""
    found = list(rows)
    if view.erased is None or not found:
        return found
    # Usually none of them is erased, and checking each row would take ten times as long.
    first = view.erased.next_at(min(map(_OFFSET, found)))
    if first is None or first > max(map(_OFFSET, found)):
        return found
    return [row for row in found if not view.hides(row.offset)]
