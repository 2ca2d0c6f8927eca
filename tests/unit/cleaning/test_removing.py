"""Bytes of erased records that are removed at once: the rewritten segments, and the message ids
that still count."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from support.daemons.local_cleaning import Cleaning

from liftlog.errors import InvalidArgument, StorageError
from liftlog.log.erased import ErasedSet
from liftlog.log.files.erasures import Erasure, append_erasure, note_done, read_erasures
from liftlog.log.files.kept_ids import KEPT_IDS_NAME, read_kept_ids
from liftlog.log.rewrite import RebatchJob, apply_rebatch, rebatch
from liftlog.protocol.administration import EraseRecords, ErasuresAnswer, ProofAnswer
from liftlog.protocol.described import ErasureInfo
from liftlog.sequencing import DedupeWindow, MessageRun
from liftlog.server.commits import subjects
from liftlog.server.commits.host import StreamHost
from liftlog.server.reading.fairness import FairThreads
from liftlog.server.reading.selecting import MatchFinder
from liftlog.server.streams.dedupe_restoring import restore_dedupe, write_dedupe_snapshot
from liftlog.server.streams.erasing import Eraser
from liftlog.server.streams.erasures import begin_proof

COUNT = 90
ME = Eraser("ops", "me")
SECRET = b"personal-id-"


@pytest.fixture
async def cleaning(tmp_path: Path) -> AsyncIterator[Cleaning]:
    """Stream s: 90 records with message ids, one in each batch, in segments of about 16 KiB, the
    last one active."""
    made = Cleaning(tmp_path)
    broker = await made.running.start()
    broker.finder = MatchFinder(FairThreads(1, "test"))
    await broker.create_stream("s", {"subject": "in", "segment": {"max_bytes": "16KiB"}})
    await publish(broker.hosts["s"], 1, COUNT)
    assert broker.hosts["s"].log.segment_count >= 5
    yield made
    await made.close()


async def publish(host: StreamHost, first: int, last: int) -> None:
    for number in range(first, last + 1):
        header = b"NATS/1.0\r\nNats-Msg-Id: %b%d\r\n\r\n" % (SECRET, number)
        value = (b"value %d." % number) * 100
        host.receive(MessageRun([b"in"], [b""], [value], [header], has_cookie=False))
        host.kick()
        await host.drained()


async def erase(cleaning: Cleaning, *ranges: tuple[int, int], now: bool = True) -> str:
    borders = [border for pair in ranges for border in pair]
    message = EraseRecords("s", borders, "why", now=now)
    return (await cleaning.running.broker.erasing.erase(message, ME)).erasure_id


async def shown(cleaning: Cleaning, erasure_id: str) -> ErasureInfo:
    answer = await cleaning.running.broker.erasing.erasures("s", erasure_id)
    assert isinstance(answer, ErasuresAnswer)
    return answer.infos[0]


async def prove(cleaning: Cleaning, erasure_id: str = "") -> ProofAnswer:
    return await cleaning.running.broker.erasing.prove("s", erasure_id, "me")


def host_of(cleaning: Cleaning) -> StreamHost:
    return cleaning.running.broker.hosts["s"]


def on_disk(cleaning: Cleaning) -> bytes:
    directory = cleaning.running.data_dir.stream_path("s")
    return b"".join([one.read_bytes() for one in sorted(directory.iterdir())])


def ids_after_a_start(cleaning: Cleaning) -> list[int]:
    """Return the ids that a daemon would recognise if it started now."""
    dedupe = DedupeWindow(600 * 10**9, 1000)
    restore_dedupe(host_of(cleaning).log, dedupe, cleaning.running.broker.steady_ns())
    marks = dedupe.marks([b"%b%d" % (SECRET, number) for number in range(1, COUNT + 1)])
    found = [number for number, mark in enumerate(marks, 1) if dedupe.lookup(mark) == number]
    single = [dedupe.mark(b"%b%d" % (SECRET, number)) for number in range(1, COUNT + 1)]
    assert single == list(marks)
    return found


async def test_bytes_are_gone_after_the_next_round(cleaning: Cleaning) -> None:
    log = host_of(cleaning).log
    erasure = await erase(cleaning, (3, 5), (40, 41), (COUNT, COUNT + 1))
    info = await shown(cleaning, erasure)
    assert (info.count, info.left, info.is_removing, info.now) == (4, 4, True, True)
    assert 2000 < info.left_bytes < 8000
    assert len(info.reasons) == 2
    answer = await prove(cleaning, erasure)
    assert (answer.count, answer.found) == (4, 4)
    assert {one["is_listed"] for one in answer.files} == {True}
    assert b"value 40." in on_disk(cleaning)

    await cleaning.round()
    assert log.view.erased is None
    assert log.segments[-1].record_count == 0  # the active segment was sealed
    info = await shown(cleaning, erasure)
    assert (info.left, info.is_removing, info.reasons) == (0, False, [])
    answer = await prove(cleaning, erasure)
    assert (answer.count, answer.found, answer.files) == (4, 0, [])
    assert answer.file_count >= 5
    content = on_disk(cleaning)
    for number in (3, 4, 40, COUNT):
        assert b"value %d." % number not in content
        assert b"%b%d\r" % (SECRET, number) not in content
    assert b"value 39." in content
    touched = [one.generation for one in log.segments if one.generation]
    assert len(touched) == 3  # only segments with erased records


async def test_removed_ids_still_count(cleaning: Cleaning) -> None:
    """After a kill, after a clean stop, and for a second removal after a start."""
    host = host_of(cleaning)
    assert ids_after_a_start(cleaning) == list(range(1, COUNT + 1))
    await erase(cleaning, (3, 5), (40, 60), (COUNT, COUNT + 1))
    await cleaning.round()
    assert ids_after_a_start(cleaning) == list(range(1, COUNT + 1))
    kept = read_kept_ids(host.log.environment.fs, host.log.directory)
    assert kept is not None
    assert [one.offset for one in kept.ids] == [3, 4, *range(40, 60), COUNT]
    # Duplicates are still recognised while the daemon runs.
    end = host.log.log_end_offset
    await publish(host, 38, 42)
    assert host.log.log_end_offset == end

    write_dedupe_snapshot(host.log, host.sequencer.dedupe)
    assert ids_after_a_start(cleaning) == list(range(1, COUNT + 1))
    content = on_disk(cleaning)
    for number in (3, 45, COUNT):
        assert (b"%b%d" % (SECRET, number)).hex().encode() + b'"' not in content
        assert b"%b%d\r" % (SECRET, number) not in content
    assert (b"%b%d" % (SECRET, 2)).hex().encode() + b'"' in content

    # As after a start: the window has the hashes.
    restored = DedupeWindow(host.sequencer.dedupe.window_ns, 1000)
    restore_dedupe(host.log, restored, cleaning.running.broker.steady_ns())
    host.sequencer.dedupe = restored
    await publish(host, 40, 41)
    await publish(host, 3, 4)
    assert host.log.log_end_offset == end
    await erase(cleaning, (5, 7))
    await cleaning.round()
    assert ids_after_a_start(cleaning) == list(range(1, COUNT + 1))
    write_dedupe_snapshot(host.log, host.sequencer.dedupe)
    assert ids_after_a_start(cleaning) == list(range(1, COUNT + 1))


async def test_ids_leave_the_file_when_the_window_is_over(cleaning: Cleaning) -> None:
    host = host_of(cleaning)
    await erase(cleaning, (3, 5))
    await cleaning.round()
    cleaning.running.clock.ahead_ns += 3600 * 10**9
    assert ids_after_a_start(cleaning) == []
    await publish(host, COUNT + 1, COUNT + 1)
    await publish(host, 3, 3)  # its window is over: a new message
    assert host.log.log_end_offset == COUNT + 3
    await erase(cleaning, (COUNT + 1, COUNT + 2))
    await cleaning.round()
    kept = read_kept_ids(host.log.environment.fs, host.log.directory)
    assert kept is not None
    assert [one.offset for one in kept.ids] == [COUNT + 1]


async def test_a_stop_between_the_ids_and_the_swap_loses_and_doubles_nothing(
    cleaning: Cleaning,
) -> None:
    await erase(cleaning, (3, 5))
    cleaning.worker.failures = [StorageError("on purpose")]  # type: ignore[list-item]
    await cleaning.round()
    assert host_of(cleaning).log.view.erased is not None
    assert (cleaning.running.data_dir.stream_path("s") / KEPT_IDS_NAME).exists()
    assert ids_after_a_start(cleaning) == list(range(1, COUNT + 1))
    (one,) = (await cleaning.running.broker.erasing.erasures("s")).infos
    assert one.is_removing
    assert "on purpose" in one.problem
    cleaning.state("s").not_before = 0.0
    await cleaning.round()
    assert host_of(cleaning).log.view.erased is None


async def test_a_removal_goes_on_after_a_start(cleaning: Cleaning) -> None:
    log = host_of(cleaning).log
    one = Erasure(
        "0f1e", 1, "", "", 1, ((7, 8),), offsets=ErasedSet.of_ranges([(7, 8)]).to_plain(), now=True
    )
    append_erasure(log.environment.fs, log.directory, one)
    log.structure.erase(ErasedSet.of_ranges([(7, 8), (30, 31)]))
    running = asyncio.create_task(cleaning.cleaner.run())
    try:
        for _ in range(200):
            erased = log.view.erased
            if erased is not None and len(erased) == 1:
                break
            await asyncio.sleep(0.05)
        assert log.view.hides(30)  # its removal was not requested at once
        assert not log.view.hides(7)
    finally:
        running.cancel()
        await asyncio.wait({running})


async def test_a_principal_of_some_subjects_removes_its_own_erasures_only(
    cleaning: Cleaning,
) -> None:
    log, erasing = host_of(cleaning).log, cleaning.running.broker.erasing
    other = await erase(cleaning, (3, 5), now=False)
    offsets = ErasedSet.of_ranges([(40, 42)])
    one = Erasure("own", 1, "me", "", 2, ((40, 42),), offsets=offsets.to_plain(), done=True)
    append_erasure(log.environment.fs, log.directory, one)
    log.structure.erase(offsets)
    with pytest.raises(InvalidArgument, match="no erasure"):
        await erasing.remove("s", other, "me")
    await erasing.remove("s", "", "me")
    await cleaning.round()
    assert log.view.erased is not None
    assert log.view.erased.offsets_in(0, 100).tolist() == [3, 4]


async def test_the_bytes_of_earlier_erasures_can_be_removed(cleaning: Cleaning) -> None:
    log, erasing = host_of(cleaning).log, cleaning.running.broker.erasing
    first, second = [await erase(cleaning, (at, at + 2), now=False) for at in (3, 40)]
    await cleaning.round()
    assert log.view.erased is not None
    assert len(log.view.erased) == 4
    await erasing.remove("s", second)
    assert (await shown(cleaning, second)).is_removing
    assert not (await shown(cleaning, first)).is_removing
    assert [one.now for one in read_erasures(log.environment.fs, log.directory)] == [False, True]
    await cleaning.round()
    assert len(log.view.erased) == 2
    await erasing.remove("s")
    await cleaning.round()
    assert log.view.erased is None
    await erasing.remove("s")  # nothing is left
    with pytest.raises(InvalidArgument, match="no erasure"):
        await erasing.remove("s", "another")


async def test_damage_keeps_bytes_and_is_named(cleaning: Cleaning) -> None:
    log = host_of(cleaning).log
    victim = log.segments[1]
    content = bytearray(victim.path.read_bytes())
    content[-300] ^= 0xFF
    victim.path.write_bytes(content)
    log.quarantine_damage(victim.base_offset, victim.next_offset)
    erasure = await erase(cleaning, (victim.base_offset, victim.base_offset + 1), (3, 4))
    await cleaning.round()
    info = await shown(cleaning, erasure)
    assert (info.left, info.is_removing) == (1, False)
    assert "damaged" in info.reasons[0]
    answer = await prove(cleaning, erasure)
    assert answer.found == 1
    assert [one["file"] for one in answer.files] == [victim.path.name]


async def test_the_proof_finds_what_is_not_listed(cleaning: Cleaning) -> None:
    directory = cleaning.running.data_dir.stream_path("s")
    log = host_of(cleaning).log
    first = log.segments[0].path
    old = first.read_bytes()
    erasure = await erase(cleaning, (3, 5))
    await cleaning.round()
    assert (await prove(cleaning)).files == []
    leftover = directory / f"{first.name}.unlisted"
    leftover.write_bytes(old)
    tail = directory / f"{first.name}.4096.broken"
    tail.write_bytes(b"torn" + old[old.index(b"LLB\x01", 8) :])
    (directory / "notes.txt").write_text("value 3")
    repaired = directory.parents[1] / "repaired" / "s-20260101T000000.000000Z"
    repaired.mkdir(parents=True)
    (repaired / first.name).write_bytes(old)
    (directory / f"{5:020d}.7.subjects").write_bytes(b"x")
    found = {one["file"]: one for one in (await prove(cleaning, erasure)).files}
    assert found[leftover.name]["found"] == found[tail.name]["found"] == 2
    assert found[f"repaired/{repaired.name}/{first.name}"]["found"] == 2
    assert not found[leftover.name]["is_listed"]
    assert found[leftover.name]["first_offset"] == 3
    assert "0 to 3" in found[tail.name]["problem"]
    assert "0 to 6" in found["notes.txt"]["problem"]
    assert "not listed" in found[f"{5:020d}.7.subjects"]["problem"]
    assert len(found) == 5


async def test_an_interrupted_erasure_is_named(cleaning: Cleaning) -> None:
    """The entry is written first, so a stop can leave an entry whose records are all there."""
    log = host_of(cleaning).log
    offsets = ErasedSet.of_ranges([(7, 9)]).to_plain()
    one = Erasure("0f1e", 1, "", "", 2, ((7, 9),), offsets=offsets)
    append_erasure(log.environment.fs, log.directory, one)
    info = await shown(cleaning, "0f1e")
    assert info.left == 0
    assert "2 are not erased" in info.reasons[0]
    assert (await prove(cleaning)).count == 0  # of what was erased
    assert (await prove(cleaning, "0f1e")).found == 2
    note_done(log.environment.fs, log.directory, "0f1e")
    (read,) = read_erasures(log.environment.fs, log.directory)
    assert read.done
    with pytest.raises(InvalidArgument, match="no erasure"):
        await shown(cleaning, "another")


async def test_a_long_list_keeps_its_entries(
    cleaning: Cleaning, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("liftlog.log.files.erasures.MOST_BYTES", 20_000)
    log = host_of(cleaning).log
    ids = []
    for number in range(24):
        ids.append(f"{number:x}")
        offsets = ErasedSet.of_ranges([(n, n + 1) for n in range(number, 600, 2)]).to_plain()
        one = Erasure(ids[-1], 1, "", "", 300, ((1, 600),), offsets=offsets)
        append_erasure(log.environment.fs, log.directory, one)
        note_done(log.environment.fs, log.directory, ids[-1])
    found = read_erasures(log.environment.fs, log.directory)
    assert [one.erasure_id for one in found] == ids
    assert [bool(one.offsets) for one in found][-1]
    assert not found[0].offsets
    assert all(one.done for one in found)
    assert (log.directory / "erasures").stat().st_size < 20_000


async def test_the_oldest_entries_of_a_very_long_list_become_one(
    cleaning: Cleaning, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise each erasure would write the whole list again, while commits wait."""
    monkeypatch.setattr("liftlog.log.files.erasures.MOST_BYTES", 20_000)
    log, sizes = host_of(cleaning).log, list[int]()
    for number in range(600):
        offsets = ErasedSet.of_ranges([(number, number + 1)]).to_plain()
        reason = "deleted" if number % 3 else f"request {number // 300}"
        ranges = ((number, number + 1),)
        one = Erasure(f"{number:x}", number, "", reason, 1, ranges, offsets=offsets)
        append_erasure(log.environment.fs, log.directory, one)
        note_done(log.environment.fs, log.directory, one.erasure_id)
        sizes.append((log.directory / "erasures").stat().st_size)
    assert max(sizes) < 21_000
    rewrites = sum(after < before for before, after in pairwise(sizes))
    assert 0 < rewrites < 30
    found = read_erasures(log.environment.fs, log.directory)
    assert sum([one.count for one in found]) == 600
    assert [one.erasure_id for one in found[-20:]] == [f"{one:x}" for one in range(580, 600)]
    assert all(one.offsets for one in found[-20:])
    assert found[0].ranges[0][0] == 0
    assert {one.reason for one in found} == {"deleted", "request 0", "request 1"}
    assert (await prove(cleaning)).found == 0


