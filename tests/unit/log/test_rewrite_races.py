"""The log changes while a job runs, before any of its reads and writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from support.disks.background_job import BackgroundJob, check_files
from support.disks.logs import BASE_NS, reopen
from support.disks.simfs import SimFileSystem
from support.worlds.rewriting import (
    MINUTE_NS,
    ROLL_ON_DEMAND,
    Rows,
    add,
    check_entries,
    keyed,
    row,
    rows_of,
    stored,
)

from compaction import CompactionPolicy
from liftlog.log import Log
from liftlog.log.files.manifest import QuarantinedRange, SegmentEntry
from liftlog.records import iter_batches

POLICY = CompactionPolicy(min_dirty_ratio=0, tombstone_retention_ns=8 * MINUTE_NS)
SEGMENTS = 3
Change = tuple[str, int]


def prepared() -> tuple[SimFileSystem, Log]:
    """Return three sealed segments of three batches. Keys occur again in the segment after the next
    one."""
    fs = SimFileSystem()
    log = keyed(fs)
    for number in range(SEGMENTS):
        rows = [row(b"k%d" % (i + number % 2 * 2), b"%d" % number) for i in range(3)]
        add(log, [[one, row(None, b"-")] for one in rows])
        log.writer.roll()
    add(log, [[row(b"k0", b"last")]])
    return fs, log


def compaction_in_groups(log: Log) -> BackgroundJob:
    return _compaction(log, max_bytes=450, memory=1 << 20)


def compaction_into_one(log: Log) -> BackgroundJob:
    return _compaction(log, max_bytes=1 << 20, memory=1 << 20)


def compaction_without_memory(log: Log) -> BackgroundJob:
    return _compaction(log, max_bytes=450, memory=1)


def _compaction(log: Log, **how: int) -> BackgroundJob:
    job = BackgroundJob.compaction(log, policy=POLICY, now_ns=BASE_NS, **how)
    assert job is not None
    return job


def rebatching_the_first(log: Log) -> BackgroundJob:
    return BackgroundJob.rebatching(log, 0)


def rebatching_the_last(log: Log) -> BackgroundJob:
    return BackgroundJob.rebatching(log, SEGMENTS - 1)


JOBS = [
    compaction_in_groups,
    compaction_into_one,
    compaction_without_memory,
    rebatching_the_first,
    rebatching_the_last,
]


def changes(log: Log) -> Iterator[Change]:
    for segment in log.segments[:-1]:
        yield "truncate", segment.base_offset
        yield "truncate", segment.base_offset + 4
        yield "retention", segment.next_offset
        yield "quarantine", segment.base_offset
    yield "append", 0


def change(log: Log, fs: SimFileSystem, what: Change) -> Rows:
    """Change the log and write to it. Returns its content, which the job must not change."""
    name, offset = what
    lost: set[int] = set()
    if name == "truncate":
        log.truncate_suffix(offset)
    elif name == "retention":
        log.structure.remove_before(offset, SEGMENTS)
    elif name == "quarantine":
        [segment] = [one for one in log.segments if one.base_offset == offset]
        first = next(iter_batches(fs.read(segment.path)))
        length, following = first.header.length, first.header.next_offset
        file = segment.path.name
        log.structure.quarantine(
            file, [QuarantinedRange(offset, following, file, 0, length, "rot")]
        )
        lost = set(range(offset, following))
    held = {o: r for o, r in readable(log, fs).items() if o not in lost}
    for _ in range(2):
        held |= add(log, [[row(b"new", b"1")], [row(b"k1", b"new")]])
        log.writer.roll()
    return held | add(log, [[row(b"newer", b"2")]])


def readable(log: Log, fs: SimFileSystem) -> Rows:
    """Return the content of the log's segments, read directly from the files."""
    if not log.view.manifest.quarantined:
        return stored(log)
    found: Rows = {}
    for segment in log.segments:
        raw = fs.read(segment.path)[: segment.size_bytes]
        for batch in iter_batches(raw):
            found |= rows_of(batch)
    return {
        o: r
        for o, r in found.items()
        if not any(bad.first_offset <= o < bad.next_offset for bad in log.view.manifest.quarantined)
    }


def check_log(log: Log, fs: SimFileSystem, held: Rows, job: BackgroundJob) -> None:
    found = readable(log, fs)
    assert found.items() <= held.items()
    gone = held.keys() - found.keys()
    if job.swaps_made:
        newest = {one.key: o for o, one in sorted(held.items())}
        lost = {bad.first_offset for bad in log.view.manifest.quarantined}
        for offset in gone:
            key = held[offset].key
            assert key is not None
            assert newest[key] != offset or lost, "the newest value of a key is gone"
    else:
        assert not gone
    check_files(log)
    check_entries(log, fs)


@pytest.mark.parametrize("begin", JOBS)
def test_the_log_changes_while_a_job_is_at_work(begin: Callable[[Log], BackgroundJob]) -> None:
    _, log = prepared()
    outcomes: dict[str, int] = {}
    for what in changes(log):
        reached = True
        at = 0
        while reached:
            fs, log = prepared()
            job = begin(log)
            held: Rows = {}
            calls = 0

            def throttle(_: int) -> None:
                nonlocal calls, held
                if calls == at:  # noqa: B023  # called within this round only
                    held = change(log, fs, what)  # noqa: B023
                calls += 1

            worked = job.work(log, fs, throttle)
            reached = calls > at
            if not reached:
                held = change(log, fs, what)
            outcome = "gone or damaged"
            if worked:
                outcome = "swapped" if job.swap_in(log, fs) else "refused"
            outcomes[outcome] = outcomes.get(outcome, 0) + 1
            check_log(log, fs, held, job)
            image = fs.kill() if at % 2 else fs.power_cut("none")
            again, _ = reopen(image, boot="boot-1", config=ROLL_ON_DEMAND)
            check_log(again, image, held, job)
            at += 1
    assert outcomes["swapped"] > 5
    assert outcomes["refused"] > 10


@pytest.mark.parametrize("begin", JOBS)
def test_a_cut_begins_no_file_that_a_job_under_way_may_yet_write(
    begin: Callable[[Log], BackgroundJob],
) -> None:
    _, log = prepared()
    for segment in log.segments[:-1]:
        for once_more in (False, True):
            fs, log = prepared()
            job = begin(log)
            assert log.truncate_suffix(segment.base_offset) == segment.base_offset
            if once_more:
                log.truncate_suffix(log.segments[0].base_offset)
            base = log.segments[-1].base_offset
            theirs = SegmentEntry(base, job.job.generation).file_name
            assert log.segments[-1].path.name != theirs
            assert not fs.exists(log.directory / theirs)
