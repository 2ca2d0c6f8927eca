"""One stream: what it refuses, who waits for it, and how it ends."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.disks.logs import encode
from support.worlds.stream_harness import Harness, failing_once, seqs

from liftlog.errors import StreamUnavailable
from liftlog.log import SystemClock
from liftlog.sequencing import Destinations, MessageRun
from liftlog.server.streams.dedupe_restoring import write_dedupe_snapshot
from liftlog.server.streams.making import make_sequencer


async def test_a_bug_while_judging(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness.host.sequencer, "judge", failing_once(KeyError("bug"), None))
    await harness.publish(b"1")
    assert "bug" in harness.host.failure
    assert seqs(await harness.publish(b"2")) == [10077]


async def test_a_closed_stream_is_left_alone(harness: Harness) -> None:
    """Another stream may live under its name by then."""
    harness.host.close()
    with pytest.raises(StreamUnavailable):
        await harness.host.run_exclusive(
            lambda: harness.log.structure.set_metadata({"stale": True})
        )
    assert harness.log.view.manifest.metadata == {}
    harness.host.receive(MessageRun([b"in"], [b"_INBOX.r"], [b"1"], has_cookie=False))
    harness.host.kick()
    assert harness.shared.answers() == []
    assert harness.log.log_end_offset == 1


async def test_a_dedupe_snapshot_holds_only_what_was_stored(harness: Harness) -> None:
    """A stop that could not drain leaves ids behind whose messages were never written."""
    dedupe = harness.host.sequencer.dedupe
    assert seqs(await harness.publish(b"1")) == [1]
    stamp = SystemClock().now_ns()
    dedupe.add(b"stored", 1, stamp)
    dedupe.add(b"judged", 2, stamp)
    write_dedupe_snapshot(harness.log, dedupe)
    restored = make_sequencer("s", harness.host.settings, harness.log, Destinations(), stamp).dedupe
    assert restored.lookup(b"stored") == 1
    assert restored.lookup(b"judged") is None


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


async def test_a_follower_returns_to_the_loop_when_syncs_in_threads_are_fast(
    tmp_path: Path, fast_syncs: None
) -> None:
    """It commits no groups of its own, so its appends alone tell how fast the disk is."""
    harness = Harness(tmp_path, 64)
    host, log = harness.host, harness.log

    def store() -> None:
        log.append([encode(log, [b"1"])])
        log.sync()

    try:
        assert host.run_inline(store)
        harness.shared.inline.observe(1.0)  # a stall
        for number in range(8):
            assert not host.run_inline(store), f"after {number} fast syncs"
            await host.run_exclusive(store)
            await host.run_exclusive(lambda: None)  # says nothing of the disk
        assert host.run_inline(store)
        assert log.durable_end_offset == 11
    finally:
        harness.close()