async def test_an_interrupted_erasure_and_its_repetition_do_not_become_one_entry(
    cleaning: Cleaning, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Together they would count as many records as their range has, and all of these records would
    seem to be erased."""
    monkeypatch.setattr("liftlog.log.files.erasures.MOST_BYTES", 20_000)
    log = host_of(cleaning).log
    fs, directory = log.environment.fs, log.directory
    half = ErasedSet.of_ranges([(n, n + 1) for n in range(0, 10, 2)]).to_plain()
    for name in ("interrupted", "repeated"):
        append_erasure(fs, directory, Erasure(name, 1, "", "both", 5, ((0, 10),), "x", half))
    note_done(fs, directory, "repeated")
    for number in range(300):
        offsets = ErasedSet.of_ranges([(number, number + 1)]).to_plain()
        one = Erasure(f"{number:x}", 2, "", "other", 1, ((number, number + 1),), offsets=offsets)
        append_erasure(fs, directory, one)
        note_done(fs, directory, one.erasure_id)
    found = [one for one in read_erasures(fs, directory) if one.reason == "both"]
    assert [(one.erasure_id, one.count, one.done) for one in found] == [
        ("interrupted", 5, False),
        ("repeated", 5, True),
    ]
    assert not any(one.offsets for one in found)


async def test_the_last_offsets_of_subjects_are_corrected_first(
    cleaning: Cleaning, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the removal, only the scan knows that the record was erased."""
    await cleaning.running.broker.create_stream("t", {"subject": "t", "subject_sequences": {}})
    host = cleaning.running.broker.hosts["t"]
    for value in (b"1", b"2"):
        host.receive(MessageRun([b"t"], [b""], [value], [b""], has_cookie=False))
        host.kick()
        await host.drained()
    may_scan, scan = threading.Event(), subjects.scan_subjects

    def slowly(*arguments: Any) -> Any:
        assert may_scan.wait(10)
        return scan(*arguments)

    monkeypatch.setattr(subjects, "scan_subjects", slowly)
    await cleaning.running.broker.erasing.erase(EraseRecords("t", [2, 3], now=True), ME)
    table = host.sequencer.subjects
    assert table is not None
    round_ = asyncio.create_task(cleaning.round())
    await asyncio.sleep(0.2)
    assert table.last_offset(b"t") is None
    may_scan.set()
    await round_
    assert host.log.view.erased is None
    assert table.last_offset(b"t") == 1


async def test_a_proof_searches_files_that_are_rewritten_meanwhile(
    cleaning: Cleaning, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("liftlog.log.offline.proving.PAUSE_BYTES", 1)
    log = host_of(cleaning).log
    segment = log.segments[2]
    await erase(cleaning, (segment.base_offset, segment.base_offset + 1), now=False)
    search = begin_proof(log, "")
    assert search.step()
    # A job that had begun before the erasure.
    job = RebatchJob(
        str(log.directory),
        segment.entry(),
        epochs=log.view.manifest.epochs,
        incarnation=log.incarnation,
    )
    result = rebatch(job, log.environment.fs)
    assert result.swaps
    apply_rebatch(log, result)
    while search.step():
        pass
    answer = search.answer()
    assert answer.found == 1
    assert [one["file"] for one in answer.files] == [log.segments[2].path.name]


async def test_a_filter_and_now(cleaning: Cleaning) -> None:
    erasing = cleaning.running.broker.erasing
    message = EraseRecords("s", [20, 30], filter_subjects=["in"], now=True)
    done = await erasing.erase(message, ME)
    assert done.count == 10
    await cleaning.round()
    assert host_of(cleaning).log.view.erased is None
