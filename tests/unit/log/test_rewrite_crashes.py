"""The machine stops before every single operation of a pass and of its swaps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.disks.logs import BASE_NS, reopen
from support.disks.simfs import Keep, MachineStopped, SimFileSystem
from support.rounds import one_in
from support.worlds.rewriting import (
    MINUTE_NS,
    ROLL_ON_DEMAND,
    Rows,
    add,
    check_entries,
    compact_fully,
    compact_once,
    keyed,
    rebatch_file,
    row,
    stored,
)

from compaction import CompactionPolicy
from liftlog.log import Log

POLICY = CompactionPolicy(min_dirty_ratio=0, tombstone_retention_ns=8 * MINUTE_NS)
LATER = POLICY.horizon_ns(BASE_NS)
HOW: dict[str, Any] = {"policy": POLICY, "max_bytes": 1000}


def prepared() -> tuple[SimFileSystem, Log]:
    """Return expired tombstones at the beginning, a segment in which no record is removed, and new
    records after it."""
    fs = SimFileSystem()
    log = keyed(fs)
    add(log, [[row(b"k%d" % i, b"1") for i in range(12)]])
    log.writer.roll()
    add(log, [[row(b"k3", None), row(b"k4", None), *[row(b"k%d" % i, b"2") for i in range(3)]]])
    log.writer.roll()
    compact_once(log, fs, **HOW)
    add(log, [[row(b"alive", bytes(800))]])
    log.writer.roll()
    for i in range(3):
        add(log, [[row(b"k%d" % (i + n + 5), b"3%d" % n)] for n in range(5)])
        log.writer.roll()
    return fs, log


def compaction(log: Log, fs: SimFileSystem) -> None:
    result = compact_once(log, fs, now_ns=LATER, **HOW)
    if result is not None:
        assert result.complete


def rebatching(log: Log, fs: SimFileSystem) -> None:
    for number in range(2, log.segment_count - 1):
        rebatch_file(log, fs, number)


@pytest.mark.parametrize("job", [compaction, rebatching])
@pytest.mark.parametrize(("keep", "seed"), [("none", 0), ("some", 1), ("last", 0)])
def test_every_crash_leaves_a_state_between_two_swaps(
    job: Callable[[Log, SimFileSystem], None], keep: Keep, seed: int
) -> None:
    fs, log = prepared()
    states: list[Rows] = [stored(log)]
    whole = log.structure.replace_segments

    def noting(*arguments: Any, **more: Any) -> int:
        freed = whole(*arguments, **more)
        states.append(stored(log))
        return freed

    log.structure.replace_segments = noting  # type: ignore[method-assign]
    start = fs.operations
    job(log, fs)
    end = fs.operations
    assert end - start > 15
    assert len(states) > 3
    assert (13 in states[-1]) is (job is not compaction), "the tombstones were to go"
    for stop in one_in(2, range(start, end + 1), f"{job.__name__} {keep}"):
        fs, log = prepared()
        assert fs.operations == start
        fs.stop_at = stop
        try:
            job(log, fs)
        except MachineStopped:
            pass
        fs = fs.power_cut(keep, seed)
        log, _ = reopen(fs, config=ROLL_ON_DEMAND, boot="boot-2")
        assert stored(log) in states
        check_entries(log, fs)
        listed = {segment.path.name for segment in log.segments}
        assert {n for n in fs.list_directory(log.directory) if n.endswith(".log")} == listed
        gone = {offset for offset in (13, 14) if offset not in stored(log)}
        assert all(offset < log.view.manifest.tombstones_removed_below for offset in gone)
        # What was not done is done by the next pass, to the same end.
        compact_fully(log, fs, now_ns=LATER, **HOW)
        if job is compaction:
            assert stored(log) == states[-1]
