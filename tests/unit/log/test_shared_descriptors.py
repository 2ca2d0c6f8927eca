"""Files that share descriptors: which ones are closed, when, and that callers do not notice it."""

from __future__ import annotations

import errno
import logging
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from support.disks.simfs import SimFile
from support.worlds.crash_scenarios import SCENARIOS, Scenario
from unit.log import test_crash_points as crash_points

from liftlog.log import LogEnvironment
from liftlog.log.files.acked_end import ACKED_END_NAME
from liftlog.log.files.filesystem import File, OsFile, OsFileSystem
from liftlog.log.files.shared_descriptors import SharedDescriptors


@pytest.fixture
def shared() -> SharedDescriptors:
    return SharedDescriptors(OsFileSystem(), 4, unsynced=("acked",))


def with_descriptors(files: list[File]) -> list[int]:
    return [number for number, one in enumerate(files) if one.has_descriptor]  # type: ignore[attr-defined]


def test_hundreds_of_files_have_four_descriptors(shared: SharedDescriptors, tmp_path: Path) -> None:
    files = [shared.open(tmp_path / f"{number}", create=True) for number in range(300)]
    for round_number in range(3):
        for number, file in enumerate(files):
            file.pwritev([b"%6d" % number], 6 * round_number)
            file.fdatasync()
            assert shared.descriptors <= 4
    for number, file in enumerate(files):
        assert file.pread(100, 0) == b"%6d" % number * 3
        assert file.size() == 18
        assert (tmp_path / f"{number}").read_bytes() == b"%6d" % number * 3
        file.close()
    assert shared.descriptors == 0


def test_those_that_rest_longest_rest_first(shared: SharedDescriptors, tmp_path: Path) -> None:
    files = [shared.open(tmp_path / f"{number}", create=True) for number in range(4)]
    files[0].size()
    files.append(shared.open(tmp_path / "4", create=True))
    assert with_descriptors(files) == [0, 2, 3, 4]


def test_writes_that_are_not_confirmed_keep_theirs(
    shared: SharedDescriptors, tmp_path: Path
) -> None:
    files = [shared.open(tmp_path / f"{number}", create=True) for number in range(4)]
    for file in files[:3]:
        file.pwritev([b"x"], 0)
    files += [shared.open(tmp_path / f"{number}", create=True) for number in range(4, 9)]
    assert {0, 1, 2} <= set(with_descriptors(files))
    slot = shared.open(tmp_path / "acked", create=True)
    slot.pwritev([b"x"], 0)
    files[8].size()
    shared.open(tmp_path / "more", create=True)
    assert not slot.has_descriptor or not files[7].has_descriptor  # type: ignore[attr-defined]
    assert {0, 1, 2} <= set(with_descriptors(files))


def test_if_no_write_is_confirmed_one_file_is_synced(
    shared: SharedDescriptors, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    sync = OsFile.fdatasync
    monkeypatch.setattr(OsFile, "fdatasync", lambda one: (synced.append(one.path), sync(one)))
    files = [shared.open(tmp_path / f"{number}", create=True) for number in range(9)]
    for file in files:
        file.pwritev([b"x"], 0)
    assert shared.descriptors <= 5
    assert synced == [tmp_path / f"{number}" for number in range(len(synced))]
    assert synced


def test_an_error_of_that_sync_is_the_owners(
    shared: SharedDescriptors, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(file: OsFile) -> None:
        raise OSError(errno.EIO, "gone")

    files = [shared.open(tmp_path / f"{number}", create=True) for number in range(4)]
    for file in files:
        file.pwritev([b"x"], 0)
    with monkeypatch.context() as patch:
        patch.setattr(OsFile, "fdatasync", fail)
        files.append(shared.open(tmp_path / "4", create=True))
    assert with_descriptors(files) == [0, 1, 2, 3, 4], "the kernel must not forget the error"
    for file in files[:4]:
        with pytest.raises(OSError, match="gone"):
            file.fdatasync()
    files[4].fdatasync()


def test_another_file_of_that_name(shared: SharedDescriptors, tmp_path: Path) -> None:
    files = [shared.open(tmp_path / f"{number}", create=True) for number in range(5)]
    assert 0 not in with_descriptors(files)
    (tmp_path / "0").rename(tmp_path / "aside")
    (tmp_path / "0").write_bytes(b"not ours")
    with pytest.raises(OSError, match="another file") as refused:
        files[0].pwritev([b"x"], 0)
    assert refused.value.errno == errno.ESTALE
    assert (tmp_path / "0").read_bytes() == b"not ours"
    files[0].close()
    with pytest.raises(OSError, match="closed"):
        files[0].size()


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_the_system_has_none_left(
    number: int, shared: SharedDescriptors, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Idle files are closed for a file to write, a file to read, and a directory's fsync."""
    kept = [shared.open(tmp_path / f"{one}", create=True) for one in range(4)]
    opened = os.open

    def few(path: Any, *rest: Any) -> int:
        if shared.descriptors >= 4:
            raise OSError(number, "none left")
        return opened(path, *rest)

    monkeypatch.setattr(os, "open", few)
    for _ in range(2):
        shared.open(tmp_path / "0", writable=False).close()
        shared.fsync_directory(tmp_path)
        for file in kept:
            file.size()


def test_many_threads(shared: SharedDescriptors, tmp_path: Path) -> None:
    """No thread writes to the file of another, even if that file has got its old descriptor
    number."""

    def work(number: int) -> None:
        file = shared.open(tmp_path / f"{number}", create=True)
        for position in range(200):
            file.pwritev([b"%c" % (65 + number)], position)
            if position % 3 == 0:
                file.fdatasync()
        file.close()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(12):
        assert (tmp_path / f"{number}").read_bytes() == b"%c" % (65 + number) * 200


# --- a whole log on one descriptor ---


@pytest.fixture
def one_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    create = LogEnvironment.create.__func__  # type: ignore[attr-defined]

    def inode(file: Any) -> object:
        assert isinstance(file, SimFile)
        return id(file.inode)

    def scarce(cls: type[LogEnvironment], fs: Any, *arguments: Any, **more: Any) -> LogEnvironment:
        one = SharedDescriptors(fs, 1, unsynced=(ACKED_END_NAME,), identify=inode)
        one.read = fs.read  # type: ignore[attr-defined]  # a scenario looks at the simulated disk
        found: LogEnvironment = create(cls, one, *arguments, **more)
        return found

    monkeypatch.setattr(LogEnvironment, "create", classmethod(scarce))


@pytest.mark.parametrize("durability", ["fsync", "interval"])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_machine_stops_with_one_descriptor(
    scenario: Scenario,
    durability: str,
    one_descriptor: None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Every promise of the log is kept, however often its files are opened again."""
    caplog.set_level(logging.CRITICAL, "liftlog.log")
    crash_points.test_the_machine_stops_before_any_operation(scenario, durability)
