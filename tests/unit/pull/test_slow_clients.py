"""Clients that stop reading, vanish, or outlive the daemon; files that end too early."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from typing import Any

import msgpack
import pytest
from support.clients.raw_pull import RawPull, frame
from support.daemons.pull_broker import LogBroker, pull_server
from support.daemons.pull_inside import connections_of, is_reading, unsent_bytes_of

from liftlog.protocol.limits import MIB
from liftlog.server.pull import PullLimits
from liftlog.server.pull.send_queue import make_resident as read_pages


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


def fill(broker: LogBroker, mebibytes: int) -> None:
    for _ in range(mebibytes):
        broker.streams["orders"].append([b"x" * (MIB // 4)] * 4)


class Deaf:
    """A client that asks and does not read, on a plain socket with a small buffer."""

    def __init__(self, address: str) -> None:
        host, port = address.removeprefix("tcp://").rsplit(":", 1)
        self.sock = socket.socket()
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        self.sock.connect((host, int(port)))

    async def greet(self) -> None:
        loop = asyncio.get_running_loop()
        self.sock.setblocking(False)
        hello = {"k": "hello", "i": 1, "v": [1], "n": b"0123456789abcdef"}
        for message in (hello, {"k": "auth", "i": 2, "m": "anonymous"}):
            await loop.sock_sendall(self.sock, frame(message))
            await loop.sock_recv(self.sock, 4096)

    async def ask(self, count: int) -> None:
        fetches = [
            {"k": "fetch", "i": i, "s": "orders", "o": 101, "m": MIB} for i in range(10, 10 + count)
        ]
        data = b"".join(map(frame, fetches))
        await asyncio.get_running_loop().sock_sendall(self.sock, data)


async def test_a_client_that_stops_reading_costs_bounded_memory_and_is_cut_off(
    broker: LogBroker,
) -> None:
    fill(broker, 8)
    log = broker.streams["orders"].log
    limits = PullLimits(max_unsent_bytes=2 * MIB, write_stall_seconds=0.3)
    async with pull_server(broker, limits=limits) as (server, address):
        async with await RawPull.connect(address) as witness:
            deaf = Deaf(address)
            await deaf.greet()
            await deaf.ask(60)
            await until(lambda: log.unreleased)
            (connection,) = filter(unsent_bytes_of, connections_of(server))
            witness.send({"k": "fetch", "i": 1, "s": "orders", "o": 101})
            answer = await witness.receive()
            assert answer["c"] == 4
            # The bound may be passed by one answer, and slices beyond it are not even opened.
            assert unsent_bytes_of(connection) < 2 * MIB + 1.1 * MIB
            assert len(log.unreleased) <= 4
            await until(lambda: server.connection_count == 1)
            assert not log.unreleased
            deaf.sock.close()


async def test_a_client_that_reads_slowly_gets_everything(broker: LogBroker) -> None:
    fill(broker, 6)
    limits = PullLimits(max_unsent_bytes=MIB // 2)
    async with pull_server(broker, limits=limits) as (_, address):
        deaf = Deaf(address)
        await deaf.greet()
        await deaf.ask(6)
        loop = asyncio.get_running_loop()
        received = bytearray()
        ids = []
        while len(ids) < 6:
            received += await loop.sock_recv(deaf.sock, 100_000)
            while whole := whole_answer(received):
                answer, length = whole
                ids.append(answer["i"])
                assert answer["c"] == 4
                del received[:length]
        assert ids == list(range(10, 16))
        assert not received
        deaf.sock.close()


def whole_answer(received: bytearray) -> tuple[dict[str, Any], int] | None:
    """The first answer and its length with body, once all of it is here."""
    if len(received) < 4:
        return None
    end = 4 + int.from_bytes(received[:4], "little")
    if len(received) < end:
        return None
    answer: dict[str, Any] = msgpack.unpackb(received[4:end])
    length = end + answer["b"]
    return None if len(received) < length else (answer, length)


@pytest.mark.parametrize("reset", [False, True])
async def test_a_client_that_vanishes_mid_body(broker: LogBroker, reset: bool) -> None:
    fill(broker, 8)
    log = broker.streams["orders"].log
    async with pull_server(broker) as (server, address):
        async with await RawPull.connect(address) as witness:
            deaf = Deaf(address)
            await deaf.greet()
            await deaf.ask(10)
            await until(lambda: log.unreleased)
            if reset:
                linger = struct.pack("ii", 1, 0)
                deaf.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            deaf.sock.close()
            await until(lambda: not log.unreleased)
            await until(lambda: server.connection_count == 1)
            witness.send({"k": "ping", "i": 1})
            assert (await witness.receive())["k"] == "pong"


async def test_a_client_that_vanishes_while_its_fetch_waits(broker: LogBroker) -> None:
    stream = broker.streams["orders"]
    async with pull_server(broker) as (server, address):
        peer = await RawPull.connect(address)
        peer.send({"k": "fetch", "i": 1, "s": "orders", "o": 101, "w": 60_000})
        await until(lambda: stream.waiters)
        await peer.close()
        await until(lambda: server.connection_count == 0)
        assert all(future.cancelled() for _, future in stream.waiters)
        stream.append([b"no one waits"])


async def test_a_request_under_way_outlives_its_client(broker: LogBroker) -> None:
    broker.gate = asyncio.Event()
    async with pull_server(broker) as (server, address):
        peer = await RawPull.connect(address)
        peer.send({"k": "create", "i": 1, "s": "new", "c": {"subject": "n"}})
        await until(lambda: server.services.jobs)
        await peer.close()
        await until(lambda: server.connection_count == 0)
        broker.gate.set()
        await until(lambda: not server.services.jobs)
        assert "new" in broker.streams


async def test_a_file_shorter_than_promised_is_filled_with_zeros(broker: LogBroker) -> None:
    """What was promised is sent, and the connection lives: the checksums tell the client."""
    stream = broker.streams["orders"]
    size = stream.real_log.segments[-1].path.stat().st_size
    stream.log.promise_extra_bytes = extra = size + 200_000
    async with pull_server(broker) as (_, address), await RawPull.connect(address) as peer:
        peer.send({"k": "fetch", "i": 1, "s": "orders", "o": 1})
        body = (await peer.receive())["body"]
        assert body[-200_000:] == bytes(200_000)
        assert not body[: len(body) - extra].endswith(bytes(8))
        stream.log.promise_extra_bytes = 0
        peer.send({"k": "fetch", "i": 2, "s": "orders", "o": 1})
        whole = (await peer.receive())["body"]
        assert body[: len(whole)] == whole


@pytest.mark.parametrize("vanish", [False, True])
async def test_cold_pages_are_read_by_a_thread_first(
    broker: LogBroker, monkeypatch: pytest.MonkeyPatch, vanish: bool
) -> None:
    fill(broker, 3)
    stream = broker.streams["orders"]
    warmed: list[tuple[int, int]] = []
    loop = asyncio.get_running_loop()
    started, proceed = asyncio.Event(), asyncio.Event()

    def cold(fd: int, position: int, length: int) -> bool:
        return False

    def make_resident(fd: int, position: int, length: int) -> list[range]:
        loop.call_soon_threadsafe(started.set)
        asyncio.run_coroutine_threadsafe(proceed.wait(), loop).result(10)
        holes = read_pages(fd, position, length)
        warmed.append((position, length))
        return holes

    monkeypatch.setattr("liftlog.server.pull.send_queue.is_resident", cold)
    monkeypatch.setattr("liftlog.server.pull.send_queue.make_resident", make_resident)
    async with pull_server(broker) as (server, address), await RawPull.connect(address) as peer:
        peer.send({"k": "fetch", "i": 1, "s": "orders", "o": 101, "m": 4 * MIB})
        await started.wait()
        if vanish:
            await peer.close()
            await until(lambda: server.connection_count == 0)
            assert stream.log.unreleased, "released while a thread reads the file"
            proceed.set()
            await until(lambda: not stream.log.unreleased)
        else:
            proceed.set()
            answer = await peer.receive()
            assert len(answer["body"]) == sum(length for _, length in warmed) > 3 * MIB
            assert len(warmed) == 4


async def test_shutting_down_tells_whoever_waits(broker: LogBroker) -> None:
    stream = broker.streams["orders"]
    async with pull_server(broker) as (server, address), await RawPull.connect(address) as peer:
        peer.send({"k": "fetch", "i": 1, "s": "orders", "o": 101, "w": 60_000})
        await until(lambda: stream.waiters)
        closing = asyncio.create_task(server.close(grace=5))
        answers = [await peer.receive() for _ in range(2)]
        assert [(answer["i"], answer["n"]) for answer in answers] == [
            (1, "SHUTTING_DOWN"),
            (0, "SHUTTING_DOWN"),
        ]
        await peer.close()
        await closing
        with pytest.raises(OSError):
            await RawPull.connect(address)


async def test_shutting_down_sends_what_was_promised(broker: LogBroker) -> None:
    fill(broker, 8)
    async with pull_server(broker) as (server, address), await RawPull.connect(address) as peer:
        peer.send({"k": "fetch", "i": 1, "s": "orders", "o": 101, "m": 8 * MIB})
        await until(lambda: broker.streams["orders"].log.reads)
        closing = asyncio.create_task(server.close(grace=10))
        answer = await peer.receive()
        assert answer["c"] == 28
        assert (await peer.receive())["n"] == "SHUTTING_DOWN"
        await peer.close()
        await closing


async def test_shutting_down_does_not_wait_for_ever(broker: LogBroker) -> None:
    fill(broker, 8)
    async with pull_server(broker) as (server, address):
        deaf = Deaf(address)
        await deaf.greet()
        await deaf.ask(10)
        await until(lambda: broker.streams["orders"].log.unreleased)
        async with asyncio.timeout(5):
            await server.close(grace=0.1)
        assert server.connection_count == 0
        deaf.sock.close()


@pytest.mark.parametrize("held_back", [False, True])
async def test_a_reset_behind_a_request_is_noticed(broker: LogBroker, held_back: bool) -> None:
    """Also by a connection that is held back, whose socket is not read."""
    fill(broker, 4)
    limits = PullLimits(
        request_timeout_seconds=0.4, max_unsent_bytes=MIB if held_back else 16 * MIB
    )
    async with pull_server(broker, limits=limits) as (server, address):
        client = Deaf(address)
        await client.greet()
        await until(lambda: server.connection_count == 1)
        asked = {"k": "fetch", "i": 3, "s": "orders", "o": 101 + (0 if held_back else 16)}
        for number in range(3, 12):
            client.sock.send(frame(asked | {"i": number, "w": 600_000}))
        if held_back:
            await until(lambda: not is_reading(connections_of(server)[0]))
        # Both arrive before the daemon's loop looks at its sockets again.
        client.sock.send(frame({"k": "cancel", "i": 3}))
        client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.sock.close()
        await until(lambda: server.connection_count == 0)
