"""Record batches for workers on the pull socket: as they are stored, or made from some of their
records."""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Generator, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from liftlog.deliveries.columns import NO_INTS, Ints
from liftlog.deliveries.records import Records
from liftlog.errors import CorruptBatch, CorruptMetadata, CorruptRange, OffsetOutOfRange
from liftlog.log import Log, LogSlice
from liftlog.log.read.reading import cuts_at
from liftlog.protocol.limits import KIB, MIB
from liftlog.records.columns.batch_columns import decode_columns, encode_columns
from liftlog.records.decode import RecordBatch, decode_batch, iter_batches
from liftlog.records.header import BatchHeader, parse_header
from liftlog.server.consumers.door import Body
from liftlog.server.reading.answer_builder import AnswerBuilder
from liftlog.server.reading.tailing import read_from_memory

PIECE_BYTES = 1 * MIB
_BATCH_RECORDS = 4096
_WASTE = 2
"""Batches are sent unchanged if they are short, or if they contain at most this many times the
number of wanted records."""
_SHORT_BYTES = 16 * KIB
MOST_CUTS = 128
"""Maximum number of batches that one cut makes."""
_CLOSE = 512
"""Maximum gap, in offsets, between two wanted records that are read together."""


class Placed(NamedTuple):
    """A batch with records, and its place in a piece."""

    header: BatchHeader
    position: int


