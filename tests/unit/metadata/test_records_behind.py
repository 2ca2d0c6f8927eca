"""Records of new streams are written a little later, and never after the deletion of a stream."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from liftlog.log import OsFileSystem
from liftlog.server.metadata.file_store import FileMetaStore
from liftlog.server.metadata.records import StreamRecords
from liftlog.server.metadata.records_file import parse_records

SETTINGS = {"subject": "in"}


class SlowFileSystem(OsFileSystem):
    """Counts the files that are put in place, and can hold up the next one."""

    def __init__(self) -> None:
        self.renames = 0
        self.begun = threading.Event()
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def rename(self, source: Path, target: Path) -> None:
        self.begun.set()
        assert self.may_go_on.wait(30)
        self.renames += 1
        super().rename(source, target)


@pytest.fixture
def fs() -> SlowFileSystem:
    return SlowFileSystem()


@pytest.fixture
async def records(tmp_path: Path, fs: SlowFileSystem) -> AsyncIterator[StreamRecords]:
    store = FileMetaStore(tmp_path / "records", shared=False, fs=fs)
    made = StreamRecords(store, behind_seconds=0.05)
    assert await made.load([]) == []
    yield made
    fs.may_go_on.set()
    await made.flush()
    made.close()


def written(tmp_path: Path) -> set[str]:
    try:
        raw = (tmp_path / "records").read_bytes()
    except FileNotFoundError:
        return set()
    return set(parse_records(raw, "records").entries)


def create(records: StreamRecords, *names: str) -> None:
    for name in names:
        records.created(records.draw(name, SETTINGS))


async def test_they_are_written_together_after_a_while(
    records: StreamRecords, tmp_path: Path, fs: SlowFileSystem
) -> None:
    create(records, *(f"s{number}" for number in range(50)))
    assert written(tmp_path) == set()
    found = records.record("s7")
    assert found is not None
    async with asyncio.timeout(30):
        while len(written(tmp_path)) < 100:
            await asyncio.sleep(0.01)
    assert fs.renames == 2  # the records, and the note that the directory has the streams
    assert records.record("s7") == found


async def test_a_stream_that_is_deleted_before_leaves_nothing(
    records: StreamRecords, tmp_path: Path
) -> None:
    create(records, "gone", "stays")
    await records.removed("gone")
    await records.flush()
    assert written(tmp_path) == {"stream.stays", "held.stays"}
    assert records.record("gone") is None


async def test_a_deletion_waits_for_the_write_that_contains_the_stream(
    records: StreamRecords, tmp_path: Path, fs: SlowFileSystem
) -> None:
    """Otherwise the file would name a stream whose directory is missing."""
    create(records, "gone", "stays")
    fs.may_go_on.clear()
    writing = asyncio.create_task(records.flush())
    assert await asyncio.to_thread(fs.begun.wait, 30)
    removing = asyncio.create_task(records.removed("gone"))
    create(records, "later")
    await asyncio.sleep(0)
    fs.may_go_on.set()
    await writing
    await removing
    assert written(tmp_path) == {"stream.stays", "held.stays"}
    await records.flush()
    assert written(tmp_path) == {"stream.stays", "held.stays", "stream.later", "held.later"}


async def test_a_failed_write_is_repeated(
    records: StreamRecords, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "records.tmp").mkdir()  # so that the file cannot be written
    create(records, "first")
    await records.flush()
    assert "records-not-stored count=1" in caplog.text
    (tmp_path / "records.tmp").rmdir()
    create(records, "second")
    await records.flush()
    assert written(tmp_path) == {
        f"{kind}.{name}" for kind in ("stream", "held") for name in ("first", "second")
    }


async def test_a_failed_write_is_repeated_without_another_creation(tmp_path: Path) -> None:
    """A disk that was full for a moment must not leave the record away until a stop."""
    records = StreamRecords(FileMetaStore(tmp_path / "records", shared=False), behind_seconds=0.05)
    await records.load([])
    (tmp_path / "records.tmp").mkdir()  # so that the file cannot be written
    create(records, "first")
    await records.flush()
    (tmp_path / "records.tmp").rmdir()
    async with asyncio.timeout(30):
        while not (tmp_path / "records").exists():
            await asyncio.sleep(0.01)
    await records.flush()
    records.close()
    assert written(tmp_path) == {"stream.first", "held.first"}
