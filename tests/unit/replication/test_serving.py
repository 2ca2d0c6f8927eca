"""What the leader of a stream answers its followers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, cast

import pytest
from support.disks.logs import SMALL, Promises, append, create, encode, flip
from support.disks.simfs import SimFileSystem

from liftlog.cluster import side_state, transitions
from liftlog.cluster.leading import Leader
from liftlog.cluster.record import StreamMetadata
from liftlog.errors import NotLeader
from liftlog.log import EncodedBatch, Log, LogSlice
from liftlog.log.files.leases import Lease, SideState
from liftlog.protocol.replication import Replica, Replicate
from liftlog.server.replication.serving import MAX_KEPT_BYTES, CatchUpPace, ServedStream

EPOCH, START = 1, 1
PACE = 1000.0


class Replies:
    """The answers to the requests of one follower."""

    def __init__(self, *, may_copy: bool = True) -> None:
        self.may_copy = may_copy
        self.replicas: list[Replica] = []
        self.bodies: list[bytes] = []
        """Those that did not come from a file."""
        self.refusals: list[Exception] = []

    def replica(self, header: Replica, body: LogSlice | bytes | None) -> None:
        self.replicas.append(header)
        if isinstance(body, bytes):
            assert header.body_length == len(body)
            self.bodies.append(body)
        elif body is not None:
            with body:
                assert header.body_length == body.length

    def refuse(self, error: Exception) -> None:
        self.refusals.append(error)


class NoJournal:
    """There are no consumers."""

    opened = problem = None


@pytest.fixture
def log() -> Log:
    log = create(SimFileSystem(), config=replace(SMALL, replicated=True))
    log.writer.begin_epoch(EPOCH)
    return log


@pytest.fixture
async def led(log: Log) -> Iterator[ServedStream]:
    record = transitions.create(
        "s", log.incarnation, {}, ["a", "b", "c"], starts=dict.fromkeys("abc", START)
    )
    leader = Leader(
        record, "a", log.view.manifest.epochs,
        log_end=log.log_end_offset, durable_end=log.durable_end_offset,
        high_watermark=log.high_watermark, now=0.0,
    )  # fmt: skip
    led = ServedStream(
        leader,
        log,
        pace=CatchUpPace(PACE),
        ended=lambda reason: None,
        holder=cast(Any, NoJournal()),
    )
    yield led
    led.close()


def ask(
    led: ServedStream,
    log: Log,
    node: str,
    offset: int,
    *,
    may_copy: bool = True,
    corrupt: bool = False,
) -> Replies:
    replies = Replies(may_copy=may_copy)
    last_epoch = EPOCH if offset > 1 else 0
    request = Replicate(
        "s", log.incarnation, EPOCH, offset, last_epoch, 1 << 20, 0, corrupt=corrupt
    )
    led.fetch(node, START, request, replies)
    return replies


async def test_a_follower_may_be_ahead_of_what_the_leader_was_told(
    led: ServedStream, log: Log
) -> None:
    """A thread has written a group, and the event loop has not heard of it yet. A follower that got
    the group with an answer, and is quick, does not diverge: it has what is in the log."""
    append(log, Promises(), 2)
    led.gate.written(())
    append(log, Promises(), 2)
    log.sync()
    [answer] = ask(led, log, "b", 1).replicas
    assert answer.body_length > 0
    end = log.log_end_offset
    waiting = ask(led, log, "b", end)
    assert (waiting.replicas, waiting.refusals) == ([], [])
    ask(led, log, "c", end)
    assert led.gate.local(end) == end


async def test_a_follower_beyond_the_log_diverges(led: ServedStream, log: Log) -> None:
    append(log, Promises(), 2)
    led.gate.written(())
    end = log.log_end_offset
    [answer] = ask(led, log, "b", end + 1).replicas
    assert answer.diverging == [EPOCH, end]


async def test_a_follower_that_got_bad_bytes_has_the_leader_look_at_its_disk(
    led: ServedStream, log: Log
) -> None:
    """A leader sends what is stored without a look at the values. Were it to send the same again,
    the follower would ask for ever."""
    append(log, Promises(), 2, 3)
    log.sync()
    led.gate.local(log.log_end_offset)
    flip(log.environment.fs, log.segments[-1].path, 150)
    [answer] = ask(led, log, "b", 1).replicas
    assert answer.body_length > 0
    answer = await complain(led, log, 1)
    assert answer.gap is not None
    assert (answer.gap["next"], answer.gap["loss"], answer.body_length) == (3, True, 0)
    assert [(bad.first_offset, bad.next_offset) for bad in log.view.manifest.quarantined] == [
        (1, 3)
    ]
    answer = await complain(led, log, 3)
    assert (answer.gap, answer.body_length > 0) == (None, True), "the next batch is whole"


async def complain(led: ServedStream, log: Log, offset: int) -> Replica:
    replies = ask(led, log, "b", offset, corrupt=True)
    async with asyncio.timeout(10):
        while not replies.replicas:
            await asyncio.sleep(0.01)
    return replies.replicas[0]


async def test_a_replica_that_is_not_in_sync_gets_a_bounded_rate(
    led: ServedStream, log: Log
) -> None:
    """And no one else waits for it."""
    for _ in range(4):
        append(log, Promises(), 2)
    led.gate.written(())
    left = transitions.fence(led.leader.record, {"c"})
    assert left is not None
    led.adopt(left)
    [answer] = ask(led, log, "c", 1).replicas
    began = asyncio.get_running_loop().time()
    late = ask(led, log, "c", 1)
    assert late.replicas == []
    assert ask(led, log, "b", 1).replicas
    while not late.replicas:
        assert late.refusals == []
        await asyncio.sleep(0.01)
    seconds = asyncio.get_running_loop().time() - began
    assert answer.body_length / PACE * 0.8 < seconds < answer.body_length / PACE + 5
    waiting, again = ask(led, log, "c", 1), ask(led, log, "c", 1)
    assert len(waiting.refusals) == 1, "it has asked again"
    led.close()
    assert len(again.refusals) == 1


async def test_who_waits_for_records_hears_at_once_that_another_has_left(
    led: ServedStream, log: Log
) -> None:
    """Nothing is acked before it knows."""
    mark = [*led.leader.record.mark]
    request = Replicate("s", log.incarnation, EPOCH, 1, 0, 1 << 20, 0, record=mark)
    waiting = Replies()
    led.fetch("b", START, request, waiting)
    left = transitions.fence(led.leader.record, {"c"})
    assert left is not None
    led.adopt(left)
    [answer] = waiting.replicas
    assert (answer.record_version, answer.record_checksum) == left.mark


async def test_an_answer_has_the_record_that_acks_wait_for(led: ServedStream, log: Log) -> None:
    """Also if no one has left by it: who may be needed is in fewer sets."""
    record = led.leader.record

    def told(known: StreamMetadata, heard: tuple[int, int]) -> Replies:
        replies = Replies()
        request = Replicate(
            *("s", log.incarnation, EPOCH, log.log_end_offset, 0, 1 << 20, 0),
            record=[*known.mark],
            leader_record=[*heard],
        )
        led.fetch("b", START, request, replies)
        return replies

    eligible = transitions.fence(record, {"b", "c"})
    assert eligible is not None
    led.adopt(eligible)
    waiting = told(record, record.mark)
    assert waiting.replicas == [], "no one has left who may be needed"
    joined = transitions.expand(eligible, "c", START)
    assert joined is not None
    assert (eligible.eligible, joined.eligible) == (("b", "c"), ())
    led.adopt(joined)
    [answer] = waiting.replicas
    assert answer.record == joined.to_json()
    assert [one.record for one in told(record, record.mark).replicas] == [joined.to_json()]
    assert told(record, (joined.version, 0)).replicas == [], "it has come"


def write(led: ServedStream, log: Log, *sizes: int) -> list[EncodedBatch]:
    """One group, as the commit path appends it."""
    promises, offset = Promises(), log.log_end_offset
    batches = []
    for size in sizes:
        values = [promises.value(offset + i) for i in range(size)]
        batches.append(encode(log, values, first=offset))
        offset += size
    log.append(batches)
    led.gate.written(batches)
    return batches


def in_files(log: Log, offset: int) -> bytes:
    found = log.read_replica(offset, 1 << 20)
    assert isinstance(found, LogSlice)
    with found:
        return found.pread()


async def test_what_was_just_written_is_sent_as_it_is_in_the_files(
    led: ServedStream, log: Log
) -> None:
    first = log.log_end_offset
    groups = [write(led, log, *sizes) for sizes in ((2,), (1, 3), (2, 2))]
    for group in groups:
        [body] = ask(led, log, "b", group[0].base_offset).bodies
        assert body == in_files(log, group[0].base_offset)
    inside = groups[1][1].base_offset
    assert ask(led, log, "b", inside).bodies == [], "in the middle of a group: from the file"
    end = log.log_end_offset
    log.sync()
    led.gate.local(end)
    for node in "bc":
        ask(led, log, node, end)
    assert led.leader.high_watermark == end
    assert ask(led, log, "c", first).bodies == [], "it is committed, and no longer kept"
    [waiting] = (write(led, log, 1),)
    assert ask(led, log, "c", waiting[0].base_offset).bodies


async def test_a_group_that_was_not_seen_is_read_from_the_files(
    led: ServedStream, log: Log
) -> None:
    before = write(led, log, 2)[0].base_offset
    append(log, Promises(), 2)
    after = write(led, log, 2)[0].base_offset
    answers = ask(led, log, "b", before)
    assert answers.bodies == []
    assert answers.replicas[0].body_length == len(in_files(log, before))
    assert ask(led, log, "b", after).bodies == [in_files(log, after)]


async def test_what_waits_to_be_sent_stays_in_its_file(led: ServedStream, log: Log) -> None:
    """A follower that takes no answers, and follows many streams, costs no memory for each."""
    first = write(led, log, 3)[0].base_offset
    answers = ask(led, log, "b", first, may_copy=False)
    assert answers.bodies == []
    assert answers.replicas[0].body_length == len(in_files(log, first))
    assert ask(led, log, "b", first).bodies == [in_files(log, first)]


async def test_what_is_kept_in_memory_is_bounded(led: ServedStream, log: Log) -> None:
    first = log.log_end_offset
    sizes = [len(write(led, log, 1000)[0].data) for _ in range(20)]
    assert sum(sizes) > 2 * MAX_KEPT_BYTES > 2 * sizes[0]
    assert ask(led, log, "b", first).bodies == []
    kept = ask(led, log, "b", log.log_end_offset - 1000 * (MAX_KEPT_BYTES // sizes[0]))
    assert MAX_KEPT_BYTES / 2 < len(kept.bodies[0]) <= MAX_KEPT_BYTES


# --- the side state ---


def has(led: ServedStream, log: Log, node: str, version: int) -> Replies:
    """A follower that has the whole log, and this side state, asks."""
    replies, end = Replies(), log.log_end_offset
    led.fetch(
        node, START, Replicate("s", log.incarnation, EPOCH, end, 0, 1 << 20, version), replies
    )
    return replies


def grant(led: ServedStream, log: Log) -> Lease:
    log.leases.number(partial(side_state.begin, EPOCH), partial(side_state.following, EPOCH))
    now_ns = time.time_ns()
    return log.leases.acquire(1, 1, duration_ns=60 * 10**9, now_ns=now_ns, holder="export")


async def test_a_change_wakes_the_followers_and_is_confirmed_by_what_they_ask_next(
    led: ServedStream, log: Log
) -> None:
    waiting = {node: has(led, log, node, 0) for node in ("b", "c")}
    lease = grant(led, log)
    confirmed = asyncio.ensure_future(led.side_confirmed())
    await asyncio.sleep(0)
    version = log.leases.side_state.version
    for replies in waiting.values():
        [answer] = replies.replicas
        assert answer.side_state is not None
        assert SideState.from_dict(answer.side_state).leases == {lease.lease_id: lease}
    assert has(led, log, "b", version).replicas == [], "nothing new"
    await asyncio.sleep(0)
    assert not confirmed.done(), "c has not stored it"
    assert has(led, log, "c", 0).replicas[0].side_state is not None, "it asks again, with the old"
    has(led, log, "c", version)
    await asyncio.wait_for(confirmed, 10)
    await asyncio.wait_for(led.side_confirmed(), 10)  # at once


async def test_followers_of_an_idle_stream_ask_again_when_they_are_to_show_themselves(
    led: ServedStream, log: Log
) -> None:
    waiting = [has(led, log, node, 0) for node in ("b", "c")]
    assert [replies.replicas for replies in waiting] == [[], []]
    led.hear_again()
    assert [len(replies.replicas) for replies in waiting] == [1, 1]
    led.hear_again()  # none waits
    assert [len(replies.replicas) for replies in waiting] == [1, 1]
    assert not any(replies.refusals for replies in waiting)


async def test_who_waits_for_a_change_hears_that_the_lead_has_ended(
    led: ServedStream, log: Log
) -> None:
    """Whether the next leader has it, no one knows."""
    grant(led, log)
    confirmed = asyncio.ensure_future(led.side_confirmed())
    await asyncio.sleep(0)
    given_up = asyncio.ensure_future(led.side_confirmed())
    await asyncio.sleep(0)
    given_up.cancel()
    led.close()
    with pytest.raises(NotLeader):
        await asyncio.wait_for(confirmed, 10)
    led.leader.resign()
    with pytest.raises(NotLeader):
        await led.side_confirmed()


async def test_a_follower_that_leaves_is_not_waited_for(led: ServedStream, log: Log) -> None:
    grant(led, log)
    confirmed = asyncio.ensure_future(led.side_confirmed())
    await asyncio.sleep(0)
    has(led, log, "b", log.leases.side_state.version)
    await asyncio.sleep(0)
    assert not confirmed.done()
    left = transitions.fence(led.leader.record, {"c"})
    assert left is not None
    led.adopt(left)
    await asyncio.wait_for(confirmed, 10)


async def test_requests_of_idle_streams_end_together_after_a_while(
    led: ServedStream, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    now = float(round(loop.time())) + 100
    ends = []
    for later in (0.01, 0.24, 0.26):
        with monkeypatch.context() as patch:
            patch.setattr(loop, "time", lambda later=later: now + later)
            assert ask(led, log, "b", 1).replicas == []
        ends.append(led._parked["b"].timer.when() - now)
    assert ends == [30.0, 30.0, 30.25]


async def test_a_stream_is_quiet_until_something_happens(led: ServedStream, log: Log) -> None:
    for node in ("b", "c"):
        has(led, log, node, 0)
    assert not led.is_quiet, "the side state was not read, and a change may be due"
    log.leases.load()
    assert led.propose() is None
    assert led.is_quiet
    has(led, log, "b", 0)
    assert not led.is_quiet
    assert led.propose() is None
    assert led.is_quiet
    grant(led, log)
    assert led.leader.is_settled
    assert not led.is_quiet, "followers are to copy it"
