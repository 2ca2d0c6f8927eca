"""What ends logins, and how many of them, right and wrong, a daemon bears."""

from __future__ import annotations

import asyncio
import secrets
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.clients.raw_pull import RawPull
from support.daemons.logins import OPS, QUICK, SECRET, SEED, SHOP, policy, principal_at
from support.daemons.pull_broker import LogBroker, pull_server
from support.daemons.pull_inside import in_flight_of

from acl.policy import Policy
from acl.tokens import Algorithm, hash_token
from liftlog.client import connect
from liftlog.errors import LimitExceeded, Unauthenticated
from liftlog.server.pull import PullLimits


@pytest.fixture
def seed_file(tmp_path: Path) -> Path:
    file = tmp_path / "ops.nk"
    file.write_text(SEED + "\n")
    return file


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
        with pytest.raises(Unauthenticated, match="no longer valid"):
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
    go_on, loop = threading.Event(), asyncio.get_running_loop()
    check = old.authenticate_token

    def slowly(token: str) -> str | None:
        found = check(token)
        loop.call_soon_threadsafe(checking.set)
        assert go_on.wait(20)
        return found

    old.authenticate_token = slowly  # type: ignore[method-assign]
    async with pull_server(broker, limits=QUICK, policy=old) as (server, address):
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
        real = server.services.gate.policy
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
        assert server.services.authenticator.pending == 0


async def test_a_check_that_its_first_asker_left_serves_the_others(broker: LogBroker) -> None:
    async with pull_server(broker, policy=policy(SHOP)) as (server, _):
        rules, hold = server.services.gate.policy, threading.Event()
        assert isinstance(rules, Policy)
        check = rules.authenticate_token

        def slow(token: str) -> str | None:
            hold.wait(10)
            return check(token)

        rules.authenticate_token = slow  # type: ignore[method-assign]
        ask = partial(server.services.authenticator.identify_bearer, rules, "here", "http:here")
        first, second = (asyncio.create_task(ask(f"shop.{SECRET}")) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait([first])
        assert server.services.authenticator.pending == 1, "a thread still works at it"
        hold.set()
        assert (await second).principal == "shop"
        assert server.services.authenticator.pending == 0


async def test_a_check_that_has_just_ended_holds_up_nobody(broker: LogBroker) -> None:
    """A client between its end and its callbacks does not wait: nothing may depend on that."""
    async with pull_server(broker, policy=policy(SHOP)) as (server, _):
        rules, authenticator = server.services.gate.policy, server.services.authenticator
        assert isinstance(rules, Policy)
        ask = partial(authenticator.identify_bearer, rules, "here", "http:here", f"shop.{SECRET}")
        first = asyncio.create_task(ask())
        await asyncio.sleep(0)
        checks = authenticator._checks
        [listed] = checks
        ended: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        ended.set_result("shop")
        checks[listed] = ended
        assert (await ask()).principal == "shop"
        assert (await first).principal == "shop"


async def test_strangers_do_not_keep_out_a_token_that_was_checked(broker: LogBroker) -> None:
    limits = PullLimits(auth_failure_delay_seconds=0, max_pending_auths=1)
    async with pull_server(broker, limits=limits, policy=policy(SHOP)) as (server, address):
        assert await principal_at(address, token=f"shop.{SECRET}") == "shop"
        rules, release = server.services.gate.policy, threading.Event()
        assert isinstance(rules, Policy)

        def held(token: str) -> str | None:
            assert release.wait(20)
            return None

        rules.authenticate_token = held  # type: ignore[method-assign]
        guess = server.services.authenticator.identify_bearer
        strangers = [
            asyncio.create_task(guess(rules, "loopback", "http:here", f"shop.{n}"))
            for n in range(4)
        ]
        await asyncio.sleep(0)
        assert await principal_at(address, token=f"shop.{SECRET}") == "shop"
        with pytest.raises(LimitExceeded, match="at once"):
            await principal_at(address, token="shop.something-else")
        release.set()
        await asyncio.gather(*strangers, return_exceptions=True)


async def test_guesses_from_many_places_do_not_shut_out_a_first_login(broker: LogBroker) -> None:
    """Places take turns, each has room for some checks, and the time in the queue is the daemon's,
    not the client's."""
    release, checked = threading.Event(), []
    limits = PullLimits(
        auth_failure_delay_seconds=0, max_pending_auths=8, hello_timeout_seconds=0.3
    )
    async with pull_server(broker, limits=limits, policy=policy(SHOP)) as (server, address):
        rules = server.services.gate.policy
        assert isinstance(rules, Policy)
        check = rules.authenticate_token

        def slowly(token: str) -> str | None:
            release.wait(20)
            checked.append(token)
            return check(token)

        rules.authenticate_token = slowly  # type: ignore[method-assign]
        guess = server.services.authenticator.identify_bearer
        guesses = [
            asyncio.create_task(guess(rules, f"2001:db8:{n // 8}::/64", "far", f"shop.{n}"))
            for n in range(80)
        ]
        await asyncio.sleep(0)
        login = asyncio.create_task(principal_at(address, token=f"shop.{SECRET}"))
        async with asyncio.timeout(20):
            while server.services.authenticator.pending == 8 + 9 * 4:
                await asyncio.sleep(0.001)
            await asyncio.sleep(2 * limits.hello_timeout_seconds)
            release.set()
            assert await login == "shop"
        found = await asyncio.gather(*guesses, return_exceptions=True)
    refused = [one for one in found if isinstance(one, LimitExceeded)]
    assert len(refused) == 80 - 8 - 9 * 4, "the first place fills all room, others have their share"
    # Two are checked at once, and each of the ten places has one check before this one.
    assert checked.index(f"shop.{SECRET}") < 2 + 10 + 2
    assert server.services.authenticator._pending_of == {}


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
        assert in_flight_of(server) == {}


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
            assert in_flight_of(server)["anonymous"].count == 2
            await one.close()
            async with asyncio.timeout(10):
                while server.connection_count > 1:
                    await asyncio.sleep(0.001)
            assert in_flight_of(server)["anonymous"].count == 1
