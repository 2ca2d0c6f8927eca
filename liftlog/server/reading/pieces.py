"""Decoded pieces of the log as columns, for reads that examine the records.

The members of a group read the same pieces, each member for its own slots. Work that is the same
for all members is done only once:

- reading and verifying a piece
- computing the slot of each record
- sorting the records so that the records of one member are adjacent

`SharedPieces` keeps the most recent pieces for the other members.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import groupby
from time import monotonic

import numpy as np

from liftlog.errors import CorruptBatch, UnsupportedFormat
from liftlog.log import Log, LogSlice
from liftlog.log.files.manifest import Manifest
from liftlog.protocol.limits import KIB, MIB
from liftlog.records.columns.chunks import Chunk, chunks_of
from liftlog.records.columns.column_set import Columns, Offsets
from liftlog.records.columns.many import scatter
from liftlog.records.columns.positions import Batches, one_by_one
from liftlog.records.columns.scattered import ScatteredRecords
from liftlog.records.columns.slots import WantedSlots, slots_of
from liftlog.records.columns.small_batches import SmallBatches, take_small_batches
from liftlog.records.decode import RecordBatch, decode_batch
from liftlog.records.format import MAX_BATCH_RECORDS, MAX_TIMESTAMP_DELTA_US
from liftlog.records.header import BatchHeader
from liftlog.records.place import Place
from liftlog.server.reading.shares import Division, Shares

SHARED_BYTES = 64 * MIB
_LARGEST_SHARED = 8 * MIB
"""Maximum decompressed size, in bytes, of one piece. The limit exists because a decompressed batch
can be a thousand times as long as the compressed batch."""
_INFLATED_BYTES = 16 * MIB
_MOST_BATCHES = 512
"""Maximum number of batches that are decoded before the first of them are scanned. A scan looks at
its time limit between two chunks, and 512 tiny batches take about 4 ms of processor time."""
_MOST_SUBJECTS = 16384
"""Maximum size of the subject dictionaries of one part, before equal subjects are merged. A piece
of a stream with many records per subject stays below this size. A piece should have few parts: each
member needs the same number of numpy steps for each part, even for a part with few records."""
_LEAST_BYTES = 64 * KIB
"""Minimum size, in bytes, that is counted for a piece. Pieces at the end of a stream are small. The
minimum limits their number, so that a search stays fast."""
_SUBJECT_BYTES = 128
"""Number of bytes counted for a subject and its Python objects."""
_NEW_SECONDS = 0.02
_NONE: Offsets = np.empty(0, np.int64)


def chunks_in(raw: bytes, place: Place) -> Iterator[Chunk]:
    """Decode batches, and yield them in chunks. Each chunk is scanned in one step. Raises
    CorruptBatch at damage; raises UnsupportedFormat."""
    return chunks_from(lambda position: decode_batch(raw, position), len(raw), place)


def chunks_from(decode: Callable[[int], RecordBatch], size: int, place: Place) -> Iterator[Chunk]:
    """Decode and yield batches like `chunks_in`. `decode` returns the batches, which have `size`
    bytes in total."""
    whole: list[RecordBatch] = []
    damage: CorruptBatch | UnsupportedFormat | None = None
    position = inflated = 0
    while position < size:
        try:
            batch = decode(position)
            place.take(batch.header)
        except (CorruptBatch, UnsupportedFormat) as error:
            damage = error
            break
        whole.append(batch)
        position += batch.header.length
        inflated += len(batch.raw)
        # Decompressed batches can be far longer than the piece.
        if inflated >= _INFLATED_BYTES or len(whole) == _MOST_BATCHES:
            yield from chunks_of(whole)
            whole, inflated = [], 0
    yield from chunks_of(whole)
    if damage is not None:
        raise damage
    place.check_end()


def gone_from(piece: LogSlice) -> Offsets:
    """Return the ascending offsets of the records of a slice that a reader must leave out."""
    if piece.erased is None:
        return _NONE
    return piece.erased.offsets_in(piece.first_offset, piece.next_offset)


Stamps = tuple[int, int]
"""The oldest and the newest timestamp of some records."""


class Part:
    """Records of one epoch with offsets up to `next_offset`. `header` is the header of the first
    batch. `stamps` is None if the timestamps do not fit into one batch."""

    def __init__(
        self, header: BatchHeader, next_offset: int, records: ScatteredRecords, division: Division
    ) -> None:
        self.header = header
        self.next_offset = next_offset
        self.stamps = _stamps_of(records)
        self._division = division
        slot_count = len(division.places)
        slots = slots_of(records, slot_count)
        places = division.places.take(slots)
        order = np.argsort(places, kind="stable")
        self._slots = slots[order]
        self._records = records.take(order)
        self._ends: list[int] = np.cumsum(np.bincount(places, minlength=slot_count)).tolist()

    @property
    def size_bytes(self) -> int:
        return self._records.size_bytes + _SUBJECT_BYTES * len(self._records.subjects)

    def of(self, wanted: WantedSlots) -> Columns:
        """Return the records of these slots, in the order of their offsets."""
        place = self._division.place_of(wanted.bits)
        if place is not None:
            found = self._records.part(self._ends[place - 1] if place else 0, self._ends[place])
            return found.with_own_subjects()
        chosen = np.flatnonzero(wanted.flags.take(self._slots))
        chosen = chosen[np.argsort(self._records.offsets[chosen])]
        return self._records.at(chosen).with_own_subjects()


class Piece:
    """A piece of the log that was read and verified, for groups with this number of slots. The
    piece is valid as long as the log has this manifest, because truncation, compaction and
    quarantine change the manifest first."""

    def __init__(
        self,
        manifest: Manifest,
        division: Division,
        piece: LogSlice,
        parts: list[Part],
        *,
        at_end: bool,
    ) -> None:
        self.manifest = manifest
        self.slot_count = len(division.places)
        self.first_offset, self.next_offset = piece.first_offset, piece.next_offset
        self.length = piece.length
        self.gone = gone_from(piece)
        self.parts = parts
        records_bytes = sum([part.size_bytes for part in parts])
        self.size_bytes = max(records_bytes + division.size_bytes, _LEAST_BYTES)
        self._new_until = monotonic() + _NEW_SECONDS if at_end else -math.inf

    @property
    def is_newest(self) -> bool:
        """True if the piece ended at the end of the log and was just read. The members of a group
        then read the same piece at about the same time. They leave newer records for their next
        read."""
        return monotonic() < self._new_until


class SharedPieces:
    """The pieces that members of groups have read most recently, of all logs. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # The piece with the oldest use comes first.
        self._pieces: OrderedDict[Piece, None] = OrderedDict()
        self._size = 0
        self._shares = Shares()

    def __len__(self) -> int:
        """Number of pieces in memory."""
        return len(self._pieces)

    def covering(self, log: Log, wanted: WantedSlots, offset: int) -> Piece | None:
        """Return a piece that contains the offset; None if there is no such piece. After the read
        of a shared piece, members that began at different offsets read the same pieces."""
        manifest = log.view.manifest
        if offset < manifest.log_start_offset:
            return None
        with self._lock:
            for piece in reversed(self._pieces):
                if (
                    piece.first_offset <= offset < piece.next_offset
                    and piece.manifest is manifest
                    and piece.slot_count == wanted.slot_count
                ):
                    self._pieces.move_to_end(piece)
                    return piece
        return None

    def add(
        self,
        log: Log,
        manifest: Manifest,
        wanted: WantedSlots,
        piece: LogSlice,
        raw: bytes,
        *,
        at_end: bool,
    ) -> Piece | None:
        """Decode and keep a piece. `raw` contains its bytes. `manifest` is the log's manifest from
        before the read. If `at_end` is true, the piece ends at the high watermark.

        Returns None if the piece is damaged or too large. The reader then scans it without sharing.
        """
        size = 0
        found: list[Batches] = []
        division = self._shares.division(log, wanted.slot_count)
        try:
            for some in _batches_in(raw, Place(piece.first_offset, piece.next_offset)):
                size += len(some.raw)
                if size > _LARGEST_SHARED:
                    return None
                found.append(some)
            parts = _parts_of(found, division, piece.next_offset)
        except (CorruptBatch, UnsupportedFormat):
            return None
        known = Piece(manifest, division, piece, parts, at_end=at_end)
        with self._lock:
            self._pieces[known] = None
            self._size += known.size_bytes
            while self._size > SHARED_BYTES:
                oldest, _ = self._pieces.popitem(last=False)
                self._size -= oldest.size_bytes
        return known

    def note(self, log: Log, wanted: WantedSlots) -> None:
        """Note that a member with these slots is about to read."""
        self._shares.note(log, wanted)


