"""Exclusive calls: alone, in order, in turns with messages, until the stream closes."""

from __future__ import annotations

import asyncio
import threading
from functools import partial

import pytest
from support.worlds.stream_harness import Harness, seqs

from liftlog.errors import StorageError, StreamUnavailable
from liftlog.sequencing import MessageRun


async def test_exclusive_calls_run_alone_and_in_order(harness: Harness) -> None:
    order: list[int] = []
    futures = [harness.host.run_exclusive(lambda i=i: order.append(i)) for i in range(3)]  # type: ignore[misc]
    assert seqs(await harness.publish(b"1")) == [1]
    await asyncio.gather(*futures)
    assert order == [0, 1, 2]


async def test_endless_exclusive_calls_leave_messages_their_turns(harness: Harness) -> None:
    """Every reader may ask for leases, as many and as often as it likes."""
    host = harness.host
    done: list[str] = []

    def again(name: str, before: asyncio.Future[object] | None = None) -> None:
        if before is None or before.exception() is None:  # until it is closed
            future = host.run_exclusive(partial(done.append, name))
            future.add_done_callback(partial(again, name))

    for name in "abc":
        again(name)
    reply, subject = [b"_INBOX.r"], [b"in"]
    for number in range(5):
        before = len(done)
        host.receive(MessageRun(subject, reply, [b"%d" % number], has_cookie=False))
        while harness.log.log_end_offset < number + 2:
            assert len(done) - before < 10, "messages wait for exclusive calls without end"
            host.kick()
            await asyncio.sleep(0)
    while len(done) < 100:  # and the other way round
        await asyncio.sleep(0)
    host.close()


async def test_an_error_goes_to_the_caller(harness: Harness) -> None:
    def fail() -> None:
        raise StorageError("no")

    with pytest.raises(StorageError):
        await harness.host.run_exclusive(fail)
    assert seqs(await harness.publish(b"1")) == [1]


async def test_exclusive_calls_of_a_failed_stream_end(harness: Harness) -> None:
    first = harness.host.run_exclusive(lambda: 1)
    second = harness.host.run_exclusive(lambda: 2)
    harness.host.fail("on purpose")
    assert await asyncio.wait_for(asyncio.gather(first, second), 5) == [1, 2]


async def test_calls_that_wait_are_refused_when_the_stream_closes(
    harness: Harness,
) -> None:
    first = harness.host.run_exclusive(lambda: 1)
    second = harness.host.run_exclusive(lambda: 2)
    harness.host.close()
    assert await first == 1
    with pytest.raises(StreamUnavailable):
        await second


async def test_a_cancelled_caller_leaves_nothing_half_done(harness: Harness) -> None:
    """What is stored takes effect, and the caller goes on only after that."""
    began, may_end = threading.Event(), threading.Event()
    order: list[str] = []

    def store() -> None:
        began.set()
        may_end.wait(10)
        order.append("stored")

    calling = asyncio.create_task(
        harness.host.exclusively(store, lambda: order.append("in effect"))
    )
    await asyncio.to_thread(began.wait, 10)
    calling.cancel()
    await asyncio.sleep(0)
    assert order == []
    assert not calling.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert order == ["stored", "in effect"]
    assert seqs(await harness.publish(b"1")) == [1]
