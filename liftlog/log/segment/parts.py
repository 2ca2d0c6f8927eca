"""Checksums of the parts of a batch: one for its head (all bytes before its values), and one for
each value.

The body of a batch has only one checksum, so to verify a few columns or values, a reader would have
to read the whole body. The sketch of a sealed segment stores additional checksums, in an entry for
each batch:

     0  4  position of the batch in the segment   u32
     4  4  bytes of the head, with the header     u32
     8  4  CRC-32C of the head from byte 64 on    u32
    12  4  the batch's first value check          u32

A head of 0 bytes means that the batch must be read whole, because it is compressed or its values
have less than LEAST_VALUES_BYTES in total. NO_CHECKS as first value check means that the values of
the batch have no checks of their own, because they have less than LEAST_VALUE_BYTES on average.
Other batches with a head have one value check for each record: u32, the CRC-32C of the bytes of the
value. An empty value has a check, too.

A segment has neither entries nor checks if its batches have less than LEAST_BATCH_BYTES on average.
In such a segment hardly any batch would have a head, but every reader would keep an entry for each
batch in memory.
"""

from __future__ import annotations

from array import array
from itertools import pairwise

import numpy as np
from crc32c import crc32c

from liftlog.records.decode import RecordBatch
from liftlog.records.format import CODEC_MASK, HEADER_SIZE

LEAST_VALUES_BYTES = 4096
"""Minimum size of a read of values, in bytes: one page. A smaller range is read together with
neighbouring bytes."""

LEAST_VALUE_BYTES = 64
"""Minimum size of values that have checksums, in bytes. Checksums of shorter values would take more
than a sixteenth of the values' size."""

LEAST_BATCH_BYTES = 4096
"""Minimum average size of the batches of a segment with entries, in bytes. It limits the size of
the entries to 1/256 of the segment."""

NO_CHECKS = 0xFFFF_FFFF

PART = np.dtype([("position", "<u4"), ("head_bytes", "<u4"), ("head", "<u4"), ("values", "<u4")])


class PartsBuilder:
    """Builds the entries and value checks of one segment from its batches, which are added in
    order."""

    def __init__(self) -> None:
        self._parts = array("I")  # a segment may have millions of batches
        self._checks = array("I")
        self._end = 0

    def add(self, position: int, batch: RecordBatch) -> None:
        """Add a batch. Raises CorruptBatch if its columns contradict each other."""
        header = batch.header
        self._end = position + header.length
        if not header.record_count or header.attributes & CODEC_MASK:
            self._parts.extend((position, 0, 0, NO_CHECKS))
            return
        values, ends = batch.value_column()
        size, first = ends[-1], NO_CHECKS
        if size < LEAST_VALUES_BYTES:
            self._parts.extend((position, 0, 0, first))
            return
        if size >= LEAST_VALUE_BYTES * header.record_count:
            first = len(self._checks)
            content = values[:size].tobytes()
            self._checks.extend([crc32c(content[a:b]) for a, b in pairwise(ends)])
        head_bytes = header.length - len(values)
        head = crc32c(batch.raw[HEADER_SIZE:head_bytes])
        self._parts.extend((position, head_bytes, head, first))

    def to_bytes(self) -> tuple[bytes, bytes]:
        """Return all entries and value checks; both are empty if the batches are small."""
        if 4 * self._end < LEAST_BATCH_BYTES * len(self._parts):  # four numbers for each batch
            return b"", b""
        return self._parts.tobytes(), self._checks.tobytes()
