"""The offsets of all erased records, for copies of a stream, over a socket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.daemons.local_broker import Running
from support.daemons.pull_broker import pull_server
from support.disks.logs import create
from support.disks.simfs import SimFileSystem

from acl.policy import Policy
from acl.tokens import hash_token
from liftlog.client import Client, ErasedOffsets, Filter, connect
from liftlog.errors import Forbidden
from liftlog.log import Log
from liftlog.log.erased import ErasedSet
from liftlog.log.files import erasures
from liftlog.log.files.erased_file import CHUNK_OFFSETS, parse_bitmap
from liftlog.log.files.erasures import Erasure, append_erasure, newest_erasure, read_erasures
from liftlog.sequencing import MessageRun
from liftlog.server.streams import erased_offsets
from liftlog.server.streams.erased_offsets import ErasedOffsetsReader

COUNT = 50
SECRET = "a-secret-that-is-long-enough"


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    running = Running(tmp_path)
    await running.start()
    await running.broker.create_stream("s", {"subject": "s.>", "dedupe_window": "0s"})
    host = running.broker.hosts["s"]
    subjects = [b"s.%d" % (number % 5) for number in range(COUNT)]
    values = [b"%d" % number for number in range(COUNT)]
    host.receive(MessageRun(subjects, [b""] * COUNT, values, [b""] * COUNT))
    host.kick()
    await host.drained()
    yield running
    await running.broker.close()


@pytest.fixture
async def client(running: Running) -> AsyncIterator[Client]:
    async with (
        pull_server(running.broker) as (_, address),  # type: ignore[arg-type]
        connect(address) as client,
    ):
        yield client


def log_of(running: Running) -> Log:
    return running.broker.hosts["s"].log


def offsets_of(found: ErasedOffsets) -> list[int]:
    chunks = {number: parse_bitmap(bits) for number, bits in found.bitmaps.items()}
    return [int(one) for one in ErasedSet(chunks).offsets_in(0, 2**60)]


async def test_the_offsets_of_all_erasures(client: Client, running: Running) -> None:
    assert await client.erased_offsets("s") == ErasedOffsets("", {}, 0)
    await client.erase("s", [(3, 5)])
    first = await client.erased_offsets("s")
    assert (offsets_of(first), first.unknown) == ([3, 4], 0)
    assert await client.erased_offsets("s", first.newest) == ErasedOffsets(first.newest, {}, 0)
    await client.erase("s", filter=Filter(subject="s.1"))
    second = await client.erased_offsets("s", first.newest)
    assert second.newest != first.newest
    assert offsets_of(second) == sorted({3, 4} | {one for one in range(1, 51) if one % 5 == 2})


async def test_a_long_list_comes_in_parts(
    client: Client, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = log_of(running)
    for number in range(5):
        offsets = ErasedSet.of_ranges([(number * CHUNK_OFFSETS + 7, number * CHUNK_OFFSETS + 9)])
        one = Erasure(f"id{number}", 1, "", "", 2, (), "x", offsets.to_plain(), done=True)
        append_erasure(log.environment.fs, log.directory, one)
    monkeypatch.setattr(erased_offsets, "ANSWER_BYTES", 10)
    monkeypatch.setattr(erased_offsets, "STEP", 2)
    found = await client.erased_offsets("s")
    assert found.newest == "id4"
    wanted = [number * CHUNK_OFFSETS + bit for number in range(5) for bit in (7, 8)]
    assert offsets_of(found) == wanted


async def test_an_interrupted_erasure_does_not_count(client: Client, running: Running) -> None:
    """Its records are still shown."""
    log = log_of(running)
    await client.erase("s", [(3, 5)])
    offsets = ErasedSet.of_ranges([(4, 8)])
    one = Erasure("late", 1, "", "", 4, ((4, 8),), "", offsets.to_plain())
    append_erasure(log.environment.fs, log.directory, one)
    found = await client.erased_offsets("s")
    assert found.newest.startswith("late:")
    assert offsets_of(found) == [3, 4]
    assert await client.erased_offsets("s", found.newest) == ErasedOffsets(found.newest, {}, 0)


@pytest.mark.parametrize("is_noted", [False, True])
async def test_an_erasure_that_hides_its_records_later_is_told_again(
    client: Client, running: Running, is_noted: bool
) -> None:
    """A client can ask after the entry is listed and before its records are hidden. And after an
    error, a restart may hide the records."""
    log = log_of(running)
    fs, directory = log.environment.fs, log.directory
    offsets = ErasedSet.of_ranges([(4, 8)])
    append_erasure(fs, directory, Erasure("x", 1, "", "", 4, ((4, 8),), "", offsets.to_plain()))
    first = await client.erased_offsets("s")
    assert offsets_of(first) == []
    log.structure.erase(ErasedSet.of_ranges([(4, 6)]))
    second = await client.erased_offsets("s", first.newest)
    assert offsets_of(second) == [4, 5]
    log.structure.erase(offsets)
    if is_noted:
        erasures.note_done(fs, directory, "x")
    third = await client.erased_offsets("s", second.newest)
    assert (third.newest, offsets_of(third)) == ("x", [4, 5, 6, 7])
    assert await client.erased_offsets("s", "x") == ErasedOffsets("x", {}, 0)


async def test_erased_records_without_a_list(client: Client, running: Running) -> None:
    """A backup has the erased files, but not the list."""
    log = log_of(running)
    log.structure.erase(ErasedSet.of_ranges([(4, 6)]))
    found = await client.erased_offsets("s")
    assert offsets_of(found) == [4, 5]
    assert await client.erased_offsets("s", found.newest) == ErasedOffsets(found.newest, {}, 0)
    await client.erase("s", [(9, 10)])
    assert offsets_of(await client.erased_offsets("s", found.newest)) == [4, 5, 9]


async def test_a_list_that_lost_an_erasure(client: Client, running: Running) -> None:
    """A client that knows another list has to be warned: the daemon was restored from a backup."""
    assert (await client.erased_offsets("s", "gone")).is_listed is False
    await client.erase("s", [(3, 5)])
    lost = await client.erased_offsets("s", "gone:0123456789abcdef")
    assert (offsets_of(lost), lost.is_listed) == ([3, 4], False)
    assert (await client.erased_offsets("s", lost.newest)).is_listed
    await client.erase("s", [(7, 8)])
    assert (await client.erased_offsets("s", lost.newest)).is_listed


def test_later_parts_come_in_any_case(running_log: Log) -> None:
    """A client that asks for a later part has not got all offsets yet."""
    offsets = ErasedSet.of_ranges([(CHUNK_OFFSETS, CHUNK_OFFSETS + 1)])
    one = Erasure("id", 1, "", "", 1, (), "x", offsets.to_plain(), done=True)
    append_erasure(running_log.environment.fs, running_log.directory, one)
    for part, parts in ((0, []), (1, [1])):
        reading = ErasedOffsetsReader(running_log, "id", part)
        while reading.step():
            pass
        assert reading.answer().parts == parts


def test_a_step_handles_a_limited_number_of_bytes(
    running_log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs, directory = running_log.environment.fs, running_log.directory
    monkeypatch.setattr(erasures, "STEP_BYTES", 1000)
    monkeypatch.setattr(erased_offsets, "STEP_BYTES", 300)
    for number in range(20):
        offsets = ErasedSet.of_ranges([(number * 100, number * 100 + 50)])
        one = Erasure(f"id{number}", 1, "", "", 50, (), "x", offsets.to_plain(), done=True)
        append_erasure(fs, directory, one)
    reading, steps = ErasedOffsetsReader(running_log, "", 0), 1
    while reading.step():
        steps += 1
    assert 4 < steps < 20
    bits = parse_bitmap(reading.answer().bitmaps[0])
    assert len(bits) == 20 * 50


def test_entries_without_offsets(running_log: Log) -> None:
    """Ranges count if every record in them was erased; otherwise nobody knows which."""
    fs, directory = running_log.environment.fs, running_log.directory
    for one in (
        Erasure("whole", 1, "", "", 3, ((2, 4), (9, 10)), done=True),
        Erasure("some", 2, "", "", 17, ((20, 2000),), "x", done=True),
    ):
        append_erasure(fs, directory, one)
    reading = ErasedOffsetsReader(running_log, "", 0)
    while reading.step():
        pass
    answer = reading.answer()
    bits = parse_bitmap(answer.bitmaps[0])
    assert (answer.newest, answer.unknown, list(bits)) == ("some", 17, [2, 3, 9])


@pytest.fixture
def running_log() -> Log:
    return create(SimFileSystem())


def test_the_newest_erasure(running_log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    fs, directory = running_log.environment.fs, running_log.directory
    assert newest_erasure(fs, directory) == ""
    monkeypatch.setattr(erasures, "STEP_LINES", 3)
    for number in range(10):
        append_erasure(fs, directory, Erasure(f"id{number}", 1, "", "", 1, ((number, number + 1),)))
        erasures.note_done(fs, directory, f"id{number}")
        assert newest_erasure(fs, directory) == f"id{number}"
    listed = read_erasures(fs, directory)
    assert [(one.erasure_id, one.done) for one in listed] == [(f"id{n}", True) for n in range(10)]


async def test_who_may_not_read_the_whole_stream_is_refused(running: Running) -> None:
    policy = Policy.load(
        f"""
principals:
  part: {{token_hash: "{hash_token(SECRET)}"}}
roles:
  look: [{{allow: [read], streams: [s], subjects: [s.1]}}]
bindings:
  part: [look]
"""
    )
    async with (
        pull_server(running.broker, policy=policy) as (_, address),  # type: ignore[arg-type]
        connect(address, token=f"part.{SECRET}") as client,
    ):
        with pytest.raises(Forbidden, match="whole stream"):
            await client.erased_offsets("s")
