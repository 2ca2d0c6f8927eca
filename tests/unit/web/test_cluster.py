"""The pages of a node of a cluster: what needs help first, and where the leader's page is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.daemons.catalogs import cluster_catalog

from acl.policy import Policy
from liftlog.cluster import transitions
from liftlog.cluster.record import StreamMetadata
from liftlog.server.metadata.membership import NodeInfo
from liftlog.server.web.pages import cluster as cluster_page

STARTS = {"a": 1, "b": 1, "c": 1}


def record(name: str, **changes: Any) -> StreamMetadata:
    settings = {"subject": f"{name}.>", "replicas": 3}
    return replace(transitions.create(name, "00c0ffee", settings, "abc", starts=STARTS), **changes)


class Node:
    """Node a of three: b is draining and has a web page, c is down."""

    def __init__(self, *records: StreamMetadata, lags: Mapping[str, int] | None = None) -> None:
        leader = SimpleNamespace(lags=lambda: lags or {}, is_ready=True)
        self.member = SimpleNamespace(name="a", cluster_id="00dec0de")
        self.led = {
            one.name: SimpleNamespace(leader=leader) for one in records if one.leader == "a"
        }
        self.followed = {one.name: SimpleNamespace(lag=7) for one in records if one.leader == "b"}
        nodes = {
            "a": NodeInfo("a", 1, "1", "tcp://10.0.0.1:9292", "1.0", zone="z1"),
            "b": NodeInfo(
                "b", 1, "2", "tcp://10.0.0.2:9292", web="https://b.example", draining=True
            ),
            "c": NodeInfo("c", 1, "3", "tcp://10.0.0.3:9292", web="javascript:alert(1)"),
        }
        directory = SimpleNamespace(nodes=nodes, live={"a", "b"})
        self.mirror = SimpleNamespace(
            directory=directory, records={one.name: one for one in records}
        )

        self.silent: set[str] = set()
        self.view = self

    def silent_seconds(self, node: str) -> float:
        return 4.0 * (node in self.silent)

    def is_down(self, node: str) -> bool:
        return node in self.silent and node not in self.mirror.directory.live

    def leader_of(self, record: StreamMetadata) -> str | None:
        return None if record.leader is None or self.is_down(record.leader) else record.leader

    def leads(self, name: str) -> bool:
        return name in self.led

    def answerer(self, name: str) -> None:
        """This node answers itself, with what it knows."""

    def known(self, name: str) -> StreamMetadata | None:
        found: StreamMetadata | None = self.mirror.records.get(name)
        return found


@pytest.fixture
def join(broker: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    return lambda node: monkeypatch.setattr(type(broker), "catalog", cluster_catalog(node))


async def test_a_daemon_on_its_own(site: Any, orders: Any) -> None:
    async with site() as browser:
        _, text, _ = await browser.get("/ui/cluster")
        assert "belongs to no cluster" in text
        assert 'href="/ui/cluster"' not in text, "no link in the navigation"
        assert json.loads((await browser.get("/ui/streams/orders.json"))[1])["replication"] is None


async def test_a_node_that_is_not_heard_is_neither_live_nor_in_sync(
    site: Any, orders: Any, join: Any
) -> None:
    """For some seconds the record says of a node that is gone that it leads."""
    node = Node(record("of_b", replicas=("b",), isr=("b",), leader="b"), record("of_a", isr=("a",)))
    node.silent.add("b")
    join(node)
    async with site() as browser:
        data = json.loads((await browser.get("/ui/cluster.json"))[1])
    assert data["totals"] == {"live": 1, "streams": 2, "troubled": 2}


async def test_a_node_that_is_down_leads_nothing(site: Any, orders: Any, join: Any) -> None:
    """The record names it for as long as no other replica can take over."""
    node = Node(record("of_c", replicas=("c",), isr=("c",), leader="c"))
    node.silent.add("c")
    join(node)
    async with site() as browser:
        [row] = json.loads((await browser.get("/ui/cluster.json"))[1])["streams"]
    assert (row["state"], row["leader"], row["leader_page"]) == ("no leader", "", "")


async def test_what_needs_help_comes_first(site: Any, orders: Any, join: Any) -> None:
    join(
        Node(
            record("whole"),
            record("orders", isr=("a", "b")),
            record("few", isr=("a",)),
            record("idle", leader=None),
            record("gone", deleted=True),
            lags={"b": 3, "c": 12},
        )
    )
    async with site() as browser:
        data = json.loads((await browser.get("/ui/cluster.json"))[1])
        assert [(one["name"], one["state"]) for one in data["streams"]] == [
            ("idle", "no leader"),
            ("few", "too few in sync"),
            ("orders", "under-replicated"),
            ("whole", "in sync"),
        ]
        assert data["totals"] == {"live": 2, "streams": 4, "troubled": 3}
        assert [(one["node"], one["state"], one["leads"], one["replicas"], one["zone"])
                for one in data["nodes"]] == [
            ("a", "live", 3, 4, "z1"), ("b", "draining", 0, 4, ""), ("c", "down", 0, 4, ""),
        ]  # fmt: skip
        assert data["streams"][2]["lag"] == 12
        assert data["streams"][2]["copies"] == [
            {"node": "a", "in_sync": True, "lag": None},
            {"node": "b", "in_sync": True, "lag": 3},
            {"node": "c", "in_sync": False, "lag": 12},
        ]
        _, text, _ = await browser.get("/ui/cluster?q=ORD")
        assert "/ui/streams/orders" in text
        assert "/ui/streams/whole" not in text
        assert "javascript:" not in text
        assert (await browser.get("/ui/cluster?q=nothing-of-this"))[0] == 200
        _, text, _ = await browser.get("/ui/streams/orders")
        assert "under-replicated" in text
        assert "2 of 3" in text


async def test_a_stream_that_another_node_leads(site: Any, orders: Any, join: Any) -> None:
    join(Node(record("orders", leader="b")))
    async with site() as browser:
        for page in ("/ui/cluster", "/ui/streams/orders"):
            assert 'href="https://b.example/ui/streams/orders"' in (await browser.get(page))[1]
        data = json.loads((await browser.get("/ui/streams/orders.json"))[1])
        assert data["replication"]["leader"] == "b"
        assert data["replication"]["lag"] == 7
        row = json.loads((await browser.get("/ui/streams.json"))[1])["streams"][0]
        assert row["replication"] == {
            "state": "in sync",
            "leader": "b",
            "leader_page": "https://b.example/ui/streams/orders",
        }
        join(Node(record("orders", leader="c")))
        _, text, _ = await browser.get("/ui/streams/orders")
        assert "javascript:" not in text


async def test_only_what_one_may_read(site: Any, orders: Any, join: Any, policy: Policy) -> None:
    join(Node(record("orders"), record("secret")))
    async with site(policy) as browser:
        await browser.sign_in("eu")
        _, text, _ = await browser.get("/ui/cluster.json")
        assert [one["name"] for one in json.loads(text)["streams"]] == ["orders"]
        assert "secret" not in text
        assert json.loads(text)["nodes"][0]["leads"] == 1


def test_a_node_that_stops_is_shown_as_such_until_it_is_gone() -> None:
    node = Node()
    stopping = replace(node.mirror.directory.nodes["b"], stopping=True)

    def shown() -> Any:
        return cluster_page._node(cast(Any, node), stopping, [])["state"]

    assert shown() == "stopping"
    node.silent.add("b")
    assert shown() == "silent"
    node.mirror.directory.live.discard("b")
    assert shown() == "down"
