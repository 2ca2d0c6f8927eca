"""What clients can make the daemon hold: half frames, places, answers that they do not take."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

import msgpack
import pytest
from support.clients.raw_pull import AUTH, HELLO, RawPull, frame
from support.daemons.local_checkpoints import serve_checkpoints
from support.daemons.logins import policy
from support.daemons.pull_broker import LogBroker, pull_server
from support.daemons.pull_inside import connections_of, held_of, in_flight_of, is_reading

from acl.policy import Policy
from liftlog.log import Log
from liftlog.protocol.limits import MIB, WireLimits
from liftlog.server.checkpoints import Checkpoints
from liftlog.server.checkpoints.checkpoint import Stored
from liftlog.server.pull import PullLimits, PullServer
from liftlog.server.pull.connection import PullConnection
from liftlog.server.pull.limits import HELD_FRAMES_BYTES


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.001)


def newest(server: PullServer) -> PullConnection:
    return connections_of(server)[-1]


async def still_served(witness: RawPull) -> None:
    witness.send({"k": "fetch", "i": 1, "s": "orders", "o": 1})
    assert (await witness.receive())["c"] == 100


# --- half frames ---


async def test_an_announced_length_costs_nothing_until_the_bytes_come(broker: LogBroker) -> None:
    async with pull_server(broker) as (server, address), await RawPull.connect(address) as peer:
        peer.send_bytes(struct.pack("<I", MIB) + b"x" * 10_000)
        await until(lambda: held_of(newest(server))[0] == 10_004)
        assert held_of(newest(server))[1] < 32_768


async def test_a_request_that_does_not_arrive_is_timed_out(broker: LogBroker) -> None:
    limits = PullLimits(request_timeout_seconds=0.2)
    async with pull_server(broker, limits=limits) as (server, address):
        async with await RawPull.connect(address) as witness:
            async with await RawPull.connect(address) as peer:
                peer.send({"k": "ping", "i": 1})
                assert (await peer.receive())["k"] == "pong"
                peer.send_bytes(frame({"k": "ping", "i": 2})[:-1])
                answer = await peer.receive()
                assert (answer["n"], answer["i"]) == ("TIMEOUT", 0)
                assert await peer.closed() == b""
            await until(lambda: server.connection_count == 1)
            await still_served(witness)


async def test_whole_requests_and_waiting_are_not_timed_out(broker: LogBroker) -> None:
    limits = PullLimits(request_timeout_seconds=0.1)
    async with pull_server(broker, limits=limits) as (_, address):
        async with await RawPull.connect(address) as peer:
            peer.send({"k": "fetch", "i": 1, "s": "orders", "o": 101, "w": 500})
            assert (await peer.receive())["i"] == 1
            await still_served(peer)


# --- places ---


async def test_those_who_say_nothing_make_room(broker: LogBroker) -> None:
    async with pull_server(broker, limits=PullLimits(max_connections=3)) as (server, address):
        async with await RawPull.connect(address) as witness:
            silent = [await RawPull.connect(address, hello=False) for _ in range(2)]
            silent[1].send(HELLO)
            assert (await silent[1].receive())["k"] == "challenge"
            for _ in range(10):  # each needs a place, and none is turned away
                async with await RawPull.connect(address) as peer:
                    await still_served(peer)
                await until(lambda: server.connection_count < 3)
            assert await silent[0].closed() == b""
            await still_served(witness)
            assert server.services.counters.connections_refused_total == 0
            for one in silent:
                await one.close()


# --- answers that clients do not take ---


UNKNOWN = [frame({"k": "x" * 40, "i": i}) for i in range(1, 1001)]


class Deaf:
    """Asks and does not read, with a small buffer to receive into."""

    def __init__(self, peer: RawPull) -> None:
        self.peer = peer
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        peer.writer.transport.set_write_buffer_limits(high=1 << 30)

    @classmethod
    async def connect(cls, server: PullServer, address: str) -> Deaf:
        host, port = address.removeprefix("tcp://").rsplit(":", 1)
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, (host, int(port)))
        peer = RawPull(*await asyncio.open_connection(sock=sock))
        peer.send(HELLO)
        await peer.receive()
        peer.send(AUTH)
        await peer.receive()
        # So that little of a flood vanishes in the kernel's buffers.
        sent_from = newest(server)._transport._sock  # type: ignore[attr-defined]
        sent_from.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16_384)
        return cls(peer)

    def flood(self, thousands: int) -> None:
        """Each answer is an error of about 150 bytes."""
        self.peer.send_bytes(b"".join(UNKNOWN) * thousands)


async def test_a_flood_of_small_requests_of_a_deaf_client_is_bounded(broker: LogBroker) -> None:
    async with pull_server(broker) as (server, address):
        async with await RawPull.connect(address) as witness:
            deaf = await Deaf.connect(server, address)
            connection = newest(server)
            deaf.flood(10)
            await until(lambda: connection.memory_bytes >= HELD_FRAMES_BYTES)
            await still_served(witness)
            assert not is_reading(connection)
            assert connection.memory_bytes < HELD_FRAMES_BYTES + 1000
            assert server.services.memory.used_bytes == connection.memory_bytes
            assert len(connection._queue._items) < HELD_FRAMES_BYTES / 64
            deaf.peer.writer.transport.abort()
            await until(lambda: server.connection_count == 1)
            assert server.services.memory.used_bytes == 0


async def test_a_client_that_begins_to_read_gets_everything(broker: LogBroker) -> None:
    async with pull_server(broker) as (server, address):
        deaf = await Deaf.connect(server, address)
        connection = newest(server)
        deaf.flood(10)
        await until(lambda: connection.memory_bytes >= HELD_FRAMES_BYTES)
        deaf.peer.writer.transport.resume_reading()  # type: ignore[attr-defined]
        ids = [(await deaf.peer.receive())["i"] for _ in range(10_000)]
        assert ids == list(range(1, 1001)) * 10
        await until(lambda: server.services.memory.used_bytes == 0)
        await deaf.peer.close()


async def test_all_together_are_bounded_too(
    broker: LogBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """Each holds less than it may; the one with most is closed, and no client that reads is."""
    limits = PullLimits(max_unsent_memory_bytes=3 * HELD_FRAMES_BYTES)
    async with pull_server(broker, limits=limits) as (server, address):
        async with await RawPull.connect(address) as witness:
            deaf = [await Deaf.connect(server, address) for _ in range(6)]
            for one in deaf:
                one.flood(10)
            await until(lambda: server.connection_count <= 4)
            assert server.services.memory.used_bytes <= 3 * HELD_FRAMES_BYTES
            assert "take too much memory" in caplog.text
            await still_served(witness)
            for one in deaf:
                one.peer.writer.transport.abort()
            await until(lambda: server.connection_count == 1)
            assert server.services.memory.used_bytes == 0


@pytest.mark.parametrize("kind", ["list", "checkpoints"])
async def test_a_flood_of_questions_takes_one_turn_each(
    broker: LogBroker, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """So a client that asks for anything else waits for at most one of them."""
    turn, asked_in = 0, []
    serve_checkpoints(broker)
    checkpoints: Checkpoints = broker.checkpoints  # type: ignore[attr-defined]
    owner, name = (broker, "list_streams") if kind == "list" else (checkpoints, "page")
    answer = getattr(owner, name)

    def counted(*arguments: Any, **options: Any) -> Any:
        asked_in.append(turn)
        ends = time.thread_time() + 0.0011
        while time.thread_time() < ends:  # those that take less than that together share a turn
            pass
        return answer(*arguments, **options)

    monkeypatch.setattr(owner, name, counted)
    async with pull_server(broker) as (_, address):
        peers = [await RawPull.connect(address) for _ in range(5)]
        for peer in peers:
            peer.send_bytes(b"".join(frame({"k": kind, "i": i}) for i in range(1, 101)))
        async with asyncio.timeout(20):
            while len(asked_in) < 500:
                await asyncio.sleep(0)
                turn += 1
        assert len(set(asked_in)) == 500
        for peer in peers:
            assert sorted([(await peer.receive())["i"] for _ in range(100)]) == [*range(1, 101)]
            await peer.close()


async def test_one_thread_at_a_time_measures(
    broker: LogBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search through sketches takes up to 0.2 s of a core; several slow the event loop down."""
    measuring, most, extents = 0, 0, Log.extents

    def counted(*arguments: Any) -> Any:
        nonlocal measuring, most
        measuring += 1
        most = max(most, measuring)
        time.sleep(0.02)
        measuring -= 1
        return extents(*arguments)

    monkeypatch.setattr(Log, "extents", counted)
    async with pull_server(broker) as (_, address):
        peers = [await RawPull.connect(address) for _ in range(3)]
        asked = {"k": "extents", "s": "orders", "o": 1, "z": 4096, "fk": b"key"}
        for peer in peers:
            peer.send_bytes(b"".join(frame({**asked, "i": i}) for i in range(1, 4)))
        for peer in peers:
            assert {(await peer.receive())["k"] for _ in range(3)} == {"measured"}
            await peer.close()
    assert most == 1


