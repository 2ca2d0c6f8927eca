"""The machine stops before every single operation, and then again during the recovery."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.logs import (
    BASE_NS,
    DIRECTORY,
    Promises,
    append,
    check,
    commit,
    create,
    read_all,
    reopen,
)
from support.simfs import Keep, MachineStopped, SimFileSystem

from liftlog.errors import CorruptMetadata
from liftlog.log import ActiveState, Log

Scenario = Callable[[SimFileSystem, Promises], None]


def groups_and_rolls(fs: SimFileSystem, promises: Promises) -> None:
    log = create(fs)
    for size in (1, 3, 2):
        commit(log, promises, size)
    commit(log, promises, 2, 1, 2)
    commit(log, promises, 4)
    append(log, promises, 1)


def retention_and_metadata(fs: SimFileSystem, promises: Promises) -> None:
    log = create(fs)
    for _ in range(14):
        commit(log, promises, 4)
    assert log.segment_count > 2
    log.set_metadata({"subject": "x"})
    segment = log.segments[1]
    promises.start = segment.base_offset + 1
    log.remove_before(promises.start, 1)
    commit(log, promises, 1)


def checkpoints_and_clean_stop(fs: SimFileSystem, promises: Promises) -> None:
    log = create(fs)
    commit(log, promises, 3, 3)
    log.checkpoint()
    commit(log, promises, 2)
    log.close()


def interval_durability(fs: SimFileSystem, promises: Promises) -> None:
    """Acks leave after the write: only the offsets are promised, until the sync."""
    log = create(fs)
    for _ in range(4):
        append(log, promises, 2)
        log.note_acked(log.log_end_offset)
        promises.end = log.log_end_offset
    rows = append(log, promises, 2)
    log.advance_high_watermark(log.sync())
    promises.acked.update(rows)
    append(log, promises, 2)


def rolls_before_the_sync(fs: SimFileSystem, promises: Promises) -> None:
    """A roll syncs what it seals: what the log calls durable is."""
    log = create(fs)
    waiting: dict[int, bytes] = {}
    for _ in range(9):
        waiting.update(append(log, promises, 4))
        promises.acked.update(
            {o: value for o, value in waiting.items() if o < log.durable_end_offset}
        )
    assert len(promises.acked) > 10


SCENARIOS: list[Scenario] = [
    groups_and_rolls,
    retention_and_metadata,
    checkpoints_and_clean_stop,
    interval_durability,
    rolls_before_the_sync,
]


def _run(scenario: Scenario, stop_at: int | None) -> tuple[SimFileSystem, Promises]:
    fs, promises = SimFileSystem(), Promises()
    fs.stop_at = stop_at
    try:
        scenario(fs, promises)
    except MachineStopped:
        pass
    return fs, promises


def _recover(fs: SimFileSystem, promises: Promises, boot: str) -> Log | None:
    try:
        log, report = reopen(fs, boot=boot)
    except (CorruptMetadata, FileNotFoundError):
        assert not promises.acked, "a stream with acked records cannot be opened"
        return None
    assert not report.clean
    check(log, promises)
    return log


def _images(fs: SimFileSystem, seeds: int) -> list[tuple[str, SimFileSystem]]:
    modes: list[tuple[Keep, int]] = [("none", 0), ("all", 0)]
    modes += [("some", seed) for seed in range(seeds)]
    return [("boot-2", fs.power_cut(keep, seed)) for keep, seed in modes]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_machine_stops_before_any_operation(scenario: Scenario) -> None:
    operations = _run(scenario, None)[0].operations
    assert operations > 20
    for stop_at in range(operations + 1):
        fs, promises = _run(scenario, stop_at)
        for boot, image in [*_images(fs, 5), ("boot-1", fs.kill())]:
            log = _recover(image, promises, boot)
            if log is None:
                continue
            epoch, end, found = log.leader_epoch, log.log_end_offset, read_all(log)
            # Recovered once more, nothing has changed but the epoch.
            again, _ = reopen(image.power_cut("none"), boot="boot-3")
            assert read_all(again) == found
            assert again.log_end_offset == end
            assert again.leader_epoch > epoch
            # Appending goes on, and what is acked now stays too.
            more = Promises()
            more.written, more.acked, more.start = promises.written, dict(found), promises.start
            after = again.environment.fs
            assert isinstance(after, SimFileSystem)
            commit(again, more, 2, 1)
            commit(again, more, 5)
            last, _ = reopen(after.power_cut("none"), boot="boot-4")
            check(last, more)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_machine_stops_again_during_recovery(scenario: Scenario) -> None:
    operations = _run(scenario, None)[0].operations
    for stop_at in range(3, operations + 1, 3):
        fs, promises = _run(scenario, stop_at)
        for seed in range(2):
            image = fs.power_cut("some", seed)
            try:
                reopen(fs.power_cut("some", seed), boot="boot-2")
            except (CorruptMetadata, FileNotFoundError):
                continue
            for second in range(12):
                trial = image.power_cut("none")
                trial.stop_at = second
                try:
                    reopen(trial, boot="boot-2")
                except MachineStopped:
                    pass
                log = _recover(trial.power_cut("some", second), promises, "boot-3")
                assert log is not None
                commit(log, promises_copy := _copy(promises), 1)
                check(log, promises_copy)


def _copy(promises: Promises) -> Promises:
    twin = Promises()
    twin.written = {offset: set(values) for offset, values in promises.written.items()}
    twin.acked = dict(promises.acked)
    twin.start, twin.end = promises.start, promises.end
    return twin


def test_every_byte_of_the_last_group_may_be_missing() -> None:
    for killed in (False, True):
        fs, promises = SimFileSystem(), Promises()
        log = create(fs)
        commit(log, promises, 2, 2)
        start = log.active_state().position
        append(log, promises, 2, 1)
        path = log.segments[-1].path
        end = log.segments[-1].size_bytes
        whole = fs.read(path)[:end]
        for length in range(start, end + 1):
            for filler in (b"", b"\0" * 100, b"\xff" * 20):
                trial = fs.power_cut("all")
                trial.replace(path, whole[:length] + filler)
                if not killed:
                    trial.remove(DIRECTORY / "acked")
                again, report = reopen(trial, boot="boot-1")
                found = check(again, promises)
                assert set(found) >= {1, 2, 3, 4}
                torn = length > start and (length < end or filler == b"\xff" * 20)
                kept = [name for name in trial.list_directory(DIRECTORY) if "broken" in name]
                if torn and whole[:length].rstrip(b"\0") != b"" and report.cut_bytes:
                    assert len(kept) == 1
                    assert len(trial.read(DIRECTORY / kept[0])) == report.cut_bytes
                if killed:
                    # No reboot lies between, so the slot tells exactly what was acked.
                    assert again.log_end_offset <= 8
                    assert not again.quarantined
                commit(again, _copy(promises), 1)


def test_clean_stop_and_start_change_nothing() -> None:
    fs, promises = SimFileSystem(), Promises()
    log = create(fs)
    commit(log, promises, 3)
    group = log.commit_group
    state = log.close()
    assert state is not None
    again, report = reopen(fs.power_cut("none"), boot="boot-2", clean=state)
    assert report.clean
    assert (report.scanned_bytes, report.events) == (0, [])
    assert again.leader_epoch == log.leader_epoch
    assert again.commit_group != group - 1
    check(again, promises)
    assert again.max_timestamp_ns == BASE_NS


def test_an_unclean_start_raises_the_epoch_before_it_returns() -> None:
    fs, promises = SimFileSystem(), Promises()
    log = create(fs)
    commit(log, promises, 3)
    image = fs.power_cut("none")
    again, _ = reopen(image, boot="boot-2")
    assert again.leader_epoch == 2
    assert again.epochs == ((1, 1), (2, 4))
    third, _ = reopen(image.power_cut("none"), boot="boot-3")
    assert third.leader_epoch == 3


def test_the_recovery_point_saves_the_scan() -> None:
    fs, promises = SimFileSystem(), Promises()
    log = create(fs)
    commit(log, promises, 4)
    state = log.checkpoint()
    commit(log, promises, 1)
    image = fs.power_cut("none")
    again, report = reopen(image, boot="boot-2", recovery_point=state)
    check(again, promises)
    assert 0 < report.scanned_bytes < state.position
    assert again.segments[-1].record_count == 5


@pytest.mark.parametrize("field", ["incarnation", "base_offset"])
def test_a_recovery_point_of_something_else_is_ignored(field: str) -> None:
    fs, promises = SimFileSystem(), Promises()
    log = create(fs)
    commit(log, promises, 4)
    values = {name: getattr(log.checkpoint(), name) for name in ActiveState.__slots__}
    values |= {"incarnation": "other"} if field == "incarnation" else {"base_offset": 7}
    wrong = ActiveState(**(values | {"next_offset": 900}))
    again, report = reopen(fs.power_cut("none"), recovery_point=wrong, clean=wrong)
    assert not report.clean
    assert again.log_end_offset == 5
    check(again, promises)
