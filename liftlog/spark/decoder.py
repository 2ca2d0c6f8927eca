"""Decodes batches of the log into Arrow batches with Spark's columns. Does not import Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from acl.subjects import matches
from liftlog.records.columns.arrow_rows import rows_of, subject_names
from liftlog.records.columns.positions import Batches
from liftlog.records.decode import RecordBatch
from liftlog.records.message_headers import header_lines
from liftlog.spark.columns import (
    HEADERS,
    KEY,
    OFFSET,
    STREAM,
    SUBJECT,
    TIMESTAMP,
    TYPES,
    schema_of,
)
from liftlog.spark.newest import HeldRecords, Places, newest_of_each, split_flags

MOST_BYTES = 16 * 1024 * 1024
"""Maximum number of bytes of the log that are decoded together. The number limits the memory of a
task, regardless of `rowsPerBatch`."""

_RUN_ROWS = 40_000
_RUN_BYTES = 8 * 1024 * 1024
"""Number of rows, or of bytes, that are decoded in one step. Each step has a fixed cost, and a
large step does not fit into the processor's caches. The batches that Spark gets are slices of a
step."""


class RowDecoder:
    """Makes the rows of one range of offsets.

    With `subject`, only records whose subject matches this pattern become rows. With `compact`,
    only the newest of these records for each key becomes a row, even if it is a tombstone; each
    record without a key becomes a row.
    """

    def __init__(
        self,
        columns: Sequence[str],
        *,
        stream: str,
        rows_per_batch: int,
        subject: str | None = None,
        compact: bool = False,
    ) -> None:
        self._compact = compact
        self._columns = tuple(columns)
        self._stream = stream
        self._rows_per_batch = rows_per_batch
        self._schema = schema_of(self._columns)
        stored = [name for name in self._columns if name != STREAM]
        if subject is not None and SUBJECT not in stored and not compact:
            stored.append(SUBJECT)
        self._stored = stored or [OFFSET]  # one column must show the number of rows
        self._reaches: Callable[[str], bool] | None = None
        if subject is not None:
            self._reaches = lru_cache(maxsize=10_000)(lambda name: matches(subject, name))

    def rows(self, batches: Iterable[Batches]) -> Iterator[pa.RecordBatch]:
        """Yield batches of 1 to `rows_per_batch` rows. Raises CorruptBatch."""
        if self._reaches is None and not self._compact:
            for run in self._runs(batches):
                made = self._finished(rows_of(run, self._stored))
                del run[:]  # frees the buffers for the next answer
                yield from self._cut(made)
            return
        held: list[pa.RecordBatch] = []  # collects small results until there are enough rows
        held_rows = held_bytes = 0
        for made in self._newest(batches) if self._compact else self._matching(batches):
            held.append(made)
            held_rows += made.num_rows
            held_bytes += made.nbytes
            if held_rows >= self._rows_per_batch or held_bytes >= MOST_BYTES:
                yield from self._cut(_concat(held))
                held, held_rows, held_bytes = [], 0, 0
        if held:
            yield from self._cut(_concat(held))

    def _matching(self, batches: Iterable[Batches]) -> Iterator[pa.RecordBatch]:
        assert self._reaches is not None
        for run in self._runs(batches):
            found = rows_of(run, self._stored)
            del run[:]
            yield self._finished(_only(found, self._reaches))

    def _newest(self, batches: Iterable[Batches]) -> Iterator[pa.RecordBatch]:
        deciding = [KEY] if self._reaches is None else [KEY, SUBJECT]
        keys: list[pa.Array] = []
        held: list[HeldRecords] = []
        for run in self._runs(batches):
            found = rows_of(run, deciding)
            places: Places | None = None
            if self._reaches is not None:
                places = np.flatnonzero(_mask(found, self._reaches).to_numpy(zero_copy_only=False))
                if not len(places):
                    continue
                found = found.take(pa.array(places))
            keys.append(found.column(0))
            held.append(HeldRecords(run, self._stored, places))
        wanted = split_flags(newest_of_each(keys), [len(some) for some in keys])
        keys = []
        for flags in wanted:
            rows = held.pop(0).rows(flags)
            if rows is not None:
                yield self._finished(rows)

    def _runs(self, batches: Iterable[Batches]) -> Iterator[list[Batches]]:
        """Yield groups of batches to decode together."""
        run: list[Batches] = []
        rows = size = 0
        for batch in batches:
            if self._has_none(batch):
                continue
            run.append(batch)
            rows += len(batch)
            size += len(batch.raw)  # can be much more than its size on the wire
            enough = rows >= _RUN_ROWS or size >= _RUN_BYTES
            if size >= MOST_BYTES or (enough and rows >= self._rows_per_batch):
                yield run
                rows = size = 0
                run = []
            del batch
        if run:
            yield run

    def _has_none(self, batch: Batches) -> bool:
        """Return True if no record of the batch has a wanted subject. The result is always False
        for small batches, because decoding many of them together takes less time than checking
        each."""
        if self._reaches is None or not isinstance(batch, RecordBatch):
            return False
        return not any(map(self._reaches, subject_names(batch)))

    def _cut(self, made: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield equal slices of at most `rows_per_batch` rows."""
        pieces = -(-made.num_rows // self._rows_per_batch)
        borders = [made.num_rows * i // max(pieces, 1) for i in range(pieces + 1)]
        for first, end in pairwise(borders):
            yield made.slice(first, end - first) if pieces > 1 else made

    def _finished(self, found: pa.RecordBatch) -> pa.RecordBatch:
        arrays = [self._column(name, found) for name in self._columns]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _column(self, name: str, found: pa.RecordBatch) -> pa.Array:
        if name == STREAM:
            return pa.repeat(pa.scalar(self._stream), found.num_rows)
        stored = found.column(name)
        if name == TIMESTAMP:
            return stored.cast(TYPES[TIMESTAMP], safe=False)
        if name == HEADERS:
            return headers_of(stored)
        return stored


def _only(found: pa.RecordBatch, reaches: Callable[[str], bool]) -> pa.RecordBatch:
    mask = _mask(found, reaches)
    return found if pc.all(mask).as_py() else found.filter(mask)


def _mask(found: pa.RecordBatch, reaches: Callable[[str], bool]) -> pa.BooleanArray:
    subjects = found.column(SUBJECT).dictionary_encode()
    wanted = pa.array([reaches(name) for name in subjects.dictionary.to_pylist()], pa.bool_())
    return wanted.take(subjects.indices)


def _concat(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(parts) == 1:
        return parts[0]
    schema = parts[0].schema
    arrays = [pa.concat_arrays([part.column(i) for part in parts]) for i in range(len(schema))]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def headers_of(blocks: pa.Array) -> pa.Array:
    """Parse NATS header blocks into lists of names and values, in order, with repeated names.

    A record without headers has an empty list. Invalid UTF-8 in names becomes U+FFFD; values are
    bytes, unchanged except that surrounding blanks are removed.
    """
    # Equal blocks are parsed once, because many messages have equal headers.
    encoded = blocks.dictionary_encode()
    parsed = [header_lines(block) for block in encoded.dictionary.to_pylist()]
    lines = [line for found in parsed for line in found]
    ends = list(accumulate(map(len, parsed), initial=0))
    kind = TYPES[HEADERS].value_type
    pairs = pa.StructArray.from_arrays(
        [
            pa.array([name.decode("utf-8", "replace") for name, _ in lines], pa.utf8()),
            pa.array([value for _, value in lines], pa.binary()),
        ],
        fields=list(kind),
    )
    distinct = pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pairs, type=TYPES[HEADERS])
    return distinct.take(encoded.indices)
