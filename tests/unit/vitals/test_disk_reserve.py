"""Room set aside for the day when the disk is full."""

from __future__ import annotations

import errno
import os
import zlib
from pathlib import Path

import pytest

from liftlog.server.vitals.disk import RESERVE_BYTES, RESERVE_NAME, DiskReserve


def size_of(directory: Path) -> int:
    path = directory / RESERVE_NAME
    return path.stat().st_size if path.exists() else -1


def test_it_takes_up_room_and_gives_it_back(tmp_path: Path) -> None:
    reserve = DiskReserve(tmp_path)
    reserve.release()
    reserve.keep()
    reserve.keep()
    assert size_of(tmp_path) == RESERVE_BYTES
    assert (tmp_path / RESERVE_NAME).stat().st_blocks * 512 >= RESERVE_BYTES
    reserve.release()
    assert size_of(tmp_path) == -1


def test_an_incomplete_reserve_is_filled_up(tmp_path: Path) -> None:
    (tmp_path / RESERVE_NAME).write_bytes(bytes(1000))
    DiskReserve(tmp_path).keep()
    assert size_of(tmp_path) == RESERVE_BYTES


def test_a_full_disk_is_not_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "open", full)
    DiskReserve(tmp_path).keep()
    assert "disk-reserve-incomplete" in caplog.text


def test_a_disk_is_full_when_no_group_would_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserve = DiskReserve(tmp_path)
    real = os.statvfs(tmp_path)

    def with_free(blocks: int) -> None:
        values = list(real)
        values[4] = blocks  # f_bavail
        monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result(values))

    with_free(RESERVE_BYTES // real.f_frsize)
    assert not reserve.is_disk_full()
    with_free(RESERVE_BYTES // real.f_frsize - 1)
    assert reserve.is_disk_full()


def test_its_bytes_cannot_be_compressed(tmp_path: Path) -> None:
    """A file system that compresses would keep a mebibyte of zeros in 32 KiB."""
    DiskReserve(tmp_path).keep()
    raw = (tmp_path / RESERVE_NAME).read_bytes()
    assert len(zlib.compress(raw)) >= RESERVE_BYTES


def test_zeros_of_an_earlier_version_are_replaced(tmp_path: Path) -> None:
    (tmp_path / RESERVE_NAME).write_bytes(bytes(RESERVE_BYTES))
    reserve = DiskReserve(tmp_path)
    reserve.release()  # as every start does
    reserve.keep()
    assert any((tmp_path / RESERVE_NAME).read_bytes())
