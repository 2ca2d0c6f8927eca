"""The last offset of each subject after a restart, compaction, truncation, damage, lost syncs."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from support.daemons.local_broker import Running
from support.daemons.local_cleaning import Cleaning

from liftlog.cluster import transitions
from liftlog.cluster.followers import FetchRequest
from liftlog.cluster.leading import Leader
from liftlog.errors import CorruptRange, StorageError, SyncFailed
from liftlog.log import LogSlice, OsFileSystem, structure
from liftlog.log import erasing as log_erasing
from liftlog.log.erased import ErasedSet
from liftlog.log.files.checkpoint_file import write_checkpoint_file
from liftlog.log.state import LogState
from liftlog.protocol.administration import EraseRecords
from liftlog.records import parse_header
from liftlog.sequencing import MessageRun
from liftlog.sequencing.subject_sequences import SubjectSequences
from liftlog.server.commits import subjects as subjects_module
from liftlog.server.commits.configs import log_config
from liftlog.server.commits.host import StreamHost, new_metadata
from liftlog.server.replication.serving import CatchUpPace, ServedStream
from liftlog.server.streams import erasing
from liftlog.server.streams.erasing import Eraser
from liftlog.settings import parse_stream_settings

SUBJECTS = [b"in.a", b"in.b", b"in.\xff", rb"in.\xff", "in.é".encode(), b"in.\\"]
SETTINGS: dict[str, Any] = {"subject": "in.>", "subject_sequences": {}}
SMALL: dict[str, Any] = {"segment": {"max_bytes": "16KiB"}}


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    made = Running(tmp_path)
    await made.start()
    yield made
    await made.broker.close()


async def store(host: StreamHost, subjects: list[bytes], size: int = 1) -> None:
    count = len(subjects)
    host.receive(MessageRun(subjects, [b""] * count, [b"x" * size] * count, has_cookie=False))
    host.kick()
    await host.drained()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


def table_of(host: StreamHost) -> SubjectSequences:
    table = host.sequencer.subjects
    assert table is not None
    return table


def known(host: StreamHost, subjects: list[bytes]) -> list[int | None]:
    return [table_of(host).last_offset(subject) for subject in subjects]


async def reopened(
    running: Running, tmp_path: Path, *, snapshot: bool = False
) -> tuple[Running, StreamHost]:
    """After a clean stop, whose snapshot is used or removed."""
    path = running.broker.hosts["s"].log.directory / "subjects"
    await running.broker.close()
    assert path.exists()
    if not snapshot:
        path.unlink()
    again = Running(tmp_path)
    await again.start()
    return again, again.broker.hosts["s"]


@pytest.mark.parametrize("way", ["snapshot", "scan at once", "scan beside"])
async def test_after_a_restart(
    way: str, running: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of subjects that are not UTF-8, or look as if they had been escaped."""
    await running.broker.create_stream("s", SETTINGS | SMALL)
    host = running.broker.hosts["s"]
    for _ in range(5):
        await store(host, SUBJECTS, 3000)
    await store(host, [b"in.b"])
    expected = [25, 31, 27, 28, 29, 30, 0]
    assert known(host, [*SUBJECTS, b"in.new"]) == expected
    if way != "scan at once":
        monkeypatch.setattr(subjects_module, "_AT_ONCE_BYTES", 0)
    again, host = await reopened(running, tmp_path, snapshot=way == "snapshot")
    if way == "scan beside":
        assert known(host, SUBJECTS) == [None] * 6
        await until(lambda: table_of(host).is_complete)
    assert known(host, [*SUBJECTS, b"in.new"]) == expected
    await again.broker.close()


