"""When a possible loss of messages is written to the manifest."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.daemons.administered import restarted
from support.daemons.local_broker import Running

from liftlog.errors import StorageError
from liftlog.log.files.manifest import find_manifest
from liftlog.sequencing import MessageRun


def stored(running: Running, name: str) -> tuple[int, list[int]]:
    """Sequence number of the manifest on disk, and the offsets of its possible losses."""
    manifest = find_manifest(running.fs, running.data_dir.stream_path(name)).manifest
    assert manifest is not None
    return manifest.sequence, [one["offset"] for one in manifest.metadata["possible_losses"]]


async def test_a_start_writes_no_manifest_of_a_stream_that_gets_no_messages(
    running: Running,
) -> None:
    for name in ("busy", "still"):
        await running.broker.create_stream(name, {"subject": name})
        await running.publish(name, b"1")
    again = await restarted(running)
    before = {name: stored(again, name) for name in ("busy", "still")}
    await again.publish("busy", b"2")
    assert stored(again, "still") == before["still"]
    assert stored(again, "busy") == (before["busy"][0] + 1, [2])
    for name in ("busy", "still"):
        [loss] = (await again.broker.describe_stream(name)).possible_losses
        assert (loss["offset"], loss["reason"]) == (2, "the daemon was not running")
    await again.publish("busy", b"3")
    assert stored(again, "busy") == (before["busy"][0] + 1, [2])
    third = await restarted(again)
    assert [one["offset"] for one in third.broker.hosts["busy"].possible_losses] == [2, 4]
    assert [one["offset"] for one in third.broker.hosts["still"].possible_losses] == [2]
    await third.broker.close()


async def test_the_loss_is_stored_before_the_next_record(running: Running) -> None:
    await running.broker.create_stream("s", {"subject": "in"})
    await running.publish("s", b"1")
    again = await restarted(running)
    host = again.broker.hosts["s"]
    ends: list[int] = []
    set_metadata = host.log.structure.set_metadata

    def noted(metadata: dict[str, Any]) -> None:
        ends.append(host.log.log_end_offset)
        set_metadata(metadata)

    host.log.structure.set_metadata = noted  # type: ignore[method-assign]
    other = host.run_exclusive(lambda: None)
    await again.publish("s", b"2")
    await other
    assert ends == [2]
    assert stored(again, "s")[1] == [2]
    await again.broker.close()


async def test_calls_that_follow_each_other_do_not_keep_the_messages_waiting(
    running: Running,
) -> None:
    await running.broker.create_stream("s", {"subject": "in"})
    await running.publish("s", b"1")
    again = await restarted(running)
    host = again.broker.hosts["s"]

    async def call_again() -> None:
        while host.log.high_watermark < 3:
            await host.run_exclusive(lambda: None)

    calls = [asyncio.create_task(call_again()) for _ in range(3)]
    await asyncio.sleep(0)
    host.receive(MessageRun([b"in"], [b""], [b"2"], has_cookie=False))
    host.kick()
    async with asyncio.timeout(10):
        await asyncio.gather(*calls)
    assert stored(again, "s")[1] == [2]
    await again.broker.close()


async def test_the_loss_of_a_stream_without_records_outlives_a_stop(running: Running) -> None:
    """A start notes nothing of such a stream."""
    await running.broker.create_stream("s", {"subject": "in"})
    running.broker.hosted.note_possible_loss(running.broker.hosts["s"], "NATS was not there")
    again = await restarted(running)
    [loss] = again.broker.hosts["s"].possible_losses
    assert (loss["offset"], loss["reason"]) == (1, "NATS was not there")
    await again.broker.close()


async def test_a_failure_is_logged_and_the_record_is_stored(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    await running.broker.create_stream("s", {"subject": "in"})
    await running.publish("s", b"1")
    again = await restarted(running)
    host = again.broker.hosts["s"]

    def fail(metadata: dict[str, Any]) -> None:
        raise StorageError("it failed on purpose")

    host.log.structure.set_metadata = fail  # type: ignore[method-assign]
    await again.publish("s", b"2")
    assert "possible-loss-not-saved stream=s error=it failed on purpose" in caplog.text
    assert host.log.high_watermark == 3
    assert not host.failure
    assert [one["offset"] for one in host.possible_losses] == [2]
    await again.broker.close()
