"""Quarantined ranges that are readable again are returned to readers."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from support.disks.logs import (
    DIRECTORY,
    Promises,
    check,
    commit,
    create,
    flip,
    read_all,
    reopen,
)
from support.disks.simfs import MachineStopped, SimFileSystem

from liftlog.log import Log
from liftlog.log.data_dir import KnownStates
from liftlog.log.files.manifest import NOT_SYNCED, QuarantinedRange
from liftlog.log.offline.filesystems import KeepingFileSystem
from liftlog.log.offline.repair import Repair
from liftlog.log.rewrite import scrub
from liftlog.records import parse_header
from liftlog.server.cleaning.next_segments import ScrubSchedule, job_for

KEPT = Path("/data/repaired/orders")


def written(fs: SimFileSystem) -> tuple[Log, Promises]:
    log, promises = create(fs), Promises()
    while log.segment_count < 4:
        commit(log, promises, 2)
    return log, promises


def batch_ranges(fs: SimFileSystem, log: Log, number: int) -> list[QuarantinedRange]:
    """Return each batch of a segment as a range that is recorded as damaged."""
    segment, position, found = log.segments[number], 0, []
    raw = fs.read(segment.path)
    while position < segment.size_bytes:
        header = parse_header(raw, position)
        end = position + header.length
        found.append(
            QuarantinedRange(
                header.base_offset, header.next_offset, segment.path.name, position, end, "a claim"
            )
        )
        position = end
    return found


def claimed(log: Log, ranges: list[QuarantinedRange]) -> QuarantinedRange:
    """Return all of these as one range, which the log accepts."""
    first, last = ranges[0], ranges[-1]
    bad = QuarantinedRange(
        first.first_offset, last.next_offset, first.segment, first.position, last.end_position,
        "a claim",
    )  # fmt: skip
    log.structure.quarantine(bad.segment, [bad])
    return bad


def scrubbed(log: Log, fs: SimFileSystem, number: int) -> int:
    result = scrub(job_for(log, log.segments[number]), fs)
    assert result.damaged == ()
    return log.structure.lift_quarantine(result.file, result.lifted, result.still)


def test_a_scrub_lifts_what_reads_well() -> None:
    fs = SimFileSystem()
    log, promises = written(fs)
    log.structure.replace_segments((), (), cleaned_below=log.segments[-1].base_offset)
    bad = claimed(log, batch_ranges(fs, log, 1))
    assert len(read_all(log)) < len(promises.acked)
    assert scrubbed(log, fs, 1) == 1
    assert (log.view.manifest.quarantined, log.view.manifest.cleaned_below) == (
        (),
        bad.first_offset,
    )
    check(log, promises)
    check(reopen(fs.power_cut("none"), boot="boot-2")[0], promises)
    assert scrubbed(log, fs, 1) == 0


def test_what_is_damaged_of_a_range_stays() -> None:
    fs = SimFileSystem()
    log, promises = written(fs)
    ranges = batch_ranges(fs, log, 1)
    assert len(ranges) >= 3
    claimed(log, ranges)
    flip(fs, log.segments[1].path, ranges[1].position + 70)
    assert scrubbed(log, fs, 1) == 1
    (left,) = log.view.manifest.quarantined
    assert (left.first_offset, left.next_offset) == (ranges[1].first_offset, ranges[1].next_offset)
    assert (left.position, left.end_position) == (ranges[1].position, ranges[1].end_position)
    check(log, promises, lost=range(left.first_offset, left.next_offset))
    assert scrubbed(log, fs, 1) == 0, "that is damaged, and known"


@pytest.mark.parametrize("reason", [NOT_SYNCED, "the end of the file is missing"])
def test_offsets_without_bytes_stay(reason: str) -> None:
    """No walk over the file can prove that nothing was lost after its end."""
    fs = SimFileSystem()
    log, _ = written(fs)
    segment = log.segments[1]
    end = segment.size_bytes
    lost = QuarantinedRange(
        segment.next_offset, segment.next_offset + 5, segment.path.name, end, end, reason
    )
    log.structure.quarantine(segment.path.name, [lost])
    assert scrubbed(log, fs, 1) == 0
    assert log.view.manifest.quarantined == (lost,)


def test_a_claim_that_was_made_after_the_scrub_began_stays() -> None:
    fs = SimFileSystem()
    log, _ = written(fs)
    ranges = batch_ranges(fs, log, 1)
    claimed(log, ranges[:1])
    result = scrub(job_for(log, log.segments[1]), fs)
    later = claimed(log, ranges[2:3])
    assert log.structure.lift_quarantine(result.file, result.lifted, result.still) == 1
    assert log.view.manifest.quarantined == (later,)


def test_repair_lifts_what_reads_well_wherever_it_is_stopped() -> None:
    for stop_at in itertools.count():
        fs = SimFileSystem()
        fs.make_directory(KEPT.parent)
        log, promises = written(fs)
        ranges = batch_ranges(fs, log, 0)
        claimed(log, ranges)
        flip(fs, log.segments[0].path, ranges[0].position + 70)
        state = log.close()
        lost = range(ranges[0].first_offset, ranges[0].next_offset)
        image = fs.power_cut("none")
        repair = Repair(DIRECTORY, KnownStates(clean=state), boot_id="boot-2")
        if not stop_at:
            kinds = [step.kind for step in repair.plan(image)]
            assert kinds == ["lifted"]
        image.stop_at = image.operations + stop_at
        try:
            repair.run(KeepingFileSystem(image, KEPT))
        except MachineStopped:
            image = image.power_cut("some", stop_at)
            repair.run(KeepingFileSystem(image, KEPT))
        else:
            assert stop_at > 3
            return
        again, _ = reopen(image, boot="boot-3", clean=state)
        check(again, promises, lost=lost)


def test_claims_are_looked_at_before_the_rounds() -> None:
    """At once, each claim once per process of the daemon. The round then continues at its place."""
    fs = SimFileSystem()
    log, _ = written(fs)
    schedule = ScrubSchedule(fs, Path("/data"), interval_ns=10)
    assert schedule.next_job(log, 1) is None, "a round is not due"
    ranges = batch_ranges(fs, log, 2)
    claimed(log, ranges)
    flip(fs, log.segments[2].path, ranges[0].position + 70)
    job = schedule.next_job(log, 2)
    assert job is not None
    assert job.source.file_name == log.segments[2].path.name
    result = scrub(job, fs)
    log.structure.lift_quarantine(result.file, result.lifted, result.still)
    schedule.done(log, job)
    assert schedule.next_job(log, 2) is None
    round_ = schedule.next_job(log, 20)
    assert round_ is not None
    assert round_.source.file_name == log.segments[0].path.name
    claimed(log, ranges[-1:])
    job = schedule.next_job(log, 20)
    assert job is not None
    schedule.done(log, job)
    assert schedule.next_job(log, 20) == round_
