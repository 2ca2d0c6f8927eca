"""The commit path, a real log and the rules of a leader together; followers are mere offsets."""

from __future__ import annotations

import asyncio
import errno
from dataclasses import replace
from typing import Any

import pytest
from support.disks.logs import Promises, append
from support.disks.simfs import Fault
from support.worlds.gated_stream import GatedStream, Published

from liftlog.cluster import transitions
from liftlog.cluster.followers import FetchRequest, Kind, Verdict
from liftlog.cluster.leading import Leader
from liftlog.sequencing.refusals import NOT_ENOUGH_REPLICAS, NOT_LEADING
from liftlog.server.commits.gate import ReplicatedGate

EPOCH = 5


class Led:
    """A stream that node a leads, with the followers b and c."""

    def __init__(self, **settings: Any) -> None:
        self.stream = GatedStream(settings, replicated=True)
        self.now = 100.0
        self.woken: list[list[str]] = []
        self.ended: list[str] = []
        log = self.stream.log
        record = transitions.create(
            "s", "i", {"min_isr": 2}, "abc", starts=dict.fromkeys("abc", 1), leader_epoch=EPOCH
        )
        leader = Leader(
            record,
            "a",
            (),
            log_end=log.log_end_offset,
            durable_end=log.durable_end_offset,
            high_watermark=log.high_watermark,
            now=self.now,
        )
        self.gate = ReplicatedGate(
            leader,
            log_end=lambda: log.log_end_offset,
            now=lambda: self.now,
            wake=self.woken.append,
            ended=self.ended.append,
        )
        self.stream.lead(log.high_watermark, self.gate)

    def ask(self, node: str, offset: int) -> Verdict:
        last_epoch = EPOCH if offset > 1 else 0
        return self.gate.fetched(FetchRequest(node, 1, EPOCH, offset, last_epoch))

    def publish(self, *payloads: bytes) -> list[Published]:
        sent = self.stream.publish([(payload, True, {}) for payload in payloads])
        self.stream.kick()
        self.stream.host.kick()
        return sent


def offsets(sent: list[Published]) -> list[object]:
    return [one.answer and (one.answer["seq"] or one.answer["error"]["err_code"]) for one in sent]


@pytest.fixture
def led() -> Led:
    return Led()


async def test_an_ack_leaves_when_all_in_sync_have_the_message(led: Led) -> None:
    assert led.ask("b", 1).kind is Kind.PARK
    assert led.ask("c", 1).kind is Kind.PARK
    sent = led.publish(b"1", b"2")
    assert led.woken == [["b", "c"]]
    assert led.ask("b", 3).kind is Kind.PARK
    assert offsets(sent) == [None, None]
    more = led.publish(b"3")
    led.ask("c", 3)
    assert offsets(sent + more) == [1, 2, None]
    assert led.stream.log.high_watermark == 3
    led.ask("b", 4)
    led.ask("c", 4)
    assert offsets(more) == [3]
    led.stream.close()


async def test_followers_hear_of_a_high_watermark_that_no_record_carries(led: Led) -> None:
    for node in "bc":
        led.ask(node, 1)
    led.publish(b"1")
    for node in "bc":
        led.ask(node, 2)
    led.woken.clear()
    await asyncio.sleep(0.05)
    assert led.woken == [], "a record was written just now, and the next one may follow as soon"
    led.now += 1.0
    await asyncio.sleep(0.05)
    assert led.woken == [["b", "c"]]
    led.ask("c", 2)
    await asyncio.sleep(0.05)
    assert led.woken == [["b", "c"]], "it was told"
    led.gate.expired("c")
    assert led.woken == [["b", "c"], ["c"]]
    led.stream.close()


async def test_with_too_few_copies_messages_are_refused(led: Led) -> None:
    for node in "bc":
        led.ask(node, 1)
    waiting = led.publish(b"1")
    led.ask("b", 2)
    alone = transitions.fence(led.gate.leader.record, ["b", "c"])
    assert alone is not None
    led.gate.adopt(alone)
    assert offsets(waiting) == [None]
    assert offsets(led.publish(b"2")) == [NOT_ENOUGH_REPLICAS.err_code]
    assert led.stream.log.log_end_offset == 2
    back = transitions.expand(alone, "b", 1)
    assert back is not None
    led.gate.adopt(back)
    assert offsets(waiting) == [1]
    assert offsets(led.publish(b"2")) == [None]
    led.stream.close()


async def test_a_record_that_names_another_leader_ends_the_lead(led: Led) -> None:
    sent = led.publish(b"1")
    judged = led.stream.publish([(b"2", True, {})])
    record = led.gate.leader.record
    led.gate.adopt(replace(record, version=record.version + 1, leader="b", leader_epoch=EPOCH + 1))
    assert led.ended == ["the record says that b leads in epoch 6"]
    assert offsets(sent + judged) == [None, NOT_LEADING.err_code]
    assert led.ask("b", 2).kind is Kind.NOT_LEADER
    led.gate.adopt(replace(record, version=record.version + 2, leader="c", leader_epoch=EPOCH + 2))
    assert len(led.ended) == 1
    led.stream.close()


async def test_a_failed_sync_ends_the_lead(led: Led) -> None:
    """Followers may have what was given up here: its offsets wait for another epoch."""
    for node in "bc":
        led.ask(node, 1)
    held = led.publish(b"1")
    led.stream.fs.faults.append(Fault("fsync", errno.EIO, ".log"))
    failed = led.publish(b"2")
    assert len(led.ended) == 1
    for node in "bc":
        assert led.ask(node, 3).kind is Kind.NOT_LEADER
    assert offsets(held + failed) == [None, None]
    assert led.stream.log.log_end_offset == 2
    assert offsets(led.publish(b"3")) == [NOT_LEADING.err_code]
    led.stream.close()


@pytest.mark.parametrize("durability", ["interval", "os"])
async def test_acks_that_leave_early_commit_nothing_that_those_in_sync_lack(
    durability: str,
) -> None:
    """A stream with one replica may have such acks, and while it moves there is another one. That
    was taken for caught up before it was, and led without what was acked."""
    led = Led(durability=durability, flush={"interval": "10ms"})
    for node in "bc":
        led.ask(node, 1)
    sent = led.publish(b"1", b"2")
    assert offsets(sent) == [1, 2]
    log = led.stream.log
    while log.durable_end_offset < 3:
        await asyncio.sleep(0.01)
        await led.stream.finish_jobs()
    led.ask("b", 3)
    assert log.high_watermark == 1
    led.ask("c", 3)
    assert log.high_watermark == led.gate.leader.high_watermark == 3
    led.stream.close()


async def test_a_follower_commits_nothing_by_itself() -> None:
    stream = GatedStream({"durability": "interval"}, replicated=True)
    stream.lead(1, is_leading=False)
    append(stream.log, Promises(), 3)
    stream.host.run_exclusive(stream.log.sync)
    await stream.finish_jobs()
    assert stream.log.durable_end_offset == 4
    assert stream.log.high_watermark == 1
    stream.close()
