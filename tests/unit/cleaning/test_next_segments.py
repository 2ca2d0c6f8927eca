"""Whose turn it is to be verified, also across restarts, and to be re-batched."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.disks.logs import BASE_NS, SMALL, FakeClock, encode, environment
from support.worlds.replica_scenarios import REPLICA

from liftlog.log import Log, OsFileSystem
from liftlog.log.erased import ErasedSet
from liftlog.log.files.checkpoint_file import read_dispensable_file
from liftlog.log.rewrite import apply_rebatch, rebatch
from liftlog.server.cleaning.next_segments import (
    SCRUB_NAME,
    ScrubSchedule,
    SmallBatches,
    erased_job,
)
from liftlog.settings import StreamSettings

HOUR_NS = 3600 * 10**9
AT_ONCE = StreamSettings.model_validate({"subject": "s", "rebatch": {"min_age": "0s"}})


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    """With three sealed segments."""
    made = Log.create(tmp_path / "s", environment(OsFileSystem(), FakeClock()), SMALL)
    for _ in range(4):
        made.append([encode(made, [b"x" * 100] * 10)])
        made.sync()
        made.commit_up_to(made.log_end_offset)
    assert made.segment_count == 4
    yield made
    made.close()
    made.environment.pool.close()


def schedule(directory: Path) -> ScrubSchedule:
    made = ScrubSchedule(OsFileSystem(), directory, HOUR_NS)
    made.load()
    return made


def take_round(scrubs: ScrubSchedule, log: Log, now_ns: int) -> list[int]:
    found = []
    while (job := scrubs.next_job(log, now_ns)) is not None:
        found.append(job.source.base_offset)
        scrubs.done(log, job)
    return found


def test_every_sealed_segment_once_an_interval(log: Log, tmp_path: Path) -> None:
    scrubs = schedule(tmp_path)
    assert take_round(scrubs, log, BASE_NS) == []
    assert take_round(scrubs, log, BASE_NS + HOUR_NS - 1) == []
    assert take_round(scrubs, log, BASE_NS + HOUR_NS) == [1, 11, 21]
    assert take_round(scrubs, log, BASE_NS + HOUR_NS + 1) == []
    assert take_round(scrubs, log, BASE_NS + 2 * HOUR_NS) == [1, 11, 21]


def test_a_restart_goes_on_where_the_round_was(log: Log, tmp_path: Path) -> None:
    scrubs = schedule(tmp_path)
    assert scrubs.next_job(log, BASE_NS) is None
    job = scrubs.next_job(log, BASE_NS + HOUR_NS)
    assert job is not None
    scrubs.done(log, job)
    scrubs.save(["s"])
    again = schedule(tmp_path)
    assert take_round(again, log, BASE_NS + HOUR_NS) == [11, 21]


def test_another_incarnation_starts_over(log: Log, tmp_path: Path) -> None:
    scrubs = schedule(tmp_path)
    (tmp_path / "former").mkdir()
    former = Log.create(tmp_path / "former" / "s", environment(OsFileSystem(), FakeClock()), SMALL)
    assert (former.name, former.incarnation != log.incarnation) == (log.name, True)
    scrubs.next_job(former, BASE_NS)
    assert take_round(scrubs, log, BASE_NS + HOUR_NS) == []
    assert take_round(scrubs, log, BASE_NS + 2 * HOUR_NS) == [1, 11, 21]


def test_streams_that_are_gone_are_forgotten(log: Log, tmp_path: Path) -> None:
    scrubs = schedule(tmp_path)
    scrubs.next_job(log, BASE_NS)
    scrubs.save([])
    stored = read_dispensable_file(OsFileSystem(), tmp_path / SCRUB_NAME, SCRUB_NAME)
    assert stored == {"streams": {}}


def test_nothing_is_written_while_nothing_changes(log: Log, tmp_path: Path) -> None:
    scrubs = schedule(tmp_path)
    scrubs.next_job(log, BASE_NS)
    scrubs.save(["s"])
    (tmp_path / SCRUB_NAME).unlink()
    scrubs.next_job(log, BASE_NS + 1)
    scrubs.save(["s"])
    assert not (tmp_path / SCRUB_NAME).exists()


def test_a_damaged_file_costs_only_the_wait(
    log: Log, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / SCRUB_NAME).write_bytes(b"rot")
    with caplog.at_level(logging.WARNING):
        scrubs = schedule(tmp_path)
    assert "checkpoint-file-ignored" in caplog.text
    assert take_round(scrubs, log, BASE_NS) == []
    assert take_round(scrubs, log, BASE_NS + HOUR_NS) == [1, 11, 21]


@pytest.mark.parametrize("committed", [1, 200, 400, 700])
def test_a_replica_is_rebatched_up_to_its_high_watermark(tmp_path: Path, committed: int) -> None:
    """The log takes no other segment for one that is not committed: it would be written again in
    each round."""
    config = replace(REPLICA, segment_max_bytes=32_000)
    log = Log.create(tmp_path / "s", environment(OsFileSystem(), FakeClock()), config)
    for _ in range(800):
        log.append([encode(log, [b"x" * 60])])
    log.sync()
    log.commit_up_to(committed)
    ends = [segment.next_offset for segment in log.segments[:-1]]
    small = SmallBatches()
    done: list[int] = []
    while job := small.find(log, small.candidates(log, AT_ONCE, BASE_NS)):
        apply_rebatch(log, rebatch(job, log.environment.fs))
        done.append(job.source.next_offset)
    assert done == [end for end in ends if end <= committed]
    # What is left waits until it is committed, unless it is cut off before.
    log.commit_up_to(ends[-1])
    assert [one.next_offset for one in small.candidates(log, AT_ONCE, BASE_NS)][-1:] == (
        ends[-1:] if committed < ends[-1] else []
    )
    log.close()
    log.environment.pool.close()


def remove_erased(log: Log, now_ns: int) -> list[int]:
    """Do what is due; return where the rewritten segments begin."""
    done: list[int] = []
    while job := erased_job(log, AT_ONCE, now_ns):
        apply_rebatch(log, rebatch(job, log.environment.fs), erased=job.erased)
        done.append(job.source.base_offset)
    return done


def test_bytes_of_erased_records_are_removed_when_that_is_worth_it(log: Log) -> None:
    later, clock = BASE_NS + HOUR_NS, log.environment.clock
    assert isinstance(clock, FakeClock)
    assert erased_job(log, AT_ONCE, later) is None
    log.structure.erase(ErasedSet.of_ranges([(1, 6), (15, 16), (21, 31), (31, 41)]))
    assert erased_job(log, AT_ONCE, BASE_NS) is None, "its message ids still count"
    clock.now = later
    assert remove_erased(log, later) == [1, 21]
    assert log.view.erased == ErasedSet.of_ranges([(15, 16), (31, 41)])
    clock.now += 25 * HOUR_NS
    assert remove_erased(log, clock.now) == [11]
    assert log.view.erased == ErasedSet.of_ranges([(31, 41)]), "of the active segment"
    assert [segment.record_count for segment in log.segments] == [5, 9, 0, 10]
    assert remove_erased(log, clock.now) == []


def test_a_segment_is_rewritten_when_cuts_have_taken_as_long(log: Log) -> None:
    later, clock = BASE_NS + HOUR_NS, log.environment.clock
    assert isinstance(clock, FakeClock)
    clock.now = later
    log.structure.erase(ErasedSet.of_ranges([(15, 16)]))
    cut, segment = log.environment.cuts, log.segments[1]
    while cut.of(segment) < 8 * segment.size_bytes:
        assert remove_erased(log, later) == []
        before = cut.of(segment)
        with log.read(11, 1 << 20) as piece:  # type: ignore[union-attr]  # it has records
            assert piece.record_count == 9
        assert cut.of(segment) > before
        assert not cut.of(log.segments[0])
    assert remove_erased(log, later) == [11]
    assert log.view.erased is None
    assert not cut.of(log.segments[1]), "the new file begins again"