async def test_an_unfinished_scan_refuses_and_does_not_guess(
    running: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await running.broker.create_stream("s", SETTINGS)
    await store(running.broker.hosts["s"], [b"in.a", b"in.b"])
    monkeypatch.setattr(subjects_module, "_AT_ONCE_BYTES", 0)
    monkeypatch.setattr(subjects_module.SubjectUpkeep, "request", lambda self: None)
    again, host = await reopened(running, tmp_path)
    sent: list[bytes] = []
    monkeypatch.setattr(host._shared, "send", sent.append)
    block = b"NATS/1.0\r\nNats-Expected-Last-Subject-Sequence: 1\r\n\r\n"
    for _ in range(2):
        host.receive(MessageRun([b"in.a"], [b"_INBOX.r"], [b"v"], [block], has_cookie=False))
        host.kick()
        await host.drained()
    errors = [json.loads(line)["error"] for line in b"".join(sent).split(b"\r\n")[1::2]]
    assert [(error["code"], error["err_code"]) for error in errors] == [(503, 10163)] * 2
    await store(host, [b"in.a"])
    assert known(host, [b"in.a", b"in.b"]) == [3, None]
    assert host.sequencer.refused == {"last_sequence_unknown": 2}
    await again.broker.close()


async def test_truncation(running: Running, tmp_path: Path) -> None:
    await running.broker.create_stream("s", SETTINGS)
    host = running.broker.hosts["s"]
    await store(host, [b"in.a", b"in.b", b"in.a", b"in.c"])
    await running.broker.administration.truncate_prefix("s", 3)
    assert known(host, [b"in.a", b"in.b", b"in.c"]) == [3, 0, 4]
    again, host = await reopened(running, tmp_path)
    assert known(host, [b"in.a", b"in.b", b"in.c"]) == [3, 0, 4]
    await again.broker.close()


async def test_compaction(tmp_path: Path) -> None:
    """Keys go across subjects, so the newest record of a subject goes and an older one stays."""
    cleaning = Cleaning(tmp_path)
    running = cleaning.running
    await running.start()
    settings = {"compaction": {}, "dedupe_window": "0s", "segment": {"max_bytes": "4KiB"}}
    await running.broker.create_stream("s", SETTINGS | settings)
    host = running.broker.hosts["s"]
    rows = [("a", "k1"), ("a", "k2"), ("b", "k2"), ("c", "k3"), ("b", "k3"), ("d", "k4")]
    for subject, key in rows:
        block = f"NATS/1.0\r\nLiftlog-Key: {key}\r\n\r\n".encode()
        name = f"in.{subject}".encode()
        host.receive(MessageRun([name], [b""], [b"x" * 900], [block], has_cookie=False))
        host.kick()
        await host.drained()
    names = [b"in.a", b"in.b", b"in.c", b"in.d"]
    assert known(host, names) == [2, 5, 4, 6]
    cleaning.cleaner.request(host)
    await cleaning.round()
    await until(lambda: known(host, names) == [1, 5, 0, 6])
    await store(host, [b"in.c"])
    assert known(host, names) == [1, 5, 7, 6]
    await cleaning.close()
    again = Running(tmp_path)
    await again.start()
    assert known(again.broker.hosts["s"], names) == [1, 5, 7, 6]
    await again.broker.close()


async def test_what_cannot_be_read_makes_subjects_unknown(
    running: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    await running.broker.create_stream("s", SETTINGS | SMALL)
    host = running.broker.hosts["s"]
    await store(host, [b"in.early"], 9000)
    await store(host, [b"in.both"], 9000)
    for number in range(6):
        await store(host, [b"in.%d" % number], 9000)
    await store(host, [b"in.both"], 9000)
    ill = next(segment for segment in host.log.segments if segment.base_offset > 2)
    original = LogSlice.pread

    def pread(piece: LogSlice) -> bytes:
        if piece.first_offset == ill.base_offset:
            raise OSError(errno.EIO, "Input/output error")
        return original(piece)

    monkeypatch.setattr(LogSlice, "pread", pread)
    scan = subjects_module.scan_subjects(host.log, table_of(host).new_scan())
    assert table_of(host).adopt(scan)
    assert "subjects-unknown stream=s" in caplog.text
    assert known(host, [b"in.early", b"in.new", b"in.both", b"in.5"]) == [None, None, 9, 8]
    # When it can be read again, or is gone.
    monkeypatch.undo()
    host.subjects.request()
    await until(lambda: table_of(host).is_complete)
    assert known(host, [b"in.early", b"in.new", b"in.both"]) == [1, 0, 9]


async def test_what_is_lost_counts_as_removed(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    await running.broker.create_stream("s", SETTINGS)
    host = running.broker.hosts["s"]
    for name in (b"in.a", b"in.b", b"in.a", b"in.c"):
        await store(host, [name])
    original = host.log.read_stored

    def read(offset: int, max_bytes: int) -> Any:
        if offset < 2:
            return original(offset, 1)
        if offset < 4:
            raise CorruptRange("lost", first_offset=offset, next_offset=4)
        return original(offset, max_bytes)

    monkeypatch.setattr(host.log, "read_stored", read)
    host.subjects.request()
    await until(lambda: known(host, [b"in.a"]) == [1])
    assert known(host, [b"in.b", b"in.c"]) == [0, 4]
    assert table_of(host).is_complete


async def test_a_failed_flush_of_what_was_acked(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = {"durability": "interval", "flush": {"interval": "60s"}}
    await running.broker.create_stream("s", SETTINGS | slow)
    host = running.broker.hosts["s"]
    await store(host, [b"in.a"])
    await host.run_exclusive(host.log.writer.roll)
    await store(host, [b"in.a", b"in.b"])
    assert known(host, [b"in.a", b"in.b"]) == [2, 3]
    original = host.log.sync

    def sync() -> None:
        monkeypatch.setattr(host.log, "sync", original)
        raise SyncFailed("EIO")

    monkeypatch.setattr(host.log, "sync", sync)
    with pytest.raises(SyncFailed):
        await host.run_exclusive(host.log.sync)
    await until(lambda: table_of(host).is_complete)
    assert known(host, [b"in.a", b"in.b"]) == [1, 0]
    await store(host, [b"in.b"])
    assert known(host, [b"in.a", b"in.b"]) == [1, 4]


async def test_switched_on_while_messages_wait(running: Running) -> None:
    await running.broker.create_stream("s", {"subject": "in.>"})
    host = running.broker.hosts["s"]
    await store(host, [b"in.a"])
    host.receive(MessageRun([b"in.b"], [b""], [b"v"], has_cookie=False))  # judged, not committed
    host.adopt(host.settings.model_copy(update={"subject_sequences": _defaults()}))
    assert known(host, [b"in.a", b"in.b"]) == [None, None]
    host.kick()
    await until(lambda: table_of(host).is_complete)
    assert known(host, [b"in.a", b"in.b", b"in.c"]) == [1, 2, 0]
    smaller = _defaults().model_copy(update={"max_subjects": 1})
    host.adopt(host.settings.model_copy(update={"subject_sequences": smaller}))
    assert known(host, [b"in.a", b"in.b", b"in.c"]) == [None, 2, None]
    host.adopt(host.settings.model_copy(update={"subject_sequences": _defaults()}))
    await until(lambda: table_of(host).is_complete)
    assert known(host, [b"in.a", b"in.b", b"in.c"]) == [1, 2, 0]
    host.adopt(host.settings.model_copy(update={"subject_sequences": None}))
    assert host.sequencer.subjects is None


def _defaults() -> Any:
    from liftlog.settings.stream import SubjectSequencesSettings

    return SubjectSequencesSettings()


async def test_a_scan_that_fails_ends_nothing_else(
    running: Running, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    await running.broker.create_stream("s", SETTINGS)
    host = running.broker.hosts["s"]
    await store(host, [b"in.a"])

    def fail(*_: Any) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(subjects_module, "scan_subjects", fail)
    host.subjects.request()
    await until(lambda: "subjects-scan-failed stream=s" in caplog.text)
    monkeypatch.undo()
    await store(host, [b"in.b"])
    host.subjects.request()
    await until(lambda: "subjects-scanned stream=s" in caplog.text or table_of(host).is_complete)
    assert known(host, [b"in.a", b"in.b"]) == [1, 2]


async def test_a_closed_stream_ends_its_scan(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    await running.broker.create_stream("s", SETTINGS | SMALL)
    host = running.broker.hosts["s"]
    for _ in range(4):
        await store(host, [b"in.a"], 9000)
    monkeypatch.setattr(subjects_module, "_SCAN_BYTES", 1)
    monkeypatch.setattr(subjects_module, "_PAUSE_SECONDS", 0.05)
    host.subjects.request()
    await asyncio.sleep(0)
    task = scan_of(host)
    assert task is not None
    host.subjects.close()
    await asyncio.wait_for(task, 5)
    host.subjects.request()
    assert scan_of(host) is None


async def test_a_failing_read_is_told(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    await running.broker.create_stream("s", SETTINGS)
    host = running.broker.hosts["s"]
    await store(host, [b"in.a"])

    def read(*_: Any) -> Any:
        raise StorageError("reading s: Input/output error")

    monkeypatch.setattr(host.log, "read_stored", read)
    scan = subjects_module.scan_subjects(host.log, table_of(host).new_scan())
    assert (scan.last, scan.unknown_below, scan.end) == ({}, 2, 2)


@pytest.mark.parametrize("place", [8, 58, 70])
async def test_a_damaged_batch_is_quarantined_and_counts_as_removed(
    place: int, running: Running
) -> None:
    await running.broker.create_stream("s", SETTINGS)
    host = running.broker.hosts["s"]
    for name in (b"in.a", b"in.b", b"in.a", b"in.c", b"in.d"):
        await store(host, [name], 100)
    path = host.log.segments[0].path
    raw, position = path.read_bytes(), 0
    while parse_header(raw, position).base_offset < 3:
        position += parse_header(raw, position).length
    with path.open("r+b") as file:
        file.seek(position + place)
        file.write(bytes([raw[position + place] ^ 1]))
    host.subjects.request()
    await until(lambda: known(host, [b"in.a"]) == [1])
    assert known(host, [b"in.b", b"in.c", b"in.d"]) == [2, 4, 5]
    assert table_of(host).is_complete
    assert [(bad.first_offset, bad.next_offset) for bad in host.log.view.manifest.quarantined] == [
        (3, 4)
    ]


# --- snapshots ---


@pytest.mark.parametrize(
    "what", ["appended", "segments", "quarantined", "lineage", "damaged", "cut", "empty", "other"]
)
async def test_a_snapshot_of_another_state_is_not_used(
    what: str, running: Running, tmp_path: Path, caplog: Any
) -> None:
    await running.broker.create_stream("s", SETTINGS | SMALL)
    host = running.broker.hosts["s"]
    for name in (b"in.a", b"in.b", b"in.a"):
        await store(host, [name], 9000)
    again, host = await reopened(running, tmp_path, snapshot=True)
    path = host.log.directory / "subjects"
    kept = path.read_bytes()
    if what == "appended":
        await store(host, [b"in.b"])
    elif what in ("segments", "quarantined", "lineage"):
        content = json.loads(kept.partition(b"\n")[2])
        content |= {what: None, "last": [[content["last"][0][0], 1], [content["last"][1][0], 1]]}
        write_checkpoint_file(OsFileSystem(), path, "subjects", content)
        kept = path.read_bytes()
    elif what == "damaged":
        kept = kept[:-5] + b"9" + kept[-4:]
    elif what == "cut":
        kept = kept[:40]
    elif what == "empty":
        kept = b""
    else:
        kept = kept.replace(b"subjects 1", b"subjects 2", 1)
    await again.broker.close()
    path.write_bytes(kept)
    last = Running(tmp_path)
    await last.start()
    host = last.broker.hosts["s"]
    assert known(host, [b"in.a", b"in.b"]) == [3, 4 if what == "appended" else 2]
    assert table_of(host).is_complete
    is_broken = what in ("damaged", "cut", "empty", "other")
    assert ("checkpoint-file-ignored file=s/subjects" in caplog.text) == is_broken
    await last.broker.close()


async def test_the_snapshot_of_a_neighbour_is_not_used(running: Running) -> None:
    """A stream with as many records on other subjects: a valid file, in the wrong directory."""
    hosts = []
    for name, head in (("s", b"in"), ("other", b"out")):
        await running.broker.create_stream(name, SETTINGS | {"subject": f"{head.decode()}.>"})
        host = running.broker.hosts[name]
        await store(host, [head + b".a", head + b".b"])
        subjects_module.write_subject_snapshot(host.log, table_of(host))
        hosts.append(host)
    right, wrong = (one.log.directory / "subjects" for one in hosts)
    assert hosts[0].log.log_end_offset == hosts[1].log.log_end_offset
    table = table_of(hosts[0])
    assert subjects_module.restore_subject_snapshot(hosts[0].log, table), "its own is used"
    right.write_bytes(wrong.read_bytes())
    assert not subjects_module.restore_subject_snapshot(hosts[0].log, table)
    assert known(hosts[0], [b"in.a", b"in.b", b"out.a"]) == [1, 2, 0]


def scan_of(host: StreamHost) -> asyncio.Task[None] | None:
    """The scan that is under way."""
    return host.subjects._task


async def test_no_snapshot_while_a_scan_is_due(
    running: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await running.broker.create_stream("s", SETTINGS)
    host = running.broker.hosts["s"]
    await store(host, [b"in.a"])
    monkeypatch.setattr(subjects_module.SubjectUpkeep, "_run", _nothing)
    host.subjects.request()
    await running.broker.close()
    assert not (host.log.directory / "subjects").exists()


async def _nothing(_: Any) -> None: ...


async def test_a_snapshot_knows_what_had_to_be_let_go(running: Running, tmp_path: Path) -> None:
    few = {"subject_sequences": {"max_subjects": 2}}
    await running.broker.create_stream("s", SETTINGS | few)
    await store(running.broker.hosts["s"], [b"in.a", b"in.b", b"in.c"])
    again, host = await reopened(running, tmp_path, snapshot=True)
    assert known(host, [b"in.a", b"in.b", b"in.c"]) == [None, 2, 3]
    assert scan_of(host) is None, "no scan would know more"
    await again.broker.administration.update_stream("s", {"subject_sequences": {"max_subjects": 3}})
    await until(lambda: table_of(host).is_complete)
    assert known(host, [b"in.a", b"in.b", b"in.c"]) == [1, 2, 3]
    await again.broker.close()


async def test_a_misplaced_batch_is_quarantined(running: Running) -> None:
    """A write that went astray: a whole batch, whose checksums are right, where another one was."""
    await running.broker.create_stream("s", SETTINGS)
    host = running.broker.hosts["s"]
    for name in (b"in.a", b"in.b", b"in.a", b"in.c", b"in.d"):
        await store(host, [name], 100)
    path = host.log.segments[0].path
    raw = path.read_bytes()
    size = parse_header(raw).length
    with path.open("r+b") as file:
        file.seek(2 * size)
        file.write(raw[size : 2 * size])
    host.subjects.request()
    await until(lambda: known(host, [b"in.a"]) == [1])
    assert known(host, [b"in.b", b"in.c", b"in.d"]) == [2, 4, 5]
    assert [(bad.first_offset, bad.next_offset) for bad in host.log.view.manifest.quarantined] == [
        (3, 4)
    ]


# --- replicas ---


class Replica:
    """Node a's copy of the stream s, which it leads or follows; b is the other replica."""

    def __init__(self, running: Running) -> None:
        self._running = running
        self.settings = parse_stream_settings({**SETTINGS, "replicas": 2, "min_isr": 2})
        config = log_config(self.settings, replicated=True)
        metadata = new_metadata(self.settings, "api")
        self.log = running.data_dir.create_log("s", config, initial_offset=1, metadata=metadata)
        self.led: ServedStream | None = None

    async def lead(self, epoch: int) -> StreamHost:
        log, starts = self.log, {"a": 1, "b": 1}
        record = transitions.create(
            "s", log.incarnation, {"min_isr": 2}, "ab", starts=starts, leader_epoch=epoch
        )
        log.writer.begin_epoch(epoch)
        leader = Leader(
            record,
            "a",
            log.view.manifest.epochs,
            log_end=log.log_end_offset,
            durable_end=log.durable_end_offset,
            high_watermark=log.high_watermark,
            now=0.0,
        )
        self.led = ServedStream(
            leader,
            log,
            pace=CatchUpPace(1e9),
            ended=lambda reason: None,
            holder=self._running.broker.journal,
        )
        return await self._host(self.led)

    async def follow(self) -> StreamHost:
        return await self._host(None)

    async def _host(self, led: ServedStream | None) -> StreamHost:
        return await self._running.broker.hosted.host_replica(
            "s", self.settings, self.log, origin="api", led=led
        )

    def confirm(self) -> None:
        """The other replica has all of it."""
        assert self.led is not None
        epoch, end = self.led.leader.epoch, self.log.log_end_offset
        last = self.log.view.manifest.epochs[-1][0] if self.log.view.manifest.epochs else 0
        self.led.gate.fetched(FetchRequest("b", 1, epoch, end, last))

    async def end(self, host: StreamHost) -> None:
        """The role ends; another one can begin."""
        host.step_down("on purpose")
        await self._running.broker.hosted.end_replica(host, seconds=0.01)
        config = log_config(self.settings, replicated=True)
        self.log, _ = self._running.data_dir.open_log("s", config)


async def test_a_new_leader_knows_subjects_when_it_has_committed_all_that_it_has(
    running: Running,
) -> None:
    replica = Replica(running)
    host = await replica.lead(1)
    host.receive(MessageRun([b"in.a", b"in.b"], [b""] * 2, [b"x"] * 2, has_cookie=False))
    host.kick()
    await until(lambda: replica.log.durable_end_offset == 3)
    replica.confirm()
    await until(lambda: replica.log.high_watermark == 3)
    host.receive(MessageRun([b"in.a"], [b""], [b"x"], has_cookie=False))
    host.kick()
    await until(lambda: replica.log.durable_end_offset == 4)
    assert known(host, [b"in.a", b"in.b", b"in.c"]) == [3, 2, 0]
    await replica.end(host)

    host = await replica.follow()
    assert host.sequencer.subjects is None, "a follower judges nothing"
    host.adopt(host.settings)
    assert host.sequencer.subjects is None
    await replica.end(host)

    host = await replica.lead(2)
    assert replica.log.high_watermark < replica.log.log_end_offset
    assert known(host, [b"in.a", b"in.c"]) == [None, None], "the last record may be of any subject"
    replica.confirm()
    await until(lambda: table_of(host).is_complete)
    assert known(host, [b"in.a", b"in.b", b"in.c"]) == [3, 2, 0]
    await replica.end(host)
    replica.log.close()


# --- erased records ---


async def test_a_snapshot_from_before_an_erasure_is_not_used(running: Running) -> None:
    """After a kill, the snapshot of the last clean stop is still there."""
    await running.broker.create_stream("s", SETTINGS)
    host = running.broker.hosts["s"]
    await store(host, [b"in.a", b"in.b", b"in.a"])
    table = table_of(host)
    subjects_module.write_subject_snapshot(host.log, table)
    assert subjects_module.restore_subject_snapshot(host.log, table)
    host.log.structure.erase(ErasedSet.of_ranges([(3, 4)]))
    assert not subjects_module.restore_subject_snapshot(host.log, table)


async def test_an_erasure_whose_caller_has_gone_counts_and_is_logged(
    running: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await running.broker.create_stream("s", SETTINGS)
    host = running.broker.hosts["s"]
    await store(host, [b"in.a", b"in.b", b"in.a"])
    begun, may_end = threading.Event(), threading.Event()

    def append_slowly(*arguments: Any) -> None:
        begun.set()
        assert may_end.wait(10)

    monkeypatch.setattr(erasing, "append_erasure", append_slowly)
    eraser, message = Eraser("ops", "ops"), EraseRecords(stream="s", borders=[3, 4])
    with caplog.at_level(logging.INFO, "liftlog.server"):
        erasure = asyncio.create_task(running.broker.erasing.erase(message, eraser))
        assert await asyncio.to_thread(begun.wait, 10)
        erasure.cancel()
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await erasure
    assert host.log.view.hides(3)
    await until(lambda: known(host, [b"in.a", b"in.b"]) == [1, 2])
    assert "records-erased stream=s" in caplog.text
    assert "principal=ops" in caplog.text


async def test_erasures_of_one_stream_select_once_each(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No erasure selects again while the stream commits nothing."""
    await running.broker.create_stream("s", SETTINGS)
    await store(running.broker.hosts["s"], [b"in.a"] * 40)
    selected: list[ErasedSet] = []
    choose = log_erasing.choose

    def chosen(state: LogState, wanted: ErasedSet) -> log_erasing.Chosen:
        selected.append(wanted)
        return choose(state, wanted)

    monkeypatch.setattr(log_erasing, "choose", chosen)
    monkeypatch.setattr(structure, "choose", chosen)
    done = await asyncio.gather(
        *(
            running.broker.erasing.erase(
                EraseRecords(stream="s", borders=[at, at + 2]), Eraser("", at % 8)
            )
            for at in range(1, 33, 2)
        )
    )
    assert [one.count for one in done] == [2] * 16
    assert len(selected) == 16


async def test_the_last_offset_is_unknown_until_a_scan_and_scans_that_can_wait_leave_time(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    await running.broker.create_stream("s", SETTINGS)
    host = running.broker.hosts["s"]
    await store(host, [b"in.a", b"in.b", b"in.a", b"in.a"])
    scans: list[float] = []
    scan_subjects = subjects_module.scan_subjects

    def slow(*arguments: Any) -> Any:
        scans.append(time.monotonic())
        time.sleep(0.1)
        return scan_subjects(*arguments)

    monkeypatch.setattr(subjects_module, "scan_subjects", slow)
    host.log.structure.erase(ErasedSet.of_ranges([(4, 5)]))
    assert known(host, [b"in.a", b"in.b"]) == [None, 2]
    host.subjects.request_later()  # nothing was scanned before
    await until(lambda: known(host, [b"in.a", b"in.b"]) == [3, 2])
    await until(lambda: not host.subjects.is_scanning)

    host.log.structure.erase(ErasedSet.of_ranges([(3, 4)]))
    host.subjects.request_later()
    await until(lambda: known(host, [b"in.a", b"in.b"]) == [1, 2])
    assert scans[1] - scans[0] > 1.0  # ten times as long as the scan before

    host.log.structure.erase(ErasedSet.of_ranges([(1, 2)]))
    host.subjects.request_later()
    host.subjects.request()
    await until(lambda: known(host, [b"in.a", b"in.b"]) == [0, 2])
    assert scans[2] - scans[1] < 1.0
