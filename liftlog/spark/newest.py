"""Selects the newest record of each key in a range: the option `compact`. Does not import Spark.

First all keys of the range are decoded, and the wanted records are determined. Until then the
records stay encoded, and after that only the wanted records are decoded. So a task needs memory for
the part of the log that it reads and for its keys, regardless of the size of the stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from liftlog.records.columns.arrow_rows import rows_of
from liftlog.records.columns.positions import Batches, count_batches, one_by_one
from liftlog.records.decode import RecordBatch, decode_batch
from liftlog.records.format import CODEC_MASK
from liftlog.spark.columns import HEADERS, VALUE

Places: TypeAlias = NDArray[np.intp]
Flags: TypeAlias = NDArray[np.bool_]
Offsets: TypeAlias = NDArray[np.int64]

_SMALL_BATCH_BYTES = 2048
"""Mean size, in bytes, below which batches take more memory as objects than as decoded rows."""

_MOST_KEY_BYTES = 2**30
"""Maximum number of bytes of keys in a binary column of Arrow, which has 31-bit positions. A larger
column of keys is converted to a column with 63-bit positions."""


def newest_of_each(keys: Sequence[pa.Array], offsets: Offsets | None = None) -> Flags:
    """Return a flag for each record: True if it has the largest offset of its key.

    Without `offsets` the records are in the order of their offsets. Keys are compared byte by byte.
    All records without a key are wanted.
    """
    together = pa.chunked_array(keys, pa.binary())
    if together.nbytes > _MOST_KEY_BYTES:
        together = together.cast(pa.large_binary())
    encoded = together.dictionary_encode().chunks
    if not encoded:
        return np.zeros(0, np.bool_)
    codes = np.concatenate([chunk.indices.fill_null(-1).to_numpy() for chunk in encoded])
    keyed = np.flatnonzero(codes >= 0)
    if offsets is not None:
        keyed = keyed[np.argsort(offsets[keyed], kind="stable")]
    last = np.empty(len(encoded[0].dictionary), np.intp)
    last[codes[keyed]] = keyed  # for several records of one key, the last one counts
    wanted = codes < 0
    wanted[last] = True
    return wanted


class HeldRecords:
    """Holds records until all keys of the range are known.

    `places` are the positions of the records that count. If `places` is None, all records count.
    Small records are held as rows. Larger records are held in their batches, and compressed batches
    stay compressed.
    """

    def __init__(
        self, run: Sequence[Batches], columns: Sequence[str], places: Places | None
    ) -> None:
        self._columns = columns
        self._places = places
        self._rows: pa.RecordBatch | None = None
        self._batches: list[RecordBatch | _Packed] = []
        small = sum(some.size_bytes for some in run) < _SMALL_BATCH_BYTES * count_batches(run)
        if small or not {VALUE, HEADERS} & set(columns):
            rows = rows_of(run, columns)
            self._rows = rows if places is None else rows.take(pa.array(places))
            self._places = None
        else:
            self._batches = [_packed(batch) for batch in one_by_one(run)]

    def rows(self, wanted: Flags) -> pa.RecordBatch | None:
        """Return the records that count and have a `wanted` flag of True. Can be called only once,
        because it frees the records."""
        chosen = np.flatnonzero(wanted)
        rows, self._rows = self._rows, None
        batches, self._batches = self._batches, []
        if not len(chosen):
            return None
        if rows is not None:
            return rows if len(chosen) == rows.num_rows else rows.take(pa.array(chosen))
        if self._places is not None:
            chosen = self._places[chosen]
        return _decode(batches, self._columns, chosen)


def _decode(
    held: list[RecordBatch | _Packed], columns: Sequence[str], chosen: Places
) -> pa.RecordBatch:
    """Return the records at the positions `chosen`. Batches without such a record are not
    decoded."""
    sizes = np.array([len(batch) for batch in held], np.intp)
    borders = np.concatenate([np.zeros(1, np.intp), np.cumsum(sizes)])
    cuts = np.searchsorted(chosen, borders)
    batches: list[RecordBatch] = []
    left_out = 0
    for i, (first, end) in enumerate(pairwise(cuts.tolist())):
        chosen[first:end] -= left_out
        if first == end:
            left_out += int(sizes[i])
            continue
        one = held[i]
        batches.append(one.batch() if isinstance(one, _Packed) else one)
    rows = rows_of(batches, columns)
    return rows if len(chosen) == rows.num_rows else rows.take(pa.array(chosen))


class _Packed:
    """A compressed batch; its decompressed bytes are not kept."""

    __slots__ = ("_count", "_first", "_last", "_stored")

    def __init__(self, batch: RecordBatch) -> None:
        self._stored = batch.stored
        self._count = len(batch)
        offsets = batch.offsets()
        self._first, self._last = offsets[0], offsets[-1]

    def __len__(self) -> int:
        return self._count

    def batch(self) -> RecordBatch:
        whole = decode_batch(self._stored, verify=False)  # verified when the batch was read
        return whole.trim(self._first, self._last + 1)


def _packed(batch: RecordBatch) -> RecordBatch | _Packed:
    if len(batch) and batch.header.attributes & CODEC_MASK:
        return _Packed(batch)
    return batch


def split_flags(flags: Flags, sizes: Sequence[int]) -> Iterator[Flags]:
    """Yield the flags in pieces of these sizes."""
    at = 0
    for size in sizes:
        yield flags[at : at + size]
        at += size
