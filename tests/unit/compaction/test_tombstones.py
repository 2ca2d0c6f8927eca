"""Deletes from beginning to end: no deleted value comes back, and no tombstone stays for ever."""

from __future__ import annotations

from support.worlds.compaction_model import CompactedLog, empty_log, is_tombstone, table_of

from compaction import CompactionPolicy
from compaction.keymap import KeyMap

RETENTION = 800


def stream(*segments: list[tuple[bytes | None, bytes | None]]) -> CompactedLog:
    log = empty_log(CompactionPolicy(min_dirty_ratio=0.5, tombstone_retention_ns=RETENTION))
    for rows in segments:
        log.append(rows, now=1)
        log.roll()
    return log


def compact(log: CompactedLog, now: int, memory: int = 1 << 20, lease: int | None = None) -> bool:
    plan = log.plan(now, on_demand=True, lease=lease)
    if plan is None:
        return False
    log.run_pass(plan, KeyMap(memory))
    return True


def offsets(log: CompactedLog) -> list[int]:
    return [row.offset for row in log.rows]


def test_a_quiet_stream_loses_its_tombstones_in_time() -> None:
    log = stream([(b"a", b"1"), (b"b", b"2")], [(b"a", None)])
    assert compact(log, now=1000)
    assert offsets(log) == [2, 3], "the first pass keeps the tombstone"
    assert not compact(log, now=1000 + RETENTION - 1)
    now = 1000 + RETENTION * 9 // 8
    assert compact(log, now), "though nothing was written since"
    assert offsets(log) == [2]
    assert log.tombstones_removed_below == 4
    assert not compact(log, now + 10 * RETENTION)


def test_new_tombstones_do_not_keep_old_ones_alive() -> None:
    """Small segments are merged again and again; each tombstone still goes in its own time."""
    log = stream([(b"a", b"1")])
    first_pass: dict[int, int] = {}
    for now in range(1000, 1000 + 4 * RETENTION, RETENTION // 10):
        log.append([(b"k%d" % now, None)], now)
        log.roll()
        assert compact(log, now)
        for row in log.rows:
            if is_tombstone(row):
                assert now - first_pass.setdefault(row.offset, now) < RETENTION * 9 / 8
    assert log.tombstones_removed_below > 20
    assert len(log.pieces) < 15, "and small segments are merged nevertheless"


def test_a_value_in_a_segment_that_must_not_be_touched_stays_deleted() -> None:
    log = stream([(b"a", b"1")], [(b"b", b"2")], [(b"a", None), (b"b", None)])
    log.quarantined = {1}
    assert compact(log, now=1000)
    assert offsets(log) == [1, 3, 4], "the first segment could not be rewritten"
    assert not compact(log, now=1000 + 10 * RETENTION)
    assert table_of(log.rows) == {}
    # Once retention has removed it, the tombstones may go.
    log.log_start = 2
    assert compact(log, now=1000 + 10 * RETENTION)
    assert offsets(log) == []


def test_a_tombstone_behind_the_end_of_memory_waits_for_its_own_first_pass() -> None:
    keys: list[tuple[bytes | None, bytes | None]] = [(b"key-%d" % i, b"v") for i in range(8)]
    log = stream(keys, [keys[4], (b"new-1", b"v"), (b"key-0", None)])
    assert compact(log, now=1000, memory=240)
    assert log.cleaned_below == 10, "the pass ended inside the second segment"
    now = 1000 + 10 * RETENTION
    assert compact(log, now, memory=240)
    assert offsets(log) == [2, 3, 4, 6, 7, 8, 9, 10, 11], "its first pass was this one"
    assert log.cleaned_below == 12
    assert compact(log, now + 2 * RETENTION)
    assert offsets(log) == [2, 3, 4, 6, 7, 8, 9, 10]


def test_a_reader_under_a_lease_sees_the_delete_of_what_it_has_read() -> None:
    log = stream([(b"a", b"1"), (b"b", b"2")], [(b"a", None)])
    seen = log.rows[:1]  # a = 1; its lease now holds [2, 4)
    assert compact(log, now=1000, lease=2)
    assert not compact(log, now=1000 + 10 * RETENTION, lease=2)
    seen += [row for row in log.rows if row.offset >= 2]
    assert table_of(seen) == {b"b": b"2"}
    assert compact(log, now=1000 + 10 * RETENTION)
    assert offsets(log) == [2]
