"""The address that a client uses next, from the reports of the nodes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from liftlog.client.aio.routing import Router
from liftlog.client.blocking.routing import SyncRouter
from liftlog.client.connecting.routes import Routes, Wandering, key_of, stream_key
from liftlog.client.connecting.target import Target
from liftlog.errors import InvalidArgument, NotLeader, NotReady
from liftlog.protocol.checkpoints import FetchCheckpoint
from liftlog.protocol.client_connection import Exchange
from liftlog.protocol.messages import ANY_REPLICA, Fetch, Ping

A, B, C = (f"tcp://127.0.0.1:{port}" for port in (9292, 9293, 9294))


def routes(addresses: str, tls: str | None = None) -> Routes:
    return Routes(Target.of_all(addresses, None, None, tls, 1.0, 1.0, 1.0))


def led_at(address: str) -> NotLeader:
    return NotLeader("another node leads", leader="b", address=address)


def test_addresses_are_separated_by_commas() -> None:
    assert list(routes(f"{A}, {B},{A}").targets) == [A, B]
    with pytest.raises(InvalidArgument):
        routes(f"{A},")


def test_a_stream_is_asked_for_where_its_leader_is() -> None:
    found = routes(A)
    assert not found.has_choice
    assert found.told("s", A, led_at(B))
    assert found.address_of("s") == B
    assert found.address_of("t") == A
    assert found.has_choice


def test_the_nearest_copy_is_that_of_the_first_address_in_sync() -> None:
    found, key = routes(f"{A},{B},{C}"), stream_key("s", ANY_REPLICA)
    assert found.address_of(key) == A
    for near in (B, C):
        assert found.told(key, found.address_of(key), led_at(C))
        assert found.address_of(key) == near
    assert found.address_of("s") == A, "other requests go on as they did"
    assert found.told(key, C, led_at(B)), "none is in sync"
    assert found.address_of(key) == B


def test_of_one_address_the_leader_is_asked_when_its_copy_is_not_in_sync() -> None:
    found, key = routes(A), stream_key("s", ANY_REPLICA)
    assert found.told(key, A, led_at(B))
    assert found.address_of(key) == B


def test_a_leader_that_does_not_answer_is_forgotten() -> None:
    found = routes(f"{A},{B}")
    found.told("s", A, led_at(C))
    found.failed("s", C)
    assert found.address_of("s") == A
    found.failed("s", A)
    assert [found.address_of("s"), found.address_of("")] == [B, B]


@pytest.mark.parametrize("address", ["", A, "http://no.such", "tcp://127.0.0.1:0"])
def test_a_node_that_names_no_other_one_is_not_asked_next(address: str) -> None:
    found = routes(f"{A},{B}")
    assert not found.told("s", A, led_at(address))
    assert found.address_of("s") == B


def test_a_node_that_is_not_ready_is_asked_again() -> None:
    found = routes(f"{A},{B}")
    assert not found.told("s", A, NotReady("soon"))
    assert found.address_of("s") == A


def test_who_asked_for_tls_is_not_led_away_from_it() -> None:
    found = routes("tls://127.0.0.1:9292")
    assert not found.told("s", "tls://127.0.0.1:9292", led_at(B))
    assert B not in found.targets
    assert found.told("s", "tls://127.0.0.1:9292", led_at("tls://127.0.0.1:9293"))


def test_addresses_that_nodes_name_are_bounded() -> None:
    found = routes(A)
    for port in range(1000, 2000):
        found.told("s", A, led_at(f"tcp://127.0.0.1:{port}"))
    assert len(found.targets) <= 64


def test_without_a_choice_one_address_gets_all_the_time() -> None:
    assert routes(A).deadline_at(5.0, 60.0) == 60.0
    assert routes(A).deadline_at(5.0, None) is None
    assert routes(f"{A},{B}").deadline_at(5.0, 60.0) < 10.0
    assert routes(f"{A},{B}").deadline_at(5.0, 5.5) == 5.5


def test_what_a_request_is_about() -> None:
    assert key_of(Fetch("s")) == stream_key("s", None) == "s"
    assert key_of(Fetch("s", replica="b")) == stream_key("s", "b") != "s"
    assert key_of(Ping()) == key_of(FetchCheckpoint("s", "c")) == ""


def test_a_named_node_is_asked_at_once_but_only_once() -> None:
    way = Wandering()
    assert way.pause_before(B, is_named=True) == 0.0
    pauses = [way.pause_before(B, is_named=True) for _ in range(10)]
    assert 0.02 <= pauses[0] <= 0.05
    assert max(pauses) <= 1.0


@pytest.mark.parametrize("kind", [Router, SyncRouter])
async def test_time_spent_on_the_way_to_the_right_node_is_not_counted_twice(
    kind: type[Router] | type[SyncRouter], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the last node has no time left, or a negative time."""
    ends: list[float] = []

    def ask_once(*asked: Any) -> Exchange:
        ends.append(asked[-2])
        exchange = Exchange()
        if len(ends) < 4:
            exchange.error = NotReady("try again")
        return exchange

    async def ask_once_async(*asked: Any) -> Exchange:
        return ask_once(*asked)

    is_async = kind is Router
    monkeypatch.setattr(kind, "_ask_once", ask_once_async if is_async else ask_once)
    router = kind([*routes(f"{A},{B}").targets.values()])
    if isinstance(router, Router):
        await router.ask(Ping(), 10.0)
    else:
        await asyncio.to_thread(router.ask, Ping(), 10.0)
    assert len(ends) == 4
    assert len({*ends}) == 1
