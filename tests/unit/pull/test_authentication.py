"""Who a client is: by nkey, TLS certificate, Unix user; and who is none of them."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from support.certificates import Authority
from support.nkey_seeds import seed_of
from support.opened_client import Opened
from support.pull_broker import LogBroker, pull_server
from support.raw_pull import HELLO, RawPull

from acl.nkeys import SigningKey
from acl.policy import Policy
from acl.tokens import Algorithm, hash_token
from liftlog.client import connect
from liftlog.errors import ConnectionLost, InvalidArgument, LimitExceeded, Unauthenticated
from liftlog.protocol.proofs import text_to_sign
from liftlog.server.pull import PullLimits
from liftlog.tls.contexts import client_context, server_context

SEED = seed_of(b"1" * 32)
KEY = SigningKey(SEED)
SECRET = "a-secret-that-is-long-enough"
QUICK = PullLimits(auth_failure_delay_seconds=0)


def policy(*principals: str) -> Policy:
    names = [one.partition(":")[0] for one in principals]
    return Policy.load(
        f"principals: {{{', '.join(principals)}}}\n"
        'roles: {look: [{allow: [read], streams: ["*"]}]}\n'
        f"bindings: {{{', '.join(f'{name}: [look]' for name in names)}}}\n"
    )


OPS = f"ops: {{nkey: {KEY.public_key}}}"
SHOP = f"shop: {{token_hash: '{hash_token(SECRET)}'}}"


@pytest.fixture
def seed_file(tmp_path: Path) -> Path:
    file = tmp_path / "ops.nk"
    file.write_text(SEED + "\n")
    return file


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


async def principal_at(address: str, **options: Any) -> str | None:
    async with connect(address, **options) as client:
        await client.describe_stream("orders")
        return client.server.principal


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
        {"certificate": b"of somebody in between"},
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
        assert server.audit.denied_total["login"] == 1
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
        with pytest.raises(Unauthenticated, match="nobody whom it does not know"):
            await principal_at(address, tls=tls)


# --- Unix users ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_unix_user(broker: LogBroker, tmp_path: Path, kind: str) -> None:
    me = policy(f"local: {{unix_uid: {os.getuid()}}}")
    async with pull_server(broker, listen=f"unix://{tmp_path}/p.sock", policy=me) as (_, address):
        client = await Opened.to(kind, address)
        assert client.client.server.principal == "local"
        await client.close()
    somebody = policy(f"other: {{unix_uid: {os.getuid() + 1}}}", SHOP)
    async with pull_server(broker, listen=f"unix://{tmp_path}/p.sock", policy=somebody) as (
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


# --- what a reload takes away -----------------------------------------------------------


async def test_a_credential_that_is_withdrawn_ends_its_connections(
    broker: LogBroker, seed_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with pull_server(broker, policy=policy(SHOP, OPS)) as (server, address):
        options = {"reconnect_for": 0, "request_timeout": 5}
        shop = await connect(address, token=f"shop.{SECRET}", **options)  # type: ignore[arg-type]
        ops = await connect(address, nkey=seed_file, **options)  # type: ignore[arg-type]
        server.set_policy(policy(f"shop: {{token_hash: '{hash_token('x' * 30)}'}}", OPS))
        assert (await ops.describe_stream("orders")).name == "orders"
        with pytest.raises(Unauthenticated, match="valid no more"):
            await shop.describe_stream("orders")
        with pytest.raises(Unauthenticated):
            await principal_at(address, token=f"shop.{SECRET}")
        assert "withdrawn principal=shop" in caplog.text
        server.set_policy(policy(SHOP, OPS))
        assert await principal_at(address, token=f"shop.{SECRET}") == "shop"
        await shop.close()
        await ops.close()


async def test_an_acl_that_changes_while_a_token_is_checked(broker: LogBroker) -> None:
    old, checking = policy(SHOP), asyncio.Event()
    go_on = asyncio.Event()

    async with pull_server(broker, limits=QUICK, policy=old) as (server, address):
        check = server.authenticator._by_token

        async def slowly(*arguments: Any) -> str:
            found = await check(*arguments)
            checking.set()
            await go_on.wait()
            return found

        server.authenticator._by_token = slowly  # type: ignore[method-assign]
        opening = asyncio.create_task(principal_at(address, token=f"shop.{SECRET}"))
        async with asyncio.timeout(10):
            await checking.wait()
        server.set_policy(policy(OPS))
        go_on.set()
        with pytest.raises(Unauthenticated):
            await opening


# --- bounds --------------------------------------------------------------------------------


async def test_guessing_ends_soon_for_who_guesses_and_not_for_others(
    broker: LogBroker,
) -> None:
    other_secret = secrets.token_hex(20)
    other = f"other: {{token_hash: '{hash_token(other_secret)}'}}"
    async with pull_server(broker, limits=QUICK, policy=policy(SHOP, other)) as (server, address):
        asked: list[str] = []
        real = server.gate.policy
        assert isinstance(real, Policy)
        check = real.authenticate_token

        def counting(token: str) -> str | None:
            asked.append(token)
            return check(token)

        real.authenticate_token = counting  # type: ignore[method-assign]
        errors = []
        for number in range(30):
            with pytest.raises((Unauthenticated, LimitExceeded)) as caught:
                await connect(address, token=f"shop.guess-{number}", reconnect_for=0)
            errors.append(caught.type)
        assert errors == [Unauthenticated] * 10 + [LimitExceeded] * 20
        assert len(asked) == 10, "beyond the bound nothing is checked"
        with pytest.raises(LimitExceeded):
            await principal_at(address, token=f"shop.{SECRET}")
        assert await principal_at(address, token=f"other.{other_secret}") == "other"


@pytest.mark.parametrize("algorithm", ["sha256", "argon2id"])
async def test_a_fleet_that_connects_at_once_is_no_guessing(
    broker: LogBroker, algorithm: Algorithm
) -> None:
    shop = f"shop: {{token_hash: '{hash_token(SECRET, algorithm)}'}}"
    limits = PullLimits(auth_failure_delay_seconds=0, max_pending_auths=4)
    async with pull_server(broker, limits=limits, policy=policy(shop)) as (server, address):
        here = [principal_at(address, token=f"shop.{SECRET}") for _ in range(40)]
        assert await asyncio.gather(*here) == ["shop"] * 40
        wrong = [principal_at(address, token="shop.wrong", reconnect_for=0) for _ in range(40)]
        refused = await asyncio.gather(*wrong, return_exceptions=True)
        assert {type(one) for one in refused} == {Unauthenticated}
        assert server.authenticator.pending == 0


async def test_a_check_that_its_first_asker_left_serves_the_others(broker: LogBroker) -> None:
    async with pull_server(broker, policy=policy(SHOP)) as (server, _):
        rules, hold = server.gate.policy, threading.Event()
        assert isinstance(rules, Policy)
        check = rules.authenticate_token

        def slow(token: str) -> str | None:
            hold.wait(10)
            return check(token)

        rules.authenticate_token = slow  # type: ignore[method-assign]
        ask = partial(server.authenticator.identify_bearer, rules, "here", "http:here")
        first, second = (asyncio.create_task(ask(f"shop.{SECRET}")) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait([first])
        assert server.authenticator.pending == 1, "a thread still works at it"
        hold.set()
        assert (await second).principal == "shop"
        assert server.authenticator.pending == 0


async def test_a_check_that_has_just_ended_holds_up_nobody(broker: LogBroker) -> None:
    """Whoever comes between its end and its callbacks does not wait: nothing may depend on that."""
    async with pull_server(broker, policy=policy(SHOP)) as (server, _):
        rules, authenticator = server.gate.policy, server.authenticator
        assert isinstance(rules, Policy)
        ask = partial(authenticator.identify_bearer, rules, "here", "http:here", f"shop.{SECRET}")
        first = asyncio.create_task(ask())
        await asyncio.sleep(0)
        [listed] = authenticator._checks
        ended: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        ended.set_result("shop")
        authenticator._checks[listed] = ended
        assert (await ask()).principal == "shop"
        assert (await first).principal == "shop"


async def test_strangers_do_not_keep_out_a_token_that_was_checked(broker: LogBroker) -> None:
    limits = PullLimits(auth_failure_delay_seconds=0, max_pending_auths=1)
    async with pull_server(broker, limits=limits, policy=policy(SHOP)) as (server, address):
        assert await principal_at(address, token=f"shop.{SECRET}") == "shop"
        server.authenticator.pending += 1
        assert await principal_at(address, token=f"shop.{SECRET}") == "shop"
        with pytest.raises(LimitExceeded, match="at once"):
            await principal_at(address, token="shop.something-else")
        server.authenticator.pending -= 1


async def test_connections_of_one_principal_are_bounded(broker: LogBroker) -> None:
    limits = PullLimits(auth_failure_delay_seconds=0, max_connections_per_principal=2)
    known = policy(SHOP, "anonymous: {}")
    async with pull_server(broker, limits=limits, policy=known) as (server, address):
        options: dict[str, Any] = {"token": f"shop.{SECRET}", "reconnect_for": 0}
        first, second = await connect(address, **options), await connect(address, **options)
        with pytest.raises(LimitExceeded, match="shop has 2 connections"):
            await connect(address, **options)
        assert await principal_at(address) == "anonymous"
        await first.close()
        async with asyncio.timeout(10):
            while server.connection_count > 1:
                await asyncio.sleep(0.001)
        third = await connect(address, **options)
        await second.close()
        await third.close()
        async with asyncio.timeout(10):
            while server.connection_count:
                await asyncio.sleep(0.001)
        assert server._uses == {}


async def test_requests_in_flight_of_one_principal_are_bounded(broker: LogBroker) -> None:
    limits = PullLimits(max_in_flight_per_principal=3)
    known = policy("anonymous: {}")
    async with pull_server(broker, limits=limits, policy=known) as (server, address):
        wait = {"k": "fetch", "s": "orders", "o": 101, "w": 60_000}
        async with (
            await RawPull.connect(address) as one,
            await RawPull.connect(address) as two,
        ):
            one.send({**wait, "i": 1})
            one.send({**wait, "i": 2})
            one.send({"k": "ping", "i": 9})
            assert (await one.receive())["k"] == "pong"
            two.send({**wait, "i": 1})
            two.send({"k": "ping", "i": 2})
            assert (await two.receive())["n"] == "LIMIT_EXCEEDED"
            one.send({"k": "cancel", "i": 1})
            assert (await one.receive())["n"] == "CANCELLED"
            two.send({"k": "ping", "i": 3})
            assert (await two.receive())["k"] == "pong"
            assert server._uses["anonymous"].in_flight.count == 2
            await one.close()
            async with asyncio.timeout(10):
                while server.connection_count > 1:
                    await asyncio.sleep(0.001)
            assert server._uses["anonymous"].in_flight.count == 1


# --- the audit -------------------------------------------------------------------------------


@pytest.fixture
def audited(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    caplog.set_level(logging.INFO, "liftlog.audit")
    yield caplog
    for secret in (SECRET, SEED, hash_token(SECRET)):
        assert secret not in caplog.text


async def test_what_is_audited(
    broker: LogBroker, audited: pytest.LogCaptureFixture, seed_file: Path
) -> None:
    known = Policy.load(
        f"principals: {{{SHOP}, {OPS}}}\n"
        'roles: {make: [{allow: [create, delete], streams: ["*"], attach: ["shop.>"]}]}\n'
        "bindings: {shop: [make]}\n"
    )
    async with pull_server(broker, limits=QUICK, policy=known) as (_, address):
        with pytest.raises(Unauthenticated):
            await connect(address, token=f"{SECRET}.shop")  # mixed up
        with pytest.raises(Unauthenticated):
            await connect(address, token=f"shop.x{SECRET}")
        async with await RawPull.connect(address, hello=False) as peer:
            peer.send(HELLO)
            await peer.receive()
            peer.send({"k": "auth", "i": 2, "m": "token", "t": f"shop.{SECRET}"})
            assert (await peer.receive())["p"] == "shop"
            for request in (
                {"k": "create", "s": "mine", "c": {"subject": "shop.a"}},
                {"k": "create", "s": "mine", "c": {"subject": "evil\r\nallowed principal=root"}},
                {"k": "create", "s": "mine", "c": {"subject": "x" * 100_000}},
                {"k": "describe", "s": "orders"},
                {"k": "describe", "s": "or\nders"},
                {"k": "fetch", "s": "orders", "o": 1},
                {"k": "delete", "s": "mine"},
            ):
                peer.send({"i": 5, **request})
                await peer.receive()
    lines = [one.getMessage() for one in audited.records if one.name == "liftlog.audit"]
    said = [(line.split()[0], line.split()[1]) for line in lines]
    assert said == [
        ("login-refused", "principal=-"),
        ("login-refused", "principal=shop"),
        ("logged-in", "principal=shop"),
        ("allowed", "principal=shop"),
        ("denied", "principal=shop"),
        ("denied", "principal=shop"),
        ("denied", "principal=shop"),
        ("denied", "principal=shop"),
        ("allowed", "principal=shop"),
    ]
    for line in lines:
        assert line.isprintable()
        assert line.isascii()
        assert len(line) < 1200
    assert "operation=create stream=mine" in lines[3]
    assert "operation=read stream=orders" in lines[6]


async def test_a_flood_of_denials_is_a_number(
    broker: LogBroker, audited: pytest.LogCaptureFixture
) -> None:
    async with pull_server(broker, policy=Policy.load("principals: {anonymous: {}}")) as (
        server,
        address,
    ):
        async with await RawPull.connect(address) as peer:
            for _ in range(500):
                peer.send({"k": "describe", "s": "orders", "i": 1})
                assert (await peer.receive())["n"] == "FORBIDDEN"
        lines = [one for one in audited.records if one.getMessage().startswith("denied")]
        assert 50 <= len(lines) <= 100
        assert server.audit.denied_total["read"] == 500
