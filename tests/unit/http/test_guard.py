"""Who makes room on the HTTP port when all places are taken."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from support.clients.opened_client import until
from support.daemons.http_port import Healthy, NoMetrics, http_port
from support.daemons.pull_broker import LogBroker, pull_server

from acl.policy import Policy
from acl.tokens import hash_token
from liftlog.errors import Unauthenticated
from liftlog.server.http import callers, guard
from liftlog.server.http.guard import ConnectionGuard, identifying, require_place
from liftlog.server.http.port import HttpPort
from liftlog.server.http.server import HttpServer
from liftlog.server.metrics.exposition import CONTENT_TYPE

SECRET = "a-secret-that-is-long-enough"
POLICY = f"""
principals: {{shop: {{token_hash: "{hash_token(SECRET)}"}}}}
roles: {{look: [{{allow: [read], streams: ["*"]}}]}}
bindings: {{shop: [look]}}
"""
KNOWN, GUESSED = f"shop.{SECRET}", "shop.not-the-secret-of-the-shop"
STRANGE = "nobody.a-secret-that-opens-nothing"
PLACES = 8
FOR_EVER = 3600.0


class Peer:
    """One connection from an address of this machine."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def at(cls, address: str, place: str) -> Peer:
        host, _, port = address.rpartition("/")[2].rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port), local_addr=(place, 0)))

    def ask(self, path: str, token: str | None = None) -> None:
        head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        if token is not None:
            head += f"Authorization: Bearer {token}\r\n"
        self.writer.write(head.encode() + b"\r\n")

    async def status(self) -> int:
        """Of the next answer; 0 when the connection was cut off."""
        async with asyncio.timeout(10):
            try:
                head = await self.reader.readuntil(b"\r\n\r\n")
            except (asyncio.IncompleteReadError, ConnectionError):
                return 0
            lines = head.decode().lower().split("\r\n")
            lengths = [line for line in lines if line.startswith("content-length:")]
            await self.reader.readexactly(int(lengths[0].partition(":")[2]))
        return int(lines[0].split()[1])

    async def get(self, path: str, token: str | None = None) -> int:
        self.ask(path, token)
        return await self.status()

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


class Port:
    def __init__(self, address: str, guard: ConnectionGuard) -> None:
        self.address, self.guard = address, guard
        self.peers: list[Peer] = []

    async def peer(self, place: str) -> Peer:
        """A connection that the server knows of."""
        before = self.guard.connection_count + self.guard.evicted_total
        peer = await Peer.at(self.address, place)
        self.peers.append(peer)
        await until(lambda: self.guard.connection_count + self.guard.evicted_total > before)
        return peer

    async def flood(self, place: str, count: int, token: str | None = None) -> list[Peer]:
        peers = []
        for _ in range(count):
            peer = await self.peer(place)
            if token is not None:
                peer.ask(BOUNDS, token)
            peers.append(peer)
        return peers


BOUNDS = "/api/v1/streams/orders/bounds"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LogBroker]:
    broker = LogBroker(tmp_path)
    broker.add("orders").append([b"1"])
    yield broker
    broker.close()


