"""A followed stream hears of a newer record from its leader."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from support.disks.logs import (
    BASE_NS,
    DIRECTORY,
    SMALL,
    FakeClock,
    Promises,
    append,
    create,
    encode,
    environment,
)
from support.disks.simfs import SimFileSystem
from support.worlds.followed import CONFIG, Host, Link, followed

from liftlog.cluster import transitions
from liftlog.cluster.record import StreamMetadata
from liftlog.errors import (
    ConnectionLost,
    CorruptBatch,
    LiftlogError,
    NotLeader,
    UnsupportedFormat,
)
from liftlog.log import Log, LogSlice
from liftlog.protocol.replication import Replica, Replicate
from liftlog.server.replication.fetching import FetchRoom, FollowedStream
from liftlog.server.replication.log_start import follow_log_start
from liftlog.settings import StreamSettings


async def wait(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.01)


_MIB = 1024 * 1024
_LEAST_BYTES = 128 * 1024


class SlowHost(Host):
    """With `is_slow` changes of the log wait for the test."""

    is_slow = False

    def run_exclusive(self, call: Callable[[], object]) -> asyncio.Future[object]:
        if not self.is_slow:
            return super().run_exclusive(call)
        self.change = asyncio.get_running_loop().create_future()
        return self.change


class Following:
    """Node b follows; the test answers."""

    def __init__(self, room: FetchRoom | None = None) -> None:
        log = create(SimFileSystem(), config=CONFIG)
        log.writer.begin_epoch(1)
        self.host = SlowHost(log)
        self.link = Link()
        self.learnt: list[StreamMetadata] = []
        self.looks = 0
        self.stream: FollowedStream = followed(
            self.host,
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

    def finish(self, end: int = 1, body: bytes = b"", **changes: Any) -> None:
        assert self.link.asked is not None
        (asked, exchange), self.link.asked = self.link.asked, None
        exchange.body = memoryview(body) if body else None
        changes["body_length"] = len(body)
        high_watermark = changes.pop("high_watermark", 1)
        exchange.finish(
            Replica(
                *(asked.epoch, asked.offset, asked.last_epoch, high_watermark, end, 1), **changes
            ),
            None,
        )

    def refuse(self, error: LiftlogError) -> None:
        assert self.link.asked is not None
        (_, exchange), self.link.asked = self.link.asked, None
        exchange.finish(None, error)

    async def answer(self, end: int = 1, **changes: Any) -> None:
        self.finish(end, **changes)
        await wait(lambda: self.link.asked)


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


async def test_a_follower_does_not_fail_for_a_leader_of_another_history() -> None:
    """The metadata store was set back to what this node knows, and has not been restored yet."""
    one = Following()
    version, checksum = one.record.mark
    one.finish(diverging=[0, 1], record_version=version, record_checksum=checksum ^ 1)
    assert (one.host.failure, one.looks) == ("", 1)
    assert one.link.asked is None, "a newer record comes first"
    one.stream.close()


async def test_a_new_leader_that_is_not_ready_is_asked_again_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However long the one before it was asked in vain."""
    monkeypatch.setattr("liftlog.server.replication.fetching._LONGEST_PAUSE_SECONDS", 3600.0)
    one = Following()
    for _ in range(4):
        one.refuse(ConnectionLost("gone"))
        await wait(lambda: one.link.asked)
    one.stream._pause = 3600.0
    elected = transitions.failover(one.record, {"a"}, "c")
    assert elected is not None
    one.stream.assigned(elected)
    assert one.asked.epoch == elected.leader_epoch
    one.refuse(NotLeader("not yet"))
    await wait(lambda: one.link.asked)
    assert one.looks == 1
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
    room = FetchRoom(4 * _MIB)
    many = [Following(room) for _ in range(16)]
    for one in many:
        await one.answer(end=100)
    assert sum(one.asked.max_bytes for one in many) <= 4 * _MIB
    for one in many[1:]:
        await one.answer()  # it has all
    await many[0].answer(end=100)
    assert many[0].asked.max_bytes == 4 * _MIB
    for one in many[2:]:
        await one.answer(end=100)
    many[1].stream.close()
    for one in many[2:]:
        one.stream.close()
    await many[0].answer(end=100)
    assert many[0].asked.max_bytes == 4 * _MIB, "those that are followed no longer do not count"
    many[0].stream.close()


async def test_the_streams_of_a_node_that_starts_ask_for_little_from_the_first_request_on() -> None:
    room = FetchRoom(4 * _MIB)
    many = [Following(room) for _ in range(64)]
    sizes = [one.asked.max_bytes for one in many]
    assert sum(sizes) <= 4 * _MIB + 64 * _LEAST_BYTES
    assert min(sizes) == _LEAST_BYTES, "none waits for another one"
    for one in many:
        await one.answer()
    await many[0].answer(end=100)
    assert many[0].asked.max_bytes >= 2 * _MIB, "those that have all leave half of it"
    for one in many:
        one.stream.close()


