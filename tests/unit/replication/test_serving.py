"""What the leader of a stream answers its followers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest
from support.logs import SMALL, Promises, append, create
from support.simfs import SimFileSystem

from liftlog.cluster import transitions
from liftlog.cluster.leading import Leader
from liftlog.log import Log, LogSlice
from liftlog.protocol.replication import Replica, Replicate
from liftlog.server.replication.serving import CatchUpPace, ServedStream

EPOCH, START = 1, 1
PACE = 1000.0


class Replies:
    """The answers to the requests of one follower."""

    def __init__(self) -> None:
        self.replicas: list[Replica] = []
        self.refusals: list[Exception] = []

    def replica(self, header: Replica, body: LogSlice | None) -> None:
        self.replicas.append(header)
        if body is not None:
            with body:
                assert header.body_length == body.length

    def refuse(self, error: Exception) -> None:
        self.refusals.append(error)


@pytest.fixture
def log() -> Log:
    log = create(SimFileSystem(), config=replace(SMALL, replicated=True))
    log.begin_epoch(EPOCH)
    return log


@pytest.fixture
async def led(log: Log) -> Iterator[ServedStream]:
    record = transitions.create(
        "s", log.incarnation, {}, ["a", "b", "c"], starts=dict.fromkeys("abc", START)
    )
    leader = Leader(
        record, "a", log.epochs, log_end=log.log_end_offset, durable_end=log.durable_end_offset,
        high_watermark=log.high_watermark, now=0.0,
    )  # fmt: skip
    led = ServedStream(leader, log, pace=CatchUpPace(PACE), ended=lambda reason: None)
    yield led
    led.close()


def ask(led: ServedStream, log: Log, node: str, offset: int) -> Replies:
    replies = Replies()
    last_epoch = EPOCH if offset > 1 else 0
    request = Replicate("s", log.incarnation, EPOCH, offset, last_epoch, 1 << 20, 0)
    led.fetch(node, START, request, replies)
    return replies


async def test_a_follower_may_be_ahead_of_what_the_leader_was_told(
    led: ServedStream, log: Log
) -> None:
    """A thread has written a group, and the event loop has not heard of it yet. A follower that got
    the group with an answer, and is quick, does not diverge: it has what is in the log."""
    append(log, Promises(), 2)
    led.gate.written()
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
    led.gate.written()
    end = log.log_end_offset
    [answer] = ask(led, log, "b", end + 1).replicas
    assert answer.diverging == [EPOCH, end]


async def test_a_replica_that_is_not_in_sync_gets_a_bounded_rate(
    led: ServedStream, log: Log
) -> None:
    """And no one else waits for it."""
    for _ in range(4):
        append(log, Promises(), 2)
    led.gate.written()
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
