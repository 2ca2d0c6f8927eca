"""Small batches of sealed segments are joined, and no record changes."""

from __future__ import annotations

import errno

import pytest
from support.disks.logs import BASE_NS, DIRECTORY, flip
from support.disks.simfs import Fault, SimFileSystem
from support.worlds.rewriting import (
    HEADER,
    Row,
    Rows,
    add,
    batches_of,
    check_entries,
    compact_once,
    expected,
    keyed,
    rebatch_file,
    row,
    stored,
)

from liftlog.log import Log
from liftlog.log.rewrite import RebatchJob, SourceDamaged, needs_rebatch, rebatch


def tiny(count: int, *, stamp: int = BASE_NS, step: int = 1_000_000) -> list[list[Row]]:
    """Return batches of one record, as from publishers that wait for each ack."""
    return [
        [
            row(
                b"k%d" % i if i % 3 else None,
                b"v" * (i % 50) if i % 7 else None,
                subject=f"s.{i % 4}",
                stamp=stamp + i * step,
                headers=HEADER % i if i % 5 == 0 else b"",
            )
        ]
        for i in range(count)
    ]


def log_of(fs: SimFileSystem, batches: list[list[Row]]) -> tuple[Log, Rows]:
    log = keyed(fs)
    rows = add(log, batches)
    log.writer.roll()
    return log, rows


def test_nothing_changes_but_the_batches() -> None:
    fs = SimFileSystem()
    log, rows = log_of(fs, tiny(500))
    size = log.view.size_bytes
    result = rebatch_file(log, fs, 0)
    assert stored(log) == rows
    assert log.segments[0].path.name == f"{1:020d}.1.log"
    assert (result.batches_in, result.records) == (500, 500)
    assert result.batches_out == len(batches_of(log)) < 20
    assert result.bytes_out == log.view.size_bytes < size / 2
    for i in (0, 1, 250, 499):
        assert log.offset_for_timestamp(BASE_NS + i * 1_000_000) == i + 1
    check_entries(log, fs)


def test_holes_and_the_delete_horizon_stay() -> None:
    fs = SimFileSystem()
    log, rows = log_of(fs, [*[[row(b"k%d" % (i % 60), bytes(2000))] for i in range(90)],
                            [row(b"gone", None)]])  # fmt: skip
    compact_once(log, fs)
    horizon = log.segments[0].delete_horizon_ns
    assert horizon is not None
    rebatch_file(log, fs, 0, target=1 << 20)
    assert stored(log) == expected(rows, 92)
    assert len(batches_of(log)) == 1
    assert log.segments[0].delete_horizon_ns == horizon
    assert log.segments[0].generation == 2
    check_entries(log, fs)


def test_batches_end_where_stamps_no_longer_fit() -> None:
    fs = SimFileSystem()
    hour = 3600 * 10**9
    odd = [[row(None, b"odd", stamp=BASE_NS + 4 * hour + 1)], [row(None, b"x", stamp=BASE_NS)]]
    log, rows = log_of(fs, [*tiny(4, step=hour), *tiny(4, step=1000), *odd])
    result = rebatch_file(log, fs, 0)
    assert stored(log) == rows
    # 71 minutes fit one batch: hours 0 and 1, then 2 and 3; the clock then stepped back.
    assert [len(batch) for batch in batches_of(log, max_bytes=1 << 20)] == [2, 2, 4, 1, 1]
    assert result.batches_out == 5
    check_entries(log, fs)


def test_what_would_not_get_better_is_left_alone() -> None:
    fs = SimFileSystem()
    log, _ = log_of(fs, [[row(None, bytes(6000))] for _ in range(8)])
    before = fs.list_directory(DIRECTORY)
    result = rebatch_file(log, fs, 0)
    assert result.swaps == ()
    assert (result.batches_in, result.batches_out) == (8, 8)
    assert fs.list_directory(DIRECTORY) == before


@pytest.mark.parametrize(
    ("size", "count", "needed"),
    [(10, 1, False), (10, 2000, True), (3000, 40, True), (15_000, 9, True), (20_000, 9, False)],
)
def test_the_index_tells_which_segments_need_it(size: int, count: int, needed: bool) -> None:
    fs = SimFileSystem()
    log, _ = log_of(fs, [[row(None, bytes(size))] for _ in range(count)])
    entry = log.segments[0].entry()
    assert needs_rebatch(fs, DIRECTORY, entry) is needed
    rebatch_file(log, fs, 0, target=64 * 1024)
    assert not needs_rebatch(fs, DIRECTORY, log.segments[0].entry())
    fs.remove(log.segments[0].path.with_suffix(".index"))
    assert not needs_rebatch(fs, DIRECTORY, log.segments[0].entry())


def test_damage_and_failures_change_nothing() -> None:
    fs = SimFileSystem()
    log, rows = log_of(fs, tiny(100))
    path = log.segments[0].path
    job = RebatchJob(str(DIRECTORY), log.segments[0].entry())
    before = fs.list_directory(DIRECTORY)
    good = fs.read(path)
    for position in range(0, len(good), 97):
        flip(fs, path, position)
        with pytest.raises(SourceDamaged):
            rebatch(job, fs)
        fs.replace(path, good)
    for operation in ("create", "write", "fsync", "fsync-directory"):
        fs.faults = [Fault(operation)]
        with pytest.raises(OSError, match="injected"):
            rebatch(job, fs)
    fs.faults = [Fault("pread")]
    with pytest.raises(SourceDamaged, match="the disk cannot read"):
        rebatch(job, fs)
    fs.faults = [Fault("pread", error=errno.ENOMEM)]
    with pytest.raises(OSError, match="injected"):
        rebatch(job, fs)
    assert fs.list_directory(DIRECTORY) == before
    assert fs.open_files == 2
    assert stored(log) == rows
