"""Record batches as a `pyarrow.RecordBatch`. Importing this module imports pyarrow.

`to_arrow` is for one batch. Binary columns have the layout of Arrow, so keys, headers and values
are not copied: the arrays refer to the bytes that came from the socket or the file, and keep them
alive. Offsets and timestamps are computed; the subject becomes a dictionary array.

`rows_of` is for callers that pass on many rows at a time: Spark, exports. All batches are decoded
together, so the cost of a row does not depend on the size of its batch. The result does not refer
to the buffers of the batches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate, compress
from typing import Any

from liftlog.errors import CorruptBatch, InvalidArgument, MissingDependency
from liftlog.records.decode import RecordBatch
from liftlog.records.format import KEYS, MAX_BATCH_RECORDS, SUBJECT_IDS, TOMBSTONES
from liftlog.records.header import BatchHeader
from liftlog.records.layout import Binary, Layout, size_of

try:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from liftlog.records.columns.column_set import BinaryColumn, offsets_of, timestamps_of
    from liftlog.records.columns.many import ManyBatches
    from liftlog.records.columns.positions import Batches
except ImportError as error:
    raise MissingDependency(
        f"Arrow record batches need {error.name}, which is not installed",
        hint=f"pip install {error.name}",
    ) from error

_TIMESTAMP = pa.timestamp("ns", "UTC")
SCHEMA = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", _TIMESTAMP, nullable=False),
        pa.field("subject", pa.dictionary(pa.int32(), pa.utf8()), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("headers", pa.binary(), nullable=False),
        pa.field("value", pa.binary()),
    ]
)
_SUBJECT = pa.field("subject", pa.utf8(), nullable=False)
ROWS_SCHEMA = pa.schema([_SUBJECT if field.name == "subject" else field for field in SCHEMA])
"""SCHEMA with subjects as plain text, since every batch has a dictionary of its own."""

_FEW_NAMES = 8
"""With this many records for each dictionary entry, it is faster to detect that all have the same
subject, and to repeat it, than to look up each one."""
_ZEROS = pa.py_buffer(bytes(4 * (MAX_BATCH_RECORDS + 1)))


def to_arrow(
    view: memoryview,
    header: BatchHeader,
    layout: Layout[int],
    first: int,
    end: int,
    columns: Sequence[str] | None = None,
) -> pa.RecordBatch:
    """Return records number `first` to `end - 1` of the verified batch in `view`.

    `columns` chooses and orders columns of SCHEMA; None takes all. Raises InvalidArgument for a
    column that does not exist, CorruptBatch when the columns contradict each other.
    """
    names = SCHEMA.names if columns is None else list(columns)
    unknown = [name for name in names if name not in SCHEMA.names]
    if unknown or not names:
        raise InvalidArgument(
            f"a record batch has no column {unknown[0]!r}"
            if unknown
            else "no column was requested",
            hint=f"choose from {', '.join(SCHEMA.names)}",
        )
    schema = SCHEMA if columns is None else pa.schema([SCHEMA.field(name) for name in names])
    made = _Arrays(view, header, layout)
    try:
        arrays = [getattr(made, name)() for name in names]
        for array in arrays:
            # Checked here: Arrow would follow offsets out of the batch, and ids out of the
            # dictionary.
            array.validate(full=True)
    except (pa.ArrowException, IndexError) as error:
        raise CorruptBatch(f"the columns of the batch contradict each other: {error}") from error
    if end - first != header.record_count:
        arrays = [array.slice(first, end - first) for array in arrays]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


class _Arrays:
    """The columns of SCHEMA for all records of the batch, unchecked."""

    def __init__(self, view: memoryview, header: BatchHeader, layout: Layout[int]) -> None:
        self._view, self._header, self._layout = view, header, layout
        self._count = header.record_count

    def offset(self) -> pa.Array:
        return _fixed(pa.int64(), offsets_of(self._view, self._header))

    def timestamp(self) -> pa.Array:
        return _fixed(_TIMESTAMP, timestamps_of(self._view, self._header, self._layout))

    def subject(self) -> pa.Array:
        """Return the dictionary as it is stored, and each record's index into it."""
        names = self._binary(pa.utf8(), self._layout.dictionary, self._layout.entries, 0)
        names.validate(full=True)  # checks that they are UTF-8; `to_arrow` checks the indexes
        if self._header.attributes & SUBJECT_IDS:
            found = np.frombuffer(self._view, np.uint16, self._count, self._layout.ids)
            ids = found.astype(np.int32)
        else:
            ids = np.zeros(self._count, np.int32)
        return pa.DictionaryArray.from_arrays(_fixed(pa.int32(), ids), names, safe=False)

    def key(self) -> pa.Array:
        column = self._layout.keys
        if column is None:
            return pa.nulls(self._count, pa.binary())
        return self._binary(pa.binary(), column, self._count, KEYS)

    def headers(self) -> pa.Array:
        column = self._layout.headers
        if column is None:
            nothing = [None, _ZEROS, pa.py_buffer(b"")]
            return pa.Array.from_buffers(pa.binary(), self._count, nothing)
        return self._binary(pa.binary(), column, self._count, 0)

    def value(self) -> pa.Array:
        tombstones = self._header.attributes & TOMBSTONES
        return self._binary(pa.binary(), self._layout.values, self._count, tombstones)

    def _binary(
        self, kind: pa.DataType, column: Binary[int], count: int, has_bitmap: int
    ) -> pa.Array:
        """Return a binary column as it is stored, not copied."""
        view, bitmap = self._view, None
        if has_bitmap:
            bitmap = pa.py_buffer(view[column.bitmap : column.bitmap + (count + 7) // 8])
        ends = pa.py_buffer(view[column.ends : column.ends + 4 * (count + 1)])
        size = size_of(view, column, count)
        data = pa.py_buffer(view[column.data : column.data + size])
        return pa.Array.from_buffers(kind, count, [bitmap, ends, data])


def _fixed(kind: pa.DataType, items: NDArray[Any]) -> pa.Array:
    return pa.Array.from_buffers(kind, len(items), [None, pa.py_buffer(items)])


# --- many batches as one ---


def rows_of(batches: Sequence[Batches], columns: Sequence[str]) -> pa.RecordBatch:
    """Return the records of all batches in order, with these columns of ROWS_SCHEMA.

    The batches are verified and together hold less than 2 GiB. Raises InvalidArgument for a column
    that does not exist, CorruptBatch when the columns of a batch contradict each other.
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
    """Return each subject of the batch once, including those of trimmed records."""
    return batch._subject_names()


def _places(found: Sequence[Batches]) -> NDArray[np.intp]:
    """Return the indexes of the records among those of the untrimmed batches."""
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
    names.validate(full=True)  # checks that they are UTF-8
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
