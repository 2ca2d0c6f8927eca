"""Clients of JetStream's API give streams the same subjects at the same moment: one succeeds."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from support.clients.ingesting import assert_no_traceback, until
from support.clients.raw_nats import RawNats
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer

pytestmark = pytest.mark.integration

_OVERLAP = 10065
_TURNS = 10


@pytest.fixture(scope="module")
def daemon(server: NatsServer) -> Iterator[Daemon]:
    with Daemon(server.url, {"nats": {"jetstream_api": True}}) as daemon:
        with RawNats(server.port) as raw:
            until(lambda: raw.request("$JS.API.INFO", b"").payload != b"")
        yield daemon
        assert_no_traceback(daemon)


@pytest.fixture
async def clients(server: NatsServer, daemon: Daemon) -> AsyncIterator[list[Client]]:
    made = [await nats.connect(server.url) for _ in range(2)]
    yield made
    for client in made:
        await client.close()


async def ask(client: Client, method: str, name: str, *subjects: str) -> int:
    """Return 0, or the code of the error."""
    config: dict[str, Any] = {"name": name, "subjects": subjects}
    body = b"" if method == "DELETE" else json.dumps(config).encode()
    answer = await client.request(f"$JS.API.STREAM.{method}.{name}", body, 20)
    found: dict[str, Any] = json.loads(answer.data)
    return int(found.get("error", {}).get("err_code", 0))


@pytest.mark.parametrize("first", ["CREATE", "UPDATE"])
@pytest.mark.parametrize("second", ["CREATE", "UPDATE"])
async def test_one_of_two_gets_the_subject(clients: list[Client], first: str, second: str) -> None:
    for turn in range(_TURNS):
        methods = {f"a{turn}": first, f"b{turn}": second}
        for name, method in methods.items():
            if method == "UPDATE":
                assert await ask(clients[0], "CREATE", name, name) == 0
        codes = await asyncio.gather(
            *(
                ask(client, method, name, name, "shared.>")
                for client, (name, method) in zip(clients, methods.items(), strict=True)
            )
        )
        assert sorted(codes) == [0, _OVERLAP], turn
        for name in methods:
            await ask(clients[0], "DELETE", name)
