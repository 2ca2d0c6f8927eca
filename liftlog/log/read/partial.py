"""Reads only some parts of a piece of a sealed segment: the heads of its batches, and requested
values.

The checksums in the sketch (`parts`) verify these parts. If a check fails, the batch may be intact
and the sketch wrong. So the whole batch is then read, and the checksums of the batch decide if it
is damaged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from liftlog.errors import CorruptBatch
from liftlog.log.files.filesystem import storage_errors
from liftlog.log.read.slices import LogSlice, sealed_segment_of
from liftlog.log.segment.parts import NO_CHECKS
from liftlog.log.segment.sketched import SegmentParts
from liftlog.log.state import LogState
from liftlog.records.decode import RecordBatch, decode_batch
from liftlog.records.format import HEADER_SIZE

_READ_ALONG_BYTES = 16 * 1024
"""Number of bytes of a cached file that can be read and checked in the time of one additional read
(about 4 us). A gap between two parts that is shorter than this is read, too. Single values of a
batch are read only if the batch has more than this number of bytes per wanted value."""


def read_partially(state: LogState, piece: LogSlice, *, load: bool) -> PartialPiece | None:
    """See `Log.read_partially`."""
    view = state.view
    segment = sealed_segment_of(view, piece)
    if segment is None:
        return None
    end_position = piece.position + piece.length
    with storage_errors(f"reading {state.name}"):
        parts = state.environment.parts.get(segment, view.manifest.lineage, load=load)
        numbers = None if parts is None else parts.between(piece.position, end_position)
        if parts is None or numbers is None or not parts.has_heads(*numbers):
            return None
        return PartialPiece(piece, parts, *numbers)


class _Part(NamedTuple):
    """A batch of which only the head was read."""

    at: int  # position in the piece
    head_bytes: int
    end: int
    check: int
    first_value_check: int


class PartialPiece:
    """A slice. Only the heads of its batches were read; the other bytes are zeros until they are
    read. A batch that is cheaper to read whole is complete from the start."""

    def __init__(self, piece: LogSlice, parts: SegmentParts, first: int, end: int) -> None:
        """Read the heads of the batches. `first` is the number, in the segment, of the slice's
        first batch, `end` the number after its last batch. Raises OSError."""
        self.raw = memoryview(bytearray(piece.length))
        self._piece, self._parts = piece, parts
        self._heads: dict[int, _Part] = {}
        self._decoded: dict[int, _Part] = {}  # by base offset
        self.values_read_whole = 0
        """Number of bytes of values that were read with a whole batch, because many values of the
        batch were wanted."""
        stretches: list[tuple[int, int]] = []
        entries = parts.of(first, end)
        stops = [position - piece.position for position, *_ in entries[1:]] + [piece.length]
        for (position, head_bytes, check, values), stop in zip(entries, stops, strict=True):
            at = position - piece.position
            if head_bytes:
                self._heads[at] = _Part(at, head_bytes, stop, check, values)
            stretches.append((at, at + head_bytes if head_bytes else stop))
        self._read(stretches)

    def decode(self, position: int) -> RecordBatch:
        """Return the batch at `position`; verifies the parts that were read. If a checksum
        does not match, reads and decodes the whole batch. Raises OSError, and the errors of
        `decode_batch`: CorruptBatch and UnsupportedFormat."""
        part = self._heads.get(position)
        if part is not None:
            head = self.raw[position + HEADER_SIZE : position + part.head_bytes]
            if crc32c(head) == part.check:
                batch = decode_batch(self.raw, position, verify=False)
                if position + batch.header.length == part.end:
                    self._decoded[batch.header.base_offset] = part
                    return batch
            # From here on the sketch is not used.
            self._heads = {}
            self._read([(position, len(self.raw))])
        return decode_batch(self.raw, position)

    def read_values(self, batch: RecordBatch, chosen: NDArray[np.intp]) -> None:
        """Read the values of the records `chosen` (ascending) of a batch that `decode` returned and
        whose columns were decoded. Raises CorruptBatch if the values are damaged, and OSError."""
        part = self._decoded.get(batch.header.base_offset)
        if part is None or not len(chosen):
            return
        count = batch.header.record_count
        checks = None
        room = part.end - part.at - part.head_bytes
        if part.first_value_check != NO_CHECKS and len(chosen) * _READ_ALONG_BYTES <= room:
            checks = self._parts.checks(part.first_value_check, count)
        if checks is None or not self._read_some(part, batch, chosen, checks):
            self._read_whole(part, batch)

    def _read_some(
        self,
        part: _Part,
        batch: RecordBatch,
        chosen: NDArray[np.intp],
        checks: NDArray[np.uint32],
    ) -> bool:
        """Read the values of these records; return True if their checksums are right."""
        ends = np.frombuffer(
            batch.raw, np.int32, batch.header.record_count + 1, batch._layout.values.ends
        )
        first = part.at + part.head_bytes
        starts, stops = (first + ends[chosen]).tolist(), (first + ends[chosen + 1]).tolist()
        places = list(zip(starts, stops, strict=True))
        self._read(places)
        found = [crc32c(self.raw[a:b]) for a, b in places]
        return bool(found == checks[chosen].tolist())

    def _read_whole(self, part: _Part, batch: RecordBatch) -> None:
        self._read([(part.at + part.head_bytes, part.end)])
        self.values_read_whole += part.end - part.at
        del self._decoded[batch.header.base_offset]
        if crc32c(batch.stored[HEADER_SIZE:]) != batch.header.body_crc32c:
            raise CorruptBatch("the body checksum does not match")

    def _read(self, stretches: Sequence[tuple[int, int]]) -> None:
        """Read each range [start, stop) of the piece, and also short gaps between two ranges."""
        first = end = stretches[0][0]
        for start, stop in stretches:
            if start - end >= _READ_ALONG_BYTES:
                self._read_one(first, end)
                first = start
            end = stop
        self._read_one(first, end)

    def _read_one(self, first: int, end: int) -> None:
        if first < end:
            raw = self._piece.read_some(first, end - first)
            self.raw[first : first + len(raw)] = raw
