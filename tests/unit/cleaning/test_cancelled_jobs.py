"""A job that is cancelled leaves no file behind, wherever it was.

A stop of the daemon and a stream that is deleted cancel one; the log itself lives on here.
"""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from support.daemons.local_cleaning import COMPACTED, Cleaning

from liftlog.errors import SegmentsChanged
from liftlog.log import Log
from liftlog.sequencing import MessageRun
from liftlog.server.cleaning import jobs

PATIENCE = 20
HOUR_NS = 3600 * 10**9


@pytest.fixture
async def cleaning(tmp_path: Path) -> AsyncIterator[Cleaning]:
    made = Cleaning(tmp_path, interval="15s")
    await made.running.start()
    yield made
    await made.close()


async def _compactable(cleaning: Cleaning) -> Log:
    await cleaning.stream("a", 100, 3)
    return cleaning.running.broker.hosts["a"].log


async def _rebatchable(cleaning: Cleaning) -> Log:
    settings = COMPACTED | {"compaction": None, "rebatch": {"min_age": "10m"}}
    await cleaning.running.broker.create_stream("a", settings)
    for number in range(100):
        await cleaning.running.put("a", [("k", b"%d" % number + b"." * 100)])
    log = cleaning.running.broker.hosts["a"].log
    log.writer.roll()
    cleaning.running.clock.ahead_ns = 601 * 10**9
    return log


STREAMS = {"compact": _compactable, "rebatch": _rebatchable}


def _files(log: Log) -> list[str]:
    return sorted(path.name for path in log.directory.iterdir() if path.suffix != ".slot")


def _of_the_log(log: Log) -> set[str]:
    return {name for one in log.segments for name in (one.path.name, one.path.stem + ".index")}


def _check_nothing_happened(cleaning: Cleaning, log: Log, before: tuple[Any, ...]) -> None:
    assert (log.segments, _files(log)) == before
    state = cleaning.state(log.name)
    assert (state.passes, state.rebatched_segments) == (0, 0)


async def _stop(round_: asyncio.Task[bool]) -> None:
    round_.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(round_, PATIENCE)


async def _works_the_next_time(cleaning: Cleaning, kind: str, log: Log, before: int) -> None:
    cleaning.worker.before = None
    state = cleaning.state(log.name)
    state.not_before = state.look_again_at = 0.0
    await cleaning.round()
    assert state.passes + state.rebatched_segments == 1, kind
    assert log.view.size_bytes < before
    listed = _of_the_log(log)
    assert {name for name in _files(log) if name.endswith((".log", ".index"))} <= listed


@pytest.mark.parametrize("kind", STREAMS)
async def test_while_the_worker_writes(cleaning: Cleaning, kind: str) -> None:
    log = await STREAMS[kind](cleaning)
    before, size = (log.segments, _files(log)), log.view.size_bytes
    begun = asyncio.Event()

    async def half_done(_: str) -> None:
        for end in ("log", "index"):
            (log.directory / f"{1:020}.1.{end}").write_bytes(b"half")
        begun.set()
        await asyncio.Event().wait()

    cleaning.worker.before = half_done
    round_ = asyncio.create_task(cleaning.round())
    await asyncio.wait_for(begun.wait(), PATIENCE)
    assert _files(log) != before[1]
    await _stop(round_)
    _check_nothing_happened(cleaning, log, before)
    await _works_the_next_time(cleaning, kind, log, size)


def _at_a_gate(
    monkeypatch: pytest.MonkeyPatch, kind: str, then: Callable[[Callable[[], int]], int]
) -> tuple[asyncio.Event, threading.Event]:
    """The swap, in its thread, says that it began and waits; returns both signals."""
    loop, begun, gate = asyncio.get_running_loop(), asyncio.Event(), threading.Event()
    name = "apply_compaction" if kind == "compact" else "apply_rebatch"
    real: Callable[..., int] = getattr(jobs, name)

    def held(*arguments: Any) -> int:
        loop.call_soon_threadsafe(begun.set)
        assert gate.wait(PATIENCE)
        return then(lambda: real(*arguments))

    monkeypatch.setattr(jobs, name, held)
    return begun, gate


