"""The catalog of a node: the record changes first, and what it does not know of is left to the
catalog of a daemon on its own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from support.daemons.catalogs import cluster_catalog, lone_catalog

from liftlog.cluster import transitions
from liftlog.cluster.record import StreamMetadata
from liftlog.errors import (
    Conflict,
    MetadataUnavailable,
    NotReady,
    StreamNotFound,
    StreamUnavailable,
)
from liftlog.server.node.cluster_catalog import needed_node_of, node_of
from liftlog.settings import parse_stream_settings

SETTINGS = {"subject": "s.>", "replicas": 1, "min_isr": 1}


class Node:
    """Node `a`, which leads the stream `s`; its metadata store may be away."""

    def __init__(self, *names: str) -> None:
        self.records = {
            name: transitions.create(name, f"{name}-1", SETTINGS, "a", starts={"a": 1})
            for name in names
        }
        self.is_away = False
        self.done: list[str] = []
        self.mirror = self.view = self

    def knows(self, name: str) -> bool:
        return name in self.records and not self.records[name].deleted

    async def change(self, name: str, step: Any) -> StreamMetadata | None:
        if self.is_away:
            raise MetadataUnavailable("on purpose")
        self.records[name] = step(self.records[name]) or self.records[name]
        self.done.append("record")
        return self.records[name]

    update = change


def host_of(node: Node, name: str = "s") -> Any:
    log = SimpleNamespace(
        environment=SimpleNamespace(age_clock_ns=lambda: 0),
        log_start_offset=1,
        high_watermark=10,
        leases=SimpleNamespace(active=lambda now_ns: []),
    )
    return SimpleNamespace(name=name, log=log)


@pytest.mark.parametrize("is_away", [False, True])
async def test_settings_are_in_the_record_before_they_are_in_the_manifest(is_away: bool) -> None:
    node = Node("s")
    node.is_away = is_away
    wanted = parse_stream_settings({**SETTINGS, "subject": "other.>"})

    async def apply() -> None:
        node.done.append("manifest")

    changing = cluster_catalog(node).update(host_of(node), wanted, apply)
    if is_away:
        with pytest.raises(MetadataUnavailable):
            await changing
        assert node.done == []
    else:
        await changing
        assert node.done == ["record", "manifest"]
        assert node.records["s"].settings["subject"] == "other.>"


async def test_a_copy_that_no_record_knows_of_is_changed_alone() -> None:
    """Its stream was deleted meanwhile. The file of records of a daemon on its own stays away."""
    node, done = Node(), []

    async def apply() -> int:
        done.append("manifest")
        return 7

    catalog = cluster_catalog(node)
    await catalog.update(host_of(node), parse_stream_settings(SETTINGS), apply)
    assert await catalog.truncate(host_of(node), 5, apply) == 7
    assert (node.done, done) == ([], ["manifest", "manifest"])


async def test_a_copy_that_no_record_knows_of_is_deleted_alone() -> None:
    node = Node()
    with pytest.raises(StreamNotFound):  # as the other catalog says
        await cluster_catalog(node).delete("s")
    assert node.done == []


def test_only_a_catalog_of_a_cluster_has_a_node() -> None:
    node = Node("s")
    broker: Any = SimpleNamespace(catalog=cluster_catalog(node))
    assert node_of(broker) is needed_node_of(broker) is node
    broker.catalog = lone_catalog({})
    assert node_of(broker) is None
    with pytest.raises(Conflict, match="belongs to no cluster"):
        needed_node_of(broker)


def test_without_checkpoints_a_node_is_asked_again_and_a_daemon_on_its_own_is_not() -> None:
    assert isinstance(cluster_catalog(Node()).no_checkpoints(), NotReady)
    assert isinstance(lone_catalog({}).no_checkpoints(), StreamUnavailable)