@pytest.fixture(autouse=True)
def each_address_is_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of loopback is one place; here its addresses stand for other machines."""
    for module in (guard, callers):
        monkeypatch.setattr(module, "place_of", lambda host: host)


@asynccontextmanager
async def guarded(broker: LogBroker, **options: Any) -> AsyncIterator[Port]:
    """A client that presents a wrong token is held for as long as the test runs."""
    guard = ConnectionGuard(max_connections=PLACES, health_places=0, **options)
    async with pull_server(broker, policy=Policy.load(POLICY)) as (pull, _):
        async with http_port(pull, failure_delay_seconds=FOR_EVER, guard=guard) as (_, url, _):
            port = Port(url, guard)
            try:
                yield port
            finally:
                for peer in port.peers:
                    await peer.close()


def tasks_of_requests() -> int:
    coroutines: list[Any] = [task.get_coro() for task in asyncio.all_tasks()]
    return sum("_handle_request" in one.__qualname__ for one in coroutines)


async def test_guesses_do_not_lock_out_those_who_know(broker: LogBroker) -> None:
    async with guarded(broker) as port:
        kept = await port.peer("127.0.0.1")
        assert await kept.get(BOUNDS, KNOWN) == 200
        await port.flood("127.0.0.2", 3 * PLACES, GUESSED)
        await until(lambda: tasks_of_requests() == PLACES - 1)  # nothing but who has a place
        late = await port.peer("127.0.0.3")
        assert await late.get(BOUNDS, KNOWN) == 200
        assert await kept.get(BOUNDS, KNOWN) == 200
        # From the place of one who is known, too.
        await port.flood("127.0.0.1", 3 * PLACES, STRANGE)
        assert await kept.get(BOUNDS, KNOWN) == 200
        assert await late.get(BOUNDS, KNOWN) == 200
        assert port.guard.connection_count == PLACES
        assert port.guard.refused_total == 0
        assert port.guard.evicted_total == len(port.peers) - PLACES


async def test_strangers_make_room_where_most_of_them_are(broker: LogBroker) -> None:
    """Not the client that waits longest of all: that may be a health check on a kept connection."""
    async with guarded(broker) as port:
        probe = await port.peer("127.0.0.3")
        assert await probe.get("/livez") == 200
        flood = await port.flood("127.0.0.2", 3 * PLACES)
        assert await probe.get("/livez") == 200
        gone = [await peer.status() for peer in flood[: 2 * PLACES + 1]]
        assert gone == [0] * (2 * PLACES + 1)
        assert await flood[-1].get("/livez") == 200


async def test_who_is_known_makes_room_last_but_does(broker: LogBroker) -> None:
    async with guarded(broker) as port:
        known = [await port.peer("127.0.0.1") for _ in range(PLACES)]
        for peer in known:
            assert await peer.get(BOUNDS, KNOWN) == 200
        late = await port.peer("127.0.0.2")
        assert await late.get("/livez") == 200
        assert await known[0].status() == 0
        later = await port.peer("127.0.0.1")
        assert await later.get(BOUNDS, KNOWN) == 200
        assert await late.status() == 0, "a stranger goes before the others"


async def test_who_has_gone_while_it_was_looked_at_keeps_no_place(broker: LogBroker) -> None:
    async with guarded(broker) as port:
        for peer in await port.flood("127.0.0.2", PLACES, GUESSED):
            await until(tasks_of_requests)
            await peer.close()
        await until(lambda: all(seat.connection.transport is None for seat in _seats(port)))
        late = await port.peer("127.0.0.3")
        assert await late.get(BOUNDS, KNOWN) == 200


def _seats(port: Port) -> list[Any]:
    return list(port.guard._seats.values())


async def test_nobody_is_looked_at_for_ever(broker: LogBroker) -> None:
    async with guarded(broker, timeout_seconds=0.1) as port:
        (peer,) = await port.flood("127.0.0.2", 1, GUESSED)
        assert await peer.status() == 0
        await until(lambda: not tasks_of_requests())
        assert port.guard.timed_out_total == 1


class Slow(Healthy):
    """Health checks that are answered when `go_on` is set."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()

    async def readiness(self) -> tuple[bool, dict[str, Any]]:
        await self.go_on.wait()
        return True, {}


class SlowMetrics:
    def __init__(self) -> None:
        self.go_on = asyncio.Event()

    content_type = CONTENT_TYPE

    async def render(self) -> bytes:
        await self.go_on.wait()
        return b""


class Doors:
    """`/known` and `/unknown` find out who calls when `tell` is set, which takes no place from
    others; the answer follows when `go_on` is set."""

    def __init__(self) -> None:
        self.tell, self.go_on = asyncio.Event(), asyncio.Event()

    def recognized(self, request: web.Request) -> None:
        return None

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/known", self._known), web.get("/unknown", self._unknown)]

    async def _known(self, request: web.Request) -> web.Response:
        with identifying(request):
            await self.tell.wait()
        require_place(request)
        await self.go_on.wait()
        return web.Response()

    async def _unknown(self, request: web.Request) -> web.Response:
        try:
            with identifying(request):
                await self.tell.wait()
                raise Unauthenticated("who?")
        except Unauthenticated:
            await self.go_on.wait()
            return web.Response(status=401)

    async def close(self) -> None:
        pass


@asynccontextmanager
async def bare_port(
    health: Any, metrics: Any, guard: ConnectionGuard, *mounted: Any
) -> AsyncIterator[tuple[Port, HttpServer]]:
    server = HttpServer(health, metrics, mounted=mounted, guard=guard)
    bound = await HttpPort.bind("127.0.0.1:0")
    await server.serve(bound)
    port = Port(bound.address, guard)
    try:
        yield port, server
    finally:
        for peer in port.peers:
            await peer.close()
        await server.close()


async def test_who_is_being_served_makes_no_room_and_the_next_is_told() -> None:
    health, guard = Slow(), ConnectionGuard(max_connections=1, health_places=1)
    async with bare_port(health, NoMetrics(), guard) as (port, _):
        asked = [await port.peer("127.0.0.1") for _ in range(2)]
        for peer in asked:
            peer.ask("/readyz")
        await until(lambda: not any(seat.waits for seat in _seats(port)))
        for count in (1, 2, 3):
            refused = await Peer.at(port.address, "127.0.0.2")
            port.peers.append(refused)
            refused.ask("/livez")  # bytes that are not read must not reset the answer
            answer = await asyncio.wait_for(refused.reader.read(), 10)
            assert answer.startswith(b"HTTP/1.1 503 "), answer
            assert answer.endswith(b"\r\n\r\ntoo many connections\n")
            assert guard.refused_total == count
        health.go_on.set()
        assert [await peer.status() for peer in asked] == [200, 200]


