"""Streams are created and closed side by side; creations of one name run one after the other."""

from __future__ import annotations

import asyncio
import errno
import gc
import shutil
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from support.daemons.local_broker import Running

from liftlog.errors import Conflict, ShuttingDown, StorageError, StreamUnavailable
from liftlog.log import ActiveState, OsFileSystem
from liftlog.log.data_dir import CLEAN_NAME, read_states
from liftlog.log.files.filesystem import FileSystem, OsFile
from liftlog.server.commits.host import StreamHost


class MeetingFileSystem(OsFileSystem):
    """Lets the manifests of new streams wait for each other."""

    def __init__(self, parties: int) -> None:
        self.meeting = threading.Barrier(parties)
        self.is_on = False

    def rename(self, source: Path, target: Path) -> None:
        if self.is_on and target.name == "manifest":
            self.meeting.wait(60)
        super().rename(source, target)


async def test_sixteen_are_created_at_a_time(tmp_path: Path) -> None:
    fs = MeetingFileSystem(16)
    running = Running(tmp_path, fs=fs)
    broker = await running.start()
    fs.is_on = True
    infos = await asyncio.gather(
        *(broker.create_stream(f"s{number}", {"subject": f"s{number}"}) for number in range(16))
    )
    fs.is_on = False
    assert len({info.incarnation for info in infos}) == 16
    assert broker.hosts.keys() == {info.name for info in infos}
    await broker.close()
    again = Running(tmp_path)
    assert (await again.start()).hosts.keys() == {info.name for info in infos}
    await again.broker.close()


async def test_one_name_is_created_once(running: Running) -> None:
    broker = running.broker
    first, second, other = await asyncio.gather(
        broker.create_stream("s", {"subject": "in"}),
        broker.create_stream("s", {"subject": "in"}),
        broker.create_stream("s", {"subject": "other"}),
        return_exceptions=True,
    )
    assert not isinstance(first, BaseException)
    assert not isinstance(second, BaseException)
    assert first.incarnation == second.incarnation
    assert isinstance(other, Conflict)


