"""Who a client is: by nkey, TLS certificate, Unix user; and who is none of them."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from support.clients.nkey_seeds import seed_of
from support.clients.opened_client import Opened
from support.clients.raw_pull import HELLO, RawPull
from support.daemons.certificates import Authority
from support.daemons.logins import KEY, OPS, QUICK, SECRET, SEED, SHOP, policy, principal_at
from support.daemons.pull_broker import LogBroker, pull_server

from acl.nkeys import SigningKey
from liftlog.client import connect
from liftlog.errors import ConnectionLost, InvalidArgument, Unauthenticated
from liftlog.protocol.handshake import text_to_sign
from liftlog.server.pull import PullLimits
from liftlog.tls import client_context, server_context


@pytest.fixture
def seed_file(tmp_path: Path) -> Path:
    file = tmp_path / "ops.nk"
    file.write_text(SEED + "\n")
    return file


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


# --- nkeys -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("scheme", ["tcp", "tls", "unix"])
async def test_an_nkey(
    broker: LogBroker, authority: Authority, seed_file: Path, kind: str, scheme: str
) -> None:
    pair = authority.issue("daemon")
    listen = f"unix://{seed_file.parent}/p.sock" if scheme == "unix" else f"{scheme}://127.0.0.1:0"
    tls = server_context(pair.cert, pair.key) if scheme == "tls" else None
    options: dict[str, Any] = {"tls": authority.ca} if scheme == "tls" else {}
    async with pull_server(broker, listen=listen, policy=policy(OPS, SHOP), tls=tls) as (_, at):
        client = await Opened.to(kind, at, nkey=seed_file, token="ops.ignored", **options)
        assert client.client.server.principal == "ops"
        assert (await client.call("describe_stream", "orders")).name == "orders"
        await client.close()


async def proof_for(peer: RawPull, key: SigningKey, **other: Any) -> dict[str, Any]:
    """Says hello; returns a right answer to the challenge, with `other` parts a wrong one."""
    peer.send(HELLO)
    challenge = await peer.receive()
    parts = {
        "client_nonce": HELLO["n"],
        "server_nonce": challenge["n"],
        "server_id": challenge["s"],
        "certificate": None,
    }
    text = text_to_sign(**(parts | other))  # type: ignore[arg-type]
    return {"k": "auth", "i": 2, "m": "nkey", "u": key.public_key, "g": key.sign(text)}


async def answer_to(peer: RawPull, proof: dict[str, Any]) -> str:
    peer.send(proof)
    answer = await peer.receive()
    return str(answer.get("n", answer["k"]))


@pytest.mark.parametrize(
    "other",
    [
        {"client_nonce": b"x" * 16},
        {"server_nonce": b"x" * 16},
        {"server_id": "another"},
        {"certificate": b"of a man in the middle"},
    ],
)
async def test_a_signature_for_something_else(broker: LogBroker, other: dict[str, Any]) -> None:
    async with pull_server(broker, limits=QUICK, policy=policy(OPS)) as (_, address):
        async with await RawPull.connect(address, hello=False) as peer:
            assert await answer_to(peer, await proof_for(peer, KEY, **other)) == "UNAUTHENTICATED"
            assert await peer.closed() == b""
        async with await RawPull.connect(address, hello=False) as peer:
            assert await answer_to(peer, await proof_for(peer, KEY)) == "welcome"


async def test_a_signature_is_of_no_use_twice(broker: LogBroker) -> None:
    async with pull_server(broker, limits=QUICK, policy=policy(OPS)) as (_, address):
        async with await RawPull.connect(address, hello=False) as peer:
            proof = await proof_for(peer, KEY)
            assert await answer_to(peer, proof) == "welcome"
        async with await RawPull.connect(address, hello=False) as peer:
            peer.send(HELLO)
            await peer.receive()
            assert await answer_to(peer, proof) == "UNAUTHENTICATED"


async def test_other_keys_and_half_proofs(broker: LogBroker) -> None:
    stranger = SigningKey(seed_of(b"2" * 32))
    changes: list[dict[str, Any]] = [
        {"u": stranger.public_key},
        {"g": bytes(64)},
        {"u": None},
        {"g": None},
        {"u": "U" * 64},
        {"u": "U\n" * 32},
    ]
    async with pull_server(broker, limits=QUICK, policy=policy(OPS)) as (_, address):
        for change in changes:
            async with await RawPull.connect(address, hello=False) as peer:
                proof = {**await proof_for(peer, KEY), **change}
                assert await answer_to(peer, proof) == "UNAUTHENTICATED", change
        async with await RawPull.connect(address, hello=False) as peer:
            assert await answer_to(peer, await proof_for(peer, stranger)) == "UNAUTHENTICATED"


async def test_with_tls_nobody_can_pass_the_signature_on(
    broker: LogBroker, authority: Authority, seed_file: Path
) -> None:
    """A false daemon, whose certificate the client accepts, puts itself in between: what it gets
    from the client is a signature over that certificate, not over the true daemon's."""
    true, false = authority.issue("true"), authority.issue("false")
    context = server_context(true.cert, true.key)
    limits = PullLimits(auth_failure_delay_seconds=0)
    async with pull_server(
        broker, listen="tls://127.0.0.1:0", limits=limits, policy=policy(OPS), tls=context
    ) as (server, address):
        reached = asyncio.Event()

        async def between(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            reached.set()
            host, port = "127.0.0.1", int(address.rsplit(":", 1)[1])
            onward = client_context(authority.ca)
            inner, outer = await asyncio.open_connection(host, port, ssl=onward)

            async def copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
                while data := await source.read(65536):
                    sink.write(data)
                sink.close()

            await asyncio.gather(copy(reader, outer), copy(inner, writer), return_exceptions=True)

        middle = await asyncio.start_server(
            between, "127.0.0.1", 0, ssl=server_context(false.cert, false.key)
        )
        where = f"tls://127.0.0.1:{middle.sockets[0].getsockname()[1]}"
        with pytest.raises(Unauthenticated):
            await principal_at(where, nkey=seed_file, tls=authority.ca)
        assert reached.is_set()
        assert await principal_at(address, nkey=seed_file, tls=authority.ca) == "ops"
        assert server.services.audit.denied_total["login", "pull"] == 1
        middle.close()


async def test_files_that_hold_no_seed(tmp_path: Path) -> None:
    for content in (b"", SEED[:-1].encode(), KEY.public_key.encode(), os.urandom(70_000)):
        file = tmp_path / "file"
        file.write_bytes(content)
        with pytest.raises(InvalidArgument) as caught:
            connect("tcp://127.0.0.1:1", nkey=file)
        assert SEED[2:20] not in str(caught.value)
    with pytest.raises(InvalidArgument, match="cannot read"):
        connect("tcp://127.0.0.1:1", nkey=tmp_path / "none")


# --- certificates --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cn", "more", "who"),
    [
        ("spark-1", [], "spark"),
        ("somebody", [x509.DNSName("spark-1")], "spark"),
        ("somebody", [x509.UniformResourceIdentifier("spiffe://liftlog/job")], "job"),
        ("somebody", [x509.RFC822Name("ops@example")], "mail"),
        ("spark-1", [x509.DNSName("other")], "spark"),
        ("spark-1", [x509.RFC822Name("ops@example")], None),  # two principals: which?
        ("spark-2", [], None),
        ("SPARK-1", [], None),
        ("spark-1.evil", [x509.DNSName("*.spark-1")], None),
    ],
)
async def test_a_certificate(
    broker: LogBroker, authority: Authority, cn: str, more: list[Any], who: str | None
) -> None:
    known = policy(
        "spark: {certificate_cn: spark-1}",
        "job: {certificate_cn: 'spiffe://liftlog/job'}",
        "mail: {certificate_cn: ops@example}",
    )
    pair, mine = authority.issue("daemon"), authority.issue(cn, more=more)
    context = server_context(pair.cert, pair.key, client_ca=authority.ca)
    async with pull_server(
        broker, listen="tls://127.0.0.1:0", limits=QUICK, policy=known, tls=context
    ) as (_, address):
        tls = client_context(authority.ca, cert=mine.cert, key=mine.key)
        if who is not None:
            assert await principal_at(address, tls=tls) == who
        else:
            with pytest.raises(Unauthenticated):
                await principal_at(address, tls=tls)


