"""Reads a few records of a piece of a sealed segment: the heads of all its batches at once, and
only the wanted values. The checksums in the sketch (`parts`) verify heads and values.

This module reports no damage. It stops if a batch must be read whole, a checksum is wrong or a page
is unreadable. The caller then reads in another way (`partial`, `LogSlice`), which reports the
problem.
"""

from __future__ import annotations

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from liftlog.errors import CorruptBatch
from liftlog.log.files.filesystem import storage_errors
from liftlog.log.read.slices import LogSlice, sealed_segment_of
from liftlog.log.segment.parts import NO_CHECKS
from liftlog.log.segment.sketched import SegmentParts
from liftlog.log.state import LogState
from liftlog.records.columns.column_set import BinaryColumn, Columns
from liftlog.records.columns.heads import ManyHeads, Some, WantedSubjects
from liftlog.records.columns.small_batches import Heads, heads_at
from liftlog.records.format import (
    CODEC_MASK,
    ESCAPED_SUBJECTS,
    HEADER_CRC_POSITION,
    HEADER_SIZE,
    KNOWN_ATTRIBUTES,
    MAGIC,
)
from liftlog.records.header import BatchHeader, parse_header

SPARSE_VALUE_BYTES = 4096
"""Minimum number of bytes of values in a piece, per wanted value, for a sparse read. Reading and
checking this number of bytes takes about as long as one additional read."""

_MAGIC = int.from_bytes(MAGIC, "little")
_UNUSUAL = 0xFFFF & ~KNOWN_ATTRIBUTES | CODEC_MASK | ESCAPED_SUBJECTS


def read_sparsely(state: LogState, piece: LogSlice, *, values: bool) -> SparsePiece | None:
    """See `Log.read_sparsely`."""
    view = state.view
    segment = sealed_segment_of(view, piece)
    if segment is None:
        return None
    end_position = piece.position + piece.length
    with storage_errors(f"reading {state.name}"):
        parts = state.environment.parts.get(segment, view.manifest.lineage, load=True)
        numbers = None if parts is None else parts.between(piece.position, end_position)
        if parts is None or numbers is None:
            return None
    try:
        return SparsePiece(piece, parts, *numbers, values=values)
    except (_Unusual, CorruptBatch):
        return None


class _Unusual(Exception):
    """The piece cannot be read sparsely; the caller then reads it in another way."""


class SparsePiece:
    """The verified heads of the batches of a piece."""

    def __init__(
        self, piece: LogSlice, parts: SegmentParts, first: int, end: int, *, values: bool
    ) -> None:
        """Read the heads. With `values` the caller will call `records_on`. Raises _Unusual,
        CorruptBatch."""
        entries = parts.of(first, end)
        positions, sizes, checks, value_checks = np.array(entries, np.int64).T
        if not sizes.all() or (values and (value_checks == NO_CHECKS).any()):
            raise _Unusual
        stops = np.append(positions[1:], piece.position + piece.length)
        begin = np.cumsum(sizes) - sizes
        self._piece, self._parts = piece, parts
        self._first_checks = value_checks
        self._values_at = positions + sizes
        raw = memoryview(self._read(positions.tolist(), sizes.tolist(), checks.tolist()))
        self.head_bytes = len(raw)
        self.value_bytes = piece.length - len(raw)
        heads = heads_at(raw, begin)
        self._check(heads, stops - positions)
        self.header: BatchHeader = parse_header(raw)
        """Header of the first batch. All batches have its leader epoch."""
        self._heads = ManyHeads(raw, begin, stops - positions, sizes)

    def _read(self, positions: list[int], sizes: list[int], checks: list[int]) -> bytes:
        """Read and check the heads; return them as one byte string."""
        try:
            found = self._piece.read_many(zip(positions, sizes, strict=True))
        except OSError as error:
            raise _Unusual from error
        if [crc32c(memoryview(head)[HEADER_SIZE:]) for head in found] != checks:
            raise _Unusual
        raw = b"".join(found)
        if len(raw) != sum(sizes):
            raise _Unusual
        return raw

    def _check(self, heads: Heads, lengths: NDArray[np.int64]) -> None:
        """Check the headers, the positions of the batches, and that all batches have one leader
        epoch."""
        octets = heads.view(np.uint8).data
        sums = [
            crc32c(octets[at : at + HEADER_CRC_POSITION])
            for at in range(0, HEADER_SIZE * len(heads), HEADER_SIZE)
        ]
        deltas = heads["last_offset_delta"].astype(np.int64)
        bases = heads["base_offset"].astype(np.int64)
        counts = heads["record_count"].astype(np.int64)
        following = bases + deltas + 1
        good = (np.array(sums, np.uint32) == heads["header_crc32c"]).all()
        good &= (heads["magic"] == _MAGIC).all() and not heads["reserved"].any()
        good &= not (heads["attributes"] & _UNUSUAL).any()
        good &= (heads["length"] == lengths).all() and (counts > 0).all()
        good &= (counts <= deltas + 1).all() and (bases[1:] == following[:-1]).all()
        good &= bool(bases[0] == self._piece.first_offset)
        good &= bool(following[-1] == self._piece.next_offset)
        good &= (heads["leader_epoch"] == heads["leader_epoch"][0]).all()
        if not good:
            raise _Unusual

    def marked(self) -> Columns | None:
        """Return offsets and tombstone marks of all records; None if a checksum or a size does not
        match."""
        try:
            return self._heads.marked()
        except CorruptBatch:
            return None

    def records_on(
        self, wanted: WantedSubjects, first_offset: int, stop_offset: int | None
    ) -> Columns | None:
        """Return the records on these subjects in [first_offset, stop_offset). Returns None if the
        records are too many or do not match the sketch, so that the caller must read them in
        another way."""
        try:
            chosen, names, places = self._heads.on(wanted)
            left = self.value_bytes - len(chosen) * SPARSE_VALUE_BYTES
            if left < 0:
                return None
            some = self._heads.some(chosen)
            starts, stops = some.values
            if int((stops - starts).sum()) > left:
                return None
            low = int(some.offsets.searchsorted(first_offset))
            high = len(chosen)
            if stop_offset is not None:
                high = int(some.offsets.searchsorted(stop_offset))
            if high - low < len(chosen):
                some, places = some.part(low, max(low, high)), places[low : max(low, high)]
            values = self._values(some)
        except (_Unusual, CorruptBatch):
            return None
        return Columns(
            some.offsets,
            some.timestamps_ns,
            tuple([(name, False) for name in names]) or ((b"", False),),
            places.astype(np.uint16) if len(names) > 1 else None,
            some.keys,
            some.headers,
            values,
        )

    def _values(self, some: Some) -> BinaryColumn:
        """Read and check the values. Raises _Unusual."""
        starts, stops = some.values
        lengths = stops - starts
        ends = np.zeros(len(starts) + 1, np.int32)
        np.cumsum(lengths, out=ends[1:])
        at = self._values_at[some.batches] + starts
        numbers = self._first_checks[some.batches] + some.rows
        wanted = self._parts.checks_at(numbers)
        if wanted is None:
            raise _Unusual
        try:
            items = self._piece.read_many(zip(at.tolist(), lengths.tolist(), strict=True))
        except OSError as error:
            raise _Unusual from error
        if [crc32c(item) for item in items] != wanted.tolist():
            raise _Unusual
        data = np.frombuffer(b"".join(items), np.uint8)
        if len(data) != ends[-1]:
            raise _Unusual
        return BinaryColumn(ends, data, some.has_value)
