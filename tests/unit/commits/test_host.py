"""One stream's commits: what fails, whom it concerns, and that it goes on."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from liftlog.errors import DiskFull, StorageError, StreamUnavailable, SyncFailed
from liftlog.log import DataDir, Log, LogEnvironment, OsFileSystem, SystemClock
from liftlog.server.commits.budget import InlineBudget
from liftlog.server.commits.configs import log_config
from liftlog.server.commits.group_writing import GroupWriter
from liftlog.server.commits.host import StreamHost
from liftlog.server.commits.writer_pool import WriterPool
from liftlog.server.streams.dedupe_restoring import write_dedupe_snapshot
from liftlog.server.streams.making import make_sequencer
from liftlog.settings import parse_stream_settings
from liftlog.stream import AckSubjects, MessageRun


class Shared:
    """What a broker gives its streams."""

    def __init__(self, inline_max_messages: int) -> None:
        self.pool = WriterPool(2)
        self.inline = InlineBudget(inline_max_messages, 1.0)
        self.dirty: dict[StreamHost, None] = {}
        self.sent: list[bytes] = []

    def send(self, commands: bytes) -> None:
        self.sent.append(commands)

    def mark_dirty(self, host: StreamHost) -> None:
        self.dirty[host] = None

    def pending_changed(self) -> None: ...

    def now_ns(self) -> int:
        return SystemClock().now_ns()

    def steady_ns(self) -> int:
        return SystemClock().now_ns()

    def answers(self) -> list[Any]:
        lines = b"".join(self.sent).split(b"\r\n")[1::2]
        self.sent.clear()
        return [json.loads(line) for line in lines]


class Harness:
    def __init__(self, directory: Path, inline_max_messages: int, **settings: Any) -> None:
        environment = LogEnvironment.create(OsFileSystem(), SystemClock())
        self.data_dir = DataDir(directory, environment)
        self.data_dir.open()
        parsed = parse_stream_settings({"subject": "in", **settings})
        self.log: Log = self.data_dir.create_log(
            "s", log_config(parsed), initial_offset=1, metadata={}
        )
        sequencer = make_sequencer("s", parsed, self.log, AckSubjects(["in"]), 0)
        self.shared = Shared(inline_max_messages)
        self.host = StreamHost("s", parsed, self.log, sequencer, self.shared, origin="api")

    async def publish(self, *payloads: bytes) -> list[Any]:
        """One run, committed; what was answered."""
        count = len(payloads)
        run = MessageRun([b"in"] * count, [b"_INBOX.r"] * count, payloads, has_cookie=False)
        self.host.receive(run)
        self.host.kick()
        await self.host.drained()
        return self.shared.answers()

    def close(self) -> None:
        self.host.close()
        self.shared.pool.close()
        self.log.close()
        self.data_dir.close(None)


@pytest.fixture(params=["inline", "thread"])
async def harness(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Harness]:
    made = Harness(tmp_path, 64 if request.param == "inline" else 0)
    yield made
    made.close()


def seqs(answers: list[Any]) -> list[int]:
    return [answer.get("error", {}).get("err_code") or answer["seq"] for answer in answers]


def failing_once(error: Exception, original: Any) -> Any:
    pending = [error]

    def call(*arguments: Any) -> Any:
        if pending:
            raise pending.pop()
        return original(*arguments)

    return call


async def test_commit(harness: Harness) -> None:
    assert seqs(await harness.publish(b"1", b"2")) == [1, 2]
    assert harness.log.high_watermark == 3
    assert (harness.host.observed.commits, harness.host.observed.records) == (1, 2)


async def test_a_full_disk_nacks_and_goes_on(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ns = SystemClock().now_ns()
    harness.log.leases.acquire(1, 1, duration_ns=10**10, now_ns=now_ns)
    monkeypatch.setattr(harness.log, "append", failing_once(DiskFull("full"), harness.log.append))
    assert seqs(await harness.publish(b"1")) == [10077]
    await harness.host.drained()
    assert harness.log.leases.live(now_ns) == (), "no reader keeps publishers waiting for room"
    assert harness.host.sequencer.refused == {"disk_full": 1}
    assert seqs(await harness.publish(b"2")) == [1]


async def test_a_failed_sync_goes_on_in_a_new_segment(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert seqs(await harness.publish(b"1")) == [1]
    monkeypatch.setattr(harness.log, "sync", failing_once(SyncFailed("EIO"), harness.log.sync))
    assert seqs(await harness.publish(b"2")) == [10077]
    assert seqs(await harness.publish(b"3")) == [2]
    assert harness.log.segment_count == 2
    assert harness.log.high_watermark == 3


async def test_when_even_that_fails_the_stream_stops(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        raise SyncFailed("EIO")

    monkeypatch.setattr(harness.log, "sync", fail)
    monkeypatch.setattr(harness.log, "abandon_tail", fail)
    waiting = harness.host.wait_high_watermark(1)
    assert seqs(await harness.publish(b"1")) == [10077]
    assert "EIO" in harness.host.failure
    await asyncio.wait_for(waiting, 5)
    assert seqs(await harness.publish(b"2")) == [10077]
    monkeypatch.undo()


@pytest.mark.parametrize("method", ["append", "sync"])
async def test_a_bug_while_committing_stops_this_stream_with_an_answer(
    method: str, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness.log, method, failing_once(KeyError("bug"), None))
    assert seqs(await harness.publish(b"1")) == [10077]
    assert "bug" in harness.host.failure
    assert seqs(await harness.publish(b"2")) == [10077]


async def test_a_bug_while_encoding(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GroupWriter, "encode", failing_once(KeyError("bug"), None))
    assert seqs(await harness.publish(b"1")) == [10077]
    assert "bug" in harness.host.failure


async def test_a_bug_while_judging(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness.host.sequencer, "judge", failing_once(KeyError("bug"), None))
    await harness.publish(b"1")
    assert "bug" in harness.host.failure
    assert seqs(await harness.publish(b"2")) == [10077]


@pytest.mark.parametrize("inline", [64, 0])
@pytest.mark.parametrize("durability", ["interval", "os"])
async def test_acks_that_may_not_leave_early_are_nacks(
    durability: str, inline: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut nobody would know how far they went; nothing is stored either."""
    harness = Harness(tmp_path, inline, durability=durability)
    fail = failing_once(DiskFull("full"), harness.log.admit_early_acks)
    monkeypatch.setattr(harness.log, "admit_early_acks", fail)
    assert seqs(await harness.publish(b"1", b"2")) == [10077, 10077]
    assert harness.log.log_end_offset == 1
    assert seqs(await harness.publish(b"3")) == [1]
    assert harness.log.view.manifest.acks_before_sync
    harness.close()


