"""A followed stream hears of a newer record from its leader."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.followed import CONFIG, Host, Link, followed
from support.logs import create
from support.simfs import SimFileSystem

from liftlog.cluster import transitions
from liftlog.cluster.record import StreamRecord
from liftlog.protocol.replication import Replica, Replicate
from liftlog.server.replication.fetching import FetchRoom, FollowedStream


class Following:
    """Node b follows; the test answers."""

    def __init__(self, room: FetchRoom | None = None) -> None:
        log = create(SimFileSystem(), config=CONFIG)
        log.begin_epoch(1)
        self.link = Link()
        self.learnt: list[StreamRecord] = []
        self.looks = 0
        self.stream: FollowedStream = followed(
            Host(log),
            self.link,
            learn=self.learnt.append,
            tell_record_is_old=self._look,
            room=room,
        )
        self.record = self.stream.follower.record
        self.stream.start()

    def _look(self) -> None:
        self.looks += 1

    @property
    def asked(self) -> Replicate:
        assert self.link.asked is not None
        return self.link.asked[0]

    async def answer(self, end: int = 1, **changes: Any) -> None:
        assert self.link.asked is not None
        (asked, exchange), self.link.asked = self.link.asked, None
        exchange.finish(
            Replica(asked.epoch, asked.offset, asked.last_epoch, 1, end, 1, **changes), None
        )
        async with asyncio.timeout(10):
            while self.link.asked is None:
                await asyncio.sleep(0.01)


async def test_the_record_that_an_answer_brings_is_known_and_then_told_to_the_leader() -> None:
    one = Following()
    left = transitions.fence(one.record, {"c"})
    assert left is not None
    assert (one.asked.record, one.asked.leader_record) == ([*one.record.mark], [0, 0])
    await one.answer(record_version=left.version, record=left.to_json())
    assert one.learnt == [left]
    assert one.looks == 0, "the metadata store may be out of reach"
    assert one.asked.record == [*one.record.mark], "it is not durable here yet"
    assert one.asked.leader_record == [left.version, 0], "it is not to come again"
    one.stream.assigned(left)
    assert one.asked.record == one.asked.leader_record == [*left.mark]
    one.stream.close()


async def test_a_leader_that_does_not_send_the_record_has_it_looked_for_until_it_is_known() -> None:
    one = Following()
    for _ in range(3):
        await one.answer(record_version=one.record.version + 1)
    assert one.looks == 3
    await one.answer(record_version=one.record.version)
    assert one.looks == 3
    one.stream.close()


@pytest.mark.parametrize("garbage", [b"{}", b"\xff", "other"])
async def test_what_is_not_the_record_of_the_stream_is_not_taken(garbage: bytes | str) -> None:
    one = Following()
    if isinstance(garbage, str):
        other = transitions.create(garbage, "x", {}, "ab", starts={"a": 1, "b": 1})
        garbage = other.to_json()
    await one.answer(record_version=9, record=garbage)
    assert (one.learnt, one.looks) == ([], 0)
    one.stream.close()


async def test_streams_that_are_behind_ask_for_little_if_they_are_many() -> None:
    """All that comes may have to wait in memory for a slow disk."""
    mib = 1024 * 1024
    room = FetchRoom(4 * mib)
    many = [Following(room) for _ in range(16)]
    for one in many:
        await one.answer(end=100)
    assert sum(one.asked.max_bytes for one in many) <= 4 * mib
    for one in many[1:]:
        await one.answer()  # it has all
    await many[0].answer(end=100)
    assert many[0].asked.max_bytes == 4 * mib
    for one in many[2:]:
        await one.answer(end=100)
    many[1].stream.close()
    for one in many[2:]:
        one.stream.close()
    await many[0].answer(end=100)
    assert many[0].asked.max_bytes == 4 * mib, "those that are followed no longer do not count"
    many[0].stream.close()
