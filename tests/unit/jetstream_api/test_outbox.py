"""Commands leave after the changes behind them, and in order, however fast NATS takes them."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Iterator

import pytest
from support.disks.simfs import Fault, SimFileSystem
from support.worlds.outbox_site import Site

from liftlog.server.commits.writing import InlineBudget, WriterPool


@pytest.fixture
def fs() -> SimFileSystem:
    return SimFileSystem()


@pytest.fixture
def pool() -> Iterator[WriterPool]:
    pool = WriterPool(2)
    yield pool
    pool.close()


@pytest.fixture
async def site(fs: SimFileSystem, pool: WriterPool) -> AsyncIterator[Site]:
    site = Site(fs, pool)
    yield site
    fs.faults.clear()
    await site.outbox.close()
    await site.journal.close()


async def test_deliveries_leave_when_written_and_answers_when_synced(site: Site) -> None:
    site.outbox.after_written(site.change(), b"1")
    site.outbox.after_synced(site.position, b"a")
    assert not site.nats.sent
    site.journal.append_now()
    assert site.nats.sent == [b"1"], "in the same turn of the loop"
    assert not site.nats.answers
    await site.until(site.nats.answers, b"a")
    assert site.journal.synced_position >= site.position


async def test_a_fast_disk_syncs_in_the_same_turn(site: Site) -> None:
    site.journal.set_inline(InlineBudget(64, 1.0))
    site.outbox.after_synced(site.change(), b"a")
    site.journal.append_now()
    assert site.nats.answers == [b"a"]
    assert site.journal.counters.syncs == 1


async def test_what_needs_no_change_leaves_by_itself_and_in_order(site: Site) -> None:
    site.outbox.after_written(0, b"0")
    await site.until(site.nats.sent, b"0")
    site.outbox.after_written(site.change(), b"1")
    site.outbox.after_written(0, b"2")
    assert site.nats.sent == [b"0"]
    await site.until(site.nats.sent, b"012")


async def test_a_server_that_is_behind_changes_no_order(site: Site) -> None:
    site.nats.is_behind = True
    site.outbox.after_written(site.change(), b"1")
    site.journal.append_now()
    site.nats.is_behind = False
    for number in range(2, 6):
        site.outbox.after_written(site.change(), b"%d" % number)
        site.journal.append_now()
    assert not site.nats.sent
    await site.until(site.nats.sent, b"12345")


async def test_commands_wait_for_a_connection(site: Site) -> None:
    site.nats.is_open = False
    site.outbox.after_written(site.change(), b"1")
    site.outbox.after_written(site.change(), b"2")
    site.journal.append_now()
    await asyncio.sleep(0.05)
    assert not site.nats.sent
    site.nats.is_open = True
    await site.until(site.nats.sent, b"12")


@pytest.mark.parametrize("is_inline", [True, False])
async def test_nothing_leaves_while_the_journal_fails(
    site: Site, fs: SimFileSystem, is_inline: bool
) -> None:
    await site.journal.synced(site.position)
    if is_inline:
        site.journal.set_inline(InlineBudget(64, 1.0))
    fs.faults.append(Fault("fsync", errno.EIO, times=2))
    site.outbox.after_synced(site.change(), b"a")
    site.journal.append_now()
    async with asyncio.timeout(20):
        while site.journal.problem is None:
            await asyncio.sleep(0.001)
    site.outbox.after_written(site.change(), b"1")
    assert (site.nats.sent, site.nats.answers) == ([], [])
    await site.until(site.nats.answers, b"a")
    await site.until(site.nats.sent, b"1")
    assert site.journal.counters.failures >= 1


async def test_heartbeats_do_not_pile_up_while_nothing_can_be_written(
    site: Site, fs: SimFileSystem
) -> None:
    for _ in range(50_000):
        site.outbox.after_written(site.position + 1, b"x" * 100)
    assert site.outbox.size_bytes > 10 * 2**20, "nothing is dropped before"
    site.journal.append_now()
    fs.faults.append(Fault("write", errno.ENOSPC, times=1000))
    async with asyncio.timeout(20):
        while site.journal.problem is None:
            position = site.change()
            await asyncio.sleep(0.001)
    size = site.outbox.size_bytes
    for _ in range(200_000):
        site.outbox.after_written(position, b"x" * 100)
    assert site.outbox.is_full
    assert site.outbox.size_bytes <= max(size, 4.2 * 2**20)
    fs.faults.clear()
    async with asyncio.timeout(20):
        await site.journal.writable()
        while site.outbox.size_bytes:
            await asyncio.sleep(0.001)
    site.outbox.after_written(site.change(), b"on")
    site.journal.append_now()
    assert site.nats.sent[-1] == b"on"