async def test_with_fsync_no_ack_leaves_early(harness: Harness) -> None:
    assert seqs(await harness.publish(b"1")) == [1]
    assert not harness.log.view.manifest.acks_before_sync


# --- maintenance ---


async def test_maintenance_runs_alone_and_in_order(harness: Harness) -> None:
    order: list[int] = []
    futures = [harness.host.run_exclusive(lambda i=i: order.append(i)) for i in range(3)]  # type: ignore[misc]
    assert seqs(await harness.publish(b"1")) == [1]
    await asyncio.gather(*futures)
    assert order == [0, 1, 2]


async def test_endless_maintenance_leaves_messages_their_turns(harness: Harness) -> None:
    """Whoever may read may ask for leases, as many and as often as he likes."""
    host = harness.host
    done: list[str] = []

    def again(name: str, before: asyncio.Future[object] | None = None) -> None:
        if before is None or before.exception() is None:  # until it is closed
            future = host.run_exclusive(partial(done.append, name))
            future.add_done_callback(partial(again, name))

    for name in "abc":
        again(name)
    reply, subject = [b"_INBOX.r"], [b"in"]
    for number in range(5):
        before = len(done)
        host.receive(MessageRun(subject, reply, [b"%d" % number], has_cookie=False))
        while harness.log.log_end_offset < number + 2:
            assert len(done) - before < 10, "messages wait for maintenance without end"
            host.kick()
            await asyncio.sleep(0)
    while len(done) < 100:  # and the other way round
        await asyncio.sleep(0)
    host.close()


async def test_maintenance_errors_go_to_who_asked(harness: Harness) -> None:
    def fail() -> None:
        raise StorageError("no")

    with pytest.raises(StorageError):
        await harness.host.run_exclusive(fail)
    assert seqs(await harness.publish(b"1")) == [1]


async def test_maintenance_of_a_failed_stream_ends(harness: Harness) -> None:
    first = harness.host.run_exclusive(lambda: 1)
    second = harness.host.run_exclusive(lambda: 2)
    harness.host.fail("on purpose")
    assert await asyncio.wait_for(asyncio.gather(first, second), 5) == [1, 2]


