"""A node keeps the metadata that it has seen."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest
from support.disks.file_errors import LOOKS, OTHER_ERRORS, SECTOR_ERRORS, Failure, failures
from support.disks.simfs import SimFileSystem

from liftlog.cluster import transitions
from liftlog.cluster.record import StreamMetadata
from liftlog.errors import StorageError
from liftlog.log import OsFileSystem
from liftlog.log.data_dir import make_durable_directory
from liftlog.log.files.checkpoint_file import write_checkpoint_file
from liftlog.server.metadata import known_records as module
from liftlog.server.metadata.known_records import KNOWN_RECORDS_NAME, KnownRecords

DATA_DIR = Path("/data")


class Counting(OsFileSystem):
    renames = 0
    failing = 0
    """With this number, if it is not 0."""

    def rename(self, source: Path, target: Path) -> None:
        if self.failing:
            raise OSError(self.failing, "on purpose")
        self.renames += 1
        super().rename(source, target)


def record(name: str) -> StreamMetadata:
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


@pytest.fixture
def disk() -> SimFileSystem:
    """With the file of an earlier start, which has held the stream `s`."""
    fs = SimFileSystem()
    make_durable_directory(fs, DATA_DIR)
    return fs


async def earlier_start(fs: SimFileSystem) -> bytes:
    known = KnownRecords(fs, DATA_DIR)
    known.read()
    known.all_held([])
    known.note(record("s"))
    known.note_node("b", b'{"start":1}')
    await known.hold("s", "s-1")
    return fs.read(DATA_DIR / KNOWN_RECORDS_NAME)


@pytest.mark.parametrize(
    "failure",
    failures(LOOKS, (KNOWN_RECORDS_NAME,), (*OTHER_ERRORS, *SECTOR_ERRORS)),
    ids=str,
)
async def test_an_error_of_the_read_is_not_an_empty_file(
    failure: Failure, disk: SimFileSystem
) -> None:
    """Nothing is written in its place. When it can be read again, all that it says is known."""
    stored, late = await earlier_start(disk), []
    disk.faults = [failure.fault(times=-1)]
    known = KnownRecords(disk, DATA_DIR, on_late=late.append)
    assert known.read() == {}
    assert known.problem
    assert known.has_held("s", "s-1") is None
    known.note(record("t"))
    known.note_node("c", b'{"start":2}')
    for refused in (known.written(), known.hold("t", "t-1"), known.hold("t", "t-1")):
        with pytest.raises(StorageError, match=KNOWN_RECORDS_NAME):
            await refused
    assert disk.read(DATA_DIR / KNOWN_RECORDS_NAME) == stored
    assert late == []
    disk.faults = []
    await known.written()
    assert late == [{"s": record("s")}]
    assert not known.problem
    for now in (known, KnownRecords(disk.power_cut("none"), DATA_DIR)):
        if now is not known:
            assert now.read() == {"s": record("s"), "t": record("t")}
        assert now.has_held("s", "s-1") is now.has_held("t", "t-1") is True
        assert now.has_held("u", "u-1") is False
        assert now.nodes == {"b": '{"start":1}', "c": '{"start":2}'}


async def test_it_is_read_again_though_nothing_is_to_be_written(
    disk: SimFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PAUSE_SECONDS", 0.001)
    await earlier_start(disk)
    [failure] = failures(("open",), (KNOWN_RECORDS_NAME,), (errno.EMFILE,))
    disk.faults = [failure.fault(times=5)]
    known = KnownRecords(disk, DATA_DIR)
    known.read()
    working = asyncio.get_running_loop().create_task(known.run())
    async with asyncio.timeout(10):
        while known.problem:
            await asyncio.sleep(0.001)
    working.cancel()
    assert known.has_held("s", "s-1") is True


async def test_a_note_that_was_refused_is_not_taken_for_durable(disk: SimFileSystem) -> None:
    known = KnownRecords(disk, DATA_DIR)
    known.read()
    [failure] = failures(("rename",), (KNOWN_RECORDS_NAME,), (errno.EIO,))
    disk.faults = [failure.fault(times=2)]
    for _ in range(2):
        with pytest.raises(StorageError):
            await known.hold("s", "s-1")
    await known.hold("s", "s-1")
    again = KnownRecords(disk.power_cut("none"), DATA_DIR)
    again.read()
    assert again.has_held("s", "s-1") is True


@pytest.mark.parametrize("way", ["damaged", "older version", "missing"])
async def test_what_was_held_stays_unknown_until_all_streams_are(
    way: str, disk: SimFileSystem
) -> None:
    """A write alone does not make a list complete of which a part was lost."""
    await earlier_start(disk)
    path = DATA_DIR / KNOWN_RECORDS_NAME
    if way == "missing":
        disk.unlink(path)
    elif way == "damaged":
        disk.replace(path, disk.read(path).replace(b"s-1", b"s-2"))
    else:
        write_checkpoint_file(disk, path, "known-records", {"streams": {}, "nodes": {}})
    for name in ("t", "u"):
        known = KnownRecords(disk, DATA_DIR)
        known.read()
        assert known.has_held("s", "s-1") is None
        await known.hold(name, f"{name}-1")
        known.all_held([record("s"), record("t"), record("u")])
    assert known.has_held("t", "t-1") is True
    assert known.has_held("s", "s-1") is None
    await known.hold("s", "s-1")
    known.all_held([record("s"), record("t"), record("u")])
    assert known.has_held("v", "v-1") is False
    await known.written()
    again = KnownRecords(disk, DATA_DIR)
    again.read()
    assert again.has_held("v", "v-1") is False


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
