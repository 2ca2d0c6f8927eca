"""Compressed batches say what they said before, and hostile ones cost nothing."""

from __future__ import annotations

import json
import random
import struct
import tracemalloc
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from support.disks.golden_log import BATCHES, GOLDEN, from_json
from support.packages import uninstalled

from liftlog.errors import CorruptBatch, UnsupportedFormat
from liftlog.records import (
    RecordBatch,
    decode_batch,
    encode_batch,
    iter_batches,
    parse_header,
)
from liftlog.records.codecs import codec_named, compress_batch
from liftlog.records.columns.batch_columns import decode_columns, encode_columns
from liftlog.records.columns.many import can_decode_together, decode_many
from liftlog.records.format import CODEC_MASK, HEADER_SIZE, MAX_RAW_BODY_BYTES
from liftlog.records.header import verify_body

NAMES = ("lz4", "zstd")
COMPRESSED = from_json(json.loads((GOLDEN / "compressed.json").read_text()))


def make(count: int = 100, base: int = 42, **options: Any) -> bytearray:
    values = [b'{"order": %d, "state": "paid", "currency": "EUR"}' % i for i in range(count)]
    arguments: dict[str, Any] = {
        "base_offset": base, "leader_epoch": 3, "commit_group": 7, "stamps": [(1000, count)],
        "subjects": [b"orders.eu"] * count, "values": values,
    }  # fmt: skip
    return encode_batch(**arguments | options)


def compressed(batch: bytearray, name: str) -> bytearray:
    codec = codec_named(name)
    assert codec is not None
    small = compress_batch(batch, codec)
    assert isinstance(small, bytearray)
    return small


def sealed(batch: bytearray) -> bytearray:
    """With checksums that are right, whatever was done to it."""
    batch[4:8] = struct.pack("<I", len(batch))
    batch[56:60] = struct.pack("<I", crc32c(batch[64:]))
    batch[60:64] = struct.pack("<I", crc32c(batch[:60]))
    return batch


def with_body(name: str, raw_length: int, packed: bytes, length: int | None = None) -> bytearray:
    """A batch of one record whose compressed body is as given."""
    batch = make(1)[:HEADER_SIZE]
    batch[44] |= {"lz4": 1, "zstd": 2}[name]
    length = len(packed) if length is None else length
    return sealed(
        bytearray(batch + struct.pack("<II", raw_length, length) + packed + bytes(-len(packed) % 8))
    )


def contents(batch: RecordBatch) -> tuple[Any, ...]:
    return (
        batch.offsets(), batch.timestamps_ns(), batch.subjects(), batch.escaped_subjects(),
        batch.keys(), batch.values(), batch.headers(), batch.base_offset, batch.next_offset,
        [None if view is None else bytes(view) for view in batch.value_views()],
    )  # fmt: skip


@pytest.mark.parametrize("case", COMPRESSED, ids=lambda case: case["codec"])
def test_what_was_compressed_once_is_read_for_ever(case: dict[str, Any]) -> None:
    plain, batch = decode_batch(case["plain"]), decode_batch(case["batch"])
    assert len(case["batch"]) < len(case["plain"]) / 2
    assert batch.raw[HEADER_SIZE:] == plain.raw[HEADER_SIZE:]
    assert contents(batch) == contents(plain)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("case", BATCHES, ids=lambda case: case["name"])
def test_every_kind_of_batch_by_every_way_of_reading(case: dict[str, Any], name: str) -> None:
    raw = encode_batch(**case["arguments"])
    small = compressed(raw, name)
    assert len(small) <= len(raw)
    plain, batch = decode_batch(raw), decode_batch(small)
    assert contents(batch) == contents(plain)
    assert batch.stored == small
    middle = (plain.base_offset + plain.next_offset) // 2
    assert contents(batch.trim(middle)) == contents(plain.trim(middle))
    if len(plain):
        assert batch.to_arrow().equals(plain.to_arrow())
    again = encode_columns(
        decode_columns(batch),
        base_offset=42,
        last_offset=batch.header.last_offset,
        leader_epoch=3,
        commit_group=7,
    )
    assert contents(decode_batch(again)) == contents(plain)


@pytest.mark.parametrize("name", NAMES)
def test_the_header_says_the_same_and_the_checksums_are_of_what_is_stored(name: str) -> None:
    raw = make()
    small = compressed(raw, name)
    plain, batch = decode_batch(raw).header, decode_batch(small).header
    assert len(small) == batch.length < len(raw) / 3
    assert len(small) % 8 == 0
    verify_body(small, batch)
    same = batch._replace(
        length=plain.length,
        attributes=batch.attributes & ~CODEC_MASK,
        body_crc32c=plain.body_crc32c,
    )
    assert same == plain
    for position in range(len(small)):
        bad = bytearray(small)
        bad[position] ^= 0x10
        with pytest.raises((CorruptBatch, UnsupportedFormat)):
            decode_batch(bad)


