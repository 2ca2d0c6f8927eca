"""The file system that simulates a machine without power. It must really forget unsynced data, or
the tests prove nothing."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from support.clients.ingesting import until
from support.disks.losefs import LoseFsHandle, losefs

pytestmark = pytest.mark.integration


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[LoseFsHandle]:
    with losefs(tmp_path / "disk") as disk:
        yield disk


@contextmanager
def opened(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        yield fd
    finally:
        with suppress(OSError):  # as for anything else behind a power cut
            os.close(fd)


def sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def lose_power(disk: LoseFsHandle, keep: str = "none", seed: int = 0) -> None:
    disk.cut(keep, seed)  # type: ignore[arg-type]
    disk.mount()


def test_what_was_not_synced_is_gone(disk: LoseFsHandle) -> None:
    path = disk.path / "file"
    with opened(path) as file:
        os.write(file, b"stays")
        os.fdatasync(file)
        sync_directory(disk.path)
        os.write(file, b" goes")
        (disk.path / "goes too").touch()
        path.rename(disk.path / "renamed")
        assert (disk.path / "renamed").read_bytes() == b"stays goes"
        disk.cut("none", 0)
        with pytest.raises(OSError):
            os.write(file, b"no one reads this")
    disk.mount()
    assert [entry.name for entry in disk.path.iterdir()] == ["file"]
    assert path.read_bytes() == b"stays"


def test_a_file_without_a_synced_name_is_gone(disk: LoseFsHandle) -> None:
    with opened(disk.path / "file") as file:
        os.write(file, b"synced")
        os.fdatasync(file)
    lose_power(disk)
    assert list(disk.path.iterdir()) == []


def test_a_sync_returns_when_the_disk_that_hangs_goes_on(disk: LoseFsHandle) -> None:
    with opened(disk.path / "file") as file, opened(disk.path / "other") as other:
        os.write(file, b"stays")
        disk.stall("/file")
        with ThreadPoolExecutor(1) as thread:
            sync = thread.submit(os.fdatasync, file)
            until(lambda: disk.status["stalled"] == 1, 10, "the sync has begun")
            os.fdatasync(other)
            assert (disk.path / "file").read_bytes() == b"stays"
            synced = disk.status["synced"]
            assert not sync.done()
            disk.go_on()
            sync.result(10)
        assert disk.status["synced"] == synced + 1


def test_chance_keeps_some_pages_and_tears_others(disk: LoseFsHandle) -> None:
    path = disk.path / "file"
    states = set()
    for seed in range(6):
        with opened(path) as file:
            os.write(file, b"a" * 8 * 4096)
            os.fsync(file)
            sync_directory(disk.path)
            for i in range(8):
                os.pwrite(file, b"b" * 4096, i * 4096)
        lose_power(disk, "some", seed)
        pages = [path.read_bytes()[i : i + 512][:1] for i in range(0, 8 * 4096, 512)]
        assert set(pages) <= {b"a", b"b"}
        states.add(b"".join(pages))
    assert len(states) == 6


def test_a_shared_map_and_allocated_room(disk: LoseFsHandle) -> None:
    path = disk.path / "file"
    with opened(path) as file:
        os.posix_fallocate(file, 0, 10_000)
        shared = mmap.mmap(file, 64)
        shared[:4] = b"page"
        assert path.read_bytes()[:4] == b"page"
        os.fsync(file)
        sync_directory(disk.path)
        shared[:4] = b"lost"
        disk.cut("none", 0)
        shared.close()
        with pytest.raises(OSError):
            os.write(file, b"x")
    disk.mount()
    assert path.read_bytes() == b"page" + bytes(9996)


def test_a_failed_fsync_drops_the_pages_and_the_next_one_lies(disk: LoseFsHandle) -> None:
    path = disk.path / "file"
    with opened(path) as file:
        sync_directory(disk.path)
        disk.fail("fsync", path="file")
        os.write(file, b"never reaches the disk")
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            os.fsync(file)
        os.fsync(file)
        assert path.read_bytes() == b"never reaches the disk"
    assert disk.status["hits"] == 1
    lose_power(disk)
    assert path.read_bytes() == b""


def test_a_full_disk_writes_short(disk: LoseFsHandle) -> None:
    disk.limit(10_000)
    with opened(disk.path / "file") as file:
        assert os.write(file, b"x" * 8_000) == 8_000
        assert os.write(file, b"x" * 8_000) == 2_000
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            os.write(file, b"x")
        disk.limit(None)
        assert os.write(file, b"x" * 8_000) == 8_000


def test_a_cut_at_a_chosen_operation(disk: LoseFsHandle) -> None:
    with opened(disk.path / "file") as file:
        sync_directory(disk.path)
        disk.cut_after(3)
        os.write(file, b"1")
        os.fdatasync(file)
        with pytest.raises(OSError):
            os.write(file, b"2")
        disk.wait_cut()
    disk.cut("all", 0)
    disk.mount()
    assert (disk.path / "file").read_bytes() == b"1"


def test_a_page_that_the_disk_does_not_give(disk: LoseFsHandle) -> None:
    """Like Linux: a read is short before the page, fails at it, and returns the bytes after it."""
    path, page = disk.path / "file", 4096
    with opened(path) as file:
        raw = os.urandom(6 * page)
        os.write(file, raw)
        os.fsync(file)
        sync_directory(disk.path)
        assert os.pread(file, 6 * page, 0) == raw
        disk.lose_pages(path, 2, 3)
        assert os.pread(file, 6 * page, 100) == raw[100 : 2 * page]
        for position in (2 * page, 2 * page + 7, 4 * page - 1):
            with pytest.raises(OSError, match=os.strerror(errno.EIO)):
                os.pread(file, page, position)
        assert os.pread(file, 6 * page, 4 * page) == raw[4 * page :]
        assert os.fstat(file).st_size == len(raw)
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            os.pwrite(file, b"a part", 2 * page + 5)
    lose_power(disk)
    with opened(path) as file:
        assert os.pread(file, 6 * page, 0) == raw[: 2 * page]
        os.pwrite(file, raw[:page], 2 * page)
        assert os.pread(file, 6 * page, 0) == raw[: 2 * page] + raw[:page]
        disk.find_pages()
        assert os.pread(file, 6 * page, 3 * page) == raw[3 * page :]
    assert disk.status["unreadable"] > 0
