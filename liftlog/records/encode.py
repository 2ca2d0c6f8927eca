"""Encodes columns to the bytes of one record batch.

This is the hot path: no Python code runs per message; `map`, `accumulate` and `join` loop in C.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

from liftlog.records.checksum import crc32c
from liftlog.records.format import (
    ESCAPED_SUBJECTS,
    HEADER,
    HEADER_CRC_POSITION,
    HEADER_SIZE,
    HEADER_WITHOUT_CRC,
    HEADERS,
    KEYS,
    LAST_OFFSET_DELTA,
    LAST_OFFSET_DELTA_POSITION,
    MAGIC,
    MAX_BATCH_RECORDS,
    MAX_TIMESTAMP_DELTA_US,
    OFFSET_DELTAS,
    PADDING,
    SUBJECT_IDS,
    TIMESTAMP_DELTAS,
    TOMBSTONES,
    escape_subject,
    padding_for,
)

StampRuns = Sequence[tuple[int, int]]
"""Pairs of a timestamp in ns and the number of consecutive records that have it, oldest first."""

_HEADER_PLACE = bytes(HEADER_SIZE)
_ONE_SUBJECT = struct.Struct("<IIii")  # count, 0, offsets 0 and size
_ONE_ITEM = struct.Struct("<ii")


class EncodedBatch(NamedTuple):
    """A batch made by `encode_batch`, with the properties that the log needs."""

    data: bytearray | memoryview
    base_offset: int
    next_offset: int
    record_count: int
    base_timestamp_ns: int
    max_timestamp_ns: int


def encode_batch(
    *,
    base_offset: int,
    leader_epoch: int,
    commit_group: int,
    stamps: StampRuns,
    subjects: Sequence[bytes],
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] | None = None,
    headers: Sequence[bytes] | None = None,
    has_tombstones: bool = False,
    offsets: Sequence[int] | None = None,
    last_offset: int | None = None,
) -> bytearray:
    """Encode one batch.

    `subjects` are the bytes that NATS delivered. `headers` holds one raw header block per record,
    b"" for none. Pass `offsets` (ascending) for a batch with holes. (Compaction, which leaves
    holes, uses `columns.encode_columns`.) Pass `last_offset` if the batch ends after its last
    record. The caller sets `has_tombstones` if any value is None, because a search for None in
    every batch would take time.

    Timestamps are stored in microseconds since the first timestamp; a timestamp that is older than
    the first is stored as the first. Raises ValueError if the columns do not match each other.
    """
    count = len(values)
    _check_counts(count, subjects, keys, headers, offsets)
    attributes = 0
    parts: list[bytes] = [_HEADER_PLACE]
    if offsets is not None:
        attributes |= OFFSET_DELTAS
        _append_numbers(parts, array("I", [offset - base_offset for offset in offsets]))
    base_timestamp_ns = max_timestamp_ns = stamps[0][0] if stamps else 0
    if len(stamps) > 1:
        attributes |= TIMESTAMP_DELTAS
        deltas = _timestamp_deltas(stamps, base_timestamp_ns)
        if len(deltas) != count:
            raise ValueError(f"{len(deltas)} stamps for {count} records")
        _append_numbers(parts, deltas)
        # The header contains the newest stored timestamp, which may differ from the newest one in
        # `stamps`. Otherwise a look-up by time could find a batch whose records are all older.
        max_timestamp_ns += 1000 * max(deltas)
    attributes |= _append_subjects(parts, subjects)
    if keys is not None:
        attributes |= KEYS
        _append_nullable(parts, keys)
    if headers is not None:
        attributes |= HEADERS
        _append_binary(parts, headers)
    if has_tombstones:
        attributes |= TOMBSTONES
        _append_nullable(parts, values)
    else:
        _append_binary(parts, values)  # type: ignore[arg-type]  # no None, by has_tombstones
    batch = bytearray().join(parts)
    last = last_offset if last_offset is not None else base_offset + count - 1
    if last < base_offset:
        raise ValueError("a batch without records needs its last offset")
    fill_header(
        batch,
        base_offset=base_offset,
        last_offset_delta=last - base_offset,
        record_count=count,
        base_timestamp_ns=base_timestamp_ns,
        max_timestamp_ns=max_timestamp_ns,
        leader_epoch=leader_epoch,
        attributes=attributes,
        commit_group=commit_group,
    )
    return batch


def _check_counts(count: int, *columns: Sequence[object] | None) -> None:
    """Raise ValueError if the columns differ in length or are too long for a batch."""
    if count > MAX_BATCH_RECORDS:
        raise ValueError(f"{count} records are more than a batch can hold")
    for column in columns:
        if column is not None and len(column) != count:
            raise ValueError(f"a column has not one entry for each of the {count} values")


def encode_single(
    *,
    base_offset: int,
    leader_epoch: int,
    commit_group: int,
    timestamp_ns: int,
    subject: bytes,
    value: bytes,
) -> EncodedBatch:
    """Encode one record without key and headers, to the same bytes as `encode_batch`, but faster.

    Such a batch comes from a publisher that waits for each ack, so the encoding time adds to its
    latency.
    """
    dictionary, attributes = _single_subject(subject)
    size = len(value)
    body = b"".join((dictionary, _ONE_ITEM.pack(0, size), value, PADDING[-size & 7]))
    header = HEADER_WITHOUT_CRC.pack(
        MAGIC, HEADER_SIZE + len(body), base_offset, 0, 1, timestamp_ns, timestamp_ns,
        leader_epoch, attributes, commit_group, 0, crc32c(body),
    )  # fmt: skip
    data = bytearray().join((header, crc32c(header).to_bytes(4, "little"), body))
    fields = (data, base_offset, base_offset + 1, 1, timestamp_ns, timestamp_ns)
    return tuple.__new__(EncodedBatch, fields)  # without a constructor in Python


def fill_header(
    batch: bytearray,
    *,
    base_offset: int,
    last_offset_delta: int,
    record_count: int,
    base_timestamp_ns: int,
    max_timestamp_ns: int,
    leader_epoch: int,
    attributes: int,
    commit_group: int,
) -> None:
    """Fill in the first 64 bytes of a batch with a complete body, including both checksums."""
    with memoryview(batch) as view:
        body_crc = crc32c(view[HEADER_SIZE:])
        HEADER.pack_into(
            batch,
            0,
            MAGIC,
            len(batch),
            base_offset,
            last_offset_delta,
            record_count,
            base_timestamp_ns,
            max_timestamp_ns,
            leader_epoch,
            attributes,
            commit_group,
            0,
            body_crc,
            0,
        )
        header_crc = crc32c(view[:HEADER_CRC_POSITION])
    batch[HEADER_CRC_POSITION:HEADER_SIZE] = header_crc.to_bytes(4, "little")


def extend_batch(batch: bytearray, last_offset: int) -> None:
    """Extend a batch so that it also covers the offsets up to `last_offset`, which have no
    records."""
    base_offset: int = HEADER.unpack_from(batch)[2]
    LAST_OFFSET_DELTA.pack_into(batch, LAST_OFFSET_DELTA_POSITION, last_offset - base_offset)
    with memoryview(batch) as view:
        header_crc = crc32c(view[:HEADER_CRC_POSITION])
    batch[HEADER_CRC_POSITION:HEADER_SIZE] = header_crc.to_bytes(4, "little")


def _timestamp_deltas(stamps: StampRuns, base_ns: int) -> array[int]:
    deltas = array("I")
    for stamp, count in stamps:
        # An unsigned delta cannot represent a clock that stepped back inside the batch. Timestamps
        # decrease only if the clock had been more than a minute ahead.
        delta = min(max((stamp - base_ns) // 1000, 0), MAX_TIMESTAMP_DELTA_US)
        deltas.extend([delta] * count)
    return deltas


def _append_subjects(parts: list[bytes], subjects: Sequence[bytes]) -> int:
    """Append the dictionary (u32 count, u32 0, i32 offsets, [bitmap], bytes) and, for several
    subjects, u16 ids. Returns the attribute bits."""
    if subjects and subjects.count(subjects[0]) == len(subjects):
        raw, attributes = _single_subject(subjects[0])
        parts.append(raw)
        return attributes
    attributes = 0
    ids = {subject: i for i, subject in enumerate(dict.fromkeys(subjects))}
    entries: list[bytes] = list(ids)
    escaped = [False] * len(entries)
    if not b"".join(entries).isascii():
        for i, raw in enumerate(entries):
            try:
                raw.decode()
            except UnicodeDecodeError:
                entries[i] = escape_subject(raw).encode()
                escaped[i] = True
    parts.append(len(entries).to_bytes(8, "little"))
    lengths = array("i", accumulate(map(len, entries), initial=0))
    _append_numbers(parts, lengths)
    if any(escaped):
        attributes |= ESCAPED_SUBJECTS
        bitmap = _bitmap(escaped)
        parts += (bitmap, padding_for(len(bitmap)))
    parts += entries
    parts.append(padding_for(lengths[-1]))
    if len(entries) > 1:
        attributes |= SUBJECT_IDS
        _append_numbers(parts, array("H", map(ids.__getitem__, subjects)))
    return attributes


def _encode_single_subject(subject: bytes) -> tuple[bytes, int]:
    """Return the dictionary of a batch with one subject, and its attribute bits."""
    try:
        subject.decode()
        attributes, bitmap = 0, b""
    except UnicodeDecodeError:
        subject = escape_subject(subject).encode()
        attributes, bitmap = ESCAPED_SUBJECTS, b"\1" + bytes(7)
    head = _ONE_SUBJECT.pack(1, 0, 0, len(subject))
    return head + bitmap + subject + padding_for(len(subject)), attributes


_CACHED_BYTES = 256
"""Maximum length of a cached subject. The limit bounds the memory of the cache, because publishers
choose the subjects."""
_cached_single_subject = lru_cache(maxsize=4096)(_encode_single_subject)


def _single_subject(subject: bytes) -> tuple[bytes, int]:
    if len(subject) <= _CACHED_BYTES:
        return _cached_single_subject(subject)
    return _encode_single_subject(subject)


def _append_numbers(parts: list[bytes], numbers: array[int]) -> None:
    raw = numbers.tobytes()
    parts.append(raw)
    parts.append(padding_for(len(raw)))


def _append_ends(parts: list[bytes], items: Sequence[bytes]) -> int:
    """Append the i32 offsets of the items; return the end of the last item."""
    sizes = list(map(len, items))
    count, size = len(sizes), sizes[0] if sizes else 0
    if size <= _MAX_MULTIPLES_OF and sizes.count(size) == count:
        # Publishers often send messages of the same size.
        raw, end = _multiples(size, count.bit_length())[: 4 * (count + 1)], size * count
    else:
        raw, end = struct.pack(f"{count + 1}i", *accumulate(sizes, initial=0)), sum(sizes)
    parts += (raw, padding_for(len(raw)))
    return end


_MAX_MULTIPLES_OF = 4096
"""Largest cached item size in bytes: 65,536 times this size fits an i32."""


@lru_cache(maxsize=32)
def _multiples(size: int, bits: int) -> bytes:
    """Return 0, `size`, 2 * `size` and so on as i32, enough numbers for any count of items with
    `bits` bits."""
    return array("i", [size * at for at in range((1 << bits) + 1)]).tobytes()


def _append_binary(parts: list[bytes], items: Sequence[bytes]) -> None:
    """Append i32 offsets, then the bytes: the layout of Arrow's `binary` array."""
    if len(items) == 1:
        item = items[0]
        parts += (_ONE_ITEM.pack(0, len(item)), item, padding_for(len(item)))
        return
    size = _append_ends(parts, items)
    parts += items
    parts.append(padding_for(size))


def _append_nullable(parts: list[bytes], items: Sequence[bytes | None]) -> None:
    """Append i32 offsets, validity bitmap, then the bytes."""
    if None not in items:
        present: Sequence[bytes] = items  # type: ignore[assignment]
        flags = ((1 << len(items)) - 1).to_bytes((len(items) + 7) // 8, "little")
    else:
        present = [item or b"" for item in items]
        flags = _bitmap(item is not None for item in items)
    size = _append_ends(parts, present)
    parts += (flags, padding_for(len(flags)))
    parts += present
    parts.append(padding_for(size))


def _bitmap(flags: Iterable[bool]) -> bytes:
    """Return one bit per item, lowest bit first, as in Arrow."""
    digits = "".join(["1" if flag else "0" for flag in flags])
    return int(digits[::-1] or "0", 2).to_bytes((len(digits) + 7) // 8, "little")
