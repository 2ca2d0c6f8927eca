"""A record batch as a `pyarrow.RecordBatch`. pyarrow is imported when this module is.

The binary columns lie in a batch as Arrow lays them out, so keys, headers and values are handed
over as they are: the arrays look into the bytes that came from the socket or the file and keep
them alive. Offsets and timestamps are computed, the subject becomes a dictionary array.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from liftlog.errors import CorruptBatch, InvalidArgument, MissingDependency
from liftlog.records.format import (
    HEADERS,
    KEYS,
    MAX_BATCH_RECORDS,
    SUBJECT_IDS,
    TOMBSTONES,
)
from liftlog.records.layout import (
    Binary,
    dictionary_position,
    find_dictionary,
    numbers,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from liftlog.records.decode import RecordBatch

try:
    import numpy as np
    import pyarrow as pa

    from liftlog.records.columns import offsets_of, timestamps_of
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


def to_arrow(batch: RecordBatch, columns: Sequence[str] | None = None) -> pa.RecordBatch:
    """`columns` chooses and orders columns of SCHEMA; None takes all.

    Raises InvalidArgument for a column that does not exist, CorruptBatch like the batch itself.
    """
    names = SCHEMA.names if columns is None else list(columns)
    unknown = [name for name in names if name not in _MAKERS]
    if unknown or not names:
        raise InvalidArgument(
            f"a record batch has no column {unknown[0]!r}"
            if unknown
            else "no column was asked for",
            hint=f"choose from {', '.join(_MAKERS)}",
        )
    schema = SCHEMA if columns is None else pa.schema([SCHEMA.field(name) for name in names])
    return pa.RecordBatch.from_arrays(_arrays_of(batch, names), schema=schema)


def _arrays_of(batch: RecordBatch, names: Sequence[str]) -> list[pa.Array]:
    try:
        arrays = [_MAKERS[name](batch) for name in names]
        for made in arrays:
            # Offsets that leave the batch, or ids outside the dictionary, would be followed by C++.
            made.validate(full=True)
    except (pa.ArrowException, IndexError) as error:
        raise CorruptBatch(f"the columns of the batch contradict each other: {error}") from error
    if len(batch) == batch.header.record_count:
        return arrays
    return [made.slice(batch._lo, len(batch)) for made in arrays]


def _offsets(batch: RecordBatch) -> pa.Array:
    return _fixed(pa.int64(), offsets_of(batch.raw, batch.header))


def _timestamps(batch: RecordBatch) -> pa.Array:
    return _fixed(_TIMESTAMP, timestamps_of(batch.raw, batch.header))


def _subjects(batch: RecordBatch) -> pa.Array:
    """The dictionary as it lies in the batch, and each record's place in it."""
    header, raw = batch.header, batch.raw
    dictionary = find_dictionary(raw, header)
    count = len(dictionary.ends) - 1
    ends = numbers(raw, dictionary_position(header) + 8, count + 1, "i")
    data = raw[dictionary.data : dictionary.data + dictionary.ends[-1]]
    names = pa.Array.from_buffers(pa.utf8(), count, [None, pa.py_buffer(ends), pa.py_buffer(data)])
    names.validate(full=True)  # that they are UTF-8; the places are checked with the whole array
    if header.attributes & SUBJECT_IDS:
        found = numbers(raw, dictionary.end, header.record_count, "H")
        ids = np.asarray(found).astype(np.int32)
    else:
        ids = np.zeros(header.record_count, np.int32)
    return pa.DictionaryArray.from_arrays(_fixed(pa.int32(), ids), names, safe=False)


def _keys(batch: RecordBatch) -> pa.Array:
    if not batch.header.attributes & KEYS:
        return pa.nulls(batch.header.record_count, pa.binary())
    return _binary_of(batch, batch._column(KEYS))


def _headers(batch: RecordBatch) -> pa.Array:
    has_headers = batch.header.attributes & HEADERS
    return _binary_of(batch, batch._column(HEADERS) if has_headers else None)


def _values(batch: RecordBatch) -> pa.Array:
    return _binary_of(batch, batch._column(TOMBSTONES))


_MAKERS: dict[str, Callable[[Any], pa.Array]] = {
    "offset": _offsets,
    "timestamp": _timestamps,
    "subject": _subjects,
    "key": _keys,
    "headers": _headers,
    "value": _values,
}


def _binary_of(batch: RecordBatch, column: Binary | None) -> pa.Array:
    """A binary column as it lies in the batch, whatever was trimmed; not checked. None: empty."""
    if column is None:
        nothing = [None, _ZEROS, pa.py_buffer(b"")]
        return pa.Array.from_buffers(pa.binary(), batch.header.record_count, nothing)
    end = column.data + column.ends[-1]
    bitmap = None if column.bitmap is None else pa.py_buffer(column.bitmap)
    buffers = [bitmap, pa.py_buffer(column.ends), pa.py_buffer(batch.raw[column.data : end])]
    return pa.Array.from_buffers(pa.binary(), batch.header.record_count, buffers)


def _fixed(kind: pa.DataType, items: NDArray[Any]) -> pa.Array:
    return pa.Array.from_buffers(kind, len(items), [None, pa.py_buffer(items)])