async def test_places_are_left_for_health_checks() -> None:
    """Requests that take long, sent by anybody, cannot keep a probe out."""
    metrics = SlowMetrics()
    guard = ConnectionGuard(max_connections=PLACES - 2, health_places=2)
    async with bare_port(Healthy(), metrics, guard) as (port, _):
        slow = [await port.peer("127.0.0.2") for _ in range(PLACES)]
        for peer in slow:
            peer.ask("/metrics")
        for _ in range(3 * PLACES):
            probe = await Peer.at(port.address, "127.0.0.2")
            assert await probe.get("/livez") == 200
            assert await probe.get("/readyz") == 200
            assert await probe.get("/metrics") == 503
            await probe.close()
        metrics.go_on.set()
        answers = [await peer.status() for peer in slow]
        assert answers.count(200) == PLACES - 2


async def _ask_at_once(port: Port, path: str) -> list[Peer]:
    """As many callers as there are connections, all of them being identified."""
    callers = [await port.peer("127.0.0.2") for _ in range(PLACES)]
    for peer in callers:
        peer.ask(path)
    await until(lambda: all(seat.identifying for seat in _seats(port)))
    return callers


async def test_who_is_identified_at_once_leaves_the_places_for_health_checks() -> None:
    doors, guard = Doors(), ConnectionGuard(max_connections=PLACES - 2, health_places=2)
    async with bare_port(Healthy(), NoMetrics(), guard, doors) as (port, _):
        callers = await _ask_at_once(port, "/known")
        doors.tell.set()
        await until(lambda: guard.refused_total == 2)
        probe = await Peer.at(port.address, "127.0.0.2")
        assert await probe.get("/livez") == 200
        assert await probe.get("/readyz") == 200
        await probe.close()
        doors.go_on.set()
        answers = [await peer.status() for peer in callers]
        assert answers.count(200) == PLACES - 2
        assert set(answers) <= {200, 503, 0}  # the probe may have ended one that was refused


@pytest.mark.parametrize("gone", [False, True], ids=["they wait", "they have gone"])
async def test_answers_to_unknown_callers_lock_out_no_health_check(gone: bool) -> None:
    doors, guard = Doors(), ConnectionGuard(max_connections=PLACES - 2, health_places=2)
    async with bare_port(Healthy(), NoMetrics(), guard, doors) as (port, _):
        for peer in await _ask_at_once(port, "/unknown"):
            if gone:
                await peer.close()
        doors.tell.set()
        for _ in range(3 * PLACES):
            probe = await Peer.at(port.address, "127.0.0.2")
            assert await probe.get("/livez") == 200
            await probe.close()
        assert guard.refused_total == 0
        await until(lambda: tasks_of_requests() < PLACES)  # those that made room have ended


async def test_who_has_gone_keeps_no_place() -> None:
    async with bare_port(
        Healthy(), NoMetrics(), ConnectionGuard(max_connections=4, health_places=0)
    ) as (port, _):
        for _ in range(4 * 25):
            peer = await Peer.at(port.address, "127.0.0.2")
            await peer.close()
        probe = await Peer.at(port.address, "127.0.0.3")
        assert await probe.get("/livez") == 200
        await until(lambda: port.guard.connection_count == 1)
        assert port.guard.refused_total == 0
        await probe.close()


async def test_a_connection_that_ends_as_it_begins_is_no_error() -> None:
    """aiohttp's task for it begins one turn of the loop later, and finds nothing there."""
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    async with bare_port(Healthy(), NoMetrics(), ConnectionGuard()) as (port, _):
        protocol = port.guard.make_protocol()
        transport: Any = SimpleNamespace(get_extra_info=lambda name: None, close=lambda: None)
        protocol.connection_made(transport)
        protocol.connection_lost(ConnectionResetError())
        del protocol
        await until(lambda: not tasks_of_connections())
    gc.collect()
    assert told == []
    assert port.guard.connection_count == 0


def tasks_of_connections() -> list[str]:
    names = (str(task.get_coro()) for task in asyncio.all_tasks())
    return [name for name in names if "RequestHandler" in name]


async def test_a_form_that_comes_slowly_makes_room(broker: LogBroker) -> None:
    async with guarded(broker) as port:
        for _ in range(3 * PLACES):
            peer = await port.peer("127.0.0.2")
            peer.writer.write(
                b"POST /ui/login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n"
                b"Content-Type: application/x-www-form-urlencoded\r\n\r\na"
            )
        await until(lambda: tasks_of_requests() == PLACES)
        late = await port.peer("127.0.0.3")
        assert await late.get("/livez") == 200
        assert await late.get(BOUNDS, KNOWN) == 200
        assert port.guard.refused_total == 0
