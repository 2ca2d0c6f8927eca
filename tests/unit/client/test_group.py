"""Members of consumer groups, of both kinds, at a daemon that keeps groups in memory."""

from __future__ import annotations

import asyncio
import math
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
from crc32c import crc32c
from support.clients.group_by_hand import GroupByHand, ReadByHand
from support.clients.opened_client import Opened, router_of
from support.daemons.local_checkpoints import LocalOffsets
from support.daemons.pull_broker import LogBroker

from liftlog.client import connect
from liftlog.client.groups.arrived import slots_of
from liftlog.client.groups.group_member import Lane
from liftlog.client.groups.grouping import MOST_LANES
from liftlog.errors import (
    Conflict,
    DiskFull,
    GroupFenced,
    InvalidArgument,
    LiftlogError,
    StreamUnavailable,
)
from liftlog.protocol.groups import AssignmentAnswer
from liftlog.protocol.messages import Fetch, FetchHeader
from liftlog.records.decode import Record, decode_batch
from liftlog.records.encode import encode_batch
from liftlog.server.pull.fetches import FetchQueue

KEYS = [b"key %d" % number for number in range(40)]


def publish(broker: LogBroker, rounds: int) -> None:
    """Publish rounds. Each round is a batch with one record of each key; the value is the round."""
    stream = broker.stream("orders")
    for number in range(rounds):
        stream.append([b"%d" % number] * len(KEYS), keys=[*KEYS])


async def until(condition: Callable[[], object]) -> None:
    """Let the event loop run until the condition is true, even on a busy machine."""
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.001)


class Seen:
    """The records that all members of a group have received, by key."""

    def __init__(self) -> None:
        self.values: dict[bytes, list[int]] = defaultdict(list)
        self.count = 0

    def add(self, record: Record) -> None:
        assert record.key is not None
        assert record.value is not None
        self.values[record.key].append(record.offset)
        self.count += 1

    def check(self, rounds: int) -> None:
        """Check that every record was received once and in order."""
        assert set(self.values) == set(KEYS)
        for offsets in self.values.values():
            assert offsets == sorted(set(offsets))
            assert len(offsets) == rounds


async def test_one_member_gets_everything_in_order(client: Opened, broker: LogBroker) -> None:
    group = client.client.group("billing", "orders", start=101)
    publish(broker, 5)
    seen = Seen()
    for record in await client.take(group, 5 * len(KEYS)):
        seen.add(record)
    seen.check(5)
    assert group.slots == list(range(64))
    assert group.slot_of(records_of([b"key 7"])[0]) == crc32c(b"key 7") * 64 >> 32
    await client.of(group, "commit")
    info = await client.call("describe_group", "billing", "orders")
    assert info.offsets == [301] * 64
    assert info.lag == 0
    assert [(one["name"], one["slots"], one["lag"]) for one in info.members] == [
        (group.member, 64, 0)
    ]
    await client.of(group, "close")
    info = await client.call("describe_group", "billing", "orders")
    assert info.members == []
    assert info.owners == [""] * 64


async def test_two_members_share_and_each_key_stays_in_order(
    broker: LogBroker, address: str, offsets_stream: object
) -> None:
    seen = Seen()
    moved: list[str] = []

    async def work(name: str, wanted: int) -> None:
        async with connect(address) as one:
            group = one.group(
                "billing",
                "orders",
                start=101,
                session=60,
                commit_every=7,
                on_assigned=lambda slots: moved.append(f"{name}+{len(slots)}"),
                on_revoked=lambda slots: moved.append(f"{name}-{len(slots)}"),
            )
            async with group:
                async for record in group:
                    seen.add(record)
                    await asyncio.sleep(0)
                    if seen.count >= wanted:
                        return

    publish(broker, 1)
    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(work("a", 10**9))
        await until(lambda: seen.count >= 40)
        second = tasks.create_task(work("b", 10**9))
        await until(lambda: "b+32" in moved)
        publish(broker, 20)
        await until(lambda: seen.count >= 21 * len(KEYS))
        first.cancel()
        second.cancel()
    seen.check(21)
    assert moved == ["a+64", "a-32", "b+32"]


