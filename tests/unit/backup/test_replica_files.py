"""The files of a replica, read by others: nothing of them counts that is not committed."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.disks.logs import DIRECTORY, Promises, append, create, read_all, reopen
from support.disks.simfs import SimFileSystem
from support.disks.stored_logs import STREAM, StoredLog, flip

from liftlog.errors import InvalidArgument
from liftlog.log import LogConfig
from liftlog.log.backup import create_backup, restore_backup, verify_backup
from liftlog.log.data_dir import KnownStates
from liftlog.log.files.filesystem import OsFileSystem
from liftlog.log.files.manifest import read_manifest
from liftlog.log.offline.filesystems import KeepingFileSystem
from liftlog.log.offline.repair import Repair
from liftlog.spark.options import parse_options
from liftlog.spark.scan import plan, read

METADATA = {"settings": {"replicas": 3}}
REPLICA = LogConfig(segment_max_bytes=1200, segment_max_age_ns=None, replicated=True)


def _filled(data_dir: Path, batches: int = 12) -> StoredLog:
    """Three records of 300 bytes in a batch, two batches in a segment; nothing is committed."""
    stored = StoredLog(data_dir, segment_max_bytes=3000, replicated=True)
    for number in range(batches):
        stored.append([b"%d " % number + b"x" * 300 for _ in range(3)], commit=False)
        stored.log.sync()
    return stored


@pytest.mark.parametrize("committed", [1, 2, 4, 7, 10, 13, 20, 31, 34, 37])
@pytest.mark.parametrize("closed", [False, True])
def test_a_backup_ends_at_the_high_watermark(tmp_path: Path, committed: int, closed: bool) -> None:
    stored = _filled(tmp_path / "data")
    assert stored.log.segment_count == 6
    high = stored.log.commit_up_to(committed)
    expected = read_all(stored.log)
    assert set(expected) == set(range(1, high))
    if closed:
        stored.close()
    else:
        stored.log.writer.begin_epoch(2)  # stores the high watermark
    found = create_backup(tmp_path / "data", tmp_path / "backup", created_ns=1)
    assert [(one.name, one.end_offset, one.damaged) for one in found.streams] == [
        (STREAM, high, ())
    ]
    assert verify_backup(tmp_path / "backup") == (found, [])
    if not closed:
        stored.crash()
    restore_backup(tmp_path / "backup", tmp_path / "new", now_seconds=1_800_000_000)
    alone = StoredLog(tmp_path / "new", segment_max_bytes=3000)
    assert alone.report.clean
    assert read_all(alone.log) == expected
    alone.close()


def test_a_replica_that_was_restored_belongs_to_no_cluster(tmp_path: Path) -> None:
    stored = _filled(tmp_path / "data")
    stored.log.commit_up_to(stored.log.log_end_offset)
    stored.close()
    create_backup(tmp_path / "data", tmp_path / "backup", created_ns=1)
    restore_backup(tmp_path / "backup", tmp_path / "new", now_seconds=1_800_000_000)
    manifest = read_manifest(OsFileSystem(), tmp_path / "new" / "streams" / STREAM)
    assert manifest is not None
    assert (manifest.replicated, manifest.incomplete) == (False, "")
    again = StoredLog(tmp_path / "new")
    assert again.report.clean
    assert again.log.high_watermark == again.log.log_end_offset == 37
    again.close()


@pytest.mark.parametrize("rebuilt", [False, True])
def test_a_replica_that_was_repaired_is_incomplete(rebuilt: bool) -> None:
    fs = SimFileSystem()
    log = create(fs, config=REPLICA)
    log.structure.set_metadata(METADATA)
    for _ in range(12):
        append(log, Promises(), 3)
        log.sync()
    log.commit_up_to(20)
    log.writer.begin_epoch(2)
    image = fs.kill()
    if rebuilt:
        image.replace(DIRECTORY / "manifest", b"gone")
        image.replace(DIRECTORY / "manifest.copy", b"gone")
    else:
        raw = bytearray(image.read(log.segments[0].path))
        raw[70] ^= 1
        image.replace(log.segments[0].path, bytes(raw))
    kept = Path("/data/repaired/orders")
    image.make_directory(kept.parent)
    repair = Repair(DIRECTORY, KnownStates(), METADATA, "boot-1")
    assert repair.run(KeepingFileSystem(image, kept))
    again, report = reopen(image, config=REPLICA)
    assert "repaired" in report.incomplete
    assert again.high_watermark <= 20


def test_an_undamaged_replica_is_not_changed_by_a_repair() -> None:
    """Nor is its tail committed, or its epoch raised."""
    fs = SimFileSystem()
    log = create(fs, config=REPLICA)
    for _ in range(12):
        append(log, Promises(), 3)
        log.sync()
    log.commit_up_to(10)
    log.writer.begin_epoch(2)
    image = fs.kill()
    kept = Path("/data/repaired/orders")
    image.make_directory(kept.parent)
    assert (
        Repair(DIRECTORY, KnownStates(), None, "boot-1").run(KeepingFileSystem(image, kept)) == []
    )
    found = read_manifest(image, DIRECTORY)
    assert found is not None
    assert (found.high_watermark, found.leader_epoch, found.incomplete) == (10, 2, "")


def test_files_are_read_up_to_the_high_watermark(tmp_path: Path) -> None:
    stored = _filled(tmp_path / "data")
    first = stored.log.segments[0].next_offset
    options = parse_options({"path": str(tmp_path / "data"), "stream": STREAM})
    with pytest.raises(InvalidArgument, match="one of several replicas"):
        plan(options)
    for committed in range(1, stored.log.log_end_offset + 1):
        high = stored.log.commit_up_to(committed)
        stored.log.writer.begin_epoch(1 + committed)  # stores the high watermark
        if high < first:
            continue
        found = [
            offset
            for wanted in plan(options)
            for rows in read(options, wanted)
            for offset in rows.column("offset").to_pylist()
        ]
        sealed = [one.next_offset for one in stored.log.segments if one.sealed]
        end = max(one for one in sealed if one <= high)
        assert found == list(range(1, end))
    stored.close()


def test_the_mode_is_in_the_manifest_before_a_segment_is_sealed_in_it(tmp_path: Path) -> None:
    stored = StoredLog(tmp_path / "data")
    stored.append([b"one"])
    assert not stored.log.view.manifest.replicated
    stored.log.config = LogConfig(segment_max_age_ns=None, replicated=True)
    stored.append([b"two"], commit=False)
    stored.log.writer.roll()
    assert stored.log.view.manifest.replicated
    assert stored.log.view.manifest.committed_segments == ()
    assert stored.log.high_watermark == 2
    stored.close()
    for replicated, high in ((True, 2), (False, 3), (True, 3)):
        again = StoredLog(tmp_path / "data", replicated=replicated)
        assert again.report.clean
        assert again.log.view.manifest.replicated is replicated
        assert (again.log.high_watermark, again.log.log_end_offset) == (high, 3)
        again.log.writer.roll()
        again.log.writer.begin_epoch(again.log.leader_epoch + 1)  # stores the high watermark
        again.close()


def test_rot_in_a_replica_is_found_like_any_other(tmp_path: Path) -> None:
    stored = _filled(tmp_path / "data")
    stored.log.commit_up_to(37)
    flip(stored.log.segments[0].path, 70)
    stored.log.quarantine_damage(1, 10)
    assert stored.log.is_quarantined(1, 4)
    state = stored.log.close()
    assert state is not None
    assert state.high_watermark == 37
