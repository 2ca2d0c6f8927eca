"""Rounds: several streams share handovers and sends, and nothing else."""

from __future__ import annotations

import asyncio
import errno
import threading
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.worlds.round_streams import RoundStreams, fault

from liftlog.errors import SyncFailed
from liftlog.log import Log, OsFileSystem
from liftlog.sequencing.refusals import STORE_FAILED
from liftlog.server.commits.rounds import Part, Round
from liftlog.server.commits.writing import STALLED_SECONDS, GroupWriter, WriterPool
from liftlog.settings import CommitSettings

FAILED = STORE_FAILED.err_code


@pytest.fixture
async def made() -> AsyncIterator[Callable[..., RoundStreams]]:
    worlds: list[RoundStreams] = []

    def make(*arguments: Any, **options: Any) -> RoundStreams:
        worlds.append(RoundStreams(*arguments, **options))
        return worlds[-1]

    yield make
    for world in worlds:
        world.close()


def counted(world: RoundStreams) -> int:
    return world.intake.rounds.begun


async def test_the_streams_of_a_chunk_commit_together(made: Callable[..., RoundStreams]) -> None:
    world = made(64)
    numbers = world.publish(count=3)
    assert world.sends == [], "nothing is acked before its sync"
    assert world.sim.log.count("write 00000000000000000001.log") == 64
    await world.work()
    assert world.codes(numbers) == [0] * 192
    assert [sorted(one) for one in world.sends] == [numbers], "one send"
    assert counted(world) == 1
    for host in world.hosts.values():
        assert (host.observed.commits, host.observed.records) == (1, 3)
        assert host.log.high_watermark == 4
    world.check()


async def test_a_stream_alone_is_in_no_round(made: Callable[..., RoundStreams]) -> None:
    world = made(2)
    numbers = world.publish("s1", count=3)
    assert world.codes(numbers) == [0] * 3, "in the event loop"
    many = world.publish("s1", count=1000)
    await world.work()
    assert world.codes(many) == [0] * 1000
    assert counted(world) == 0


@pytest.mark.parametrize("which", [0, 31, 63])
@pytest.mark.parametrize("operation", ["write", "fsync"])
async def test_an_error_of_one_file_concerns_one_stream(
    operation: str, which: int, made: Callable[..., RoundStreams]
) -> None:
    world = made(64)
    before = world.publish()
    await world.work()
    world.sim.faults.append(fault(f"s{which}", operation, errno.EIO))
    numbers = world.publish()
    await world.work()
    assert world.codes(numbers) == [FAILED if n == which else 0 for n in range(64)]
    again = world.publish()
    await world.work()
    assert world.codes(before + again) == [0] * 128
    assert world.answers[again[which]]["seq"] == 2, "the offset is assigned again"
    assert world.log(f"s{which}").segment_count == 2
    world.check()


async def test_no_ack_leaves_before_the_sync_of_its_own_log(
    made: Callable[..., RoundStreams], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if those of other streams have returned, and also if the round is looked at."""
    world = made(8)
    seen: list[list[int]] = []
    for host in world.hosts.values():

        def sync(sync: Callable[[], int] = host.log.sync) -> int:
            seen.append(world.codes(range(8)))
            return sync()

        monkeypatch.setattr(host.log, "sync", sync)
    world.publish()
    await world.work()
    assert seen == [[-1] * 8] * 8
    assert world.codes(range(8)) == [0] * 8


class SyncedMeanwhile(Part):
    """A thread ends its sync as soon as the event loop has asked once."""

    asked = 0

    @property  # type: ignore[override]
    def is_synced(self) -> bool:
        self.asked += 1
        return self.asked > 1

    @is_synced.setter
    def is_synced(self, value: bool) -> None: ...


def test_a_part_that_is_synced_meanwhile_is_not_lost() -> None:
    def unused(_: object) -> None: ...

    part = SyncedMeanwhile(None, None)  # type: ignore[arg-type]
    one = Round([part], synced=unused, synced_late=unused)
    assert one.take_synced() == []
    assert one.parts == [part]
    assert one.take_synced() == [part]
    assert one.parts == []


async def test_a_round_goes_on_though_nats_takes_no_answer(
    made: Callable[..., RoundStreams], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither its syncs nor the next round depend on the connection."""
    world = made(4)
    errors: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))

    def refuse(commands: bytes) -> None:
        raise RuntimeError("closed")

    written = world.intake.write
    world.intake.write = refuse
    world.sim.faults.append(fault("s0", "write", errno.EIO))
    with pytest.raises(RuntimeError):  # for the nack
        world.publish()
    more = world.publish("s1", "s2", "s3")
    world.pool.step()
    for _ in range(3):
        await asyncio.sleep(0)
    world.intake.write = written
    await world.work()
    assert len(errors) == 1
    assert world.codes(more) == [0] * 3
    assert world.log("s1").high_watermark == 3


