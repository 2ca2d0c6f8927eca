"""The metadata store in a file: calls from an event loop, several processes, sessions, watches."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.disks.simfs import Fault, SimFileSystem
from support.repository import REPOSITORY
from support.rounds import rounds

from liftlog.cluster.store import CasUnknown, StoreUnavailable
from liftlog.server.metadata.file_store import FileMetaStore


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[FileMetaStore]:
    async with opened(tmp_path / "records") as store:
        yield store


@contextlib.asynccontextmanager
async def opened(path: Path) -> AsyncIterator[FileMetaStore]:
    store = FileMetaStore(path, shared=True)
    try:
        yield store
    finally:
        store.close()


async def test_changes_that_wait_are_made_with_one_write() -> None:
    fs = SimFileSystem()
    store = FileMetaStore(Path("/records"), shared=False, fs=fs)
    await asyncio.gather(*(store.cas(f"stream.{i}", b"{}", 0) for i in range(1100)))
    # The first one does not wait; all others came while it was written.
    assert sum(step.startswith("rename") for step in fs.log) == 2
    assert len(await store.scan("stream.")) == 1100
    store.close()


async def test_a_caller_that_is_cancelled_leaves_a_change_that_is_made(
    store: FileMetaStore,
) -> None:
    calls = [asyncio.ensure_future(store.cas(f"k{i}", b"{}", 0)) for i in range(3)]
    await asyncio.sleep(0)
    calls[1].cancel()
    done = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(done[1], asyncio.CancelledError)
    assert set(await store.scan("k")) == {"k0", "k1", "k2"}


async def test_failures_are_raised_in_every_call_that_they_concern() -> None:
    fs = SimFileSystem()
    store = FileMetaStore(Path("/records"), shared=False, fs=fs)
    await store.cas("k", b"{}", 0)
    fs.faults = [Fault("fsync", times=2), Fault("fsync-directory")]
    done = await asyncio.gather(
        *(store.cas(f"k{i}", b"{}", 0) for i in range(3)), return_exceptions=True
    )
    assert [type(one) for one in done] == [StoreUnavailable] * 3
    with pytest.raises(CasUnknown):
        await store.cas("k", b"{}", 1)
    assert set(await store.scan("")) == {"k"}
    store.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        await store.get("k")
    with pytest.raises(StoreUnavailable, match="closed"):
        await store.cas("k", b"{}", 0)


# --- watches ---


async def test_a_watch_goes_on_while_the_file_cannot_be_read(
    store: FileMetaStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "records"
    await store.cas("stream.a", b"1", 0)
    raw = path.read_bytes()
    seen: asyncio.Queue[bytes | None] = asyncio.Queue()
    watch = asyncio.ensure_future(
        store.watch("stream.", lambda key, one: seen.put_nowait(one and one.value))
    )
    async with asyncio.timeout(20):
        assert await seen.get() == b"1"
        path.write_bytes(b"rot")
        while "metadata-store-unavailable" not in caplog.text:
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.5)
        assert caplog.text.count("metadata-store-unavailable") == 1
        path.write_bytes(raw)
        await store.cas("stream.a", b"2", 1)
        assert await seen.get() == b"2"
    watch.cancel()
    await asyncio.wait({watch})


# --- sessions ---


async def test_a_session_survives_a_store_that_is_away_for_a_moment() -> None:
    fs = SimFileSystem()
    store = FileMetaStore(Path("/records"), shared=False, fs=fs)
    session = await store.session("live.a", b"{}", 1)
    began = session.deadline
    fs.faults = [Fault("fsync-directory"), Fault("fsync", countdown=2)]
    async with asyncio.timeout(20):
        while session.deadline < began + 1:
            await asyncio.sleep(0.02)
    assert all(not fault.times for fault in fs.faults)
    assert await store.get("live.a") is not None
    await session.close()
    store.close()


async def test_a_session_outlives_a_store_that_was_set_back(tmp_path: Path) -> None:
    """To a time at which the node had started once less, and lived."""
    path = tmp_path / "records"
    store = FileMetaStore(path, shared=True)
    earlier = await store.session("live.a", b'{"start":1}', 60)
    await earlier.abandon()  # killed
    old = path.read_bytes()
    session = await store.session("live.a", b'{"start":2}', 1, revision=1)
    await store.cas("stream.a", b"{}", 0)
    began = session.deadline
    path.write_bytes(old)
    async with asyncio.timeout(20):
        while session.deadline < began + 2:
            await asyncio.sleep(0.02)
    found = await store.get("live.a")
    assert found is not None
    assert found.value == b'{"start":2}'
    await session.close()
    assert await store.get("live.a") is None
    store.close()


# --- several processes, killed at any time ---

_WRITER = """
import asyncio, json, random, sys, time
from pathlib import Path
from liftlog.cluster.store import CasLost, StoreUnavailable
from liftlog.server.metadata.file_store import FileMetaStore

