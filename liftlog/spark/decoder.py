"""Batches of the log in, Arrow batches with Spark's columns out. Knows nothing of Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise

import pyarrow as pa
import pyarrow.compute as pc

from acl.subjects import matches
from liftlog.records.arrow_rows import rows_of, subject_names
from liftlog.records.decode import RecordBatch
from liftlog.records.message_headers import header_lines
from liftlog.spark.columns import HEADERS, OFFSET, STREAM, SUBJECT, TIMESTAMP, TYPES, schema_of

MOST_BYTES = 16 * 1024 * 1024
"""Of the log, decoded together: what bounds the memory of a task, whatever `rowsPerBatch` says."""


class RowDecoder:
    """Makes the rows of one range. `subject`: only records whose subject matches this pattern."""

    def __init__(
        self,
        columns: Sequence[str],
        *,
        stream: str,
        rows_per_batch: int,
        subject: str | None = None,
    ) -> None:
        self._columns = tuple(columns)
        self._stream = stream
        self._rows_per_batch = rows_per_batch
        self._schema = schema_of(self._columns)
        stored = [name for name in self._columns if name != STREAM]
        if subject is not None and SUBJECT not in stored:
            stored.append(SUBJECT)
        self._stored = stored or [OFFSET]  # something has to tell how many there are
        self._reaches: Callable[[str], bool] | None = None
        if subject is not None:
            self._reaches = lru_cache(maxsize=10_000)(lambda name: matches(subject, name))

    def rows(self, batches: Iterable[RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Batches of at most `rows_per_batch` rows; none of them is empty. Raises CorruptBatch."""
        held: list[pa.RecordBatch] = []  # of a filter that leaves few rows: until they are enough
        held_rows = held_bytes = 0
        for run in self._runs(batches):
            made = self._decode(run)
            del run[:]  # so that the buffers are free for the next answer
            if self._reaches is None:
                yield from self._cut(made)
                continue
            held.append(made)
            held_rows += made.num_rows
            held_bytes += made.nbytes
            if held_rows >= self._rows_per_batch or held_bytes >= MOST_BYTES:
                yield from self._cut(_concat(held))
                held, held_rows, held_bytes = [], 0, 0
        if held:
            yield from self._cut(_concat(held))

    def _runs(self, batches: Iterable[RecordBatch]) -> Iterator[list[RecordBatch]]:
        """As many batches as are decoded at once."""
        run: list[RecordBatch] = []
        rows = size = 0
        for batch in batches:
            if self._reaches is not None and not any(map(self._reaches, subject_names(batch))):
                continue
            run.append(batch)
            rows += len(batch)
            size += len(batch.raw)  # which may be much more than it took on the wire
            if rows >= self._rows_per_batch or size >= MOST_BYTES:
                yield run
                rows = size = 0
                run = []
            del batch
        if run:
            yield run

    def _cut(self, made: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Into equal pieces that are not too long."""
        pieces = -(-made.num_rows // self._rows_per_batch)
        borders = [made.num_rows * i // max(pieces, 1) for i in range(pieces + 1)]
        for first, end in pairwise(borders):
            yield made.slice(first, end - first) if pieces > 1 else made

    def _decode(self, run: list[RecordBatch]) -> pa.RecordBatch:
        found = rows_of(run, self._stored)
        if self._reaches is not None:
            found = _only(found, self._reaches)
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
    subjects = found.column(SUBJECT).dictionary_encode()
    wanted = pa.array([reaches(name) for name in subjects.dictionary.to_pylist()], pa.bool_())
    mask = wanted.take(subjects.indices)
    return found if pc.all(mask).as_py() else found.filter(mask)


def _concat(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(parts) == 1:
        return parts[0]
    schema = parts[0].schema
    arrays = [pa.concat_arrays([part.column(i) for part in parts]) for i in range(len(schema))]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def headers_of(blocks: pa.Array) -> pa.Array:
    """NATS header blocks -> lists of name and value, in order, equal names included.

    A record without headers has an empty list. Names that are not UTF-8 get U+FFFD for what is
    wrong in them; values are bytes, verbatim but for blanks around them.
    """
    # Blocks that are the same are read once: publishers repeat themselves.
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
