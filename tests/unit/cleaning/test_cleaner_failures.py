"""What happens when a job fails, or its stream changes or goes meanwhile."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.daemons.local_cleaning import COMPACTED, Cleaning

from liftlog.sequencing import MessageRun
from liftlog.server.cleaning.process import JobFailed, WorkerDied
from liftlog.server.cleaning.worker import DEFECT, IO_ERROR
from liftlog.server.streams.housekeeping import Housekeeping
from liftlog.server.streams.retention import decide_retention, remove_decided

# --- failures ---


@pytest.mark.parametrize(
    "error", [WorkerDied("killed"), JobFailed(IO_ERROR, "EIO"), JobFailed(DEFECT, "bug")]
)
async def test_a_failure_concerns_one_stream_which_is_left_alone_for_a_while(
    error: Exception, cleaning: Cleaning, caplog: pytest.LogCaptureFixture
) -> None:
    await cleaning.stream("a", 100, 3)
    cleaning.worker.failures.append(error)
    await cleaning.round()
    assert cleaning.state("a").failures == 1
    assert f"cleaning-failed stream=a kind=compact again_in_seconds=15 error={error}" in caplog.text
    info = cleaning.cleaner.describe(cleaning.running.broker.hosts["a"])
    assert (info["state"], info["error"]) == ("backing off", str(error))
    assert cleaning.cleaner.failures() == {
        "a": f"compact failed once, is tried again in 15 s: {error}"
    }
    await cleaning.stream("b", 100, 3)
    await cleaning.round()
    assert cleaning.worker.jobs == [("compact", "a"), ("compact", "b")]
    cleaning.state("a").not_before = cleaning.state("a").look_again_at = 0.0
    await cleaning.round()
    info = cleaning.cleaner.describe(cleaning.running.broker.hosts["a"])
    assert (info["state"], info["error"], info["passes"]) == ("idle", "", 1)
    assert cleaning.cleaner.failures() == {}


async def test_failures_in_a_row_wait_longer_and_longer(cleaning: Cleaning) -> None:
    await cleaning.stream("a", 10, 1)
    state = cleaning.state("a")
    assert [state.note_failure("scrub", "x", 0.0, 15.0) for _ in range(4)] == [15, 30, 60, 120]
    for _ in range(20):
        state.note_failure("scrub", "x", 0.0, 15.0)
    assert state.not_before == 3600
    state.note_success()
    assert state.note_failure("scrub", "x", 0.0, 15.0) == 15


async def test_what_a_killed_worker_wrote_is_removed(
    cleaning: Cleaning, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cleaning.stream("a", 100, 3)
    before = cleaning.segment_files("a")

    async def half_done(kind: str) -> None:
        directory = cleaning.running.data_dir.stream_path("a")
        (directory / "00000000000000000001.1.log").write_bytes(b"half")
        (directory / "00000000000000000001.1.index").write_bytes(b"half")
        raise WorkerDied("killed")

    cleaning.worker.before = half_done
    await cleaning.round()
    assert cleaning.segment_files("a") == before
    assert not list(cleaning.running.data_dir.stream_path("a").glob("*.1.*"))


async def test_a_failed_swap_leaves_nothing(cleaning: Cleaning) -> None:
    await cleaning.stream("a", 100, 3)
    before = cleaning.segment_files("a")
    cleaning.running.fs.failing["rename"] = "manifest"
    await cleaning.round()
    cleaning.running.fs.failing.clear()
    assert cleaning.state("a").failures == 1
    await cleaning.running.put("a", [("key-0", b"goes on")])
    await cleaning.running.put("a", [("key-0", b"x" * 5000)])  # a roll: the manifest is told
    cleaning.state("a").not_before = cleaning.state("a").look_again_at = 0.0
    await cleaning.round()
    assert cleaning.state("a").passes == 1
    log = cleaning.running.broker.hosts["a"].log
    assert cleaning.segment_files("a") == [segment.path.name for segment in log.segments] != before


async def test_a_damaged_source_is_quarantined_and_the_rest_compacted(
    cleaning: Cleaning, caplog: pytest.LogCaptureFixture
) -> None:
    await cleaning.stream("a", 200, 3)
    host = cleaning.running.broker.hosts["a"]
    hurt = host.log.segments[1]
    raw = bytearray(hurt.path.read_bytes())
    raw[200] ^= 1
    hurt.path.write_bytes(raw)
    await cleaning.round()
    [bad] = host.log.view.manifest.quarantined
    assert bad.segment == hurt.path.name
    assert hurt.base_offset <= bad.first_offset < bad.next_offset <= hurt.next_offset
    assert "damage-found stream=a" in caplog.text
    assert "quarantined stream=a" in caplog.text
    cleaning.state("a").not_before = cleaning.state("a").look_again_at = 0.0
    await cleaning.round()
    assert cleaning.state("a").passes == 1
    assert hurt.path.read_bytes() == raw
    assert hurt in host.log.segments
    assert host.log.segments[0].path.name.endswith(".1.log")


# --- streams that go, retention meanwhile ---


async def test_a_stream_that_is_deleted_ends_its_job(cleaning: Cleaning) -> None:
    await cleaning.stream("a", 100, 3)
    begun, ended = asyncio.Event(), asyncio.Event()

    async def stuck(kind: str) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    cleaning.worker.before = stuck
    round_ = asyncio.create_task(cleaning.round())
    await asyncio.wait_for(begun.wait(), 10)
    assert cleaning.cleaner.is_working
    await asyncio.wait_for(cleaning.running.broker.delete_stream("a"), 10)
    assert ended.is_set()
    assert not cleaning.running.data_dir.stream_path("a").exists()
    assert not await asyncio.wait_for(round_, 10)
    assert cleaning.remembered() == []


@pytest.mark.parametrize("kind", ["rebatch", "scrub"])
async def test_a_stream_that_is_deleted_is_not_looked_at_again(kind: str, tmp_path: Path) -> None:
    cleaning = Cleaning(tmp_path, scrub_interval="1h" if kind == "scrub" else None)
    await cleaning.running.start()
    settings = COMPACTED | {"compaction": None, "rebatch": {"enabled": kind == "rebatch"}}
    for name in ("a", "b"):
        await cleaning.running.broker.create_stream(name, settings)
        for _ in range(50):
            await cleaning.running.put(name, [("k", b"x" * 500)])
        cleaning.running.broker.hosts[name].log.writer.roll()
    await cleaning.round()
    cleaning.running.clock.ahead_ns = 2 * 3600 * 10**9

    async def delete_the_other(_: str) -> None:
        for name in list(cleaning.running.broker.hosts):
            if name not in cleaning.worker.jobs[-1]:
                await cleaning.running.broker.delete_stream(name)

    cleaning.worker.before = delete_the_other
    await asyncio.wait_for(cleaning.round(), 20)
    assert cleaning.worker.jobs == [(kind, "a")]
    assert cleaning.remembered() == ["a"]
    await cleaning.close()


async def test_the_daemon_stops_in_the_middle_of_a_job(cleaning: Cleaning) -> None:
    await cleaning.stream("a", 100, 3)
    begun = asyncio.Event()

    async def stuck(kind: str) -> None:
        begun.set()
        await asyncio.Event().wait()

    cleaning.worker.before = stuck
    life = asyncio.create_task(cleaning.cleaner.run())
    await asyncio.wait_for(begun.wait(), 10)
    life.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(life, 10)


async def test_a_round_that_fails_ends_neither_the_cleaner_nor_the_daemon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cleaning = Cleaning(tmp_path, interval="1ms")
    await cleaning.running.start()
    failing = iter([True])
    done = asyncio.Event()

    def at_first_not() -> bool:
        if next(failing, False):
            raise RuntimeError("a defect outside of any job")
        done.set()
        return True

    monkeypatch.setattr(cleaning.running.broker.clock_guard, "wall_clock_is_trusted", at_first_not)
    life = asyncio.create_task(cleaning.cleaner.run())
    await asyncio.wait_for(done.wait(), 10)
    assert not life.done()
    life.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(life, 10)


async def test_retention_decided_before_a_swap_removes_only_what_is_below_the_log_start(
    cleaning: Cleaning,
) -> None:
    """Many small segments become one between the decision and the removal."""
    limits = {"retention": {"max_messages": 300}, "segment": {"max_bytes": "64KiB"}}
    await cleaning.stream("a", 0, 1, **limits)
    broker = cleaning.running.broker
    host = broker.hosts["a"]
    for first in range(0, 400, 20):
        pairs = [(f"key-{n}", b"x" * 100) for n in range(first, first + 20)]
        await cleaning.running.put("a", pairs)
        await host.run_exclusive(host.log.writer.roll)
    decision = decide_retention(host.log, host.settings, broker.now_ns())
    assert decision is not None
    assert decision.delete_segments > 1
    before = host.log.segment_count
    await cleaning.round()
    assert host.log.segment_count < before - decision.delete_segments
    remove_decided(host.log, decision, broker.now_ns())
    assert sorted(cleaning.read("a").values()) == list(range(101, 401))


async def test_retention_leaves_the_files_that_a_pass_reads(cleaning: Cleaning) -> None:
    limits = {"max_messages": 50}
    await cleaning.stream("a", 300, 200, retention=limits)
    broker = cleaning.running.broker
    housekeeping = Housekeeping(broker, cleaning.running.data_dir, broker.hosted.reserve)
    host = broker.hosts["a"]
    seen: list[Any] = []

    async def retention(kind: str) -> None:
        files = cleaning.segment_files("a")
        await housekeeping.apply_retention(by_time=True)
        seen.append((host.log.log_start_offset, cleaning.segment_files("a") == files))

    cleaning.worker.before = retention
    await cleaning.round()
    assert seen == [(251, True)]
    assert (cleaning.state("a").failures, cleaning.state("a").passes) == (0, 1)
    count = len(cleaning.segment_files("a"))
    await housekeeping.apply_retention(by_time=True)
    assert len(cleaning.segment_files("a")) < count
    assert sorted(cleaning.read("a").values()) == list(range(251, 301))
    await housekeeping.close()


async def test_sources_that_go_nevertheless_are_no_failure(cleaning: Cleaning) -> None:
    await cleaning.stream("a", 300, 10)
    host = cleaning.running.broker.hosts["a"]
    pending = [1]

    async def remove(kind: str) -> None:
        if pending:
            pending.clear()
            host.log.structure.remove_before(host.log.segments[2].base_offset, 2)

    cleaning.worker.before = remove
    await cleaning.round()
    assert cleaning.worker.jobs == [("compact", "a"), ("compact", "a")]
    assert (cleaning.state("a").failures, cleaning.state("a").passes) == (0, 1)


async def test_a_lease_granted_during_a_pass_keeps_its_tombstones(cleaning: Cleaning) -> None:
    """Its holder was told that they stay; the pass was planned before."""
    await cleaning.stream("a", 0, 1)
    running = cleaning.running
    for key in ("x", "y"):
        await running.put("a", [(key, b"1" * 3000)])
    tombstone = b"NATS/1.0\r\nLiftlog-Key: x\r\nLiftlog-Tombstone: true\r\n\r\n"
    host = running.broker.hosts["a"]
    host.receive(MessageRun([b"in"], [b""], [b""], [tombstone]))
    host.kick()
    await host.drained()
    cleaning.cleaner.request(host)
    await cleaning.round()
    assert cleaning.read("a") == {b"y": 2, b"x": 3}
    running.clock.ahead_ns = 3 * 3600 * 10**9
    leases = []

    async def grant(kind: str) -> None:
        now_ns = running.broker.now_ns()
        if not leases:
            leases.append(host.log.leases.acquire(2, 4, duration_ns=10**9, now_ns=now_ns))

    cleaning.worker.before = grant
    cleaning.state("a").look_again_at = 0.0
    before = cleaning.segment_files("a")
    await cleaning.round()
    assert (cleaning.read("a"), cleaning.segment_files("a")) == ({b"y": 2, b"x": 3}, before)
    assert host.log.view.manifest.tombstones_removed_below == 0
    running.clock.ahead_ns *= 2
    cleaning.state("a").look_again_at = 0.0
    await cleaning.round()
    assert cleaning.read("a") == {b"y": 2}
    assert host.log.view.manifest.tombstones_removed_below == 4


async def test_a_clock_that_jumped_makes_no_tombstone_old(cleaning: Cleaning) -> None:
    await cleaning.stream("a", 0, 1)
    running, cleaner = cleaning.running, cleaning.cleaner
    await running.put("a", [("x", b"1" * 3000)])
    tombstone = b"NATS/1.0\r\nLiftlog-Key: x\r\nLiftlog-Tombstone: true\r\n\r\n"
    host = running.broker.hosts["a"]
    host.receive(MessageRun([b"in"], [b""], [b""], [tombstone]))
    host.kick()
    await host.drained()
    cleaner.request(host)
    await cleaning.round()
    assert cleaning.read("a") == {b"x": 2}
    running.clock.jumped_ns = 365 * 86_400 * 10**9
    cleaning.state("a").look_again_at = 0.0
    await cleaning.round()
    cleaner.request(host)
    await cleaning.round()
    assert cleaning.read("a") == {b"x": 2}
    running.clock.ahead_ns = 3601 * 10**9  # the new time has stood for an hour
    running.broker.clock_guard.believe("a test says so")
    cleaning.state("a").look_again_at = 0.0
    await cleaning.round()
    assert cleaning.read("a") == {}


async def test_a_clock_that_jumped_makes_no_record_old_on_demand(cleaning: Cleaning) -> None:
    await cleaning.stream("a", 0, 1, compaction={"min_lag": "1h"})
    running, cleaner = cleaning.running, cleaning.cleaner
    for _ in range(2):
        await running.put("a", [("x", b"1" * 3000)])
    running.clock.jumped_ns = 86_400 * 10**9
    host = running.broker.hosts["a"]
    cleaner.request(host)
    await cleaning.round()
    assert host.log.segments[0].record_count == 1
    assert host.log.view.manifest.cleaned_below == 0
    running.clock.ahead_ns = 3700 * 10**9
    cleaner.request(host)
    await cleaning.round()
    assert cleaning.read("a") == {b"x": 2}
    assert host.log.view.manifest.cleaned_below > 0


async def test_without_a_trusted_clock_nothing_is_old_enough_on_demand(cleaning: Cleaning) -> None:
    await cleaning.stream("a", 0, 1, compaction={"min_lag": "1h"})
    running, cleaner = cleaning.running, cleaning.cleaner
    for _ in range(2):
        await running.put("a", [("x", b"1" * 3000)])
    running.clock.ahead_ns = 3700 * 10**9
    host = running.broker.hosts["a"]
    running.broker.clock_guard.unread = "a test says so"
    cleaner.request(host)
    await cleaning.round()
    assert host.log.view.manifest.cleaned_below == 0
    assert "ages are not judged" in cleaner.describe(host)["reason"]
    running.broker.clock_guard.unread = ""
    cleaner.request(host)
    await cleaning.round()
    assert cleaning.read("a") == {b"x": 2}
    assert host.log.view.manifest.cleaned_below > 0