class Piece:
    """Consecutive batches of a log. The constructor raises CorruptBatch if the bytes are not such
    batches."""

    def __init__(self, body: bytes, first_offset: int, next_offset: int) -> None:
        self.first_offset = first_offset
        self.next_offset = next_offset
        self._view = memoryview(body)
        self._batches = [one for one in _placed(body) if one.header.record_count]
        self._bases = [one.header.base_offset for one in self._batches]
        parts = [self._offsets_of(one) for one in self._batches]
        self.offsets: Ints = np.concatenate(parts) if parts else NO_INTS

    def _offsets_of(self, placed: Placed) -> Ints:
        header = placed.header
        if header.record_count == header.last_offset_delta + 1:
            return np.arange(header.base_offset, header.next_offset, dtype=np.int64)
        return np.array(self._decoded(placed).offsets(), np.int64)

    def _decoded(self, placed: Placed) -> RecordBatch:
        return decode_batch(self._view, placed.position, verify=False)

    def is_coarse(self, most: int) -> bool:
        """Return True if a batch is large for workers that get at most `most` records at a time:
        each worker would get the whole batch, but needs only a part of it."""
        return any(
            one.header.record_count > _WASTE * most and one.header.length > _SHORT_BYTES
            for one in self._batches
        )

    def cut(self, most: int, start: int = 0) -> Piece:
        """Return the records from `start` on in batches of at most `most` records, unless the
        stored batches are short. The piece ends after `MOST_CUTS` such batches, because making a
        batch takes 0.1 ms. Raises CorruptBatch."""
        parts: list[Body] = []
        cuts, next_offset = 0, self.next_offset
        for header, position in self._batches:
            if cuts == MOST_CUTS:
                next_offset = header.base_offset
                break
            stored = self._view[position : position + header.length]
            if header.record_count <= _WASTE * most or header.length <= _SHORT_BYTES:
                parts.append(stored)
                continue
            columns, base = decode_columns(decode_batch(stored)), header.base_offset
            if start > base:
                columns = columns.part(int(columns.offsets.searchsorted(start)), len(columns))
                base = start
                if not len(columns):
                    continue
            size = min(len(columns), (MOST_CUTS - cuts) * most)
            end = header.next_offset if size == len(columns) else int(columns.offsets[size])
            begins = [base, *columns.offsets[most:size:most].tolist(), end]
            parts += [
                encode_columns(
                    columns.part(at, min(at + most, size)),
                    base_offset=begin,
                    last_offset=following - 1,
                    leader_epoch=header.leader_epoch,
                    commit_group=header.commit_group,
                )
                for at, (begin, following) in zip(
                    range(0, size, most), itertools.pairwise(begins), strict=True
                )
            ]
            cuts += -(-size // most)
            if size < len(columns):
                next_offset = end
                break
        return Piece(b"".join(parts), max(self.first_offset, start), next_offset)

    def records(self, start: int, most: int) -> Records:
        """Return at most `most` records from `start` on. Their sizes are unknown, so each has the
        size 1. Their timestamps are only bounds: the first record has the lowest timestamp of all
        records, and all other records have the highest."""
        at = int(self.offsets.searchsorted(start))
        offsets = self.offsets[at : at + most]
        return Records(offsets, np.ones(len(offsets), np.int64), self._stamps_of(offsets))

    def _stamps_of(self, offsets: Ints) -> Ints:
        if not len(offsets):
            return NO_INTS
        some = self._with(int(offsets[0]), int(offsets[-1]))
        highest = max(one.header.max_timestamp_ns for one in some)
        stamps = np.full(len(offsets), highest, np.int64)
        stamps[0] = min(one.header.base_timestamp_ns for one in some)
        if len(offsets) == 1 and some[0].header.record_count > 1:
            batch = self._decoded(some[0]).trim(int(offsets[0]), int(offsets[0]) + 1)
            stamps[0] = batch.timestamps_ns()[0]
        return stamps

    def _with(self, first: int, last: int) -> list[Placed]:
        """Return the batches that have the records from `first` to `last`."""
        begin = bisect_right(self._bases, first) - 1
        return self._batches[begin : bisect_right(self._bases, last)]

    def bodies(self, first: int, last: int, count: int) -> tuple[memoryview, ...] | None:
        """Return the batches with the `count` records from `first` to `last`. Returns None if these
        batches contain too many other records."""
        some = self._with(first, last)
        position = some[0].position
        body = self._view[position : some[-1].position + some[-1].header.length]
        sent = sum([one.header.record_count for one in some])
        if sent > _WASTE * count and len(body) > _SHORT_BYTES:
            return None
        return (body,)


def _placed(body: bytes) -> Iterator[Placed]:
    position = 0
    while position < len(body):
        header = parse_header(body, position)
        if position + header.length > len(body):
            raise CorruptBatch("the batch is cut")
        yield Placed(header, position)
        position += header.length


def read_now(log: Log, offset: int, max_bytes: int) -> Piece | None:
    """Return the batches from `offset` on if they are in the page cache and have no erased records.
    Otherwise return None. The caller then uses `read`, which also reports problems."""
    if cuts_at(log.view, log.environment, offset):
        return None
    try:
        found = log.read(offset, max_bytes)
        if found is None:
            return None
        tail = read_from_memory(found)
        if tail is None:
            found.release()
            return None
        return Piece(tail.body, tail.first_offset, tail.next_offset)
    except (CorruptBatch, CorruptMetadata, CorruptRange, OffsetOutOfRange):
        return None


def read(log: Log, offset: int, max_bytes: int, most: int) -> Piece | None:
    """Return a piece like `read_now`, but wait for the disk. Batches that are too large for workers
    that get `most` records are cut; the piece may then begin at `offset`. Returns None if there is
    no record, or if the records are damaged."""
    try:
        found = log.read(offset, max_bytes)
        if found is None:
            return None
        piece = Piece(_bytes_of(found), found.first_offset, found.next_offset)
        return piece.cut(most, offset) if piece.is_coarse(most) else piece
    except (CorruptBatch, CorruptMetadata, CorruptRange, OffsetOutOfRange):
        return None


def _bytes_of(found: LogSlice) -> bytes:
    try:
        return found.read_some(0, found.length)
    finally:
        found.release()


Gathered = tuple[list[Body], set[int]]
"""Batches, and the offsets of their records."""


def gather(log: Log, offsets: Sequence[int]) -> Generator[None, None, Gathered]:
    """Return batches that contain the records at these offsets and no others. Missing and damaged
    records are left out. Yields after each blocking step, which takes some milliseconds."""
    wanted = sorted(offsets)
    builder = AnswerBuilder(2**40, _BATCH_RECORDS)
    found: set[int] = set()
    place = 0
    while place < len(wanted):
        at, end = wanted[place], _end_of_run(wanted, place)
        some = np.array(wanted[place : bisect_left(wanted, end)], np.int64)
        place += len(some)
        while at < end:
            try:
                piece = log.read(at, PIECE_BYTES)
                if piece is None:
                    break
                following = piece.next_offset
                for batch in iter_batches(_bytes_of(piece)):
                    columns = decode_columns(batch)
                    is_wanted = np.isin(columns.offsets, some)
                    if is_wanted.any():
                        chosen = columns if is_wanted.all() else columns.take(is_wanted)
                        builder.add(chosen, batch.header)
                        found.update(chosen.offsets.tolist())
                    following = batch.header.next_offset
                    if following >= end:
                        break
            except OffsetOutOfRange:
                following = log.log_start_offset
            except CorruptRange as damage:
                following = damage.next_offset
            except CorruptBatch:
                following = at + 1  # the next read reports the damage
            at = max(following, at + 1)
            yield
    builder.finish(wanted[-1] + 1)
    return list(builder.batches()), found


def _end_of_run(wanted: Sequence[int], place: int) -> int:
    """Return the offset after a series of wanted offsets with small gaps between them."""
    for one, following in itertools.pairwise(wanted[place:]):
        if following - one > _CLOSE:
            return one + 1
    return wanted[-1] + 1
