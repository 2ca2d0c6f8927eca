"""Who did what: the events of the logger `liftlog.audit`."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.clients.raw_pull import HELLO, RawPull
from support.daemons.logins import OPS, QUICK, SECRET, SEED, SHOP
from support.daemons.pull_broker import LogBroker, pull_server

from acl.policy import Policy
from acl.tokens import hash_token
from liftlog.client import connect
from liftlog.errors import Unauthenticated


@pytest.fixture
def seed_file(tmp_path: Path) -> Path:
    file = tmp_path / "ops.nk"
    file.write_text(SEED + "\n")
    return file


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
        assert server.services.audit.denied_total["read", "pull"] == 500
