"""Message ids of a stream that is opened without a snapshot, from a disk that is ill."""

from __future__ import annotations

import errno
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from support.daemons.local_broker import Running

from liftlog.errors import CorruptRange, StorageError
from liftlog.log import LogSlice
from liftlog.log.files.checkpoint_file import checkpoint_bytes
from liftlog.log.read.arrivals import Arrivals
from liftlog.sequencing import DedupeWindow, MessageRun
from liftlog.server.streams.dedupe_restoring import (
    last_message_id,
    restore_dedupe,
    write_dedupe_snapshot,
)

COUNT = 60


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    made = Running(tmp_path)
    await made.start()
    await made.broker.create_stream("s", {"subject": "in", "segment": {"max_bytes": "16KiB"}})
    host = made.broker.hosts["s"]
    for number in range(1, COUNT + 1):
        header = f"NATS/1.0\r\nNats-Msg-Id: {number}\r\n\r\n".encode()
        host.receive(MessageRun([b"in"], [b""], [b"x" * 1000], [header], has_cookie=False))
        host.kick()
        await host.drained()
    assert host.log.segment_count >= 4
    yield made
    await made.broker.close()


def restored(running: Running) -> list[int]:
    """The ids that are remembered."""
    log = running.broker.hosts["s"].log
    dedupe = DedupeWindow(600 * 10**9, 1000)
    restore_dedupe(log, dedupe, running.clock.now_ns())
    return [n for n in range(1, COUNT + 1) if dedupe.lookup(dedupe.mark(b"%d" % n))]


async def test_all_of_them(running: Running) -> None:
    assert restored(running) == list(range(1, COUNT + 1))
    assert last_message_id(running.broker.hosts["s"].log) == b"%d" % COUNT