async def test_a_name_is_deleted_after_its_creation_and_created_after_its_deletion(
    running: Running,
) -> None:
    broker = running.broker
    first = asyncio.create_task(broker.create_stream("s", {"subject": "in"}))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    deletion = asyncio.create_task(broker.delete_stream("s"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    second = await broker.create_stream("s", {"subject": "in"})
    await deletion
    assert second.incarnation != (await first).incarnation
    assert broker.hosts["s"].log.incarnation == second.incarnation


async def test_a_creation_whose_caller_is_cancelled_is_completed(tmp_path: Path) -> None:
    fs = MeetingFileSystem(2)
    running = Running(tmp_path, fs=fs)
    broker = await running.start()
    fs.is_on = True
    creation = asyncio.create_task(broker.create_stream("s", {"subject": "in"}))
    async with asyncio.timeout(30):
        while not fs.meeting.n_waiting:
            await asyncio.sleep(0.001)
    creation.cancel()
    with pytest.raises(asyncio.CancelledError):
        await creation
    drain = asyncio.create_task(broker.drain())
    await asyncio.sleep(0)
    assert not drain.done()
    fs.meeting.wait(30)
    await drain  # a stop waits for it
    assert broker.hosts.keys() == {"s"}
    await broker.close()


async def test_a_second_signal_ends_the_wait_for_creations(tmp_path: Path) -> None:
    fs = MeetingFileSystem(2)
    running = Running(tmp_path, fs=fs)
    broker = await running.start()
    fs.is_on = True
    creation = asyncio.create_task(broker.create_stream("s", {"subject": "in"}))
    async with asyncio.timeout(30):
        while not fs.meeting.n_waiting:
            await asyncio.sleep(0.001)
    hurry = asyncio.Event()
    drain = asyncio.create_task(broker.drain(hurry))
    await asyncio.sleep(0.01)
    assert not drain.done()
    hurry.set()
    async with asyncio.timeout(10):
        await drain
    assert not creation.done()
    closing = asyncio.create_task(broker.close())
    fs.meeting.wait(30)
    await closing
    assert (await creation).name == "s"
    again = Running(tmp_path)
    assert (await again.start()).hosts.keys() == {"s"}
    await again.broker.close()


async def test_a_stop_begins_no_creations_that_wait(tmp_path: Path) -> None:
    """One connection may send thousands of them, which would delay the stop for minutes."""
    fs = MeetingFileSystem(17)
    running = Running(tmp_path, fs=fs)
    broker = await running.start()
    fs.is_on = True
    creations = [
        asyncio.create_task(broker.create_stream(f"s{number}", {"subject": f"s{number}"}))
        for number in range(40)
    ]
    async with asyncio.timeout(30):
        while fs.meeting.n_waiting < 16:
            await asyncio.sleep(0.001)
    drain = asyncio.create_task(broker.drain())
    await asyncio.sleep(0.01)
    fs.is_on = False
    fs.meeting.wait(30)
    async with asyncio.timeout(30):
        results = await asyncio.gather(*creations, return_exceptions=True)
        await drain
    refused = [one for one in results if isinstance(one, ShuttingDown)]
    assert (len(broker.hosts), len(refused)) == (16, 24)
    await broker.close()


async def test_eight_logs_are_closed_at_a_time(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, meeting = running.broker, threading.Barrier(8)
    names = [f"s{number}" for number in range(8)]

    def meet(host: StreamHost) -> None:
        close = host.log.close

        def closed() -> ActiveState | None:
            meeting.wait(60)
            return close()

        monkeypatch.setattr(host.log, "close", closed)

    for name in names:
        await broker.create_stream(name, {"subject": name})
        meet(broker.hosts[name])
    await broker.close()
    assert list(read_states(running.fs, running.data_dir.path, CLEAN_NAME)) == names


class UnsyncedFile(OsFile):
    __slots__ = ()

    def fdatasync(self) -> None:
        pass


class UnsyncedFileSystem(OsFileSystem):
    """So that the time does not depend on the disk."""

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> OsFile:
        file = super().open(path, create=create, writable=writable)
        file.__class__ = UnsyncedFile
        return file

    def fsync_directory(self, path: Path) -> None:
        pass


async def test_a_stream_beside_many_costs_what_the_first_ones_cost(tmp_path: Path) -> None:
    """In processor time, which other processes change little; the first fifty warm up."""
    running = Running(tmp_path, fs=UnsyncedFileSystem())
    broker = await running.start()
    spent = []
    gc.collect()
    gc.disable()  # a collection takes longer the more other tests have left
    try:
        for some in range(24):
            began = time.process_time()
            for number in range(50):
                name = f"s{some}-{number}"
                await broker.create_stream(name, {"subject": f"plant.{name}.>"})
            spent.append(time.process_time() - began)
    finally:
        gc.enable()
    assert min(spent[-4:]) <= 2 * sorted(spent[1:6])[2], spent
    await broker.close()


async def test_a_directory_that_cannot_be_examined_stays(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator has put it back while the daemon runs. The creation fails before it creates
    anything, so it must not remove what it did not create."""
    await running.broker.create_stream("other", {"subject": "other"})
    put_back = running.data_dir.stream_path("s")
    shutil.copytree(running.data_dir.stream_path("other"), put_back)
    exists = type(running.fs).exists
    failures = [OSError(errno.EIO, "Input/output error")]

    def failing(fs: FileSystem, path: Path) -> bool:
        if path == put_back and failures:
            raise failures.pop()
        return exists(running.fs, path)

    monkeypatch.setattr(type(running.fs), "exists", failing)
    with pytest.raises(StorageError):
        await running.broker.create_stream("s", {"subject": "in"})
    assert not failures
    with pytest.raises(StreamUnavailable, match="has not opened"):
        await running.broker.create_stream("s", {"subject": "in"})
    assert (put_back / "manifest").exists()


async def test_a_log_that_cannot_be_closed_leaves_no_other_open(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = running.broker
    names = [f"s{number:02d}" for number in range(24)]
    for name in names:
        await broker.create_stream(name, {"subject": name})
    closed = []

    def closing(name: str, close: Callable[[], object]) -> None:
        close()
        closed.append(name)
        if name == names[0]:
            raise OSError(errno.EIO, "on purpose")

    for name in names:
        log = broker.hosts[name].log
        monkeypatch.setattr(log, "close", partial(closing, name, log.close))
    with pytest.raises(OSError, match="on purpose"):
        await broker.close()
    assert sorted(closed) == names
    running.data_dir.close(None)


class SlowRemoval(OsFileSystem):
    """Removals of directories wait for the test."""

    def __init__(self) -> None:
        self.is_there, self.may_go_on = threading.Event(), threading.Event()

    def remove_directory(self, path: Path) -> None:
        self.is_there.set()
        assert self.may_go_on.wait(60)
        super().remove_directory(path)


async def test_a_deletion_whose_caller_is_cancelled_is_completed(tmp_path: Path) -> None:
    """Otherwise the daemon would show a failed stream, and not be ready."""
    fs = SlowRemoval()
    running = Running(tmp_path, fs=fs)
    broker = await running.start()
    await broker.create_stream("s", {"subject": "in"})
    await broker.create_stream("later", {"subject": "later"})
    deletion = asyncio.create_task(broker.delete_stream("s"))
    assert await asyncio.to_thread(fs.is_there.wait, 30)
    later = asyncio.create_task(broker.delete_stream("later"))
    await asyncio.sleep(0)
    deletion.cancel()
    with pytest.raises(asyncio.CancelledError):
        await deletion
    drain = asyncio.create_task(broker.drain())
    await asyncio.sleep(0)
    fs.may_go_on.set()
    await drain  # a stop waits for it, and begins no other one
    with pytest.raises(ShuttingDown):
        await later
    assert broker.failed_streams() == []
    await broker.close()
    again = Running(tmp_path)
    assert (await again.start()).hosts.keys() == {"later"}
    await again.broker.close()
