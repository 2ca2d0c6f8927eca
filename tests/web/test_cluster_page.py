"""The pages of a cluster, which a daemon on its own does not have, in a real Chromium."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import expect
from support.accessibility import check_accessible, check_with_axe, is_as_wide_as_its_window
from support.browser import NewWindow
from support.cluster import Cluster
from support.nats_server import NatsServer

pytestmark = pytest.mark.integration

STREAM = "plant-eu-central-1-line-42-temperature-and-vibration-of-all"


@pytest.fixture(scope="module")
def cluster(server: NatsServer) -> Iterator[Cluster]:
    with Cluster(server.url, {STREAM: {"subject": "plant.>", "replicas": 3}}) as cluster:
        cluster.wait_all_in_sync()
        yield cluster


def test_every_page_of_a_cluster_on_a_desk_and_on_a_phone(
    cluster: Cluster, window: NewWindow
) -> None:
    page = window(cluster.nodes["a"]).page
    for path in (f"/ui/streams/{STREAM}", "/ui/cluster"):
        for width, scheme in ((1280, "light"), (390, "dark")):
            page.set_viewport_size({"width": width, "height": 800})
            page.emulate_media(color_scheme=scheme)
            page.goto(path)
            check_accessible(page)
            check_with_axe(page, rule="" if scheme == "light" else "color-contrast")
            assert is_as_wide_as_its_window(page), (path, width)
            for table in page.get_by_role("region").all():
                if table.is_visible():
                    assert table.evaluate("one => one.scrollWidth <= one.clientWidth"), path
    nodes = page.get_by_role("region", name="Nodes, a table")
    expect(nodes.get_by_role("row")).to_have_count(4)
    label = "one => getComputedStyle(one, '::before').content"
    assert nodes.get_by_role("cell").first.evaluate(label) == '"State: "'
