"""Checks runs of adjacent small batches, and stores them together. Needs numpy.

A publisher that waits for each ack produces batches of one record. Parsing and checking a batch
alone takes some microseconds, which is much for so few bytes. This walk takes one Python step per
batch to find its start, and one call per checksum. All other checks compare columns of thousands of
headers at once.

This walk reports no errors: it stops before the first batch that is large, compressed, cut,
damaged, misplaced or of a newer format. The walk by single batches (`decode_batch`, `Place`) then
examines this batch and reports the problem, so both walks find the same problems.
"""

from __future__ import annotations

from itertools import repeat
from typing import Any

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from liftlog.records.decode import RecordBatch
from liftlog.records.format import (
    ATTRIBUTES_POSITION,
    CODEC_MASK,
    HEADER,
    HEADER_CRC_POSITION,
    HEADER_SIZE,
    KNOWN_ATTRIBUTES,
    LENGTH_POSITION,
    MAGIC,
)
from liftlog.records.header import BatchHeader
from liftlog.records.place import Place

Numbers = NDArray[np.int64]
Heads = NDArray[np.void]

_KINDS = {"4s": "<u4", "I": "<u4", "Q": "<u8", "q": "<i8", "H": "<u2"}
_CODES = HEADER.format.removeprefix("<").replace("4s", "m")
_NAMES = ("magic", *BatchHeader._fields[:-1], "reserved", "body_crc32c", "header_crc32c")
HEAD = np.dtype(
    [
        (name, _KINDS["4s" if code == "m" else code])
        for name, code in zip(_NAMES, _CODES, strict=True)
    ]
)
"""The header as numpy reads it: the fields of format.HEADER, by their names in BatchHeader."""

FEWEST_BATCHES = 32
"""Fewer batches than this number are decoded one by one, because decoding them together would take
longer."""
_MOST_BATCHES = 4096
_LARGEST_BYTES = 4096
_MAGIC = int.from_bytes(MAGIC, "little")
_UNKNOWN = 0xFFFF & ~KNOWN_ATTRIBUTES
_LARGEST_OFFSET = 2**63 - 1

_new_tuple: Any = tuple.__new__


class SmallBatches:
    """Small batches that one walk has verified: uncompressed, with at least one record each.
    Immutable.

    `starts` are the positions of the batches in `raw`, `heads` their headers. Between these
    batches, there may be batches without records.
    """

    __slots__ = ("_len", "heads", "lengths", "raw", "starts")

    def __init__(self, raw: memoryview, starts: Numbers, heads: Heads) -> None:
        self.raw = raw
        self.starts = starts
        self.heads = heads
        self.lengths: Numbers = heads["length"].astype(np.int64)
        self._len = int(heads["record_count"].sum(dtype=np.int64))

    def __len__(self) -> int:
        """Number of records in all batches."""
        return self._len

    @property
    def batch_count(self) -> int:
        return len(self.starts)

    @property
    def size_bytes(self) -> int:
        """Size of all batches as they are stored."""
        return len(self.raw)

    @property
    def header(self) -> BatchHeader:
        """Header of the first batch."""
        fields = [int(self.heads[name][0]) for name in BatchHeader._fields]
        return BatchHeader(*fields)

    @property
    def is_of_one_epoch(self) -> bool:
        """True if all batches have the same leader epoch."""
        epochs = self.heads["leader_epoch"]
        return bool(epochs[0] == epochs[-1])  # leader epochs never decrease

    def batches(self) -> list[RecordBatch]:
        """Return the batches one by one."""
        columns = [self.heads[name].tolist() for name in BatchHeader._fields]
        headers = map(_new_tuple, repeat(BatchHeader), zip(*columns, strict=True))
        starts = self.starts.tolist()
        views = [
            self.raw[at : at + length]
            for at, length in zip(starts, columns[0], strict=True)  # the first field is the length
        ]
        return list(map(RecordBatch, views, headers, views))


