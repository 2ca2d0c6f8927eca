"""Retention and recovery points of many streams."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.daemons.local_broker import Running

from liftlog.log.data_dir import RECOVERY_POINTS_NAME, read_states
from liftlog.server.streams.housekeeping import Housekeeping
from liftlog.server.streams.retention import decide_retention, grant_lease


@pytest.fixture
async def housekeeping(running: Running) -> AsyncIterator[Housekeeping]:
    """Waits for each stream, however slow the machine is at the moment."""
    broker = running.broker
    made = Housekeeping(broker, running.data_dir, broker.hosted.reserve, patience_seconds=60)
    yield made
    await made.close()


@pytest.fixture
async def hasty(running: Running) -> AsyncIterator[Housekeeping]:
    """Does not wait for streams that stall."""
    broker = running.broker
    made = Housekeeping(broker, running.data_dir, broker.hosted.reserve, patience_seconds=0.05)
    yield made
    await made.close()


def recovery_points(running: Running) -> set[str]:
    """The streams that have one on disk."""
    return {*read_states(running.fs, running.data_dir.path, RECOVERY_POINTS_NAME)}


async def streams(running: Running, *names: str, **settings: object) -> None:
    for name in names:
        await running.broker.create_stream(name, {"subject": "in", **settings})
        await running.publish(name, *[b"x" * 1000] * 20)


async def retain(housekeeping: Housekeeping) -> None:
    await housekeeping.apply_retention(by_time=True)


async def test_a_stalled_stream_does_not_hold_up_recovery_points(
    running: Running, hasty: Housekeeping, monkeypatch: pytest.MonkeyPatch
) -> None:
    await streams(running, "a", "stuck", "z")
    gate = threading.Event()
    stuck = running.broker.hosts["stuck"]
    original = stuck.log.checkpoint

    def stalled() -> object:
        gate.wait(20)
        return original()

    monkeypatch.setattr(stuck.log, "checkpoint", stalled)
    async with asyncio.timeout(15):
        # On a busy disk the others may be late as well, and are found in the next round.
        while not {"a", "z"} <= recovery_points(running):
            await hasty.save_recovery_points()
            await asyncio.sleep(0.01)
    assert recovery_points(running) == {"a", "z"}
    assert stuck.recovery_point_offset == 1
    gate.set()
    async with asyncio.timeout(15):
        while recovery_points(running) != {"a", "stuck", "z"}:
            await hasty.save_recovery_points()
            await asyncio.sleep(0.01)
    assert stuck.recovery_point_offset == 21


async def test_a_stalled_stream_does_not_hold_up_retention(
    running: Running, hasty: Housekeeping
) -> None:
    await streams(running, "a", "stuck", "z", retention={"max_messages": 5}, dedupe_window="0s")
    gate = threading.Event()
    held = running.broker.hosts["stuck"].run_exclusive(lambda: gate.wait(20))
    hosts = running.broker.hosts
    async with asyncio.timeout(15):
        while min(hosts["a"].log.log_start_offset, hosts["z"].log.log_start_offset) == 1:
            await hasty.apply_retention(by_time=True)
            await asyncio.sleep(0.01)
    starts = {name: host.log.log_start_offset for name, host in hosts.items()}
    assert starts == {"a": 16, "stuck": 1, "z": 16}
    gate.set()
    await held
    async with asyncio.timeout(15):
        while hosts["stuck"].log.log_start_offset != 16:
            await asyncio.sleep(0.01)


async def test_a_stream_deleted_meanwhile_gets_no_recovery_point(
    running: Running, housekeeping: Housekeeping, monkeypatch: pytest.MonkeyPatch
) -> None:
    await streams(running, "a", "b")
    gate, taken = threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    logs = {name: host.log for name, host in running.broker.hosts.items()}
    checkpoints = {name: log.checkpoint for name, log in logs.items()}

    def first() -> object:
        loop.call_soon_threadsafe(taken.set)
        return checkpoints["a"]()

    def second() -> object:
        assert gate.wait(20)
        return checkpoints["b"]()

    monkeypatch.setattr(logs["a"], "checkpoint", first)
    monkeypatch.setattr(logs["b"], "checkpoint", second)
    saving = asyncio.create_task(housekeeping.save_recovery_points())
    await asyncio.wait_for(taken.wait(), 20)
    await running.broker.delete_stream("a")
    await running.broker.create_stream("a", {"subject": "in"})
    gate.set()
    await saving
    assert recovery_points(running) == {"b"}


async def test_streams_without_limits_are_not_looked_at(
    running: Running, housekeeping: Housekeeping, monkeypatch: pytest.MonkeyPatch
) -> None:
    await streams(running, "free")
    await streams(running, "limited", retention={"max_messages": 5})
    seen = []
    monkeypatch.setattr(
        "liftlog.server.streams.housekeeping.decide_retention",
        lambda log, *arguments, **options: seen.append(log.name),
    )
    await housekeeping.apply_retention(by_time=True)
    assert seen == ["limited"]


async def test_leases_hold_retention_until_the_disk_is_full(
    running: Running, housekeeping: Housekeeping, monkeypatch: pytest.MonkeyPatch
) -> None:
    await streams(running, "s", retention={"max_messages": 5}, dedupe_window="0s")
    broker = running.broker
    log = broker.hosts["s"].log
    grant_lease(log, 4, duration_ns=60 * 10**9, now_ns=broker.now_ns())
    await retain(housekeeping)
    assert log.log_start_offset == 4
    monkeypatch.setattr(broker.hosted.reserve, "is_disk_full", lambda: True)
    await retain(housekeeping)
    assert log.log_start_offset == 16
    assert log.leases.live(broker.now_ns()) == ()


async def test_limits_that_were_lifted_remove_nothing_any_more(
    running: Running, housekeeping: Housekeeping, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even what was decided a moment before the update."""
    await streams(running, "s", retention={"max_messages": 5}, dedupe_window="0s")
    log = running.broker.hosts["s"].log
    decided, updated = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def decide(*arguments: Any, **options: Any) -> Any:
        found = decide_retention(*arguments, **options)
        loop.call_soon_threadsafe(decided.set)
        updated.wait(20)
        return found

    monkeypatch.setattr("liftlog.server.streams.housekeeping.decide_retention", decide)
    task = asyncio.create_task(retain(housekeeping))
    await decided.wait()
    admin = running.broker.administration
    await admin.update_stream("s", {"retention": {"max_messages": 20}})
    updated.set()
    await task
    assert log.log_start_offset == 1
    await admin.update_stream("s", {"retention": {"max_messages": 6}}, allow_deletion=True)
    await retain(housekeeping)
    assert log.log_start_offset == 15


