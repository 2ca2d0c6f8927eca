from __future__ import annotations

import os
from pathlib import Path

import pytest

from liftlog.server.pull.send_queue import STEP_BYTES, is_resident, make_resident


@pytest.fixture
def fd(tmp_path: Path) -> object:
    path = tmp_path / "data"
    path.write_bytes(os.urandom(1024 * 1024))
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    yield fd
    os.close(fd)


def test_every_step_and_the_last_byte_are_asked_about(
    fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    real = os.preadv

    def preadv(fd: int, buffers: list[bytearray], position: int, flags: int = 0) -> int:
        asked.append(position)
        return real(fd, buffers, position)

    monkeypatch.setattr(os, "preadv", preadv)
    assert is_resident(fd, 100, 3 * STEP_BYTES)
    assert asked == [100, 100 + STEP_BYTES, 100 + 2 * STEP_BYTES, 99 + 3 * STEP_BYTES]


@pytest.mark.parametrize("cold_position", [0, STEP_BYTES, 3 * STEP_BYTES - 1])
def test_one_cold_page_is_enough(
    fd: int, monkeypatch: pytest.MonkeyPatch, cold_position: int
) -> None:
    def preadv(fd: int, buffers: list[bytearray], position: int, flags: int) -> int:
        if position == cold_position:
            raise BlockingIOError
        return 1

    monkeypatch.setattr(os, "preadv", preadv)
    assert not is_resident(fd, 0, 3 * STEP_BYTES)


def test_what_was_dropped_from_memory_is_cold_until_it_was_read(fd: int) -> None:
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    if is_resident(fd, 0, 1024 * 1024):
        pytest.skip("this file system keeps pages or cannot say")
    make_resident(fd, 0, 1024 * 1024)
    assert is_resident(fd, 0, 1024 * 1024)


@pytest.mark.parametrize(("length", "ahead"), [(4096, 0), (256 * 1024, 16 * 1024 * 1024)])
def test_behind_a_large_range_the_kernel_reads_on(
    fd: int, monkeypatch: pytest.MonkeyPatch, length: int, ahead: int
) -> None:
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(
        os, "posix_fadvise", lambda _, position, size, advice: told.append((position, size))
    )
    make_resident(fd, 8192, length)
    assert told == [(8192, length + ahead)]


def test_a_file_that_ends_early_is_no_error(fd: int) -> None:
    assert make_resident(fd, 1024 * 1024 - 10, 4096) == [range(1024 * 1024, 1024 * 1024 + 4086)]


def test_pages_that_the_disk_does_not_give_are_told(
    fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = {3, 4, 9}
    real = os.preadv

    def preadv(fd: int, buffers: list[memoryview], position: int) -> int:
        """As Linux does it."""
        first = position // 4096
        if first in bad:
            raise OSError(5, "I/O error")
        end = min([page * 4096 for page in bad if page > first], default=1 << 40)
        return real(fd, [buffers[0][: end - position]], position)

    monkeypatch.setattr(os, "preadv", preadv)
    found = make_resident(fd, 100, 1024 * 1024 - 100)
    assert found == [range(3 * 4096, 5 * 4096), range(9 * 4096, 10 * 4096)]
    assert make_resident(fd, 4 * 4096 + 8, 8000) == [range(4 * 4096 + 8, 5 * 4096)]


def test_an_error_of_the_disk_is_not_taken_for_an_answer(
    fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def preadv(*_: object) -> int:
        raise OSError(12, "out of memory")

    monkeypatch.setattr(os, "preadv", preadv)
    with pytest.raises(OSError, match="memory"):
        is_resident(fd, 0, 10)
