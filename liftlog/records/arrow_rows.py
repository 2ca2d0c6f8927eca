"""Many record batches as one `pyarrow.RecordBatch`. Needs numpy and pyarrow.

For those who hand rows on in large pieces: Spark, exports. Small batches, as synchronous publishers
leave them, are decoded together; of large ones each column is put together from those of the
batches. Either way nothing refers to the buffers any more that the batches lie in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from liftlog.errors import CorruptBatch, InvalidArgument
from liftlog.records.arrow import SCHEMA, binary_of, offsets_of, subjects_of, timestamps_of
from liftlog.records.column_set import BinaryColumn, Columns
from liftlog.records.decode import RecordBatch
from liftlog.records.format import HEADERS, KEYS, TOMBSTONES
from liftlog.records.layout import Binary, find_columns, find_dictionary
from liftlog.records.many import can_decode_together, decode_many

_SMALL_RECORDS = 256
"""Batches of fewer records, and one subject, are cheaper to decode together than one by one."""

_SUBJECT = pa.field("subject", pa.utf8(), nullable=False)
_TIMESTAMP = SCHEMA.field("timestamp").type
ROWS_SCHEMA = pa.schema([_SUBJECT if field.name == "subject" else field for field in SCHEMA])
"""As SCHEMA, but with subjects as plain text: every batch has a dictionary of its own."""


def rows_of(batches: Sequence[RecordBatch], columns: Sequence[str]) -> pa.RecordBatch:
    """The records of all batches in their order, with these columns of ROWS_SCHEMA.

    The batches are verified and together hold less than 2 GiB. Raises InvalidArgument for a column
    that does not exist, CorruptBatch when the columns of a batch contradict each other.
    """
    names = list(columns)
    if not names or not set(names) <= set(ROWS_SCHEMA.names):
        raise InvalidArgument(
            f"records have no columns {names!r}", hint=f"choose from {', '.join(ROWS_SCHEMA.names)}"
        )
    schema = pa.schema([ROWS_SCHEMA.field(name) for name in names])
    try:
        parts = [_convert(run, names) for run in _runs(batches)]
    except (pa.ArrowException, UnicodeDecodeError, IndexError) as error:
        raise CorruptBatch(f"the columns of a batch contradict each other: {error}") from error
    if not parts:
        arrays = [pa.array([], field.type) for field in schema]
    elif len(parts) == 1:
        arrays = parts[0]
    else:
        arrays = [pa.concat_arrays([part[i] for part in parts]) for i in range(len(names))]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def subject_names(batch: RecordBatch) -> list[str]:
    """Each subject that occurs in the batch once, trimmed or not: a look at its dictionary only."""
    return batch._subject_names()


def _runs(batches: Sequence[RecordBatch]) -> Iterator[list[RecordBatch]]:
    """Neighbours that are converted in one go."""
    run: list[RecordBatch] = []
    for batch in batches:
        if not len(batch):
            continue
        if run and not _go_together(run[0], batch):
            yield run
            run = []
        run.append(batch)
    if run:
        yield run


def _go_together(one: RecordBatch, other: RecordBatch) -> bool:
    if _is_small(one) != _is_small(other):
        return False
    return not _is_small(one) or can_decode_together(one, other)


def _is_small(batch: RecordBatch) -> bool:
    """Whether it is better decoded with others like it; not if it was trimmed."""
    count = batch.header.record_count
    return count < _SMALL_RECORDS and len(batch) == count and can_decode_together(batch, batch)


def _convert(run: list[RecordBatch], names: list[str]) -> list[pa.Array]:
    if not _is_small(run[0]):
        return _Large(run).arrays(names)
    records = decode_many(run)
    arrays = [_MAKERS[name](records) for name in names]
    for made in arrays:
        made.validate(full=True)
    return arrays


class _Large:
    """Batches whose columns are put together one column after the other."""

    def __init__(self, run: list[RecordBatch]) -> None:
        self._run = run
        self._dictionaries = [find_dictionary(batch.raw, batch.header) for batch in run]
        self._binary: list[dict[int, Binary]] | None = None

    def arrays(self, names: list[str]) -> list[pa.Array]:
        return [getattr(self, f"_{name}")() for name in names]

    def _offset(self) -> pa.Array:
        return pa.array(self._numbers(offsets_of))

    def _timestamp(self) -> pa.Array:
        return pa.array(self._numbers(timestamps_of)).view(_TIMESTAMP)

    def _numbers(self, get: Callable[[RecordBatch], NDArray[np.int64]]) -> NDArray[np.int64]:
        return np.concatenate([get(one)[one._lo : one._hi] for one in self._run])

    def _subject(self) -> pa.Array:
        """All dictionaries one after the other, and each record's place in that."""
        names, places, count = [], [], 0
        for batch, dictionary in zip(self._run, self._dictionaries, strict=True):
            entries, ids = subjects_of(batch, dictionary)
            if len(ids) and int(ids.max()) >= len(entries):
                raise CorruptBatch("a subject id points outside the dictionary")
            names.append(entries)
            places.append(ids[batch._lo : batch._hi] + np.int32(count))
            count += len(entries)
        together = pa.concat_arrays(names)
        together.validate(full=True)
        return together.take(pa.array(np.concatenate(places)))

    def _key(self) -> pa.Array:
        return self._binaries(KEYS, absent_is_null=True)

    def _headers(self) -> pa.Array:
        return self._binaries(HEADERS, absent_is_null=False)

    def _value(self) -> pa.Array:
        return self._binaries(TOMBSTONES, absent_is_null=False)

    def _binaries(self, bit: int, *, absent_is_null: bool) -> pa.Array:
        if self._binary is None:
            pairs = zip(self._run, self._dictionaries, strict=True)
            self._binary = [find_columns(one.raw, one.header, entries) for one, entries in pairs]
        arrays = []
        for batch, columns in zip(self._run, self._binary, strict=True):
            column = columns.get(bit)
            if column is None and absent_is_null:
                made = pa.nulls(batch.header.record_count, pa.binary())
            else:
                made = binary_of(batch, column)
                # Offsets that leave the batch would be followed by what comes next.
                made.validate(full=True)
            whole = len(batch) == batch.header.record_count
            arrays.append(made if whole else made.slice(batch._lo, len(batch)))
        return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


