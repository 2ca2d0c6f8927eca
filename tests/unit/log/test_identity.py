"""A data directory is distinguished from its copies, and recognised after all other changes."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from liftlog.log import DataDir, LogEnvironment, OsFileSystem, SystemClock
from liftlog.log.files.identity import DirectoryIdentity, Witness

LAST_START = 7


def opened(path: Path) -> tuple[DataDir, DirectoryIdentity]:
    data_dir = DataDir(path, LogEnvironment.create(OsFileSystem(), SystemClock()))
    data_dir.open()
    return data_dir, data_dir.identity()


def used(path: Path) -> object:
    """Return the directory of a killed node, and the properties that its start has stored."""
    data_dir, identity = opened(path)
    data_dir.start = LAST_START
    data_dir.close(None)
    assert identity.taken is not None
    return identity.taken._asdict()


def is_copy(path: Path, last: object) -> bool:
    data_dir, identity = opened(path)
    data_dir.close({})  # as a start that fails
    return identity.is_copy(LAST_START, last)


def has_birth_times(path: Path) -> bool:
    witness = Witness.of(path, 0)
    return witness is not None and witness.born_ns > 0


def test_the_birth_of_a_directory_is_known_and_never_changes(tmp_path: Path) -> None:
    if not has_birth_times(tmp_path):
        pytest.skip("the file system of the temporary directory keeps no birth times")
    path = tmp_path / "streams"
    before_ns = time.time_ns()
    path.mkdir()
    first = Witness.of(path, 0)
    assert first is not None
    assert abs(first.born_ns - before_ns) < 1_000_000_000
    (path / "more").mkdir()
    path.chmod(0o700)
    os.utime(path, (1, 1))
    assert Witness.of(path, 0) == first
    assert Witness.of(tmp_path / "none", 0) is None


@pytest.mark.parametrize("change", ["nothing", "failed starts", "owner", "lock deleted", "moved"])
def test_a_directory_is_known_again(tmp_path: Path, change: str) -> None:
    path = tmp_path / "data"
    last = used(path)
    if change == "failed starts":
        for _ in range(3):
            assert not is_copy(path, last)
    elif change == "owner":  # a mount may change that of every file
        for one in (path, *path.rglob("*")):
            os.chown(one, os.getuid(), os.getgid())
            one.chmod(0o750)
    elif change == "lock deleted":
        (path / "lock").unlink()
    elif change == "moved":
        path = path.rename(tmp_path / "elsewhere")
    assert not is_copy(path, last)


@pytest.mark.parametrize("part", ["", "streams"])
def test_a_copy_is_one_however_often_it_is_started(tmp_path: Path, part: str) -> None:
    """Also if only the directory of streams was replaced by a copy."""
    path, copy = tmp_path / "data", tmp_path / "copy"
    last = used(path)
    shutil.copytree(path / part, copy)
    if part:
        (path / part).rename(tmp_path / "aside")
        copy.rename(path / part)
        copy = path
    for _ in range(3):
        assert is_copy(copy, last)


def test_a_copy_of_what_was_closed_in_order_has_all(tmp_path: Path) -> None:
    path, copy = tmp_path / "data", tmp_path / "copy"
    last = used(path)
    data_dir, _ = opened(path)
    data_dir.start = LAST_START
    data_dir.close({})
    shutil.copytree(path, copy)
    for _ in range(2):  # a start that fails leaves it as closed as it was
        assert not is_copy(copy, last)
    data_dir, identity = opened(copy)
    assert identity.is_copy(LAST_START + 1, last), "the node has started since, and not from here"
    data_dir.close(None)
    assert is_copy(copy, last), "the marker is gone"


@pytest.mark.parametrize("change", ["inode", "lock_changed_ns"])
def test_without_birth_times_one_of_the_others_is_enough(change: str) -> None:
    last = Witness(0, 2, 3)
    assert not last._replace(**{change: 9}).is_of_another(last)
    assert not last._replace(**{change: 9}).is_of_another(last._replace(born_ns=1))
    assert last._replace(inode=9, lock_changed_ns=9).is_of_another(last)


def test_what_an_older_version_has_stored_is_no_evidence(tmp_path: Path) -> None:
    used(tmp_path)
    for last in (None, [1, 2, 3, 4], {}, {"born_ns": "1", "inode": 2, "lock_changed_ns": 3}):
        assert not is_copy(tmp_path, last)
