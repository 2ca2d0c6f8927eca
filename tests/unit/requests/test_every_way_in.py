"""No request of the pull API and no route of the HTTP port goes round the gate.

The requests are made from their own declarations, and the routes are those of the port itself, so
what is added later is covered, or fails here until its operation is declared.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import aiohttp
import pytest
from support.clients.raw_pull import RawPull
from support.clients.request_examples import SECRET, example_of
from support.daemons.catalogs import cluster_catalog
from support.daemons.http_port import http_port, routes_of
from support.daemons.pull_broker import LogBroker, pull_server

from acl.policy import Policy
from liftlog.cluster import transitions
from liftlog.protocol.checkpoints import Checkpoint
from liftlog.protocol.described import DaemonInfo
from liftlog.protocol.groups import GroupInfo
from liftlog.protocol.messages import REQUESTS, StreamInfo
from liftlog.protocol.replication import ClusterInfo
from liftlog.server.http.server import HttpServer
from liftlog.server.requests.rights import HANDLERS, STARTERS

NOBODY_MAY_ANYTHING = "principals: {anonymous: {}}\nroles: {}\nbindings: {}\n"

GUARDED_ELSEWHERE = {
    "ping": "tells nothing",
    "cancel": "concerns the connection's own requests",
    "fetch": "the connection asks the gate itself",
    "peer": "likewise",
    "replicate": "likewise",
    "suspect": "likewise",
    "copies": "likewise",
    "ends": "likewise",
    "consumerstates": "likewise",
    "resign": "likewise",
    "work": "likewise",
    "rest": "likewise",
    "ack": "likewise",
    "forward": "likewise; what it carries was judged by the node that forwards it",
}
SHOW_WHAT_MAY_BE_READ = {"list", "streamsfor", "metadata", "checkpoints", "groups", "cluster"}
OPEN_ROUTES = {
    "/livez", "/readyz", "/metrics",  # for those who watch the daemon, see explanation/security.md
    "/ui/static/{file}", "GET /ui/login", "/", "/ui", "/ui/",
}  # fmt: skip
SHOWING_ROUTES = {
    "/ui/streams", "/ui/consumers", "/ui/topology", "/ui/access", "/ui/health", "/ui/cluster",
}  # fmt: skip
"""And their twins: they show what may be read."""


class Trapped(LogBroker):
    """A daemon that must not be reached for any stream; it only tells what there is."""

    reached: list[str]

    def trap(self) -> None:
        self.reached = []

    def stream(self, name: str) -> Any:
        self.reached.append(name)
        return super().stream(name)

    async def list_streams(self) -> list[StreamInfo]:
        return [StreamInfo(SECRET, "a.b")]

    def daemon_info(self, may_read: Any, conditions: Any = ()) -> DaemonInfo:
        return DaemonInfo(stream_count=int(may_read(SECRET)))

    @property
    def administration(self) -> Any:
        return _Administration(self.reached)

    @property
    def erasing(self) -> Any:
        return _Sensor(self.reached)

    @property
    def catalog(self) -> Any:
        return cluster_catalog(_Replicated(self.reached))

    @property
    def checkpoints(self) -> Any:
        return _Checkpoints(self.reached)


class _Sensor:
    def __init__(self, reached: list[str]) -> None:
        self._reached = reached

    def __getattr__(self, name: str) -> Any:
        self._reached.append(name)
        raise AssertionError(f"{name} was reached")


class _Administration(_Sensor):
    def streams_for(self, subject: str) -> list[StreamInfo]:
        return [StreamInfo(SECRET, "a.b")]


class _Replicated(_Sensor):
    led: ClassVar[dict[str, Any]] = {}
    followed: ClassVar[dict[str, Any]] = {}
    member = SimpleNamespace(name="a", cluster_id="c0ffee")
    mirror = SimpleNamespace(
        records={SECRET: transitions.create(SECRET, "i", {"subject": "a.b"}, "a", starts={"a": 1})},
        directory=SimpleNamespace(nodes={}, live=set()),
    )

    @property
    def view(self) -> Any:
        return self

    def answerer(self, name: str) -> None:
        """All streams are here."""

    def other_leaders(self) -> dict[str, str]:
        return {}

    clocks = SimpleNamespace(shown_seconds=None)
    session = None

    def describe(self, hosts: Any, may_read: Any, clock_ahead_seconds: Any) -> ClusterInfo:
        return ClusterInfo("c0ffee", [], [{"name": SECRET}] if may_read(SECRET) else [])


class _Checkpoints(_Sensor):
    """The web page shares one listing of all readers among its viewers, and shows each his own."""

    def page(self, may_read: Any, **_: Any) -> tuple[list[Any], None]:
        return [Checkpoint(consumer="c", stream=SECRET)] if may_read(SECRET) else [], None

    @property
    def groups(self) -> Any:
        return _Groups(self._reached)


class _Groups(_Sensor):
    def page(self, may_read: Any, **_: Any) -> tuple[list[Any], None]:
        return [GroupInfo(group="g", stream=SECRET)] if may_read(SECRET) else [], None


@pytest.fixture
def trapped(tmp_path: Path) -> Iterator[Trapped]:
    broker = Trapped(tmp_path)
    broker.add(SECRET, subject="a.b").append([b"1"])
    broker.trap()
    yield broker
    broker.close()


def test_every_kind_of_request_is_known_to_the_gate() -> None:
    asked = {kind.KIND for kind in (*HANDLERS, *STARTERS)}
    assert asked | set(GUARDED_ELSEWHERE) == set(REQUESTS)
    assert not asked & set(GUARDED_ELSEWHERE)
    showing = {kind.KIND for kind, handler in HANDLERS.items() if handler.operation is None}
    assert showing == SHOW_WHAT_MAY_BE_READ


@pytest.mark.parametrize("kind", sorted(REQUESTS))
async def test_a_request_that_nothing_allows_reaches_nothing(trapped: Trapped, kind: str) -> None:
    policy = Policy.load(NOBODY_MAY_ANYTHING)
    async with pull_server(trapped, policy=policy) as (_, address):
        async with await RawPull.connect(address) as peer:
            peer.send(example_of(REQUESTS[kind]))
            if kind == "cancel":
                peer.send({"k": "ping", "i": 8})
            answer = await peer.receive()
    if kind in ("ping", "cancel"):
        assert answer["k"] == "pong"
    elif kind in SHOW_WHAT_MAY_BE_READ:
        assert answer["k"] != "error"
        assert SECRET not in repr(answer)
        assert answer["d"] == [] or not (
            answer["d"].get("stream_count") or answer["d"].get("streams")
        )
    else:
        assert answer["n"] == "FORBIDDEN"
    assert trapped.reached == []


async def test_a_route_that_nothing_allows_reaches_nothing(trapped: Trapped) -> None:
    async with pull_server(trapped, policy=Policy.load(NOBODY_MAY_ANYTHING)) as (pull, _):
        async with http_port(pull) as (server, base, changed):
            await every_route(server, base)
            assert trapped.reached == changed == []


async def every_route(server: HttpServer, base: str) -> None:
    routes = routes_of(server)
    assert len(routes) > len(OPEN_ROUTES)
    assert {path for _, path in routes} >= SHOWING_ROUTES | {"/livez", "/readyz", "/metrics"}
    async with aiohttp.ClientSession() as session:
        for method, path in routes:
            where = path.replace("{stream}", SECRET).replace("{offset}", "1")
            where = where.replace("{file}", "live.js").replace("{consumer}", "c")
            where = where.replace("{group}", "g").replace("{worker}", "w")
            where = where.replace("{nowhere}", f"streams/{SECRET}/x")
            assert "{" not in where, "say what stands for this part of the path"
            async with session.request(
                method, base + where, params={"before": "1"}, json={"value": "x"}
            ) as response:
                text = await response.text()
                shows = path.removesuffix(".json") in SHOWING_ROUTES
                is_open = path in OPEN_ROUTES or f"{method} {path}" in OPEN_ROUTES
                is_nowhere = "{nowhere}" in path
                wanted = 404 if is_nowhere else 200 if is_open or shows else 403
                assert response.status == wanted, (method, path, text)
                assert SECRET not in text or (wanted == 403 and SECRET in where), (method, path)


async def test_what_raises_is_no_way_round(trapped: Trapped) -> None:
    """A policy that fails denies."""

    class Broken:
        allows_anonymous = True
        accepts_tokens = accepts_nkeys = False

        def principal_of_certificate(self, names: Any) -> None:
            return None

        def credential(self, name: str, method: str) -> object:
            return name

        def __getattr__(self, name: str) -> Any:
            raise LookupError(name)

    async with pull_server(trapped, policy=Broken()) as (_, address):
        async with asyncio.timeout(10), await RawPull.connect(address, hello=True) as peer:
            for kind in ("fetch", "describe", "delete", "list"):
                peer.send(example_of(REQUESTS[kind]))
                assert (await peer.receive())["n"] == "INTERNAL"
    assert trapped.reached == []
