"""Notes of compaction and of early acks about a truncated tail do not apply to the new tail."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.disks.logs import BASE_NS, Promises, append, check, commit, create, reopen
from support.disks.simfs import SimFileSystem
from support.worlds.rewriting import ROLL_ON_DEMAND, add, compact_fully, keyed, row, stored

from liftlog.errors import SegmentsChanged
from liftlog.log import Log

# --- compaction ---


def _compacted(keys: int = 8) -> tuple[SimFileSystem, Log]:
    """Return a batch of one record for each key, all of it compacted once."""
    fs = SimFileSystem()
    log = keyed(fs)
    add(log, [[row(b"k%d" % i, b"old")] for i in range(keys)])
    log.writer.roll()
    log.structure.replace_segments(
        (), (), cleaned_below=keys + 1, tombstones_removed_below=keys - 1
    )
    return fs, log


@pytest.mark.parametrize("offset", range(1, 9))
def test_both_marks_end_at_the_cut(offset: int) -> None:
    fs, log = _compacted()
    assert log.truncate_suffix(offset) == offset
    marks = (min(9, offset), min(7, offset))
    assert (log.view.manifest.cleaned_below, log.view.manifest.tombstones_removed_below) == marks
    again, _ = reopen(fs.power_cut("none"), config=ROLL_ON_DEMAND)
    assert (
        again.view.manifest.cleaned_below,
        again.view.manifest.tombstones_removed_below,
    ) == marks


def test_a_cut_behind_the_marks_leaves_them() -> None:
    _, log = _compacted()
    add(log, [[row(b"x", b"1")], [row(b"y", b"1")]])
    assert log.truncate_suffix(10) == 10
    assert (log.view.manifest.cleaned_below, log.view.manifest.tombstones_removed_below) == (9, 7)
    assert log.truncate_suffix(10) == 10
    assert (log.view.manifest.cleaned_below, log.view.manifest.tombstones_removed_below) == (9, 7)


def test_what_is_appended_after_the_cut_is_compacted_although_its_offsets_were() -> None:
    fs, log = _compacted()
    log.truncate_suffix(4)
    fresh = add(log, [[row(b"k0", b"new")], [row(b"k0", b"newer")], [row(b"k1", b"new")]])
    log.writer.roll()
    compact_fully(log, fs, now_ns=BASE_NS)
    assert {one.key: (at, one.value) for at, one in stored(log).items()} == {
        b"k2": (3, b"old"),
        b"k0": (5, b"newer"),
        b"k1": (6, b"new"),
    }
    assert max(fresh) == 6
    assert log.view.manifest.cleaned_below == 7


def test_marks_of_a_pass_that_outlived_the_cut_are_refused() -> None:
    _, log = _compacted()
    lineage = log.view.manifest.lineage
    log.truncate_suffix(3)
    with pytest.raises(SegmentsChanged):
        log.structure.replace_segments(
            (), (), cleaned_below=9, tombstones_removed_below=7, lineage=lineage
        )
    assert (log.view.manifest.cleaned_below, log.view.manifest.tombstones_removed_below) == (3, 3)


# --- acks before the sync ---


def _early(log: Log, promises: Promises, *sizes: int) -> None:
    """Append and ack records without a sync."""
    log.writer.admit_early_acks()
    rows = append(log, promises, *sizes)
    log.commit_up_to(log.log_end_offset)
    promises.acked.update(rows)
    promises.end = log.log_end_offset


def _acked_early() -> tuple[SimFileSystem, Log, Promises]:
    """Return ten records, of which the last seven are only in the page cache."""
    fs, promises = SimFileSystem(), Promises()
    log = create(fs, config=ROLL_ON_DEMAND)
    commit(log, promises, 3)
    _early(log, promises, 3, 4)
    assert (log.durable_end_offset, log.log_end_offset) == (4, 11)
    return fs, log, promises


def _cut_suffix(log: Log) -> int:
    return log.truncate_suffix(8)


def _cut_prefix(log: Log) -> int:
    log.truncate_prefix(log.log_end_offset + 5)
    return log.log_end_offset


@pytest.mark.parametrize("cut", [_cut_suffix, _cut_prefix])
def test_after_a_truncation_no_ack_is_left_that_a_power_cut_could_take(
    cut: Callable[[Log], int],
) -> None:
    fs, log, promises = _acked_early()
    end = cut(log)
    assert end in (7, 16)
    promises.become(promises.without(end))
    if cut is _cut_prefix:
        promises.start = promises.end = end
    again, report = reopen(fs.power_cut("none"), boot="boot-2", config=ROLL_ON_DEMAND)
    # What was acked early and stays is durable now, so nothing is told as lost.
    check(again, promises)
    assert (again.log_end_offset, again.view.manifest.quarantined, report.events) == (end, (), [])


@pytest.mark.parametrize("cut", [_cut_suffix, _cut_prefix])
def test_the_next_early_ack_is_noted_anew(cut: Callable[[Log], int]) -> None:
    fs, log, promises = _acked_early()
    end = cut(log)
    log.writer.note_acked(end)
    append(log, promises, 2)
    log.writer.note_acked(end + 2)
    again, _ = reopen(fs.power_cut("none"), boot="boot-2", config=ROLL_ON_DEMAND)
    assert again.log_end_offset >= end + 2
    [lost] = again.view.manifest.quarantined
    assert lost.first_offset == end
    assert lost.next_offset == again.log_end_offset


def test_a_truncation_that_finds_nothing_to_cut_forgets_no_early_ack() -> None:
    fs, log, _ = _acked_early()
    assert log.truncate_suffix(11) == 11
    assert log.durable_end_offset == 4
    again, _ = reopen(fs.power_cut("none"), boot="boot-2", config=ROLL_ON_DEMAND)
    assert again.log_end_offset >= 11
    [lost] = again.view.manifest.quarantined
    assert (lost.first_offset, lost.next_offset) == (4, again.log_end_offset)
