"""Fetches that start at a batch with erased records: a thread cuts the records out."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from support.clients.raw_pull import RawPull
from support.daemons.pull_broker import LogBroker, pull_server

from liftlog.log.erased import ErasedSet
from liftlog.log.read import slices
from liftlog.records.decode import iter_batches


def fetch(request_id: int, start: int = 1, **more: Any) -> dict[str, Any]:
    return {"k": "fetch", "i": request_id, "s": "large", "o": start, **more}


def offsets(answer: dict[str, Any]) -> list[int]:
    return [offset for batch in iter_batches(answer["body"]) for offset in batch.offsets()]


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch, broker: LogBroker) -> Iterator[threading.Event]:
    """Cuts wait for the event, and must not run in the thread of the event loop."""
    event, loop_thread, cut_rows = threading.Event(), threading.get_ident(), slices.cut_rows

    def wait(*arguments: Any, **options: Any) -> Any:
        assert threading.get_ident() != loop_thread
        assert event.wait(20)
        return cut_rows(*arguments, **options)

    monkeypatch.setattr(slices, "cut_rows", wait)
    stream = broker.add("large")
    for _ in range(10):  # with an entry of the index for each batch
        stream.append([bytes(1000)] * 10)
    log = stream.real_log
    log.structure.erase(ErasedSet.of_ranges([(25, 26), (33, 34)]))
    yield event
    event.set()


async def test_others_do_not_wait_for_a_cut(broker: LogBroker, held: threading.Event) -> None:
    async with (
        pull_server(broker) as (_, address),
        await RawPull.connect(address) as peer,
        await RawPull.connect(address) as other,
    ):
        peer.send(fetch(1, 25, m=1 << 20))
        other.send(fetch(2, 41, m=1 << 20))
        assert offsets(await other.receive()) == list(range(41, 101))
        other.send(fetch(3, 1, m=1 << 20))
        assert offsets(await other.receive()) == list(range(1, 21)), "up to the first such batch"
        peer.send({"k": "ping", "i": 4})
        assert (await peer.receive())["i"] == 4
        held.set()
        found = offsets(await peer.receive())
        assert found == [o for o in range(21, 101) if o not in (25, 33)]


async def test_a_fetch_is_cancelled_during_a_cut(broker: LogBroker, held: threading.Event) -> None:
    async with pull_server(broker) as (_, address), await RawPull.connect(address) as peer:
        peer.send(fetch(1, 25, m=1))
        peer.send({"k": "ping", "i": 2})
        assert (await peer.receive())["i"] == 2
        peer.send({"k": "cancel", "i": 1})
        answer = await peer.receive()
        assert (answer["i"], answer["n"]) == (1, "CANCELLED"), answer
        peer.send(fetch(3, 31, m=1))  # waits for the cut of the first fetch
        held.set()
        assert offsets(await peer.receive()) == [31, 32, *range(34, 41)]


async def test_what_is_erased_during_a_cut(broker: LogBroker, held: threading.Event) -> None:
    """The fetch began before the erasure was answered, so either result is right; the next fetch
    does not show the record."""
    log = broker.streams["large"].real_log
    async with pull_server(broker) as (_, address), await RawPull.connect(address) as peer:
        peer.send(fetch(1, 25, m=1, w=10))
        peer.send({"k": "ping", "i": 2})
        assert (await peer.receive())["i"] == 2
        log.structure.erase(ErasedSet.of_ranges([(26, 27)]))
        held.set()
        assert offsets(await peer.receive())[-4:] == [27, 28, 29, 30]
        peer.send(fetch(3, 25, m=1, w=10))
        assert offsets(await peer.receive()) == [21, 22, 23, 24, 27, 28, 29, 30]
