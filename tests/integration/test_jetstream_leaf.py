"""The leaf node connection over which consumers deliver: how it is let in, and what comes after it.

Each test has a server and a daemon of its own; the client is nats-py with its ordered consumer.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.errors import Error
from nats.js.errors import APIError
from support.clients.ingesting import assert_no_traceback, until
from support.clients.nkey_seeds import seed_of
from support.clients.raw_nats import RawNats
from support.daemons.certificates import Authority
from support.daemons.daemon import Daemon
from support.daemons.nats_cluster import NatsCluster
from support.daemons.nats_server import NatsServer

from acl.nkeys import SigningKey
from liftlog.tls import client_context

pytestmark = pytest.mark.integration

STREAM = {"name": "s", "subjects": ["s.>"], "allow_direct": True}
LISTENER = {"listen": "127.0.0.1:-1"}
LOGIN = {"user": "daemon", "password": "secret"}
PATIENCE = 60


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def leafnode_of(server: NatsServer) -> str:
    found = re.search(r"Listening for leafnode connections on (\S+:\d+)", server.log)
    assert found is not None, server.log
    return found[1]


def started(stack: ExitStack, *servers: NatsServer, **options: Any) -> Daemon:
    nodes = [leafnode_of(server) for server in servers]
    nats = {
        "servers": [server.url for server in servers],
        "jetstream_api": True,
        "leafnode": nodes,
        **options,
    }
    daemon = stack.enter_context(Daemon(servers[0].url, {"nats": nats}))
    until(lambda: "jetstream-api-answers" in daemon.log, what="answers on $JS.API")
    return daemon


async def reads_in_order(client: Client, count: int = 20) -> None:
    js = client.jetstream(timeout=PATIENCE)
    stream = f"s{secrets.token_hex(4)}"
    await js.add_stream(name=stream, subjects=[f"{stream}.>"])
    for number in range(count):
        await js.publish(f"{stream}.{number}", b"%d" % number)
    reader = await js.subscribe(f"{stream}.>", stream=stream, ordered_consumer=True)
    got = [await reader.next_msg(timeout=PATIENCE) for _ in range(count)]
    assert [one.subject for one in got] == [f"{stream}.{number}" for number in range(count)]


def asked(raw: RawNats, method: str, body: object) -> Any:
    return raw.request(f"$JS.API.{method}", json.dumps(body).encode()).json()


async def test_a_record_that_nats_no_longer_takes_stops_no_reader(stack: ExitStack) -> None:
    """NATS ends the connection of a leaf node that sends more than `max_payload`."""
    server = stack.enter_context(NatsServer(leafnodes=LISTENER, max_payload=512 * 1024))
    daemon = started(stack, server)
    with RawNats(server.port, timeout=PATIENCE) as raw:
        assert "error" not in asked(raw, "STREAM.CREATE.s", STREAM)
        for size in (1, 300_000, 2, 70_000, 3):
            assert "seq" in raw.request(b"s.%d" % size, b"x" * size).json()
    listener = leafnode_of(server)
    server.stop()
    server.configure(max_payload=64 * 1024, leafnodes={"listen": listener})
    server.start()
    connected = '"event": "nats-leaf-connected"'
    until(lambda: daemon.log.count(connected) == 2, what="the second leaf node connection")
    with RawNats(server.port) as raw:
        until(lambda: b"account_info" in raw.request("$JS.API.INFO").payload, what="answers")
    client = await nats.connect(server.url)
    try:
        js = client.jetstream(timeout=PATIENCE)
        reader = await js.subscribe("s.>", stream="s", ordered_consumer=True)
        got = [await reader.next_msg(timeout=PATIENCE) for _ in range(3)]
        assert [len(one.data) for one in got] == [1, 2, 3]
        assert [one.metadata.sequence.consumer for one in got] == [1, 2, 3]
        with pytest.raises(APIError, match="message size exceeds maximum allowed"):
            await js.get_msg("s", 2)
        with pytest.raises(APIError, match="message size exceeds maximum allowed"):
            await js.get_msg("s", 2, direct=True)
    finally:
        await client.close()
    assert daemon.log.count(connected) == 2
    assert "jetstream-consumer-skipped" in daemon.log


# --- how it is let in ---


@pytest.mark.parametrize("first", [False, True], ids=["after INFO", "handshake first"])
async def test_over_tls_with_a_password(stack: ExitStack, tmp_path: Path, first: bool) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("server")
    tls = {"cert_file": str(pair.cert), "key_file": str(pair.key), "handshake_first": first}
    listener = {**LISTENER, "tls": tls}
    users = {"users": [LOGIN]}
    public = {**tls, "handshake_first": "auto" if first else False}
    server = NatsServer(tls=public, authorization=users, leafnodes=listener)
    stack.enter_context(server)
    ours = {"ca": str(authority.ca), "handshake_first": first}
    daemon = started(stack, server, tls=ours, **LOGIN)
    client = await nats.connect(server.url, tls=client_context(authority.ca), **LOGIN)
    try:
        await reads_in_order(client)
    finally:
        await client.close()
    assert "secret" not in daemon.log
    assert_no_traceback(daemon)


async def test_with_an_nkey(stack: ExitStack, tmp_path: Path) -> None:
    seed = seed_of(secrets.token_bytes(32))
    file = tmp_path / "seed"
    file.write_text(seed + "\n")
    users = [{"nkey": SigningKey(seed).public_key}]
    server = NatsServer(authorization={"users": users}, leafnodes=LISTENER)
    stack.enter_context(server)
    daemon = started(stack, server, nkey=str(file))
    client = await nats.connect(server.url, nkeys_seed=str(file))
    try:
        await reads_in_order(client)
    finally:
        await client.close()
    assert_no_traceback(daemon)


@pytest.mark.parametrize("login", [LOGIN, {"token": "secret"}], ids=["password", "token"])
async def test_with_the_login_of_the_url(stack: ExitStack, login: dict[str, str]) -> None:
    users = login if "token" in login else {"users": [login]}
    server = stack.enter_context(NatsServer(authorization=users, leafnodes=LISTENER))
    known = "secret" if "token" in login else "daemon:secret"
    url = server.url.replace("nats://", f"nats://{known}@")
    daemon = started(stack, server, servers=[url])
    client = await nats.connect(url)
    try:
        await reads_in_order(client)
    finally:
        await client.close()
    assert_no_traceback(daemon)


def test_a_login_is_not_sent_where_tls_is_missing(stack: ExitStack, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("server")
    tls = {"cert_file": str(pair.cert), "key_file": str(pair.key)}
    server = NatsServer(tls=tls, authorization={"users": [LOGIN]}, leafnodes=LISTENER)
    stack.enter_context(server)
    daemon = started(stack, server, tls={"ca": str(authority.ca)}, **LOGIN)
    until(lambda: "leafnodes listener has none" in daemon.log, what="the refusal")
    assert "nats-leaf-connected" not in daemon.log
    assert_no_traceback(daemon)


def test_another_issuer_is_not_believed(stack: ExitStack, tmp_path: Path) -> None:
    authority, stranger = Authority(tmp_path), Authority(tmp_path, "stranger")
    ours, theirs = authority.issue("server"), stranger.issue("leafnode")
    server = NatsServer(
        tls={"cert_file": str(ours.cert), "key_file": str(ours.key)},
        leafnodes={
            **LISTENER,
            "tls": {"cert_file": str(theirs.cert), "key_file": str(theirs.key)},
        },
    )
    stack.enter_context(server)
    daemon = started(stack, server, tls={"ca": str(authority.ca)})
    until(lambda: "CERTIFICATE_VERIFY_FAILED" in daemon.log, what="the refusal")
    assert "nats-leaf-connected" not in daemon.log
    assert_no_traceback(daemon)


async def test_a_refused_login_is_told_to_clients(stack: ExitStack) -> None:
    listener = {**LISTENER, "authorization": {"user": "leaf", "password": "other"}}
    server = stack.enter_context(NatsServer(leafnodes=listener))
    daemon = started(stack, server, **LOGIN)
    until(lambda: "nats-leaf-not-connected" in daemon.log, what="the refusal")
    client = await nats.connect(server.url)
    try:
        js = client.jetstream(timeout=PATIENCE)
        await js.add_stream(name="s", subjects=["s.>"])
        with pytest.raises(Error, match="Authorization Violation"):
            await js.subscribe("s.>", stream="s", ordered_consumer=True)
    finally:
        await client.close()
    assert daemon.log.count("nats-leaf-not-connected") == 1
    assert_no_traceback(daemon)


# --- when its server dies ---


async def test_readers_go_on_when_the_server_of_the_link_dies(stack: ExitStack) -> None:
    """The link moves to another server, and ordered consumers are made again behind what their
    clients have: in order, nothing missing and nothing twice."""
    servers = stack.enter_context(NatsCluster(2, leafnodes=LISTENER)).servers
    daemon = started(stack, *servers)
    until(lambda: "nats-leaf-connected" in daemon.log, what="the leaf node connection")
    client = await nats.connect(
        [server.url for server in servers], reconnect_time_wait=0.2, max_reconnect_attempts=-1
    )
    try:
        js = client.jetstream(timeout=5)
        await js.add_stream(name="s", subjects=["s.>"])
        got: asyncio.Queue[int] = asyncio.Queue()

        async def take(message: Any) -> None:
            got.put_nowait(int(message.data))

        await js.subscribe("s.>", stream="s", ordered_consumer=True, idle_heartbeat=0.5, cb=take)
        await publish(js, range(50))
        assert [await asyncio.wait_for(got.get(), PATIENCE) for _ in range(50)] == list(range(50))
        lines = [line for line in daemon.log.splitlines() if "nats-leaf-connected" in line]
        [dead] = [one for one in servers if leafnode_of(one) in lines[-1]]
        dead.kill()
        await publish(js, range(50, 100))
        rest = [await asyncio.wait_for(got.get(), PATIENCE) for _ in range(50)]
        assert rest == list(range(50, 100))
    finally:
        await client.close()
    assert_no_traceback(daemon)


async def publish(js: Any, numbers: range) -> None:
    """Until each is acked; a second attempt is the same message."""
    for number in numbers:
        while True:
            with suppress(Error, asyncio.TimeoutError):
                await js.publish("s.a", b"%d" % number, headers={"Nats-Msg-Id": str(number)})
                break
            await asyncio.sleep(0.05)


# --- queue groups ---


def test_queue_subscribers_of_a_deliver_subject_get_their_share(stack: ExitStack) -> None:
    """Each group gets every record once, beside subscribers without a group; members may come and
    go, and the last one that leaves ends the delivery."""
    server = stack.enter_context(NatsServer(leafnodes=LISTENER))
    daemon = started(stack, server)
    until(lambda: "nats-leaf-connected" in daemon.log, what="the leaf node connection")
    members = [stack.enter_context(RawNats(server.port, timeout=PATIENCE)) for _ in range(4)]
    for member, queue in zip(members, (b"one", b"one", b"two", b""), strict=True):
        member.sub("work.here", queue=queue)
        member.ping()
    raw = stack.enter_context(RawNats(server.port, timeout=PATIENCE))
    assert "error" not in asked(raw, "STREAM.CREATE.s", STREAM)
    config = {"ack_policy": "none", "deliver_subject": "work.here", "idle_heartbeat": 10**8}
    config |= {"inactive_threshold": 1_000_000_000}
    made = asked(raw, "CONSUMER.CREATE.s", {"stream_name": "s", "config": config})
    assert made["push_bound"] is True, made
    count = 200
    for number in range(count):
        assert "seq" in raw.request(b"s.a", b"%d" % number, headers=HEADERS * (number % 2)).json()
    got = [received(member) for member in members]
    everything = set(range(count))
    until(lambda: len(got[0]) + len(got[1]) == count or add(members, got), what="group one")
    assert got[0] | got[1] == everything
    assert got[0]
    assert got[1]
    assert not got[0] & got[1]
    until(lambda: len(got[2]) == len(got[3]) == count or add(members, got), what="the others")
    assert got[2] == got[3] == everything
    for member in members[1:]:
        member.close()
    assert "seq" in raw.request(b"s.a", b"%d" % count).json()
    until(lambda: count in got[0] or add(members[:1], got), what="the record for who stayed")
    name = made["name"]
    assert asked(raw, f"CONSUMER.INFO.s.{name}", {})["push_bound"] is True
    members[0].close()
    until(lambda: asked(raw, f"CONSUMER.INFO.s.{name}", {}).get("error"), what="its end")
    assert_no_traceback(daemon)


HEADERS = b"NATS/1.0\r\nA: b\r\n\r\n"


def received(member: RawNats) -> set[int]:
    """The records that have arrived, without heartbeats."""
    member.ping()
    found = [int(one.payload) for one in member.messages if one.payload]
    member.messages.clear()
    assert len(found) == len(set(found))
    return set(found)


def add(members: list[RawNats], got: list[set[int]]) -> bool:
    for member, numbers in zip(members, got, strict=False):
        found = received(member)
        assert not found & numbers
        numbers |= found
    return False