async def test_keys_of_all_kinds_stay_with_one_member_in_order(
    broker: LogBroker, address: str, offsets_stream: object
) -> None:
    """Empty, binary and long keys, and records without a key, for which the subject is used."""
    keys = [b"", b"\0\xff\n", b"k" * 1_048_576, "\u00fc".encode(), *KEYS[:8]]
    subjects = [b"mixed.a", b"mixed.b", b"mixed.c", b"mixed.d"]
    stream = broker.add("mixed", subject="mixed.>")
    values = [b"%d" % number for number in range(5)]
    groups: list[Any] = []
    found: list[tuple[Any, Record]] = []

    def add(group: Any, record: Record) -> None:
        found.append((group, record))

    async def work() -> None:
        async with connect(address) as one:
            group = one.group("billing", "mixed", session=60, slots=16)
            groups.append(group)
            async with group:
                async for record in group:
                    add(group, record)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(2):
            tasks.create_task(work())
        await until(lambda: [len(group.slots) for group in groups] == [8, 8])
        for value in values:
            stream.append([value] * len(keys), keys=[*keys])
            for subject in subjects:
                stream.append([value], subject=subject)
        await until(lambda: len(found) >= len(values) * (len(keys) + len(subjects)))
        for group in groups:
            group.stop()
    by_name: dict[bytes, list[bytes | None]] = defaultdict(list)
    owner: dict[bytes, Any] = {}
    for group, record in found:
        name = record.subject.encode() if record.key is None else record.key
        assert owner.setdefault(name, group) is group
        assert group.slot_of(record) == crc32c(name) * 16 >> 32
        by_name[name].append(record.value)
    assert by_name == dict.fromkeys((*keys, *subjects), values)


async def test_slots_move_before_the_first_record_came(
    client: Opened, broker: LogBroker, address: str
) -> None:
    broker.add("empty", subject="empty.>")
    group = client.client.group("billing", "empty", member="w1", session=60)
    taken = asyncio.ensure_future(client.take(group, 5))
    async with connect(address) as other:

        async def owned() -> list[int]:
            info = await other.describe_group("billing", "empty")
            return [] if info is None else sorted(one["slots"] for one in info.members)

        async with asyncio.timeout(60):
            while await owned() != [64]:
                await asyncio.sleep(0.01)
            async with other.group("billing", "empty", session=60):
                while await owned() != [32, 32]:
                    assert not taken.done()
                    await asyncio.sleep(0.01)
    broker.stream("empty").append([b"1"] * 5, keys=KEYS[:5])
    assert sorted(one.offset for one in await taken) == [1, 2, 3, 4, 5]
    await client.of(group, "leave")


async def test_slots_that_are_far_behind_are_read_beside_the_others(
    broker: LogBroker, address: str, offsets_stream: object
) -> None:
    publish(broker, 30)
    seen = Seen()

    async def drain(group: Any) -> None:
        async for record in group:
            seen.add(record)
            await asyncio.sleep(0)

    async with connect(address) as one, connect(address) as two:
        first = one.group("billing", "orders", start=101, session=60)
        second = two.group("billing", "orders", start=101, session=60)
        for _ in range(600):
            seen.add(await anext(first))
        tasks = [asyncio.create_task(drain(group)) for group in (second, first)]
        await until(lambda: seen.count == 30 * len(KEYS))
        await until(lambda: len(first.slots) == len(second.slots) == 32)
        tasks[1].cancel()
        publish(broker, 50)
        others = sum(slot in second.slots for slot in slots_of(records_of(KEYS), 64))
        await until(lambda: seen.count == 30 * len(KEYS) + 50 * others)
        await first.leave()
        publish(broker, 5)
        await until(lambda: seen.count == 85 * len(KEYS))
        tasks[0].cancel()
        seen.check(85)
        await second.close()


