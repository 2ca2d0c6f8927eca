"""What a compaction pass leaves, in which files, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest
from crc32c import crc32c
from support.logs import BASE_NS, DIRECTORY, flip, reopen
from support.rewriting import (
    HEADER,
    MINUTE_NS,
    Row,
    Rows,
    add,
    batches_of,
    check_entries,
    compact_fully,
    compact_once,
    expected,
    keyed,
    plan,
    row,
    rows_of,
    stored,
)
from support.simfs import Fault, SimFileSystem

from compaction import CompactionPolicy
from liftlog.log import Log
from liftlog.log.manifest import QuarantinedRange
from liftlog.log.rewrite import (
    Progress,
    SourceDamaged,
    apply_compaction,
    compact,
    leftover_files,
    remove_files,
)
from liftlog.records import iter_batches, parse_header

POLICY = CompactionPolicy(min_dirty_ratio=0, tombstone_retention_ns=80 * MINUTE_NS)


def segments(log: Log, *groups: list[list[Row]]) -> Rows:
    """A sealed segment for each group of batches."""
    rows: Rows = {}
    for batches in groups:
        rows.update(add(log, batches))
        log.roll()
    return rows


def keys(count: int, of: int = 10, *, tag: bytes = b"", first: int = 0) -> list[Row]:
    return [row(b"k%d" % (i % of), b"%s%d" % (tag, i)) for i in range(first, first + count)]


def files(fs: SimFileSystem) -> list[str]:
    return [name for name in fs.list_directory(DIRECTORY) if name.endswith((".log", ".index"))]


def names(log: Log) -> list[str]:
    return [segment.path.name for segment in log.segments]


def test_the_newest_record_of_each_key_stays() -> None:
    fs = SimFileSystem()
    log = keyed(fs)
    rows = segments(log, [keys(40)], [keys(5, tag=b"x")], [keys(3, 3, tag=b"y")])
    result = compact_once(log, fs)
    assert result is not None
    left = stored(log)
    assert left == expected(rows, 49)
    assert sorted(r.value for r in left.values()) == [
        b"35", b"36", b"37", b"38", b"39", b"x3", b"x4", b"y0", b"y1", b"y2",
    ]  # fmt: skip
    assert (result.records_in, result.records_out, result.distinct_keys) == (48, 10, 10)
    assert result.bytes_out < result.bytes_in
    assert log.cleaned_below == 49
    assert log.log_end_offset == 49
    check_entries(log, fs)
    assert plan(log) is None, "there is nothing left to do"


def test_records_are_not_changed() -> None:
    """Subjects, stamps, headers with message ids, keys that differ in nothing but their length."""
    fs = SimFileSystem()
    log = keyed(fs)
    batches = []
    for i in range(30):
        stamp = BASE_NS + i * 1_000_000
        batches.append(
            [
                row(b"k" * (i % 4), b"v%d" % i, subject=f"s.{i % 3}", stamp=stamp),
                row(None, b"no key", subject="üß", stamp=stamp + 5000, headers=HEADER % i),
                row(b"", None if i % 2 else b"", stamp=stamp + 6000),
            ]
        )
    rows = segments(log, batches[:10], batches[10:])
    compact_once(log, fs)
    assert stored(log) == expected(rows, log.log_end_offset)
    check_entries(log, fs)


def test_small_batches_come_together_and_large_ones_stay_as_they_are() -> None:
    fs = SimFileSystem()
    log = keyed(fs)
    large = [row(b"big%d" % i, bytes(900)) for i in range(60)]
    rows = segments(log, [*[[one] for one in keys(100, 50)], large, large, *[[r] for r in keys(9)]])
    raw = batches_of(log)[101].raw.tobytes()
    compact_once(log, fs)
    assert stored(log) == expected(rows, log.log_end_offset)
    batches = batches_of(log)
    # One of what is left of the small ones in front, extended over the large one that is gone.
    assert [len(batch) for batch in batches] == [41, 60, 9]
    assert batches[1].raw.tobytes() == raw
    check_entries(log, fs)


def test_what_is_left_of_many_small_batches_fills_batches_of_64_kib() -> None:
    fs = SimFileSystem()
    log = keyed(fs)
    pairs = [[row(b"k%d" % i, bytes(200)), row(b"twice", b"%d" % i)] for i in range(1000)]
    rows = segments(log, pairs)
    compact_once(log, fs)
    assert stored(log) == expected(rows, log.log_end_offset)
    headers = [batch.header for batch in iter_batches(fs.read(log.segments[0].path))]
    assert len(headers) == 4
    assert all(60 * 1024 < header.length <= 64 * 1024 for header in headers[:-1])
    assert headers[-1].length <= 64 * 1024
    check_entries(log, fs)


def test_the_batch_before_stands_for_what_is_gone_behind_it() -> None:
    fs = SimFileSystem()
    log = keyed(fs)
    large = [row(b"big%d" % i, bytes(900)) for i in range(60)]
    rows = segments(log, [large, keys(10), keys(10)], [keys(10)])
    job = plan(log, max_bytes=60_000)
    assert job is not None
    apply_compaction(log, compact(job, fs))
    assert stored(log) == expected(rows, log.log_end_offset)
    (only,) = [batch.header for batch in iter_batches(fs.read(log.segments[0].path))]
    assert (only.base_offset, only.record_count, only.next_offset) == (1, 60, 81)


def test_a_segment_in_which_nothing_dies_is_not_rewritten() -> None:
    fs = SimFileSystem()
    log = keyed(fs)
    first = [[row(b"a%d" % i, bytes(5000))] for i in range(10)]
    second = [[row(b"b%d" % (i % 5), bytes(5000))] for i in range(10)]
    rows = segments(log, first, second)
    before = names(log)
    job = plan(log, max_bytes=60_000)
    assert job is not None
    operations = fs.log[:]
    result = compact(job, fs)
    assert not [line for line in fs.log[len(operations) :] if before[0] in line]
    assert [swap.old for swap in result.swaps] == [(before[1],)]
    apply_compaction(log, result)
    assert names(log)[0] == before[0]
    assert names(log)[1] == f"{11:020d}.1.log"
    assert stored(log) == expected(rows, 21)
    check_entries(log, fs)


def test_a_late_first_death_takes_along_what_lies_before_it() -> None:
    """More than one window is read before the first record goes."""
    fs = SimFileSystem()
    log = keyed(fs)
    alive = [[row(b"a%d" % i, bytes(200_000))] for i in range(6)]
    rows = segments(log, [*alive, [row(b"x", b"1")], [row(b"x", b"2")]])
    compact_once(log, fs)
    left = stored(log)
    assert left == expected(rows, 9)
    assert len(left) == 7
    check_entries(log, fs)


def test_small_neighbours_become_one() -> None:
    fs = SimFileSystem()
    log = keyed(fs)
    rows = segments(log, *[[[row(b"%d.%d" % (n, i), b"v")] for i in range(5)] for n in range(6)])
    compact_once(log, fs)
    assert names(log) == [f"{1:020d}.1.log", f"{31:020d}.log"]
    assert stored(log) == rows
    assert len(batches_of(log)) == 1
    check_entries(log, fs)


def test_everything_compacted_away_leaves_an_empty_batch() -> None:
    fs = SimFileSystem()
    log = keyed(fs)
    rows = segments(log, [keys(10)], [keys(10)])
    job = plan(log, max_bytes=500)
    assert job is not None
    assert job.groups == ((0, 1), (1, 2))
    apply_compaction(log, compact(job, fs))
    first = log.segments[0]
    assert (first.record_count, first.size_bytes, first.max_timestamp_ns) == (0, 88, 0)
    assert (first.base_offset, first.next_offset) == (1, 11)
    assert stored(log) == expected(rows, 21)
    assert log.offset_for_timestamp(BASE_NS) == 11
    check_entries(log, fs)
    log, _ = reopen(fs.power_cut("none"), boot="boot-2")
    assert stored(log) == expected(rows, 21)
    assert log.log_end_offset >= 21


def test_several_passes_with_little_memory_give_the_same() -> None:
    rows: Rows = {}
    left = []
    for memory in (1 << 20, 500, 1):
        fs = SimFileSystem()
        log = keyed(fs)
        batches = [keys(7, 100, first=7 * i, tag=b"%d." % i) for i in range(40)]
        rows = segments(log, batches[:15], batches[15:30], batches[30:])
        passes = compact_fully(log, fs, memory=memory)
        assert passes == 1 if memory > 10_000 else passes > 1
        left.append(stored(log))
        check_entries(log, fs)
    assert left[0] == left[1] == left[2] == expected(rows, log.log_end_offset)


def test_nothing_at_or_past_the_bound_counts() -> None:
    """A lease holds the bound back: what it covers must not lose to what came later."""
    fs = SimFileSystem()
    log = keyed(fs)
    rows = segments(log, [keys(20)], [keys(20)], [keys(20)])
    result = compact_once(log, fs, bound=41)
    assert result is not None
    assert result.cleaned_below == 41
    assert stored(log) == expected(rows, 41)


def test_records_below_the_log_start_go_with_the_rest() -> None:
    fs = SimFileSystem()
    log = keyed(fs)
    rows = segments(log, [[row(None, b"%d" % i)] for i in range(20)] + [keys(30)])
    log.remove_before(15, 0)
    compact_once(log, fs)
    assert stored(log) == expected(rows, 51, 15)
    assert log.segments[0].record_count == 6 + 10
    assert log.segments[0].base_offset == 1
    check_entries(log, fs)


def test_an_epoch_keeps_its_place_even_when_its_records_are_gone() -> None:
    fs = SimFileSystem()
    log = keyed(fs)
    rows: Rows = {}
    for _ in range(4):
        rows.update(add(log, [[one] for one in keys(5, 5)]))
        fs = fs.power_cut("all")
        log, _ = reopen(fs, config=log.config, boot="boot-9")
    rows.update(add(log, [[row(b"k0", b"last")]]))
    log.roll()
    compact_once(log, fs)
    assert stored(log) == expected(rows, log.log_end_offset)
    headers = [one.header for one in iter_batches(fs.read(log.segments[0].path))]
    assert [(one.leader_epoch, one.base_offset) for one in headers] == list(log.epochs)
    check_entries(log, fs)


# --- tombstones ---


def deleted(fs: SimFileSystem) -> tuple[Log, Rows]:
    log = keyed(fs)
    rows = segments(log, [keys(10)], [[row(b"k3", None), row(b"k4", b"new"), row(b"n", None)]])
    return log, rows


def test_a_tombstone_stays_for_its_time_and_then_goes() -> None:
    fs = SimFileSystem()
    log, rows = deleted(fs)
    compact_once(log, fs, policy=POLICY)
    assert stored(log) == expected(rows, 14)
    (first, _) = log.segments
    assert first.delete_horizon_ns == POLICY.horizon_ns(BASE_NS)
    assert log.tombstones_removed_below == 0
    horizon = POLICY.horizon_ns(BASE_NS)
    assert compact_once(log, fs, policy=POLICY, now_ns=horizon - 1) is None
    # Nothing was written since: a quiet stream loses its tombstones too.
    result = compact_once(log, fs, policy=POLICY, now_ns=horizon)
    assert result is not None
    left = expected(rows, 14)
    del left[11], left[13]
    assert stored(log) == left
    assert log.segments[0].delete_horizon_ns is None
    assert log.tombstones_removed_below == 14
    check_entries(log, fs)
    assert compact_once(log, fs, policy=POLICY, now_ns=horizon * 2) is None


def test_later_passes_do_not_make_old_tombstones_wait_again() -> None:
    fs = SimFileSystem()
    log, rows = deleted(fs)
    compact_once(log, fs, policy=POLICY)
    horizon = POLICY.horizon_ns(BASE_NS)
    for i in range(6):
        now = BASE_NS + 13 * MINUTE_NS * (i + 1)
        rows.update(segments(log, [[row(b"k0", b"%d" % i), row(b"other%d" % i, None)]]))
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
    apply_compaction(Watched(), result)
    assert calls[0][0]
    assert calls[0][1]["tombstones_removed_below"] == 14
    assert [changes.get("cleaned_below") for _, changes in calls] == [None, 14]


def test_a_segment_that_only_keeps_tombstones_gets_a_horizon_and_no_new_file() -> None:
    fs = SimFileSystem()
    log = keyed(fs)
    rows = segments(log, [[row(b"a", None), row(b"b", b"1")]])
    before = names(log)
    result = compact_once(log, fs, policy=POLICY)
    assert result is not None
    assert not result.swaps
    assert names(log) == before
    assert log.segments[0].delete_horizon_ns == POLICY.horizon_ns(BASE_NS)
    assert log.cleaned_below == 3
    # A newer value replaces the tombstone before its time is over: no horizon is left.
    rows.update(segments(log, [[row(b"a", bytes(2000))]]))
    compact_once(log, fs, policy=POLICY, max_bytes=2000)
    assert [segment.delete_horizon_ns for segment in log.segments] == [None, None, None]
    assert stored(log) == expected(rows, 4)
    assert log.tombstones_removed_below == 0


def test_no_tombstone_goes_behind_a_segment_that_cannot_be_rewritten() -> None:
    """The value that it deletes may still lie in there, and would come back."""
    fs = SimFileSystem()
    log = keyed(fs)
    rows = segments(
        log, [keys(10)], [keys(10, 20, first=10)], [[row(b"k1", None), row(b"z", None)]]
    )
    first = log.segments[0]
    log.quarantine(
        first.path.name, [QuarantinedRange(10, 11, first.path.name, 8, 16, "a bad sector")]
    )
    compact_once(log, fs, policy=POLICY)
    compact_once(log, fs, policy=POLICY, now_ns=10 * POLICY.horizon_ns(BASE_NS))
    assert names(log)[0] == first.path.name
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


# --- what goes wrong ---


@pytest.mark.parametrize("segment", [0, 1])
def test_damage_anywhere_ends_the_job_and_nothing_changes(segment: int) -> None:
    fs = SimFileSystem()
    log = keyed(fs)
    segments(log, [keys(6)], [keys(6, tag=b"x"), [row(None, b"end")]])
    path = log.segments[segment].path
    job = plan(log)
    assert job is not None
    good, listing = fs.read(path), files(fs)
    for position in range(len(good)):
        flip(fs, path, position, position % 8)
        with pytest.raises(SourceDamaged) as error:
            compact(job, fs)
        assert error.value.file_name == path.name
        assert files(fs) == listing
        fs.replace(path, good)
    for size in range(0, len(good), 8):
        fs.replace(path, good[:size])
        with pytest.raises(SourceDamaged):
            compact(job, fs)
    assert files(fs) == listing
    assert fs.open_files == 1  # the active segment's


def test_a_source_that_ends_too_early_at_a_batch_border_is_not_taken_for_whole() -> None:
    fs = SimFileSystem()
    log = keyed(fs)
    segments(log, [keys(6), keys(6)])
    job = plan(log)
    assert job is not None
    path = log.segments[0].path
    size = batches_of(log)[0].header.length
    fs.replace(path, fs.read(path)[:size])
    with pytest.raises(SourceDamaged):
        compact(job, fs)
    # Nor when the manifest agrees about the size, but not about the offsets.
    short = replace(job, sources=(replace(job.sources[0], size_bytes=size),))
    with pytest.raises(SourceDamaged, match="ends at offset 7 and not at 13"):
        compact(short, fs)


@pytest.mark.parametrize("alone", [True, False])
def test_columns_that_lie_are_damage_however_good_the_checksum(alone: bool) -> None:
    fs = SimFileSystem()
    log = keyed(fs)
    sizes = [4] if alone else [2, 2, 2]
    segments(log, [keys(size, first=10 * size) for size in sizes], [keys(3)])
    job = plan(log)
    assert job is not None
    path = log.segments[0].path
    raw = bytearray(fs.read(path))
    length = parse_header(raw).length
    # Behind stamps and a subject dictionary of one entry the first key ends: now past the second.
    at = 64 + 4 * sizes[0] + 16 + 16 + 4
    assert raw[at : at + 4] == (2).to_bytes(4, "little")
    raw[at] = 99
    raw[56:60] = crc32c(bytes(raw[64:length])).to_bytes(4, "little")
    raw[60:64] = crc32c(bytes(raw[:60])).to_bytes(4, "little")
    fs.replace(path, bytes(raw))
    with pytest.raises(SourceDamaged) as error:
        compact(job, fs)
    assert error.value.file_name == path.name


@pytest.mark.parametrize("operation", ["create", "write", "fsync", "fsync-directory", "pread"])
def test_a_failing_operation_ends_the_job_and_leaves_nothing(operation: str) -> None:
    fs = SimFileSystem()
    log = keyed(fs)
    rows = segments(log, [keys(30)], [keys(30)])
    job = plan(log, max_bytes=1000)
    assert job is not None
    assert len(job.groups) == 2
    listing = files(fs)
    failed = 0
    for nth in range(1, 100):
        fs.faults = [Fault(operation, error=28, countdown=nth)]
        try:
            result = compact(job, fs)
        except OSError:
            assert files(fs) == listing
            assert fs.open_files == 1
            failed += 1
            continue
        break
    fs.faults = []
    assert failed >= (1 if operation == "fsync-directory" else 3)
    apply_compaction(log, result)
    assert stored(log) == expected(rows, log.log_end_offset)


def test_whoever_watches_may_end_the_job() -> None:
    fs = SimFileSystem()
    log = keyed(fs)
    segments(log, [keys(30)], [keys(30)])
    job = plan(log)
    assert job is not None
    listing = files(fs)

    class Enough(Exception):
        pass

    def stop(progress: Progress) -> None:
        seen.append(progress)
        if progress.phase == "rewrite":
            raise Enough

    seen: list[Progress] = []
    with pytest.raises(Enough):
        compact(job, fs, progress=stop)
    assert files(fs) == listing
    assert fs.open_files == 1
    assert [one.phase for one in seen] == ["map", "map", "rewrite"]
    throttled: list[int] = []
    seen.clear()
    result = compact(job, fs, progress=seen.append, throttle=throttled.append)
    assert seen[-1].done_bytes == seen[-1].total_bytes == 2 * result.bytes_in
    assert sum(throttled) == 2 * result.bytes_in + result.bytes_out


def test_what_a_killed_job_leaves_can_be_found() -> None:
    fs = SimFileSystem()
    log = keyed(fs)
    segments(log, [keys(30)], [keys(30)])
    job = plan(log)
    assert job is not None
    before = files(fs)
    result = compact(job, fs)
    assert tuple(leftover_files(fs, job)) == result.new_files
    remove_files(fs, DIRECTORY, leftover_files(fs, job))
    assert files(fs) == before
