"""Frames between nodes come late, in part, twice, in another order, or are old ones: no replica
takes one for another, and what was acked is on all of them, once."""

from __future__ import annotations

import os

import pytest
from support.clients.ingesting import until
from support.daemons.cluster import NODES, Cluster, TimedPublisher, assert_kept
from support.daemons.frame_proxy import FAULTS, frame_proxies
from support.daemons.loop_thread import LoopThread
from support.daemons.nats_server import NatsServer
from support.rounds import rounds

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

STREAMS = {
    name: {"subject": f"{name}.>", "replicas": 3, "min_isr": 2, "segment": {"max_bytes": "64KiB"}}
    for name in ("one", "two")
}
QUICK = {"session": "6s", "lag_max": "5s"}
OF_EACH = rounds(3)


@pytest.mark.long
def test_no_replica_takes_one_frame_for_another(server: NatsServer) -> None:
    seed = int.from_bytes(os.urandom(4))
    with (
        LoopThread("frame-proxies", lambda: frame_proxies(len(NODES), seed)) as proxies,
        Cluster(
            server.url,
            STREAMS,
            cluster=QUICK,
            advertised={n: one.address for n, one in zip(NODES, proxies.served, strict=True)},
        ) as cluster,
    ):
        for name, proxy in zip(NODES, proxies.served, strict=True):
            proxy.target = cluster.nodes[name].pull_address
        for stream in STREAMS:
            cluster.wait_isr(stream)
        publishers = {
            (stream, n): TimedPublisher(server.port, f"{stream}.{n}", in_flight=10, pad=300)
            for stream in STREAMS
            for n in range(2)
        }
        for publisher in publishers.values():
            publisher.start()

        def is_enough() -> bool:
            return all(
                sum(proxy.done[fault] for proxy in proxies.served) >= OF_EACH for fault in FAULTS
            )

        for proxy in proxies.served:
            proxy.is_bad = True
        until(is_enough, 120, f"{OF_EACH} of each fault, seed {seed}")
        # In the next epoch the frames of this one are replayed.
        leader = cluster.leader("one")
        cluster.stop(leader)
        for proxy in proxies.served:
            proxy.done.clear()
        cluster.start(leader)
        until(is_enough, 120, f"{OF_EACH} of each fault, seed {seed}")
        for proxy in proxies.served:
            proxy.is_bad = False
        for stream in STREAMS:
            cluster.wait_isr(stream)
        for publisher in publishers.values():
            publisher.finish()
        for stream in STREAMS:
            own = [one for (name, _), one in publishers.items() if name == stream]
            history = assert_kept(own, cluster.read_all(stream))
            assert history.acks > 0
        cluster.assert_sound()
