"""The records that a compaction pass keeps, and their files."""

from __future__ import annotations

from support.disks.logs import BASE_NS, reopen
from support.disks.simfs import SimFileSystem
from support.worlds.rewriting import (
    HEADER,
    Rows,
    add,
    add_segments,
    batches_of,
    check_entries,
    compact_fully,
    compact_once,
    expected,
    file_names,
    key_rows,
    keyed,
    plan,
    row,
    stored,
)

from liftlog.log.rewrite import (
    apply_compaction,
    compact,
)
from liftlog.records import iter_batches


def test_the_newest_record_of_each_key_stays() -> None:
    fs = SimFileSystem()
    log = keyed(fs)
    rows = add_segments(log, [key_rows(40)], [key_rows(5, tag=b"x")], [key_rows(3, 3, tag=b"y")])
    result = compact_once(log, fs)
    assert result is not None
    left = stored(log)
    assert left == expected(rows, 49)
    assert sorted(r.value for r in left.values()) == [
        b"35", b"36", b"37", b"38", b"39", b"x3", b"x4", b"y0", b"y1", b"y2",
    ]  # fmt: skip
    assert (result.records_in, result.records_out, result.distinct_keys) == (48, 10, 10)
    assert result.bytes_out < result.bytes_in
    assert log.view.manifest.cleaned_below == 49
    assert log.log_end_offset == 49
    check_entries(log, fs)
    assert plan(log) is None, "there is nothing left to do"


def test_records_are_not_changed() -> None:
    """Subjects, timestamps, headers with message ids, and keys that differ only in their length."""
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
    rows = add_segments(log, batches[:10], batches[10:])
    compact_once(log, fs)
    assert stored(log) == expected(rows, log.log_end_offset)
    check_entries(log, fs)


def test_small_batches_come_together_and_large_ones_stay_as_they_are() -> None:
    fs = SimFileSystem()
    log = keyed(fs)
    large = [row(b"big%d" % i, bytes(900)) for i in range(60)]
    rows = add_segments(
        log, [*[[one] for one in key_rows(100, 50)], large, large, *[[r] for r in key_rows(9)]]
    )
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
    rows = add_segments(log, pairs)
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
    rows = add_segments(log, [large, key_rows(10), key_rows(10)], [key_rows(10)])
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
    rows = add_segments(log, first, second)
    before = file_names(log)
    job = plan(log, max_bytes=60_000)
    assert job is not None
    operations = fs.log[:]
    result = compact(job, fs)
    assert not [line for line in fs.log[len(operations) :] if before[0] in line]
    assert [swap.old for swap in result.swaps] == [(before[1],)]
    apply_compaction(log, result)
    assert file_names(log)[0] == before[0]
    assert file_names(log)[1] == f"{11:020d}.1.log"
    assert stored(log) == expected(rows, 21)
    check_entries(log, fs)


def test_a_late_first_death_takes_along_what_lies_before_it() -> None:
    """More than one window is read before the first record that is removed."""
    fs = SimFileSystem()
    log = keyed(fs)
    alive = [[row(b"a%d" % i, bytes(200_000))] for i in range(6)]
    rows = add_segments(log, [*alive, [row(b"x", b"1")], [row(b"x", b"2")]])
    compact_once(log, fs)
    left = stored(log)
    assert left == expected(rows, 9)
    assert len(left) == 7
    check_entries(log, fs)


def test_small_neighbours_become_one() -> None:
    fs = SimFileSystem()
    log = keyed(fs)
    rows = add_segments(
        log, *[[[row(b"%d.%d" % (n, i), b"v")] for i in range(5)] for n in range(6)]
    )
    compact_once(log, fs)
    assert file_names(log) == [f"{1:020d}.1.log", f"{31:020d}.log"]
    assert stored(log) == rows
    assert len(batches_of(log)) == 1
    check_entries(log, fs)


def test_everything_compacted_away_leaves_an_empty_batch() -> None:
    fs = SimFileSystem()
    log = keyed(fs)
    rows = add_segments(log, [key_rows(10)], [key_rows(10)])
    job = plan(log, max_bytes=500)
    assert job is not None
    assert job.plan.groups == ((0, 1), (1, 2))
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
        batches = [key_rows(7, 100, first=7 * i, tag=b"%d." % i) for i in range(40)]
        rows = add_segments(log, batches[:15], batches[15:30], batches[30:])
        passes = compact_fully(log, fs, memory=memory)
        assert passes == 1 if memory > 10_000 else passes > 1
        left.append(stored(log))
        check_entries(log, fs)
    assert left[0] == left[1] == left[2] == expected(rows, log.log_end_offset)


def test_nothing_at_or_past_the_bound_counts() -> None:
    """A lease lowers the bound. Later records do not supersede the records that it covers."""
    fs = SimFileSystem()
    log = keyed(fs)
    rows = add_segments(log, [key_rows(20)], [key_rows(20)], [key_rows(20)])
    result = compact_once(log, fs, bound=41)
    assert result is not None
    assert result.cleaned_below == 41
    assert stored(log) == expected(rows, 41)


def test_records_below_the_log_start_go_with_the_rest() -> None:
    fs = SimFileSystem()
    log = keyed(fs)
    rows = add_segments(log, [[row(None, b"%d" % i)] for i in range(20)] + [key_rows(30)])
    log.structure.remove_before(15, 0)
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
        rows.update(add(log, [[one] for one in key_rows(5, 5)]))
        fs = fs.power_cut("all")
        log, _ = reopen(fs, config=log.config, boot="boot-9")
    rows.update(add(log, [[row(b"k0", b"last")]]))
    log.writer.roll()
    compact_once(log, fs)
    assert stored(log) == expected(rows, log.log_end_offset)
    headers = [one.header for one in iter_batches(fs.read(log.segments[0].path))]
    assert [(one.leader_epoch, one.base_offset) for one in headers] == list(
        log.view.manifest.epochs
    )
    check_entries(log, fs)