async def main(path, name, seed):
    rng = random.Random(seed)
    store = FileMetaStore(Path(path), shared=True)
    number = 0
    while True:
        key = rng.choice(("stream.a", "stream.b"))
        entry = await store.get(key)
        known = [] if entry is None else json.loads(entry.value)
        number += 1
        label = f"{name}-{number}"
        before = time.monotonic_ns()
        value = json.dumps([*known, label]).encode()
        try:
            await store.cas(key, value, 0 if entry is None else entry.revision)
        except CasLost:
            print(json.dumps(["lost", key, label, before, time.monotonic_ns()]), flush=True)
        else:
            print(json.dumps(["made", key, label, before, time.monotonic_ns()]), flush=True)

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


def _writer(path: Path, name: str, seed: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", _WRITER, str(path), name, str(seed)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, cwd=REPOSITORY)


async def test_processes_that_are_killed_agree_on_one_order(tmp_path: Path) -> None:
    """Each change appends to the list that its process has read, so the lists at the end show in
    which order the changes took effect: all that were made, none that was lost, each once, and
    none before one that had been answered when it began."""
    path, rng = tmp_path / "records", random.Random(7)
    answers: dict[str, list[tuple[str, str, int, int]]] = {"stream.a": [], "stream.b": []}
    writers = {f"p{i}": _writer(path, f"p{i}", i) for i in range(3)}
    async with opened(path) as store:
        for round_number in range(3, 3 + rounds(6)):
            await _more_changes(store, 15)
            await asyncio.sleep(rng.uniform(0, 0.1))
            victim = rng.choice(sorted(writers))
            _end(writers.pop(victim), answers)
            writers[f"p{round_number}"] = _writer(path, f"p{round_number}", round_number)
        await _more_changes(store, 15)
        for process in writers.values():
            _end(process, answers)
        for key, known in answers.items():
            entry = await store.get(key)
            assert entry is not None
            _check_order(json.loads(entry.value), known)


async def _more_changes(store: FileMetaStore, count: int) -> None:
    """Wait until the processes have made so many more."""
    begun = await _changes_made(store)
    async with asyncio.timeout(120):
        while await _changes_made(store) < begun + count:
            await asyncio.sleep(0.01)


async def _changes_made(store: FileMetaStore) -> int:
    return sum(len(json.loads(one.value)) for one in (await store.scan("stream.")).values())


def _end(
    process: subprocess.Popen[bytes], answers: dict[str, list[tuple[str, str, int, int]]]
) -> None:
    process.send_signal(signal.SIGKILL)
    output = process.communicate()[0]
    for line in output.splitlines(keepends=True):
        if line.endswith(b"\n"):
            outcome, key, label, before, after = json.loads(line)
            answers[key].append((outcome, label, before, after))


def _check_order(order: list[str], known: list[tuple[str, str, int, int]]) -> None:
    assert len(set(order)) == len(order)
    made = [(label, before, after) for outcome, label, before, after in known if outcome == "made"]
    assert len(made) > 10
    assert {label for label, _, _ in made} <= set(order)
    assert not {label for outcome, label, _, _ in known if outcome == "lost"} & set(order)
    place = {label: number for number, label in enumerate(order)}
    made.sort(key=lambda one: place[one[0]])
    newest_begin = 0
    for _, before, after in made:
        assert after > newest_begin, "a change took effect before one that began after it ended"
        newest_begin = max(newest_begin, before)
