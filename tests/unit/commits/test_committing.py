"""Commits of one stream: which of them fail, which messages that concerns, and that it goes on."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from support.worlds.stream_harness import Harness, failing_once, seqs

from liftlog.errors import DiskFull, SyncFailed
from liftlog.log import SystemClock
from liftlog.sequencing import MessageRun
from liftlog.server.commits.writing import GroupWriter


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
    monkeypatch.setattr(harness.log.writer, "abandon_tail", fail)
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


@pytest.mark.parametrize("inline", [64, 0])
@pytest.mark.parametrize("durability", ["interval", "os"])
async def test_acks_that_may_not_leave_early_are_nacks(
    durability: str, inline: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut it would be unknown how far they went; nothing is stored either."""
    harness = Harness(tmp_path, inline, durability=durability)
    fail = failing_once(DiskFull("full"), harness.log.writer.admit_early_acks)
    monkeypatch.setattr(harness.log.writer, "admit_early_acks", fail)
    assert seqs(await harness.publish(b"1", b"2")) == [10077, 10077]
    assert harness.log.log_end_offset == 1
    assert seqs(await harness.publish(b"3")) == [1]
    assert harness.log.view.manifest.acks_before_sync
    harness.close()


async def test_with_fsync_no_ack_leaves_early(harness: Harness) -> None:
    assert seqs(await harness.publish(b"1")) == [1]
    assert not harness.log.view.manifest.acks_before_sync


async def test_a_sync_that_fails_in_an_exclusive_call_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A roll syncs what `durability: interval` has acked already."""
    harness = Harness(tmp_path, 64, durability="interval", flush={"interval": "60s"})
    assert seqs(await harness.publish(b"1", b"2")) == [1, 2]
    monkeypatch.setattr(harness.log, "sync", failing_once(SyncFailed("EIO"), harness.log.sync))
    with pytest.raises(SyncFailed):
        await harness.host.run_exclusive(harness.log.sync)
    [lost] = harness.log.view.manifest.quarantined
    assert (lost.first_offset, lost.next_offset) == (1, 3)
    assert seqs(await harness.publish(b"3")) == [3]
    harness.close()


async def test_what_a_roll_has_synced_can_be_read(tmp_path: Path) -> None:
    """Also with `durability: interval`, long before the next flush."""
    harness = Harness(tmp_path, 64, durability="interval", flush={"interval": "60s"})
    assert seqs(await harness.publish(b"1", b"2")) == [1, 2]
    waiting = harness.host.wait_high_watermark(1)
    assert harness.log.high_watermark == 1
    await harness.host.run_exclusive(harness.log.writer.roll)
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
    host.commits.flush_due()
    may_go_on.set()
    await host.drained()
    assert done == ["append", "sync", "append"]
    assert log.high_watermark == 2
    assert seqs(harness.shared.answers()) == [1, 2]
    harness.close()


async def test_answers_that_wait_are_nacked_when_a_sync_in_an_exclusive_call_fails(
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

    exclusive = harness.host.run_exclusive(fail)
    harness.host.receive(first)  # a duplicate: nothing to store, but an answer to give
    with pytest.raises(SyncFailed):
        await exclusive
    assert seqs(harness.shared.answers()) == [10077]
    assert harness.host.sequencer.last_message_id == b"a"
    harness.close()


async def test_a_commit_without_a_sync_says_nothing_about_the_disk(tmp_path: Path) -> None:
    harness = Harness(tmp_path, 64, durability="interval", flush={"interval": "60s"})
    await harness.publish(b"1")
    harness.log.sync()
    harness.log.writer.last_sync_seconds = 1.0
    harness.host.commits._observed_syncs = harness.log.writer.fsync_count
    await harness.publish(b"2")
    assert harness.shared.inline.allows(1)
    harness.close()
