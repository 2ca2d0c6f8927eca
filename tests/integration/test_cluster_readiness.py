"""A rolling restart asks `/readyz` whether to go on: after a start, a node is ready once its
replicas are in sync."""

from __future__ import annotations

import json
import time

import pytest
from support.daemons.cluster import PATIENCE, Cluster
from support.daemons.nats_server import NatsServer

pytestmark = pytest.mark.integration

STREAM = "s"


def test_a_node_waits_for_its_replicas() -> None:
    streams = {STREAM: {"subject": "s.>", "replicas": 3}}
    with NatsServer() as server, Cluster(server.url, streams) as cluster:
        late, others = "c", ("a", "b")
        for daemon in cluster.nodes.values():
            daemon.settings["cluster"]["ready_after"] = "1h"
        cluster.wait_isr(STREAM)
        cluster.kill(late)
        cluster.wait_isr(STREAM, others)
        cluster.kill(*others)
        node = cluster.nodes[late]
        node.spawn()
        node.wait_listening()
        deadline = time.monotonic() + PATIENCE
        while True:
            status, text = node.get("/readyz")
            problems = json.loads(text)["problems"]
            assert problems, "ready without a leader"
            missing = problems.get("cluster", "").partition("not in sync yet: ")[2]
            if STREAM in missing.split(", "):
                break
            assert time.monotonic() < deadline, problems
            time.sleep(0.05)
        assert status == 503
        cluster.start(*others)  # which are in sync: ready
        node.wait_ready()
        cluster.wait_isr(STREAM)