@pytest.mark.parametrize("wrong", ["expired", "of another CA", "none"])
async def test_a_certificate_that_does_not_count(
    broker: LogBroker, authority: Authority, tmp_path: Path, wrong: str
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    pair = authority.issue("daemon")
    tls = client_context(authority.ca)
    if wrong != "none":
        signer = Authority(other, "other CA") if wrong == "of another CA" else authority
        mine = signer.issue("spark-1", days=-1 if wrong == "expired" else 30)
        tls = client_context(authority.ca, cert=mine.cert, key=mine.key)
    context = server_context(pair.cert, pair.key, client_ca=authority.ca)
    known = policy("spark: {certificate_cn: spark-1}")
    async with pull_server(
        broker, listen="tls://127.0.0.1:0", limits=QUICK, policy=known, tls=context
    ) as (_, address):
        with pytest.raises(ConnectionLost):
            await principal_at(address, tls=tls)


async def test_a_certificate_that_nobody_verified_names_nobody(
    broker: LogBroker, authority: Authority
) -> None:
    """Without pull.tls.client_ca the daemon does not ask for one."""
    pair, mine = authority.issue("daemon"), authority.issue("spark-1")
    known = policy("spark: {certificate_cn: spark-1}")
    async with pull_server(
        broker,
        listen="tls://127.0.0.1:0",
        limits=QUICK,
        policy=known,
        tls=server_context(pair.cert, pair.key),
    ) as (_, address):
        tls = client_context(authority.ca, cert=mine.cert, key=mine.key)
        with pytest.raises(Unauthenticated, match="only clients that it knows"):
            await principal_at(address, tls=tls)


# --- Unix users ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_unix_user(broker: LogBroker, tmp_path: Path, kind: str) -> None:
    me = policy(f"local: {{unix_uid: {os.getuid()}}}")
    async with pull_server(broker, listen=f"unix://{tmp_path}/p.sock", policy=me) as (_, address):
        client = await Opened.to(kind, address)
        assert client.client.server.principal == "local"
        await client.close()
    other = policy(f"other: {{unix_uid: {os.getuid() + 1}}}", SHOP)
    async with pull_server(broker, listen=f"unix://{tmp_path}/p.sock", policy=other) as (
        _,
        address,
    ):
        with pytest.raises(Unauthenticated, match="a token"):
            await principal_at(address)
        assert await principal_at(address, token=f"shop.{SECRET}") == "shop"


async def test_a_unix_user_is_nobody_over_tcp(broker: LogBroker) -> None:
    me = policy(f"local: {{unix_uid: {os.getuid()}}}", SHOP)
    async with pull_server(broker, limits=QUICK, policy=me) as (_, address):
        async with await RawPull.connect(address, hello=False) as peer:
            peer.send(HELLO)
            assert (await peer.receive())["m"] == ["token"]
            assert await answer_to(peer, {"k": "auth", "i": 2, "m": "unix"}) == "UNAUTHENTICATED"


@pytest.mark.parametrize("mode", [0o600, 0o666])
async def test_who_may_connect_to_the_socket_file(
    broker: LogBroker, tmp_path: Path, mode: int
) -> None:
    limits = PullLimits(unix_mode=mode)
    async with pull_server(broker, listen=f"unix://{tmp_path}/p.sock", limits=limits):
        assert (tmp_path / "p.sock").stat().st_mode & 0o777 == mode