class SlowDisk:
    """Real threads and files; the syncs of some streams wait for the test."""

    def __init__(self, made: Callable[..., RoundStreams], tmp_path: Path, count: int) -> None:
        self.world = made(count, fs=OsFileSystem(), directory=tmp_path, pool=WriterPool(4))
        self.may_go_on = threading.Event()

    def stall_syncs(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        log = self.world.log(name)
        sync = log.sync

        def stalled() -> int:
            self.may_go_on.wait(10)
            end = sync()
            log.writer.last_sync_seconds = 1.0
            return end

        monkeypatch.setattr(log, "sync", stalled)


async def test_a_file_whose_sync_stalls_leaves_the_round(
    made: Callable[..., RoundStreams], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SlowDisk(made, tmp_path, 64)
    world = disk.world
    disk.stall_syncs(monkeypatch, "s5")
    numbers = world.publish()
    others = numbers[:5] + numbers[6:]
    await world.answered(others)
    assert world.codes([numbers[5]]) == [-1]
    stalled = world.hosts["s5"]
    assert stalled.turns.is_taken, "nothing else uses its log"
    for _ in range(5):  # the others go on in rounds, without it
        more = world.publish()
        await world.answered(more[:5] + more[6:])
        assert world.codes([more[5]]) == [-1]
    assert stalled.turns.taken_seconds > STALLED_SECONDS
    disk.may_go_on.set()
    await world.answered([numbers[5], more[5]])
    world.check()
    # It commits alone as long as its syncs stall, and then in rounds again.
    assert not stalled.can_join()
    monkeypatch.undo()
    for _ in range(3):
        await stalled.drained()
        begun = world.publish()
        await world.answered(begun)
    world.publish(chunk=False)
    assert stalled.can_join()
    world.intake.chunk_ended()
    await asyncio.gather(*[host.drained() for host in world.hosts.values()])
    world.check()


async def test_a_sync_that_stalls_and_fails_is_a_nack(
    made: Callable[..., RoundStreams], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SlowDisk(made, tmp_path, 8)
    world = disk.world
    log = world.log("s2")

    def sync() -> int:
        disk.may_go_on.wait(10)
        raise SyncFailed("EIO")

    monkeypatch.setattr(log, "sync", sync)
    numbers = world.publish()
    await world.answered(numbers[:2] + numbers[3:])
    assert world.codes([numbers[2]]) == [-1]
    monkeypatch.undo()
    disk.may_go_on.set()
    await world.answered(numbers)
    assert world.codes(numbers) == [FAILED if n == 2 else 0 for n in range(8)]
    again = world.publish()
    await world.answered(again)
    assert world.answers[again[2]]["seq"] == 1
    assert log.segment_count == 1, "the empty one is replaced"
    world.check()


async def test_an_append_that_stalls_is_not_repeated_in_the_event_loop(
    made: Callable[..., RoundStreams], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not for the other streams of the round either: they have the same disk."""
    world = made(8)
    on_loop: list[Log] = []
    slow = True

    def stalled(log: Log, batches: Any) -> None:
        on_loop.append(log)
        if slow:
            time.sleep(1.2 * STALLED_SECONDS)
        log.writer.append(batches)

    for host in world.hosts.values():
        monkeypatch.setattr(host.log, "append", partial(stalled, host.log))
    numbers = world.publish()
    assert len(on_loop) == 1
    slow = False
    await world.work()
    assert world.codes(numbers) == [0] * 8
    assert counted(world) == 1
    on_loop.clear()
    numbers = world.publish()
    assert len(on_loop) == 7, "all but the one whose last append has stalled"
    await world.work()
    on_loop.clear()
    world.publish()
    assert len(on_loop) == 8
    await world.work()
    world.check()


async def test_parts_do_not_wait_for_threads_that_stall_with_another_job(
    made: Callable[..., RoundStreams],
) -> None:
    """Two of four threads have taken the calls of the round, and stall with what they took before.
    The others always have more to do."""
    world = made(2)
    numbers = world.publish()
    hostages = [world.pool.work.popleft() for _ in range(2)]
    world.pool.work.extend([lambda: None] * 3)
    async with asyncio.timeout(10):
        while len(world.pool.work) == 3:
            await asyncio.sleep(0.001)
    await asyncio.sleep(0.1)
    assert len(world.pool.work) == 5, "calls that no thread begins do not become more and more"
    await world.work()
    assert world.codes(numbers) == [0] * 2
    for call in hostages:
        call()
    await world.work()
    world.check()


async def test_many_appends_end_a_round_before_they_delay_the_event_loop(
    made: Callable[..., RoundStreams], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No append stalls, but 64 of them would take more than a second. Threads write the others."""
    world = made(64)
    world.intake.rounds.most_append_seconds = 2 * STALLED_SECONDS
    on_loop = 0

    def slow(log: Log, batches: Any) -> None:
        nonlocal on_loop
        if not world.pool.is_working:
            on_loop += 1
            time.sleep(0.4 * STALLED_SECONDS)
        log.writer.append(batches)

    for host in world.hosts.values():
        monkeypatch.setattr(host.log, "append", partial(slow, host.log))
    numbers = world.publish()
    assert 1 <= on_loop <= 6
    await world.work()
    assert world.codes(numbers) == [0] * 64
    assert counted(world) == 1
    world.check()


async def test_a_round_has_a_limit_in_bytes(made: Callable[..., RoundStreams]) -> None:
    """Streams beyond it wait for the next round, and the event loop works in between."""
    world = made(64)
    world.intake.rounds.most_bytes = 100_000
    numbers = world.publish(count=2, size=5_000)
    appended = world.sim.log.count("write 00000000000000000001.log")
    assert 4 <= appended <= 10
    while counted(world) == 1:
        await asyncio.sleep(0)
    assert world.sim.log.count("write 00000000000000000001.log") == 2 * appended
    for _ in range(20):
        await asyncio.sleep(world.intake.rounds.pause_seconds)
        await world.work()
    assert world.codes(numbers) == [0] * 128
    assert counted(world) in (64 // appended, -(-64 // appended)), "the last one may be alone"
    large = world.publish("s0", "s1", size=150_000)
    await asyncio.sleep(world.intake.rounds.pause_seconds)
    await world.work()
    assert world.codes(large) == [0] * 2, "a round of one"
    world.check()


async def test_streams_that_wait_commit_though_nats_takes_no_answer(
    made: Callable[..., RoundStreams],
) -> None:
    """Those of the first round have failed, so none of its threads would begin the next."""
    world = made(66)

    def refuse(commands: bytes) -> None:
        raise RuntimeError("closed")

    written = world.intake.write
    world.intake.write = refuse
    for number in range(64):
        world.sim.faults.append(fault(f"s{number}", "write", errno.EIO))
    with pytest.raises(RuntimeError):  # for the nacks
        world.publish()
    world.intake.write = written
    async with asyncio.timeout(10):
        while world.codes([64, 65]) != [0, 0]:
            await asyncio.sleep(world.intake.rounds.pause_seconds)
            await world.work()


async def test_three_rounds_are_out_and_other_streams_wait(
    made: Callable[..., RoundStreams],
) -> None:
    world = made(10)
    world.intake.rounds.pause_seconds = 0.0
    for number in range(4):
        world.publish(f"s{2 * number}", f"s{2 * number + 1}")
    assert counted(world) == 3
    assert not world.hosts["s6"].turns.is_taken
    again = world.publish("s0", "s1")  # they wait for their own round
    assert counted(world) == 3
    await world.work()
    assert counted(world) >= 4
    assert world.codes(range(8)) == [0] * 8
    assert world.codes(again) == [0] * 2
    world.check()


async def test_one_more_round_begins_after_a_pause(
    made: Callable[..., RoundStreams],
) -> None:
    """Streams do not wait for a slow round, though no chunk comes."""
    world = made(8)
    world.intake.rounds.pause_seconds = 0.02
    world.publish("s0", "s1")
    world.publish("s2", "s3")
    assert counted(world) == 1
    await asyncio.sleep(0.04)
    assert counted(world) == 2
    await world.work()
    assert world.codes(range(4)) == [0] * 4


async def test_a_stream_that_waits_for_too_long_has_a_job_of_its_own(
    made: Callable[..., RoundStreams],
) -> None:
    """Or no one would notice that the disk of its leader stalls."""
    world = made(10)
    world.intake.rounds.pause_seconds = 0.0
    world.intake.rounds.most_wait_seconds = 0.01
    for number in range(4):
        world.publish(f"s{2 * number}", f"s{2 * number + 1}")
    assert not world.hosts["s6"].turns.is_taken
    await asyncio.sleep(2 * STALLED_SECONDS)
    assert world.hosts["s6"].turns.is_taken
    await world.work()
    assert world.codes(range(8)) == [0] * 8
    world.check()


@pytest.mark.parametrize(
    "options",
    [
        {"durability": "interval"},
        {"durability": "os"},
        {"commit": CommitSettings(inline_max_messages=0)},
    ],
)
async def test_what_may_be_in_no_round(
    options: dict[str, Any], made: Callable[..., RoundStreams]
) -> None:
    world = made(4, **options)
    numbers = world.publish()
    await world.work()
    assert world.codes(numbers) == [0] * 4
    assert counted(world) == 0


async def test_large_groups_commit_alone_beside_a_round(
    made: Callable[..., RoundStreams],
) -> None:
    world = made(4)
    large = world.publish("s0", count=2000, size=256, chunk=False)
    small = world.publish("s1", "s2", "s3")
    assert counted(world) == 1
    assert world.hosts["s0"].turns.is_taken
    await world.work()
    assert world.codes(large + small) == [0] * 2003
    world.check()


async def test_rolls_and_reservations_are_due_outside_of_rounds(
    made: Callable[..., RoundStreams],
) -> None:
    world = made(3, segment={"max_bytes": 1024})
    for number in range(30):
        numbers = world.publish(size=100)
        await world.work()
        assert world.codes(numbers) == [0] * 3, number
    assert world.log("s0").segment_count > 3
    assert counted(world) > 10
    log = world.log("s0")
    writer = GroupWriter(log, world.settings)
    reserved = log.view.manifest.reserved_offset
    assert [writer.only_appends(10, end) for end in (reserved, reserved + 1)] == [True, False]
    world.check()


async def test_an_exclusive_call_waits_for_the_round_and_comes_before_the_next(
    made: Callable[..., RoundStreams],
) -> None:
    world = made(3)
    order: list[str] = []
    host = world.hosts["s1"]
    numbers = world.publish()
    call = host.run_exclusive(lambda: order.append("call"), lambda: order.append("then"))
    cancelled = host.run_exclusive(lambda: order.append("cancelled"))
    cancelled.cancel()
    more = world.publish()
    world.pool.step()
    assert order == [], "its log is in use until the loop has ended its part"
    await world.work()
    assert order == ["call", "then", "cancelled"]
    assert call.done()
    assert world.codes(numbers + more) == [0] * 6
    world.check()


async def test_a_defect_stops_one_stream(
    made: Callable[..., RoundStreams], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = made(3)

    def fail(*arguments: Any) -> None:
        raise KeyError("defect")

    monkeypatch.setattr(world.log("s0"), "append", fail)
    monkeypatch.setattr(world.log("s1"), "commit_up_to", fail)
    numbers = world.publish()
    await world.work()
    assert world.codes(numbers) == [FAILED, FAILED, 0]
    assert ["defect" in host.failure for host in world.hosts.values()] == [True, True, False]
    more = world.publish()
    await world.work()
    assert world.codes(more) == [FAILED, FAILED, 0]


async def test_closing_while_a_round_is_out(made: Callable[..., RoundStreams]) -> None:
    """Messages that are written get an answer; messages that only wait get none."""
    world = made(3)
    numbers = world.publish()
    waiting = world.publish()
    for host in world.hosts.values():
        host.close()
    ended = asyncio.create_task(world.hosts["s0"].turns.over())
    await asyncio.sleep(0)
    assert not ended.done()
    await world.work()
    assert world.codes(numbers) == [0] * 3
    assert world.codes(waiting) == [-1] * 3
    await asyncio.wait_for(ended, 5)
    assert counted(world) == 1


async def test_deleting_a_stream_that_is_in_a_round(
    made: Callable[..., RoundStreams], tmp_path: Path
) -> None:
    """It is drained, closed and gone, while the others go on."""
    world = made(8, fs=OsFileSystem(), directory=tmp_path, pool=WriterPool(2))
    numbers = world.publish()
    gone = world.hosts["s3"]
    await asyncio.wait_for(gone.drained(), 5)
    gone.close()
    await gone.turns.over()
    await asyncio.to_thread(gone.log.close)
    del world.hosts["s3"]
    more = world.publish()
    await world.answered(numbers + more)
    assert set(world.codes(numbers + more)) == {0}
    world.check()


async def test_a_failed_stream_in_a_round_answers_when_its_sync_ends(
    made: Callable[..., RoundStreams],
) -> None:
    world = made(3)
    numbers = world.publish()
    waiting = world.publish("s1")
    world.hosts["s1"].fail("the test said so")
    assert world.codes(waiting) == [FAILED]
    assert world.codes(numbers) == [-1] * 3
    await world.work()
    assert world.codes(numbers) == [0] * 3
    world.check()


# --- with followers ---


async def test_followers_get_the_groups_before_the_syncs(
    made: Callable[..., RoundStreams],
) -> None:
    world = made(4, followers=["s1", "s2"])
    numbers = world.publish()
    assert [gate.seen_end for gate in world.gates.values()] == [2, 2]
    await world.work()
    assert world.codes(numbers) == [0, -1, -1, 0], "held until followers have them"
    more = world.publish()  # held groups are no obstacle to the next round
    await world.work()
    assert counted(world) == 2
    for name, gate in world.gates.items():
        world.hosts[name].commit_up_to(gate.confirm(3))
    assert world.codes(numbers + more) == [0] * 8
    world.check()


@pytest.mark.parametrize("fails", [False, True])
async def test_the_leadership_ends_while_a_round_is_out(
    fails: bool, made: Callable[..., RoundStreams]
) -> None:
    """The next leader may have what was written: it gets no answer here, and is not dropped here
    but after a failed sync."""
    world = made(3, followers=["s1"])
    numbers = world.publish()
    waiting = world.publish("s1")
    if fails:
        world.sim.faults.append(fault("s1", "fsync", errno.EIO))
    world.hosts["s1"].step_down("the test said so")
    assert world.codes(waiting) != [-1], "this was only judged"
    await world.work()
    assert world.codes(numbers) == [0, -1, 0]
    assert world.log("s1").log_end_offset == (1 if fails else 2)
    assert not world.hosts["s1"].turns.is_taken


async def test_a_failed_sync_ends_the_leadership(made: Callable[..., RoundStreams]) -> None:
    world = made(3, followers=["s1"])
    world.sim.faults.append(fault("s1", "fsync", errno.EIO))
    numbers = world.publish()
    await world.work()
    assert world.codes(numbers) == [0, -1, 0]
    assert world.gates["s1"].lead_ended


async def test_a_second_defect_of_one_stream_leaves_the_others_whole(
    made: Callable[..., RoundStreams], caplog: pytest.LogCaptureFixture
) -> None:
    """It comes while the stream is ended because of the first one."""
    world = made(3)

    def told(_: object) -> None:
        raise KeyError("defect")

    numbers = world.publish(chunk=False)
    for _ in range(2):
        world.hosts["s0"].store([b"in"], [None], [b"own"], told)
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    world.intake.chunk_ended()
    for _ in range(5):
        await world.work()
    assert world.codes(numbers)[1:] == [0, 0]
    assert [host.turns.is_taken for host in world.hosts.values()] == [False] * 3
    assert "stream-failure-incomplete stream=s0" in caplog.text


async def test_commits_in_the_event_loop_learn_from_the_syncs_of_flushes(
    made: Callable[..., RoundStreams],
) -> None:
    world = made(1, durability="interval", flush={"interval": "10ms"})
    host = world.hosts["s0"]
    sync = host.log.sync

    def slow() -> int:
        end = sync()
        host.log.writer.last_sync_seconds = 1.0
        return end

    host.log.sync = slow  # type: ignore[method-assign]
    world.publish("s0")
    host.commits.flush_due()
    await world.work()
    world.publish("s0")
    assert not world.intake.inline.allows(1)
