"""Small batches that are read together give the same result as batches that are read one by one,
with every kind of damage."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import Any

import pytest
from crc32c import crc32c
from support.rounds import seeds

from liftlog.client.reading import batches as reading
from liftlog.client.reading.batches import ArrivingBatches, DamagedHeader, take_records
from liftlog.errors import CorruptBatch, CorruptRange, LiftlogError
from liftlog.protocol.messages import FetchHeader
from liftlog.records import Place, RecordBatch, decode_batch, encode_batch
from liftlog.records.codecs import codec_named, compress_batch
from liftlog.records.columns import small_batches
from liftlog.records.columns.arrow_rows import ROWS_SCHEMA, rows_of
from liftlog.records.columns.many import decode_many
from liftlog.records.columns.positions import Batches
from liftlog.records.columns.small_batches import SmallBatches, take_small_batches
from liftlog.records.decode import iter_batches

BLOCK = b"NATS/1.0\r\nTrace: 1\r\n\r\n"
SUBJECTS = [b"a", b"orders.eu", "ü".encode(), b"\xff"]
FIRST = 1000


def batch_at(rng: random.Random, offset: int, epoch: int, *, plain: bool) -> bytearray:
    """Return a batch, mostly of one record; sometimes of none or many, with a large record, or
    compressed."""
    strange = not plain and rng.random() < 0.1
    count = rng.choice([0, 3, 40]) if strange else 1
    length = rng.choice([0, 200, 6000]) if strange else rng.randrange(20)
    values: list[bytes | None] = [rng.randbytes(length) for _ in range(count)]
    optional: dict[str, Any] = {}
    if not plain and rng.random() < 0.3:
        optional["keys"] = [rng.choice([None, b"", b"k1", b"k22"]) for _ in range(count)]
    if not plain and rng.random() < 0.3:
        optional["headers"] = [rng.choice([b"", BLOCK]) for _ in range(count)]
    if count and not plain and rng.random() < 0.2:
        values[-1] = None
        optional["has_tombstones"] = True
    last = offset + max(count, 1) - 1
    if not plain and rng.random() < 0.2:
        last += rng.randrange(5)
        optional["offsets"] = [last - count + 1 + i for i in range(count)]
    stamps = [(10**18 + offset * 1000, count)] if count else []
    if count > 1 and rng.random() < 0.5:
        stamps = [(10**18, 1), (10**18 + 7000, count - 1)]
    data = encode_batch(
        base_offset=offset,
        last_offset=last,
        leader_epoch=epoch,
        commit_group=rng.randrange(3),
        stamps=stamps,
        subjects=[rng.choice(SUBJECTS) for _ in range(count)],
        values=values,
        **optional,
    )
    codec = codec_named("zstd")
    assert codec is not None
    return bytearray(compress_batch(data, codec)) if strange and rng.random() < 0.5 else data


def body_of(rng: random.Random, count: int, *, plain: bool) -> tuple[list[bytearray], int]:
    """Return batches that cover the offsets from FIRST on without gaps, and their end."""
    parts: list[bytearray] = []
    offset, epoch = FIRST, 3
    for _ in range(count):
        epoch += rng.random() < 0.02
        parts.append(batch_at(rng, offset, epoch, plain=plain))
        offset = decode_batch(parts[-1]).next_offset
    return parts, offset


def spoil(rng: random.Random, parts: list[bytearray]) -> None:
    """Damage the batches in every way: flipped bits, and wrong content with right checksums."""
    for _ in range(min(rng.choice([1, 1, 2, 4]), len(parts) - 1)):
        at = rng.randrange(len(parts))
        one = parts[at]
        kind = rng.randrange(8)
        if kind <= 1:
            bit = rng.randrange(8 * (64 if kind else len(one)))
            one[bit // 8] ^= 1 << bit % 8
        elif kind == 2:
            parts[at], parts[at - 1] = parts[at - 1], parts[at]  # misplaced
        elif kind == 3:
            del parts[at]
        else:
            position, form, value = rng.choice(
                [
                    (4, "<I", rng.choice([0, 56, 63, len(one) + 8, 2**32 - 8])),  # length
                    (8, "<Q", rng.choice([0, FIRST, 2**63 - 1, 2**64 - 1])),  # base offset
                    (16, "<I", rng.choice([1, 2**32 - 1])),  # last offset delta
                    (20, "<I", rng.choice([0, 2, 2**32 - 1])),  # record count
                    (40, "<I", rng.choice([0, 99])),  # leader epoch
                    (44, "<H", rng.choice([1, 3, 0x80, 0x0800, 0x8000])),  # attributes
                    (48, "<Q", 1),  # reserved
                    (64, "<I", rng.choice([0, 2, 2**31])),  # the body
                    (0, "<I", rng.choice([0, 0x02424C4C])),  # magic, version
                ]
            )
            struct.pack_into(form, one, position, value)
            one[56:60] = struct.pack("<I", crc32c(bytes(one[64:])))
            one[60:64] = struct.pack("<I", crc32c(bytes(one[:60])))


Take = Callable[[ArrivingBatches, int], Batches | None]


def outcome(
    body: bytes, header: FetchHeader, stop: int | None, take: Take, arrivals: list[int]
) -> list[Any]:
    """Return each record, each error, and the position of the read after each of them."""
    found: list[Any] = []
    batches = ArrivingBatches("s", header, memoryview(body), stop)
    arrived = iter([*arrivals, len(body)])
    here = next(arrived)
    while True:
        try:
            some = take(batches, here)
        except CorruptRange as error:
            found.append(("corrupt", error.first_offset, error.next_offset, batches.next_offset))
            continue
        except DamagedHeader as damage:
            found.append(("damaged", damage.args, batches.next_offset))
            return found
        except LiftlogError as error:
            found.append((error.name, error.message, batches.next_offset))
            return found
        if some is None:
            if batches.exhausted:
                return found
            here = next(arrived)
            continue
        assert len(some)
        waiting = [some]
        while waiting:
            try:
                records, waiting = take_records(waiting)
                found.extend((*record[:5], dict(record.headers)) for record in records)
            except CorruptBatch as error:
                found.append(str(error.message))
                del waiting[0]
        if isinstance(some, RecordBatch):
            found.append(batches.next_offset)


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a few batches be enough for reading them together."""
    monkeypatch.setattr(reading, "_LOOK_BYTES", 1)
    monkeypatch.setattr(reading, "_RARELY_BYTES", 64)
    monkeypatch.setattr(small_batches, "FEWEST_BATCHES", 2)


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("seed", seeds(50, of=150))
def test_every_mixture_reads_the_same_together_as_one_by_one(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    parts, end = body_of(rng, rng.choice([1, 2, 60, 200]), plain=seed % 5 == 0)
    if seed % 3:
        spoil(rng, parts)
    body = b"".join(parts)
    asked = rng.choice([FIRST, FIRST + 1, FIRST + 30])
    header = FetchHeader(
        offset=asked,
        first_offset=FIRST,
        next_offset=end,
        log_start_offset=rng.choice([0, FIRST + 5]),
        record_count=end - FIRST,
        high_watermark=end,
        log_end_offset=end,
        incarnation="i",
        leader_epoch=9,
        body_length=len(body),
    )
    stop = rng.choice([None, None, end - 10, FIRST + 20, end])
    arrivals = sorted(rng.randrange(len(body) + 1) for _ in range(rng.randrange(4)))

    def without(found: list[Any]) -> list[Any]:
        return [item for item in found if type(item) is not int]

    together = outcome(body, header, stop, ArrivingBatches.next_some, arrivals)
    singly = outcome(body, header, stop, ArrivingBatches.next, arrivals)
    with monkeypatch.context() as patched:
        patched.setattr(reading, "_LOOK_BYTES", 2**40)
        expected = outcome(body, header, stop, ArrivingBatches.next, arrivals)
    assert singly == expected
    assert without(together) == without(expected)


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("seed", range(20))
def test_rows_and_batches_are_the_same(seed: int) -> None:
    rng = random.Random(seed)
    parts, end = body_of(rng, 100, plain=seed % 2 == 0)
    body = memoryview(b"".join(parts))
    found: list[Batches] = []
    position, place = 0, Place(FIRST, end)
    while position < len(body):
        taken = take_small_batches(body, position, place, 0, None)
        if taken is not None:
            some, position = taken
            assert some.size_bytes >= sum(one.size_bytes for one in some.batches())
            found.append(some)
            continue
        batch = decode_batch(body, position)
        place.take(batch.header)
        position += batch.size_bytes
        found.append(batch)
    place.check_end()
    assert any(isinstance(some, SmallBatches) for some in found)
    expected = [batch for batch in iter_batches(body) if len(batch)]
    columns = ROWS_SCHEMA.names
    assert rows_of(found, columns).equals(rows_of(expected, columns))
    assert sum(map(len, found)) == sum(map(len, expected))
    together = [some for some in found if isinstance(some, SmallBatches)]
    single = [one for some in together for one in some.batches()]
    by_offset = {batch.header.base_offset: batch for batch in expected}
    for batch in single:
        same = by_offset[batch.header.base_offset]
        assert (batch.header, batch.raw) == (same.header, same.raw)
    if seed % 2 == 0:
        assert decode_many(single).offsets.tolist() == [
            offset for batch in single for offset in batch.offsets()
        ]


def test_no_more_than_the_listed_epochs_allow() -> None:
    """From the first offset of a listed epoch on, a batch of an older epoch is misplaced."""
    parts = [
        encode_batch(base_offset=offset, leader_epoch=3, commit_group=0, stamps=[(1, 1)],
                     subjects=[b"s"], values=[b"v"])
        for offset in range(1, 101)
    ]  # fmt: skip
    body = memoryview(b"".join(parts))
    place = Place(1, 101, epochs=[(3, 1), (4, 61)])
    taken = take_small_batches(body, 0, place, 0, None)
    assert taken is not None
    assert len(taken[0]) == 60
    assert (place.offset, place.epoch) == (61, 4)
    assert take_small_batches(body, taken[1], place, 0, None) is None
    with pytest.raises(CorruptBatch, match="epoch 3 stands where offset 61, epoch 4 is expected"):
        place.take(decode_batch(body, taken[1]).header)