def heads_at(raw: memoryview | bytes, starts: Numbers) -> Heads:
    """Return a contiguous copy of the headers at the positions `starts`, which are multiples of
    8."""
    longs = np.frombuffer(raw, np.uint64, len(raw) // 8)
    found: Heads = longs[(starts >> 3)[:, None] + np.arange(HEADER_SIZE // 8)].view(HEAD)[:, 0]
    return found


def take_small_batches(
    body: memoryview,
    position: int,
    place: Place,
    first_offset: int,
    stop_offset: int | None,
    *,
    largest_bytes: int = _LARGEST_BYTES,
    fewest: int | None = None,
) -> tuple[SmallBatches, int] | None:
    """Return the small batches that begin at `position`, and the position after them.

    Takes only batches that are complete, pass every check, continue each other from `place`, and
    have no offset outside [first_offset, stop_offset). Moves `place` past them. Returns None if
    fewer than `fewest` (default FEWEST_BATCHES) batches qualify. A caller that decodes the columns
    of all batches at once may set a higher `largest_bytes`: such a caller is faster with larger
    batches, too.
    """
    starts = _find_starts(body[position:], largest_bytes)
    if len(starts) < (FEWEST_BATCHES if fewest is None else fewest):
        return None
    begin = np.array(starts, np.int64)
    heads = heads_at(body[position:], begin)
    count = _count_ordinary(heads, place, first_offset, stop_offset)
    raw = body[position:]
    count = _count_undamaged(raw, starts[:count], heads[:count])
    # Batches without records are skipped, except at the end: a read stops before them, and a later
    # read takes them.
    with_records = np.flatnonzero(heads["record_count"][:count])
    if not len(with_records):
        return None
    count = int(with_records[-1]) + 1
    last = heads[count - 1]
    place.go_on_behind(
        int(last["base_offset"]) + int(last["last_offset_delta"]) + 1, int(last["leader_epoch"])
    )
    end = starts[count - 1] + int(last["length"])
    return SmallBatches(raw[:end], begin[with_records], heads[with_records]), position + end


def _find_starts(body: memoryview, largest_bytes: int) -> list[int]:
    """Return the starts of complete small batches, according to the lengths in their headers."""
    words = body[: len(body) & ~7].cast("I")
    length_at, attributes_at = LENGTH_POSITION >> 2, ATTRIBUTES_POSITION >> 2
    at, last = 0, len(words) - (HEADER_SIZE >> 2)
    found: list[int] = []
    while at <= last and len(found) < _MOST_BATCHES:
        length = words[at + length_at]
        if not HEADER_SIZE <= length <= largest_bytes or length & 7:
            break
        if words[at + attributes_at] & CODEC_MASK:
            break
        found.append(at << 2)
        at += length >> 2
    if at > len(words):
        found.pop()  # this batch is cut
    return found


def _count_ordinary(heads: Heads, place: Place, first_offset: int, stop_offset: int | None) -> int:
    """Return the number of headers, from the first on, that are ordinary and continue each other
    from `place`."""
    deltas = heads["last_offset_delta"].astype(np.int64)
    counts = heads["record_count"].astype(np.int64)
    offsets = heads["base_offset"].astype(np.int64)  # offsets beyond 63 bits become negative
    epochs = heads["leader_epoch"].astype(np.int64)
    following = offsets + deltas + 1
    end = min(place.sure_until, _LARGEST_OFFSET)
    if stop_offset is not None:
        end = min(end, stop_offset)
    good = (heads["magic"] == _MAGIC) & (heads["reserved"] == 0)
    good &= heads["attributes"] & _UNKNOWN == 0
    good &= (counts <= deltas + 1) & (4 * counts <= heads["length"])
    good &= (offsets >= first_offset) & (following > 0) & (following <= end)
    good[1:] &= (offsets[1:] == following[:-1]) & (epochs[1:] >= epochs[:-1])
    good[0] &= bool(offsets[0] == place.offset and epochs[0] >= place.epoch)
    return len(good) if good.all() else int(good.argmin())


def _count_undamaged(raw: memoryview, starts: list[int], heads: Heads) -> int:
    """Return the number of batches, from the first on, that match both of their checksums."""
    packed = heads.view(np.uint8).data
    header_sums = [
        crc32c(packed[at : at + HEADER_CRC_POSITION])
        for at in range(0, HEADER_SIZE * len(starts), HEADER_SIZE)
    ]
    body_sums = [
        crc32c(raw[at + HEADER_SIZE : at + length])
        for at, length in zip(starts, heads["length"].tolist(), strict=True)
    ]
    good = np.array(header_sums, np.uint32) == heads["header_crc32c"]
    good &= np.array(body_sums, np.uint32) == heads["body_crc32c"]
    return len(good) if good.all() else int(good.argmin())