async def test_leases_end_when_retention_itself_finds_no_room(
    running: Running, housekeeping: Housekeeping, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although the file system says that there is some: a quota, blocks kept for root."""
    await streams(running, "s", retention={"max_messages": 5}, dedupe_window="0s")
    broker, fs = running.broker, running.fs
    log = broker.hosts["s"].log
    grant_lease(log, 4, duration_ns=60 * 10**9, now_ns=broker.now_ns())
    monkeypatch.setattr(broker.hosted.reserve, "is_disk_full", lambda: False)
    monkeypatch.setattr(broker.hosted.reserve, "release", fs.failing.clear)
    fs.failing["rename"], fs.error_number = "manifest", errno.ENOSPC
    await retain(housekeeping)
    assert not fs.failing, "the reserve was not given back"
    assert log.log_start_offset == 16
    assert log.leases.live(broker.now_ns()) == ()


async def test_leases_outlive_a_failure_that_is_not_for_want_of_room(
    running: Running, housekeeping: Housekeeping, caplog: pytest.LogCaptureFixture
) -> None:
    await streams(running, "s", retention={"max_messages": 5}, dedupe_window="0s")
    broker, fs = running.broker, running.fs
    log = broker.hosts["s"].log
    lease = grant_lease(log, 4, duration_ns=60 * 10**9, now_ns=broker.now_ns())
    fs.failing["rename"] = "manifest"
    await retain(housekeeping)
    assert "failed on purpose" in caplog.text
    assert log.log_start_offset == 1
    fs.failing.clear()
    await retain(housekeeping)
    assert log.log_start_offset == 4
    assert log.leases.live(broker.now_ns()) == (lease,)


@pytest.mark.parametrize("window", ["0s", "1h"])
async def test_files_of_a_follower_go_when_no_one_needs_their_message_ids(
    running: Running, housekeeping: Housekeeping, window: str
) -> None:
    await streams(running, "s", dedupe_window=window)
    host = running.broker.hosts["s"]
    host.is_leading = False
    await host.run_exclusive(host.log.writer.roll)
    await host.run_exclusive(lambda: host.log.structure.remove_before(21, 0))
    await retain(housekeeping)
    assert host.log.log_start_offset == 21
    assert host.log.view.first_stored_offset == (21 if window == "0s" else 1)
