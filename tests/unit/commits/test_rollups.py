"""Roll-ups of a stream without NATS: what readers see, and what a start finds after a kill."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.daemons.local_broker import Running

from liftlog.errors import StorageError
from liftlog.log import Log, writing
from liftlog.records.decode import iter_batches
from liftlog.sequencing import MessageRun
from liftlog.server.commits import rollups
from liftlog.server.commits.host import StreamHost
from liftlog.settings.stored import stored_form

SETTINGS = {
    "subject": "s.>",
    "dedupe_window": "0s",
    "subject_sequences": {},
    "jetstream": {"allow_rollup_hdrs": True},
}
SUB = b"NATS/1.0\r\nNats-Rollup: sub\r\n\r\n"
ALL = b"NATS/1.0\r\nNats-Rollup: all\r\n\r\n"
Message = tuple[bytes, bytes]


def receive(host: StreamHost, *messages: Message) -> None:
    """Publish messages, each a subject and a header block, as one group."""
    subjects = [subject for subject, _ in messages]
    blocks = [block for _, block in messages]
    nothing = [b""] * len(messages)
    host.receive(MessageRun(subjects, nothing, nothing, blocks))
    host.kick()


async def put(host: StreamHost, *messages: Message) -> None:
    receive(host, *messages)
    await host.drained()


def left(log: Log) -> list[int]:
    """The offsets of the records that readers get."""
    found, at = list[int](), log.log_start_offset
    while at < log.high_watermark:
        piece = log.read(at, 1 << 20)
        if piece is None:
            break
        with piece:
            for batch in iter_batches(piece.pread()):
                found += [one for one in batch.offsets() if one >= at]
            at = piece.next_offset
    assert log.view.record_count == len(found)
    return found


async def started(running: Running) -> StreamHost:
    broker = await running.start()
    if "s" not in broker.hosts:
        await broker.create_stream("s", SETTINGS)
    return broker.hosts["s"]


def killed(running: Running) -> None:
    """Forget a daemon as a kill does: nothing is written any more."""
    host = running.broker.hosts["s"]
    host.close()
    host.log.close_files()
    running.data_dir.close(None)


A, B, C = (b"s.a", b""), (b"s.b", b""), (b"s.c", b"")


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ([[A, B, A], [(b"s.a", SUB)]], [2, 4]),
        ([[A, B, A], [(b"s.b", ALL)]], [4]),
        ([[(b"s.a", SUB)], [A, A], [(b"s.a", SUB)], [B]], [4, 5]),
        ([[A, (b"s.a", SUB), A, B]], [2, 3, 4]),
        ([[A, (b"s.b", ALL), A, (b"s.a", SUB)]], [2, 4]),
        ([[A, B, C], [(b"s.*", SUB), A]], [4, 5]),
        ([[A, B], [C, (b"s.>", SUB), C], [(b"s.c", SUB)]], [4, 6]),
    ],
)
async def test_what_is_left(
    tmp_path: Path, groups: Sequence[Sequence[Message]], expected: list[int]
) -> None:
    """The same before a clean stop, after it, and after a kill in place of it."""
    for ending in ("stop", "kill", "late kill"):
        directory = tmp_path / ending
        running = Running(directory)
        host = await started(running)
        for group in groups:
            await put(host, *group)
        assert left(host.log) == expected
        if ending == "late kill":
            host.log.structure.list_hidden()
            await put(host, A)
        if ending == "stop":
            await running.broker.close()
        else:
            killed(running)
        running = Running(directory)
        host = await started(running)
        more = [sum(map(len, groups)) + 1] if ending == "late kill" else []
        assert left(host.log) == expected + more
        table = host.sequencer.subjects
        assert table is not None
        assert table.count() is not None
        await running.broker.close()


async def test_a_start_reads_only_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    running = Running(tmp_path)
    host = await started(running)
    for _ in range(3):
        await put(host, A, (b"s.a", SUB))
    await running.broker.close()
    running = Running(tmp_path)
    searched: list[Any] = []
    monkeypatch.setattr(rollups, "older_records", lambda *some, **_: searched.append(some))
    host = await started(running)
    assert left(host.log) == [6]
    assert host.log.view.manifest.rolled_up_below == 7
    assert searched == []
    await running.broker.close()


async def test_the_older_records_and_the_new_one_change_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a search runs, later groups are stored, and readers see neither them nor the
    roll-up."""
    running = Running(tmp_path)
    host = await started(running)
    await put(host, A, A, B)
    may_end, search = threading.Event(), rollups.older_records

    def held(*arguments: Any, **options: Any) -> Any:
        assert may_end.wait(20)
        return search(*arguments, **options)

    monkeypatch.setattr(rollups, "older_records", held)
    receive(host, (b"s.a", SUB))
    receive(host, C, (b"s.c", SUB))
    receive(host, B)
    async with asyncio.timeout(20):
        while host.log.log_end_offset < 8:
            host.kick()
            await asyncio.sleep(0.01)
    assert left(host.log) == [1, 2, 3]
    assert host.log.high_watermark == 4
    may_end.set()
    await host.drained()
    assert left(host.log) == [3, 4, 6, 7]
    await running.broker.close()


