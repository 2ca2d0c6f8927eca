"""Finds the columns of a batch. Checks every length and offset in the bytes.

A correct checksum does not prove that the writer was correct: a replica, a plug-in or an attacker
may have computed it over wrong columns. So every position is compared with the end of the batch
before it is used, and a position beyond the end raises CorruptBatch. No allocation is larger than
the content of the batch.

Only `walk` depends on the order of the columns. It works on numbers and on numpy arrays of numbers:
`find_layout` uses it for one batch, positions.py for many batches at once.
"""

from __future__ import annotations

import struct
from array import array
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, Protocol, TypeVar

from liftlog.errors import CorruptBatch
from liftlog.records.format import (
    CODEC_MASK,
    ESCAPED_SUBJECTS,
    HEADER_SIZE,
    HEADERS,
    KEYS,
    KNOWN_ATTRIBUTES,
    OFFSET_DELTAS,
    SUBJECT_IDS,
    TIMESTAMP_DELTAS,
    TOMBSTONES,
)
from liftlog.records.header import BatchHeader

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

N = TypeVar("N", int, "NDArray[np.int64]")
"""A number of one batch, or an array of the numbers of many batches."""

FEW = 16
FEW_ENDS = tuple(struct.Struct(f"<{n + 1}i") for n in range(FEW + 1))
"""Structs that read the offsets of a few items in one step; a memoryview cast takes three steps."""


class Binary(NamedTuple, Generic[N]):
    """The position of a binary column: its `count + 1` offsets as in Arrow, its bitmap, its data.

    Only two offsets are checked here: the first, which is 0, and the last, which is the size of the
    data. `ascending` checks the other offsets when they are used.
    """

    ends: N
    bitmap: N  # undefined if the column has no bitmap
    data: N


class Layout(NamedTuple, Generic[N]):
    """The positions of the columns of a batch, in bytes; None for absent keys and headers.

    The positions of other absent columns are undefined, so callers must check the attributes of the
    batch.
    """

    offset_deltas: N
    time_deltas: N
    entries: N  # of the subject dictionary
    dictionary: Binary[N]
    ids: N
    keys: Binary[N] | None
    headers: Binary[N] | None
    values: Binary[N]


class Words(Protocol[N]):
    """The bytes of batches as an array of i32."""

    def __getitem__(self, place: N, /) -> N: ...


_SIZE = struct.Struct("<i")
_COLUMNS = KNOWN_ATTRIBUTES & ~CODEC_MASK
_read_dictionary = struct.Struct("<2q").unpack_from
"""Function that reads the number of entries together with the reserved field above it, and the
first two offsets."""

PROBLEMS = (
    "the subject dictionary does not fit the batch",
    "several subjects, but no column says which record has which",
    "a column reaches past the end of the batch",
)

_new: Any = tuple.__new__  # NamedTuple's own __new__ takes three times as long


def walk(words: Words[N], attributes: int, count: N, at: N) -> tuple[Layout[N], N, Any, Any, Any]:
    """Find the columns of a batch of `count` records; `at` is the end of its header.

    Returns the layout, the end of its last column, and for each of PROBLEMS a number that is not 0
    if the problem occurred. The layout is valid only if no problem occurred and the end of the last
    column is the end of the batch. In this case each step went forward, so no column extends beyond
    the end. Otherwise `walk` may also raise IndexError.
    """
    offset_deltas = at
    if attributes & OFFSET_DELTAS:
        at = at + (4 * count + 7 & ~7)
    time_deltas = at
    if attributes & TIMESTAMP_DELTAS:
        at = at + (4 * count + 7 & ~7)
    place = at >> 2
    entries = words[place]
    wrong: Any = words[place + 1] | (entries < 0) | ((entries == 0) != (count == 0))
    dictionary, ids, past_end = _binary(words, at + 8, entries, attributes & ESCAPED_SUBJECTS)
    wrong = wrong | past_end
    unclear: Any = 0
    at = ids
    if attributes & SUBJECT_IDS:
        at = at + (2 * count + 7 & ~7)
    else:
        unclear = entries > 1
    keys = headers = None
    past: Any = 0
    if attributes & KEYS:
        keys, at, past = _binary(words, at, count, KEYS)
    if attributes & HEADERS:
        headers, at, past_end = _binary(words, at, count, 0)
        past = past | past_end
    values, at, past_end = _binary(words, at, count, attributes & TOMBSTONES)
    fields = (offset_deltas, time_deltas, entries, dictionary, ids, keys, headers, values)
    return _new(Layout, fields), at, wrong, unclear, past | past_end


def _binary(words: Words[N], at: N, count: N, has_bitmap: int) -> tuple[Binary[N], N, Any]:
    """Return the binary column at `at`, its end, and a number: 0 if the column is valid."""
    place = at >> 2
    size = words[place + count]
    bitmap = data = at + (4 * count + 11 & ~7)
    if has_bitmap:
        data = bitmap + ((count + 7 >> 3) + 7 & ~7)
    end = data + (size + 7 & ~7)
    return _new(Binary, (at, bitmap, data)), end, words[place] | (size < 0)


