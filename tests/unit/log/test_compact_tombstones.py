"""Tombstones stay for their time, and are removed when the records that they delete are removed."""

from __future__ import annotations

from types import SimpleNamespace

from support.disks.logs import BASE_NS, reopen
from support.disks.simfs import SimFileSystem
from support.worlds.rewriting import (
    MINUTE_NS,
    Rows,
    add_segments,
    check_entries,
    compact_once,
    expected,
    file_names,
    key_rows,
    keyed,
    plan,
    row,
    rows_of,
    stored,
)

from compaction import CompactionPolicy
from liftlog.log import Log
from liftlog.log.files.manifest import QuarantinedRange
from liftlog.log.rewrite import (
    apply_compaction,
    compact,
)
from liftlog.records import iter_batches

POLICY = CompactionPolicy(min_dirty_ratio=0, tombstone_retention_ns=80 * MINUTE_NS)


def deleted(fs: SimFileSystem) -> tuple[Log, Rows]:
    log = keyed(fs)
    rows = add_segments(
        log, [key_rows(10)], [[row(b"k3", None), row(b"k4", b"new"), row(b"n", None)]]
    )
    return log, rows


def test_a_tombstone_stays_for_its_time_and_then_goes() -> None:
    fs = SimFileSystem()
    log, rows = deleted(fs)
    compact_once(log, fs, policy=POLICY)
    assert stored(log) == expected(rows, 14)
    (first, _) = log.segments
    assert first.delete_horizon_ns == POLICY.horizon_ns(BASE_NS)
    assert log.view.manifest.tombstones_removed_below == 0
    horizon = POLICY.horizon_ns(BASE_NS)
    assert compact_once(log, fs, policy=POLICY, now_ns=horizon - 1) is None
    # Nothing was written since: a quiet stream loses its tombstones too.
    result = compact_once(log, fs, policy=POLICY, now_ns=horizon)
    assert result is not None
    left = expected(rows, 14)
    del left[11], left[13]
    assert stored(log) == left
    assert log.segments[0].delete_horizon_ns is None
    assert log.view.manifest.tombstones_removed_below == 14
    check_entries(log, fs)
    assert compact_once(log, fs, policy=POLICY, now_ns=horizon * 2) is None


def test_later_passes_do_not_make_old_tombstones_wait_again() -> None:
    fs = SimFileSystem()
    log, rows = deleted(fs)
    compact_once(log, fs, policy=POLICY)
    horizon = POLICY.horizon_ns(BASE_NS)
    for i in range(6):
        now = BASE_NS + 13 * MINUTE_NS * (i + 1)
        rows.update(add_segments(log, [[row(b"k0", b"%d" % i), row(b"other%d" % i, None)]]))
        compact_once(log, fs, policy=POLICY, now_ns=now)
        assert log.segments[0].delete_horizon_ns == horizon
        assert log.segments[-2].delete_horizon_ns == POLICY.horizon_ns(now) > horizon
    left = expected(rows, log.log_end_offset)
    assert stored(log) == left
    compact_once(log, fs, policy=POLICY, now_ns=horizon)
    del left[11], left[13]
    assert stored(log) == left


def test_that_tombstones_are_gone_is_known_before_the_first_is() -> None:
    fs = SimFileSystem()
    log, _ = deleted(fs)
    compact_once(log, fs, policy=POLICY)
    job = plan(log, policy=POLICY, now_ns=POLICY.horizon_ns(BASE_NS))
    assert job is not None
    result = compact(job, fs)
    assert result.tombstones_removed_below == 14

    class Watched:
        def replace_segments(self, old: object, new: object, **changes: object) -> int:
            calls.append((old, changes))
            return 0

    calls: list[tuple[object, dict[str, object]]] = []
    apply_compaction(SimpleNamespace(structure=Watched()), result)
    assert calls[0][0]
    assert calls[0][1]["tombstones_removed_below"] == 14
    assert [changes.get("cleaned_below") for _, changes in calls] == [None, 14]


def test_a_segment_that_only_keeps_tombstones_gets_a_horizon_and_no_new_file() -> None:
    fs = SimFileSystem()
    log = keyed(fs)
    rows = add_segments(log, [[row(b"a", None), row(b"b", b"1")]])
    before = file_names(log)
    result = compact_once(log, fs, policy=POLICY)
    assert result is not None
    assert not result.swaps
    assert file_names(log) == before
    assert log.segments[0].delete_horizon_ns == POLICY.horizon_ns(BASE_NS)
    assert log.view.manifest.cleaned_below == 3
    # A newer value replaces the tombstone before its time is over: no horizon is left.
    rows.update(add_segments(log, [[row(b"a", bytes(2000))]]))
    compact_once(log, fs, policy=POLICY, max_bytes=2000)
    assert [segment.delete_horizon_ns for segment in log.segments] == [None, None, None]
    assert stored(log) == expected(rows, 4)
    assert log.view.manifest.tombstones_removed_below == 0


def test_no_tombstone_goes_behind_a_segment_that_cannot_be_rewritten() -> None:
    """The value that a tombstone deletes may still be in there, and would return."""
    fs = SimFileSystem()
    log = keyed(fs)
    rows = add_segments(
        log, [key_rows(10)], [key_rows(10, 20, first=10)], [[row(b"k1", None), row(b"z", None)]]
    )
    first = log.segments[0]
    log.structure.quarantine(
        first.path.name, [QuarantinedRange(10, 11, first.path.name, 8, 16, "a bad sector")]
    )
    compact_once(log, fs, policy=POLICY)
    compact_once(log, fs, policy=POLICY, now_ns=10 * POLICY.horizon_ns(BASE_NS))
    assert file_names(log)[0] == first.path.name
    log, _ = reopen(fs.power_cut("all"), boot="boot-2")
    found = {}
    for segment in log.segments[1:-1]:
        piece = log.read(segment.base_offset, 1 << 20)
        assert piece is not None
        with piece:
            found.update(stored_in(piece.pread()))
    assert found == {o: r for o, r in rows.items() if o > 10}


def stored_in(raw: bytes) -> Rows:
    return {o: r for batch in iter_batches(raw) for o, r in rows_of(batch).items()}
