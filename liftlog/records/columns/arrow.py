"""One record batch as a `pyarrow.RecordBatch`. Importing this module imports pyarrow.

The binary columns of a batch have the layout of Arrow, so keys, headers and values are not copied:
the arrays refer to the bytes that came from the socket or the file, and keep that buffer in memory.
Offsets and timestamps are computed; subjects become a dictionary array.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from liftlog.errors import CorruptBatch, InvalidArgument, MissingDependency
from liftlog.records.format import KEYS, MAX_BATCH_RECORDS, SUBJECT_IDS, TOMBSTONES
from liftlog.records.header import BatchHeader
from liftlog.records.layout import Binary, Layout, size_of

try:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from liftlog.records.columns.column_set import offsets_of, timestamps_of
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
_ZEROS = pa.py_buffer(bytes(4 * (MAX_BATCH_RECORDS + 1)))


def to_arrow(
    view: memoryview,
    header: BatchHeader,
    layout: Layout[int],
    first: int,
    end: int,
    columns: Sequence[str] | None = None,
) -> pa.RecordBatch:
    """Return the records with the numbers `first` to `end - 1` of the verified batch in `view`.

    `columns` are the wanted columns of SCHEMA, in the wanted order; None means all. Raises
    InvalidArgument for a column that does not exist, CorruptBatch if the columns contradict each
    other.
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
            # This function checks offsets and ids, because Arrow would follow offsets out of the
            # batch, and ids out of the dictionary.
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
        """Return the stored dictionary, and the index of each record into it."""
        names = self._binary(pa.utf8(), self._layout.dictionary, self._layout.entries, 0)
        names.validate(full=True)  # checks that subjects are UTF-8; `to_arrow` checks the indexes
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
        """Return a stored binary column without copying it."""
        view, bitmap = self._view, None
        if has_bitmap:
            bitmap = pa.py_buffer(view[column.bitmap : column.bitmap + (count + 7) // 8])
        ends = pa.py_buffer(view[column.ends : column.ends + 4 * (count + 1)])
        size = size_of(view, column, count)
        data = pa.py_buffer(view[column.data : column.data + size])
        return pa.Array.from_buffers(kind, count, [bitmap, ends, data])


def _fixed(kind: pa.DataType, items: NDArray[Any]) -> pa.Array:
    return pa.Array.from_buffers(kind, len(items), [None, pa.py_buffer(items)])
