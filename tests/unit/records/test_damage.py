"""Damaged and hostile batches are refused, by the right error, without costing memory."""

from __future__ import annotations

import random
import struct
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from crc32c import crc32c

from liftlog.errors import CorruptBatch, UnsupportedFormat
from liftlog.records import (
    RecordBatch,
    decode_batch,
    encode_batch,
    iter_batches,
    layout,
    parse_header,
)
from liftlog.records.columns.arrow_rows import rows_of
from liftlog.records.columns.batch_columns import decode_columns
from liftlog.records.format import HEADER_SIZE, OFFSET_DELTAS, SUBJECT_IDS


def _batch(*, full: bool) -> bytes:
    optional = {
        "keys": [b"key", None, b""],
        "headers": [b"", b"NATS/1.0\r\nA: 1\r\n\r\n", b""],
        "has_tombstones": True,
        "offsets": [10, 12, 15],
        "last_offset": 20,
    }
    return bytes(
        encode_batch(
            base_offset=10,
            leader_epoch=3,
            commit_group=4,
            stamps=[(1_000_000, 1), (2_000_000, 2)] if full else [(1_000_000, 3)],
            subjects=[b"a", b"b\xff", b"a"] if full else [b"a"] * 3,
            values=[b"one", None if full else b"two", b"three"],
            **(optional if full else {}),  # type: ignore[arg-type]
        )
    )


def _sealed(data: bytearray) -> bytes:
    """With checksums that are right, whatever the rest says."""
    data[56:60] = struct.pack("<I", crc32c(bytes(data[HEADER_SIZE:])))
    data[60:64] = struct.pack("<I", crc32c(bytes(data[:60])))
    return bytes(data)


def _everything(batch: RecordBatch) -> None:
    batch.offsets()
    batch.timestamps_ns()
    batch.subjects()
    batch.escaped_subjects()
    batch.keys()
    batch.headers()
    batch.values()
    batch.value_views()
    batch.records()
    batch.trim(batch.header.base_offset + 1, batch.header.last_offset).records()


@pytest.mark.parametrize("base_offset", [2**63 - 1, 2**63, 2**64 - 1])
@pytest.mark.parametrize("size", [5, 50_000])  # joined with others, and left where it is
def test_offsets_that_no_column_can_hold(base_offset: int, size: int) -> None:
    data = encode_batch(
        base_offset=1,
        leader_epoch=1,
        commit_group=1,
        stamps=[(1_000_000, 2)],
        subjects=[b"a"] * 2,
        values=[bytes(size)] * 2,
    )
    struct.pack_into("<Q", data, 8, base_offset)
    batch = decode_batch(_sealed(data))
    ways: list[Callable[[RecordBatch], object]] = [
        decode_columns,
        RecordBatch.to_arrow,
        lambda one: rows_of([one], ["offset"]),
    ]
    for decode in ways:
        with pytest.raises(CorruptBatch, match="offsets beyond 63 bits"):
            decode(batch)


@pytest.mark.parametrize("full", [False, True])
def test_every_flipped_bit_is_noticed(full: bool) -> None:
    good = _batch(full=full)
    for bit in range(8 * len(good)):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptBatch):
            decode_batch(bad)


@pytest.mark.parametrize("full", [False, True])
def test_every_cut_is_noticed(full: bool) -> None:
    good = _batch(full=full)
    for length in range(len(good)):
        with pytest.raises(CorruptBatch):
            decode_batch(good[:length])
        with pytest.raises(CorruptBatch):
            decode_batch(good[:length], verify=False)
        with pytest.raises(CorruptBatch):
            list(iter_batches(good + good[: length or 1]))


def test_a_header_is_enough_to_step_over_a_damaged_body() -> None:
    bad = bytearray(_batch(full=False))
    bad[-1] ^= 1
    assert parse_header(bad).next_offset == 13
    with pytest.raises(CorruptBatch, match="body checksum"):
        decode_batch(bad)