def _batches_in(raw: bytes, place: Place) -> Iterator[Batches]:
    """Yield the batches with records. Raises CorruptBatch, UnsupportedFormat."""
    view = memoryview(raw)
    position = 0
    while position < len(raw):
        taken = take_small_batches(
            view, position, place, place.offset, None, largest_bytes=len(raw), fewest=1
        )
        if taken is None:
            break
        some, position = taken
        yield some
    while position < len(raw):
        batch = decode_batch(view, position)
        place.take(batch.header)
        position += batch.header.length
        if batch.header.record_count:
            yield batch
    place.check_end()


def _parts_of(found: list[Batches], division: Division, end_offset: int) -> list[Part]:
    """Sort the records of the batches into parts. Raises CorruptBatch."""
    parts: list[Part] = []
    waiting = _runs(found)[::-1]
    while waiting:
        run = waiting.pop()
        alone = len(run) == 1 and isinstance(run[0], RecordBatch)
        records = scatter(run, _MOST_SUBJECTS if not alone else MAX_BATCH_RECORDS)
        if records is None:
            batches: list[Batches] = [*one_by_one(run)]
            middle = len(batches) // 2
            waiting += [batches[middle:], batches[:middle]] if middle else [batches]
            continue
        following = waiting[-1][0].header.base_offset if waiting else end_offset
        parts.append(Part(run[0].header, following, records, division))
    return parts


def _stamps_of(records: ScatteredRecords) -> Stamps | None:
    stamps = records.timestamps_ns
    oldest, newest = int(stamps.min()), int(stamps.max())
    if newest - oldest > 1000 * MAX_TIMESTAMP_DELTA_US or ((stamps - oldest) % 1000).any():
        return None
    return oldest, newest


def _runs(found: list[Batches]) -> list[list[Batches]]:
    """Split the batches into runs of one epoch each."""
    if len(found) == 1 and isinstance(found[0], SmallBatches) and found[0].is_of_one_epoch:
        return [found]
    alike = groupby(one_by_one(found), key=lambda batch: batch.header.leader_epoch)
    return [[*run] for _, run in alike]
