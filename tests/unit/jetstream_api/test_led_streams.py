"""Acks and pulls that arrive for a stream while its consumers are being opened."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from liftlog.server.jetstream_api.consumers.pull_body import Pull
from liftlog.server.jetstream_api.workers.led_streams import LedStream, LedStreams
from liftlog.server.jetstream_api.workers.pulls import WorkerPull
from liftlog.server.jetstream_api.workers.worker_link import Arrived


async def test_an_answer_to_one_pull_leaves_the_later_pulls_of_the_client() -> None:
    """Clients can use one reply subject for all their pulls."""
    served = SimpleNamespace(watch=lambda changed: None, is_closed=False)
    host = SimpleNamespace(name="s")
    hosted = SimpleNamespace(consumers={"s": served}, hosts={"s": host}, on_led=[])
    catalog = SimpleNamespace(begins_to_lead=lambda name: False)
    broker = SimpleNamespace(hosted=hosted, catalog=catalog)
    may_open, taken = asyncio.Event(), list[WorkerPull]()

    async def open_consumers(led: LedStream) -> None:
        await may_open.wait()

    led = LedStreams(
        cast(Any, broker),
        open_consumers,
        lambda led: None,
        lambda arrived: taken.extend(arrived.pulls),
    )
    led.start()
    other, first, second = [
        WorkerPull(name, b"_INBOX.a", Pull(batch=batch))
        for name, batch in (("other", 1), ("c", 1), ("c", 2))
    ]
    assert led.holds(Arrived("s", [], [other, first], []))
    assert led.holds(Arrived("s", [], [second], []))
    led.drop_pull("s", "c", b"_INBOX.a")
    led.drop_pull("s", "c", b"_INBOX.b")
    led.drop_pull("t", "c", b"_INBOX.a")
    may_open.set()
    await led.opened("s")
    assert taken == [other, second]
    await led.close()
