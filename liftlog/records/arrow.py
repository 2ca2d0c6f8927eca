"""A record batch as a `pyarrow.RecordBatch`. pyarrow is imported when this module is.

The binary columns lie in a batch as Arrow lays them out, so keys, headers and values are handed
over as they are: the arrays look into the bytes that came from the socket or the file and keep
them alive. Offsets and timestamps are computed, the subject becomes a dictionary array.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from liftlog.errors import CorruptBatch, InvalidArgument, LiftlogError
from liftlog.records.format import (
    HEADER_SIZE,
    HEADERS,
    KEYS,
    MAX_BATCH_RECORDS,
    OFFSET_DELTAS,
    SUBJECT_IDS,
    TIMESTAMP_DELTAS,
    TOMBSTONES,
)
from liftlog.records.layout import Binary, find_dictionary, numbers, timestamps_position

if TYPE_CHECKING:
    from liftlog.records.decode import RecordBatch

try:
    import pyarrow as pa
    import pyarrow.compute as pc
except ImportError as error:
    raise LiftlogError(
        "Arrow record batches need pyarrow, which is not installed", hint="pip install pyarrow"
    ) from error

SCHEMA = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("ns", "UTC"), nullable=False),
        pa.field("subject", pa.dictionary(pa.int32(), pa.utf8()), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("headers", pa.binary(), nullable=False),
        pa.field("value", pa.binary()),
    ]
)
_COUNTING = pa.py_buffer(array("q", range(MAX_BATCH_RECORDS)))
_ZEROS = pa.py_buffer(bytes(4 * (MAX_BATCH_RECORDS + 1)))


def to_arrow(batch: RecordBatch, columns: Sequence[str] | None = None) -> pa.RecordBatch:
    """`columns` chooses and orders columns of SCHEMA; None takes all.

    Raises InvalidArgument for a column that does not exist, CorruptBatch like the batch itself.
    """
    names = SCHEMA.names if columns is None else list(columns)
    unknown = [name for name in names if name not in _MAKERS]
    if unknown or not names:
        raise InvalidArgument(
            f"a record batch has no column {', '.join(unknown)!r}",
            hint=f"choose from {', '.join(_MAKERS)}",
        )
    schema = pa.schema([SCHEMA.field(name) for name in names])
    try:
        arrays = [_MAKERS[name](batch) for name in names]
        for made in arrays:
            made.validate(full=True)  # offsets that leave the batch would be read from C++
    except (pa.ArrowException, OverflowError, IndexError) as error:
        raise CorruptBatch(f"the columns of the batch contradict each other: {error}") from error
    whole = pa.RecordBatch.from_arrays(arrays, schema=schema)
    return whole if len(batch) == len(whole) else whole.slice(batch._lo, len(batch))


def _offsets(batch: RecordBatch) -> pa.Array:
    header = batch.header
    count = header.record_count
    if not header.attributes & OFFSET_DELTAS:
        deltas = pa.Array.from_buffers(pa.int64(), count, [None, _COUNTING])
    else:
        deltas = _numbers(batch, HEADER_SIZE, "I").cast(pa.int64())
        falls = pc.less_equal(deltas[1:], deltas[:-1])
        if count and (pc.any(falls).as_py() or deltas[-1].as_py() > header.last_offset_delta):
            raise CorruptBatch("the offset deltas do not ascend inside the batch")
    return pc.add_checked(deltas, pa.scalar(header.base_offset, pa.int64()))


def _timestamps(batch: RecordBatch) -> pa.Array:
    header = batch.header
    base = pa.scalar(header.base_timestamp_ns, pa.int64())
    if header.attributes & TIMESTAMP_DELTAS:
        deltas = _numbers(batch, timestamps_position(header), "I").cast(pa.int64())
        stamps = pc.add_checked(pc.multiply(deltas, pa.scalar(1000, pa.int64())), base)
    else:
        stamps = pa.repeat(base, header.record_count)
    return stamps.view(pa.timestamp("ns", "UTC"))


def _subjects(batch: RecordBatch) -> pa.Array:
    header = batch.header
    names = pa.array(batch._subject_names(), pa.utf8())
    if header.attributes & SUBJECT_IDS:
        position = find_dictionary(batch.raw, header).end
        ids = _numbers(batch, position, "H").cast(pa.int32())
    else:
        ids = pa.Array.from_buffers(pa.int32(), header.record_count, [None, _ZEROS])
    return pa.DictionaryArray.from_arrays(ids, names)


def _keys(batch: RecordBatch) -> pa.Array:
    if not batch.header.attributes & KEYS:
        return pa.nulls(batch.header.record_count, pa.binary())
    return _binary(batch, batch._column(KEYS))


def _headers(batch: RecordBatch) -> pa.Array:
    if not batch.header.attributes & HEADERS:
        nothing = [None, _ZEROS, pa.py_buffer(b"")]
        return pa.Array.from_buffers(pa.binary(), batch.header.record_count, nothing)
    return _binary(batch, batch._column(HEADERS))


def _values(batch: RecordBatch) -> pa.Array:
    return _binary(batch, batch._column(TOMBSTONES))


_MAKERS: dict[str, Callable[[Any], pa.Array]] = {
    "offset": _offsets,
    "timestamp": _timestamps,
    "subject": _subjects,
    "key": _keys,
    "headers": _headers,
    "value": _values,
}


def _binary(batch: RecordBatch, column: Binary) -> pa.Array:
    end = column.data + column.ends[-1]
    bitmap = None if column.bitmap is None else pa.py_buffer(column.bitmap)
    buffers = [bitmap, pa.py_buffer(column.ends), pa.py_buffer(batch.raw[column.data : end])]
    return pa.Array.from_buffers(pa.binary(), batch.header.record_count, buffers)


def _numbers(batch: RecordBatch, position: int, kind: Any) -> pa.Array:
    count = batch.header.record_count
    found = numbers(batch.raw, position, count, kind)
    type_ = pa.uint16() if kind == "H" else pa.uint32()
    return pa.Array.from_buffers(type_, count, [None, pa.py_buffer(found)])
