"""One record batch as a lazy view over its bytes.

Nothing is copied until it is asked for, and a column that is not asked for is only stepped
over. Methods that return lists return one entry per record of the (possibly trimmed) batch.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Literal, NamedTuple

from liftlog.errors import CorruptBatch, UnsupportedFormat
from liftlog.records.format import (
    CODEC_MASK,
    CODEC_NAMES,
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
from liftlog.records.header import BatchHeader, Buffer, parse_header, verify_body
from liftlog.records.message_headers import MessageHeaders

_ONE_SUBJECT = struct.Struct("<IIii")  # count 1, 0, the two offsets of the only entry


class Record(NamedTuple):
    """One stored message. `value` is None for a tombstone, `key` is None without one."""

    offset: int
    timestamp_ns: int
    subject: str
    key: bytes | None
    value: bytes | None
    headers: Mapping[str, str]


class _Binary(NamedTuple):
    """Where a binary column lies: n+1 offsets, an optional bitmap, the bytes."""

    ends: memoryview  # of i32
    bitmap: memoryview | None
    data: int  # position of the first byte


class RecordBatch:
    """A decoded batch; immutable. Holds on to the buffer that it was made from."""

    __slots__ = ("_columns", "_hi", "_lo", "_view", "header")

    def __init__(self, view: memoryview, header: BatchHeader) -> None:
        self.header = header
        self._view = view  # exactly this batch
        self._lo = 0
        self._hi = header.record_count
        self._columns: dict[int, _Binary] | None = None

    def __len__(self) -> int:
        return self._hi - self._lo

    def __repr__(self) -> str:
        return f"<RecordBatch base_offset={self.base_offset} records={len(self)}>"

    @property
    def base_offset(self) -> int:
        """Offset of the first record (of the batch itself when it holds none)."""
        if self._lo == 0 and not self.header.attributes & OFFSET_DELTAS:
            return self.header.base_offset
        return self.offsets()[0] if len(self) else self.header.base_offset

    @property
    def next_offset(self) -> int:
        """The offset at which the next batch starts."""
        return self.header.next_offset

    @property
    def size_bytes(self) -> int:
        return self.header.length

    def trim(self, first_offset: int, stop_offset: int | None = None) -> RecordBatch:
        """The same batch without records below `first_offset` or at and above `stop_offset`."""
        if first_offset <= self.header.base_offset and (
            stop_offset is None or stop_offset > self.header.last_offset
        ):
            return self
        offsets = self._all_offsets()
        trimmed = RecordBatch(self._view, self.header)
        trimmed._columns = self._columns
        trimmed._lo = max(self._lo, bisect_left(offsets, first_offset))
        trimmed._hi = self._hi
        if stop_offset is not None:
            trimmed._hi = min(self._hi, bisect_left(offsets, stop_offset))
        trimmed._hi = max(trimmed._hi, trimmed._lo)
        return trimmed

    # --- columns ---

    def offsets(self) -> Sequence[int]:
        return self._all_offsets()[self._lo : self._hi]

    def timestamps_ns(self) -> list[int]:
        base = self.header.base_timestamp_ns
        if not self.header.attributes & TIMESTAMP_DELTAS:
            return [base] * len(self)
        start = HEADER_SIZE
        if self.header.attributes & OFFSET_DELTAS:
            start += padded(4 * self.header.record_count)
        deltas = self._numbers(start, self.header.record_count, "I")
        return [base + 1000 * delta for delta in deltas[self._lo : self._hi].tolist()]

    def subjects(self) -> list[str]:
        names = self._dictionary()
        if not self.header.attributes & SUBJECT_IDS:
            return names[:1] * len(self)
        ids = self._numbers(self._subject_ids_position(), self.header.record_count, "H")
        try:
            return [names[i] for i in ids[self._lo : self._hi].tolist()]
        except IndexError as error:
            raise CorruptBatch("a subject id points outside the dictionary") from error

    def keys(self) -> list[bytes | None]:
        if not self.header.attributes & KEYS:
            return [None] * len(self)
        return self._nullable(self._column(KEYS))

    def headers(self) -> list[bytes]:
        """One raw NATS header block per record, b"" where there was none."""
        if not self.header.attributes & HEADERS:
            return [b""] * len(self)
        return self._binary(self._column(HEADERS))

    def values(self) -> list[bytes | None]:
        """The payloads as bytes; None for a tombstone."""
        column = self._column(TOMBSTONES)
        if column.bitmap is None:
            return self._binary(column)  # type: ignore[return-value]  # list is invariant
        return self._nullable(column)

    def value_views(self) -> list[memoryview | None]:
        """The payloads as views into the batch, without a copy; None for a tombstone."""
        column = self._column(TOMBSTONES)
        data = self._view[column.data :]
        ends = column.ends[self._lo : self._hi + 1].tolist()
        views = [data[a:b] for a, b in pairwise(ends)]
        if column.bitmap is None:
            return views  # type: ignore[return-value]  # list is invariant
        flags = self._flags(column.bitmap)
        return [view if flag else None for view, flag in zip(views, flags, strict=True)]

    def records(self) -> list[Record]:
        raw = self.headers()
        parsed = [MessageHeaders(block) for block in raw]
        return list(
            map(
                Record,
                self.offsets(),
                self.timestamps_ns(),
                self.subjects(),
                self.keys(),
                self.values(),
                parsed,
            )
        )

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records())

    # --- layout ---

    def _all_offsets(self) -> Sequence[int]:
        header = self.header
        if not header.attributes & OFFSET_DELTAS:
            return range(header.base_offset, header.base_offset + header.record_count)
        deltas = self._numbers(HEADER_SIZE, header.record_count, "I")
        return [header.base_offset + delta for delta in deltas.tolist()]

    def _numbers(self, position: int, count: int, kind: Literal["H", "I", "i"]) -> memoryview[int]:
        size = count * (2 if kind == "H" else 4)
        raw = self._view[position : position + size]
        if len(raw) != size:
            raise CorruptBatch("a column reaches past the end of the batch")
        return raw.cast("B").cast(kind)

    def _dictionary_position(self) -> int:
        position = HEADER_SIZE
        for bit in (OFFSET_DELTAS, TIMESTAMP_DELTAS):
            if self.header.attributes & bit:
                position += padded(4 * self.header.record_count)
        return position

    def _dictionary_layout(self) -> tuple[int, list[int], int, int]:
        """Entry count, entry ends, position of the escape bitmap, position of the bytes."""
        position = self._dictionary_position()
        count = int.from_bytes(self._view[position : position + 4], "little")
        ends = self._numbers(position + 8, count + 1, "i").tolist()
        bitmap = position + 8 + padded(4 * (count + 1))
        data = bitmap
        if self.header.attributes & ESCAPED_SUBJECTS:
            data += padded((count + 7) // 8)
        return count, ends, bitmap, data

    def _dictionary(self) -> list[str]:
        _, ends, _, data = self._dictionary_layout()
        view = self._view
        try:
            return [str(view[data + a : data + b], "utf-8") for a, b in pairwise(ends)]
        except UnicodeDecodeError as error:
            raise CorruptBatch("a subject in the dictionary is not UTF-8") from error

    def escaped_subjects(self) -> set[str]:
        """The subjects of this batch that were not UTF-8 on NATS (see subjects.py)."""
        if not self.header.attributes & ESCAPED_SUBJECTS:
            return set()
        count, _, bitmap, data = self._dictionary_layout()
        flags = _bits(self._view[bitmap:data], count)
        return {name for name, flag in zip(self._dictionary(), flags, strict=True) if flag}

    def _subject_ids_position(self) -> int:
        _, ends, _, data = self._dictionary_layout()
        return data + padded(ends[-1])

    def _column(self, bit: int) -> _Binary:
        if self._columns is None:
            self._columns = self._locate_columns()
        return self._columns[bit]

    def _locate_values(self) -> dict[int, _Binary] | None:
        """Short way for a batch of one subject and no optional column, where only values follow.

        Synchronous publishers leave batches of a few records, so what each of them costs counts.
        None: not of that kind, or damaged.
        """
        view, count = self._view, self.header.record_count
        if len(view) < HEADER_SIZE + _ONE_SUBJECT.size:
            return None
        entries, _, _, subject_length = _ONE_SUBJECT.unpack_from(view, HEADER_SIZE)
        position = HEADER_SIZE + _ONE_SUBJECT.size + padded(subject_length)
        data = position + padded(4 * (count + 1))
        if entries != 1 or subject_length < 0 or data > len(view):
            return None
        ends = view[position : position + 4 * (count + 1)].cast("i")
        if ends[0] != 0 or not 0 <= ends[-1] <= len(view) - data:
            return None
        return {TOMBSTONES: _Binary(ends, None, data)}

    def _locate_columns(self) -> dict[int, _Binary]:
        """Walk over the columns once; TOMBSTONES stands for the value column."""
        attributes, count = self.header.attributes, self.header.record_count
        if not attributes and (short := self._locate_values()) is not None:
            return short
        if attributes & CODEC_MASK:
            raise UnsupportedFormat(
                f"batches compressed with {CODEC_NAMES[attributes & CODEC_MASK]} are not supported"
            )
        position = self._subject_ids_position()
        if attributes & SUBJECT_IDS:
            position += padded(2 * count)
        found: dict[int, _Binary] = {}
        for bit, present, nullable in (
            (KEYS, attributes & KEYS, True),
            (HEADERS, attributes & HEADERS, False),
            (TOMBSTONES, True, attributes & TOMBSTONES),
        ):
            if not present:
                continue
            ends = self._numbers(position, count + 1, "i")
            position += padded(4 * (count + 1))
            bitmap = None
            if nullable:
                bitmap = self._view[position : position + (count + 7) // 8]
                position += padded((count + 7) // 8)
            found[bit] = _Binary(ends, bitmap, position)
            if ends[0] != 0 or ends[-1] < 0 or position + ends[-1] > len(self._view):
                raise CorruptBatch("a column reaches past the end of the batch")
            position += padded(ends[-1])
        return found

    def _binary(self, column: _Binary) -> list[bytes]:
        count = len(self)
        if count and count == self.header.record_count:
            length = column.ends[1]
            if length > 0 and column.ends[-1] == length * count:
                ends_if_equal, cut = _equal_cuts(length, count)
                if column.ends.tobytes() == ends_if_equal:
                    return list(cut.unpack_from(self._view, column.data))
        ends = column.ends[self._lo : self._hi + 1].tolist()
        # One copy of the column makes every slice a plain bytes slice, which is the fastest.
        first = ends[0]
        data = bytes(self._view[column.data + first : column.data + ends[-1]])
        if first:
            ends = [end - first for end in ends]
        return [data[a:b] for a, b in pairwise(ends)]

    def _nullable(self, column: _Binary) -> list[bytes | None]:
        items = self._binary(column)
        assert column.bitmap is not None
        flags = self._flags(column.bitmap)
        return [item if flag else None for item, flag in zip(items, flags, strict=True)]

    def _flags(self, bitmap: memoryview) -> list[bool]:
        return _bits(bitmap, self.header.record_count)[self._lo : self._hi]


@lru_cache(maxsize=32)
def _equal_cuts(length: int, count: int) -> tuple[bytes, struct.Struct]:
    """The offsets of `count` items that are all `length` bytes long, and what cuts them.

    Publishers often send messages of one size; one unpacking is then 3 to 5 times as fast as
    slicing item by item.
    """
    ends = array("i", range(0, length * (count + 1), length)).tobytes()
    return ends, struct.Struct(f"{length}s" * count)


def _bits(bitmap: memoryview, count: int) -> list[bool]:
    """The first `count` bits of a bitmap, lowest bit of each byte first."""
    number = int.from_bytes(bitmap, "little")
    digits = format(number, f"0{max(count, 1)}b")[::-1]
    return [digit == "1" for digit in digits[:count]]


def decode_batch(buf: Buffer, pos: int = 0, *, verify: bool = True) -> RecordBatch:
    """The batch at `pos` of `buf`, without copying it.

    Raises CorruptBatch when the bytes are short or a checksum does not match, and
    UnsupportedFormat when a newer liftlog wrote them. `verify=False` skips the body checksum.
    """
    header = parse_header(buf, pos)
    if verify:
        verify_body(buf, header, pos)
    elif len(buf) < pos + header.length:
        raise CorruptBatch(f"the batch is cut: {len(buf) - pos} of {header.length} bytes")
    return RecordBatch(memoryview(buf)[pos : pos + header.length], header)


def iter_batches(buf: Buffer, *, verify: bool = True) -> Iterator[RecordBatch]:
    """The batches of a run of whole batches, as a fetch answers it."""
    pos, end = 0, len(buf)
    while pos < end:
        batch = decode_batch(buf, pos, verify=verify)
        pos += batch.header.length
        yield batch
