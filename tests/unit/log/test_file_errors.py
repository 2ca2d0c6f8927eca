"""An error is not damage: whatever call fails with whatever error, the log serves every acked
record, or refuses with StorageError, and goes on when the error is gone. It never quarantines good
data, never invents a loss, and never assigns an acked offset again.

`make storage-faults` takes every error for every call on each of these files; `make test` a sample.
"""

from __future__ import annotations

import logging

import pytest
from support.disks.file_errors import (
    CHANGES,
    DERIVED,
    KINDS,
    LOOKS,
    OTHER_ERRORS,
    SECTOR_ERRORS,
    Failure,
    failures,
)
from support.disks.logs import (
    DIRECTORY,
    DURABILITIES,
    SMALL,
    Promises,
    environment,
    read_all,
    reopen,
)
from support.disks.simfs import SimFileSystem
from support.rounds import one_in
from support.worlds.crash_scenarios import CLEAN, POINTS, World, live
from support.worlds.rewriting import sketch_segments

from liftlog.errors import DiskFull, StorageError
from liftlog.log import Log, LogEnvironment, open_log
from liftlog.log.data_dir import (
    CLEAN_NAME,
    RECOVERY_POINTS_NAME,
    read_states,
    write_states,
)
from liftlog.log.files.filesystem import storage_errors
from liftlog.log.files.manifest import LEAST_RESERVED
from liftlog.log.segment.sketch import Probe

DATA_DIR = POINTS.parent
STOPS = ["killed", "power cut", "clean stop"]


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "liftlog.log")


def _stored(durability: str, stop: str) -> tuple[SimFileSystem, Promises, str]:
    """Return files of every kind that a daemon leaves."""
    world = World()
    log, writer = world.create(durability)
    for _ in range(5):
        writer.commit(3)
    writer.flush()
    sketch_segments(log, world.fs, with_subjects=True)
    log.leases.acquire(1, 2, duration_ns=10**9, now_ns=1)
    write_states(world.fs, DATA_DIR, RECOVERY_POINTS_NAME, {"orders": log.checkpoint()})
    writer.commit(2, 1)
    if durability != "os":
        writer.flush()
    if stop == "clean stop":
        writer.flush()
        state = log.close()
        assert state is not None
        write_states(world.fs, DATA_DIR, CLEAN_NAME, {"orders": state})
        return world.fs.power_cut("none"), world.promises, "boot-2"
    if stop == "killed":
        return world.fs.kill(), world.promises, "boot-1"
    return world.fs.power_cut("none"), world.promises, "boot-2"


def _start(fs: SimFileSystem, boot: str) -> tuple[Log, LogEnvironment]:
    """Start as the daemon does. Raises StorageError, DiskFull."""
    shared = environment(fs)
    with storage_errors("starting"):
        point = read_states(fs, DATA_DIR, RECOVERY_POINTS_NAME).get("orders")
        clean = read_states(fs, DATA_DIR, CLEAN_NAME).get("orders")
        if fs.exists(CLEAN):
            fs.unlink(CLEAN)
        fs.fsync_directory(DATA_DIR)
    about = {"clean": clean, "recovery_point": point, "boot_id": boot}
    log, _ = open_log(DIRECTORY, shared, SMALL, **about)  # type: ignore[arg-type]
    return log, shared


def _is_served(log: Log, promises: Promises, durability: str, stop: str) -> None:
    """Check that all records that must survive this stop exist, and that no other record is
    reported as lost."""
    found = read_all(log)
    promised = promises.acked | ({} if stop == "power cut" else promises.after_kill)
    assert found == {offset: value for offset, value in found.items() if offset in promised}
    assert found == promised
    assert log.log_end_offset >= promises.end, "an acked offset would be assigned again"
    claimed = sum(bad.next_offset - bad.first_offset for bad in log.view.manifest.quarantined)
    if durability == "fsync" or stop != "power cut":
        assert claimed == 0, "a loss that never was"
        assert log.log_end_offset == promises.end
    else:  # it is not known how many were acked after the last fsync
        assert 0 < claimed <= LEAST_RESERVED + len(promises.after_kill)


_AT_A_START = [
    *failures((*LOOKS, *CHANGES), KINDS, OTHER_ERRORS),
    *failures(LOOKS, (*DERIVED, "clean", "recovery-points", "leases"), SECTOR_ERRORS),
]


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("durability", DURABILITIES)
def test_an_error_at_a_start(durability: str, stop: str) -> None:
    places = one_in(61, _AT_A_START, f"{durability} {stop}")
    for failure in places:
        for countdown in (1, 2):
            image, promises, boot = _stored(durability, stop)
            lasting = [failure.fault(countdown=countdown, times=-1)]
            image.faults = lasting
            _try_a_start(image, promises, durability, stop, boot, failure)