# --- columns of numpy to columns of Arrow ---


def _offsets(records: Columns) -> pa.Array:
    return pa.array(records.offsets)


def _timestamps(records: Columns) -> pa.Array:
    return pa.array(records.timestamps_ns).view(_TIMESTAMP)


def _subjects(records: Columns) -> pa.Array:
    names = pa.array([raw.decode() for raw, _ in records.subjects], pa.utf8())
    ids = records.subject_ids
    places = np.zeros(len(records), np.int32) if ids is None else ids.astype(np.int32)
    return names.take(pa.array(places))


def _keys(records: Columns) -> pa.Array:
    if records.keys is None:
        return pa.nulls(len(records), pa.binary())
    return _binary(records.keys)


def _headers(records: Columns) -> pa.Array:
    if records.headers is None:
        nothing = np.zeros(len(records) + 1, np.int32)
        return _binary(BinaryColumn(nothing, np.empty(0, np.uint8), None))
    return _binary(records.headers)


def _values(records: Columns) -> pa.Array:
    return _binary(records.values)


def _binary(column: BinaryColumn) -> pa.Array:
    bitmap = None
    if column.valid is not None:
        bitmap = pa.py_buffer(np.packbits(column.valid, bitorder="little"))
    ends, data = np.ascontiguousarray(column.ends), np.ascontiguousarray(column.data)
    buffers = [bitmap, pa.py_buffer(ends), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(column), buffers)


_MAKERS: dict[str, Callable[[Columns], Any]] = {
    "offset": _offsets,
    "timestamp": _timestamps,
    "subject": _subjects,
    "key": _keys,
    "headers": _headers,
    "value": _values,
}
