"""The pages of a cluster, which a daemon on its own does not have, in a real Chromium."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import expect
from support.clients.accessibility import check_in_every_way
from support.clients.browser import NewWindow
from support.daemons.cluster import Cluster
from support.daemons.nats_server import NatsServer

pytestmark = pytest.mark.integration

STREAM = "plant-eu-central-1-line-42-temperature-and-vibration-of-all"


@pytest.fixture(scope="module")
def cluster(server: NatsServer) -> Iterator[Cluster]:
    streams = {STREAM: {"subject": "plant.>", "replicas": 3}, "one": {"subject": "one.>"}}
    with Cluster(server.url, streams) as cluster:
        cluster.wait_all_in_sync()
        yield cluster


@pytest.mark.long
def test_every_page_of_a_cluster_in_every_way(cluster: Cluster, window: NewWindow) -> None:
    page = window(cluster.nodes["a"]).page
    for path in ("/ui/streams", f"/ui/streams/{STREAM}", f"/ui/streams/{STREAM}/records",
                 "/ui/cluster", "/ui/topology", "/ui/health"):  # fmt: skip
        page.goto(path)
        check_in_every_way(page, path)
    page.goto("/ui/cluster")
    nodes = page.get_by_role("region", name="Nodes, a table")
    expect(nodes.get_by_role("row")).to_have_count(4)
    label = "one => getComputedStyle(one, '::before').content"
    assert nodes.get_by_role("cell").first.evaluate(label) == '"State: "'


def test_pages_of_a_node_without_a_copy(cluster: Cluster, window: NewWindow) -> None:
    """Where the stream is, and no alarm: that a node has no copy is as it should be."""
    leader = cluster.leader("one")
    other = next(name for name in cluster.nodes if name != leader)
    page = window(cluster.nodes[other]).page
    page.goto("/ui/streams/one")
    expect(page.locator(".notice")).to_have_text(re.compile(f"no copy .* node {leader}, has"))
    assert page.locator(".notice.bad, .notice.warn").count() == 0
    check_in_every_way(page, "a stream that is elsewhere")
    for daemon in cluster.nodes.values():  # of which one has the checkpoints
        assert json.loads(daemon.get("/readyz")[1])["warnings"] == {}


@pytest.mark.long
def test_pages_of_a_cluster_that_lacks_a_node(cluster: Cluster, window: NewWindow) -> None:
    cluster.kill("c")
    cluster.wait_isr(STREAM, ("a", "b"))
    page = window(cluster.nodes["a"]).page
    for path in ("/ui/cluster", f"/ui/streams/{STREAM}"):
        page.goto(path)
        expect(page.get_by_text("under-replicated").first).to_be_visible()
        check_in_every_way(page, path)
    page.goto("/ui/cluster")
    expect(page.get_by_text("down", exact=True)).to_be_visible(timeout=60_000)