@pytest.mark.parametrize(
    ("position", "value", "message"),
    [
        (3, b"\x02", "format version 2 is not known"),
        (48, b"\x01", "reserved header field"),
        (45, b"\x08", "bits 0x0800 are not known"),
        (45, b"\x80", "bits 0x8000 are not known"),
        (44, b"\x08", "bits 0x0008 are not known"),
        (44, b"\x03", "codec 3 is not known"),
        (44, b"\x07", "codec 7 is not known"),
    ],
)
def test_what_a_newer_version_wrote_is_refused_by_name(
    position: int, value: bytes, message: str
) -> None:
    data = bytearray(_batch(full=False))
    data[position : position + 1] = value
    with pytest.raises(UnsupportedFormat, match=message):
        parse_header(_sealed(data))


@pytest.mark.parametrize("length", [0, 8, 56, 63, 65, 0xFFFFFFFF])
def test_impossible_lengths(length: int) -> None:
    data = bytearray(_batch(full=False))
    data[4:8] = struct.pack("<I", length)
    with pytest.raises(CorruptBatch):
        decode_batch(_sealed(data))


def test_more_records_than_offsets() -> None:
    data = bytearray(_batch(full=False))
    data[20:24] = struct.pack("<I", 4)
    with pytest.raises(CorruptBatch, match="more records than offsets"):
        parse_header(_sealed(data))


def _mutations(good: bytes) -> list[bytes]:
    """Every u32 of the body set to telling values, with correct checksums."""
    telling = (0, 1, 2, 3, 7, 100, 0x7FFFFFF8, 0x7FFFFFFF, 0x80000000, 0xFFFFFFF8, 0xFFFFFFFF)
    found = []
    for position in range(HEADER_SIZE, len(good), 4):
        for value in telling:
            data = bytearray(good)
            data[position : position + 4] = struct.pack("<I", value)
            found.append(_sealed(data))
    for count in (0, 1, 2, 4, 1000, 65535, 0xFFFFFFFF):
        data = bytearray(good)
        data[16:24] = struct.pack("<II", max(count, 2**32 - 2), count)
        found.append(_sealed(data))
    for attributes in range(0, 0x800, 0x10):
        data = bytearray(good)
        data[44:46] = struct.pack("<H", attributes)
        found.append(_sealed(data))
    return found


@pytest.mark.parametrize("full", [False, True])
def test_offsets_that_lie_raise_corrupt_batch_and_cost_nothing(full: bool) -> None:
    good = _batch(full=full)
    decode_batch(good).records()
    refused = 0
    tracemalloc.start()
    try:
        for data in _mutations(good):
            try:
                _everything(decode_batch(data))
            except CorruptBatch:
                refused += 1
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert refused > 100
    assert peak < 1_000_000


@pytest.mark.parametrize("full", [False, True])
def test_a_layout_that_is_known_hides_no_damage(full: bool) -> None:
    good = _batch(full=full)

    def outcome(data: bytes) -> object:
        try:
            return decode_batch(data).values()
        except CorruptBatch as error:
            return str(error)

    for data in [*_mutations(good), *(_shorter(good, size) for size in range(64, len(good), 8))]:
        _forget_layouts()
        expected = outcome(data)
        _forget_layouts()
        decode_batch(good).values()
        assert any(known_layouts()) != full
        assert outcome(data) == expected


def known_layouts() -> list[dict[Any, Any]]:
    """Those that are tried first, by their number of entries."""
    known: list[dict[Any, Any]] = layout._known
    return known


def _forget_layouts() -> None:
    for known in known_layouts():
        known.clear()


def _shorter(good: bytes, size: int) -> bytes:
    data = bytearray(good[:size])
    data[4:8] = struct.pack("<I", size)
    return _sealed(data)


