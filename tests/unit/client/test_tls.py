"""Both clients and the pull server over TLS; every test runs on both loops."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.daemons.certificates import Authority
from support.daemons.pull_broker import LogBroker, pull_server

from liftlog import errors
from liftlog.client import SyncClient, connect, connect_sync
from liftlog.client.connecting.target import Address
from liftlog.server.pull import PullServer
from liftlog.tls import client_context, server_context

if TYPE_CHECKING:
    from tests.unit.client.conftest import Both
else:
    Both = Any

Opener = Callable[..., Awaitable[Any]]


async def open_async(address: str, **options: Any) -> Any:
    return await connect(address, **options)


async def open_sync(address: str, **options: Any) -> Any:
    return await asyncio.to_thread(connect_sync, address, **options)


@pytest.fixture(params=[open_async, open_sync])
def opener(request: pytest.FixtureRequest) -> Opener:
    opener: Opener = request.param
    return opener


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
async def tls_server(
    broker: LogBroker, authority: Authority
) -> AsyncIterator[tuple[PullServer, str]]:
    pair = authority.issue("daemon")
    context = server_context(pair.cert, pair.key)
    async with pull_server(broker, listen="tls://127.0.0.1:0", tls=context) as served:
        yield served


async def close(client: Any) -> None:
    result = client.close()
    if asyncio.iscoroutine(result):
        await result


async def values_of(client: Any, stream: str) -> list[bytes]:
    if isinstance(client, SyncClient):
        return await asyncio.to_thread(lambda: [r.value for r in client.read(stream, until="end")])
    return [r.value async for r in client.read(stream, until="end")]


def test_addresses() -> None:
    assert Address.parse("tls://h:1") == Address("tls://h:1", "h", 1, tls=True)
    assert Address.parse("tls://h").port == 9292
    assert not Address.parse("tcp://h").tls


async def test_everything_is_read_over_tls(
    opener: Opener, broker: LogBroker, tls_server: tuple[PullServer, str], authority: Authority
) -> None:
    stream = broker.streams["orders"]
    sent = [b"value %d" % offset for offset in range(1, 101)]
    # Answers of several MiB: many TLS records, more than a socket buffer and than one turn of both.
    for i in range(24):
        part = [b"%d %d " % (i, j) + b"x" * 200_000 for j in range(4)]
        stream.append(part)
        sent += part
    client = await opener(tls_server[1], tls=authority.ca)
    assert await values_of(client, "orders") == sent
    await close(client)


async def test_pipelined_small_requests_are_all_answered(
    tls_server: tuple[PullServer, str], authority: Authority
) -> None:
    """One TLS record contains many requests, more than the server accepts at once."""
    async with connect(tls_server[1], tls=authority.ca) as client:
        async with asyncio.TaskGroup() as group:
            for _ in range(500):
                group.create_task(client.ping())


async def test_a_waiting_fetch_is_woken_over_tls(
    broker: LogBroker, tls_server: tuple[PullServer, str], authority: Authority
) -> None:
    async with connect(tls_server[1], tls=authority.ca) as client:
        waiting = asyncio.ensure_future(client.fetch("orders", 101, max_wait_ms=10_000))
        while not broker.streams["orders"].waiters:
            await client.ping()
        broker.streams["orders"].append([b"late"])
        answer = await waiting
        assert [r.value for batch in answer.batches() for r in batch] == [b"late"]


async def test_a_certificate_that_nobody_trusts(
    opener: Opener, tls_server: tuple[PullServer, str], tmp_path: Path
) -> None:
    stranger = Authority(tmp_path, "stranger")
    for tls in (None, stranger.ca):
        with pytest.raises(errors.ConnectionLost, match="certificate is not accepted") as raised:
            await opener(tls_server[1], tls=tls)
        assert "tls=" in raised.value.hint


async def test_the_wrong_name(opener: Opener, broker: LogBroker, authority: Authority) -> None:
    pair = authority.issue("daemon")
    context = server_context(pair.cert, pair.key)
    # 127.0.0.2 is this machine too, but the certificate does not name it.
    async with pull_server(broker, listen="tls://127.0.0.2:0", tls=context) as (_, address):
        with pytest.raises(errors.ConnectionLost, match=r"not accepted.*127\.0\.0\.2") as raised:
            await opener(address, tls=authority.ca)
        assert "by a name or address" in raised.value.hint


async def test_an_expired_certificate(
    opener: Opener, broker: LogBroker, authority: Authority
) -> None:
    pair = authority.issue("old", days=-1)
    context = server_context(pair.cert, pair.key)
    async with pull_server(broker, listen="tls://127.0.0.1:0", tls=context) as (_, address):
        with pytest.raises(errors.ConnectionLost, match="expired") as raised:
            await opener(address, tls=authority.ca)
        assert "a new certificate" in raised.value.hint


async def test_tls_against_a_port_without(
    opener: Opener, address: str, authority: Authority
) -> None:
    with pytest.raises(errors.ConnectionLost, match="cannot connect") as raised:
        await opener(address.replace("tcp:", "tls:"), tls=authority.ca)
    assert "try tcp://" in raised.value.hint


async def test_no_tls_against_a_port_with_it(
    opener: Opener, tls_server: tuple[PullServer, str]
) -> None:
    with pytest.raises(errors.ProtocolViolation, match="look like TLS") as raised:
        await opener(tls_server[1].replace("tls:", "tcp:"))
    assert "use tls://" in raised.value.hint


async def test_tls_for_an_address_without(opener: Opener, address: str, tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidArgument, match="asks for none"):
        await opener(address, tls=tmp_path / "ca.pem")


async def test_a_ca_file_that_is_none(opener: Opener, tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("nothing")
    for name in ("ca.pem", "missing.pem"):
        with pytest.raises(errors.InvalidArgument, match=name):
            await opener("tls://127.0.0.1:1", tls=tmp_path / name)


async def test_clients_need_a_certificate_when_asked(
    opener: Opener, broker: LogBroker, authority: Authority, tmp_path: Path
) -> None:
    pair, mine = authority.issue("daemon"), authority.issue("client")
    strangers = Authority(tmp_path, "strangers").issue("other")
    context = server_context(pair.cert, pair.key, client_ca=authority.ca)
    async with pull_server(broker, listen="tls://127.0.0.1:0", tls=context) as (_, address):
        for tls in (
            authority.ca,
            client_context(authority.ca, cert=strangers.cert, key=strangers.key),
        ):
            with pytest.raises(errors.ConnectionLost):
                await opener(address, tls=tls)
        client = await opener(
            address, tls=client_context(authority.ca, cert=mine.cert, key=mine.key)
        )
        assert len(await values_of(client, "orders")) == 100
        await close(client)


async def test_the_oldest_version_is_a_setting(
    opener: Opener, broker: LogBroker, authority: Authority
) -> None:
    pair = authority.issue("daemon")
    context = server_context(pair.cert, pair.key, min_version="1.3")
    old = client_context(authority.ca)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    async with pull_server(broker, listen="tls://127.0.0.1:0", tls=context) as (server, address):
        with pytest.raises(errors.ConnectionLost, match="cannot connect"):
            await opener(address, tls=old)
        server.set_tls(server_context(pair.cert, pair.key))
        client = await opener(address, tls=old)
        assert len(await values_of(client, "orders")) == 100
        await close(client)


async def test_swapped_certificates_hold_for_connections_to_come(
    opener: Opener,
    tls_server: tuple[PullServer, str],
    authority: Authority,
    tmp_path: Path,
) -> None:
    server, address = tls_server
    before = await opener(address, tls=authority.ca)
    other = Authority(tmp_path, "other CA")
    pair = other.issue("renewed")
    server.set_tls(server_context(pair.cert, pair.key))
    assert len(await values_of(before, "orders")) == 100
    with pytest.raises(errors.ConnectionLost, match="not accepted"):
        await opener(address, tls=authority.ca)
    after = await opener(address, tls=other.ca)
    assert len(await values_of(after, "orders")) == 100
    await close(before)
    await close(after)


@pytest.mark.parametrize("content", ["", "-----BEGIN CERTIFICATE-----\nAAAA\n", None])
def test_files_of_the_daemon_that_are_no_certificates(
    content: str | None, authority: Authority, tmp_path: Path
) -> None:
    pair = authority.issue("daemon")
    bad = tmp_path / "bad.pem"
    if content is not None:
        bad.write_text(content)
    for arguments in ((bad, pair.key), (pair.cert, bad)):
        with pytest.raises(errors.ConfigError, match=r"bad\.pem"):
            server_context(*arguments)
    with pytest.raises(errors.ConfigError, match=r"client_ca.*bad\.pem"):
        server_context(pair.cert, pair.key, client_ca=bad)


def test_the_key_of_another_certificate(authority: Authority) -> None:
    one, other = authority.issue("one"), authority.issue("other")
    with pytest.raises(errors.ConfigError, match="not a certificate and its key"):
        server_context(one.cert, other.key)
