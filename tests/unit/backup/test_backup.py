"""A backup holds what was acked, whatever the daemon does meanwhile; restored, it opens clean."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support.disks.logs import DIRECTORY, environment, read_all
from support.disks.simfs import Keep, MachineStopped, SimFileSystem
from support.disks.stored_logs import STREAM, StoredLog, flip

from liftlog.errors import (
    CorruptMetadata,
    InvalidArgument,
    LiftlogError,
    StreamUnavailable,
)
from liftlog.log import LogConfig, OsFileSystem
from liftlog.log.backup import (
    Backup,
    add_to_data_dir,
    create_backup,
    read_backup,
    restore_backup,
    verify_backup,
)
from liftlog.log.data_dir import (
    CLEAN_NAME,
    RESTORING_NAME,
    make_durable_directory,
    read_states,
    refuse_unfit,
    write_states,
)
from liftlog.log.files.checkpoint_file import read_checkpoint_file
from liftlog.log.files.filesystem import ReadOnlyFileSystem
from liftlog.log.files.manifest import read_manifest
from liftlog.log.recovery.opening import open_log
from liftlog.log.rewrite import ScrubJob, scrub
from liftlog.log.segment.tail import ActiveState

NOW_SECONDS = 1_800_000_000
KEEPS: list[Keep] = ["none", "some", "all", "last"]
NUMBERS = itertools.count()


def filled(data_dir: Path, batches: int = 12) -> StoredLog:
    """Three records of 300 bytes in a batch; a segment holds about three batches."""
    stored = StoredLog(data_dir, segment_max_bytes=3000)
    more(stored, batches)
    return stored


def more(stored: StoredLog, batches: int) -> None:
    for _ in range(batches):
        stored.append([b"%d " % next(NUMBERS) + b"x" * 300 for _ in range(3)])


def back_up(data_dir: Path, target: Path, **options: object) -> Backup:
    return create_backup(data_dir, target, created_ns=1, **options)  # type: ignore[arg-type]


def restored(backup: Path, data_dir: Path) -> StoredLog:
    restore_backup(backup, data_dir, now_seconds=NOW_SECONDS)
    return StoredLog(data_dir, segment_max_bytes=3000)


def test_of_a_log_that_is_in_use(tmp_path: Path) -> None:
    stored = filled(tmp_path / "data")
    expected = read_all(stored.log)
    stored.append([b"written, and not acked"], commit=False)
    found = back_up(tmp_path / "data", tmp_path / "backup")
    assert [(one.name, one.end_offset, one.damaged) for one in found.streams] == [(STREAM, 37, ())]
    assert read_backup(OsFileSystem(), tmp_path / "backup") == found
    assert verify_backup(tmp_path / "backup") == (found, [])
    more(stored, 3)
    stored.close()

    copy = restored(tmp_path / "backup", tmp_path / "new")
    assert copy.report.clean
    assert read_all(copy.log) == expected
    assert copy.log.incarnation == stored.log.incarnation
    assert not copy.log.view.manifest.quarantined
    more(copy, 2)
    assert copy.log.log_end_offset == 43
    copy.crash()
    again = StoredLog(tmp_path / "new")
    assert set(read_all(again.log)) == set(range(1, 43))
    again.close()


@pytest.mark.parametrize("end", ["close", "crash"])
def test_of_a_log_that_nobody_uses(tmp_path: Path, end: str) -> None:
    stored = filled(tmp_path / "data")
    expected = read_all(stored.log)
    getattr(stored, end)()
    # After a reboot only the clean marker knows.
    boot = "another boot" if end == "close" else None
    back_up(tmp_path / "data", tmp_path / "backup", boot_id=boot)
    copy = restored(tmp_path / "backup", tmp_path / "new")
    assert read_all(copy.log) == expected
    copy.close()


def test_after_a_power_cut_somebody_has_to_judge_the_tail_first(tmp_path: Path) -> None:
    filled(tmp_path / "data").crash()
    with pytest.raises(StreamUnavailable, match="since the machine was restarted"):
        back_up(tmp_path / "data", tmp_path / "backup", boot_id="another boot")
    with pytest.raises(CorruptMetadata, match="not finished"):
        read_backup(OsFileSystem(), tmp_path / "backup")


def test_an_empty_log(tmp_path: Path) -> None:
    stored = StoredLog(tmp_path / "data")
    back_up(tmp_path / "data", tmp_path / "backup")
    stored.close()
    copy = restored(tmp_path / "backup", tmp_path / "new")
    assert (copy.report.clean, copy.log.log_end_offset) == (True, 1)
    more(copy, 1)
    assert set(read_all(copy.log)) == {1, 2, 3}
    copy.close()


def test_whoever_read_beyond_the_backup_is_told(tmp_path: Path) -> None:
    """The epochs of the life that is given up end where the backup does."""
    stored = filled(tmp_path / "data")
    old_epoch = stored.log.leader_epoch
    back_up(tmp_path / "data", tmp_path / "backup")
    more(stored, 2)
    stored.crash()
    later = StoredLog(tmp_path / "data")  # an unclean start: another epoch, past the backup
    newer_epoch = later.log.leader_epoch
    more(later, 2)
    later.close()
    first = restored(tmp_path / "backup", tmp_path / "first")
    more(first, 9)
    first.close()
    restore_backup(tmp_path / "backup", tmp_path / "second", now_seconds=NOW_SECONDS + 1)
    second = StoredLog(tmp_path / "second")
    more(second, 20)
    assert old_epoch < newer_epoch < first.log.leader_epoch < second.log.leader_epoch
    for epoch in (old_epoch, newer_epoch, first.log.leader_epoch):
        assert second.log.epoch_end(epoch) == 37
    assert second.log.epoch_end(second.log.leader_epoch) == 97
    second.close()


def test_no_file_name_comes_twice(tmp_path: Path) -> None:
    stored = filled(tmp_path / "data")
    back_up(tmp_path / "data", tmp_path / "backup")
    more(stored, 9)
    stored.close()
    copy = restored(tmp_path / "backup", tmp_path / "new")
    begun = {segment.path.name for segment in copy.log.segments}
    more(copy, 9)
    fresh = {segment.path.name for segment in copy.log.segments} - begun
    assert fresh
    assert not fresh & {segment.path.name for segment in stored.log.segments}
    copy.close()


# --- beside a daemon that goes on ---


class Meddling(ReadOnlyFileSystem):
    """Does something once, just before a file whose name ends so is opened."""

    def __init__(self, suffix: str, act: Callable[[], None], skip: int = 0) -> None:
        self.suffix, self.act, self.skip, self.done = suffix, act, skip, False

    def open(self, path: Path, *, create: bool = False, writable: bool = True):  # type: ignore[no-untyped-def]
        if path.name.endswith(self.suffix) and not self.done:
            self.skip -= 1
            if self.skip < 0:
                self.done = True
                self.act()
        return super().open(path, create=create, writable=writable)


def drop_oldest(stored: StoredLog) -> None:
    log = stored.log
    log.structure.remove_before(log.segments[2].base_offset, 2)


def roll_and_go_on(stored: StoredLog) -> None:
    stored.log.writer.roll()
    more(stored, 5)


def delete_everything_so_far(stored: StoredLog) -> None:
    stored.log.writer.roll()
    more(stored, 1)
    stored.log.writer.roll()
    stored.log.structure.remove_before(stored.log.log_end_offset, len(stored.log.segments))


@pytest.mark.parametrize("act", [drop_oldest, roll_and_go_on, delete_everything_so_far])
@pytest.mark.parametrize(
    ("suffix", "skip"),
    [("manifest", 0), ("manifest", 1), ("manifest", 2), ("manifest", 3)]
    + [(suffix, skip) for suffix in (".log", ".index") for skip in (0, 2, 3, 4)],
)
def test_whatever_the_daemon_does_meanwhile(
    tmp_path: Path, act: Callable[[StoredLog], None], suffix: str, skip: int
) -> None:
    stored = filled(tmp_path / "data")
    acked = stored.log.high_watermark
    before = read_all(stored.log)
    fs = Meddling(suffix, lambda: act(stored), skip)
    found = back_up(tmp_path / "data", tmp_path / "backup", source_fs=fs)
    assert fs.done
    after = before | read_all(stored.log)
    stored.close()
    (one,) = found.streams
    assert not one.damaged
    assert one.end_offset >= acked  # what was acked when it began is in it
    manifest = read_manifest(OsFileSystem(), tmp_path / "backup/streams" / STREAM)
    assert manifest is not None
    listed = {segment.file_name for segment in manifest.segments}
    assert {path.name for path in (tmp_path / "backup").rglob("*.log")} == listed
    copy = restored(tmp_path / "backup", tmp_path / "new")
    assert copy.report.clean
    expected = {
        offset: value
        for offset, value in after.items()
        if one.log_start_offset <= offset < one.end_offset
    }
    assert read_all(copy.log) == expected
    copy.close()


def test_a_stream_that_is_deleted_or_made_anew_meanwhile(tmp_path: Path) -> None:
    def delete() -> None:
        stored.close()
        stored.delete()

    stored = filled(tmp_path / "data")
    fs = Meddling(".log", delete, 1)
    found = back_up(tmp_path / "data", tmp_path / "gone", source_fs=fs)
    assert (fs.done, found.streams) == (True, ())
    assert not list((tmp_path / "gone" / "streams").iterdir())

    def make_anew() -> None:
        delete()
        fresh.append(filled(tmp_path / "data", 7))

    stored, fresh = filled(tmp_path / "data"), []  # type: ignore[var-annotated]
    back_up(tmp_path / "data", tmp_path / "backup", source_fs=Meddling(".log", make_anew, 1))
    expected = read_all(fresh[0].log)
    fresh[0].close()
    copy = restored(tmp_path / "backup", tmp_path / "new")
    assert copy.log.incarnation == fresh[0].log.incarnation
    assert read_all(copy.log) == expected
    copy.close()


# --- a source that is damaged ---


def test_what_the_source_lacks_is_told_and_stays_told(tmp_path: Path) -> None:
    stored = filled(tmp_path / "data")
    first, *_, last = stored.log.segments
    acked = stored.log.high_watermark
    stored.close()
    first.path.unlink()
    last.path.write_bytes(last.path.read_bytes()[:100])
    found = back_up(tmp_path / "data", tmp_path / "backup")
    (one,) = found.streams
    assert one.end_offset == acked
    assert len(one.damaged) == 2
    assert first.path.name in one.damaged[0]
    assert f"offsets {last.base_offset} to {acked - 1}" in one.damaged[1]
    assert verify_backup(tmp_path / "backup")[1] == []
    copy = restored(tmp_path / "backup", tmp_path / "new")
    assert copy.log.log_end_offset == acked
    lost = {(bad.first_offset, bad.next_offset) for bad in copy.log.view.manifest.quarantined}
    assert lost == {(first.base_offset, first.next_offset), (last.base_offset, acked)}
    kept = read_all(copy.log)
    assert set(kept) == set(range(first.next_offset, last.base_offset))
    more(copy, 1)
    assert set(read_all(copy.log)) == set(kept) | set(range(acked, acked + 3))
    copy.close()


def test_damage_in_the_active_segment_costs_one_batch_under_load_too(tmp_path: Path) -> None:
    stored = StoredLog(tmp_path / "data")
    more(stored, 4)
    stored.append([b"being written"], commit=False)
    position, header = stored.positions()[1]
    flip(stored.log.segments[0].path, position + 9)
    (one,) = back_up(tmp_path / "data", tmp_path / "backup").streams
    gone = range(header.base_offset, header.next_offset)
    assert one.damaged == (f"offsets {gone.start} to {gone.stop - 1} are damaged",)
    stored.crash()
    copy = restored(tmp_path / "backup", tmp_path / "new")
    assert set(read_all(copy.log)) == set(range(1, 13)) - set(gone)
    copy.close()


@pytest.mark.parametrize("number", [0, -1])
def test_what_was_known_to_be_lost_is_told_again(tmp_path: Path, number: int) -> None:
    stored = filled(tmp_path / "data")
    segment = stored.log.segments[number]
    path, (first, last) = segment.path, (segment.base_offset, segment.base_offset + 2)
    flip(path, 9)
    if segment.sealed:
        job = ScrubJob(str(stored.directory), segment.entry(), ())
        stored.log.structure.quarantine(path.name, scrub(job, OsFileSystem()).damaged)
        stored.close()
    else:
        stored.crash()
        stored = StoredLog(tmp_path / "data")
        stored.close()
    assert [one.first_offset for one in stored.log.view.manifest.quarantined] == [first]
    (one,) = back_up(tmp_path / "data", tmp_path / "backup").streams
    assert len(one.damaged) == 1
    assert f"offsets {first} to {last} are lost" in one.damaged[0]
    copy = restored(tmp_path / "backup", tmp_path / "new")
    assert [(bad.first_offset, bad.next_offset) for bad in copy.log.view.manifest.quarantined] == [
        (first, last + 1)
    ]
    copy.log.structure.remove_before(last + 1, 0)
    copy.close()
    # What retention has passed is no loss of the backup.
    (one,) = back_up(tmp_path / "new", tmp_path / "again").streams
    assert one.damaged == ()


# --- a backup that is damaged ---


@pytest.fixture(scope="module")
def backup(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("backup")
    stored = filled(place / "data", 4)
    back_up(place / "data", place / "backup")
    stored.close()
    return place / "backup"


def files_of(backup: Path) -> list[Path]:
    return sorted(path for path in backup.rglob("*") if path.is_file())


def test_any_damaged_file_is_found_and_refused(backup: Path, tmp_path: Path) -> None:
    for number, path in enumerate(files_of(backup)):
        original = path.read_bytes()
        changes = [original + b"x"]
        if original:
            middle = len(original) // 2
            changes += [original[:-1], original[:middle] + b"\0\1" + original[middle + 2 :]]
        for kind, content in enumerate([*changes, None]):
            if content is None:
                path.unlink()
            else:
                path.write_bytes(content)
            target = tmp_path / f"{number}-{kind}"
            try:
                with pytest.raises(CorruptMetadata):
                    restore_backup(backup, target, now_seconds=NOW_SECONDS)
                if path.name == "backup":
                    with pytest.raises(CorruptMetadata):
                        verify_backup(backup)
                else:
                    assert [one.file for one in verify_backup(backup)[1]] == [path.name]
                    with pytest.raises(CorruptMetadata, match="not all of it is there"):
                        refuse_unfit(OsFileSystem(), target)
            finally:
                path.write_bytes(original)
    assert verify_backup(backup)[1] == []


def test_every_bit_of_its_manifest_counts(backup: Path) -> None:
    path = backup / "backup"
    original = path.read_bytes()
    for position in range(0, len(original), 5):
        flip(path, position)
        try:
            with pytest.raises(LiftlogError):
                read_backup(OsFileSystem(), backup)
        finally:
            path.write_bytes(original)


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "../../etc"},
        {"name": "/etc"},
        {"name": ""},
        {"files": ("../manifest",)},
        {"files": ("passwd",)},
        {"files": ("/tmp/x.log",)},
    ],
)
def test_names_that_lead_elsewhere(backup: Path, tmp_path: Path, changes: dict) -> None:  # type: ignore[type-arg]
    """A forged manifest with a correct checksum."""
    real = read_backup(OsFileSystem(), backup)
    stream = real.streams[0]
    if "files" in changes:
        changes = {"files": (replace(stream.files[0], name=changes["files"][0]),)}
    made_up = replace(real, streams=(replace(stream, **changes),))
    made_up.write(OsFileSystem(), tmp_path)
    with pytest.raises(CorruptMetadata, match="is not the name"):
        restore_backup(tmp_path, tmp_path / "new", now_seconds=NOW_SECONDS)
    assert not (tmp_path / "new").exists()


def test_neither_overwrites_anything(backup: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    with pytest.raises(InvalidArgument, match="not empty: it holds mine"):
        restore_backup(backup, tmp_path, now_seconds=NOW_SECONDS)
    with pytest.raises(InvalidArgument, match="not empty"):
        back_up(tmp_path / "data", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_daemon_does_not_open_a_backup(backup: Path) -> None:
    before = files_of(backup)
    with pytest.raises(CorruptMetadata, match="is a backup"):
        StoredLog(backup)
    assert files_of(backup) == before


def test_backups_may_lie_in_a_folder_of_the_data_directory(tmp_path: Path) -> None:
    stored = filled(tmp_path / "data")
    back_up(tmp_path / "data", tmp_path / "data" / "backup" / "today")
    stored.close()
    StoredLog(tmp_path / "data").close()
    with pytest.raises(CorruptMetadata, match="is a backup"):
        StoredLog(tmp_path / "data" / "backup" / "today")


# --- the machine stops ---


def test_a_stop_at_any_moment_of_create(tmp_path: Path) -> None:
    stored = filled(tmp_path / "data", 4)

    def run(stop_at: int | None) -> SimFileSystem:
        fs = SimFileSystem()
        fs.stop_at = stop_at
        try:
            back_up(tmp_path / "data", Path("/backup"), target_fs=fs)
        except MachineStopped:
            pass
        return fs

    operations = run(None).operations
    finished = 0
    for stop_at in range(operations + 1):
        fs = run(stop_at)
        for image in [*(fs.power_cut(keep, stop_at) for keep in KEEPS), fs.kill()]:
            try:
                found, problems = verify_backup(Path("/backup"), fs=image)
            except CorruptMetadata:
                assert stop_at < operations
                continue
            finished += 1
            assert (problems, found.streams[0].end_offset) == ([], 13)
            assert stop_at >= operations - 2  # renamed: the rest is its directory
    assert finished >= len(KEEPS) + 1
    stored.close()


def test_a_stop_at_any_moment_of_restore(backup: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "liftlog.log")

    def run(fs: SimFileSystem, stop_at: int | None) -> SimFileSystem:
        fs.stop_at = stop_at
        try:
            restore_backup(
                backup, Path("/data"), now_seconds=NOW_SECONDS, fs=fs, backup_fs=OsFileSystem()
            )
        except MachineStopped:
            pass
        return fs

    operations = run(SimFileSystem(), None).operations
    finished, refused = 0, 0
    for stop_at in range(operations + 1):
        fs = run(SimFileSystem(), stop_at)
        for image in [*(fs.power_cut(keep, stop_at) for keep in KEEPS), fs.kill()]:
            try:
                refuse_unfit(image, Path("/data"))
            except CorruptMetadata:
                refused += 1
                assert stop_at < operations
                _check_restored(run(image.power_cut("all"), None))  # again, over what is there
                continue
            if image.exists(DIRECTORY):
                finished += 1
                _check_restored(image)
            else:  # it had hardly begun: an empty directory
                assert not image.exists(Path("/data/streams")) or not image.list_directory(
                    Path("/data/streams")
                )
                assert stop_at < operations
    assert finished >= len(KEEPS) + 1
    assert refused > operations


def _check_restored(fs: SimFileSystem) -> None:
    assert not fs.exists(Path("/data") / RESTORING_NAME)
    content = read_checkpoint_file(fs, Path("/data") / CLEAN_NAME, CLEAN_NAME)
    assert content is not None
    clean = ActiveState(**content["streams"][STREAM])
    log, report = open_log(DIRECTORY, environment(fs), LogConfig(), clean=clean)
    assert report.clean
    assert set(read_all(log)) == set(range(1, 13))
    assert log.leader_epoch == NOW_SECONDS
    manifest = read_manifest(fs, DIRECTORY)
    assert manifest is not None
    assert manifest.epochs[-1] == (NOW_SECONDS, 13)


# --- added to a data directory ---


def test_a_stop_at_any_moment_of_adding_a_stream(tmp_path: Path) -> None:
    """Afterwards the stream is there as a whole, or not at all, and the others are as they were."""
    stored = filled(tmp_path / "data", 4)
    stored.close()
    back_up(tmp_path / "data", tmp_path / "backup")

    def run(stop_at: int | None) -> SimFileSystem:
        fs = SimFileSystem()
        make_durable_directory(fs, Path("/data/streams"))
        write_states(fs, Path("/data"), CLEAN_NAME, {"other": OTHER})
        before = fs.operations
        fs.stop_at = None if stop_at is None else before + stop_at
        try:
            add_to_data_dir(
                tmp_path / "backup",
                Path("/data"),
                now_seconds=NOW_SECONDS,
                streams=frozenset({STREAM}),
                fs=fs,
                backup_fs=OsFileSystem(),
            )
        except MachineStopped:
            pass
        fs.stop_at = None
        return fs

    there = absent = 0
    for stop_at in range(run(None).operations + 1):
        fs = run(stop_at)
        for image in [*(fs.power_cut(keep, stop_at) for keep in KEEPS), fs.kill()]:
            states = read_states(image, Path("/data"), CLEAN_NAME)
            assert states["other"] == OTHER
            if image.exists(DIRECTORY):
                there += 1
                _check_restored(image)
            else:
                absent += 1
                left = image.list_directory(Path("/data/streams"))
                assert set(left) <= {f".deleted-{STREAM}"}, "the next start removes it"
    assert there > 0
    assert absent > 0


OTHER = ActiveState.empty("c0ffee", 1, 0)


def test_nothing_is_added_over_another_stream(backup: Path, tmp_path: Path) -> None:
    wanted = frozenset({STREAM})
    with pytest.raises(InvalidArgument, match="not a data directory"):
        add_to_data_dir(backup, tmp_path / "none", now_seconds=1, streams=wanted)
    stored = filled(tmp_path / "mine", 1)
    stored.close()
    before = files_of(tmp_path / "mine")
    with pytest.raises(InvalidArgument, match=f"has a stream {STREAM} already"):
        add_to_data_dir(backup, tmp_path / "mine", now_seconds=1, streams=wanted)
    assert files_of(tmp_path / "mine") == before


@pytest.mark.timeout(60)
def test_a_pipe_in_the_place_of_a_file(tmp_path: Path) -> None:
    """It is damage, and nobody waits for its other end."""
    data_dir, backup = tmp_path / "data", tmp_path / "backup"
    filled(data_dir).log.close()
    back_up(data_dir, backup)
    segment = next((backup / "streams").rglob("*.log"))
    segment.unlink()
    os.mkfifo(segment)
    with pytest.raises(OSError, match="not a regular file"):
        restored(backup, tmp_path / "restored")
    [finding] = verify_backup(backup)[1]
    assert (finding.file, "not a regular file" in finding.problem) == (segment.name, True)
