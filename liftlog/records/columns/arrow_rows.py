"""Many record batches as one `pyarrow.RecordBatch`. Importing this module imports pyarrow.

This module is for callers that process many rows at a time, such as Spark and exports. All batches
are decoded together, so the cost of a row does not depend on the size of its batch. The result does
not refer to the buffers of the batches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate, compress
from typing import Any

# This import comes first, because its error names the missing package.
from liftlog.records.columns.arrow import SCHEMA  # isort: skip

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from liftlog.errors import CorruptBatch, InvalidArgument
from liftlog.records.columns.column_set import BinaryColumn
from liftlog.records.columns.many import ManyBatches
from liftlog.records.columns.positions import Batches
from liftlog.records.decode import RecordBatch

_TIMESTAMP = SCHEMA.field("timestamp").type
_SUBJECT = pa.field("subject", pa.utf8(), nullable=False)
ROWS_SCHEMA = pa.schema([_SUBJECT if field.name == "subject" else field for field in SCHEMA])
"""SCHEMA with subjects as plain text, because every batch has a dictionary of its own."""

_FEW_NAMES = 8
"""Number of records per dictionary entry. Above this number, a check whether all entries are the
same subject is made first. Repeating one subject is faster than looking up the subject of each
record."""


def rows_of(batches: Sequence[Batches], columns: Sequence[str]) -> pa.RecordBatch:
    """Return the records of all batches in order, with the given columns of ROWS_SCHEMA.

    The batches are verified and have less than 2 GiB together. Raises InvalidArgument for a column
    that does not exist, CorruptBatch if the columns of a batch contradict each other.
    """
    names = tuple(columns)
    schema = _schema_of(names)
    sizes = list(map(len, batches))
    found = list(compress(batches, sizes))
    if not found:
        return pa.RecordBatch.from_arrays([pa.array([], one.type) for one in schema], schema=schema)
    try:
        records = ManyBatches(found)
        arrays = [_MAKERS[name](records) for name in names]
    except pa.ArrowException as error:
        raise CorruptBatch(f"the columns of a batch contradict each other: {error}") from error
    if sum(sizes) != len(records):  # some batches were trimmed
        places = _places(found)
        arrays = [_cut(made, places) for made in arrays]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


@lru_cache(maxsize=64)
def _schema_of(names: tuple[str, ...]) -> pa.Schema:
    if not names or not set(names) <= set(ROWS_SCHEMA.names):
        raise InvalidArgument(
            f"records have no columns {list(names)!r}",
            hint=f"choose from {', '.join(ROWS_SCHEMA.names)}",
        )
    return pa.schema([ROWS_SCHEMA.field(name) for name in names])


def subject_names(batch: RecordBatch) -> list[str]:
    """Return each subject of the batch once, including the subjects of trimmed records."""
    return batch._subject_names()


def _places(found: Sequence[Batches]) -> NDArray[np.intp]:
    """Return the index of each record, counted over all records of the untrimmed batches."""
    extents = [
        (some._lo, some._hi, some.header.record_count)
        if isinstance(some, RecordBatch)
        else (0, len(some), len(some))
        for some in found
    ]
    before = accumulate([count for _, _, count in extents], initial=0)
    pairs = zip(extents, before, strict=False)
    return np.concatenate([np.arange(at + first, at + end) for (first, end, _), at in pairs])


def _cut(made: pa.Array, places: NDArray[np.intp]) -> pa.Array:
    first, count = int(places[0]), len(places)
    if int(places[-1]) - first == count - 1:
        return made.slice(first, count)
    return made.take(pa.array(places))


def _offsets(records: ManyBatches) -> pa.Array:
    return pa.array(records.offsets())


def _timestamps(records: ManyBatches) -> pa.Array:
    return pa.array(records.timestamps_ns()).view(_TIMESTAMP)


def _subjects(records: ManyBatches) -> pa.Array:
    entries, places = records.subjects()
    names = _array(pa.utf8(), entries)
    names.validate(full=True)  # checks that the subjects are UTF-8
    if _FEW_NAMES * len(names) < len(places):
        distinct = names.unique()
        if len(distinct) == 1:
            return pa.repeat(distinct[0], len(places))
    return names.take(pa.array(places))


def _keys(records: ManyBatches) -> pa.Array:
    return _array(pa.binary(), records.keys())


def _headers(records: ManyBatches) -> pa.Array:
    return _array(pa.binary(), records.headers())


def _values(records: ManyBatches) -> pa.Array:
    return _array(pa.binary(), records.values())


def _array(kind: pa.DataType, column: BinaryColumn) -> pa.Array:
    bitmap = None
    if column.valid is not None:
        bitmap = pa.py_buffer(np.packbits(column.valid, bitorder="little"))
    buffers = [bitmap, pa.py_buffer(column.ends), pa.py_buffer(column.data)]
    return pa.Array.from_buffers(kind, len(column), buffers)


_MAKERS: dict[str, Callable[[ManyBatches], Any]] = {
    "offset": _offsets,
    "timestamp": _timestamps,
    "subject": _subjects,
    "key": _keys,
    "headers": _headers,
    "value": _values,
}
