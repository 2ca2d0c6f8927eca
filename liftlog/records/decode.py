"""One record batch as a lazy view over its bytes.

A method copies only the data that it returns, and skips other columns. The lists that methods
return have one entry per record of the batch, or of its part after a trim.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise, repeat
from operator import lt
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from liftlog.errors import CorruptBatch
from liftlog.records.checksum import crc32c
from liftlog.records.codecs import inflate
from liftlog.records.format import (
    CODEC_MASK,
    ESCAPED_SUBJECTS,
    HEADER_SIZE,
    OFFSET_DELTAS,
    SUBJECT_IDS,
    TIMESTAMP_DELTAS,
    TOMBSTONES,
    unescape_subject,
)
from liftlog.records.header import BatchHeader, Buffer, parse_header
from liftlog.records.layout import (
    FEW,
    FEW_ENDS,
    Binary,
    Layout,
    all_set,
    ascending,
    bitmap_of,
    ends_of,
    equal_length,
    find_layout,
    numbers,
    size_of,
)
from liftlog.records.message_headers import MessageHeaders

if TYPE_CHECKING:
    import pyarrow


Entry = TypeVar("Entry", str, bytes)


class Record(NamedTuple):
    """One stored message. `value` is None for a tombstone. `key` is None if the record has no key.
    `raw_headers` is the stored header block, or b"". `headers` parses the block into a mapping at
    each access."""

    offset: int
    timestamp_ns: int
    subject: str
    key: bytes | None
    value: bytes | None
    raw_headers: bytes

    @property
    def headers(self) -> MessageHeaders:
        """The headers by name; if a name occurs several times, the first one is used."""
        # Built on demand, because it takes as long as all other fields of a record together.
        return MessageHeaders(self.raw_headers)


_u16, _u32, _two_ends = struct.Struct("<H"), struct.Struct("<I"), struct.Struct("<2i")
_new_tuple: Callable[[type[Record], Iterable[Any]], Record] = tuple.__new__


class RecordBatch:
    """A decoded, immutable batch. It keeps a reference to the buffer with its encoded bytes.

    Methods raise CorruptBatch if the columns contradict the header or each other.
    """

    __slots__ = ("_hi", "_lo", "_located", "_view", "header", "stored")

    def __init__(self, view: memoryview, header: BatchHeader, stored: memoryview) -> None:
        self.header = header
        self.stored = stored
        """The bytes of the whole batch as they are in its file, even after a trim. The bytes are a
        view, not a copy."""
        self._view = view  # exactly this batch, with its columns uncompressed
        self._lo = 0
        self._hi = header.record_count
        self._located: Layout[int] | None = None

    def __len__(self) -> int:
        return self._hi - self._lo

    def __repr__(self) -> str:
        return f"<RecordBatch base_offset={self.base_offset} records={len(self)}>"

    @property
    def base_offset(self) -> int:
        """Offset of the first record. If the batch has no records, the offset at which it
        starts."""
        if self._lo == 0 and not self.header.attributes & OFFSET_DELTAS:
            return self.header.base_offset
        return self.offsets()[0] if len(self) else self.header.base_offset

    @property
    def next_offset(self) -> int:
        """The offset at which the next batch starts."""
        return self.header.next_offset

    @property
    def size_bytes(self) -> int:
        """Size of the stored batch: header, columns and padding."""
        return self.header.length

    @property
    def has_tombstones(self) -> bool:
        """True if the stored batch may contain tombstones; if False, `values` contains no None."""
        return bool(self.header.attributes & TOMBSTONES)

    @property
    def raw(self) -> memoryview:
        """Header and uncompressed columns of the whole batch, even after `trim`: the stored bytes,
        or a decompressed copy of them."""
        return self._view

    def trim(self, first_offset: int, stop_offset: int | None = None) -> RecordBatch:
        """Return the batch with only the records at or after `first_offset` and below
        `stop_offset`."""
        if first_offset <= self.header.base_offset and (
            stop_offset is None or stop_offset > self.header.last_offset
        ):
            return self
        offsets = self._all_offsets()
        trimmed = RecordBatch(self._view, self.header, self.stored)
        trimmed._located = self._located
        trimmed._lo = max(self._lo, bisect_left(offsets, first_offset))
        trimmed._hi = self._hi
        if stop_offset is not None:
            trimmed._hi = min(self._hi, bisect_left(offsets, stop_offset))
        trimmed._hi = max(trimmed._hi, trimmed._lo)
        return trimmed

    # --- columns ---

    def offsets(self) -> Sequence[int]:
        """Return the offsets, in ascending order. After compaction, offsets can be missing between
        them."""
        return self._all_offsets()[self._lo : self._hi]

    def timestamps_ns(self) -> list[int]:
        """Return the time at which the daemon received each message, in ns since 1970 UTC."""
        base = self.header.base_timestamp_ns
        if not self.header.attributes & TIMESTAMP_DELTAS:
            return [base] * len(self)
        position = self._layout.time_deltas
        deltas = numbers(self._view, position, self.header.record_count, "I")
        return [base + 1000 * delta for delta in deltas[self._lo : self._hi].tolist()]

    def subjects(self) -> list[str]:
        """Return the subjects. Subjects that were not UTF-8 on NATS are escaped, see
        `escaped_subjects`."""
        return self._by_subject_id(self._subject_names())

    def raw_subjects(self) -> list[bytes]:
        """Return the subjects as the exact bytes from NATS. In `subjects`, two subjects can look
        the same: an escaped subject, and a subject whose text itself contains the escape
        sequence."""
        names = self._subject_names()
        pairs = zip(names, self._escape_flags(len(names)), strict=True)
        raw = [unescape_subject(name) if escaped else name.encode() for name, escaped in pairs]
        return self._by_subject_id(raw)

    def escaped_subjects(self) -> set[str]:
        """Return the subjects that were not UTF-8 on NATS. Each invalid byte is written as
        `\\xNN`."""
        if not self.header.attributes & ESCAPED_SUBJECTS:
            return set()
        names = self._subject_names()
        pairs = zip(names, self._escape_flags(len(names)), strict=True)
        return {name for name, escaped in pairs if escaped}

    def _subject_names(self) -> list[str]:
        """Return each subject of the batch once, including the subjects of trimmed records."""
        layout, view = self._layout, self._view
        column = layout.dictionary
        data = column.data
        try:
            if layout.entries == 1:
                return [str(view[data : data + size_of(view, column, 1)], "utf-8")]
            ends = ends_of(view, column, layout.entries)
            return [str(view[data + a : data + b], "utf-8") for a, b in pairwise(ends)]
        except UnicodeDecodeError as error:
            raise CorruptBatch("a subject in the dictionary is not UTF-8") from error

    def keys(self) -> list[bytes | None]:
        """Return the keys; None for a record without a key."""
        column = self._layout.keys
        return [None] * len(self) if column is None else self._nullable(column)

    def headers(self) -> list[bytes]:
        """Return one raw NATS header block per record; b"" for a record without headers."""
        column = self._layout.headers
        return [b""] * len(self) if column is None else self._binary(column)

    def values(self) -> list[bytes | None]:
        """Return the payloads as bytes; None for a tombstone."""
        view, header = self._view, self.header
        found = self._located
        if found is None:
            found = self._located = find_layout(view, header)
        if header.attributes & TOMBSTONES:
            return self._nullable(found.values)
        count = header.record_count
        if count <= FEW and self._hi - self._lo == count:
            # The same steps as in `_binary`. Synchronous publishers produce such batches, for which
            # a call costs as much as copying a value.
            position, _, data = found.values
            ends = FEW_ENDS[count].unpack_from(view, position)
            raw = view[data : data + ends[count]].tobytes()
            if count == 1:
                return [raw]
            ascending([*ends])
            return [raw[a:b] for a, b in pairwise(ends)]
        return self._binary(found.values)  # type: ignore[return-value]  # list is invariant

    def value_column(self) -> tuple[memoryview, list[int]]:
        """Return the value column: its bytes, and a list `ends` of `len + 1` positions in them.

        Value i consists of the bytes from `ends[i]` to `ends[i + 1]`. A tombstone has no bytes. The
        method is for code that works on columns: it creates no object per value.
        """
        column, count = self._layout.values, self.header.record_count
        raw_ends = numbers(self._view, column.ends, count + 1, "i")
        ends = raw_ends.tolist()
        if not equal_length(raw_ends):
            ascending(ends)
        if len(self) != count:
            ends = ends[self._lo : self._hi + 1]
        return self._view[column.data :], ends

    def value_views(self) -> list[memoryview | None]:
        """Return the payloads as views into the batch, without a copy; None for a tombstone.

        The method is faster than `values` for values larger than 512 bytes, because it does not
        allocate a copy of each value.
        """
        data, ends = self.value_column()
        views = [data[a:b] for a, b in pairwise(ends)]
        if not self.header.attributes & TOMBSTONES:
            return views  # type: ignore[return-value]  # list is invariant
        flags = self._flags(self._layout.values)
        return [view if flag else None for view, flag in zip(views, flags, strict=True)]

    def records(self) -> list[Record]:
        """Return one object per record. The method is convenient, but it is the slowest way to
        read."""
        fields = zip(
            self.offsets(),
            self.timestamps_ns(),
            self.subjects(),
            self.keys(),
            self.values(),
            self.headers(),
            strict=True,
        )
        # Like `Record._make`, without a Python call per record.
        return list(map(_new_tuple, repeat(Record), fields))

    def record_at(self, offset: int) -> Record | None:
        """Return the record at this offset, without decoding other records; None if the batch has
        no record at this offset."""
        header, view, layout = self.header, self._view, self._layout
        offsets = self._all_offsets()
        row = bisect_left(offsets, offset, self._lo, self._hi)
        if row == self._hi or offsets[row] != offset:
            return None
        stamp = header.base_timestamp_ns
        if header.attributes & TIMESTAMP_DELTAS:
            stamp += 1000 * _u32.unpack_from(view, layout.time_deltas + 4 * row)[0]
        number = 0
        if header.attributes & SUBJECT_IDS:
            number = _u16.unpack_from(view, layout.ids + 2 * row)[0]
        if number >= layout.entries:
            raise CorruptBatch("a subject id points outside the dictionary")
        subject = self._item(layout.dictionary, number, layout.entries)
        key = value = None
        if layout.keys is not None and self._has_item(layout.keys, row):
            key = self._item(layout.keys, row, header.record_count)
        if not header.attributes & TOMBSTONES or self._has_item(layout.values, row):
            value = self._item(layout.values, row, header.record_count)
        block = b""
        if layout.headers is not None:
            block = self._item(layout.headers, row, header.record_count)
        try:
            return Record(offset, stamp, subject.decode(), key, value, block)
        except UnicodeDecodeError as error:
            raise CorruptBatch("a subject in the dictionary is not UTF-8") from error

    def _item(self, column: Binary[int], row: int, count: int) -> bytes:
        """Return one item of a column of `count` items."""
        view, data = self._view, column.data
        first, end = _two_ends.unpack_from(view, column.ends + 4 * row)
        if not 0 <= first <= end <= size_of(view, column, count):
            raise CorruptBatch("the offsets of a column run backwards")
        return view[data + first : data + end].tobytes()

    def _has_item(self, column: Binary[int], row: int) -> bool:
        return bool(self._view[column.bitmap + (row >> 3)] >> (row & 7) & 1)

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records())

    def to_arrow(self, columns: Sequence[str] | None = None) -> pyarrow.RecordBatch:
        """Return a `pyarrow.RecordBatch`: offset, timestamp, subject, key, headers, value.

        Keys, headers and values are not copied. `columns` selects the columns to return. Raises
        LiftlogError if pyarrow is not installed.
        """
        from liftlog.records.columns.arrow import to_arrow

        return to_arrow(self._view, self.header, self._layout, self._lo, self._hi, columns)

    # --- layout ---

    @property
    def _layout(self) -> Layout[int]:
        """The positions of the columns in `raw`. Raises CorruptBatch."""
        return self._located or self._locate()

    def _locate(self) -> Layout[int]:
        found = self._located = find_layout(self._view, self.header)
        return found

    def _all_offsets(self) -> Sequence[int]:
        header = self.header
        if not header.attributes & OFFSET_DELTAS:
            return range(header.base_offset, header.base_offset + header.record_count)
        deltas = numbers(self._view, HEADER_SIZE, header.record_count, "I").tolist()
        if deltas and not (
            deltas[-1] <= header.last_offset_delta and all(map(lt, deltas, deltas[1:]))
        ):
            raise CorruptBatch("the offset deltas do not ascend inside the batch")
        return [header.base_offset + delta for delta in deltas]

    def _by_subject_id(self, entries: list[Entry]) -> list[Entry]:
        """Return the entry of the subject of each record."""
        if not self.header.attributes & SUBJECT_IDS:
            return entries[:1] * len(self)
        ids = numbers(self._view, self._layout.ids, self.header.record_count, "H")
        try:
            return [entries[i] for i in ids[self._lo : self._hi].tolist()]
        except IndexError as error:
            raise CorruptBatch("a subject id points outside the dictionary") from error

    def _escape_flags(self, entries: int) -> list[bool]:
        if not self.header.attributes & ESCAPED_SUBJECTS:
            return [False] * entries
        return bitmap_of(self._view, self._layout.dictionary.bitmap, entries)

    def _binary(self, column: Binary[int]) -> list[bytes]:
        view, data, count = self._view, column.data, self.header.record_count
        if self._hi - self._lo != count:
            ends = ends_of(view, column, count)[self._lo : self._hi + 1]
            first = ends[0]
            if first:
                data += first
                ends = [end - first for end in ends]
        elif count <= FEW:
            ends = ends_of(view, column, count)
        else:
            raw_ends = numbers(view, column.ends, count + 1, "i")
            if length := equal_length(raw_ends):
                return _cut_equally(view, data, length, count)
            ends = ascending(raw_ends.tolist())
        # After one copy of the column, every slice is a slice of bytes, which is the fastest kind.
        raw = view[data : data + ends[-1]].tobytes()
        return [raw[a:b] for a, b in pairwise(ends)]

    def _nullable(self, column: Binary[int]) -> list[bytes | None]:
        count = self.header.record_count
        bitmap = self._view[column.bitmap : column.bitmap + (count + 7) // 8]
        if count > FEW and bitmap == all_set(count):
            return self._binary(column)  # type: ignore[return-value]  # list is invariant
        flags = self._flags(column)
        pairs = zip(self._binary(column), flags, strict=True)
        return [item if flag else None for item, flag in pairs]

    def _flags(self, column: Binary[int]) -> list[bool]:
        """Return True for each record that has an item in the column."""
        flags = bitmap_of(self._view, column.bitmap, self.header.record_count)
        return flags[self._lo : self._hi]


_CUT_ITEMS = 128
"""Number of items to unpack in one step. The number is fixed: a struct for each number of records
would take as much time to make as it saves."""


def _cut_equally(view: memoryview, at: int, length: int, count: int) -> list[bytes]:
    """Return `count` items of the same length from `at` on.

    Publishers often send messages of the same size. Unpacking many of them at once is 3 to 5 times
    as fast as slicing item by item.
    """
    items: list[bytes] = []
    whole, rest = divmod(count, _CUT_ITEMS)
    if whole:
        unpack_from = _equal_items(length, _CUT_ITEMS).unpack_from
        for _ in range(whole):
            items += unpack_from(view, at)
            at += length * _CUT_ITEMS
    if rest:
        items += _equal_items(length, rest).unpack_from(view, at)
    return items


@lru_cache(maxsize=512)
def _equal_items(length: int, count: int) -> struct.Struct:
    return struct.Struct(f"{length}s" * count)


def decode_batch(buf: Buffer, pos: int = 0, *, verify: bool = True) -> RecordBatch:
    """Return the batch at `pos` of `buf`, without copying it unless it is compressed.

    Raises CorruptBatch if bytes are missing, a checksum does not match, or a compressed body cannot
    be decompressed to its stated size. Raises UnsupportedFormat if a newer liftlog wrote the batch,
    or if the package of its codec is not installed. `verify=False` skips the body checksum.
    """
    whole = buf if type(buf) is memoryview else memoryview(buf)
    return decode_body(whole, pos, parse_header(whole, pos), verify=verify)


def decode_body(
    whole: memoryview, pos: int, header: BatchHeader, *, verify: bool = True
) -> RecordBatch:
    """Like `decode_batch`, for a batch whose header was parsed before."""
    length = header.length
    view = whole[pos : pos + length]
    if len(view) != length:
        raise CorruptBatch(f"the batch is cut: {len(view)} of {length} bytes")
    if verify and crc32c(view[HEADER_SIZE:]) != header.body_crc32c:
        raise CorruptBatch("the body checksum does not match")
    stored = view
    if header.attributes & CODEC_MASK:
        view = inflate(stored, header)
        length = len(view)
    if 4 * header.record_count > length:
        # Every record has an entry of 4 bytes in the value column. Without this check, a few bytes
        # could cause lists of four billion entries.
        raise CorruptBatch(f"{header.record_count} records cannot lie in {length} bytes")
    return RecordBatch(view, header, stored)


def iter_batches(buf: Buffer, *, verify: bool = True) -> Iterator[RecordBatch]:
    """Yield the batches of a buffer of whole batches, such as the body of a fetch answer."""
    pos, end = 0, len(buf)
    while pos < end:
        batch = decode_batch(buf, pos, verify=verify)
        pos += batch.header.length
        yield batch