async def test_a_snapshot_that_cannot_be_used_is_passed_over(running: Running) -> None:
    """Any bit of the first line, which has no checksum; another state of the log; a directory."""
    log = running.broker.hosts["s"].log
    dedupe = DedupeWindow(600 * 10**9, 1000)
    restore_dedupe(log, dedupe, running.clock.now_ns())
    write_dedupe_snapshot(log, dedupe)
    path = log.directory / "dedupe"
    first, _, body = path.read_bytes().partition(b"\n")
    for bit in range(0, 8 * len(first), 3):
        spoilt = bytearray(first)
        spoilt[bit // 8] ^= 1 << bit % 8
        path.write_bytes(bytes(spoilt) + b"\n" + body)
        assert restored(running) == list(range(1, COUNT + 1))
    older = json.loads(body)
    for change in ({"log_end_offset": 7}, {"lineage": "another"}):
        text = json.dumps(older | change | {"remembered": []})
        path.write_bytes(checkpoint_bytes("dedupe", text))
        assert restored(running) == list(range(1, COUNT + 1))
    path.unlink()
    path.mkdir()
    assert restored(running) == list(range(1, COUNT + 1))


async def test_the_snapshot_of_a_neighbour_is_passed_over(running: Running) -> None:
    """A stream with as many records and other ids: a valid file, in the wrong directory."""
    await running.broker.create_stream("other", {"subject": "out"})
    other, log = running.broker.hosts["other"], running.broker.hosts["s"].log
    for number in range(1, COUNT + 1):
        header = f"NATS/1.0\r\nNats-Msg-Id: other-{number}\r\n\r\n".encode()
        other.receive(MessageRun([b"out"], [b""], [b"x" * 1000], [header], has_cookie=False))
        other.kick()
        await other.drained()
    assert other.log.log_end_offset == log.log_end_offset
    for one in (log, other.log):
        dedupe = DedupeWindow(600 * 10**9, 1000)
        restore_dedupe(one, dedupe, running.clock.now_ns())
        write_dedupe_snapshot(one, dedupe)
    (log.directory / "dedupe").write_bytes((other.log.directory / "dedupe").read_bytes())
    dedupe = DedupeWindow(600 * 10**9, 1000)
    restore_dedupe(log, dedupe, running.clock.now_ns())
    assert not any(dedupe.lookup(dedupe.mark(b"other-%d" % n)) for n in range(1, COUNT + 1))
    assert restored(running) == list(range(1, COUNT + 1))


HOUR_NS = 3600 * 10**9


@pytest.mark.parametrize("hours", [-1, 1])
async def test_what_arrived_here_is_as_old_as_that(hours: int, running: Running) -> None:
    """Whatever the clocks say of the leaders that stamped it, and that of this node."""
    log, here_ns = running.broker.hosts["s"].log, running.clock.monotonic_ns()
    log.arrivals.note(20, log.view.max_timestamp_ns, here_ns)
    running.clock.jumped_ns = hours * HOUR_NS
    assert restored(running) == list(range(1, COUNT + 1))
    running.clock.ahead_ns = 60 * 10**9
    log.arrivals.note(40, log.view.max_timestamp_ns, running.clock.monotonic_ns())
    running.clock.ahead_ns = 630 * 10**9
    assert restored(running) == list(range(40, COUNT + 1))
    running.clock.ahead_ns = 690 * 10**9
    assert restored(running) == []


async def test_stamps_that_jump_within_the_log(running: Running) -> None:
    """Of two leaders: the clock of the second is an hour ahead, and ids are not older for that."""
    log, now_ns = running.broker.hosts["s"].log, running.clock.monotonic_ns()
    log.arrivals.note(1, log.view.max_timestamp_ns, now_ns)
    running.clock.jumped_ns = HOUR_NS
    host = running.broker.hosts["s"]
    header = b"NATS/1.0\r\nNats-Msg-Id: next\r\n\r\n"
    host.receive(MessageRun([b"in"], [b""], [b"x"], [header], has_cookie=False))
    host.kick()
    await host.drained()
    log.arrivals.note(COUNT + 1, log.view.max_timestamp_ns, running.clock.monotonic_ns())
    assert restored(running) == list(range(1, COUNT + 1))


def test_arrivals_are_known_as_long_as_the_records_are_there() -> None:
    arrivals = Arrivals()
    assert arrivals.known() is None
    second = 10**9
    arrivals.note(10, 100 * second, 5 * second)
    arrivals.note(11, 101 * second, 6 * second)  # the clocks agree on the time in between
    arrivals.note(20, 3700 * second, 7 * second)
    arrivals.note(30, 3701 * second, 8 * second)
    known = arrivals.known()
    assert known is not None
    assert [known.ahead_ns(at) // second for at in (1, 10, 19, 20, 99)] == [-95] * 3 + [-3693] * 2
    assert known.most_ahead_ns == -95 * second
    arrivals.note(20, 110 * second, 15 * second)  # cut off, and written again by another leader
    known = arrivals.known()
    assert known is not None
    assert known.ahead_ns(25) == -95 * second


def failing_read(log: Any, base: int) -> Callable[..., Any]:
    original = log.read_stored

    def read(offset: int, max_bytes: int) -> Any:
        if offset == base:
            raise StorageError("reading s: Input/output error")
        return original(offset, max_bytes)

    return read


def failing_pread(log: Any, base: int) -> Callable[..., Any]:
    original = LogSlice.pread

    def pread(piece: LogSlice) -> bytes:
        if piece.first_offset == base:
            raise OSError(errno.EIO, "Input/output error")
        return original(piece)

    return pread


@pytest.mark.parametrize("call", ["read", "pread"])
async def test_what_cannot_be_read_costs_its_segment(
    call: str, running: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither the stream nor the newer ids."""
    log = running.broker.hosts["s"].log
    ill = log.segments[1]
    if call == "read":
        monkeypatch.setattr(log, "read_stored", failing_read(log, ill.base_offset))
    else:
        monkeypatch.setattr(LogSlice, "pread", failing_pread(log, ill.base_offset))
    lost = range(ill.base_offset, ill.next_offset)
    assert restored(running) == [n for n in range(1, COUNT + 1) if n not in lost]
    [record] = caplog.records
    assert record.getMessage().startswith(f"dedupe-ids-lost stream=s offset={ill.base_offset} ")


async def test_a_quarantined_range_costs_itself(
    running: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    log = running.broker.hosts["s"].log
    original = log.read_stored

    def read(offset: int, max_bytes: int) -> Any:
        if offset < 5:
            raise CorruptRange("lost", first_offset=offset, next_offset=5)
        return original(offset, max_bytes)

    monkeypatch.setattr(log, "read_stored", read)
    assert restored(running) == list(range(5, COUNT + 1))
    assert "dedupe-ids-lost stream=s offset=1 " in caplog.text


async def test_the_last_id_may_be_unreadable(
    running: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    log = running.broker.hosts["s"].log
    monkeypatch.setattr(log, "read_stored", failing_read(log, COUNT))
    assert last_message_id(log) == b""
    assert "last-message-id-lost stream=s" in caplog.text


STEPS_SECONDS = [7, 200, 599, 601, 3 * 3600, 400 * 86_400]


async def publish_with_id(running: Running, message_id: str) -> int:
    """The offset behind the newest record."""
    host = running.broker.hosts["s"]
    header = f"NATS/1.0\r\nNats-Msg-Id: {message_id}\r\n\r\n".encode()
    host.receive(MessageRun([b"in"], [b""], [b"x"], [header], has_cookie=False))
    host.kick()
    await host.drained()
    return host.log.log_end_offset


@pytest.mark.parametrize("direction", [1, -1])
@pytest.mark.parametrize("seconds", STEPS_SECONDS)
@pytest.mark.parametrize("restart", [False, True])
async def test_a_step_of_the_wall_clock_ages_no_id(
    seconds: int, direction: int, restart: bool, tmp_path: Path
) -> None:
    running = Running(tmp_path)
    await running.start()
    settings = {"subject": "in", "dedupe_window": "2m"}
    await running.broker.create_stream("s", settings)
    assert await publish_with_id(running, "before") == 2
    running.clock.jumped_ns += direction * seconds * 10**9
    assert await publish_with_id(running, "after") == 3
    if restart:
        await running.broker.close()
        running = Running(tmp_path, clock=running.clock)
        await running.start()
    assert await publish_with_id(running, "before") == 3, "a retry is not stored again"
    assert await publish_with_id(running, "after") == 3
    running.clock.ahead_ns += 121 * 10**9
    assert await publish_with_id(running, "before") == 4, "the window has passed"
    await running.broker.close()