async def test_slots_that_stay_wait_for_nothing_that_came(
    client: Opened, broker: LogBroker, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New slots are behind, and have no records: reads of the other slots continue."""
    publish(broker, 1)
    group = client.client.group("billing", "orders", start=101, session=60)
    await client.take(group, len(KEYS))
    async with connect(address) as two:
        other = two.group("billing", "orders", session=60)
        joining = asyncio.ensure_future(anext(other))
        rest = asyncio.ensure_future(client.take(group, 1))
        await until(lambda: len(group.slots) == len(other.slots) == 32)
        stay = set(group.slots)
        key = next(key for key in KEYS if crc32c(key) * 64 >> 32 in stay)
        theirs = next(key for key in KEYS if crc32c(key) * 64 >> 32 not in stay)
        stream = broker.stream("orders")
        stream.append([b""] * 2, keys=[theirs, key])
        await asyncio.gather(joining, rest)
        waiting = asyncio.ensure_future(client.take(group, 1))
        await other.commit()
        await other.leave()
    await until(lambda: len(group.slots) == 64)
    for kind in ("aio", "blocking"):
        monkeypatch.setattr(f"liftlog.client.{kind}.group.LOOK_SECONDS", 3600)
    stream.append([b""], keys=[key])
    async with asyncio.timeout(30):
        assert [one.offset for one in await waiting] == [143]
        rest = asyncio.ensure_future(client.take(group, 2))
        for one in (key, theirs):
            stream.append([b""], keys=[one])
        assert sorted([one.offset for one in await rest]) == [144, 145]
    await client.of(group, "close")


async def test_slots_that_stay_do_not_wait_for_the_commit_of_those_that_move(
    client: Opened, broker: LogBroker, address: str, offsets_stream: LocalOffsets
) -> None:
    publish(broker, 1)

    def hold(slots: Sequence[int]) -> None:
        offsets_stream.held = []

    group = client.client.group("billing", "orders", start=101, session=60, on_revoked=hold)
    await client.take(group, len(KEYS))
    async with connect(address) as two:
        other = two.group("billing", "orders", session=60)
        joining = asyncio.ensure_future(anext(other))
        waiting = asyncio.ensure_future(client.take(group, 1))
        await until(lambda: offsets_stream.held)
        assert len(group.slots) == 32
        key = next(key for key in KEYS if crc32c(key) * 64 >> 32 in group.slots)
        theirs = next(key for key in KEYS if crc32c(key) * 64 >> 32 not in group.slots)
        broker.stream("orders").append([b""] * 2, keys=[theirs, key])
        async with asyncio.timeout(30):
            assert [one.offset for one in await waiting] == [142]
        assert other.slots == []
        offsets_stream.release()
        waiting = asyncio.ensure_future(client.take(group, 1))
        assert (await joining).offset == 141
        broker.stream("orders").append([b""], keys=[key])
        await waiting
    await client.of(group, "close")
    info = await client.call("describe_group", "billing", "orders")
    assert {info.offsets[slot] for slot in range(64)} <= {141, 142, 143}


@pytest.mark.parametrize("every", [20, None])
async def test_records_do_not_wait_for_a_commit_that_is_due(
    client: Opened, broker: LogBroker, offsets_stream: LocalOffsets, every: int | None
) -> None:
    """Only records beyond the number of one commit wait."""
    publish(broker, 10)
    interval = 0.02 if every is None else None
    group = client.client.group(
        *("billing", "orders"), start=101, session=60, commit_every=every, commit_interval=interval
    )
    taken = await client.take(group, 1)
    offsets_stream.held = []
    async with asyncio.timeout(20):
        while not offsets_stream.held:
            taken += await client.take(group, 1)
            await asyncio.sleep(0.001)
        waiting = asyncio.ensure_future(client.take(group, 400 - len(taken)))
        if every is None:
            await waiting
        else:
            await until(lambda: group._has_run_ahead)
            assert not waiting.done()
    offsets_stream.release()
    assert [one.offset for one in taken + await waiting] == [*range(101, 501)]
    await client.of(group, "commit")
    info = await client.call("describe_group", "billing", "orders")
    assert set(info.offsets) == {501}
    await client.of(group, "close")


@pytest.mark.parametrize("kind", [DiskFull, StreamUnavailable])
async def test_records_come_although_commits_fail_for_now(
    client: Opened, broker: LogBroker, offsets_stream: LocalOffsets, kind: type[LiftlogError]
) -> None:
    publish(broker, 5)
    group = client.client.group("billing", "orders", start=101, commit_every=10)
    await client.take(group, 1)
    offsets_stream.error = kind("not now")
    assert len(await client.take(group, 5 * len(KEYS) - 1)) == 5 * len(KEYS) - 1
    with pytest.raises(kind):
        await client.of(group, "commit")
    offsets_stream.error = None
    await client.of(group, "commit")
    assert (await client.call("describe_group", "billing", "orders")).lag == 0
    await client.of(group, "close")


async def test_slots_that_stay_do_not_wait_for_a_connection_for_those_that_come(
    client: Opened, broker: LogBroker, address: str
) -> None:
    publish(broker, 1)
    stream = broker.stream("orders")
    group = client.client.group("billing", "orders", start=101, session=60)
    await client.take(group, len(KEYS))
    opened, another = threading.Event(), router_of(group).another

    def wait_for_it() -> Any:
        opened.wait(60)
        return another()

    async def await_it() -> Any:
        await asyncio.to_thread(opened.wait, 60)
        return await another()

    async with connect(address) as two:
        other = two.group("billing", "orders", session=60)
        joining = asyncio.ensure_future(anext(other))
        rest = asyncio.ensure_future(client.take(group, 1))
        await until(lambda: len(group.slots) == len(other.slots) == 32)
        key = next(key for key in KEYS if crc32c(key) * 64 >> 32 in group.slots)
        theirs = next(key for key in KEYS if crc32c(key) * 64 >> 32 in other.slots)
        stream.append([b""] * 2, keys=[theirs, key])
        await asyncio.gather(joining, rest)
        router_of(group).another = wait_for_it if client.blocking else await_it
        waiting = asyncio.ensure_future(client.take(group, 1))
        await other.commit()
        await other.leave()
    await until(lambda: len(group.slots) == 64)
    stream.append([b""] * 2, keys=[theirs, key])
    try:
        async with asyncio.timeout(30):
            assert [one.offset for one in await waiting] == [144]
    finally:
        opened.set()
    assert [one.offset for one in await client.take(group, 1)] == [143]
    await client.of(group, "close")


async def test_the_read_of_slots_that_stay_goes_on_while_others_come_and_go(
    client: Opened, broker: LogBroker, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None of its fetches is cancelled, and none requests the same records again."""
    served = Served(monkeypatch)
    publish(broker, 1)
    group = client.client.group("billing", "orders", start=101, session=60)
    taking = asyncio.ensure_future(client.take(group, 10**6))
    await until(lambda: served.queues)
    read = served.queues[0]
    rounds = 1
    theirs: list[Record] = []

    async def publish_until(condition: Callable[[], object]) -> None:
        nonlocal rounds
        async with asyncio.timeout(60):
            while not condition():
                publish(broker, 1)
                rounds += 1
                await asyncio.sleep(0.005)

    async def drain(other: Any) -> None:
        async for record in other:
            theirs.append(record)  # noqa: PERF401 - counted meanwhile

    async def come_and_go(other: Any) -> None:
        draining, had = asyncio.ensure_future(drain(other)), len(theirs)
        await publish_until(lambda: served.slots(read)[-1] == len(other.slots) == 32)
        await publish_until(lambda: len(theirs) > had + 2 * len(KEYS))
        other.stop()
        await draining
        await other.commit()
        await other.leave()
        await publish_until(lambda: served.slots(read)[-1] == 64)
        await publish_until(lambda: len(lanes_of(group)) == 1)

    async with connect(address) as two:
        for _ in range(3):
            await come_and_go(two.group("billing", "orders", session=60))
    await until(lambda: lanes_of(group)[0].end == 101 + rounds * len(KEYS))
    before_the_end = set(served.cancelled)
    group.stop()
    mine = await taking
    await client.of(group, "close")
    end = 101 + rounds * len(KEYS)
    assert sorted(record.offset for record in mine + theirs) == [*range(101, end)]
    for records in (mine, theirs):
        for key in KEYS:
            offsets = [record.offset for record in records if record.key == key]
            assert offsets == sorted(offsets)
    sizes = served.slots(read)
    assert [size for size, next_size in pairwise([*sizes, 0]) if size != next_size] == [
        *(64, 32, 64), *(32, 64), *(32, 64)
    ]  # fmt: skip
    assert len(served.queues) > 1, "slots that came were read beside"
    answers, fetches = served.answers[read], served.fetches[read]
    assert len(fetches) - 1 <= len(answers), "all but the last one, which ended with the member"
    for fetch, header in zip(fetches[1:], answers, strict=False):
        assert fetch.start == header.next_offset
    assert read not in before_the_end


def lanes_of(group: Any) -> list[Lane]:
    """Return the reads that are in progress."""
    lanes: list[Lane] = group._state.lanes
    return lanes


class Served:
    """The requests of members on each connection to a pull server, and its answers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.queues: list[FetchQueue] = []
        self.fetches: dict[FetchQueue, list[Fetch]] = defaultdict(list)
        self.answers: dict[FetchQueue, list[FetchHeader]] = defaultdict(list)
        self.cancelled: list[FetchQueue] = []
        add, answer, cancel = FetchQueue.add, FetchQueue._answer, FetchQueue.cancel

        def added(queue: FetchQueue, request_id: int, fetch: Fetch) -> None:
            if fetch.filter_slots:
                if queue not in self.queues:
                    self.queues.append(queue)
                self.fetches[queue].append(fetch)
            add(queue, request_id, fetch)

        def answered(queue: FetchQueue, waiting: Any, stream: Any, header: Any, body: Any) -> None:
            self.answers[queue].append(header)
            answer(queue, waiting, stream, header, body)

        def cancelled(queue: FetchQueue, request_id: int) -> bool:
            self.cancelled.append(queue)
            return cancel(queue, request_id)

        monkeypatch.setattr(FetchQueue, "add", added)
        monkeypatch.setattr(FetchQueue, "_answer", answered)
        monkeypatch.setattr(FetchQueue, "cancel", cancelled)

    def slots(self, queue: FetchQueue) -> list[int]:
        """Return the number of slots that each fetch has requested."""
        return [len(fetch.filter_slots or ()) for fetch in self.fetches[queue]]


def test_a_lane_joins_when_the_other_read_has_all_that_follows() -> None:
    reading = GroupByHand()
    reading.told(7, 7, 64, [0], [7], [101])
    older = ReadByHand(reading)
    older.answer(201)
    reading.told(7, 8, 64, [0, 1], [7, 8], [101, 151])
    newer = ReadByHand(reading)
    reading.join_lanes()
    assert older.asked == [(101, [0]), (201, [0])], "what is under way goes on"
    newer.answer(201)
    reading.join_lanes()
    older.answer(301)
    assert older.asked[2:] == [(301, [0, 1])]
    reading.join_lanes()
    assert len(reading.lanes) == 2, "the newer one has to read up to there"
    newer.answer(321)
    reading.join_lanes()
    (lane,) = reading.lanes
    assert (lane.done, lane.slots) == (301, {0: 101, 1: 321})
    assert reading.ended_reads == [newer]
    older.answer(401)
    assert older.asked[3:] == [(401, [0, 1])]


def test_a_lane_does_not_join_while_a_fetch_without_its_slots_is_under_way() -> None:
    """A slot was released and assigned again."""
    reading = GroupByHand()
    reading.told(7, 7, 64, [0, 1], [7, 7], [101, 101])
    older = ReadByHand(reading)
    reading.told(7, 8, 64, [0], [7], [101])
    older.answer(201)
    assert older.asked == [(101, [0, 1]), (201, [0])]
    reading.give_up([1])
    reading.told(7, 9, 64, [0, 1], [7, 9], [101, 201])
    newer = ReadByHand(reading)
    reading.join_lanes()
    newer.answer(301)
    reading.join_lanes()
    assert len(reading.lanes) == 2
    older.answer(301)
    reading.join_lanes()
    assert [lane.slots for lane in reading.lanes] == [{0: 101, 1: 301}]


def test_a_lane_that_is_far_behind_is_not_asked_for_twice() -> None:
    reading = GroupByHand()
    reading.told(7, 7, 64, [0], [7], [1000])
    older = ReadByHand(reading)
    older.answer(1100)
    reading.told(7, 8, 64, [0, 1, 2], [7, 8, 8], [1000, 101, 101])
    newer = ReadByHand(reading)
    newer.answer(201)
    reading.join_lanes()
    older.answer(1200)
    newer.answer(1099)
    reading.join_lanes()
    assert older.asked[1:] == [(1100, [0]), (1200, [0])]
    newer.answer(1100)
    reading.join_lanes()
    older.answer(1201)
    assert older.asked[3:] == [(1201, [0, 1, 2])]


def test_lanes_that_are_not_read_yet_join_at_once() -> None:
    reading = GroupByHand()
    reading.told(7, 7, 64, [0], [7], [101])
    reading.told(7, 8, 64, [0, 1, 2], [7, 8, 8], [101, 101, 200])
    reading.told(7, 9, 64, [*range(4)], [7, 8, 8, 9], [101, 101, 200, 300])
    reading.join_lanes()
    assert [lane.slots for lane in reading.lanes] == [{0: 101, 1: 101, 2: 200}, {3: 300}]


def test_many_lanes_join_also_when_records_have_come() -> None:
    reading = GroupByHand()
    for count in range(1, MOST_LANES + 2):
        slots, since = list(range(count)), list(range(7, 7 + count))
        reading.told(7, 6 + count, 64, slots, since, [101] * count)
        for lane in reading.lanes:
            reading.arrive_empty(lane, 101)
        assert reading.take() == []
        assert len(reading.lanes) == (count if count <= MOST_LANES else 1)


def records_of(keys: list[bytes]) -> list[Record]:
    return [Record(1, 0, "s", key, b"", b"") for key in keys]


async def test_the_same_name_again_continues_and_fences_the_first(
    client: Opened, broker: LogBroker
) -> None:
    publish(broker, 2)
    first = client.client.group("billing", "orders", start=101, member="w1")
    taken = await client.take(first, 30)
    await client.of(first, "commit")
    assert [one.offset for one in await client.take(first, 1)] == [131]
    second = client.client.group("billing", "orders", member="w1")
    rest = await client.take(second, 50)
    assert [one.offset for one in taken + rest] == list(range(101, 181))
    with pytest.raises(GroupFenced, match="another client"):
        await client.of(first, "commit")
    with pytest.raises(GroupFenced, match="another client"):
        await client.take(first, 100)
    await client.of(second, "close")
    # It stays a member for its session, so that its name finds its slots again.
    info = await client.call("describe_group", "billing", "orders")
    assert [one["name"] for one in info.members] == ["w1"]
    with pytest.raises(Conflict, match="w1"):
        await client.call("seek_group", "billing", "orders", 1)


def test_what_was_asked_as_an_earlier_member_says_nothing_of_this_one() -> None:
    """A static member whose session had ended joins again under its name. The answer to its last
    heartbeat before that says that another member has replaced it."""
    reading = GroupByHand()
    reading.told(7, 7, 64, [], [], [])
    replaced = GroupFenced("another client has joined", replaced=True)
    reading.beat_fails(replaced, 3)
    assert reading.generation == 7
    with pytest.raises(GroupFenced, match="another client"):
        reading.beat_fails(replaced, 7)


async def test_a_process_that_hung_leaves_its_name_to_a_newer_one(
    broker: LogBroker, address: str, offsets_stream: LocalOffsets
) -> None:
    """Its own clock shows the end of its session before any answer does."""
    async with connect(address) as one:
        older, newer = (one.group("billing", "orders", member="w") for _ in range(2))
        await anext(older)
        await heartbeats_of(older).stop()
        await anext(newer)
        end_session(older)
        for _ in range(2):
            with pytest.raises(GroupFenced, match="another client"):
                await anext(older)
        end_session(newer)
        await anext(newer)  # it joins again, as itself
        await newer.close()


def heartbeats_of(group: Any) -> Any:
    return group._heartbeats


def end_session(group: Any) -> None:
    """End the session, as after a long pause of the whole process."""
    group._run_until, group._state.deadline = 0.0, -math.inf


def test_a_join_whose_answer_was_lost_is_asked_for_again() -> None:
    """Otherwise its member would look like a member of another client."""
    reading = GroupByHand()
    first = reading.join()
    assert reading.join() == first
    assert first.joined is None
    reading.has_joined(AssignmentAnswer(7, 7, 64, [], [], []))
    second = reading.join()
    assert second.joined == 7
    assert second.token != first.token


class Read:
    """A reader that has received an answer in this epoch."""

    def __init__(
        self, epoch: int, position: int = 0, divided_by: frozenset[int] | None = None
    ) -> None:
        self.incarnation, self.epoch = "i", epoch
        self.divided_by, self.position = divided_by, position


def test_slots_that_others_have_read_in_a_newer_epoch() -> None:
    """A restarted daemon has another epoch. A member that has read nothing in this epoch gets slots
    that others have read there. It must not report that its own epoch extends so far."""
    reading = GroupByHand()
    reading.told(7, 7, 64, [0], [7], [101], "i", 2)
    (first,) = reading.lanes
    reading.answered(first, Read(2))
    reading.told(7, 8, 64, [0, 1], [7, 8], [101, 300], "i", 3)
    second = reading.lanes[1]
    ahead = {"read_ahead_bytes": 1 << 20}  # of a member with a share of the slots
    assert reading.start_of(first) == (101, {"incarnation": "i", "epoch": 2, **ahead})
    assert reading.start_of(second) == (300, {"incarnation": "i", "epoch": 3, **ahead})
    reading.answered(second, Read(3))
    reading.answered(first, Read(2))  # an answer that was late
    assert reading.commit({0: 250, 1: 310}).epoch == 3
    reading.nothing_until(first, Read(2, 260))  # nothing has come for it since
    assert reading.commit({0: 260, 1: 310}).epoch == 3


@pytest.mark.parametrize("owned", [[0, 1], [0]])
def test_what_the_daemon_has_divided_is_looked_at_only_after_slots_have_gone(
    owned: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon was asked for two slots."""
    keys = [key for key in (b"key %d" % n for n in range(400)) if crc32c(key) * 64 >> 32 < 2]
    assert {crc32c(key) * 64 >> 32 for key in keys} == {0, 1}
    raw = encode_batch(
        base_offset=101, leader_epoch=2, commit_group=1, stamps=[(0, len(keys))],
        subjects=[b"s"] * len(keys), values=[b""] * len(keys), keys=[*keys],
    )  # fmt: skip
    looked: list[int] = []

    def counted(records: Sequence[Record], count: int) -> list[int]:
        looked.append(len(records))
        return slots_of(records, count)

    for module in ("groups.grouping", "groups.arrived"):
        monkeypatch.setattr(f"liftlog.client.{module}.slots_of", counted)
    reading = GroupByHand()
    reading.told(7, 7, 64, owned, [7] * len(owned), [101] * len(owned))
    (lane,) = reading.lanes
    reader = Read(2, divided_by=frozenset((0, 1)), position=101 + len(keys))
    reading.arrive(lane, reader, decode_batch(raw))
    found = [record.key for record in reading.take()]
    assert found == [key for key in keys if crc32c(key) * 64 >> 32 in owned]
    assert bool(looked) == (len(owned) < 2)


def test_a_slot_is_revoked_once() -> None:
    """Also if the session ends during the release."""
    revoked: list[Sequence[int]] = []
    reading = GroupByHand(on_revoked=revoked.append)
    reading.told(7, 7, 64, [0, 1], [7, 7], [101, 101])
    reading.told(7, 8, 64, [0], [7], [101])
    reading.lose(GroupFenced("its session has ended"))
    assert revoked == [[1], [0]]


async def test_batches_and_what_counts(client: Opened, broker: LogBroker) -> None:
    publish(broker, 3)
    group = client.client.group("billing", "orders", start=101)
    (batch,) = await client.take(group.batches(), 1)
    assert [one.offset for one in batch] == list(range(101, 141))
    await client.of(group, "close")  # the batch was not finished
    info = await client.call("describe_group", "billing", "orders")
    assert info.offsets == [101] * 64
    again = client.client.group("billing", "orders")
    (batch,) = await client.take(again.batches(), 1)
    assert batch[0].offset == 101
    await client.of(again, "commit")
    await client.of(again, "leave")
    info = await client.call("describe_group", "billing", "orders")
    assert info.offsets == [141] * 64


async def test_stop_ends_the_iteration_and_everything_returned_counts(
    client: Opened, broker: LogBroker, address: str
) -> None:
    group = client.client.group("billing", "orders", session=60, commit_interval=0.1)
    taken = asyncio.ensure_future(client.take(group, 1000))
    async with connect(address) as other, asyncio.timeout(60):
        # All 100 are returned, and it waits for more.
        while (found := await other.describe_group("billing", "orders")) is None or found.lag:
            await asyncio.sleep(0.01)
    group.stop()
    assert [one.offset for one in await taken] == list(range(1, 101))
    assert await client.take(group.batches(), 1) == []
    await client.of(group, "close")
    info = await client.call("describe_group", "billing", "orders")
    assert (info.offsets, info.members) == ([101] * 64, [])


async def test_stop_ends_the_iteration_although_more_records_have_come(client: Opened) -> None:
    """Also during the time in which records are returned without other checks."""
    group = client.client.group("billing", "orders", session=60)
    assert [one.offset for one in await client.take(group, 2)] == [1, 2]
    group.stop()
    assert await client.take(group, 1) == []
    await client.of(group, "close")
    info = await client.call("describe_group", "billing", "orders")
    assert max(info.offsets) == 3


async def test_a_member_that_is_stopped_before_it_begins_does_not_join(client: Opened) -> None:
    group = client.client.group("billing", "orders")
    group.stop()
    assert await client.step("take_in_block", group) == []
    assert await client.call("list_groups") == []


async def test_one_member_commits_as_many_slots_as_there_can_be(
    client: Opened, broker: LogBroker
) -> None:
    group = client.client.group("billing", "orders", slots=1024)
    assert len(await client.take(group, 100)) == 100
    await client.of(group, "commit")
    info = await client.call("describe_group", "billing", "orders")
    assert info.offsets == [101] * 1024
    await client.of(group, "close")


async def test_seek_list_and_remove(client: Opened, broker: LogBroker) -> None:
    await client.call("seek_group", "billing", "orders", 51)
    assert [one.group for one in await client.call("list_groups")] == ["billing"]
    assert await client.call("list_groups", stream="other") == []
    info = await client.call("describe_group", "billing", "orders")
    assert (info.offsets, info.lag) == ([51] * 64, 50)
    group = client.client.group("billing", "orders", start="latest")
    assert [one.offset for one in await client.take(group, 50)] == list(range(51, 101))
    await client.of(group, "leave")
    await client.call("remove_group", "billing", "orders")
    await client.call("remove_group", "billing", "orders")
    assert await client.call("describe_group", "billing", "orders") is None
    assert await client.call("list_groups") == []


@pytest.mark.parametrize("member", [None, "w1"])
async def test_after_close_no_beat_is_under_way(
    client: Opened, broker: LogBroker, member: str | None
) -> None:
    """It would be answered seconds later, and close would wait for its thread."""
    group = client.client.group("billing", "orders", member=member, session=60)
    await client.take(group, 1)
    heartbeats = heartbeats_of(group)._background
    assert heartbeats.started
    assert not heartbeats.done
    await client.of(group, "close")
    assert heartbeats.done
    info = await client.call("describe_group", "billing", "orders")
    assert [one["name"] for one in info.members] == ([member] if member else [])


def test_what_cannot_be() -> None:
    for wrong in (
        {"session": 0.1},
        {"slots": 0},
        {"slots": 1025},
        {"commit_every": 0},
        {"commit_interval": 0},
        {"columns": ["key"]},
    ):
        with pytest.raises(InvalidArgument):
            GroupByHand(**wrong)


def test_slots() -> None:
    """Other clients compute the same slots: CRC-32C of the key or, without a key, of the
    subject."""
    records = [
        Record(1, 0, "orders.eu", b"key 1", b"", b""),
        Record(2, 0, "orders.eu", None, b"", b""),
        Record(3, 0, "orders.eu", b"", b"", b""),
    ]
    assert slots_of(records, 1 << 32) == [crc32c(b"key 1"), crc32c(b"orders.eu"), 0]
    assert slots_of(records, 64) == [one >> 26 for one in slots_of(records, 1 << 32)]
    assert slots_of(records, 1) == [0, 0, 0]
