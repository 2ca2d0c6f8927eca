"""Looks at the disk neither wait for ever nor pile up."""

from __future__ import annotations

import asyncio
import errno
import threading
from pathlib import Path

import pytest

from liftlog.server.vitals import disk
from liftlog.server.vitals.disk import PROBE_NAME, DiskProbe, DiskState, look_at


@pytest.fixture
def probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DiskProbe:
    monkeypatch.setattr(disk, "_FRESH_SECONDS", 0.0)
    return DiskProbe(tmp_path)


async def test_a_good_disk(probe: DiskProbe, tmp_path: Path) -> None:
    state = await probe.state()
    assert state.problem == ""
    assert 0 < state.free_bytes < state.size_bytes
    assert list(tmp_path.iterdir()) == []
    assert probe.last == state


@pytest.mark.parametrize("number", [errno.EROFS, errno.ENOSPC, errno.EIO])
async def test_a_disk_that_takes_nothing(
    probe: DiskProbe, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fail(path: Path, data: bytes) -> int:
        assert path.name == PROBE_NAME
        raise OSError(number, "the reason")

    monkeypatch.setattr(Path, "write_bytes", fail)
    state = await probe.state()
    assert state.problem == "the data directory cannot be written: the reason"
    assert state.free_bytes > 0


async def test_a_directory_that_is_gone(tmp_path: Path) -> None:
    state = await DiskProbe(tmp_path / "gone").state()
    assert "No such file" in state.problem


async def test_what_was_just_seen_is_not_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []

    def counted(directory: Path) -> DiskState:
        looks.append(1)
        return look_at(directory)

    monkeypatch.setattr(disk, "look_at", counted)
    probe = DiskProbe(tmp_path)
    assert await probe.state() == await probe.state()
    assert len(looks) == 1


async def test_what_a_full_disk_took_is_given_back(
    probe: DiskProbe, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write = Path.write_bytes

    def some_of_it(path: Path, data: bytes) -> int:
        write(path, data[:4096])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", some_of_it)
    assert "No space left" in (await probe.state()).problem
    assert list(tmp_path.iterdir()) == []


async def test_a_disk_that_stands_still(probe: DiskProbe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "_WAIT_SECONDS", 0.01)
    moving, looks = threading.Event(), []

    def stand_still(directory: Path) -> DiskState:
        looks.append(1)
        assert moving.wait(30)
        return DiskState(1, 2)

    monkeypatch.setattr(disk, "look_at", stand_still)
    found = await asyncio.gather(*(probe.state() for _ in range(5)))
    assert all("not answered" in state.problem for state in found)
    assert len(looks) == 1, "threads pile up behind the disk"
    assert "not answered" in probe.last.problem, "the metric must not say that it is writable"
    moving.set()
    monkeypatch.setattr(disk, "_WAIT_SECONDS", 30.0)
    assert await probe.state() == probe.last == DiskState(1, 2)
    assert (await probe.state(), len(looks)) == (DiskState(1, 2), 2)
