"""What a node keeps of the metadata that it has seen."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from liftlog.cluster import transitions
from liftlog.cluster.record import StreamRecord
from liftlog.errors import StorageError
from liftlog.log import OsFileSystem
from liftlog.server.replication import known_records as module
from liftlog.server.replication.known_records import KNOWN_RECORDS_NAME, KnownRecords


class Counting(OsFileSystem):
    renames = 0
    failing = 0
    """With this number, if it is not 0."""

    def rename(self, source: Path, target: Path) -> None:
        if self.failing:
            raise OSError(self.failing, "on purpose")
        self.renames += 1
        super().rename(source, target)


def record(name: str) -> StreamRecord:
    return transitions.create(name, f"{name}-1", {}, "ab", starts={"a": 1, "b": 1})


async def test_what_was_noted_is_there_after_a_start(tmp_path: Path) -> None:
    fs = Counting()
    known = KnownRecords(fs, tmp_path)
    assert known.read() == {}
    for name in ("s", "t", "gone"):
        known.note(record(name))
    known.note_node("b", b'{"start":1}')
    known.note_node("c", b'{"start":1}')
    known.note_node("c", None)
    known.forget("gone")
    await asyncio.gather(*(known.written() for _ in range(50)))
    assert fs.renames <= 2, "one write for all who wait"
    await known.written()
    assert fs.renames <= 2, "nothing is new"
    again = KnownRecords(fs, tmp_path)
    assert again.read() == {"s": record("s"), "t": record("t")}
    assert again.nodes == {"b": '{"start":1}'}


async def test_a_write_that_fails_is_told_and_made_again(tmp_path: Path) -> None:
    fs = Counting()
    known = KnownRecords(fs, tmp_path)
    known.note(record("s"))
    fs.failing = errno.EIO
    with pytest.raises(StorageError):
        await known.written()
    fs.failing = 0
    await known.written()
    assert KnownRecords(fs, tmp_path).read() == {"s": record("s")}


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE])
async def test_the_task_that_writes_outlives_every_error(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PAUSE_SECONDS", 0.001)
    fs = Counting()
    fs.failing = number
    known = KnownRecords(fs, tmp_path)
    known.note(record("s"))
    writing = asyncio.get_running_loop().create_task(known.run())
    await asyncio.sleep(0.05)
    assert not writing.done(), writing
    fs.failing = 0
    async with asyncio.timeout(10):
        while fs.renames == 0:
            await asyncio.sleep(0.001)
    writing.cancel()
    assert KnownRecords(fs, tmp_path).read() == {"s": record("s")}


async def test_a_damaged_file_counts_as_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    known = KnownRecords(OsFileSystem(), tmp_path)
    known.note(record("s"))
    await known.written()
    path = tmp_path / KNOWN_RECORDS_NAME
    path.write_bytes(path.read_bytes().replace(b"s-1", b"s-2"))
    assert KnownRecords(OsFileSystem(), tmp_path).read() == {}
    assert "known-records-ignored" in caplog.text
