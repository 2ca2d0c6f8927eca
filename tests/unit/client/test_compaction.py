"""Requesting a compaction pass, and waiting for it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from support.daemons.pull_broker import LogBroker

from liftlog.errors import StreamNotFound, StreamUnavailable

if TYPE_CHECKING:
    from tests.unit.client.conftest import Both
else:
    Both = Any


async def asked(broker: LogBroker, count: int = 1) -> None:
    while broker.compaction.get("requested") != count:
        await asyncio.sleep(0.001)


async def test_without_waiting_the_answer_comes_at_once(both: Both, broker: LogBroker) -> None:
    info = await both.call("compact_stream", "orders")
    assert (info.name, info.compaction) == ("orders", {"requested": 1})
    with pytest.raises(StreamNotFound):
        await both.call("compact_stream", "none")


async def test_waiting_ends_with_the_pass_that_was_asked_for(both: Both, broker: LogBroker) -> None:
    broker.compaction |= {"requested": 6, "finished": 6, "state": "idle"}
    call = asyncio.create_task(both.call("compact_stream", "orders", wait=True))
    await asked(broker, 7)
    done, _ = await asyncio.wait({call}, timeout=0.2)
    assert not done
    broker.compaction |= {"finished": 7, "passes": 3}
    assert (await asyncio.wait_for(call, 10)).compaction["passes"] == 3


@pytest.mark.parametrize(
    ("happens", "told"),
    [
        ({"state": "backing off", "error": "the disk is full"}, "the disk is full"),
        ({"requested": 0}, "no longer knows"),  # the daemon was restarted
    ],
)
async def test_waiting_ends_when_the_pass_will_not_come(
    happens: dict[str, Any], told: str, both: Both, broker: LogBroker
) -> None:
    call = asyncio.create_task(both.call("compact_stream", "orders", wait=True))
    await asked(broker)
    broker.compaction |= happens
    with pytest.raises(StreamUnavailable, match=told):
        await asyncio.wait_for(call, 10)
