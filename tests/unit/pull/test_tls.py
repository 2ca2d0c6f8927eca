"""Peers that do TLS wrongly, slowly or not at all."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.clients.raw_pull import AUTH, HELLO, RawPull, frame
from support.daemons.certificates import Authority
from support.daemons.pull_broker import LogBroker, pull_server
from support.daemons.pull_inside import connections_of, unsent_bytes_of

from liftlog.errors import ConfigError
from liftlog.protocol.limits import MIB
from liftlog.server.pull import PullLimits, PullServer
from liftlog.tls import TlsSession, client_context, server_context


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@asynccontextmanager
async def tls_server(
    broker: LogBroker, authority: Authority, limits: PullLimits | None = None
) -> AsyncIterator[tuple[PullServer, int]]:
    pair = authority.issue("daemon")
    context = server_context(pair.cert, pair.key)
    async with pull_server(broker, listen="tls://127.0.0.1:0", limits=limits, tls=context) as (
        server,
        address,
    ):
        yield server, int(address.rsplit(":", 1)[1])


async def raw(port: int) -> RawPull:
    return await RawPull.connect(f"tcp://127.0.0.1:{port}", hello=False)


async def until_idle(server: PullServer) -> None:
    async with asyncio.timeout(10):
        while server.connection_count:
            await asyncio.sleep(0.001)


class Secured:
    """A TLS client whose bytes on the wire a test holds in its hands."""

    def __init__(self, peer: RawPull, authority: Authority) -> None:
        self.peer = peer
        self.session = TlsSession(client_context(authority.ca), hostname="127.0.0.1")

    async def shake(self) -> None:
        while not self.session.handshake():
            self.flush()
            self.session.feed(await self.peer.reader.read(65536))
        self.flush()

    def flush(self) -> None:
        self.peer.writer.write(self.session.outgoing.read())

    def send(self, *messages: object) -> None:
        self.session.write(b"".join(map(frame, messages)))
        self.flush()

    async def receive(self, size: int) -> bytes:
        """At least `size` bytes, or all until the end."""
        got, view = b"", memoryview(bytearray(65536))
        async with asyncio.timeout(10):
            while len(got) < size:
                received = self.session.read_into(view)
                if received is None:
                    break
                got += view[:received]
                if not received:
                    data = await self.peer.reader.read(65536)
                    if not data:
                        break
                    self.session.feed(data)
        return got


async def test_more_requests_at_once_than_one_read_takes(
    broker: LogBroker, authority: Authority
) -> None:
    """What was decrypted and not yet handled does not wait for more to come from the socket."""
    count = 12_000
    async with tls_server(broker, authority) as (_, port):
        peer = await raw(port)
        client = Secured(peer, authority)
        await client.shake()
        client.send(HELLO, AUTH)
        greeted = b""
        while b"welcome" not in greeted:
            greeted += await client.receive(1)
        pings = [{"k": "ping", "i": i} for i in range(1, count + 1)]
        client.send(*pings)
        pongs = sum(len(frame({"k": "pong", "i": ping["i"]})) for ping in pings)
        answered = await client.receive(pongs)
        assert answered.count(b"pong") == count
        await peer.close()


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01"])
async def test_a_handshake_that_does_not_come_ends_with_the_time_for_the_hello(
    broker: LogBroker, authority: Authority, sent: bytes
) -> None:
    limits = PullLimits(hello_timeout_seconds=0.1)
    async with tls_server(broker, authority, limits) as (server, port):
        peer = await raw(port)
        peer.send_bytes(sent)
        assert await peer.closed() == b""
        assert server.connection_count == 0
        await peer.close()


async def test_a_hello_that_does_not_come_after_the_handshake(
    broker: LogBroker, authority: Authority
) -> None:
    limits = PullLimits(hello_timeout_seconds=0.2)
    async with tls_server(broker, authority, limits) as (server, port):
        peer = await raw(port)
        client = Secured(peer, authority)
        await client.shake()
        assert b"TIMEOUT" in await client.receive(1 << 20)  # told why, then the end
        await peer.close()
        await until_idle(server)


@pytest.mark.parametrize("sent", [frame(HELLO), b"GET / HTTP/1.1\r\n\r\n", b"\0" * 100_000])
async def test_what_is_no_tls(
    broker: LogBroker, authority: Authority, sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with tls_server(broker, authority) as (server, port):
        peer = await raw(port)
        with caplog.at_level(logging.WARNING, "liftlog.server.pull"):
            peer.send_bytes(sent)
            assert len(await peer.closed()) <= 7  # an alert at most
        assert "tls-handshake-failed" in caplog.text
        await until_idle(server)
        await peer.close()


async def test_the_end_of_the_daemon_does_not_wait_for_handshakes(
    broker: LogBroker, authority: Authority
) -> None:
    loop = asyncio.get_running_loop()
    pair = authority.issue("daemon")
    server = PullServer(broker, tls=server_context(pair.cert, pair.key))
    (address,) = await server.start(["tls://127.0.0.1:0"])
    peers = [await raw(int(address.rsplit(":", 1)[1])) for _ in range(5)]
    async with asyncio.timeout(10):
        while server.connection_count < 5:
            await asyncio.sleep(0.001)
    started = loop.time()
    await server.close(grace=30)
    assert loop.time() - started < 5
    for peer in peers:
        assert await peer.closed() == b""
        await peer.close()


async def test_bytes_changed_on_the_way_end_the_connection(
    broker: LogBroker, authority: Authority
) -> None:
    async with tls_server(broker, authority) as (server, port):
        peer = await raw(port)
        client = Secured(peer, authority)
        await client.shake()
        client.session.write(frame(HELLO))
        record = bytearray(client.session.outgoing.read())
        record[-1] ^= 1
        peer.send_bytes(bytes(record))
        assert b"challenge" not in await peer.closed()
        await until_idle(server)
        await peer.close()


async def test_a_hello_that_comes_byte_by_byte(broker: LogBroker, authority: Authority) -> None:
    async with tls_server(broker, authority) as (_, port):
        peer = await raw(port)
        client = Secured(peer, authority)
        await client.shake()
        client.session.write(frame(HELLO) + frame(AUTH))
        for byte in client.session.outgoing.read():
            peer.send_bytes(bytes([byte]))
            await peer.writer.drain()
        assert b"challenge" in await client.receive(10)
        await peer.close()


async def test_a_client_that_stops_reading_costs_bounded_memory_and_is_cut_off(
    broker: LogBroker, authority: Authority
) -> None:
    log = broker.streams["orders"].log
    for _ in range(8):
        broker.streams["orders"].append([b"x" * (MIB // 4)] * 4)
    limits = PullLimits(max_unsent_bytes=2 * MIB, write_stall_seconds=0.3)
    async with tls_server(broker, authority, limits) as (server, port):
        peer = await raw(port)
        client = Secured(peer, authority)
        await client.shake()
        client.send(HELLO, AUTH)
        greeted = b""
        while b"welcome" not in greeted:
            greeted += await client.receive(1)
        fetch = {"k": "fetch", "s": "orders", "o": 101, "m": MIB}
        client.send(*[fetch | {"i": i} for i in range(10, 60)])
        peer.writer.transport.pause_reading()
        async with asyncio.timeout(10):
            while not log.unreleased:
                await asyncio.sleep(0.001)
        (connection,) = connections_of(server)
        assert unsent_bytes_of(connection) < 2 * MIB + 1.1 * MIB
        await until_idle(server)
        assert not log.unreleased
        await peer.close()


async def test_a_connection_too_many_is_closed(broker: LogBroker, authority: Authority) -> None:
    limits = PullLimits(max_connections=1)
    async with tls_server(broker, authority, limits) as (server, port):
        first = await raw(port)
        client = Secured(first, authority)
        await client.shake()
        client.send(HELLO, AUTH)
        greeted = b""
        while b"welcome" not in greeted:
            greeted += await client.receive(1)
        second = await raw(port)
        assert await second.closed() == b""
        assert server.services.counters.connections_refused_total == 1
        client.send({"k": "ping", "i": 3})
        while b"pong" not in greeted:
            greeted += await client.receive(1)
        for peer in (first, second):
            await peer.close()


async def test_renegotiation_is_refused(broker: LogBroker, authority: Authority) -> None:
    pair = authority.issue("daemon")
    context = server_context(pair.cert, pair.key)
    assert context.options & ssl.OP_NO_RENEGOTIATION
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2


async def test_an_address_without_certificate_is_refused(broker: LogBroker) -> None:
    server = PullServer(broker)
    with pytest.raises(ConfigError, match=r"pull\.tls\.cert"):
        await server.start(["tcp://127.0.0.1:0", "tls://127.0.0.1:0"])
    await server.close()
