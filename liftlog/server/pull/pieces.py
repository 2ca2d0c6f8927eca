"""Pieces of the log as columns, for those who look into the records.

The members of a group read the same pieces, each for its own slots. What they have in common is
done once: to read and check a piece, decode it, and compute the slot of each record. `SharedPieces`
keeps the pieces that were read last for the members that come next.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from typing import NamedTuple

from liftlog.errors import CorruptBatch, UnsupportedFormat
from liftlog.log import Log, LogSlice
from liftlog.log.manifest import Manifest
from liftlog.log.rewrite.batches import Chunk, chunks_of, with_range
from liftlog.protocol.limits import MIB
from liftlog.records.column_set import Columns, concat
from liftlog.records.decode import RecordBatch, decode_batch
from liftlog.records.header import BatchHeader
from liftlog.records.place import Place
from liftlog.records.selection import Slots, slots_of

SHARED_BYTES = 24 * MIB
_LARGEST_SHARED = 4 * MIB
"""Of one piece: compressed batches may become a thousand times as long."""
_INFLATED_BYTES = 16 * MIB
_MOST_SUBJECTS = 4096
"""In the dictionary of what is joined, before those that are equal are found."""


def chunks_in(raw: bytes, place: Place) -> Iterator[Chunk]:
    """The batches in chunks that are scanned in one step each. Raises CorruptBatch at damage, and
    UnsupportedFormat."""
    whole: list[RecordBatch] = []
    damage: CorruptBatch | UnsupportedFormat | None = None
    position = inflated = 0
    while position < len(raw):
        try:
            batch = decode_batch(raw, position)
            place.take(batch.header)
        except (CorruptBatch, UnsupportedFormat) as error:
            damage = error
            break
        whole.append(batch)
        position += batch.header.length
        inflated += len(batch.raw)
        if inflated >= _INFLATED_BYTES:  # decompressed batches are much longer than `raw`
            yield from chunks_of(whole)
            whole, inflated = [], 0
    yield from chunks_of(whole)
    if damage is not None:
        raise damage
    place.check_end()


class Part(NamedTuple):
    """Records of one epoch. `header` is the first batch's, with the range of all of them."""

    header: BatchHeader
    records: Columns | None
    slots: Slots | None


class Piece:
    """A piece of the log that was read, checked and decoded, for groups with so many slots. It is
    good as long as the log has this manifest: whatever is cut off, compacted away or found to be
    damaged changes that first."""

    def __init__(
        self, manifest: Manifest, slot_count: int, piece: LogSlice, parts: list[Part], size: int
    ) -> None:
        self.manifest = manifest
        self.slot_count = slot_count
        self.first_offset, self.next_offset = piece.first_offset, piece.next_offset
        self.length = piece.length
        self.parts = parts
        self.size_bytes = size


class SharedPieces:
    """The pieces of all logs that members of groups have read last. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pieces: OrderedDict[Piece, None] = OrderedDict()  # the longest unused is first
        self._size = 0

    def covering(self, log: Log, slot_count: int, offset: int) -> Piece | None:
        """The piece with that offset, if there is one. So members that began at different places
        read the same pieces from then on."""
        manifest = log.view.manifest
        if offset < manifest.log_start_offset:
            return None
        with self._lock:
            for piece in reversed(self._pieces):
                if (
                    piece.first_offset <= offset < piece.next_offset
                    and piece.manifest is manifest
                    and piece.slot_count == slot_count
                ):
                    self._pieces.move_to_end(piece)
                    return piece
        return None

    def add(self, manifest: Manifest, slot_count: int, piece: LogSlice, raw: bytes) -> Piece | None:
        """`raw` is what the piece holds, and `manifest` that of the log before it was read. None if
        it is damaged or cannot be kept: then it is for its reader to look at."""
        size = 0
        found: list[tuple[BatchHeader, list[Columns]]] = []
        subjects = 0  # of the newest part
        try:
            for chunk in chunks_in(raw, Place(piece.first_offset, piece.next_offset)):
                size += sum([len(batch.raw) for batch in chunk.batches])
                if size > _LARGEST_SHARED:
                    return None
                header = chunk.header
                records = [chunk.columns()] if header.record_count else []
                subjects += sum([len(one.subjects) for one in records])
                if (
                    found
                    and found[-1][0].leader_epoch == header.leader_epoch
                    and (subjects <= _MOST_SUBJECTS)
                ):
                    before, joined = found[-1]
                    joined += records
                    found[-1] = (
                        with_range(before, before.base_offset, header.last_offset),
                        joined,
                    )
                else:
                    found.append((header, records))
                    subjects = sum([len(one.subjects) for one in records])
            parts = [_joined(header, some, slot_count) for header, some in found]
        except (CorruptBatch, UnsupportedFormat):
            return None
        known = Piece(manifest, slot_count, piece, parts, size)
        with self._lock:
            self._pieces[known] = None
            self._size += size
            while self._size > SHARED_BYTES:
                oldest, _ = self._pieces.popitem(last=False)
                self._size -= oldest.size_bytes
        return known


def _joined(header: BatchHeader, found: list[Columns], slot_count: int) -> Part:
    if not found:
        return Part(header, None, None)
    records = concat(found)
    return Part(header, records, slots_of(records, slot_count))
