from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from support.clients.opened_client import router_of
from support.daemons.pull_broker import LogBroker, pull_server
from support.daemons.pull_inside import connections_of

from liftlog import errors
from liftlog.client import connect, connect_sync
from liftlog.client.connecting.target import Address
from liftlog.protocol.frames import encode_frame

Opener = Callable[..., Awaitable[Any]]


async def open_async(address: str, **options: Any) -> Any:
    return await connect(address, **options)


async def open_sync(address: str, **options: Any) -> Any:
    return await asyncio.to_thread(connect_sync, address, **options)


@pytest.fixture(params=[open_async, open_sync])
def opener(request: pytest.FixtureRequest) -> Opener:
    opener: Opener = request.param
    return opener


async def ping(client: Any) -> None:
    if asyncio.iscoroutinefunction(client.ping):
        await client.ping()
    else:
        await asyncio.to_thread(client.ping)


async def close(client: Any) -> None:
    if asyncio.iscoroutinefunction(client.close):
        await client.close()
    else:
        client.close()


def test_addresses() -> None:
    assert Address.parse("tcp://h:1") == Address("tcp://h:1", "h", 1)
    assert Address.parse("tcp://h") == Address("tcp://h", "h", 9292)
    assert Address.parse("tcp://[::1]:7/").host == "::1"
    assert Address.parse("unix:///run/l.sock").path == "/run/l.sock"


@pytest.mark.parametrize(
    "address",
    [
        *("", "localhost:9292", "http://h:1", "tcp://", "unix://rel", "tcp://h/x"),
        *("tcp://h:x", "tcp://h:0", "tcp://h:1?tls=on", "tls://h:1#x"),
    ],
)
async def test_a_malformed_address(opener: Opener, address: str) -> None:
    with pytest.raises(errors.InvalidArgument, match="not the address"):
        await opener(address)


async def test_an_address_with_a_secret_in_it(opener: Opener) -> None:
    """Addresses are shown in errors and logs, so even this error does not repeat it."""
    with pytest.raises(errors.InvalidArgument, match="holds no login") as raised:
        await opener("tcp://alice:s3cret@127.0.0.1:9292")
    assert "s3cret" not in f"{raised.value} {raised.value.hint}"