async def test_a_search_is_repeated_after_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = Running(tmp_path)
    host = await started(running)
    await put(host, A, A)
    calls, search = list[int](), rollups.older_records

    def failing(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) < 3:
            raise StorageError("on purpose")
        return search(*arguments, **options)

    monkeypatch.setattr(rollups, "older_records", failing)
    monkeypatch.setattr(rollups, "RETRY_SECONDS", 0.01)
    await put(host, (b"s.a", SUB))
    assert (left(host.log), len(calls)) == ([3], 3)
    await running.broker.close()


async def test_the_search_of_a_subject_ends_at_its_last_rollup(tmp_path: Path) -> None:
    running = Running(tmp_path)
    host = await started(running)
    await put(host, A, B)
    await put(host, (b"s.a", SUB))
    await put(host, A, B)
    end = host.log.high_watermark
    found = rollups.older_records(host.log, {b"s.a": end}, end)
    assert found.ranges() == [(3, 5)]
    assert rollups.older_records(host.log, {b"": end}, end).ranges() == [(2, 6)]
    await running.broker.close()


async def test_hidden_records_are_listed_after_failures(tmp_path: Path) -> None:
    """A disk that refuses the file of erased records costs nothing but time."""
    running = Running(tmp_path)
    host = await started(running)
    await put(host, A, (b"s.a", SUB))
    running.fs.failing["open"] = ".erased"
    with pytest.raises(StorageError):
        host.log.structure.list_hidden()
    assert host.log.structure.has_unlisted
    assert left(host.log) == [2]
    running.fs.failing.clear()
    host.log.structure.list_hidden()
    assert not host.log.structure.has_unlisted
    assert [one.count for one in host.log.view.manifest.erased] == [1]
    assert left(host.log) == [2]
    await running.broker.close()


@pytest.mark.parametrize("change", ["roll", "purge", "erase", "metadata"])
async def test_changes_of_the_manifest_keep_what_is_not_listed(tmp_path: Path, change: str) -> None:
    running = Running(tmp_path)
    host = await started(running)
    await put(host, A, B, A, (b"s.a", SUB), B)
    log = host.log
    assert log.structure.has_unlisted
    changes: dict[str, Callable[[], object]] = {
        "roll": log.leave_active_segment,
        "purge": lambda: log.truncate_prefix(2),
        "erase": lambda: log.structure.erase(rollups.ErasedSet.of_ranges([(2, 3)])),
        "metadata": lambda: log.structure.set_metadata(
            {"settings": stored_form(host.settings), "origin": "api"}
        ),
    }
    await host.run_exclusive(changes[change])
    expected = [4, 5] if change == "erase" else [2, 4, 5]
    assert left(log) == expected
    log.structure.list_hidden()
    assert left(log) == expected
    killed(running)
    running = Running(tmp_path)
    assert left((await started(running)).log) == expected
    await running.broker.close()


@pytest.mark.parametrize("durability", ["fsync", "interval", "os"])
async def test_each_durability(tmp_path: Path, durability: str) -> None:
    running = Running(tmp_path)
    broker = await running.start()
    flush = {"interval": "10ms"}
    await broker.create_stream("s", SETTINGS | {"durability": durability, "flush": flush})
    host = broker.hosts["s"]
    for _ in range(2):
        await put(host, A, B, A)
        await put(host, (b"s.a", SUB))
    async with asyncio.timeout(20):
        while host.log.high_watermark < 9:
            await asyncio.sleep(0.01)
    assert left(host.log) == [2, 6, 8]
    killed(running)
    running = Running(tmp_path)
    assert left((await started(running)).log) == [2, 6, 8]
    await running.broker.close()


