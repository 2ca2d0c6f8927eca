"""Where the columns of a batch lie. Every length and offset in the bytes is checked here.

A correct checksum proves only that the bytes are the writer's, not that the writer was sane: a
replica, a plug-in or an attacker may have computed it. So no position is used before it was
compared with the end of the batch, and whatever does not fit raises CorruptBatch. Nothing is
allocated that is larger than what the batch itself holds.
"""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import Literal, NamedTuple

from liftlog.errors import CorruptBatch
from liftlog.records.format import (
    ESCAPED_SUBJECTS,
    HEADER_SIZE,
    HEADERS,
    KEYS,
    OFFSET_DELTAS,
    SUBJECT_IDS,
    TIMESTAMP_DELTAS,
    TOMBSTONES,
    padded,
)
from liftlog.records.header import BatchHeader

_ONE_SUBJECT = struct.Struct("<IIii")  # count 1, 0, the two offsets of the only entry
FEW = 16
_FEW_ENDS = tuple(struct.Struct(f"<{n + 1}i") for n in range(FEW + 1))
"""Read the offsets of a few items in one step; a memoryview cast costs three."""


class Binary(NamedTuple):
    """A binary column: n+1 offsets as Arrow has them, an optional validity bitmap, the bytes.

    Of the offsets only the first and the last were checked; `ascending` checks the rest when
    they are used.
    """

    ends: memoryview[int]
    bitmap: memoryview | None
    data: int  # position of the first byte


class Dictionary(NamedTuple):
    """The subject dictionary: offsets of the entries, flags of the escaped ones, the bytes."""

    ends: list[int]
    escapes: memoryview | None
    data: int
    end: int  # position of what follows, padding included


def numbers(
    view: memoryview, position: int, count: int, kind: Literal["H", "I", "i"]
) -> memoryview[int]:
    """`count` fixed-width numbers at `position`."""
    size = count * (2 if kind == "H" else 4)
    raw = view[position : position + size]
    if len(raw) != size:
        raise CorruptBatch("a column reaches past the end of the batch")
    return raw.cast(kind)


def ascending(ends: list[int]) -> list[int]:
    """`ends` itself, unless an item would begin before the one in front of it ended."""
    # Sorting what is sorted already is the fastest test there is: one comparison per item in C.
    if ends != sorted(ends):
        raise CorruptBatch("the offsets of a column run backwards")
    return ends


def bits(bitmap: memoryview, count: int) -> list[bool]:
    """The first `count` bits of a bitmap, lowest bit of each byte first."""
    number = int.from_bytes(bitmap, "little")
    digits = format(number, f"0{max(count, 1)}b")[::-1]
    return [digit == "1" for digit in digits[:count]]


def timestamps_position(header: BatchHeader) -> int:
    """Where the timestamp deltas begin, if there are any."""
    if header.attributes & OFFSET_DELTAS:
        return HEADER_SIZE + padded(4 * header.record_count)
    return HEADER_SIZE


def dictionary_position(header: BatchHeader) -> int:
    position = timestamps_position(header)
    if header.attributes & TIMESTAMP_DELTAS:
        position += padded(4 * header.record_count)
    return position


def find_dictionary(view: memoryview, header: BatchHeader) -> Dictionary:
    position = dictionary_position(header)
    count, reserved = numbers(view, position, 2, "I")
    if reserved or (count == 0) != (header.record_count == 0):
        raise CorruptBatch("the subject dictionary does not fit the batch")
    if count > 1 and not header.attributes & SUBJECT_IDS:
        raise CorruptBatch("several subjects, but no column says which record has which")
    position += 8
    ends = numbers(view, position, count + 1, "i").tolist()
    position += padded(4 * (count + 1))
    escapes = None
    if header.attributes & ESCAPED_SUBJECTS:
        escapes = view[position : position + (count + 7) // 8]
        position += padded((count + 7) // 8)
    end = position + padded(max(ends[-1], 0))
    if ends[0] != 0 or end > len(view):
        raise CorruptBatch("the subject dictionary reaches past the end of the batch")
    return Dictionary(ascending(ends), escapes, position, end)


def find_columns(
    view: memoryview, header: BatchHeader, dictionary: Dictionary | None = None
) -> dict[int, Binary]:
    """Keys, headers and values, by attribute bit; TOMBSTONES stands for the value column.

    `dictionary` is what `find_dictionary` said, if that was asked already.
    """
    attributes, count = header.attributes, header.record_count
    position = (dictionary or find_dictionary(view, header)).end
    if attributes & SUBJECT_IDS:
        position += padded(2 * count)
    found: dict[int, Binary] = {}
    if attributes & KEYS:
        found[KEYS], position = _binary(view, position, count, nullable=True)
    if attributes & HEADERS:
        found[HEADERS], position = _binary(view, position, count, nullable=False)
    nullable = attributes & TOMBSTONES != 0
    found[TOMBSTONES], position = _binary(view, position, count, nullable=nullable)
    if position != len(view):
        raise CorruptBatch(f"the columns end at {position}, the batch at {len(view)}")
    return found


def _binary(view: memoryview, position: int, count: int, *, nullable: bool) -> tuple[Binary, int]:
    """The binary column at `position`, and the position of what follows it."""
    ends = numbers(view, position, count + 1, "i")
    position += padded(4 * (count + 1))
    bitmap = None
    if nullable:
        bitmap = view[position : position + (count + 7) // 8]
        position += padded((count + 7) // 8)
    size = ends[-1]
    following = position + padded(max(size, 0))
    if ends[0] != 0 or size < 0 or following > len(view):
        raise CorruptBatch("a column reaches past the end of the batch")
    return Binary(ends, bitmap, position), following


def _plain_values_position(view: memoryview) -> int:
    """Where the value column of a batch of one subject and nothing else begins; 0 if unsure."""
    if len(view) < HEADER_SIZE + 24:
        return 0
    entries, reserved, first, subject_length = _ONE_SUBJECT.unpack_from(view, HEADER_SIZE)
    if entries != 1 or reserved or first or subject_length < 0:
        return 0
    position: int = HEADER_SIZE + 16 + (subject_length + 7 & ~7)
    return position if position < len(view) else 0


def find_plain_values(view: memoryview, count: int) -> Binary | None:
    """The value column of a batch of one subject and nothing else, by the short way.

    None when the batch is of another kind, or damaged: `find_columns` says which.
    """
    position = _plain_values_position(view)
    data = position + (4 * count + 11 & ~7)
    if not position or data > len(view):
        return None
    ends = view[position : position + 4 * (count + 1)].cast("i")
    size = ends[-1]
    if ends[0] or size < 0 or data + (size + 7 & ~7) != len(view):
        return None
    return Binary(ends, None, data)


def few_plain_values(view: memoryview, count: int) -> list[bytes] | None:
    """The values of a small batch of one subject and nothing else; None as above.

    Synchronous publishers leave batches of a few records, so what each batch costs counts.
    """
    position = _plain_values_position(view)
    data = position + (4 * count + 11 & ~7)
    if not position or data > len(view):
        return None
    ends = _FEW_ENDS[count].unpack_from(view, position)
    size = ends[-1]
    if ends[0] or size < 0 or data + (size + 7 & ~7) != len(view):
        return None
    raw = view[data : data + size].tobytes()
    if count == 1:
        return [raw]
    values = [raw[a:b] for a, b in pairwise(ends)]
    # Offsets that run backwards make the slices overlap, so that together they are longer.
    return values if sum(map(len, values)) == size else None
