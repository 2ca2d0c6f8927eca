"""Checksums of many items at once, the slots that follow from them, and records left in place."""

from __future__ import annotations

import random

import numpy as np
import pytest
from crc32c import crc32c
from support.rounds import seeds

from liftlog.records import decode_batch, encode_batch
from liftlog.records.columns.batch_columns import decode_columns
from liftlog.records.columns.many import scatter
from liftlog.records.columns.slots import slots_of, sums_of

SUBJECTS = [b"a", b"orders.eu", "\u00fc".encode(), b"\xff"]


@pytest.mark.parametrize("longest", [0, 1, 11, 40, 41, 300])
@pytest.mark.parametrize("count", [0, 5, 500])
def test_sums_are_those_of_each_item(count: int, longest: int) -> None:
    rng = random.Random(count + longest)
    for lengths in ([longest] * count, [rng.randint(0, longest) for _ in range(count)]):
        data = rng.randbytes(1000)
        starts = [rng.randrange(1000 - length) for length in lengths]
        stops = [start + length for start, length in zip(starts, lengths, strict=True)]
        found = sums_of(
            np.frombuffer(data, np.uint8), np.array(starts, np.int64), np.array(stops, np.int64)
        )
        expected = [crc32c(data[a:b]) for a, b in zip(starts, stops, strict=True)]
        assert found.tolist() == expected


def batch_of(rng: random.Random, offset: int) -> bytearray:
    count = rng.choice([1, 3, 200])
    equal = rng.random() < 0.5
    lengths = [8 if equal else rng.randrange(90) for _ in range(count)]
    values = [None if rng.random() < 0.1 else rng.randbytes(length) for length in lengths]
    keys = [rng.choice([None, b"", b"k1", b"%d" % rng.randrange(999)]) for _ in range(count)]
    blocks = [rng.choice([b"", b"NATS/1.0\r\nTrace: 1\r\n\r\n"]) for _ in range(count)]
    return encode_batch(
        base_offset=offset,
        last_offset=offset + 2 * count,
        leader_epoch=3,
        commit_group=1,
        stamps=[(10**18 + offset * 1000, count)],
        subjects=[rng.choice(SUBJECTS) for _ in range(count)],
        values=values,
        keys=keys if rng.random() < 0.6 else None,
        headers=blocks if rng.random() < 0.6 else None,
        has_tombstones=None in values,
        offsets=[offset + 2 * n for n in range(count)],
    )


@pytest.mark.parametrize("seed", seeds(10))
def test_records_in_place_are_those_of_the_batches(seed: int) -> None:
    rng = random.Random(seed)
    offset, batches = 10, []
    for _ in range(rng.choice([1, 2, 30])):
        batches.append(decode_batch(batch_of(rng, offset)))
        offset = batches[-1].next_offset
    assert scatter(batches, 0) is None
    found = scatter(batches, 10**6)
    assert found is not None
    expected = [one for batch in batches for one in batch.records()]
    chosen = [n for n in range(len(expected)) if rng.random() < 0.3]
    taken = found.take(np.array(chosen, np.intp))
    assert taken.offsets.tolist() == [expected[n].offset for n in chosen]
    assert taken.timestamps_ns.tolist() == [expected[n].timestamp_ns for n in chosen]
    for name in ("keys", "headers", "values"):
        column = getattr(taken, name)
        wanted = [getattr(expected[n], {"headers": "raw_headers"}.get(name, name[:-1]))
                  for n in chosen]  # fmt: skip
        if column is None:
            assert set(wanted) <= {None, b""}
            continue
        assert column.items() == [one or b"" for one in wanted]
        if column.valid is not None:
            assert column.valid.tolist() == [one is not None for one in wanted]
    slots = [slot for one in batches for slot in slots_of(decode_columns(one), 100).tolist()]
    assert slots_of(found, 100).tolist() == slots