_MOST_KNOWN = 128
_known: list[dict[int, tuple[Layout[int], Any, int, int]]] = [{} for _ in range(FEW + 1)]
"""A cache of layouts of batches with one subject and no optional column, by number of records. Each
entry also has the function that reads the offsets of the values, the position of these offsets, and
the position of the data.

A publisher that waits for each ack produces such batches, and for such a batch, a walk takes longer
than reading its value. The key of an entry is a number that contains both offsets of the
dictionary. The layouts of batches with the same key differ only in the end of the values.
"""


def find_layout(view: memoryview, header: BatchHeader) -> Layout[int]:
    """Find the columns of one batch. Raises CorruptBatch."""
    attributes, count = header.attributes, header.record_count
    is_plain = count <= FEW and not attributes & _COLUMNS
    subject = 0
    try:
        if is_plain:
            entries, subject = _read_dictionary(view, HEADER_SIZE)
            known = _known[count].get(subject) if entries == 1 else None
            if known is not None:
                layout, read_ends, position, data = known
                ends = read_ends(view, position)
                size = ends[count]
                # These are all the checks of `walk`. If one fails, `walk` reports the problem.
                if size >= 0 and data + (size + 7 & ~7) == len(view) and not ends[0]:
                    return layout
        found, end, wrong, unclear, past_end = walk(view.cast("i"), attributes, count, HEADER_SIZE)
    except (IndexError, struct.error) as error:
        raise CorruptBatch(PROBLEMS[-1]) from error
    if wrong or unclear or past_end:
        raise CorruptBatch(PROBLEMS[0 if wrong else 1 if unclear else 2])
    if end != len(view):
        raise CorruptBatch(f"the columns end at {end}, the batch at {len(view)}")
    if is_plain and found.entries == 1:
        if len(_known[count]) >= _MOST_KNOWN:
            _known[count].clear()
        position, _, data = found.values
        _known[count][subject] = found, FEW_ENDS[count].unpack_from, position, data
    return found


def numbers(
    view: memoryview, position: int, count: int, kind: Literal["H", "I", "i"]
) -> memoryview[int]:
    """Return the `count` fixed-width numbers at `position`."""
    size = count * (2 if kind == "H" else 4)
    raw = view[position : position + size]
    if len(raw) != size:
        raise CorruptBatch("a column reaches past the end of the batch")
    return raw.cast(kind)


def size_of(view: memoryview, column: Binary[int], count: int) -> int:
    """Return the size of the data of a column of `count` items, in bytes."""
    size: int = _SIZE.unpack_from(view, column.ends + 4 * count)[0]
    return size


def ends_of(view: memoryview, column: Binary[int], count: int) -> list[int]:
    """Return the `count + 1` offsets of a column. Raises CorruptBatch if they do not ascend."""
    if count <= FEW:
        return ascending([*FEW_ENDS[count].unpack_from(view, column.ends)])
    return ascending(numbers(view, column.ends, count + 1, "i").tolist())


def ascending(ends: list[int]) -> list[int]:
    """Return `ends` itself. Raises CorruptBatch if an item begins before the previous one ends."""
    # Sorting a sorted list is the fastest test: one comparison per item in C.
    if ends != sorted(ends):
        raise CorruptBatch("the offsets of a column run backwards")
    return ends


def bitmap_of(view: memoryview, position: int, count: int) -> list[bool]:
    """Return the `count` bits of the bitmap at `position`, lowest bit of each byte first."""
    number = int.from_bytes(view[position : position + (count + 7) // 8], "little")
    digits = format(number, f"0{max(count, 1)}b")[::-1]
    return [digit == "1" for digit in digits[:count]]


def equal_length(ends: memoryview[int]) -> int:
    """Return the length of the items if all have the same length; 0 if their lengths differ or they
    are empty."""
    count = len(ends) - 1
    if not count:
        return 0
    length = ends[1]
    if length <= 0 or ends[-1] != length * count:
        return 0
    if length << count.bit_length() < 1 << 31:
        multiples = _multiples(length, count.bit_length())[: ends.nbytes]
    else:
        multiples = array("i", range(0, length * (count + 1), length)).tobytes()
    return length if ends.tobytes() == multiples else 0


@lru_cache(maxsize=32)
def _multiples(length: int, bits: int) -> bytes:
    """Return the ends of up to 2^bits items of this length: the multiples of `length` from 0 on, as
    i32."""
    return array("i", range(0, (length << bits) + 1, length)).tobytes()


@lru_cache(maxsize=32)
def all_set(count: int) -> bytes:
    """Return a bitmap with `count` set bits: the bitmap of a column in which each record has an
    item."""
    return ((1 << count) - 1).to_bytes((count + 7) // 8, "little")