async def _cancelled_in_the_swap(
    cleaning: Cleaning, begun: asyncio.Event, gate: threading.Event
) -> None:
    round_ = asyncio.create_task(cleaning.round())
    await asyncio.wait_for(begun.wait(), PATIENCE)
    round_.cancel()
    ended, _ = await asyncio.wait({round_}, timeout=0.1)
    assert not ended, "it ends only when the swap did"
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(round_, PATIENCE)


@pytest.mark.parametrize("kind", STREAMS)
async def test_in_a_swap_that_is_refused(
    cleaning: Cleaning,
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = await STREAMS[kind](cleaning)
    before, size = (log.segments, _files(log)), log.view.size_bytes

    def refuse(_: Callable[[], int]) -> int:
        assert _files(log) != before[1], "the worker wrote something"
        raise SegmentsChanged("as after a truncation")

    with monkeypatch.context() as patched:
        await _cancelled_in_the_swap(cleaning, *_at_a_gate(patched, kind, refuse))
    gc.collect()
    assert "never retrieved" not in caplog.text, "an error that is no news"
    _check_nothing_happened(cleaning, log, before)
    await _works_the_next_time(cleaning, kind, log, size)


@pytest.mark.parametrize("kind", STREAMS)
async def test_in_a_swap_that_is_made(
    cleaning: Cleaning, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it put in is the log now: none of it goes."""
    log = await STREAMS[kind](cleaning)
    newest = max(cleaning.read("a").values()) if kind == "compact" else log.log_end_offset - 1
    with monkeypatch.context() as patched:
        await _cancelled_in_the_swap(cleaning, *_at_a_gate(patched, kind, lambda real: real()))
    assert any(segment.generation for segment in log.segments)
    wanted = {segment.path.name for segment in log.segments}
    assert {name for name in _files(log) if name.endswith(".log")} == wanted
    piece = log.read(newest, 2**20)
    assert piece is not None
    with piece:
        assert piece.next_offset == newest + 1


async def test_while_the_writer_is_asked_to_announce_it(cleaning: Cleaning) -> None:
    """Tombstones go: the log is told so by its writer of the moment, before the swap."""
    await cleaning.stream("a", 0, 1)
    running = cleaning.running
    for key in ("x", "y"):
        await running.put("a", [(key, b"1" * 3000)])
    host = running.broker.hosts["a"]
    tombstone = b"NATS/1.0\r\nLiftlog-Key: x\r\nLiftlog-Tombstone: true\r\n\r\n"
    host.receive(MessageRun([b"in"], [b""], [b""], [tombstone]))
    host.kick()
    await host.drained()
    cleaning.cleaner.request(host)
    await cleaning.round()
    assert cleaning.read("a") == {b"y": 2, b"x": 3}
    running.clock.ahead_ns = 3 * HOUR_NS
    state, log = cleaning.state("a"), host.log
    state.look_again_at = 0.0
    before, size, passes = (log.segments, _files(log)), log.view.size_bytes, state.passes
    gate, asked, held = threading.Event(), asyncio.Event(), []
    real = host.run_exclusive

    def exclusive(call: Callable[[], object]) -> asyncio.Future[object]:
        asked.set()
        return real(call)

    async def keep_the_writer_busy(_: str) -> None:
        held.append(real(lambda: gate.wait(PATIENCE)))
        host.run_exclusive = exclusive  # type: ignore[method-assign]

    cleaning.worker.before = keep_the_writer_busy
    round_ = asyncio.create_task(cleaning.round())
    await asyncio.wait_for(asked.wait(), PATIENCE)
    assert _files(log) != before[1], "the worker wrote something"
    await _stop(round_)
    gate.set()
    await asyncio.wait_for(held[0], PATIENCE)
    await real(lambda: None)  # what was asked for before has ended or was dropped
    assert (log.segments, _files(log)) == before
    assert state.passes == passes
    assert log.view.size_bytes == size
    cleaning.worker.before = None
    state.look_again_at = state.not_before = 0.0
    await cleaning.round()
    assert (cleaning.read("a"), state.passes) == ({b"y": 2}, passes + 1)
