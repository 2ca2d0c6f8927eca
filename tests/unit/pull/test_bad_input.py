"""Bad input over the socket: its sender gets a coded error, and no other client notices."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import msgpack
import pytest
from support.clients.raw_pull import AUTH, HELLO, RawPull, frame
from support.daemons.pull_broker import LogBroker, pull_server

from liftlog.protocol.limits import WireLimits
from liftlog.server.pull import PullLimits


async def last_words(peer: RawPull) -> str:
    """The name of the error that the server ends the connection with."""
    answer = await peer.receive()
    assert answer["k"] == "error"
    assert await peer.closed() == b""
    name: str = answer["n"]
    return name


async def still_served(witness: RawPull) -> None:
    witness.send({"k": "fetch", "i": 1, "s": "orders", "o": 1})
    answer = await witness.receive()
    assert (answer["k"], answer["c"]) == ("data", 100)


DEEP: Any = 0
for _ in range(600):
    DEEP = [DEEP]

BEFORE_AUTH = [
    (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "BAD_REQUEST"),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500), "BAD_REQUEST"),
    (b'CONNECT {"verbose":false}\r\nPING\r\n', "BAD_REQUEST"),
    (b"\xff" * 64, "LIMIT_EXCEEDED"),
    (struct.pack("<I", 2**31), "LIMIT_EXCEEDED"),
    (struct.pack("<I", 4097), "LIMIT_EXCEEDED"),
    (struct.pack("<I", 0), "BAD_REQUEST"),
    (struct.pack("<I", 4) + b"\xc1\xc1\xc1\xc1", "BAD_REQUEST"),
    (frame([1, 2, 3]), "BAD_REQUEST"),
    (frame({"k": "hello", "i": 1, "x": DEEP}), "BAD_REQUEST"),
    (struct.pack("<I", 1000) + b"\x91" * 1000, "BAD_REQUEST"),
    (struct.pack("<I", 8) + b"\x81\xa1k\xdd\xff\xff\xff\xff", "BAD_REQUEST"),
    (frame({**HELLO, "v": [2]}), "UNSUPPORTED_VERSION"),
    (frame({**HELLO, "v": "1"}), "BAD_REQUEST"),
    (frame({**HELLO, "n": b""}), "BAD_REQUEST"),
    (frame({**HELLO, "b": 10}), "LIMIT_EXCEEDED"),
    (frame({"k": "ping", "i": 1}), "UNAUTHENTICATED"),
    (frame({"k": "fetch", "i": 1, "s": "orders", "o": 1}), "UNAUTHENTICATED"),
    (frame(AUTH), "UNAUTHENTICATED"),
]


@pytest.mark.parametrize(("data", "name"), BEFORE_AUTH)
async def test_before_authentication(broker: LogBroker, data: bytes, name: str) -> None:
    async with pull_server(broker) as (_, address), await RawPull.connect(address) as witness:
        async with await RawPull.connect(address, hello=False) as peer:
            peer.send_bytes(data)
            assert await last_words(peer) == name
        await still_served(witness)


AFTER_AUTH = [
    (b"\xff" * 64, "LIMIT_EXCEEDED"),
    (struct.pack("<I", 2**20 + 1), "LIMIT_EXCEEDED"),
    (frame({"k": "create", "i": 3, "s": "x", "c": {"subject": DEEP}}), "BAD_REQUEST"),
    (frame({"k": "ping"}), "BAD_REQUEST"),
    (frame({"k": "ping", "i": -1}), "BAD_REQUEST"),
    (frame({"k": 7, "i": 1}), "BAD_REQUEST"),
    (frame({1: 2}), "BAD_REQUEST"),
    (struct.pack("<I", 7) + b"\x81\xa1k\xa3\xff\xfe\xfd", "BAD_REQUEST"),
    (frame({"k": "ping", "i": 3})[:-2] + frame({"k": "ping", "i": 3}), "BAD_REQUEST"),
]


@pytest.mark.parametrize(("data", "name"), AFTER_AUTH)
async def test_after_authentication(broker: LogBroker, data: bytes, name: str) -> None:
    async with pull_server(broker) as (server, address), await RawPull.connect(address) as witness:
        async with await RawPull.connect(address) as peer:
            peer.send_bytes(data)
            assert await last_words(peer) == name
        await still_served(witness)
        assert server.services.counters.refusals_total[name] == 1


REFUSED = [
    ({"k": "dance"}, "UNKNOWN_REQUEST"),
    ({"k": "hello", "v": [1], "n": b"n" * 16}, "UNKNOWN_REQUEST"),
    ({"k": "fetch"}, "BAD_REQUEST"),
    ({"k": "fetch", "s": "orders"}, "BAD_REQUEST"),
    ({"k": "fetch", "s": "orders", "o": 1, "t": 1}, "BAD_REQUEST"),
    ({"k": "fetch", "s": "orders", "o": "middle"}, "BAD_REQUEST"),
    ({"k": "fetch", "s": "orders", "o": -1}, "BAD_REQUEST"),
    ({"k": "fetch", "s": "orders", "o": 2**64 - 1}, "BAD_REQUEST"),
    ({"k": "fetch", "s": b"orders", "o": 1}, "BAD_REQUEST"),
    ({"k": "fetch", "s": "nothing", "o": 1}, "STREAM_NOT_FOUND"),
    ({"k": "describe", "s": "nothing"}, "STREAM_NOT_FOUND"),
    ({"k": "delete", "s": "nothing"}, "STREAM_NOT_FOUND"),
    ({"k": "create", "s": "x"}, "BAD_REQUEST"),
    ({"k": "create", "s": "x", "c": []}, "BAD_REQUEST"),
    ({"k": "create", "s": "_offsets", "c": {}}, "INVALID_ARGUMENT"),
    ({"k": "delete", "s": "_offsets"}, "INVALID_ARGUMENT"),
]


@pytest.mark.parametrize(("request_map", "name"), REFUSED)
async def test_a_refused_request_leaves_the_connection_usable(
    broker: LogBroker, request_map: dict[str, Any], name: str
) -> None:
    async with pull_server(broker) as (_, address), await RawPull.connect(address) as peer:
        peer.send({**request_map, "i": 9})
        answer = await peer.receive()
        assert (answer["k"], answer["i"], answer["n"]) == ("error", 9, name)
        await still_served(peer)


@pytest.mark.parametrize("kind", ["fetch", "create", "describe", "delete"])
@pytest.mark.parametrize("name", ["../x", "a/b", "", ".", "x" * 200, "a\0b", "orders\n", "/etc"])
async def test_path_tricks_in_names(broker: LogBroker, kind: str, name: str) -> None:
    async with pull_server(broker) as (_, address), await RawPull.connect(address) as peer:
        peer.send({"k": kind, "i": 3, "s": name, **({"o": 1} if kind == "fetch" else {"c": {}})})
        assert (await peer.receive())["n"] == "INVALID_ARGUMENT"
        await still_served(peer)
        assert list(broker.streams) == ["orders"]


@pytest.mark.parametrize("part", [b"", b"\x10", frame(HELLO)[:-1], frame(HELLO)])
async def test_a_slow_hello_is_timed_out(broker: LogBroker, part: bytes) -> None:
    limits = PullLimits(hello_timeout_seconds=0.05)
    async with pull_server(broker, limits=limits) as (server, address):
        async with await RawPull.connect(address, hello=False) as peer:
            peer.send_bytes(part)
            answer = await peer.receive()
            if answer["k"] == "challenge":
                answer = await peer.receive()
            assert answer["n"] == "TIMEOUT"
            await peer.closed()
        async with asyncio.timeout(5):
            while server.connection_count:
                await asyncio.sleep(0.001)


@pytest.mark.parametrize("keep", [1, 3, 4, 20])
async def test_half_a_frame_and_gone(broker: LogBroker, keep: int) -> None:
    async with pull_server(broker) as (server, address), await RawPull.connect(address) as witness:
        peer = await RawPull.connect(address)
        peer.send_bytes(frame({"k": "fetch", "i": 1, "s": "orders", "o": 1})[:keep])
        await peer.close()
        await still_served(witness)
        async with asyncio.timeout(5):
            while server.connection_count > 1:
                await asyncio.sleep(0.001)


async def test_more_connections_than_allowed(broker: LogBroker) -> None:
    async with pull_server(broker, limits=PullLimits(max_connections=1)) as (server, address):
        async with await RawPull.connect(address) as witness:
            async with await RawPull.connect(address, hello=False) as peer:
                assert await last_words(peer) == "LIMIT_EXCEEDED"
            await still_served(witness)
            assert server.services.counters.connections_refused_total == 1
        async with asyncio.timeout(5):
            while server.connection_count:
                await asyncio.sleep(0.001)
        async with await RawPull.connect(address) as peer:
            await still_served(peer)


async def test_past_the_bound_on_requests_the_socket_is_not_read(broker: LogBroker) -> None:
    limits = PullLimits(wire=WireLimits(max_in_flight=3))
    stream = broker.streams["orders"]
    async with pull_server(broker, limits=limits) as (_, address):
        async with await RawPull.connect(address) as peer:
            parked = {"k": "fetch", "s": "orders", "o": 101, "w": 60_000}
            peer.send_bytes(b"".join(frame({**parked, "i": i}) for i in range(1, 4)))
            peer.send({"k": "ping", "i": 4})
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await peer.reader.readexactly(1)
            stream.append([b"new"])
            answers = [await peer.receive() for _ in range(4)]
            assert [answer["i"] for answer in answers] == [1, 2, 3, 4]


async def test_a_cancel_is_heard_at_the_bound_on_requests(broker: LogBroker) -> None:
    limits = PullLimits(wire=WireLimits(max_in_flight=3))
    async with pull_server(broker, limits=limits) as (_, address):
        async with await RawPull.connect(address) as peer:
            parked = {"k": "fetch", "s": "orders", "o": 101, "w": 60_000}
            peer.send_bytes(b"".join(frame({**parked, "i": i}) for i in range(1, 4)))
            for i in (3, 1, 2):
                peer.send({"k": "cancel", "i": i})
                answer = await peer.receive()
                assert (answer["i"], answer["n"]) == (i, "CANCELLED")
                peer.send({**parked, "i": i + 10})  # the bound is reached again
            peer.send({"k": "ping", "i": 4})
            peer.send({"k": "cancel", "i": 11})  # waits with what it stands behind
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await peer.reader.readexactly(1)
            broker.streams["orders"].append([b"new"])
            answers = sorted([(await peer.receive())["i"] for _ in range(4)])
            assert answers == [4, 11, 12, 13]


async def test_a_flood_of_requests_is_answered_in_full(broker: LogBroker) -> None:
    async with pull_server(broker) as (_, address), await RawPull.connect(address) as peer:
        peer.send_bytes(b"".join(frame({"k": "ping", "i": i}) for i in range(1, 5001)))
        assert [(await peer.receive())["i"] for _ in range(5000)] == list(range(1, 5001))


async def test_a_long_request_within_the_limit(broker: LogBroker) -> None:
    async with pull_server(broker) as (_, address), await RawPull.connect(address) as peer:
        settings = {"subject": "a.>", "note": "x" * 500_000}
        data = msgpack.packb({"k": "create", "i": 1, "s": "big", "c": settings})
        peer.send_bytes(struct.pack("<I", len(data)))
        for at in range(0, len(data), 70_000):
            peer.send_bytes(data[at : at + 70_000])
        answer = await peer.receive()
        assert (answer["k"], answer["d"]["settings"]) == ("stream", settings)
