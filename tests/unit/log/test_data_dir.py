"""Lock, clean marker, recovery points, deletion: on real files."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
from support.disks.logs import SMALL, FakeClock, Promises, check, commit, environment, read_all
from support.disks.simfs import Fault, SimFileSystem
from support.disks.small_disks import small_disk

from liftlog.errors import CorruptMetadata, DataDirLocked
from liftlog.log import DataDir, Log, LogConfig, OsFileSystem
from liftlog.log.data_dir import (
    CLEAN_NAME,
    make_durable_directory,
    read_states,
    write_states,
)
from liftlog.log.files.checkpoint_file import write_checkpoint_file
from liftlog.log.files.lock import exclusive


@pytest.fixture
def data_dirs(tmp_path: Path) -> Iterator[list[DataDir]]:
    opened: list[DataDir] = []
    yield opened
    for one in opened:
        one.close(None)


def _open(data_dirs: list[DataDir], path: Path) -> DataDir:
    data_dir = DataDir(path, environment(OsFileSystem(), FakeClock()))
    data_dir.open()
    data_dirs.append(data_dir)
    return data_dir


def _create(data_dir: DataDir, name: str = "orders", initial_offset: int = 1) -> Log:
    return data_dir.create_log(name, SMALL, initial_offset=initial_offset, metadata={"a": 1})


def test_a_second_daemon_is_refused_and_told_whom_to_stop(
    tmp_path: Path, data_dirs: list[DataDir]
) -> None:
    first = _open(data_dirs, tmp_path / "d")
    with pytest.raises(DataDirLocked, match=f"process {os.getpid()}"):
        DataDir(tmp_path / "d", environment(OsFileSystem())).open()
    first.close(None)
    _open(data_dirs, tmp_path / "d")


@pytest.mark.parametrize("how", ["deleted", "replaced"])
def test_a_lock_file_that_is_deleted_lets_nobody_in(
    how: str, tmp_path: Path, data_dirs: list[DataDir]
) -> None:
    path = tmp_path / "d"
    first = _open(data_dirs, path)
    (path / "lock").unlink()
    if how == "replaced":
        (path / "lock").touch()
    for _ in range(2):  # the first of them may have made a new file
        with pytest.raises(DataDirLocked):
            DataDir(path, environment(OsFileSystem())).open()
        with pytest.raises(DataDirLocked), exclusive(path):
            pass
        with pytest.raises(DataDirLocked), exclusive(path, read_only=True):
            pass
    first.close(None)
    with exclusive(path, read_only=True):
        pass
    _open(data_dirs, path)


@pytest.mark.parametrize("there", [True, False])
def test_the_lock_is_taken_on_a_full_disk(
    there: bool, tmp_path: Path, data_dirs: list[DataDir]
) -> None:
    with small_disk("tmpfs", tmp_path) as disk:
        path = disk.path / "d"
        _open(data_dirs, path).close(None)
        if not there:
            (path / "lock").unlink()
        disk.fill()
        data_dir = _open(data_dirs, path)
        with pytest.raises(DataDirLocked):
            DataDir(path, environment(OsFileSystem())).open()
        data_dir.close(None)


def test_the_lock_dies_with_its_process(tmp_path: Path, data_dirs: list[DataDir]) -> None:
    program = (
        "import sys, os\n"
        "from pathlib import Path\n"
        "from liftlog.log import *\n"
        "env = LogEnvironment.create(OsFileSystem(), SystemClock())\n"
        "DataDir(Path(sys.argv[1]), env).open()\n"
        "os._exit(3)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "d")], check=False)
    assert done.returncode == 3
    _open(data_dirs, tmp_path / "d")


def test_clean_stop_and_start(tmp_path: Path, data_dirs: list[DataDir]) -> None:
    data_dir = _open(data_dirs, tmp_path / "d")
    promises = Promises()
    log = _create(data_dir)
    for _ in range(9):
        commit(log, promises, 4)
    state = log.close()
    assert state is not None
    data_dir.close({"orders": state})
    assert (tmp_path / "d" / "clean").exists()

    data_dir = _open(data_dirs, tmp_path / "d")
    assert not (tmp_path / "d" / "clean").exists(), "from here on a stop is unclean"
    assert data_dir.stream_names() == ["orders"]
    log, report = data_dir.open_log("orders", SMALL)
    assert report.clean
    assert log.view.manifest.metadata == {"a": 1}
    check(log, promises)
    commit(log, promises, 2)
    data_dir.close(None)

    data_dir = _open(data_dirs, tmp_path / "d")
    log, report = data_dir.open_log("orders", SMALL)
    assert not report.clean
    check(log, promises)
    log.close()


@pytest.mark.parametrize("harm", [b"", b"liftlog clean 1 crc32c=00000000\n{}", b"\xff" * 40])
@pytest.mark.parametrize("name", ["clean", "recovery-points"])
def test_a_damaged_shared_file_only_costs_a_scan(
    tmp_path: Path, data_dirs: list[DataDir], name: str, harm: bytes
) -> None:
    data_dir = _open(data_dirs, tmp_path / "d")
    promises = Promises()
    log = _create(data_dir)
    commit(log, promises, 4)
    data_dir.write_recovery_points({"orders": log.checkpoint()})
    state = log.close()
    assert state is not None
    data_dir.close({"orders": state})
    (tmp_path / "d" / name).write_bytes(harm)
    data_dir = _open(data_dirs, tmp_path / "d")
    log, report = data_dir.open_log("orders", SMALL)
    assert report.clean is (name != "clean")
    check(log, promises)
    log.close()


@pytest.mark.parametrize("name", ["clean", "recovery-points"])
def test_a_dispensable_file_of_another_version_is_dispensable(
    tmp_path: Path, data_dirs: list[DataDir], name: str
) -> None:
    """Either a newer liftlog wrote it, or a bit of the first line, which has no checksum, has
    flipped. The two cases look the same."""
    data_dir = _open(data_dirs, tmp_path / "d")
    promises = Promises()
    log = _create(data_dir)
    commit(log, promises, 4)
    state = log.close()
    assert state is not None
    data_dir.write_recovery_points({"orders": state})
    data_dir.close({"orders": state})
    path = tmp_path / "d" / name
    first, _, body = path.read_bytes().partition(b"\n")
    for bit in range(8 * len(first)):
        spoilt = bytearray(first)
        spoilt[bit // 8] ^= 1 << bit % 8
        path.write_bytes(bytes(spoilt) + b"\n" + body)
        again = _open(data_dirs, tmp_path / "d")
        found, report = again.open_log("orders", LogConfig())
        check(found, promises)
        assert report.clean is (name != "clean")
        state = found.close()
        assert state is not None
        again.close({"orders": state})


@pytest.mark.parametrize("name", ["clean", "recovery-points"])
def test_a_lack_of_descriptors_is_no_reason_to_go_without_them(tmp_path: Path, name: str) -> None:
    fs = SimFileSystem()
    fs.make_directory(Path("/data"))
    write_states(fs, Path("/data"), name, {})
    for error in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
        fs.faults = [Fault("open", path=name, error=error)]
        with pytest.raises(OSError, match="injected"):
            read_states(fs, Path("/data"), name)
    for error in (errno.EACCES, errno.EISDIR, errno.ESTALE, errno.EIO):
        fs.faults = [Fault("open", path=name, error=error)]
        assert read_states(fs, Path("/data"), name) == {}


def test_keys_that_a_newer_version_added_are_ignored(
    tmp_path: Path, data_dirs: list[DataDir]
) -> None:
    data_dir = _open(data_dirs, tmp_path / "d")
    promises = Promises()
    log = _create(data_dir)
    commit(log, promises, 4)
    state = log.close()
    assert state is not None
    data_dir.close({})
    states = {"orders": asdict(state) | {"colour": "blue"}}
    path = tmp_path / "d" / CLEAN_NAME
    write_checkpoint_file(OsFileSystem(), path, CLEAN_NAME, {"streams": states, "colour": "red"})
    data_dir = _open(data_dirs, tmp_path / "d")
    log, report = data_dir.open_log("orders", SMALL)
    assert report.clean
    check(log, promises)
    log.close()


def test_recovery_points_survive_a_kill(tmp_path: Path, data_dirs: list[DataDir]) -> None:
    data_dir = _open(data_dirs, tmp_path / "d")
    promises = Promises()
    log = _create(data_dir)
    commit(log, promises, 4)
    state = log.checkpoint()
    data_dir.write_recovery_points({"orders": state})
    data_dir.write_recovery_points({"other": state})
    commit(log, promises, 1)
    data_dir.close(None)
    data_dir = _open(data_dirs, tmp_path / "d")
    log, report = data_dir.open_log("orders", SMALL)
    assert 0 < report.scanned_bytes < state.position
    check(log, promises)
    log.close()


def test_a_stream_that_was_created_anew_is_another_stream(
    tmp_path: Path, data_dirs: list[DataDir]
) -> None:
    data_dir = _open(data_dirs, tmp_path / "d")
    promises = Promises()
    log = _create(data_dir)
    for _ in range(20):
        commit(log, promises, 5)
    read_all(log)
    data_dir.write_recovery_points({"orders": log.checkpoint()})
    old = log.incarnation
    log.close()
    data_dir.delete_log("orders")
    assert data_dir.stream_names() == []
    assert list((tmp_path / "d" / "streams").iterdir()) == []

    promises = Promises()
    log = _create(data_dir)
    assert log.incarnation != old
    commit(log, promises, 2)
    assert check(log, promises).keys() == {1, 2}
    data_dir.close(None)
    data_dir = _open(data_dirs, tmp_path / "d")
    log, _ = data_dir.open_log("orders", SMALL)
    assert check(log, promises).keys() == {1, 2}
    assert log.log_end_offset == 3
    log.close()


def test_readers_keep_a_deleted_stream_until_they_let_go(
    tmp_path: Path, data_dirs: list[DataDir]
) -> None:
    data_dir = _open(data_dirs, tmp_path / "d")
    promises = Promises()
    log = _create(data_dir)
    commit(log, promises, 5)
    piece = log.read(1, 10_000)
    assert piece is not None
    log.close()
    data_dir.delete_log("orders")
    assert len(piece.pread()) == piece.length
    descriptor = piece.fd
    piece.release()
    piece.release()
    with pytest.raises(OSError):
        os.fstat(descriptor)


def test_what_an_interrupted_creation_or_deletion_left_is_removed(
    tmp_path: Path, data_dirs: list[DataDir]
) -> None:
    data_dir = _open(data_dirs, tmp_path / "d")
    streams = tmp_path / "d" / "streams"
    for name in ("unfinished", ".deleted-old", "empty"):
        (streams / name).mkdir()
    for name in ("unfinished", ".deleted-old"):
        (streams / name / "00000000000000000001.log").touch()
    (streams / "unfinished" / "manifest.tmp").write_bytes(b"half")
    (streams / ".deleted-old" / "manifest").write_bytes(b"x")
    assert data_dir.stream_names() == []
    assert list(streams.iterdir()) == []


def test_a_directory_that_somebody_made_is_not_taken_for_an_unfinished_creation(
    tmp_path: Path, data_dirs: list[DataDir]
) -> None:
    data_dir = _open(data_dirs, tmp_path / "d")
    kept = tmp_path / "d" / "streams" / "old" / "orders.tar.gz"
    kept.parent.mkdir()
    kept.write_bytes(b"kept by hand")
    assert data_dir.stream_names() == ["old"]
    with pytest.raises(CorruptMetadata, match="no manifest"):
        data_dir.open_log("old", SMALL)
    assert kept.read_bytes() == b"kept by hand"


def test_what_cannot_be_removed_does_not_keep_the_others_from_opening(
    tmp_path: Path, data_dirs: list[DataDir]
) -> None:
    data_dir = _open(data_dirs, tmp_path / "d")
    _create(data_dir).close()
    streams = tmp_path / "d" / "streams"
    (streams / ".deleted-old" / "folder").mkdir(parents=True)
    (streams / ".deleted-file").touch()
    assert data_dir.stream_names() == ["orders"]
    assert (streams / ".deleted-old" / "folder").is_dir()


def test_a_deletion_that_failed_does_not_block_the_next(
    tmp_path: Path, data_dirs: list[DataDir]
) -> None:
    data_dir = _open(data_dirs, tmp_path / "d")
    leftover = tmp_path / "d" / "streams" / ".deleted-orders"
    leftover.mkdir()
    (leftover / "manifest").write_bytes(b"x")
    _create(data_dir).close()
    data_dir.delete_log("orders")
    assert list(leftover.parent.iterdir()) == []


@pytest.mark.parametrize("left", ["log", "slot"])
def test_data_without_a_manifest_is_left_alone(
    tmp_path: Path, data_dirs: list[DataDir], left: str
) -> None:
    data_dir = _open(data_dirs, tmp_path / "d")
    log = _create(data_dir)
    if left == "log":
        commit(log, Promises(), 1)
    log.close()
    directory = tmp_path / "d" / "streams" / "orders"
    (directory / "manifest").unlink()
    (directory / "manifest.copy").unlink()
    if left == "log":
        (directory / "acked").unlink()
    names = sorted(path.name for path in directory.iterdir())
    assert data_dir.stream_names() == ["orders"]
    with pytest.raises(CorruptMetadata, match="no manifest"):
        data_dir.open_log("orders", SMALL)
    assert sorted(path.name for path in directory.iterdir()) == names


def test_strangers_among_the_streams_are_ignored(tmp_path: Path, data_dirs: list[DataDir]) -> None:
    data_dir = _open(data_dirs, tmp_path / "d")
    streams = tmp_path / "d" / "streams"
    (streams / "lost+found").mkdir()
    (streams / ".swp").write_bytes(b"")
    (streams / "file").write_bytes(b"")
    assert data_dir.stream_names() == ["file"]
    with pytest.raises(CorruptMetadata):
        data_dir.open_log("file", SMALL)
    assert (streams / "lost+found").exists()


def test_a_new_data_directory_survives_a_power_cut() -> None:
    fs = SimFileSystem()
    make_durable_directory(fs, Path("/srv/liftlog/data/streams"))
    assert fs.power_cut("none").exists(Path("/srv/liftlog/data/streams"))
    make_durable_directory(fs, Path("/srv/liftlog/data/streams"))
