"""The sizes of the extents of a log, compared with the real sizes of its batches."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import pytest
from support.disks.stored_logs import StoredLog, batch_positions

from liftlog.log.read.measuring import MAX_EXTENTS, Extent
from liftlog.log.segment.index import index_path

KIB = 1024


@pytest.fixture
def stored(tmp_path: Path) -> StoredLog:
    return StoredLog(tmp_path, segment_max_bytes=2 * 1024 * KIB)


def fill(stored: StoredLog, sizes: list[int]) -> None:
    for size in sizes:
        stored.append([b"x" * size], commit=False)
    stored.log.sync()
    stored.log.commit_up_to(stored.log.log_end_offset)


def borders(stored: StoredLog) -> dict[int, int]:
    """Return the number of bytes before each batch over all segments, by its offset."""
    found, before = {}, 0
    for segment in stored.log.segments:
        end = 0
        for position, header in batch_positions(segment.path):
            found[header.base_offset] = before + position
            end = position + header.length
        before += end
    found[stored.log.high_watermark] = before
    return found


def check(stored: StoredLog, extents: list[Extent], start: int) -> None:
    real = borders(stored)
    assert extents[0].first_offset <= start
    assert extents[-1].next_offset == stored.log.high_watermark
    for one, following in pairwise(extents):
        assert one.next_offset == following.first_offset
    for one in extents:
        assert one.size_bytes == real[one.next_offset] - real[one.first_offset]


@pytest.mark.parametrize("step", [64 * KIB, 200 * KIB, 10 * 1024 * KIB])
@pytest.mark.parametrize("seed", range(5))
def test_they_tile_the_log_and_have_its_sizes(stored: StoredLog, seed: int, step: int) -> None:
    chance = random.Random(seed)
    fill(stored, [chance.choice([10, 3000, 50 * KIB]) for _ in range(400)])
    assert stored.log.segment_count > 1
    for start in (1, 57, stored.log.high_watermark - 1):
        extents = stored.log.extents(start, step)
        check(stored, extents, start)
        # A batch is never divided, and neighbours that are small are one.
        assert all(one.size_bytes <= step + 60 * KIB for one in extents)
        assert all(a.size_bytes + b.size_bytes > step for a, b in pairwise(extents))


def test_large_records_at_one_end_of_a_segment_are_seen(stored: StoredLog) -> None:
    """The average of the whole segment is 0.5 KiB per record, but half of its offsets take a
    hundredth of it."""
    fill(stored, [10] * 1000 + [20 * KIB] * 50)
    extents = stored.log.extents(1, 64 * KIB)
    half = [one for one in extents if one.next_offset <= 1000]
    assert sum(one.size_bytes for one in half) < 0.2 * sum(one.size_bytes for one in extents)


@pytest.mark.parametrize("content", [None, b"", b"\xff" * 500, bytes(5000)])
def test_an_index_that_says_nothing_makes_them_uneven_and_no_more(
    stored: StoredLog, content: bytes | None
) -> None:
    fill(stored, [3000] * 1500)
    sealed = stored.log.segments[0]
    assert sealed.sealed
    path = index_path(sealed.path)
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    extents = stored.log.extents(1, 64 * KIB)
    assert (extents[0].first_offset, extents[-1].next_offset) == (1, stored.log.high_watermark)
    assert all(a.next_offset == b.first_offset for a, b in pairwise(extents))
    assert sum(one.size_bytes for one in extents) == borders(stored)[stored.log.high_watermark]


def test_there_are_not_too_many(stored: StoredLog) -> None:
    fill(stored, [60 * KIB] * 300)
    assert len(stored.log.extents(1, 1)) <= MAX_EXTENTS
    check(stored, stored.log.extents(1, 1), 1)


def test_an_empty_log_has_none(stored: StoredLog) -> None:
    assert stored.log.extents(0, 4096) == []
