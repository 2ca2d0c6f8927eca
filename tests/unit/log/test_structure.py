"""Segments swapped, files discarded, ranges quarantined, early acks admitted."""

from __future__ import annotations

import json
import threading

import pytest
from support.disks.logs import (
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
from support.disks.simfs import Fault, SimFileSystem
from support.worlds.crash_scenarios import merge, sealed

from liftlog.errors import (
    CorruptRange,
    DiskFull,
    SegmentsChanged,
    StorageError,
    SyncFailed,
)
from liftlog.log import Log, LogConfig
from liftlog.log.files.acked_end import read_acked_end
from liftlog.log.files.checkpoint_file import read_checkpoint_file, write_checkpoint_file
from liftlog.log.files.manifest import QuarantinedRange, SegmentEntry

BIG = LogConfig(segment_max_bytes=1 << 20, segment_max_age_ns=None)


def _written(segments: int = 4) -> tuple[SimFileSystem, Log, Promises]:
    fs, promises = SimFileSystem(), Promises()
    log = create(fs, config=BIG)
    for _ in range(segments):
        commit(log, promises, 3)
        log.writer.roll()
    return fs, log, promises


def _survives(fs: SimFileSystem, promises: Promises) -> Log:
    for image in (fs.power_cut("all"), fs.power_cut("none")):
        again, _ = reopen(image, boot="boot-2", config=BIG)
        check(again, promises)
    return again


def _files(fs: SimFileSystem) -> set[str]:
    return {name for name in fs.list_directory(DIRECTORY) if name.endswith(".log")}


def test_a_swap_changes_files_and_marks_and_nothing_that_is_read() -> None:
    fs, log, promises = _written()
    before = log.view.size_bytes
    old = sealed(log)
    log.read(1, 10).release()  # type: ignore[union-attr]  # the old file is open in the pool
    freed = log.structure.replace_segments(
        old[1:3],
        merge(log, old[1:3]),
        horizons={old[0]: 7, old[3]: None, "gone.log": 9},
        cleaned_below=10,
        tombstones_removed_below=4,
    )
    assert freed == before - log.view.size_bytes == 0
    assert _files(fs) == {segment.path.name for segment in log.segments}
    assert not _files(fs) & set(old[1:3])
    assert [s.delete_horizon_ns for s in log.segments] == [7, None, None, None]
    assert [s.generation for s in log.segments] == [0, 1, 0, 0]
    check(log, promises)
    again = _survives(fs, promises)
    assert (again.view.manifest.cleaned_below, again.view.manifest.tombstones_removed_below) == (
        10,
        4,
    )
    assert [s.delete_horizon_ns for s in again.segments] == [7, None, None, None]
    log.structure.replace_segments((), (), horizons={old[0]: None}, cleaned_below=5)
    assert (log.view.manifest.cleaned_below, log.segments[0].delete_horizon_ns) == (10, None)


def test_a_swap_frees_what_the_new_files_do_not_need() -> None:
    _, log, _ = _written()
    old = sealed(log)[:2]
    [entry] = merge(log, old)
    first = log.segments[0].size_bytes
    smaller = SegmentEntry(
        entry.base_offset, entry.generation, first, entry.next_offset, 3, BASE_NS
    )
    assert log.structure.replace_segments(old, [smaller]) == entry.size_bytes - first


@pytest.mark.parametrize("why", ["retention", "order", "active", "unknown", "swapped"])
def test_a_swap_of_what_is_no_longer_there_changes_nothing(why: str) -> None:
    fs, log, promises = _written()
    old = sealed(log)[:2]
    new = merge(log, old)
    asked = {
        "order": [old[1], old[0]],
        "active": [log.segments[-1].path.name],
        "unknown": ["00000000000000000099.log"],
    }.get(why, old)
    if why == "retention":
        promises.start = log.segments[1].base_offset
        log.structure.remove_before(promises.start, 1)
    if why == "swapped":
        log.structure.replace_segments(old, new)
        new = [SegmentEntry(new[0].base_offset, 9)]
    listed = [segment.path.name for segment in log.segments]
    with pytest.raises(SegmentsChanged):
        log.structure.replace_segments(asked, new, cleaned_below=99)
    assert [segment.path.name for segment in log.segments] == listed
    assert log.view.manifest.cleaned_below == 0
    if why != "swapped":
        log.structure.discard_files([entry.file_name for entry in new])
    assert _files(fs) == set(listed)
    _survives(fs, promises)


def test_retention_that_was_decided_before_a_merge_removes_no_more_than_was_decided() -> None:
    fs, log, promises = _written()
    start, below = log.segments[1].base_offset, log.segments[2].base_offset
    old = sealed(log)
    log.structure.replace_segments(old[:3], merge(log, old[:3]))
    promises.start = start
    assert log.structure.remove_before(start, 2, delete_below=below) == 0
    check(log, promises)
    # The log start has passed all of the merged file, but it holds more than was to be deleted.
    promises.start = log.segments[1].base_offset
    assert log.structure.remove_before(promises.start, 2, delete_below=below) == 0
    assert log.structure.remove_before(promises.start, 2) > 0
    check(log, promises)
    _survives(fs, promises)


def test_a_job_that_outlived_a_truncation_is_refused() -> None:
    _, log, _ = _written()
    old, lineage = sealed(log)[:2], log.view.manifest.lineage
    new = merge(log, old)
    log.truncate_suffix(log.segments[-2].base_offset + 1)
    with pytest.raises(SegmentsChanged, match="truncated"):
        log.structure.replace_segments(old, new, lineage=lineage)
    with pytest.raises(SegmentsChanged, match="truncated"):
        log.structure.replace_segments((), (), cleaned_below=99, lineage=lineage)
    assert log.view.manifest.cleaned_below == 0
    log.structure.replace_segments(old, new, lineage=log.view.manifest.lineage)


def test_a_closed_log_changes_no_manifest() -> None:
    """The directory may already belong to the next process."""
    fs, log, _ = _written()
    old = sealed(log)[:2]
    new = merge(log, old)
    log.close()
    before = fs.read(log.directory / "manifest")
    for change in (
        lambda: log.structure.replace_segments(old, new),
        lambda: log.structure.remove_before(log.segments[1].base_offset, 1),
        lambda: log.structure.set_metadata({"a": 1}),
    ):
        with pytest.raises(StorageError, match="closed"):
            change()
    assert fs.read(log.directory / "manifest") == before


def test_a_segment_with_uncommitted_records_is_not_swapped() -> None:
    """A roll seals them when the fsync follows later. The high watermark is inside of the file."""
    fs, promises = SimFileSystem(), Promises()
    log = create(fs, config=BIG)
    commit(log, promises, 3)
    rows = append(log, promises, 2, 2)
    log.writer.roll()
    rows += append(log, promises, 2)
    assert log.high_watermark == 4
    old = sealed(log)
    new = merge(log, old)
    with pytest.raises(SegmentsChanged, match="not committed"):
        log.structure.replace_segments(old, new)
    log.commit_up_to(8)
    # Now it ends where the high watermark is, at a position that the new file does not have.
    entry = SegmentEntry(1, 1, new[0].size_bytes - 8, 8, 7, BASE_NS)
    log.structure.replace_segments(old, [entry])
    assert log.high_watermark == 8
    with log.read(1, 1 << 20) as piece:  # type: ignore[union-attr]
        assert (piece.next_offset, piece.length) == (8, entry.size_bytes)
    assert log.read(8, 1) is None
    log.commit_up_to(log.sync())
    promises.acked.update(rows)
    assert log.high_watermark == 10
    with log.read(8, 1) as piece:  # type: ignore[union-attr]
        assert piece.first_offset == 8


def test_a_swap_that_does_not_fit_is_refused() -> None:
    _, log, _ = _written()
    old = sealed(log)[:2]
    [good] = merge(log, old)
    bad = [
        [],
        [SegmentEntry(good.base_offset, 1, good.size_bytes, good.next_offset - 1)],
        [SegmentEntry(good.base_offset + 1, 1, good.size_bytes, good.next_offset)],
        [SegmentEntry(good.base_offset, 0, good.size_bytes, good.next_offset)],
        [SegmentEntry(good.base_offset, 1, good.size_bytes + 1, good.next_offset)],
        [
            SegmentEntry(good.base_offset, 1, 10, 3),
            SegmentEntry(4, 1, 10, good.next_offset),
        ],
    ]
    for new in bad:
        with pytest.raises(ValueError, match=r"segment|entry says"):
            log.structure.replace_segments(old, new)
    assert sealed(log)[:2] == old
    with pytest.raises(ValueError, match="belongs to"):
        log.structure.discard_files([old[0]])


def test_a_segment_with_quarantined_bytes_stays_and_a_hole_moves() -> None:
    fs, log, promises = _written(1)
    append(log, promises, 4)
    fs.faults = [Fault("fsync", path=".log")]
    with pytest.raises(SyncFailed):
        log.sync()
    log.writer.abandon_tail(keep_offsets=True)
    # An empty segment carries the hole; one with records before it is the common case.
    commit(log, promises, 3)
    append(log, promises, 2)
    fs.faults = [Fault("fsync", path=".log")]
    with pytest.raises(SyncFailed):
        log.sync()
    log.writer.abandon_tail(keep_offsets=True)
    commit(log, promises, 1)
    [name] = [s.path.name for s in log.segments if s.sealed and s.base_offset == 8]
    assert name not in log.view.damaged_files
    log.structure.replace_segments([name], merge(log, [name]))
    hole = log.view.manifest.quarantined[-1]
    assert (hole.first_offset, hole.next_offset, hole.segment) == (
        11, 13, "00000000000000000008.1.log",
    )  # fmt: skip
    again = _survives(fs, promises)
    assert again.view.manifest.quarantined == log.view.manifest.quarantined
    first = sealed(log)[0]
    log.structure.quarantine(
        first, [QuarantinedRange(1, 4, first, 0, log.segments[0].size_bytes, "rot")]
    )
    assert log.view.damaged_files == {first}
    with pytest.raises(SegmentsChanged, match="quarantined"):
        log.structure.replace_segments([first], merge(log, [first]))


def test_a_quarantined_range_is_known_at_once_and_for_good() -> None:
    fs, log, promises = _written()
    segment = log.segments[1]
    name = segment.path.name
    half = segment.size_bytes // 2 // 8 * 8
    log.structure.quarantine(name, [QuarantinedRange(4, 6, "", 0, half, "rot")])
    log.structure.quarantine(
        name, [QuarantinedRange(5, 7, "", half - 8, segment.size_bytes, "more")]
    )
    operations = fs.operations
    log.structure.quarantine(name, [QuarantinedRange(4, 5, name, 8, 16, "known")])
    assert fs.operations == operations, "what is known already writes nothing"
    expected = QuarantinedRange(4, 7, name, 0, segment.size_bytes, "rot")
    assert log.view.manifest.quarantined == (expected,)
    with pytest.raises(CorruptRange) as told:
        log.read(5, 10)
    assert (told.value.first_offset, told.value.next_offset) == (5, 7)
    lost = range(4, 7)
    check(log, promises, lost=lost)
    again, _ = reopen(fs.power_cut("none"), boot="boot-2", config=BIG)
    assert again.view.manifest.quarantined == (expected,)
    check(again, promises, lost=lost)
    with pytest.raises(SegmentsChanged):
        log.structure.quarantine("00000000000000000099.log", [expected])


def test_damage_below_the_log_start_is_known_as_long_as_its_file_is_there() -> None:
    fs, log, promises = _written()
    commit(log, promises, 3, 3)
    log.writer.roll()
    name = log.segments[-2].path.name
    first = log.segments[-2].base_offset
    log.structure.quarantine(name, [QuarantinedRange(first, first + 3, name, 0, 8, "rot")])
    number = log.segment_count - 2
    log.structure.remove_before(first + 4, number)
    assert log.view.damaged_files == {name}
    with pytest.raises(SegmentsChanged):
        log.structure.replace_segments([name], merge(log, [name]))
    again, _ = reopen(fs.power_cut("none"), boot="boot-2", config=BIG)
    assert again.view.damaged_files == {name}
    log.structure.remove_before(first + 6, 1)
    assert not log.view.manifest.quarantined


_STEPS = [
    Fault("create", path="manifest"),
    Fault("write", path="manifest", error=28),
    Fault("fsync", path="manifest"),
    Fault("rename", path="manifest"),
    Fault("rename", path="manifest", after=True),
    Fault("fsync-directory"),
]


@pytest.mark.parametrize("number", range(len(_STEPS)))
def test_the_files_of_a_failed_swap_are_discarded_only_when_that_is_safe(number: int) -> None:
    """After the rename the disk may list them, and then they have the only copy."""
    fs, log, promises = _written()
    old = sealed(log)[:2]
    new = merge(log, old)
    step = _STEPS[number]
    fs.faults = [Fault(step.operation, step.error, step.path, after=step.after)]
    with pytest.raises((StorageError, DiskFull)):
        log.structure.replace_segments(old, new)
    assert sealed(log)[:2] == old
    _survives(fs, promises)
    # The disk is still in trouble: then nothing may go that a manifest on it could name.
    fs.faults = [Fault("fsync", path="manifest", times=2)]
    if log._state.manifest_in_doubt:
        with pytest.raises(StorageError):
            log.structure.discard_files([entry.file_name for entry in new])
        assert new[0].file_name in _files(fs)
    _survives(fs, promises)
    fs.faults = []
    log.structure.discard_files([entry.file_name for entry in new])
    assert new[0].file_name not in _files(fs)
    check(log, promises)
    _survives(fs, promises)
    log.structure.replace_segments(old, merge(log, old))
    commit(log, promises, 2)
    check(log, promises)
    _survives(fs, promises)


def test_readers_never_miss_a_record_while_segments_are_swapped_and_removed() -> None:
    _, log, promises = _written(12)
    stop = threading.Event()
    problems: list[BaseException] = []

    def read_on() -> None:
        try:
            while not stop.is_set():
                start = log.log_start_offset
                found = read_all(log)
                assert set(range(max(start, log.log_start_offset), 37)) <= set(found)
                log.offset_for_timestamp(BASE_NS)
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=read_on) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(40):
        names = sealed(log)[:3]
        log.structure.replace_segments(names[:1], merge(log, names[:1]))
        log.structure.replace_segments(names[1:3], merge(log, names[1:3]))
        if len(sealed(log)) < 5:
            break
    stop.set()
    for thread in threads:
        thread.join()
    assert not problems
    check(log, promises)


