"""Authentication and the one gate that every request passes."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any, NamedTuple

import pytest
from support.clients.raw_pull import AUTH, HELLO, RawPull
from support.daemons.pull_broker import LogBroker, pull_server

from acl.policy import Policy
from acl.tokens import hash_token
from liftlog.client import connect
from liftlog.errors import Conflict, Forbidden, Unauthenticated
from liftlog.protocol.described import StreamInfo
from liftlog.server.pull import PullLimits


class Verdict(NamedTuple):
    allowed: bool
    explanation: str


class ReadVerdict(NamedTuple):
    allowed: bool
    explanation: str
    subjects: tuple[str, ...] | None = None


class TokenPolicy:
    """alice may do all; bob may read `orders` only. The shape of `acl.Policy`."""

    allows_anonymous = False
    accepts_tokens = True
    accepts_nkeys = False

    def principal_of_certificate(self, names: object) -> None:
        return None

    def principal_of_uid(self, uid: int) -> None:
        return None

    def authenticate_nkey(self, public_key: str, text: bytes, signature: bytes) -> None:
        return None

    def credential(self, name: str, method: str) -> object:
        return f"{name}'s" if name in ("alice", "bob") else None

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, str, str | None]] = []

    def authenticate_token(self, token: str) -> str | None:
        time.sleep(0.001)  # slow on purpose, as a real one is
        return {"alice.s": "alice", "bob.s": "bob"}.get(token)

    def decide(
        self, principal: str, operation: str, stream: str, subject: str | None = None
    ) -> Verdict:
        self.asked.append((principal, operation, stream, subject))
        allowed = principal == "alice" or (operation, stream) == ("read", "orders")
        return Verdict(allowed, f"rule for {principal}")

    def decide_read(self, principal: str, stream: str) -> ReadVerdict:
        return ReadVerdict(*self.decide(principal, "read", stream))


async def login(address: str, token: str) -> RawPull:
    peer = await RawPull.connect(address, hello=False)
    peer.send(HELLO)
    assert (await peer.receive())["m"] == ["token"]
    peer.send({"k": "auth", "i": 2, "m": "token", "t": token})
    return peer


async def ask(peer: RawPull, message: dict[str, Any]) -> dict[str, Any]:
    peer.send({"i": 5, **message})
    return await peer.receive()


async def test_a_token_names_the_principal(broker: LogBroker) -> None:
    async with pull_server(broker, policy=TokenPolicy()) as (_, address):
        async with await login(address, "bob.s") as peer:
            welcome = await peer.receive()
            assert (welcome["k"], welcome["p"]) == ("welcome", "bob")


@pytest.mark.parametrize("token", ["", "bob", "bob.wrong", "x" * 2000])
async def test_a_wrong_token_is_refused_after_a_delay(broker: LogBroker, token: str) -> None:
    limits = PullLimits(auth_failure_delay_seconds=0.1)
    async with pull_server(broker, limits=limits, policy=TokenPolicy()) as (_, address):
        async with await login(address, token) as peer:
            began = time.monotonic()
            answer = await peer.receive()
            assert time.monotonic() - began >= 0.09
            assert (answer["i"], answer["n"]) == (2, "UNAUTHENTICATED")
            assert await peer.closed() == b""


async def test_a_policy_that_breaks_is_a_refusal(
    broker: LogBroker, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(TokenPolicy):
        def authenticate_token(self, token: str) -> str | None:
            raise RuntimeError("no memory for argon2")

    async with pull_server(broker, policy=Broken()) as (_, address):
        async with await login(address, "bob.s") as peer:
            assert (await peer.receive())["n"] == "INTERNAL"
            assert await peer.closed() == b""
    assert "no memory for argon2" in caplog.text


async def test_anonymous_is_refused_where_a_token_is_asked_for(broker: LogBroker) -> None:
    async with pull_server(broker, policy=TokenPolicy()) as (_, address):
        async with await RawPull.connect(address, hello=False) as peer:
            peer.send(HELLO)
            await peer.receive()
            peer.send(AUTH)
            assert (await peer.receive())["n"] == "UNAUTHENTICATED"


async def test_requests_before_the_token_is_checked_are_refused(broker: LogBroker) -> None:
    async with pull_server(broker, policy=TokenPolicy()) as (_, address):
        async with await login(address, "alice.s") as peer:
            peer.send({"k": "list", "i": 3})
            assert (await peer.receive())["n"] == "UNAUTHENTICATED"


ALLOWED_TO_ALICE = [
    ({"k": "fetch", "s": "other", "o": 1}, "read"),
    ({"k": "describe", "s": "other"}, "read"),
    ({"k": "create", "s": "other", "c": {"subject": "a.b"}}, "create"),
    ({"k": "delete", "s": "other"}, "delete"),
    ({"k": "compact", "s": "other"}, "admin"),
]


@pytest.mark.parametrize(("message", "operation"), ALLOWED_TO_ALICE)
async def test_every_request_passes_the_gate(
    broker: LogBroker, message: dict[str, Any], operation: str
) -> None:
    broker.add("other", subject="a.b")
    policy = TokenPolicy()
    async with pull_server(broker, policy=policy) as (_, address):
        async with await login(address, "bob.s") as peer:
            await peer.receive()
            answer = await ask(peer, message)
            assert answer["n"] == "FORBIDDEN"
            assert answer["m"].endswith(": rule for bob")
            assert answer["h"].startswith("ask the administrator")
            assert policy.asked == [
                ("bob", operation, "other", message.get("c", {}).get("subject"))
            ]
            assert "other" in broker.streams
        async with await login(address, "alice.s") as peer:
            await peer.receive()
            assert (await ask(peer, message))["k"] in ("data", "stream", "done")


async def test_forbidden_does_not_tell_whether_a_stream_exists(broker: LogBroker) -> None:
    async with pull_server(broker, policy=TokenPolicy()) as (_, address):
        async with await login(address, "bob.s") as peer:
            await peer.receive()
            answer = await ask(peer, {"k": "describe", "s": "nothing"})
            assert answer["n"] == "FORBIDDEN"


async def test_a_list_shows_what_may_be_read(broker: LogBroker) -> None:
    broker.add("other")
    async with pull_server(broker, policy=TokenPolicy()) as (_, address):
        for token, names in (("bob.s", ["orders"]), ("alice.s", ["orders", "other"])):
            async with await login(address, token) as peer:
                await peer.receive()
                answer = await ask(peer, {"k": "list"})
                assert [one["name"] for one in answer["d"]] == names


SECRET = "a-secret-that-is-long-enough"
ACL_FILE = f"""
principals:
  shop: {{token_hash: "{hash_token(SECRET)}"}}
  anonymous: {{}}