async def test_an_answer_that_no_frame_holds_is_an_error_and_not_silence(
    broker: LogBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.settings["orders"]["subject"] = "half a pair: \ud800"
    async with pull_server(broker) as (_, address), await RawPull.connect(address) as peer:
        peer.send({"k": "describe", "i": 1, "s": "orders"})
        async with asyncio.timeout(5):
            assert (await peer.receive())["n"] == "INTERNAL"
        peer.send({"k": "describe", "i": 1, "s": "orders"})  # its id is free again
        async with asyncio.timeout(5):
            assert (await peer.receive())["n"] == "INTERNAL"


# --- checkpoints of others ---


async def test_the_listing_of_checkpoints_tells_nothing_of_others(broker: LogBroker) -> None:
    """Neither in what it lists nor in where it goes on."""
    serve_checkpoints(broker)
    table = broker.checkpoints.table  # type: ignore[attr-defined]
    stored = Stored(5, 1, "i1", 1)
    secret = {(f"secret-{n:05}", "payments"): stored for n in range(25_000)}
    own = {(f"own-{n:05}", "orders"): stored for n in range(2_500)}
    table.apply(secret | own | {("zzz", "orders"): stored, ("zzzz", "payments"): stored})
    known = Policy.load(
        "principals: {anonymous: {}}\n"
        "roles: {own: [{allow: [read], streams: [orders]}]}\n"
        "bindings: {anonymous: [own]}\n"
    )
    async with pull_server(broker, policy=known) as (_, address):
        async with await RawPull.connect(address) as peer:
            found, after, pages = [], None, 0
            while pages == 0 or after is not None:
                peer.send({"k": "checkpoints", "i": 1, "a": after})
                answer = await peer.receive()
                assert b"secret" not in msgpack.packb(answer)
                assert b"payments" not in msgpack.packb(answer)
                found += [one["consumer"] for one in answer["d"]]
                after, pages = answer.get("n"), pages + 1
    assert found == [f"own-{n:05}" for n in range(2_500)] + ["zzz"]
    assert pages == 3


# --- requests that wait ---


def waiting(request_id: int, size_bytes: int) -> dict[str, Any]:
    """A fetch that waits for records, with a filter of that size."""
    keys = [bytes([number]) * 50_000 for number in range(size_bytes // 50_000)]
    return {"k": "fetch", "i": request_id, "s": "orders", "o": 101, "w": 60_000, "fk": keys}


async def test_what_waiting_requests_take_is_counted_and_given_back(broker: LogBroker) -> None:
    async with pull_server(broker) as (server, address), await RawPull.connect(address) as peer:
        connection = newest(server)
        peer.send(waiting(1, 900_000))
        await until(lambda: connection.memory_bytes > 900_000)
        assert connection.memory_bytes < 903_000  # neither the frame nor its buffer is kept beside
        assert server.services.memory.used_bytes == connection.memory_bytes
        peer.send(waiting(2, 500_000))
        await until(lambda: connection.memory_bytes > 1_400_000)
        peer.send({"k": "cancel", "i": 1})
        assert (await peer.receive())["n"] == "CANCELLED"
        await until(lambda: connection.memory_bytes < 503_000)
        broker.streams["orders"].append([b"new"], keys=[bytes(50_000)])
        assert (await peer.receive())["i"] == 2
        await until(lambda: server.services.memory.used_bytes == 0)


async def test_many_values_count_beside_their_bytes(broker: LogBroker) -> None:
    """Each key of two bytes takes a Python object."""
    async with pull_server(broker) as (server, address), await RawPull.connect(address) as peer:
        keys = [number.to_bytes(2, "big") for number in range(1000)]
        peer.send({**waiting(1, 0), "fk": keys})
        await until(lambda: newest(server).memory_bytes > 64_000)


async def test_waiting_requests_of_a_connection_are_bounded(broker: LogBroker) -> None:
    limits = PullLimits(max_request_memory_bytes=2_000_000)
    async with pull_server(broker, limits=limits) as (server, address):
        async with await RawPull.connect(address) as peer:
            peer.send(waiting(1, 900_000))
            peer.send(waiting(2, 900_000))
            peer.send(waiting(3, 900_000))
            answer = await peer.receive()
            assert (answer["i"], answer["n"]) == (3, "LIMIT_EXCEEDED")
            assert "pull.max_request_memory_bytes" in answer["h"]
            await still_served_besides(peer)
            peer.send({"k": "cancel", "i": 1})
            assert (await peer.receive())["n"] == "CANCELLED"
            peer.send(waiting(3, 900_000))  # there is room again
            await until(lambda: newest(server).memory_bytes > 1_800_000)


async def still_served_besides(peer: RawPull) -> None:
    peer.send({"k": "ping", "i": 99})
    assert (await peer.receive())["k"] == "pong"


async def test_one_request_alone_is_within_the_bound_of_its_connection(broker: LogBroker) -> None:
    limits = PullLimits(max_request_memory_bytes=1000)
    async with pull_server(broker, limits=limits) as (server, address):
        async with await RawPull.connect(address) as peer:
            peer.send(waiting(1, 900_000))
            await until(lambda: newest(server).memory_bytes > 900_000)


async def test_waiting_requests_of_a_principal_are_bounded_over_its_connections(
    broker: LogBroker,
) -> None:
    limits = PullLimits(max_request_memory_per_principal_bytes=1_000_000)
    small = [number.to_bytes(12, "big") for number in range(1000)]  # 78 KB are counted for them
    async with pull_server(broker, limits=limits, policy=policy("anonymous: {}")) as (
        server,
        address,
    ):
        peers = [await RawPull.connect(address) for _ in range(4)]
        use = in_flight_of(server)["anonymous"]
        peers[0].send(waiting(1, 850_000))
        await until(lambda: use.count == 1)
        peers[1].send({**waiting(1, 0), "fk": small})
        await until(lambda: use.size_bytes > 900_000)
        peers[2].send({**waiting(1, 0), "fk": small})
        answer = await peers[2].receive()
        assert (answer["i"], answer["n"]) == (1, "LIMIT_EXCEEDED")
        assert "pull.max_request_memory_per_principal_bytes" in answer["h"]
        await still_served(peers[2])
        # A frame that is still arriving counts too.
        peers[3].send_bytes(frame(waiting(1, 900_000))[:-1])
        answer = await peers[3].receive()
        assert (answer["i"], answer["n"]) == (0, "LIMIT_EXCEEDED")
        for peer in peers:
            await peer.close()
        await until(lambda: server.connection_count == 0)
        assert (use.size_bytes, server.services.memory.used_bytes) == (0, 0)


async def test_waiting_requests_of_all_are_bounded(broker: LogBroker) -> None:
    """Without principals: the connection with most is closed, one that waits for little stays."""
    limits = PullLimits(max_unsent_memory_bytes=3_000_000)
    async with pull_server(broker, limits=limits) as (server, address):
        async with await RawPull.connect(address) as witness:
            witness.send({"k": "fetch", "i": 7, "s": "orders", "o": 101, "w": 60_000})
            peers = [await RawPull.connect(address) for _ in range(6)]
            for peer in peers:
                peer.send(waiting(1, 900_000))
            await until(lambda: server.connection_count <= 4)
            assert server.services.memory.used_bytes <= 3_000_000
            for peer in peers:
                peer.writer.transport.abort()
            await until(lambda: server.connection_count == 1)
            broker.streams["orders"].append([b"new"])
            assert (await witness.receive())["i"] == 7


async def test_a_request_beyond_the_number_in_flight_counts(broker: LogBroker) -> None:
    limits = PullLimits(wire=WireLimits(max_in_flight=1))
    async with pull_server(broker, limits=limits) as (server, address):
        async with await RawPull.connect(address) as peer:
            peer.send(waiting(1, 500_000))
            peer.send(waiting(2, 900_000))
            await until(lambda: newest(server).memory_bytes > 1_400_000)
            broker.streams["orders"].append([b"new"], keys=[bytes(50_000)])
            assert (await peer.receive())["i"] == 1
            assert (await peer.receive())["i"] == 2
            await until(lambda: server.services.memory.used_bytes == 0)