@pytest.mark.parametrize("seed", range(4))
def test_random_bodies_with_correct_checksums(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(300):
        count = rng.choice([0, 1, 2, 5, 300])
        body = bytearray(rng.randbytes(8 * rng.randrange(0, 60)))
        for _ in range(rng.randrange(4)):
            if body:
                at = rng.randrange(len(body) // 4) * 4
                body[at : at + 4] = struct.pack("<I", rng.randrange(4))
        data = bytearray(_batch(full=False)[:HEADER_SIZE]) + body
        data[4:8] = struct.pack("<I", len(data))
        data[16:24] = struct.pack("<II", 1000, count)
        data[44:46] = struct.pack("<H", rng.randrange(0x80) << 4)
        try:
            _everything(decode_batch(_sealed(data)))
        except CorruptBatch:
            pass


def _values_ends(data: bytearray) -> int:
    """Position of the value offsets in the plain batch: header, dictionary of one subject."""
    return HEADER_SIZE + 16 + 8


@pytest.mark.parametrize("count", [2, 3, 40, 3000])
def test_overlapping_values_are_refused_before_they_multiply(count: int) -> None:
    data = bytearray(
        encode_batch(
            base_offset=1, leader_epoch=1, commit_group=0, stamps=[(1, count)],
            subjects=[b"s"] * count, values=[b"x" * 99] + [b"y" * 100] * (count - 1),
        )
    )  # fmt: skip
    total = 100 * count - 1
    ends = [0] + [total if i % 2 else 0 for i in range(1, count)] + [total]
    struct.pack_into(f"<{count + 1}i", data, _values_ends(data), *ends)
    sealed = _sealed(data)
    if count == 2:  # 0, total, total: odd, but nothing overlaps
        assert list(map(len, decode_batch(sealed).values())) == [total, 0]  # type: ignore[arg-type]
        return
    for read in (RecordBatch.values, RecordBatch.value_views, RecordBatch.records):
        with pytest.raises(CorruptBatch, match="backwards"):
            read(decode_batch(sealed))


@pytest.mark.parametrize(
    "change",
    [
        lambda data: struct.pack_into("<I", data, HEADER_SIZE, 5),  # first delta: not below next
        lambda data: struct.pack_into("<I", data, HEADER_SIZE + 4, 0),  # equal to the one before
        lambda data: struct.pack_into("<I", data, HEADER_SIZE + 8, 11),  # past the batch's end
    ],
)
def test_offset_deltas_must_ascend_inside_the_batch(change: Callable[[bytearray], None]) -> None:
    data = bytearray(_batch(full=True))
    assert parse_header(data).attributes & OFFSET_DELTAS
    change(data)
    with pytest.raises(CorruptBatch, match="offset deltas"):
        decode_batch(_sealed(data)).offsets()


def test_a_subject_id_outside_the_dictionary() -> None:
    data = bytearray(
        encode_batch(
            base_offset=1, leader_epoch=1, commit_group=0, stamps=[(1, 2)],
            subjects=[b"a", b"b"], values=[b"", b""],
        )
    )  # fmt: skip
    assert parse_header(data).attributes & SUBJECT_IDS
    ids = HEADER_SIZE + 8 + 16 + 8
    assert data[ids : ids + 4] == b"\0\0\1\0"
    data[ids] = 2
    with pytest.raises(CorruptBatch, match="outside the dictionary"):
        decode_batch(_sealed(data)).subjects()


def test_a_subject_that_is_not_utf8() -> None:
    data = bytearray(_batch(full=False))
    data[HEADER_SIZE + 16] = 0xFF
    with pytest.raises(CorruptBatch, match="not UTF-8"):
        decode_batch(_sealed(data)).subjects()


def test_bytes_behind_the_last_column_are_refused() -> None:
    data = bytearray(_batch(full=False)) + bytes(8)
    data[4:8] = struct.pack("<I", len(data))
    with pytest.raises(CorruptBatch, match="columns end"):
        decode_batch(_sealed(data)).values()
