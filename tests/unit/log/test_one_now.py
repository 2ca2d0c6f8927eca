"""Reads of one record without a wait give the result of an ordinary read, or nothing."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.disks.page_cache import need_nowait
from support.disks.stored_logs import FIRST_SEGMENT, StoredLog, flip

from liftlog.errors import LiftlogError
from liftlog.log import environment
from liftlog.log.read.one_now import read_one_now
from liftlog.records.decode import Record
from liftlog.server.reading.one_record import read_record


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[StoredLog]:
    need_nowait(tmp_path)
    stored = StoredLog(tmp_path / "data", segment_max_bytes=40_000)
    for i in range(60):
        size = 40 * (i % 7)
        count = 1 + i % 40
        stored.append(
            [None if i % 9 == 8 else b"%d" % n * size for n in range(count)],
            keys=[b"k%d" % n for n in range(count)] if i % 3 else None,
            headers=[b"NATS/1.0\r\nA: %d\r\n\r\n" % n for n in range(count)] if i % 2 else None,
            compression=("none", "zstd")[i % 2],
        )
    yield stored
    stored.close()


def now(stored: StoredLog, offset: int) -> Record | None:
    return read_one_now(stored.log.view, stored.environment, offset)


def test_every_record_is_what_an_ordinary_read_returns(stored: StoredLog) -> None:
    log = stored.log
    assert log.segment_count > 2
    for offset in range(log.log_start_offset, log.high_watermark):
        record, block = read_record(log, offset)  # opens the file, and loads the index
        assert now(stored, offset) == record
        assert record.raw_headers == block
    for outside in (-1, 0, log.high_watermark, log.high_watermark + 5):
        assert now(stored, outside) is None


def test_what_is_not_committed_or_deleted_is_not_found(stored: StoredLog) -> None:
    log = stored.log
    first, end = log.log_start_offset, log.high_watermark
    stored.append([b"later"], commit=False)
    assert now(stored, end) is None
    log.truncate_prefix(first + 10)
    assert now(stored, first + 9) is None
    read_record(log, first + 10)
    assert now(stored, first + 10) is not None


def test_nothing_is_opened(stored: StoredLog) -> None:
    stored.environment.pool.close()
    assert all(now(stored, offset) is None for offset in range(1, stored.log.high_watermark))
    assert len(stored.environment.pool) == 0


def test_an_index_that_is_not_in_memory_is_not_read(stored: StoredLog) -> None:
    read_record(stored.log, 1)
    assert now(stored, 1) is not None
    stored.environment.indexes.drop(stored.directory / FIRST_SEGMENT)
    assert now(stored, 1) is None


def test_damage_is_left_to_the_ordinary_read(stored: StoredLog) -> None:
    position, header = stored.positions()[3]
    offset = header.base_offset
    read_record(stored.log, offset)
    assert now(stored, offset) is not None
    flip(stored.directory / FIRST_SEGMENT, position + header.length - 9)
    assert now(stored, offset) is None
    with pytest.raises(LiftlogError):
        read_record(stored.log, offset)
    assert now(stored, offset) is None  # quarantined


def test_bytes_that_are_not_in_the_page_cache_are_not_waited_for(
    stored: StoredLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_record(stored.log, 1)

    def preadv(*arguments: object) -> int:
        assert arguments[3] == os.RWF_NOWAIT
        raise BlockingIOError

    monkeypatch.setattr(environment.os, "preadv", preadv)
    assert now(stored, 1) is None


def test_a_file_that_another_thread_opens_is_not_waited_for(
    stored: StoredLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk may stall."""
    read_record(stored.log, 1)
    pool, opens, goes_on = stored.environment.pool, threading.Event(), threading.Event()

    def stalled(*_: object, **__: object) -> object:
        opens.set()
        assert goes_on.wait(20)
        raise FileNotFoundError

    def acquire() -> None:
        with pytest.raises(FileNotFoundError):
            pool.acquire(stored.directory / "other.log")

    monkeypatch.setattr(stored.environment.fs, "open", stalled)
    with ThreadPoolExecutor(2) as threads:
        other = threads.submit(acquire)
        assert opens.wait(20)
        reading = threads.submit(now, stored, 1)
        try:
            assert reading.result(5) is None
        finally:
            goes_on.set()
        other.result(20)
    assert now(stored, 1) is not None


def test_a_batch_that_is_large_without_compression_is_left_to_threads(stored: StoredLog) -> None:
    offset = stored.log.log_end_offset
    stored.append([bytes(2**20)], compression="zstd")
    stored.append([b"small"], compression="zstd")
    for one in (offset, offset + 1):
        read_record(stored.log, one)
    assert now(stored, offset) is None
    assert now(stored, offset + 1) is not None