roles:
  look: [{{allow: [read], streams: ["orders"]}}]
  make: [{{allow: [create], streams: ["*"], attach: ["shop.>"]}}]
bindings:
  anonymous: [look]
  shop: [look, make]
"""


async def test_with_the_real_policy(broker: LogBroker) -> None:
    async with pull_server(broker, policy=Policy.load(ACL_FILE)) as (_, address):
        async with connect(address) as guest:
            assert guest.server.principal == "anonymous"
            assert (await guest.describe_stream("orders")).name == "orders"
            with pytest.raises(Forbidden, match="no rule allows anonymous"):
                await guest.create_stream("mine", subject="shop.a")
        async with connect(address, token=f"shop.{SECRET}") as shop:
            assert shop.server.principal == "shop"
            assert (await shop.create_stream("mine", subject="shop.a.>")).subject == "shop.a.>"
            await shop.create_stream("several", subject=["shop.b", "shop.c.*"])
            for subject in (">", "orders.>", "shop", None, ["shop.d", "orders"], ["shop.d", 5], []):
                with pytest.raises(Forbidden):
                    await shop.create_stream("more", subject=subject)
            with pytest.raises(Forbidden):
                await shop.delete_stream("mine")
            # The name is taken: the answer says that much, and no more.
            broker.add("theirs", subject="shop.secret", compression="zstd")
            with pytest.raises(Conflict) as caught:
                await shop.create_stream("theirs", subject="shop.a")
            assert not caught.value.details
            # Nor does a create that changes nothing describe it.
            broker.streams["theirs"].append([b"secret"] * 7)
            told = await shop.create_stream("theirs", subject="shop.secret", compression="zstd")
            assert told == StreamInfo(name="theirs", subject="shop.secret", state=told.state)
            with pytest.raises(Conflict) as caught:
                await shop.create_stream("orders", subject="shop.a")
            assert caught.value.details, "which it may read"
        with pytest.raises(Unauthenticated):
            await connect(address, token="shop.wrong")


async def test_clients_that_authenticate_at_once_are_bounded(broker: LogBroker) -> None:
    limits = PullLimits(max_pending_auths=1, auth_failure_delay_seconds=0)
    for place in ("loopback", "elsewhere"):
        rules: Any = TokenPolicy()
        release, check = threading.Event(), rules.authenticate_token

        def held(token: str, release: Any = release, check: Any = check) -> Any:
            return check(token) if token == "alice.s" else release.wait(20) and None

        rules.authenticate_token = held
        async with pull_server(broker, limits=limits, policy=rules) as (server, address):
            authenticator = server.services.authenticator
            guess = authenticator.identify_bearer
            others = [
                asyncio.create_task(guess(rules, place, "http:here", f"bob.{n}")) for n in range(4)
            ]
            await asyncio.sleep(0)
            assert authenticator.pending == 4
            async with await login(address, "alice.s") as peer, asyncio.timeout(20):
                while place == "elsewhere" and authenticator.pending < 5:
                    await asyncio.sleep(0.001)
                if place == "elsewhere":
                    release.set()  # two are checked at once
                told = await peer.receive()
            release.set()
            await asyncio.gather(*others, return_exceptions=True)
        assert told.get("n", told["k"]) == {"loopback": "LIMIT_EXCEEDED"}.get(place, "welcome")


async def test_a_swapped_policy_holds_for_the_next_request(broker: LogBroker) -> None:
    async with pull_server(broker, policy=TokenPolicy()) as (server, address):
        async with await login(address, "bob.s") as peer:
            await peer.receive()
            assert (await ask(peer, {"k": "describe", "s": "orders"}))["k"] == "stream"

            class Closed(TokenPolicy):
                def decide(self, *_: object) -> Verdict:
                    return Verdict(False, "closed")

            server.set_policy(Closed())
            assert (await ask(peer, {"k": "describe", "s": "orders"}))["n"] == "FORBIDDEN"


async def test_a_client_that_leaves_while_its_token_is_checked(broker: LogBroker) -> None:
    async with pull_server(broker, policy=TokenPolicy()) as (server, address):
        peer = await login(address, "bob.wrong")
        await peer.close()
        async with asyncio.timeout(5):
            while server.connection_count or server.services.jobs:
                await asyncio.sleep(0.001)