def _try_a_start(
    image: SimFileSystem,
    promises: Promises,
    durability: str,
    stop: str,
    boot: str,
    failure: Failure,
) -> None:
    """Start with the error and, if the start was refused, again without it."""
    try:
        try:
            log, _ = _start(image, boot)
        except (StorageError, DiskFull):
            image.faults = []
            log, _ = _start(image, boot)
        image.faults = []
        _is_served(log, promises, durability, stop)
        # What this start has left is true, and complete.
        again, _ = _start(image.kill(), boot)
        assert read_all(again) == read_all(log)
        assert again.log_end_offset == log.log_end_offset
        assert again.view.manifest.quarantined == log.view.manifest.quarantined
    except BaseException as error:
        error.add_note(f"after a {stop}: {failure}")
        raise


@pytest.mark.parametrize("operation", LOOKS)
def test_an_error_of_a_derived_file_keeps_no_one_from_reading(operation: str) -> None:
    """In this case everything is read, as long as the error lasts."""
    image, promises, boot = _stored("fsync", "killed")
    errors = (*OTHER_ERRORS, *SECTOR_ERRORS)
    for failure in failures((operation,), DERIVED, errors):
        log, shared = _start(image, boot)
        image.faults = [failure.fault(times=-1)]
        try:
            _read_every_way(log, promises)
        except BaseException as error:
            error.add_note(str(failure))
            raise
        image.faults = []
        _read_every_way(log, promises)
        segment = log.segments[0]
        assert (
            shared.parts.get(segment, log.view.manifest.lineage, load=True) is None
        )  # batches are small
        assert log.view.manifest.quarantined == ()
        log.close()


def _read_every_way(log: Log, promises: Promises) -> None:
    assert read_all(log) == promises.acked
    for offset in promises.acked:
        with log.read(offset, 1) as piece:  # type: ignore[union-attr]
            assert piece.first_offset <= offset < piece.next_offset
            log.read_partially(piece, load=True)
            log.read_sparsely(piece, values=True)
        log.subject_index(offset)
    for probe in (None, Probe(subject=b"orders.new")):
        extents = log.extents(1, 1, probe)
        assert extents[0].first_offset == 1
        assert extents[-1].next_offset == log.high_watermark
    log.offset_for_timestamp(0)


@pytest.mark.parametrize("operation", LOOKS)
def test_an_error_of_a_segment_is_an_error_of_the_read(operation: str) -> None:
    image, promises, boot = _stored("fsync", "killed")
    for failure in failures((operation,), (".log",), OTHER_ERRORS):
        log, _ = _start(image, boot)
        image.faults = [failure.fault(times=-1)]
        for offset in (1, max(promises.acked)):
            with pytest.raises((StorageError, DiskFull)) if operation == "open" else _either():
                with log.read(offset, 1) as piece:  # type: ignore[union-attr]
                    piece.pread()
            with _either():
                log.quarantine_damage(offset, offset + 1)
            with _either():
                log.offset_for_timestamp(1)
        image.faults = []
        assert log.view.manifest.quarantined == ()
        assert read_all(log) == promises.acked
        log.close()


class _either:  # noqa: N801
    """Refused or not."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        return isinstance(error, StorageError | DiskFull | OSError)


_WHILE_IT_RUNS = failures((*LOOKS, *CHANGES), KINDS, (*OTHER_ERRORS, *SECTOR_ERRORS))


@pytest.mark.parametrize("durability", DURABILITIES)
def test_an_error_while_the_daemon_runs(durability: str) -> None:
    """The error occurs at one of the first calls, once or permanently. No ack was false."""
    for number, failure in enumerate(one_in(37, _WHILE_IT_RUNS, durability)):
        world = World()
        log, writer = world.create(durability)
        world.fs.faults = [failure.fault(countdown=1 + number % 5, times=(1, 3, -1)[number % 3])]
        live(log, writer)
        try:
            log.checkpoint()
        except (StorageError, DiskFull):
            pass
        world.fs.faults = []
        for image, boot in (
            (world.fs.power_cut("none"), "boot-2"),
            (world.fs.power_cut("some", number), "boot-2"),
            (world.fs.kill(), "boot-1"),
        ):
            again, _ = reopen(image, boot=boot)
            found = read_all(again)
            assert again.log_end_offset >= world.promises.end, str(failure)
            for offset, value in world.promises.acked.items():
                assert found.get(offset) == value, f"{failure}: acked offset {offset} is gone"
