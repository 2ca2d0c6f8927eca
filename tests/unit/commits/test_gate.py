"""Groups that are durable here and wait for followers: what they cost, and what becomes of them."""

from __future__ import annotations

import asyncio
import tracemalloc
from typing import Any

import pytest
from support.worlds.gated_stream import GatedStream

import envelope
from liftlog.sequencing.refusals import NOT_ENOUGH_REPLICAS, NOT_LEADING, OVERLOADED, STORE_FAILED
from liftlog.server.commits import writing
from liftlog.server.commits.committing import FOLLOWED_INLINE_BYTES
from liftlog.server.commits.writing import CommitJob, WriterPool


def published(stream: GatedStream, *payloads: bytes, **headers: str) -> list[Any]:
    """One run, written and synced inside the event loop."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    sent = stream.publish([(payload, True, named) for payload in payloads])
    stream.kick()
    stream.host.kick()
    return sent


def codes(messages: list[Any]) -> list[int | None]:
    """The offset of an ack, the code of a refusal, None without an answer."""
    return [
        None
        if one.answer is None
        else one.answer.get("error", {}).get("err_code") or one.answer["seq"]
        for one in messages
    ]


async def test_the_next_group_is_written_while_one_is_held() -> None:
    stream = GatedStream({})
    first, second = published(stream, b"1"), published(stream, b"2", b"3")
    assert codes(first + second) == [None] * 3
    assert (stream.log.durable_end_offset, stream.log.high_watermark) == (4, 1)
    stream.host.commit_up_to(stream.gate.confirm(2))
    assert codes(first + second) == [1, None, None]
    assert stream.log.high_watermark == 2
    stream.host.commit_up_to(stream.gate.confirm(4))
    assert codes(second) == [2, 3]
    assert stream.host.observed.commits == 2
    assert stream.host.sequencer.pending_bytes == 0
    stream.close()


async def test_answers_wait_for_what_was_judged_before_them() -> None:
    """Who hears of a duplicate may rely on the original."""
    stream = GatedStream({})
    first = published(stream, b"1", Nats_Msg_Id="a")
    again = published(stream, b"1", Nats_Msg_Id="a")
    refused = published(stream, b"2", Nats_Expected_Last_Sequence="7")
    assert codes(first + again + refused) == [None, None, None]
    sends = stream.sends
    stream.host.commit_up_to(stream.gate.confirm(2))
    assert codes(first + again + refused) == [1, 1, 10071]
    assert again[0].answer["duplicate"]
    assert stream.sends == sends + 1
    assert codes(published(stream, b"1", Nats_Msg_Id="a")) == [1]
    stream.close()


async def test_draining_waits_for_followers() -> None:
    stream = GatedStream({})
    published(stream, b"1")
    draining = asyncio.ensure_future(stream.host.drained())
    await stream.tick()
    assert not draining.done()
    stream.host.commit_up_to(stream.gate.confirm(2))
    await asyncio.wait_for(draining, 0.04)  # it was told, and did not just look again
    stream.close()


async def test_slow_followers_push_back_and_cost_no_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = GatedStream({"max_pending_bytes": "16MiB"})
    host, sequencer = stream.host, stream.host.sequencer
    now = [100.0]
    monkeypatch.setattr("liftlog.server.commits.committing.time.monotonic", lambda: now[0])
    payload = b"x" * 100_000
    stream.log.append = lambda batches: None  # type: ignore[method-assign]  # the disk is memory
    tracemalloc.start()
    for number in range(100):
        published(stream, payload + b"%d" % number)
        for message in stream.messages.values():
            message.payload = b""
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used < 1_000_000
    assert sequencer.pending_bytes == sequencer.held_bytes > 10_000_000
    assert host.is_crowded()
    now[0] += 2.0
    assert not host.is_crowded(), "others are read for while these followers make no progress"
    rest = [published(stream, payload) for _ in range(100)]
    assert codes(rest[0]) == [None]
    assert codes(rest[-1]) == [OVERLOADED.err_code]
    assert sequencer.pending_bytes <= 16 * 2**20
    host.close()


async def test_too_few_copies() -> None:
    """Who wants an ack of all copies is refused before anything is written; the rest is stored."""
    stream = GatedStream({})
    stream.gate.refuses = NOT_ENOUGH_REPLICAS
    wants_all = envelope.encode(b"all", ack_policy="all")
    by_leader = envelope.encode(b"leader", ack_policy="leader")
    wants_none = envelope.encode(b"none", ack_policy="none")
    rows = [
        (b"plain", True, {}),
        (b"told to no one", False, {}),
        (wants_all, True, {}),
        (by_leader, True, {}),
        (wants_none, True, {}),
        (b"with an id", True, {"Nats-Msg-Id": "a"}),
    ]
    sent = stream.publish(rows)
    stream.host.kick()
    assert stream.log.log_end_offset == 4
    assert stream.log.high_watermark == 1
    assert codes(sent) == [10008, None, 10008, None, None, 10008], "refusals wait for no follower"
    stream.host.commit_up_to(stream.gate.confirm(4))
    assert codes(sent) == [10008, None, 10008, 2, None, 10008]
    stream.gate.refuses = None
    assert codes(published(stream, b"with an id", Nats_Msg_Id="a")) == [None]
    stream.host.commit_up_to(stream.gate.confirm(5))
    assert codes(list(stream.messages.values())[-1:]) == [4]
    stream.close()


async def test_after_the_lead_nothing_is_stored_or_answered() -> None:
    stream = GatedStream({})
    held = published(stream, b"1")
    stream.inline.max_messages = 0
    out = published(stream, b"2")
    judged = published(stream, b"3")
    stream.host.step_down("another node leads")
    assert codes(held + out + judged) == [None, None, NOT_LEADING.err_code]
    assert stream.gate.lead_ended == "another node leads"
    await stream.finish_jobs()  # the write that was under way
    assert codes(published(stream, b"4")) == [NOT_LEADING.err_code]
    assert codes(held + out) == [None, None]
    assert stream.log.log_end_offset == 3
    await asyncio.wait_for(stream.host.drained(), 5)
    stream.close()


async def test_a_stream_that_fails_says_nothing_of_what_followers_may_have() -> None:
    stream = GatedStream({})
    held = published(stream, b"1")
    judged = stream.publish([(b"2", True, {})])
    stream.host.fail("a defect")
    assert codes(held + judged) == [None, STORE_FAILED.err_code]
    assert stream.gate.lead_ended == "a defect"
    await asyncio.wait_for(stream.host.drained(), 5)
    stream.close()


async def test_closing_leaves_what_is_held_without_an_answer() -> None:
    stream = GatedStream({})
    held = published(stream, b"1")
    told: list[object] = []
    stream.host.store([b"in"], [None], [b"own"], told.append)
    stream.kick()
    stream.host.close()
    assert codes(held) == [None]
    assert len(told) == 1
    assert told[0] is not None
    stream.log.close()


def test_followers_are_woken_between_the_writes_and_the_syncs() -> None:
    order: list[str] = []

    def job(name: str, *, fails: bool = False) -> CommitJob:
        def write() -> None:
            order.append(f"write {name}")
            if fails:
                raise OSError("injected")

        return CommitJob(
            write,
            lambda: order.append(f"sync {name}"),
            lambda error: order.append(f"done {name}"),
            lambda: order.append(f"wake {name}"),
        )

    jobs = [job("a"), job("b", fails=True), CommitJob(lambda: None, None, lambda error: None)]
    writing.run_batch(jobs)
    assert order == ["write a", "write b", "wake a", "sync a", "done a", "done b"]


@pytest.mark.parametrize("slow", [False, True])
async def test_a_group_with_followers_is_written_in_the_loop_while_the_disk_is_fast(
    slow: bool, fast_syncs: None
) -> None:
    """However many messages it is; but not much at once."""
    stream = GatedStream({})
    assert stream.inline.max_messages == 64
    if slow:
        for _ in range(15):
            stream.inline.observe(0.01)
    many = published(stream, *[b"%d" % number for number in range(500)])
    assert len(stream.pool.jobs) == slow
    await stream.finish_jobs()
    held = published(stream, b"x" * (FOLLOWED_INLINE_BYTES * 2 // 3))
    assert len(stream.pool.jobs) == slow
    await stream.finish_jobs()
    more = published(stream, b"x" * (FOLLOWED_INLINE_BYTES * 2 // 3))
    assert len(stream.pool.jobs) == slow, "what is held is written already"
    await stream.finish_jobs()
    large = published(stream, *[b"x" * (FOLLOWED_INLINE_BYTES // 100)] * 100)
    assert len(stream.pool.jobs) == 1
    await stream.finish_jobs()
    stream.host.commit_up_to(stream.gate.confirm(603))
    assert codes(many + held + more + large) == [*range(1, 603)]
    stream.close()


async def test_followers_are_woken_before_a_sync_in_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What they get then is sent before the loop waits for the disk."""
    stream = GatedStream({})
    sync, woken = stream.log.sync, []

    def synced() -> int:
        woken.append(stream.gate.seen_end)
        return sync()

    monkeypatch.setattr(stream.log, "sync", synced)
    published(stream, b"1", b"2")
    assert not stream.pool.jobs, "no thread took part"
    assert woken == [3]
    stream.close()


async def test_followers_are_woken_on_the_loop_before_a_sync_in_a_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = GatedStream({})
    pool = stream.pool = WriterPool(1)  # type: ignore[assignment]
    stream.lead(1)
    stream.inline.max_messages = 0
    woken = asyncio.Event()
    synced_after: list[bool] = []
    loop = asyncio.get_running_loop()

    def sync() -> int:
        # In the thread: wait until the loop has heard of the write.
        asyncio.run_coroutine_threadsafe(woken.wait(), loop).result(5)
        synced_after.append(stream.gate.seen_end == 2)
        return 2

    monkeypatch.setattr(stream.log, "sync", sync)
    written = stream.gate.written
    monkeypatch.setattr(stream.gate, "written", lambda batches: (written(batches), woken.set()))
    published(stream, b"1")
    await asyncio.wait_for(woken.wait(), 5)
    while stream.host.turns.is_taken:
        await asyncio.sleep(0.001)
    assert synced_after == [True]
    monkeypatch.undo()
    pool.close()
    stream.close()