def test_an_old_manifest_without_the_newer_fields_is_read() -> None:
    fs, log, promises = _written(2)
    image = fs.power_cut("none")
    path = DIRECTORY / "manifest"
    content = read_checkpoint_file(image, path, "manifest")
    assert content is not None
    for name in ("cleaned_below", "generation"):
        del content[name]
    write_checkpoint_file(image, path, "manifest", json.loads(json.dumps(content)))
    again, _ = reopen(image, boot="boot-1", config=BIG)
    found = again.view.manifest
    assert (found.cleaned_below, found.lineage) == (0, log.view.manifest.lineage)
    check(again, promises)


@pytest.mark.parametrize("step", _STEPS[:5])
def test_no_ack_before_the_sync_while_that_cannot_be_noted(step: Fault) -> None:
    for call in ("admit_early_acks", "note_acked", "commit_up_to"):
        fs, log, promises = _written(1)
        fs.faults = [Fault(step.operation, step.error, step.path, after=step.after)]
        append(log, promises, 2)
        slot = read_acked_end(fs, log.directory, log.view.manifest.lineage, boot_id="boot-1")
        arguments = () if call == "admit_early_acks" else (log.log_end_offset,)
        with pytest.raises((StorageError, DiskFull)):
            getattr(log.writer, call)(*arguments)
        assert log.high_watermark == 4
        assert (
            read_acked_end(fs, log.directory, log.view.manifest.lineage, boot_id="boot-1") == slot
        )
        getattr(log.writer, call)(*arguments)
        if call != "admit_early_acks":
            assert (
                read_acked_end(fs, log.directory, log.view.manifest.lineage, boot_id="boot-1")
                != slot
            )
        again, _ = reopen(fs.power_cut("none"), boot="boot-2", config=BIG)
        assert again.log_end_offset == log.view.manifest.reserved_offset


def test_epochs_below_the_log_start_are_forgotten() -> None:
    fs, log, promises = _written(1)
    for boot in range(2, 6):
        image = fs.power_cut("none")
        log, _ = reopen(image, boot=f"boot-{boot}", config=BIG)
        commit(log, promises, 2)
        fs = image
    assert log.view.manifest.epochs == ((1, 1), (2, 4), (3, 6), (4, 8), (5, 10))
    log.structure.remove_before(6, 0)
    assert log.view.manifest.epochs == ((3, 6), (4, 8), (5, 10))
    log.structure.remove_before(9, 0)
    assert log.view.manifest.epochs == ((4, 8), (5, 10))
    again, _ = reopen(fs.power_cut("none"), boot="boot-9", config=BIG)
    assert again.view.manifest.epochs == ((4, 8), (5, 10), (6, 12))
