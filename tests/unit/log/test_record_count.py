"""The number of readable records of a log, with damage, a log start, and very many segments."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import replace

import pytest
from support.disks.logs import DIRECTORY, create, set_view
from support.disks.simfs import SimFileSystem
from support.rounds import seeds

from liftlog.log import Log
from liftlog.log.active_segment import LogEnd
from liftlog.log.files.manifest import QuarantinedRange, SegmentEntry
from liftlog.log.segment.segment import Segment


def _log(
    entries: Sequence[SegmentEntry],
    ranges: Sequence[tuple[int, int]],
    *,
    start: int = 1,
    end: int | None = None,
) -> Log:
    """Return a log of these segments, with everything that counting needs."""
    log = create(SimFileSystem())
    *sealed, active = entries
    segments = (
        *(Segment(DIRECTORY, entry, sealed=True) for entry in sealed),
        Segment(DIRECTORY, active, sealed=False),
    )
    end = active.next_offset if end is None else end
    manifest = replace(
        log.view.manifest,
        log_start_offset=start,
        quarantined=tuple(
            QuarantinedRange(first, following, "any.log", 0, 8, "rot")
            for first, following in ranges
        ),
    )
    committed = LogEnd(end, active.base_offset, 0)
    set_view(log, committed=committed, segments=segments, manifest=manifest)
    return log


def _counted_one_by_one(log: Log) -> int:
    """Count by the definition: every segment with every range."""
    start, end = log.log_start_offset, log.high_watermark
    total = 0
    for segment in log.segments:
        low, high = max(segment.base_offset, start), min(segment.next_offset, end)
        inside = [
            max(min(bad.next_offset, high) - max(bad.first_offset, low), 0)
            for bad in log.view.manifest.quarantined
        ]
        total += min(segment.record_count, max(high - low - sum(inside), 0))
    return total


@pytest.mark.parametrize("seed", seeds(60, of=200))
def test_it_is_the_sum_over_all_segments(seed: int) -> None:
    rng = random.Random(seed)
    entries, base = [], rng.randint(1, 5)
    first = base
    for _ in range(rng.randint(1, 8)):
        length = rng.choice([0, 1, 7, 20])
        records = rng.randint(0, length)
        entries.append(SegmentEntry(base, 0, 8, base + length, records))
        base += length + rng.choice([0, 0, 0, 3])
    borders = sorted(rng.sample(range(1, base + 5), min(2 * rng.randint(0, 4), base)))
    ranges = list(zip(borders[::2], borders[1::2], strict=False))
    rng.shuffle(ranges)
    last = entries[-1]
    log = _log(
        entries,
        ranges,
        start=rng.choice([first, rng.randint(1, base)]),
        end=rng.choice([last.next_offset, rng.randint(first, last.next_offset)]),
    )
    assert log.view.record_count == _counted_one_by_one(log)


@pytest.mark.parametrize("seed", seeds(60, of=200))
def test_a_range_of_offsets_is_counted_exactly_or_not_at_all(seed: int) -> None:
    """Compaction leaves gaps, and retention and the high watermark cut segments in two."""
    rng = random.Random(seed)
    entries, stored, base = [], set[int](), 1
    for _ in range(rng.randint(1, 4)):
        following = base + rng.choice([0, 1, 2, 3, 7])
        has_gaps = rng.random() < 0.4
        kept = [offset for offset in range(base, following) if not has_gaps or rng.random() < 0.5]
        stored.update(kept)
        entries.append(SegmentEntry(base, 0, 8, following, len(kept)))
        base = following
    start, end = sorted([rng.choice([1, rng.randint(1, base)]), rng.choice([base, base - 1, base])])
    view = _log(entries, [], start=max(start, 1), end=max(end, 1)).view
    start, end = view.manifest.log_start_offset, view.committed.offset
    for first in range(start, end + 1):
        count = view.count_between(first, end)
        assert count in (None, len(stored & set(range(first, end)))), first
    if len(stored) == base - 1:
        assert view.count_between(start, end) == end - start


def test_many_segments_and_many_losses_cost_little() -> None:
    """The event loop makes descriptions. While it counts, nothing else runs."""
    entries = [SegmentEntry(1 + i * 100, 0, 8, 101 + i * 100, 100) for i in range(16_000)]
    log = _log(entries, [(1 + i * 1600, 11 + i * 1600) for i in range(1000)])
    started = time.perf_counter()
    assert log.view.record_count == 16_000 * 100 - 1000 * 10
    assert time.perf_counter() - started < 1
