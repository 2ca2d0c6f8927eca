"""Reads records on few subjects of a sealed segment by its subject index: first the runs of these
subjects from the index, then their values from the segment.

A run with its values is a record batch with its own checksum. This module reports no damage: if any
bytes do not match the index, it stops. The caller then reads in another way (`partial`,
`LogSlice`), which reports the problem.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from contextlib import closing
from typing import NamedTuple

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from liftlog.errors import CorruptBatch, UnsupportedFormat
from liftlog.log.files.filesystem import storage_errors
from liftlog.log.read.slices import LogSlice, sealed_segment_of
from liftlog.log.read.sparse import SPARSE_VALUE_BYTES
from liftlog.log.segment.derived import subject_index_path
from liftlog.log.segment.segment import Segment
from liftlog.log.segment.subject_index import SubjectIndex
from liftlog.log.state import LogState
from liftlog.records.columns.heads import WantedSubjects
from liftlog.records.decode import RecordBatch, decode_batch
from liftlog.records.format import HEADER_SIZE
from liftlog.records.header import BatchHeader, parse_header
from liftlog.records.layout import find_layout

_MOST_NEIGHBOURS = 4
"""Assumed average number of values per read, if neighbouring values are read together."""

_MOST_SUBJECTS = 16
"""Maximum number of subjects in one read. For each subject, up to two runs also contain records
that are not wanted, so many subjects would make the read inefficient."""


class SubjectRuns(NamedTuple):
    """All records on the wanted subjects from the requested offset to `next_offset`, as batches in
    the order of their first offsets. The offset ranges of batches of different subjects overlap."""

    batches: list[RecordBatch]
    next_offset: int
    read_bytes: int
    overlap: bool


class _Run(NamedTuple):
    """A batch with zeros instead of its values, and the places of the values in the segment."""

    raw: bytearray
    header: BatchHeader
    head_bytes: int
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]


class _Unusable(Exception):
    """The subject index cannot be used; the caller then reads the records in another way."""


def index_at(state: LogState, offset: int) -> SubjectIndex | None:
    """See `Log.subject_index`."""
    view = state.view
    segment = view.sealed_segment_at(offset)
    if segment is None:
        return None
    with storage_errors(f"reading {state.name}"):
        return state.environment.subject_indexes.get(segment, view.manifest.lineage, load=True)


def read_by_subject(
    state: LogState,
    index: SubjectIndex,
    piece: LogSlice,
    wanted: WantedSubjects,
    within: tuple[int, int],
    max_bytes: int,
    *,
    values: bool,
) -> SubjectRuns | None:
    """See `Log.read_by_subject`."""
    view = state.view
    segment = sealed_segment_of(view, piece)
    if segment is None or index.about != (segment.entry(), view.manifest.lineage):
        return None
    borders = index.runs_of(wanted, _MOST_SUBJECTS)
    if borders is None:
        return None
    base = segment.base_offset
    first, stop = max(within[0], piece.first_offset), min(within[1], piece.next_offset)
    chosen, end = _choose(index.runs, borders, first - base, stop - base, max_bytes)
    share = (end + base - first) / (piece.next_offset - piece.first_offset)
    span_bytes = share * piece.length
    few = index.runs[chosen]
    if not _are_inside(few, first - base, end) or (values and _are_many(few, span_bytes)):
        return None
    with storage_errors(f"reading {state.name}"):
        try:
            runs = _read_heads(state, segment, few)
            if any(run.header.next_offset > piece.next_offset for run in runs):
                return None  # a part of it is not committed
            if values:
                _read_values(piece, runs, span_bytes)
            batches = [decode_batch(run.raw, 0, verify=values) for run in runs]
        except (CorruptBatch, UnsupportedFormat, _Unusable, OSError):
            return None
    size = sum([run.header.length for run in runs])
    return SubjectRuns(batches, end + base, size, len(borders) > 1)


def _choose(
    runs: NDArray[np.void],
    borders: Sequence[tuple[int, int]],
    first: int,
    end: int,
    max_bytes: int,
) -> tuple[NDArray[np.int64], int]:
    """Choose runs with records from `first` on, in the order of their first offsets. Chooses runs
    of about `max_bytes` bytes, and at least one run per subject. Returns the numbers of the runs,
    and an offset of at most `end`. The runs contain all wanted records below this offset. Offsets
    are relative to the base."""
    some = [
        number
        for begin, stop in borders
        for number in range(
            begin + int(runs["last"][begin:stop].searchsorted(first)),
            begin + int(runs["first"][begin:stop].searchsorted(end)),
        )
    ]
    found = np.array(some, np.int64)
    found = found[np.argsort(runs["first"][found], kind="stable")]
    begins = runs["first"][found].astype(np.int64)
    most = np.cumsum(runs["length"][found].astype(np.int64)).searchsorted(max_bytes, "right")
    count = max(int(most), int(begins.searchsorted(first, "right")), 1)
    if count < len(found):
        end = int(begins[count])
    return found[:count], end


def _are_inside(runs: NDArray[np.void], first: int, end: int) -> bool:
    """Return True if most offsets of these runs lie in [first, end). Otherwise the read would
    return too many bytes that are not needed."""
    begins, ends = runs["first"].astype(np.int64), runs["last"].astype(np.int64) + 1
    inside = np.minimum(ends, end) - np.maximum(begins, first)
    return bool(2 * inside.sum() >= (ends - begins).sum())


def _are_many(runs: NDArray[np.void], span_bytes: float) -> bool:
    """Return True if the runs have too many records to read their values one by one, even if one
    read covers several neighbours."""
    least = int(runs["records"].sum()) / _MOST_NEIGHBOURS
    return least * SPARSE_VALUE_BYTES > span_bytes


def _read_heads(state: LogState, segment: Segment, runs: NDArray[np.void]) -> list[_Run]:
    """Read and check these runs. Raises OSError, CorruptBatch, UnsupportedFormat, _Unusable."""
    if not len(runs):
        return []
    entries: list[tuple[int, ...]] = runs.tolist()
    # The pool of open files cannot be used, because another file can take the name of this index.
    path = subject_index_path(segment.path)
    with closing(state.environment.fs.open(path, writable=False)) as file:
        stored = [file.pread(size, position) for _, _, position, size, *_ in entries]
    return [
        _run(raw, entry, segment.base_offset) for raw, entry in zip(stored, entries, strict=True)
    ]


def _run(stored: bytes, entry: tuple[int, ...], base_offset: int) -> _Run:
    """Parse a run. Raises CorruptBatch, UnsupportedFormat, _Unusable."""
    first, last, _, _, head_bytes, count, length, check = entry
    if crc32c(stored) != check:
        raise _Unusable
    size = head_bytes + 4 * count
    unpacker = zlib.decompressobj()
    try:
        head = unpacker.decompress(stored, size)
    except zlib.error as error:
        raise _Unusable from error
    header = parse_header(head)
    good = (
        len(head) == size
        and unpacker.eof
        and HEADER_SIZE <= head_bytes <= length == header.length
        and header.record_count == count
        and (header.base_offset, header.last_offset) == (base_offset + first, base_offset + last)
    )
    if not good:
        raise _Unusable
    raw = bytearray(length)
    raw[:head_bytes] = head[:head_bytes]
    layout = find_layout(memoryview(raw), header)
    ends = np.frombuffer(raw, np.int32, count + 1, layout.values.ends).astype(np.int64)
    starts = np.frombuffer(head, np.uint32, count, head_bytes).astype(np.int64)
    sizes = np.diff(ends)
    if layout.values.data != head_bytes or (sizes < 0).any():
        raise _Unusable
    return _Run(raw, header, head_bytes, starts, starts + sizes)


def _read_values(piece: LogSlice, runs: Sequence[_Run], span_bytes: float) -> None:
    """Read the values into the batches of `runs`. `span_bytes` is the size of the segment's part
    that contains the values. Raises OSError, _Unusable."""
    stretches = []
    for run in runs:
        # One read covers neighbouring values of the segment.
        is_first = np.ones(len(run.starts), np.bool_)
        np.not_equal(run.starts[1:], run.stops[:-1], out=is_first[1:])
        firsts = np.flatnonzero(is_first)
        lasts = np.append(firsts[1:], len(run.starts)) - 1
        begins = run.starts[firsts]
        stretches.append((begins.tolist(), (run.stops[lasts] - begins).tolist()))
    if sum([len(begins) for begins, _ in stretches]) * SPARSE_VALUE_BYTES > span_bytes:
        raise _Unusable
    for run, places in zip(runs, stretches, strict=True):
        values = b"".join(piece.read_many(zip(*places, strict=True)))
        if len(values) > len(run.raw) - run.head_bytes:
            raise _Unusable
        run.raw[run.head_bytes : run.head_bytes + len(values)] = values
