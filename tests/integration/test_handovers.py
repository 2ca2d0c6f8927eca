"""The lead moves while publishers go on: no publish fails, and each message is stored once."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping

import pytest
from support.clients.command_line import COMMAND
from support.clients.handover_load import EveryWay
from support.clients.ingesting import until
from support.daemons.cluster import NODES, PATIENCE, Cluster
from support.daemons.nats_server import NatsServer

from liftlog.cli.lib.exit_codes import ExitCode

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

REPLICATED = {"replicas": 3, "min_isr": 2}
STREAMS = {
    "in": {"subject": "in.>", **REPLICATED},
    "shared": {"subject": "shared.>", "queue_group": "workers", **REPLICATED},
}
CALM = {"balance_interval": "1h", "suspect_after": "20s"}  # no leader is taken for dead
RATE = 100.0
ATTEMPTS = 3
_STALLED = re.compile(r"too long|did not answer in")
"""What a node says of a machine that stands still for seconds: a step of a handover exceeds its
limit. Then publishers may notice something, as they are told."""


def stalled(cluster: Cluster) -> str:
    """The first such line; empty if there is none."""
    lines = (line for daemon in cluster.nodes.values() for line in daemon.log.splitlines())
    return next(filter(_STALLED.search, lines), "")


def elect(cluster: Cluster, through: str, *args: str) -> tuple[int, str]:
    done = subprocess.run(
        [*COMMAND, "cluster", "elect", "--server", cluster.nodes[through].pull_address, *args],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_a_leader_that_stops_hands_over_what_it_leads(server: NatsServer) -> None:
    """And one that is asked to, through any node."""
    for attempt in range(1, ATTEMPTS + 1):
        with Cluster(server.url, STREAMS, cluster=CALM) as cluster:
            for stream in STREAMS:
                cluster.wait_isr(stream)
            try:
                the_lead_moves(cluster, server)
            except AssertionError:
                line = stalled(cluster)
                if not line or attempt == ATTEMPTS:
                    raise
                print(f"attempt {attempt} was on a machine that stood still: {line}")
            else:
                cluster.assert_sound()
                return


def the_lead_moves(cluster: Cluster, server: NatsServer) -> None:
    loads = {name: EveryWay(server.port, name, RATE) for name in STREAMS}
    for load in loads.values():
        load.start()
    try:
        the_lead_moves_under(cluster, loads)
    finally:
        for load in loads.values():
            load.finish()
    for stream, load in loads.items():
        cluster.wait_settled(stream)
        load.check(cluster, stream, NODES)
        print(f"{stream}: {len(load.acked)} acked, all within {load.slowest(1.0):.2f} s")
    assert "possible-loss" not in "".join(daemon.log for daemon in cluster.nodes.values())


def the_lead_moves_under(cluster: Cluster, loads: Mapping[str, EveryWay]) -> None:
    for stream, load in loads.items():
        until(lambda load=load: len(load.acked) > 20, PATIENCE, f"acks of {stream}")
        leader, to = cluster.leader(stream), cluster.followers(stream)[0]
        code, said = elect(cluster, cluster.followers(stream)[1], stream, "--node", to)
        assert (code, f"led by node {to}" in said) == (ExitCode.OK, True), said
        assert cluster.stream(stream, through=to).leader == to != leader
        assert cluster.nodes[leader].metric("liftlog_handovers_total", result="ok") >= 1
    stopped = cluster.leader("in")
    epoch = cluster.stream("in").leader_epoch
    cluster.stop(stopped)
    up = [node for node in NODES if node != stopped]
    for stream in STREAMS:
        cluster.wait_isr(stream, up)  # it has left
    assert cluster.stream("in").leader_epoch == epoch + 1, "no election was needed"
    for load in loads.values():
        acked = len(load.acked)
        until(lambda load=load, acked=acked: len(load.acked) > acked + 20, PATIENCE)
    code, said = elect(cluster, up[0], "in", "--node", stopped)
    assert code != ExitCode.OK
    assert "in sync are" in said
    cluster.start(stopped)
    for stream in STREAMS:
        cluster.wait_isr(stream)
