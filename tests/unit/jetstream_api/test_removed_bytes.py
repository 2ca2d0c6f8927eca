"""Records that were erased, and whose bytes were removed too, before a consumer has looked: the set
of erased records does not have them any more."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.worlds.acked_consumers import World, acked_world, until

from liftlog.errors import LiftlogError
from liftlog.log.erased import ErasedSet
from liftlog.log.rewrite import RebatchJob, apply_rebatch, rebatch
from liftlog.server.jetstream_api.consumers.pull_body import Pull
from liftlog.server.jetstream_api.workers.acked_consumer import AckedConsumer

HOUR_NS = 3600 * 10**9


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with acked_world(tmp_path, subject="in.>") as world:
        yield world


async def store(world: World, *subjects: str) -> None:
    committed: asyncio.Future[LiftlogError | None] = asyncio.get_running_loop().create_future()
    raw = [one.encode() for one in subjects]
    world.host.store(raw, raw, [b"x"] * len(raw), committed.set_result)
    assert await committed is None


def erase_and_remove(world: World, *offsets: int) -> None:
    """Hide these records, and rewrite their segment without them, at once."""
    log = world.host.log
    log.structure.erase(ErasedSet.of_ranges((one, one + 1) for one in offsets))
    erased = log.view.erased
    assert erased is not None
    log.writer.roll()
    job = RebatchJob(
        str(log.directory),
        log.segments[0].entry(),
        epochs=log.view.manifest.epochs,
        incarnation=log.incarnation,
        erased=erased.to_plain(),
    )
    apply_rebatch(log, rebatch(job, log.environment.fs), erased=job.erased)
    assert log.view.erased is None


def pull(consumer: AckedConsumer, batch: int = 10, **more: Any) -> None:
    consumer.pull(b"_INBOX.a", Pull(batch=batch, **more))


def delivered(world: World) -> list[int]:
    found = re.findall(rb"\$JS\.ACK\.jobs\.\w+\.\d+\.(\d+)\.", b"".join(world.leaf.sent))
    return [int(one) for one in found]


async def pending(consumer: AckedConsumer) -> tuple[int, int]:
    found = await consumer.info()
    return found["num_pending"], found["num_ack_pending"]


@pytest.mark.parametrize("filters", [(), ("in.*",)])
async def test_a_message_that_was_read_before_is_not_delivered(
    world: World, filters: tuple[str, ...]
) -> None:
    await store(world, *["in.a"] * 6)
    consumer = await world.create("c", filter_subjects=list(filters) or None)
    pull(consumer, 1)
    await until(lambda: delivered(world) == [1])
    assert await pending(consumer) == (5, 1)
    erase_and_remove(world, 3, 5)
    pull(consumer, expires_ns=HOUR_NS)
    await until(lambda: len(delivered(world)) >= 4)
    assert delivered(world) == [1, 2, 4, 6]
    assert await pending(consumer) == (0, 4)


async def test_waiting_messages_are_counted_again(world: World) -> None:
    await store(world, *["in.a"] * 6)
    consumer = await world.create("c")
    assert await pending(consumer) == (6, 0)
    erase_and_remove(world, 3, 5)
    assert await pending(consumer) == (4, 0)


async def test_pending_messages_are_dropped(world: World) -> None:
    await store(world, *["in.a"] * 6)
    consumer = await world.create("c")
    pull(consumer, 4)
    await until(lambda: len(delivered(world)) == 4)
    erase_and_remove(world, 3, 5)
    assert await pending(consumer) == (1, 3)