async def test_an_address_that_never_answers_leaves_time_for_the_next(
    opener: Opener, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Like a host name whose first address does not answer."""
    good = ("127.0.0.1", int(address.rpartition(":")[2]))

    def resolve_blocking(*asked: Any) -> list[tuple[int, Any]]:
        return [(socket.AF_INET, silent.getsockname()), (socket.AF_INET, good)]

    async def resolve(*asked: Any) -> list[tuple[int, Any]]:
        return resolve_blocking()

    monkeypatch.setattr("liftlog.client.aio.dialing.resolve", resolve)
    monkeypatch.setattr("liftlog.client.blocking.dialing.resolve", resolve_blocking)
    with socket.socket() as silent, ExitStack() as waiting:
        silent.bind(("127.0.0.1", 0))
        silent.listen(0)
        for _ in range(2):  # its queue is full then, and who knocks hears nothing
            knocking = waiting.enter_context(socket.socket())
            knocking.setblocking(False)
            knocking.connect_ex(silent.getsockname())
        client = await opener(f"tcp://a.name:{good[1]}", connect_timeout=1.0)
        await ping(client)
        await close(client)


async def test_over_a_unix_socket(opener: Opener, broker: LogBroker, tmp_path: Path) -> None:
    async with pull_server(broker, listen=f"unix://{tmp_path}/s") as (_, address):
        client = await opener(address)
        await ping(client)
        await close(client)


async def test_awaiting_connect_and_the_context_manager(address: str) -> None:
    client = await connect(address)
    async with client:
        await client.ping()
    with pytest.raises(errors.ConnectionLost, match="closed by this client"):
        await client.ping()
    async with connect(address) as client:
        assert client.server.max_in_flight == 64


async def test_the_blocking_context_manager(address: str) -> None:
    def use() -> None:
        with connect_sync(address) as client:
            client.ping()
        with pytest.raises(errors.ConnectionLost, match="closed by this client"):
            client.ping()

    await asyncio.to_thread(use)


async def test_nobody_listens(opener: Opener, tmp_path: Path) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
        for address in (f"tcp://127.0.0.1:{port}", f"unix://{tmp_path}/nothing"):
            with pytest.raises(errors.ConnectionLost, match="cannot connect to") as raised:
                await opener(address)
            assert address in str(raised.value)


@pytest.fixture
async def fake() -> AsyncIterator[Callable[[bytes], Awaitable[str]]]:
    """Yield servers that answer each connection with fixed bytes."""
    servers = []

    async def start(data: bytes, *, keep_open: bool = True) -> str:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(data)
            if keep_open:
                await reader.read()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        servers.append(server)
        return f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    yield start
    for server in servers:
        server.close()


async def test_a_server_that_says_nothing(opener: Opener, fake: Any) -> None:
    with pytest.raises(errors.ConnectionLost, match=r"no answer in 0\.1 s"):
        await opener(await fake(b""), connect_timeout=0.1)


async def test_a_server_that_hangs_up(opener: Opener, fake: Any) -> None:
    with pytest.raises(errors.ConnectionLost):
        await opener(await fake(b"", keep_open=False))


@pytest.mark.parametrize(
    "data",
    [
        b'INFO {"server_id":"X"}\r\n',
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        encode_frame({"k": "pong", "i": 1}),
        encode_frame({"k": "welcome", "i": 1}),
        encode_frame({"k": "challenge", "i": 1}),
    ],
)
async def test_a_server_that_is_something_else(opener: Opener, fake: Any, data: bytes) -> None:
    with pytest.raises(errors.ProtocolViolation):
        await opener(await fake(data))


@pytest.mark.parametrize(
    ("data", "name", "hint"),
    [
        (b'INFO {"server_id":"X"}\r\n', "NATS", "pull port"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "HTTP", "pull.listen"),
        (b"\x15\x03\x01\x00\x02\x02\x46", "TLS", "tls://"),
        (b"\x15\x03\x03\x00\x02\x02\x0a", "TLS", "tls://"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "SSH", "port"),
    ],
)
async def test_the_error_tells_what_a_wrong_port_speaks(
    opener: Opener, fake: Any, data: bytes, name: str, hint: str
) -> None:
    with pytest.raises(errors.ProtocolViolation, match=f"look like {name}") as raised:
        await opener(await fake(data))
    assert hint in raised.value.hint


async def test_a_server_of_another_version(opener: Opener, fake: Any) -> None:
    refusal = {"k": "error", "i": 0, "c": 3, "n": "UNSUPPORTED_VERSION", "m": "only 7"}
    with pytest.raises(errors.UnsupportedVersion, match="only 7"):
        await opener(await fake(encode_frame(refusal)))


async def test_the_daemon_goes_away(opener: Opener, broker: LogBroker) -> None:
    async with pull_server(broker) as (server, address):
        client = await opener(address, reconnect_for=0)
        await ping(client)
        for connection in connections_of(server):
            connection.close()
        for _ in range(2):
            with pytest.raises(errors.ConnectionLost, match=address):
                await ping(client)


async def test_the_daemon_shuts_down_under_a_reader(broker: LogBroker) -> None:
    stream = broker.streams["orders"]
    async with (
        pull_server(broker) as (server, address),
        connect(address, reconnect_for=0) as client,
    ):
        reader = client.read_batches("orders", start=101)
        waiting = asyncio.create_task(anext(reader))
        async with asyncio.timeout(10):
            while not stream.waiters:
                await asyncio.sleep(0.001)
            await server.close(grace=1)
            with pytest.raises(errors.ShuttingDown):
                await waiting


async def test_an_answer_that_does_not_come(opener: Opener, broker: LogBroker) -> None:
    broker.gate = asyncio.Event()
    async with pull_server(broker) as (_, address):
        client = await opener(address, request_timeout=2.0)  # which the ping has as well
        with pytest.raises(errors.RequestTimeout, match=r"'create' in \d\.\d s"):
            if asyncio.iscoroutinefunction(client.create_stream):
                await client.create_stream("new", subject="n")
            else:
                await asyncio.to_thread(client.create_stream, "new", subject="n")
        broker.gate.set()
        await ping(client)
        await close(client)


async def test_a_request_longer_than_the_daemon_accepts(address: str) -> None:
    async with connect(address) as client:
        with pytest.raises(errors.LimitExceeded):
            await client.create_stream("new", subject="n" * 2_000_000)
        await client.ping()


def test_a_signal_in_the_middle_of_a_step_ends_the_connection(
    broker: LogBroker, tmp_path: Path
) -> None:
    """Bytes may be lost. The client then raises an error, and does not continue at a wrong
    place."""
    ready: list[str] = []

    async def serve(stop: asyncio.Event) -> None:
        async with pull_server(broker) as (_, address):
            ready.append(address)
            await stop.wait()

    async def scenario() -> None:
        stop = asyncio.Event()
        serving = asyncio.create_task(serve(stop))
        while not ready:
            await asyncio.sleep(0.001)
        client = await asyncio.to_thread(connect_sync, ready[0], reconnect_for=0)

        def interrupted() -> None:
            def receive() -> bool:
                raise KeyboardInterrupt

            connection = router_of(client).link.connection
            original = connection.receive
            connection.receive = receive  # type: ignore[method-assign]
            with pytest.raises(KeyboardInterrupt):
                client.ping()
            connection.receive = original  # type: ignore[method-assign]
            with pytest.raises(errors.ConnectionLost, match="interrupted"):
                client.ping()

        await asyncio.to_thread(interrupted)
        stop.set()
        await serving

    asyncio.run(scenario())