async def test_a_sync_that_fails_in_maintenance_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A roll syncs what `durability: interval` has acked already."""
    harness = Harness(tmp_path, 64, durability="interval", flush={"interval": "60s"})
    assert seqs(await harness.publish(b"1", b"2")) == [1, 2]
    monkeypatch.setattr(harness.log, "sync", failing_once(SyncFailed("EIO"), harness.log.sync))
    with pytest.raises(SyncFailed):
        await harness.host.run_exclusive(harness.log.sync)
    [lost] = harness.log.quarantined
    assert (lost.first_offset, lost.next_offset) == (1, 3)
    assert seqs(await harness.publish(b"3")) == [3]
    harness.close()


async def test_what_a_roll_has_synced_can_be_read(tmp_path: Path) -> None:
    """Also with `durability: interval`, long before the next flush."""
    harness = Harness(tmp_path, 64, durability="interval", flush={"interval": "60s"})
    assert seqs(await harness.publish(b"1", b"2")) == [1, 2]
    waiting = harness.host.wait_high_watermark(1)
    assert harness.log.high_watermark == 1
    await harness.host.run_exclusive(harness.log.roll)
    assert harness.log.high_watermark == 3
    await asyncio.wait_for(waiting, 5)
    harness.close()


async def test_a_flush_that_is_due_comes_before_what_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under load one commit follows the other without a pause, for as long as it lasts."""
    harness = Harness(tmp_path, 0, durability="interval", flush={"interval": "60s"})
    host, log = harness.host, harness.log
    done: list[str] = []
    may_go_on = threading.Event()

    def noted(name: str, original: Any) -> Any:
        def call(*arguments: Any) -> Any:
            may_go_on.wait(10)
            done.append(name)
            return original(*arguments)

        return call

    monkeypatch.setattr(log, "append", noted("append", log.append))
    monkeypatch.setattr(log, "sync", noted("sync", log.sync))
    for payload in (b"1", b"2"):  # the second waits for the first
        host.receive(MessageRun([b"in"], [b"_INBOX.r"], [payload], has_cookie=False))
        host.kick()
    assert host.sequencer.pending_messages == 1
    host._commits.flush_due()
    may_go_on.set()
    await host.drained()
    assert done == ["append", "sync", "append"]
    assert log.high_watermark == 2
    assert seqs(harness.shared.answers()) == [1, 2]
    harness.close()


async def test_answers_that_wait_are_nacked_when_a_sync_in_maintenance_fails(
    tmp_path: Path,
) -> None:
    harness = Harness(tmp_path, 64, durability="interval", flush={"interval": "60s"})
    header = b"NATS/1.0\r\nNats-Msg-Id: %b\r\n\r\n"
    first = MessageRun([b"in"], [b"_INBOX.r"], [b"1"], [header % b"a"])
    harness.host.receive(first)
    harness.host.kick()
    assert seqs(harness.shared.answers()) == [1]

    def fail() -> None:
        raise SyncFailed("EIO")

    maintenance = harness.host.run_exclusive(fail)
    harness.host.receive(first)  # a duplicate: nothing to store, but an answer to give
    with pytest.raises(SyncFailed):
        await maintenance
    assert seqs(harness.shared.answers()) == [10077]
    assert harness.host.sequencer.last_message_id == b"a"
    harness.close()


async def test_a_closed_stream_is_left_alone(harness: Harness) -> None:
    """Another stream may live under its name by then."""
    harness.host.close()
    with pytest.raises(StreamUnavailable):
        await harness.host.run_exclusive(lambda: harness.log.set_metadata({"stale": True}))
    assert harness.log.metadata == {}
    harness.host.receive(MessageRun([b"in"], [b"_INBOX.r"], [b"1"], has_cookie=False))
    harness.host.kick()
    assert harness.shared.answers() == []
    assert harness.log.log_end_offset == 1


async def test_maintenance_that_waits_is_refused_when_the_stream_closes(harness: Harness) -> None:
    first = harness.host.run_exclusive(lambda: 1)
    second = harness.host.run_exclusive(lambda: 2)
    harness.host.close()
    assert await first == 1
    with pytest.raises(StreamUnavailable):
        await second


async def test_a_dedupe_snapshot_holds_only_what_was_stored(harness: Harness) -> None:
    """A stop that could not drain leaves ids behind whose messages were never written."""
    dedupe = harness.host.sequencer.dedupe
    assert seqs(await harness.publish(b"1")) == [1]
    stamp = SystemClock().now_ns()
    dedupe.add(b"stored", 1, stamp)
    dedupe.add(b"judged", 2, stamp)
    write_dedupe_snapshot(harness.log, dedupe)
    restored = make_sequencer("s", harness.host.settings, harness.log, AckSubjects(), stamp).dedupe
    assert restored.lookup(b"stored") == 1
    assert restored.lookup(b"judged") is None


async def test_a_commit_without_a_sync_says_nothing_about_the_disk(tmp_path: Path) -> None:
    harness = Harness(tmp_path, 64, durability="interval", flush={"interval": "60s"})
    await harness.publish(b"1")
    harness.log.sync()
    harness.log._writer.last_sync_seconds = 1.0
    harness.host._commits._observed_syncs = harness.log.fsync_count
    await harness.publish(b"2")
    assert harness.shared.inline.allows(1)
    harness.close()


# --- waiting ---


async def test_waiters_wake_when_the_watermark_passes(harness: Harness) -> None:
    first, second, gone = map(harness.host.wait_high_watermark, (1, 2, 1))
    gone.cancel()
    await asyncio.sleep(0)
    await harness.publish(b"1")
    assert first.done()
    assert not second.done()
    assert harness.host.wait_high_watermark(1).done()
    harness.host.close()
    assert second.done()


async def test_after_the_drain_began_everything_is_nacked(harness: Harness) -> None:
    assert seqs(await harness.publish(b"1")) == [1]
    harness.host.refuse_new()
    assert seqs(await harness.publish(b"2")) == [10077]
    assert harness.host.sequencer.refused == {"shutting_down": 1}
