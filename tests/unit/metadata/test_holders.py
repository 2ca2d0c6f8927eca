"""Which process holds the name of a node: one that runs keeps it, one that has ended does not."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.disks.simfs import SimFileSystem

from liftlog.cluster.store import Entry
from liftlog.errors import ConfigError
from liftlog.log.files.lock import LockFile
from liftlog.server.metadata import holders
from liftlog.server.metadata.file_store import FileMetaStore
from liftlog.server.metadata.holders import Holder, take_name

LOCK, OTHER = LockFile(1, 2, 4), LockFile(1, 5, 6)
TTL = 1


@pytest.fixture
async def store() -> AsyncIterator[FileMetaStore]:
    store = FileMetaStore(Path("/records"), shared=False, fs=SimFileSystem())
    yield store
    store.close()


def here(lock: LockFile | None = LOCK, data_id: str = "d") -> Holder:
    return Holder.here(data_id, Path("/data"), lock)


def test_what_is_certain_of_another_process() -> None:
    one, other = here(), here(OTHER)
    assert not one.has_ended(other), "it is this process, which runs"
    assert one.has_ended(here()), "its lock is held by another"
    assert not replace(one, lock=(0, 0)).has_ended(replace(other, lock=(0, 0)))
    assert replace(one, process_began=one.process_began - 1).has_ended(other), "the number is new"
    elsewhere = replace(one, boot_id="another machine, or another boot")
    assert not elsewhere.has_ended(here()), "a copy of a disk may have the same lock"
    assert not replace(one, boot_id="").has_ended(replace(here(), boot_id=""))
    contained = replace(one, process_space=1, process=999_999_999)
    assert not contained.has_ended(other), "another container's processes are not seen"


def held_by(process: int) -> Holder:
    return replace(here(OTHER), process=process, process_began=holders._began(process))


def test_a_process_that_no_one_has_waited_for_has_ended() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        theirs = held_by(child.pid)
        assert not theirs.has_ended(here())
        child.kill()
        while not theirs.has_ended(here()):
            pass
    assert theirs.has_ended(here())


def hidden(monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
    """A `/proc` as ProtectProc=invisible leaves it: processes of other users are not there."""
    directory.mkdir(exist_ok=True)
    (directory / "self").symlink_to(f"{os.getpid()}")
    (directory / f"{os.getpid()}").symlink_to(f"/proc/{os.getpid()}")
    monkeypatch.setattr(holders, "_PROCESSES", directory)


def exhausted(monkeypatch: pytest.MonkeyPatch, _: Path) -> None:
    """No file can be opened."""
    monkeypatch.setattr(holders.Path, "read_text", no_descriptor)


def no_descriptor(_: Path) -> str:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


@pytest.mark.parametrize("trouble", [hidden, exhausted])
def test_a_process_that_proc_does_not_show_may_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, trouble: Callable[..., None]
) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        theirs = held_by(child.pid)
        own = here()
        trouble(monkeypatch, tmp_path)
        assert not theirs.has_ended(own)
        assert not theirs.has_ended(replace(own, process_began=0)), "nor is our own shown"
        unknown = replace(theirs, process_began=0)
        assert not unknown.has_ended(own)
        monkeypatch.undo()
        assert not unknown.has_ended(own), "it could not tell when it began"
        child.kill()
        child.wait()
        trouble(monkeypatch, tmp_path / "again")
        assert theirs.has_ended(own), "the kernel has no process of that number"
        assert unknown.has_ended(own)


@pytest.mark.parametrize("error", [errno.EPERM, errno.EINVAL])
def test_only_the_absence_of_a_process_is_its_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: int
) -> None:
    theirs = replace(here(OTHER), process=1)
    hidden(monkeypatch, tmp_path)

    def refused(process: int, number: int) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "kill", refused)
    assert not theirs.has_ended(here())


@pytest.mark.parametrize("number", [0, -1, 1 << 80, "7"])
def test_a_number_that_is_none_of_a_process_says_nothing(number: Any) -> None:
    assert not replace(here(OTHER), process=number).has_ended(here())


def test_the_proc_of_another_container_says_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "self").symlink_to("1")
    monkeypatch.setattr(holders, "_PROCESSES", tmp_path)
    assert here().process_space == 0


def test_what_a_holder_tells_is_understood_or_ignored() -> None:
    one = here()
    assert Holder.of(Entry(1, one.to_bytes())) == one
    assert Holder.of(Entry(1, one.to_bytes()[:-1] + b',"newer":1}')) == one
    for junk in (b'{"start":3}', b"[]", b"\xff", b'{"data_id":"d","life":"l","lock":7}'):
        assert Holder.of(Entry(1, junk)) is None


async def test_the_name_is_free_once_it_has_expired(store: FileMetaStore) -> None:
    first = await take_name(store, "a", here(), TTL, same_directory=False)
    await first.abandon()  # as a process that is killed on another machine, or stopped
    began = asyncio.get_running_loop().time()
    second = await take_name(store, "a", here(OTHER), TTL, same_directory=False)
    assert asyncio.get_running_loop().time() - began > TTL / 2
    await first.close()
    assert await store.get("live.a") is not None, "it is not the first's any more"
    await second.close()


async def test_it_is_free_at_once_if_its_holder_has_ended(store: FileMetaStore) -> None:
    first = await take_name(store, "a", here(), 60, same_directory=False)
    await first.abandon()
    async with asyncio.timeout(10):
        second = await take_name(store, "a", here(), 60, same_directory=False)
    await second.close()


@pytest.mark.parametrize("data_id", ["d", "another"])
async def test_it_is_refused_while_its_holder_renews_it(store: FileMetaStore, data_id: str) -> None:
    first = await take_name(store, "a", here(), TTL, same_directory=False)
    with pytest.raises(ConfigError, match=r"node a runs already: process .* on ") as raised:
        await take_name(store, "a", here(OTHER, data_id), TTL, same_directory=True)
    assert "stop the running daemon first" in str(raised.value.hint)
    await first.close()


async def test_who_was_displaced_waits_for_the_end_of_the_other(store: FileMetaStore) -> None:
    first = await take_name(store, "a", here(), TTL, same_directory=False)
    waiting = asyncio.ensure_future(
        take_name(store, "a", here(OTHER), TTL, same_directory=True, was_displaced=True)
    )
    done, _ = await asyncio.wait({waiting}, timeout=2 * TTL)
    assert not done
    await first.close()
    async with asyncio.timeout(10):
        await (await waiting).close()


async def test_of_two_that_come_at_once_one_gets_it(store: FileMetaStore) -> None:
    both = await asyncio.gather(
        take_name(store, "a", here(), TTL, same_directory=False),
        take_name(store, "a", here(OTHER), TTL, same_directory=False),
        return_exceptions=True,
    )
    [refused] = [one for one in both if isinstance(one, ConfigError)]
    [taken] = [one for one in both if one is not refused]
    assert not isinstance(taken, BaseException)
    await taken.close()


async def test_an_older_version_tells_nothing_of_itself(store: FileMetaStore) -> None:
    """It is taken for an earlier start where the directory has been this node."""
    old = await store.session("live.a", b'{"start":3}', 60)
    await old.abandon()
    async with asyncio.timeout(10):
        await (await take_name(store, "a", here(), TTL, same_directory=True)).close()
    old = await store.session("live.a", b'{"start":3}', TTL)
    with pytest.raises(ConfigError, match="another process"):
        await take_name(store, "a", here(), TTL, same_directory=False)
    await old.close()
