"""A source, or a backup, with pages that its disk does not give: told by name, and not fatal where
it need not be."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.disks.logs import DIRECTORY, Promises, commit, create, reopen
from support.disks.simfs import SimFileSystem

from liftlog.errors import CorruptMetadata, CorruptRange
from liftlog.log import Log, LogConfig
from liftlog.log.backup import create_backup, restore_backup, verify_backup
from liftlog.log.data_dir import CLEAN_NAME, read_states
from liftlog.log.segment.index import index_path

CONFIG = LogConfig(segment_max_bytes=1 << 20, segment_max_age_ns=None)
BACKUP, NEW = Path("/backup"), Path("/new")


def source() -> tuple[SimFileSystem, Log, Promises]:
    """A sealed and an active segment of three pages and more, each record in a batch of its own."""
    fs, promises = SimFileSystem(), Promises()
    log = create(fs, config=CONFIG)
    for number in range(200):
        commit(log, promises, 1)
        if number == 99:
            log.writer.roll()
    assert all(segment.size_bytes > 3 * 4096 for segment in log.segments)
    return fs, log, promises


def lost_of(log: Log) -> set[int]:
    found, offset = set(), log.log_start_offset
    while offset < log.high_watermark:
        try:
            piece = log.read(offset, 1)
        except CorruptRange as told:
            found |= set(range(told.first_offset, told.next_offset))
            offset = told.next_offset
            continue
        assert piece is not None
        with piece:
            piece.pread()
            offset = piece.next_offset
    return found


def test_what_the_source_does_not_give_is_told_and_the_rest_is_there() -> None:
    fs, log, promises = source()
    sealed, active = (segment.path for segment in log.segments)
    fs.lose_page(sealed, 4096)
    fs.lose_page(active, 2 * 4096)
    fs.lose_page(index_path(sealed), 0)
    backup = create_backup(
        Path("/data"), BACKUP, created_ns=1, source_fs=fs, target_fs=fs, boot_id="boot-1"
    )
    [stream] = backup.streams
    for name, position in ((sealed.name, 4096), (active.name, 8192)):
        assert name in {file.name for file in stream.files}
        assert any(f"cannot read the 4,096 bytes at {position}" in text for text in stream.damaged)
    assert index_path(sealed).name not in {file.name for file in stream.files}
    assert verify_backup(BACKUP, fs=fs) == (backup, [])
    restore_backup(BACKUP, NEW, now_seconds=1_800_000_000, fs=fs)
    directory = NEW / "streams" / DIRECTORY.name
    clean = read_states(fs, NEW, CLEAN_NAME)[DIRECTORY.name]
    copy, report = reopen(fs, clean=clean, directory=directory, config=CONFIG)
    assert report.clean
    lost = lost_of(copy)
    assert 20 < len(lost) < 120
    assert all(copy.is_quarantined(offset, offset + 1) for offset in lost)
    for segment in log.segments:
        log.quarantine_damage(segment.base_offset, segment.next_offset)
    assert lost == {o for o in promises.acked if log.is_quarantined(o, o + 1)}


def test_a_backup_that_cannot_be_read_is_refused_by_name() -> None:
    fs, log, _ = source()
    create_backup(Path("/data"), BACKUP, created_ns=1, source_fs=fs, target_fs=fs, boot_id="boot-1")
    path = BACKUP / "streams" / DIRECTORY.name / log.segments[0].path.name
    fs.lose_page(path, 4096)
    [found] = verify_backup(BACKUP, fs=fs)[1]
    assert found.file == path.name
    assert found.problem.startswith("it cannot be read from the disk: ")
    with pytest.raises(CorruptMetadata, match=f"{path.name} of stream orders cannot be read from"):
        restore_backup(BACKUP, NEW, now_seconds=1_800_000_000, fs=fs)
