"""No request of one client makes another client's wait for the daemon's processor time, however
many of them are in flight: 64 on each of 16 connections, on the largest state that the quotas of a
principal allow.

The short form sends all kinds of a door at once; `make request-flood` sends one kind at a time.
Judged is the processor time that the daemon spends from a victim's request to its answer, so the
load of the machine does not count.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.clients.flooding_client import Plan
from support.clients.ingesting import assert_no_traceback
from support.clients.request_flood import (
    FLOODER,
    SMALL,
    UNANSWERED,
    WHOLE,
    FloodWorld,
    control_requests,
    flood_world,
    flooded,
    http_request,
    jetstream_plan,
    jetstream_requests,
    pull_plan,
    pull_requests,
)
from support.daemons.http_port import routes_of_daemon
from support.daemons.nats_server import NatsServer
from support.daemons.pull_broker import LogBroker, pull_server

import liftlog.server.jetstream_api.service  # noqa: F401 - registers its methods
from liftlog.protocol.messages import REQUESTS
from liftlog.server.jetstream_api.methods import METHODS

pytestmark = pytest.mark.integration

ROUNDS = int(os.environ.get("FLOOD_ROUNDS", "0"))
BOUND_SECONDS = 0.25 if ROUNDS else 0.5
"""The limit for one kind of request; all kinds at once also compete with each other."""
KINDS = re.compile(os.environ.get("FLOOD_KINDS", ""))
SECONDS = 2.0 if ROUNDS else 1.0
"""The length of one flood."""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.fixture(scope="module")
def world() -> Iterator[FloodWorld]:
    with NatsServer(
        http=f"127.0.0.1:{free_port()}", leafnodes={"listen": "127.0.0.1:-1"}
    ) as server:
        with flood_world(server, WHOLE if ROUNDS else SMALL) as world:
            yield world
            assert_no_traceback(world.daemon)


def judge(world: FloodWorld, floods: dict[str, Plan]) -> None:
    """Each flood counts by the better one of two runs, in which each victim has a bound."""
    for _ in range(ROUNDS or 1):
        bad = []
        for name, plan in floods.items():
            for _ in range(2):
                found = flooded(world, name, plan)
                print(found, flush=True)
                if not found.errors and max(found.worst().values()) < BOUND_SECONDS:
                    break
            else:
                bad.append(str(found))
            count = found.sent if UNANSWERED in name else sum(found.answers.values())
            assert count > 0, f"{name} is no flood: {found}"
        assert not bad, "\n".join(bad)


def plans(world: FloodWorld, door: str, requests: dict[str, list[list[str]]]) -> dict[str, Plan]:
    """One plan for each kind, or one for all of them."""
    if not ROUNDS:
        requests = {f"all of {door}": [one for some in requests.values() for one in some]}
    different: dict[str, tuple[str, list[list[str]]]] = {}
    for kind, some in requests.items():
        known, _ = different.get(repr(some), ("", some))
        different[repr(some)] = f"{known} {kind}".strip(), some
    return {
        f"{door} {kinds}": Plan(door, world.port_of(door), some, SECONDS, token=FLOODER)
        for kinds, some in different.values()
        if KINDS.search(kinds)
    }


def test_pull_requests(world: FloodWorld) -> None:
    requests = pull_requests(world)
    assert set(requests) == set(REQUESTS), "the campaign lacks a kind of request"
    judge(world, plans(world, "pull", {kind: pull_plan(requests, [kind]) for kind in requests}))


async def _routes(directory: Path) -> list[tuple[str, str]]:
    """(method, path) of each route of the HTTP port, from the port itself."""
    broker = LogBroker(directory)
    async with pull_server(broker) as (pull, _):
        found = await routes_of_daemon(pull)
    broker.close()
    return found


async def test_http_requests(world: FloodWorld, tmp_path: Path) -> None:
    requests = {
        f"{method} {path}": [[http_request(method, path)]]
        for method, path in await _routes(tmp_path)
    }
    judge(world, plans(world, "http", requests))


def test_jetstream_requests(world: FloodWorld) -> None:
    requests = jetstream_requests()
    assert set(requests) - {"unknown"} == set(METHODS), "the campaign lacks a method"
    judge(world, plans(world, "nats", {one: jetstream_plan([one]) for one in requests}))


def test_control_subjects(world: FloodWorld) -> None:
    """The server tells to what the daemon subscribes: the subjects of records, JetStream's, the
    inboxes of its own requests, and what must be in `control_requests`."""
    requests = control_requests(world)
    records = ("big.", "spent.", "victim.", "s", "t", "$KV.")
    others = {
        one for one in world.server.subjects()
        if not one.startswith((*records, "$JS.API.", "_INBOX."))
    }  # fmt: skip
    assert others == {one.partition(",")[0] for one in requests}, "the campaign lacks a subject"
    judge(world, plans(world, "nats", requests))