@pytest.mark.parametrize("name", NAMES)
def test_a_run_of_plain_and_compressed_batches(name: str) -> None:
    run = make(base=42) + compressed(make(base=142), name) + make(base=242)
    assert [o for batch in iter_batches(run) for o in batch.offsets()] == list(range(42, 342))


@pytest.mark.parametrize("name", NAMES)
def test_many_small_ones_are_decoded_together(name: str) -> None:
    batches = [decode_batch(compressed(make(5, base), name)) for base in (42, 47, 52)]
    assert all(batch.stored.nbytes < batch.raw.nbytes for batch in batches)
    assert can_decode_together(batches[0], batches[1])
    columns = decode_many(batches)
    assert columns.offsets.tolist() == list(range(42, 57))
    assert columns.values.size_bytes == sum(len(v or b"") for b in batches for v in b.values())
    assert not can_decode_together(batches[0], decode_batch(make(5, 47)))


@pytest.mark.parametrize("name", NAMES)
def test_what_does_not_become_smaller_stays_as_it_is(name: str) -> None:
    noise = encode_batch(
        base_offset=1, leader_epoch=0, commit_group=0, stamps=[(1, 1)], subjects=[b"s"],
        values=[random.Random(1).randbytes(4096)],
    )  # fmt: skip
    small = make(1, values=[b"tiny"])
    for batch in (noise, small):
        assert compressed(batch, name) is batch


def test_none_is_no_codec() -> None:
    assert codec_named("none") is None


@pytest.mark.parametrize("name", NAMES)
def test_sizes_that_lie(name: str) -> None:
    good = compressed(make(), name)
    raw_length, length = struct.unpack_from("<II", good, 64)
    packed = bytes(good[72 : 72 + length])
    for wrong in (0, 8, raw_length - 8, raw_length + 8, raw_length + 1, MAX_RAW_BODY_BYTES):
        with pytest.raises(CorruptBatch):
            decode_batch(with_body(name, wrong, packed))
    for wrong in (0, length - 8, length + 8, 0xFFFF_FFFF):
        with pytest.raises(CorruptBatch, match="compressed body is"):
            decode_batch(with_body(name, raw_length, packed, wrong))
    with pytest.raises(CorruptBatch):
        decode_batch(with_body(name, raw_length, packed + packed))
    with pytest.raises(CorruptBatch):
        decode_batch(with_body(name, raw_length, packed[: length // 2]))
    with pytest.raises(CorruptBatch, match="too few"):
        decode_batch(sealed(with_body(name, 0, b"")[:64]))


@pytest.mark.parametrize("name", NAMES)
def test_bombs_are_refused_before_they_go_off(name: str) -> None:
    """A few bytes that would become more than a batch may hold, or than they say."""
    codec = codec_named(name)
    assert codec is not None
    huge = codec.compress(memoryview(bytes(2 * MAX_RAW_BODY_BYTES)))
    tiny = codec.compress(memoryview(bytes(64)))
    tracemalloc.start()
    try:
        for raw_length in (2 * MAX_RAW_BODY_BYTES, 0xFFFF_FFF8):
            with pytest.raises(CorruptBatch, match="impossible length"):
                decode_batch(with_body(name, raw_length, huge))
        with pytest.raises(CorruptBatch):
            decode_batch(with_body(name, 64, huge))
        with pytest.raises(CorruptBatch):
            decode_batch(with_body(name, MAX_RAW_BODY_BYTES, tiny))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < len(huge) * 8 + 1_000_000


def test_a_zstd_frame_that_does_not_say_how_long_it_is() -> None:
    import zstandard

    raw = make()
    packed = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(raw[64:]))
    with pytest.raises(CorruptBatch, match="another number of bytes"):
        decode_batch(with_body("zstd", len(raw) - 64, packed))


@given(st.sampled_from(NAMES), st.binary(max_size=200), st.integers(0, 4096))
def test_no_body_does_anything_but_fail(name: str, packed: bytes, raw_length: int) -> None:
    try:
        batch = decode_batch(with_body(name, raw_length & ~7, packed))
    except CorruptBatch:
        return
    assert len(batch.raw) == HEADER_SIZE + (raw_length & ~7)


@pytest.mark.parametrize(("name", "package"), [("lz4", "lz4"), ("zstd", "zstandard")])
def test_without_its_package(name: str, package: str) -> None:
    small = compressed(make(), name)
    with uninstalled(package):
        with pytest.raises(UnsupportedFormat, match=f"{name} need {package}") as raised:
            decode_batch(small)
        assert "liftlog[compression]" in raised.value.hint
        verify_body(small, parse_header(small))  # to find and to check it takes no package
