"""What the HTTP port counts of requests, denials and sessions."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import pytest
from support.clients.opened_client import until
from support.clients.raw_pull import RawPull
from support.daemons.http_port import http_port
from support.daemons.pull_broker import LogBroker, pull_server

from acl.policy import Policy
from acl.tokens import hash_token
from liftlog.server.http.guard import ConnectionGuard
from liftlog.server.http.server import CUT_OFF, NO_ROUTE

SECRET = "a-secret-that-is-long-enough"
POLICY = f"""
principals: {{shop: {{token_hash: "{hash_token(SECRET)}"}}, anonymous: {{}}}}
roles: {{look: [{{allow: [read], streams: ["orders"]}}]}}
bindings: {{shop: [look]}}
"""
BOUNDS = "/api/v1/streams/{stream}/bounds"


@pytest.fixture
def broker(tmp_path: Path) -> LogBroker:
    made = LogBroker(tmp_path)
    made.add("orders")
    return made


async def get(session: aiohttp.ClientSession, url: str, token: str | None = None) -> int:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    async with session.get(url, headers=headers, allow_redirects=False) as answer:
        return answer.status


async def test_requests_are_counted_by_route_and_status(broker: LogBroker) -> None:
    async with (
        pull_server(broker, policy=Policy.load(POLICY)) as (pull, _),
        http_port(pull) as (http, url, _),
        aiohttp.ClientSession() as session,
    ):
        known = f"shop.{SECRET}"
        for path, token in [
            ("/livez", None),
            ("/livez", None),
            ("/api/v1/streams/orders/bounds", known),
            ("/api/v1/streams/payments/bounds", known),
            ("/api/v1/streams/orders/bounds", "shop.guessed"),
            ("/nowhere/a-secret-that-somebody-typed", None),
            ('/ui/streams/or"ders\n/records', None),
        ]:
            await get(session, url + path, token)
        async with session.put(f"{url}/livez") as answer:
            assert answer.status == 405
        assert http.counters.requests_total == {
            ("/livez", "200"): 2,
            (BOUNDS, "200"): 1,
            (BOUNDS, "403"): 1,
            (BOUNDS, "401"): 1,
            ("/ui/streams/{stream}/records", "400"): 1,
            (NO_ROUTE, "404"): 1,
            (NO_ROUTE, "405"): 1,
        }
        assert {route: found.count for route, found in http.counters.seconds.items()} == {
            "/livez": 2,
            BOUNDS: 3,
            "/ui/streams/{stream}/records": 1,
            NO_ROUTE: 2,
        }


async def test_who_makes_room_gets_no_answer(broker: LogBroker) -> None:
    async with (
        pull_server(broker, policy=Policy.load(POLICY)) as (pull, _),
        http_port(
            pull,
            failure_delay_seconds=3600,
            guard=ConnectionGuard(max_connections=1, health_places=0),
        ) as (
            http,
            url,
            _,
        ),
        aiohttp.ClientSession() as session,
    ):
        # Not by the session: aiohttp's client would try it again by itself.
        port = int(url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        path = BOUNDS.format(stream="orders")
        writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n".encode())
        writer.write(b"Authorization: Bearer shop.guessed\r\n\r\n")
        await until(lambda: pull.services.audit.denied_total)
        assert await get(session, f"{url}/livez") == 200
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()
        await until(lambda: len(http.counters.requests_total) == 2)
        assert http.counters.requests_total == {("/livez", "200"): 1, (BOUNDS, CUT_OFF): 1}


async def test_denials_are_counted_by_operation_and_way_in(broker: LogBroker) -> None:
    """The one gate and the one check of tokens count for both sockets."""
    async with (
        pull_server(broker, policy=Policy.load(POLICY)) as (pull, address),
        http_port(pull) as (_, url, _),
        aiohttp.ClientSession() as session,
    ):
        for _ in range(3):
            assert await get(session, f"{url}/api/v1/streams/orders/bounds", "shop.wrong") == 401
        for _ in range(2):
            assert await get(session, f"{url}/api/v1/streams/orders/bounds") == 403
        async with await RawPull.connect(address) as peer:
            peer.send({"k": "describe", "s": "orders", "i": 1})
            assert (await peer.receive())["n"] == "FORBIDDEN"
        assert pull.services.audit.denied_total == {
            ("login", "http"): 3,
            ("read", "http"): 2,
            ("read", "pull"): 1,
        }
