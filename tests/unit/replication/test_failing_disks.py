"""A follower whose disk fails: a request confirms what is durable, and no more than that."""

from __future__ import annotations

import asyncio
import errno
from dataclasses import replace

import pytest
from support.disks.logs import Promises, append, create, reopen
from support.disks.simfs import Fault, SimFileSystem
from support.worlds.followed import CONFIG, Host, Link, end_pause, followed

from liftlog.log import Log, LogSlice
from liftlog.protocol.replication import Replica

LOST_SYNC = Fault("fsync", path=".log")


def answer(link: Link, leader: Log) -> None:
    assert link.asked is not None
    (asked, exchange), link.asked = link.asked, None
    found = leader.read_replica(asked.offset, 1 << 20)
    assert isinstance(found, LogSlice)
    with found:
        body = found.pread()
    exchange.body = memoryview(body)
    end = leader.log_end_offset
    exchange.finish(
        Replica(asked.epoch, asked.offset, asked.last_epoch, 1, end, 1, body_length=len(body)), None
    )


@pytest.mark.parametrize(
    "faults",
    [
        [LOST_SYNC],
        [LOST_SYNC, Fault("create", path=".log")],
        [LOST_SYNC, Fault("create", path=".log", times=3)],
        [LOST_SYNC, Fault("truncate", error=errno.EROFS, times=4)],
    ],
    ids=["sync", "sync and segment", "sync and segments", "read-only"],
)
@pytest.mark.parametrize("inline", [True, False])
def test_what_a_failed_sync_lost_is_not_confirmed(inline: bool, faults: list[Fault]) -> None:
    async def follow() -> None:
        leader = create(SimFileSystem(), config=CONFIG)
        leader.writer.begin_epoch(1)
        promises = Promises()
        append(leader, promises, 3)
        fs = SimFileSystem()
        host, link = Host(create(fs, config=CONFIG), is_fast=inline), Link()
        host.log.writer.begin_epoch(1)
        stream = followed(host, link)
        stream.start()
        answer(link, leader)
        await asyncio.sleep(0)
        append(leader, promises, 4)
        fs.faults = [replace(one) for one in faults]
        for _ in range(10):
            await asyncio.sleep(0)
            if link.asked is None:
                end_pause(stream)
            assert link.asked is not None
            confirmed = link.asked[0].offset
            again, report = reopen(fs.power_cut("none"), boot="boot-2", config=CONFIG)
            assert again.log_end_offset >= confirmed
            assert not report.incomplete
            if confirmed == leader.log_end_offset:
                break
            answer(link, leader)
        assert host.errors, "the disk did not fail"
        assert not host.failure
        assert host.log.log_end_offset == leader.log_end_offset
        stream.close()

    asyncio.run(follow())