async def test_many_appends_before_a_flush(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The high watermark stops exactly at a roll-up, also after more appends than a log without
    roll-ups keeps the ends of."""
    monkeypatch.setattr(writing, "MAX_NOTED_ENDS", 4)
    running = Running(tmp_path)
    broker = await running.start()
    interval = {"durability": "interval", "flush": {"interval": "300ms"}}
    await broker.create_stream("s", SETTINGS | interval)
    host = broker.hosts["s"]
    for _ in range(2):
        for message in [*[A] * 5, (b"s.a", SUB), *[B] * 4]:
            await put(host, message)
    async with asyncio.timeout(20):
        while host.log.high_watermark < 21:
            await asyncio.sleep(0.01)
    assert left(host.log) == [7, 8, 9, 10, 16, 17, 18, 19, 20]
    await running.broker.close()


async def switch(host: StreamHost, *, allows: bool) -> None:
    assert host.settings.jetstream is not None
    own = host.settings.jetstream.model_copy(update={"allow_rollup_hdrs": allows})
    settings = host.settings.model_copy(update={"jetstream": own})
    metadata = {"settings": stored_form(settings), "origin": "api"}
    await host.run_exclusive(
        lambda: host.log.structure.set_metadata(metadata), lambda: host.adopt(settings)
    )


@pytest.mark.parametrize("allows_again", [False, True])
async def test_a_kill_after_rollups_were_forbidden(tmp_path: Path, allows_again: bool) -> None:
    """Erased records stay erased after the stream has stopped to allow roll-ups. Later
    headers have no effect, and later starts do not search for them."""
    running = Running(tmp_path)
    host = await started(running)
    await put(host, A, B, A)
    host.log.structure.list_hidden()
    await put(host, (b"s.a", SUB))
    await switch(host, allows=False)
    assert left(host.log) == [2, 4]
    if allows_again:
        await switch(host, allows=True)
    killed(running)
    running = Running(tmp_path)
    host = await started(running)
    assert host.log.config.rolls_up is allows_again
    assert left(host.log) == [2, 4]
    assert (host.log.view.manifest.rolled_up_below is not None) is allows_again
    await put(host, A, (b"s.a", SUB))
    assert left(host.log) == ([2, 6] if allows_again else [2, 4, 5])
    await running.broker.close()


async def test_the_note_of_a_stream_that_forbids_rollups_is_removed(tmp_path: Path) -> None:
    running = Running(tmp_path)
    host = await started(running)
    await put(host, A, (b"s.a", SUB))
    await switch(host, allows=False)
    async with asyncio.timeout(20):
        while host.log.view.manifest.rolled_up_below is not None:
            await asyncio.sleep(0.01)
    assert left(host.log) == [2]
    await running.broker.close()


async def test_a_start_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream is served, and the offsets are listed as soon as the disk has space."""
    monkeypatch.setattr(rollups, "RETRY_SECONDS", 0.01)
    running = Running(tmp_path)
    host = await started(running)
    await put(host, A, B, A)
    await put(host, (b"s.a", SUB))
    killed(running)
    running = Running(tmp_path)
    running.fs.failing["open"], running.fs.error_number = ".erased", errno.ENOSPC
    host = await started(running)
    assert left(host.log) == [2, 4]
    assert host.log.structure.has_unlisted
    running.fs.failing.clear()
    async with asyncio.timeout(20):
        while host.log.structure.has_unlisted:
            await asyncio.sleep(0.01)
    killed(running)
    running = Running(tmp_path)
    assert left((await started(running)).log) == [2, 4]
    await running.broker.close()


async def test_an_unreadable_segment_does_not_stop_the_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After some failures, the search leaves out what cannot be read, so the stream goes on."""
    running = Running(tmp_path)
    host = await started(running)
    await put(host, A, A)
    await host.run_exclusive(host.log.leave_active_segment)
    await put(host, A)
    bad, read = host.log.segments[0].next_offset, host.log.read_stored
    calls = list[int]()

    def failing(offset: int, max_bytes: int) -> Any:
        if offset < bad:
            calls.append(offset)
            raise StorageError("a bad sector")
        return read(offset, max_bytes)

    with monkeypatch.context() as patched:
        patched.setattr(rollups, "RETRY_SECONDS", 0.01)
        patched.setattr(host.log, "read_stored", failing)
        async with asyncio.timeout(20):
            await put(host, (b"s.a", SUB))
        assert len(calls) == 6
    assert left(host.log) == [1, 2, 4]
    await running.broker.close()


async def test_a_defect_of_a_search_fails_the_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The publishers get an answer, and do not wait for ever."""
    running = Running(tmp_path)
    host = await started(running)
    await put(host, A)

    def defective(*_: Any, **__: Any) -> Any:
        raise ValueError("on purpose")

    monkeypatch.setattr(rollups, "older_records", defective)
    async with asyncio.timeout(20):
        await put(host, (b"s.a", SUB))
    assert "on purpose" in host.failure
    assert left(host.log) == [1]
    await running.broker.close()


async def test_a_search_reads_backwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search reads little of a segment if the last roll-up is near, and all of it otherwise."""
    monkeypatch.setattr(rollups, "FIRST_RECORDS", 2)
    running = Running(tmp_path)
    host = await started(running)
    await put(host, A, *[B] * 50)
    await put(host, (b"s.a", SUB))
    await put(host, A, B, C)
    end, read = host.log.high_watermark, host.log.read_stored
    reads = list[int]()

    def noted(offset: int, max_bytes: int) -> Any:
        reads.append(offset)
        return read(offset, max_bytes)

    monkeypatch.setattr(host.log, "read_stored", noted)
    assert rollups.older_records(host.log, {b"s.a": end}, end).ranges() == [(52, 54)]
    assert min(reads) > 40
    found = rollups.older_records(host.log, {b"s.b": end, b"s.c": end}, end)
    assert found.ranges() == [(2, 52), (54, 56)]
    await running.broker.close()