async def test_what_can_still_come_and_what_waits_for_the_disk_counts() -> None:
    room = FetchRoom(4 * _MIB)
    one = Following(room)
    assert one.asked.max_bytes == 4 * _MIB
    first = Following(room)
    assert first.asked.max_bytes == 2 * _LEAST_BYTES
    one.host.is_slow = True
    one.finish(end=100, body=bytes(4 * _MIB))  # the disk is slow
    first.stream.close()
    second = Following(room)
    assert second.asked.max_bytes == _LEAST_BYTES, "the answer to the first may still come"
    first.finish()
    await second.answer(end=100)
    assert second.asked.max_bytes == 2 * _LEAST_BYTES
    one.stream.close()
    await second.answer(end=100)
    assert second.asked.max_bytes == 2 * _LEAST_BYTES, "it is written though the stream is closed"
    one.host.change.set_result(None)
    await asyncio.sleep(0)
    await second.answer(end=100)
    assert second.asked.max_bytes == 4 * _MIB
    second.stream.close()


async def test_a_batch_that_is_larger_than_was_asked_for_counts_as_what_it_is() -> None:
    room = FetchRoom(4 * _MIB)
    one, other = Following(room), Following(room)
    one.host.is_slow = True
    one.finish(end=100, body=bytes(64 * _MIB))
    await other.answer(end=100)
    assert other.asked.max_bytes == _LEAST_BYTES
    one.host.change.set_exception(CorruptBatch("on purpose"))
    await wait(lambda: one.link.asked)
    assert one.asked.max_bytes == 2 * _MIB
    one.stream.close()
    other.stream.close()


@pytest.mark.parametrize("error", [UnsupportedFormat("on purpose"), ValueError("a defect")])
async def test_a_stream_that_has_failed_leaves_its_share_to_the_others(error: Exception) -> None:
    room = FetchRoom(4 * _MIB)
    one, other = Following(room), Following(room)
    one.host.is_slow = True
    one.finish(end=100, body=bytes(_MIB))
    one.host.change.set_exception(error)
    await wait(lambda: one.host.failure)
    await other.answer(end=100)
    assert other.asked.max_bytes == 4 * _MIB
    other.stream.close()


async def test_files_that_hold_recent_message_ids_outlive_the_log_start() -> None:
    """This node may lead next, after a start: then it knows the ids from its files alone."""
    log = create(SimFileSystem(), config=CONFIG)
    log.writer.begin_epoch(1)
    for _ in range(6):
        append(log, Promises(), 5)
        log.writer.roll()
    end = log.log_end_offset
    log.commit_up_to(log.sync())
    second, later_ns = 10**9, BASE_NS + 121 * 10**9
    settings = StreamSettings(subject="s", dedupe_window="2m")
    follow_log_start(log, 12, settings, BASE_NS + second)
    assert (log.log_start_offset, log.view.first_stored_offset) == (12, 1)
    follow_log_start(log, end, settings, BASE_NS + second)
    assert (log.log_start_offset, log.view.first_stored_offset) == (end, 1)
    clock = log.environment.clock
    assert isinstance(clock, FakeClock)
    clock.now = later_ns
    follow_log_start(log, end, settings, later_ns)
    assert (log.log_start_offset, log.view.first_stored_offset) == (end, end)


@pytest.mark.parametrize("ahead_seconds", [-3600, 10 * 365 * 86_400])
def test_stamps_of_a_leader_with_a_wrong_clock_neither_end_nor_extend_the_window(
    ahead_seconds: int,
) -> None:
    clock = FakeClock()
    log = Log.create(DIRECTORY, environment(SimFileSystem(), clock), SMALL)
    for _ in range(4):
        log.append([encode(log, [b"x" * 100] * 10, stamp=BASE_NS + ahead_seconds * 10**9)])
        log.commit_up_to(log.sync())
    before, settings = len(log.segments), StreamSettings(subject="s", dedupe_window="2m")
    clock.now += 10 * 10**9
    follow_log_start(log, 35, settings, clock.now)
    assert len(log.segments) == before
    clock.now += 86_400 * 10**9
    follow_log_start(log, log.log_end_offset, settings, clock.now)
    assert len(log.segments) == 1


async def test_a_follower_keeps_the_files_that_its_leader_keeps() -> None:
    one = Following()
    log = one.host.log
    leader = create(SimFileSystem(), config=CONFIG)
    leader.writer.begin_epoch(1)
    append(leader, Promises(), 5)
    found = leader.read_replica(1, 1 << 20)
    assert isinstance(found, LogSlice)
    with found:
        body = found.pread()
    await one.answer(6, body=body)
    await one.answer(6, high_watermark=6, log_start_offset=4)
    await wait(lambda: log.log_start_offset == 4)
    await asyncio.sleep(0)  # that has ended
    await one.answer(6, high_watermark=6, log_start_offset=6)
    await wait(lambda: log.log_start_offset == 6)
    assert log.view.first_stored_offset == 1
    one.stream.close()
