"""What is cleaned next, and what happens when a job fails."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.local_cleaning import COMPACTED, Cleaning

from liftlog.errors import InvalidArgument
from liftlog.log.index import index_path
from liftlog.server.cleaning.pace import Rates, fixed_rate
from liftlog.server.cleaning.process import JobFailed, WorkerDied
from liftlog.server.cleaning.worker import DEFECT, IO_ERROR
from liftlog.server.streams.housekeeping import Housekeeping
from liftlog.server.streams.retention import decide_retention, remove_decided
from liftlog.stream import MessageRun


@pytest.fixture
async def cleaning(tmp_path: Path) -> AsyncIterator[Cleaning]:
    made = Cleaning(tmp_path, interval="15s")
    await made.running.start()
    yield made
    await made.close()


def names(cleaning: Cleaning, stream: str) -> list[str]:
    directory = cleaning.running.data_dir.stream_path(stream)
    return sorted(path.name for path in directory.glob("*.log"))


async def test_the_dirtiest_comes_first_and_clean_streams_not_at_all(cleaning: Cleaning) -> None:
    await cleaning.stream("half", 300, 10)
    await cleaning.cleaner._round()
    await cleaning.stream("dirty", 300, 10)
    pairs = [(f"key-{n}", b"x" * 1000) for n in range(10)]
    for _ in range(3):
        await cleaning.running.put("half", pairs)
    cleaning.worker.jobs.clear()
    assert not await cleaning.cleaner._round()
    assert cleaning.worker.jobs == [("compact", "dirty"), ("compact", "half")]
    assert cleaning.state("dirty").passes == 1
    cleaning.worker.jobs.clear()
    await cleaning.cleaner._round()
    assert cleaning.worker.jobs == []


async def test_a_pass_keeps_the_newest_of_each_key(cleaning: Cleaning) -> None:
    await cleaning.stream("s", 300, 10)
    await cleaning.cleaner._round()
    log = cleaning.running.broker.hosts["s"].log
    assert cleaning.read("s") == {b"key-%d" % n: 291 + n for n in range(10)}
    last = cleaning.state("s").last_pass
    assert last["records_in"] - last["records_out"] == cleaning.state("s").records_removed > 200
    assert names(cleaning, "s") == [segment.path.name for segment in log.segments]


async def test_on_demand_rolls_first_and_comes_before_the_others(cleaning: Cleaning) -> None:
    await cleaning.stream("dirty", 300, 10)
    await cleaning.stream("asked", 20, 2, segment={"max_bytes": "1MiB"})
    host = cleaning.running.broker.hosts["asked"]
    cleaning.cleaner.request(host)
    assert cleaning.cleaner.describe(host)["state"] == "waiting"
    await cleaning.cleaner._round()
    assert cleaning.worker.jobs[0] == ("compact", "asked")
    assert cleaning.read("asked") == {b"key-0": 19, b"key-1": 20}
    info = cleaning.cleaner.describe(host)
    assert (info["state"], info["requested"], info["finished"]) == ("idle", 1, 1)


async def test_on_demand_is_refused_without_compaction(cleaning: Cleaning) -> None:
    for name, compaction in (("null", None), ("off", {"enabled": False})):
        await cleaning.stream(name, 10, 1, compaction=compaction)
        with pytest.raises(InvalidArgument):
            await cleaning.running.broker.compact_stream(name)


async def test_many_keys_in_little_memory_take_several_passes(tmp_path: Path) -> None:
    cleaning = Cleaning(tmp_path, memory="1MiB")
    await cleaning.running.start()
    await cleaning.stream("s", 0, 1, segment={"max_bytes": "256KiB"})
    wide = "x" * 100
    for round_ in range(2):
        for first in range(0, 12_000, 1000):
            pairs = [(f"{wide}{n}", b"%d" % round_) for n in range(first, first + 1000)]
            await cleaning.running.put("s", pairs)
    cleaning.cleaner.request(cleaning.running.broker.hosts["s"])
    await cleaning.cleaner._round()
    assert cleaning.state("s").passes > 1
    assert cleaning.state("s").finished == 1
    found = cleaning.read("s")
    assert len(found) == 12_000
    assert min(found.values()) == 12_001
    await cleaning.close()


@pytest.mark.parametrize("asked", [False, True], ids=["due", "on demand"])
async def test_keys_that_do_not_fit_into_memory_delay_no_other_stream(
    asked: bool, tmp_path: Path
) -> None:
    """Each pass is for few of them; a turn is over after the first one here."""
    cleaning = Cleaning(tmp_path, memory="1MiB", interval="1ms")
    await cleaning.running.start()
    await cleaning.stream("wide", 0, 1, segment={"max_bytes": "512KiB"})
    wide = "x" * 60_000
    for round_ in range(3):
        for n in range(60):
            await cleaning.running.put("wide", [(f"{wide}{n}", b"%d" % round_)])
    await cleaning.stream("other", 300, 100)
    await cleaning.stream("third", 300, 150)
    if asked:
        cleaning.cleaner.request(cleaning.running.broker.hosts["wide"])
    rounds = 1
    while await cleaning.cleaner._round():
        rounds += 1
    order = [name for _, name in cleaning.worker.jobs]
    assert order.count("wide") > 3
    assert order.index("wide") == 0
    assert max(order.index("other"), order.index("third")) <= 4
    assert rounds > 1
    state = cleaning.state("wide")
    assert (state.unfinished, state.finished) == (False, int(asked))
    found = cleaning.read("wide")
    assert len(found) == 60
    log = cleaning.running.broker.hosts["wide"].log
    assert sum(segment.record_count for segment in log.segments) < 90
    await cleaning.close()


async def test_a_turn_that_is_over_is_not_waited_for_where_nothing_can_go_on(
    tmp_path: Path,
) -> None:
    """Else rounds would follow each other without a pause."""
    cleaning = Cleaning(tmp_path, interval="1ms")
    await cleaning.running.start()
    await cleaning.stream("s", 300, 10)
    state = cleaning.state("s")
    state.unfinished = True
    assert cleaning.cleaner._has_unfinished()
    state.not_before = time.monotonic() + 60
    assert not await cleaning.cleaner._round()
    state.not_before = 0.0
    assert not await cleaning.cleaner._round()  # it was the last pass
    assert not state.unfinished
    await cleaning.close()


async def test_the_lower_rate_holds(cleaning: Cleaning) -> None:
    await cleaning.stream("slow", 100, 3, compaction={"max_rate": "1MiB"})
    await cleaning.stream("fast", 100, 3, compaction={"max_rate": "1GiB"})
    await cleaning.cleaner._round()
    rates = dict(
        zip([name for _, name in cleaning.worker.jobs], cleaning.worker.rates, strict=True)
    )
    assert rates == {"slow": fixed_rate(2**20), "fast": Rates(32 * 2**20, 2**30)}


# --- failures ---


@pytest.mark.parametrize(
    "error", [WorkerDied("killed"), JobFailed(IO_ERROR, "EIO"), JobFailed(DEFECT, "bug")]
)
async def test_a_failure_concerns_one_stream_which_is_left_alone_for_a_while(
    error: Exception, cleaning: Cleaning, caplog: pytest.LogCaptureFixture
) -> None:
    await cleaning.stream("a", 100, 3)
    cleaning.worker.failures.append(error)
    await cleaning.cleaner._round()
    assert cleaning.state("a").failures == 1
    assert f"cleaning-failed stream=a kind=compact again_in_seconds=15 error={error}" in caplog.text
    info = cleaning.cleaner.describe(cleaning.running.broker.hosts["a"])
    assert (info["state"], info["error"]) == ("backing off", str(error))
    assert cleaning.cleaner.failures() == {
        "a": f"compact failed once, is tried again in 15 s: {error}"
    }
    await cleaning.stream("b", 100, 3)
    await cleaning.cleaner._round()
    assert cleaning.worker.jobs == [("compact", "a"), ("compact", "b")]
    cleaning.state("a").not_before = cleaning.state("a").look_again_at = 0.0
    await cleaning.cleaner._round()
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
    before = names(cleaning, "a")

    async def half_done(kind: str) -> None:
        directory = cleaning.running.data_dir.stream_path("a")
        (directory / "00000000000000000001.1.log").write_bytes(b"half")
        (directory / "00000000000000000001.1.index").write_bytes(b"half")
        raise WorkerDied("killed")

    cleaning.worker.before = half_done
    await cleaning.cleaner._round()
    assert names(cleaning, "a") == before
    assert not list(cleaning.running.data_dir.stream_path("a").glob("*.1.*"))


async def test_a_failed_swap_leaves_nothing(cleaning: Cleaning) -> None:
    await cleaning.stream("a", 100, 3)
    before = names(cleaning, "a")
    cleaning.running.fs.failing["rename"] = "manifest"
    await cleaning.cleaner._round()
    cleaning.running.fs.failing.clear()
    assert cleaning.state("a").failures == 1
    await cleaning.running.put("a", [("key-0", b"goes on")])
    await cleaning.running.put("a", [("key-0", b"x" * 5000)])  # a roll: the manifest is told
    cleaning.state("a").not_before = cleaning.state("a").look_again_at = 0.0
    await cleaning.cleaner._round()
    assert cleaning.state("a").passes == 1
    log = cleaning.running.broker.hosts["a"].log
    assert names(cleaning, "a") == [segment.path.name for segment in log.segments] != before


async def test_a_damaged_source_is_quarantined_and_the_rest_compacted(
    cleaning: Cleaning, caplog: pytest.LogCaptureFixture
) -> None:
    await cleaning.stream("a", 200, 3)
    host = cleaning.running.broker.hosts["a"]
    hurt = host.log.segments[1]
    raw = bytearray(hurt.path.read_bytes())
    raw[200] ^= 1
    hurt.path.write_bytes(raw)
    await cleaning.cleaner._round()
    [bad] = host.log.quarantined
    assert bad.segment == hurt.path.name
    assert hurt.base_offset <= bad.first_offset < bad.next_offset <= hurt.next_offset
    assert "damage-found stream=a" in caplog.text
    assert "quarantined stream=a" in caplog.text
    cleaning.state("a").not_before = cleaning.state("a").look_again_at = 0.0
    await cleaning.cleaner._round()
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
    round_ = asyncio.create_task(cleaning.cleaner._round())
    await asyncio.wait_for(begun.wait(), 10)
    assert cleaning.cleaner.is_working
    await asyncio.wait_for(cleaning.running.broker.delete_stream("a"), 10)
    assert ended.is_set()
    assert not cleaning.running.data_dir.stream_path("a").exists()
    assert not await asyncio.wait_for(round_, 10)
    assert not cleaning.cleaner._states


@pytest.mark.parametrize("kind", ["rebatch", "scrub"])
async def test_a_stream_that_is_deleted_is_not_looked_at_again(kind: str, tmp_path: Path) -> None:
    cleaning = Cleaning(tmp_path, scrub_interval="1h" if kind == "scrub" else None)
    await cleaning.running.start()
    settings = COMPACTED | {"compaction": None, "rebatch": {"enabled": kind == "rebatch"}}
    for name in ("a", "b"):
        await cleaning.running.broker.create_stream(name, settings)
        for _ in range(50):
            await cleaning.running.put(name, [("k", b"x" * 500)])
        cleaning.running.broker.hosts[name].log.roll()
    await cleaning.cleaner._round()
    cleaning.running.clock.ahead_ns = 2 * 3600 * 10**9

    async def delete_the_other(_: str) -> None:
        for name in list(cleaning.running.broker.hosts):
            if name not in cleaning.worker.jobs[-1]:
                await cleaning.running.broker.delete_stream(name)

    cleaning.worker.before = delete_the_other
    await asyncio.wait_for(cleaning.cleaner._round(), 20)
    assert cleaning.worker.jobs == [(kind, "a")]
    assert len(cleaning.cleaner._states) == 1
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
    cleaning: Cleaning, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = iter([True])
    real = cleaning.cleaner._round
    done = asyncio.Event()

    async def at_first_not() -> bool:
        if next(failing, False):
            raise RuntimeError("a defect outside of any job")
        done.set()
        return await real()

    monkeypatch.setattr(cleaning.cleaner, "_round", at_first_not)
    monkeypatch.setattr(cleaning.cleaner, "_wait", lambda: asyncio.sleep(0))
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
        await host.run_exclusive(host.log.roll)
    decision = decide_retention(host.log, host.settings, broker.now_ns())
    assert decision is not None
    assert decision.delete_segments > 1
    before = host.log.segment_count
    await cleaning.cleaner._round()
    assert host.log.segment_count < before - decision.delete_segments
    remove_decided(host.log, decision, broker.now_ns())
    assert sorted(cleaning.read("a").values()) == list(range(101, 401))


async def test_retention_leaves_the_files_that_a_pass_reads(cleaning: Cleaning) -> None:
    limits = {"max_messages": 50}
    await cleaning.stream("a", 300, 200, retention=limits)
    broker = cleaning.running.broker
    housekeeping = Housekeeping(broker, cleaning.running.data_dir, broker.reserve)
    host = broker.hosts["a"]
    seen: list[Any] = []

    async def retention(kind: str) -> None:
        files = names(cleaning, "a")
        await housekeeping.apply_retention(by_time=True)
        seen.append((host.log.log_start_offset, names(cleaning, "a") == files))

    cleaning.worker.before = retention
    await cleaning.cleaner._round()
    assert seen == [(251, True)]
    assert (cleaning.state("a").failures, cleaning.state("a").passes) == (0, 1)
    count = len(names(cleaning, "a"))
    await housekeeping.apply_retention(by_time=True)
    assert len(names(cleaning, "a")) < count
    assert sorted(cleaning.read("a").values()) == list(range(251, 301))
    await housekeeping.close()


async def test_sources_that_go_nevertheless_are_no_failure(cleaning: Cleaning) -> None:
    await cleaning.stream("a", 300, 10)
    host = cleaning.running.broker.hosts["a"]
    pending = [1]

    async def remove(kind: str) -> None:
        if pending:
            pending.clear()
            host.log.remove_before(host.log.segments[2].base_offset, 2)

    cleaning.worker.before = remove
    await cleaning.cleaner._round()
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
    await cleaning.cleaner._round()
    assert cleaning.read("a") == {b"y": 2, b"x": 3}
    running.clock.ahead_ns = 3 * 3600 * 10**9
    leases = []

    async def grant(kind: str) -> None:
        now_ns = running.broker.now_ns()
        if not leases:
            leases.append(host.log.leases.acquire(2, 4, duration_ns=10**9, now_ns=now_ns))

    cleaning.worker.before = grant
    cleaning.state("a").look_again_at = 0.0
    before = names(cleaning, "a")
    await cleaning.cleaner._round()
    assert (cleaning.read("a"), names(cleaning, "a")) == ({b"y": 2, b"x": 3}, before)
    assert host.log.tombstones_removed_below == 0
    running.clock.ahead_ns *= 2
    cleaning.state("a").look_again_at = 0.0
    await cleaning.cleaner._round()
    assert cleaning.read("a") == {b"y": 2}
    assert host.log.tombstones_removed_below == 4


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
    await cleaner._round()
    assert cleaning.read("a") == {b"x": 2}
    cleaner._clock_is_trusted = running.broker.clock_guard.wall_clock_is_trusted
    running.clock.jumped_ns = 365 * 86_400 * 10**9
    cleaning.state("a").look_again_at = 0.0
    await cleaner._round()
    cleaner.request(host)
    await cleaner._round()
    assert cleaning.read("a") == {b"x": 2}
    running.clock.ahead_ns = 3601 * 10**9  # the new time has stood for an hour
    cleaning.state("a").look_again_at = 0.0
    await cleaner._round()
    assert cleaning.read("a") == {}


async def test_a_clock_that_jumped_makes_no_record_old_on_demand(cleaning: Cleaning) -> None:
    await cleaning.stream("a", 0, 1, compaction={"min_lag": "1h"})
    running, cleaner = cleaning.running, cleaning.cleaner
    cleaner._clock_is_trusted = running.broker.clock_guard.wall_clock_is_trusted
    for _ in range(2):
        await running.put("a", [("x", b"1" * 3000)])
    running.clock.jumped_ns = 86_400 * 10**9
    host = running.broker.hosts["a"]
    cleaner.request(host)
    await cleaner._round()
    assert host.log.segments[0].record_count == 1
    assert host.log.cleaned_below == 0
    running.clock.ahead_ns = 3700 * 10**9
    cleaner.request(host)
    await cleaner._round()
    assert cleaning.read("a") == {b"x": 2}
    assert host.log.cleaned_below > 0


# --- re-batching and scrubbing ---


async def test_small_batches_are_joined_once_they_are_old(cleaning: Cleaning) -> None:
    settings = COMPACTED | {"compaction": None, "rebatch": {"min_age": "10m"}}
    await cleaning.running.broker.create_stream("s", settings | {"segment": {"max_bytes": "1MiB"}})
    for number in range(300):
        await cleaning.running.put("s", [("k", b"%d" % number + b"." * 100)])
    log = cleaning.running.broker.hosts["s"].log
    log.roll()
    size = log.segments[0].size_bytes
    assert not await cleaning.cleaner._round()
    assert cleaning.worker.jobs == []
    cleaning.running.clock.ahead_ns = 601 * 10**9
    await cleaning.cleaner._round()
    assert cleaning.worker.jobs == [("rebatch", "s")]
    assert cleaning.state("s").rebatched_segments == 1
    assert log.segments[0].size_bytes < size * 0.8
    assert log.segments[0].record_count == 300
    await cleaning.cleaner._round()
    assert len(cleaning.worker.jobs) == 1
    small = cleaning.cleaner._small[cleaning.running.broker.hosts["s"]]
    assert small._all_judged is log.segments, "an idle stream costs nothing"


async def test_rot_is_found_without_any_reader(tmp_path: Path) -> None:
    cleaning = Cleaning(tmp_path, scrub_interval="1h")
    await cleaning.running.start()
    await cleaning.stream("s", 100, 100, compaction=None)
    host = cleaning.running.broker.hosts["s"]
    hurt = host.log.segments[2]
    raw = bytearray(hurt.path.read_bytes())
    raw[-100] ^= 1
    hurt.path.write_bytes(raw)
    await cleaning.cleaner._round()
    assert cleaning.worker.jobs == []
    cleaning.running.clock.ahead_ns = 3601 * 10**9
    await cleaning.cleaner._round()
    assert cleaning.worker.jobs == [("scrub", "s")] * (host.log.segment_count - 1)
    assert set(cleaning.worker.rates) == {fixed_rate(8 * 2**20)}
    assert [bad.segment for bad in host.log.quarantined] == [hurt.path.name]
    await cleaning.cleaner._round()
    assert len(cleaning.worker.jobs) == host.log.segment_count - 1
    await cleaning.close()


async def test_a_bad_index_is_rebuilt_before_it_is_read(tmp_path: Path) -> None:
    cleaning = Cleaning(tmp_path, scrub_interval="1h")
    await cleaning.running.start()
    await cleaning.stream("s", 100, 100, compaction=None)
    log = cleaning.running.broker.hosts["s"].log
    path = index_path(log.segments[1].path)
    good = path.read_bytes()
    path.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    await cleaning.cleaner._round()
    cleaning.running.clock.ahead_ns = 3601 * 10**9
    await cleaning.cleaner._round()
    assert path.read_bytes() == good
    assert not log.quarantined
    await cleaning.close()


async def test_a_job_leaves_room_on_the_disk(
    cleaning: Cleaning, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cleaning.stream("a", 100, 3)
    before = names(cleaning, "a")
    nearly_full = SimpleNamespace(f_blocks=10**6, f_bavail=10, f_frsize=4096)
    with monkeypatch.context() as patch:
        patch.setattr("os.statvfs", lambda path: nearly_full)
        await cleaning.cleaner._round()
    assert "less space is left" in cleaning.state("a").error
    assert names(cleaning, "a") == before
    await cleaning.running.put("a", [("key-0", b"goes on")])
