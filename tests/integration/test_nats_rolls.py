"""Planned restarts of NATS servers: the daemon moves in time, and nothing is lost or doubled."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from typing import Any

import pytest
from support.clients.ingesting import (
    assert_no_traceback,
    describe,
    publish,
    records_of,
    until,
    values_of,
)
from support.clients.raw_nats import RawNats
from support.clients.steady_publisher import IdPublisher, SteadyPublisher
from support.daemons.daemon import Daemon
from support.daemons.loop_thread import LoopThread
from support.daemons.nats_cluster import NatsCluster
from support.daemons.nats_links import NatsLinks
from support.daemons.nats_server import NatsServer

pytestmark = pytest.mark.integration

LAME = {"lame_duck_duration": "30s", "lame_duck_grace_period": "5s"}
STREAMS = {
    "ids": {"subject": "ids.>"},
    "plain": {"subject": "plain.>"},
    "same": {"subject": "same.>"},
    "queue": {"subject": "queue.>", "queue_group": "q"},
    "witness": {"subject": "_INBOX.>", "acks": "off"},
}


@pytest.fixture
def cluster() -> Iterator[NatsCluster]:
    with NatsCluster(3, **LAME) as cluster:
        yield cluster


def serving(server: NatsServer, **nats: Any) -> Daemon:
    """It knows one server, and hears of the others."""
    return Daemon(server.url, {"streams": STREAMS, "nats": {"reconnect_wait": "50ms", **nats}})


def server_of(daemon: Daemon, cluster: NatsCluster) -> NatsServer:
    """Where the daemon is connected, by its log."""
    port = re.findall(r'"(?:server|to)": "127\.0\.0\.1:(\d+)"', daemon.log)[-1]
    [found] = [one for one in cluster.servers if one.port == int(port)]
    return found


def roll(daemon: Daemon, cluster: NatsCluster, publishers: list[SteadyPublisher]) -> None:
    """Restart each server once, that of the daemon first."""
    rolled: set[NatsServer] = set()
    while len(rolled) < len(cluster.servers):
        server = server_of(daemon, cluster)
        if server in rolled:
            server = next(one for one in cluster.servers if one not in rolled)
        others = [one for one in cluster.servers if one is not server]
        for number, publisher in enumerate(publishers):
            publisher.move(others[number % len(others)].port)
        handovers = daemon.metric("liftlog_nats_handovers_total")
        was_ours = server is server_of(daemon, cluster)
        server.lame_duck()
        if was_ours:
            until(lambda: daemon.metric("liftlog_nats_handovers_total") > handovers)  # noqa: B023
            assert server_of(daemon, cluster) is not server
        server.wait_ended()
        server.start()
        cluster.wait_formed()
        rolled.add(server)


@pytest.mark.long
def test_a_roll_of_a_cluster_costs_nothing(cluster: NatsCluster) -> None:
    ports = [server.port for server in cluster.servers]
    with serving(cluster.servers[0]) as daemon:
        ids = IdPublisher(ports[0], "ids.a", per_second=400)
        plain = SteadyPublisher(ports[1], "plain.a", per_second=1000)
        same = SteadyPublisher(ports[2], "same.a", per_second=500, same=True)
        queue = SteadyPublisher(ports[0], "queue.a", per_second=500)
        publishers = [ids, plain, same, queue]
        for publisher in publishers:
            publisher.start()
        until(lambda: len(ids.acked) > 500)
        roll(daemon, cluster, publishers)
        for publisher in publishers:
            publisher.finish()
        for name, publisher in (("plain", plain), ("same", same), ("queue", queue)):
            stored = [0]

            def all_there() -> bool:
                stored[0] = describe(daemon, name).high_watermark - 1  # noqa: B023
                return stored[0] >= publisher.published  # noqa: B023

            until(all_there, 20, f"{name}: {stored[0]} of {publisher.published}")

        assert len(ids.acked) == ids.published > 1000
        assert (ids.repeated, ids.duplicates) == (0, 0), "no ack was lost on the way"
        by_offset = {one.offset: int(one.value or b"") for one in records_of(daemon, "ids")}
        assert by_offset == {offset: number for number, offset in ids.acked.items()}
        # In the publisher's order, each once.
        assert values_of(daemon, "plain") == [b"%d" % number for number in range(plain.published)]
        # Equal in everything, faster than the two connections differ: none lost, few doubled.
        assert 0 <= len(values_of(daemon, "same")) - same.published <= 100
        counted = Counter(int(value or b"") for value in values_of(daemon, "queue"))
        assert counted == Counter(range(queue.published))
        assert values_of(daemon, "witness") == [], "our own acks are not messages of any stream"
        for name in STREAMS:
            assert describe(daemon, name).possible_losses == [], name
        assert daemon.metric("liftlog_nats_handovers_total") >= 1
        assert daemon.metric("liftlog_nats_disconnects_total") == 0
        assert_no_traceback(daemon)


@asynccontextmanager
async def links_of(size: int) -> AsyncIterator[NatsLinks]:
    links = NatsLinks(size)
    await links.start()
    try:
        yield links
    finally:
        await links.close()


def test_acks_that_are_on_their_way_between_two_servers() -> None:
    """The server that the daemon leaves has taken them. The one that it goes to has not."""
    with LoopThread("links", partial(links_of, 2)) as thread:
        links = thread.served
        cluster = NatsCluster(2, links=links, **LAME)
        links.connect(cluster.route_ports)
        with cluster:
            urls = [server.url for server in cluster.servers]
            settings = {"streams": STREAMS, "nats": {"servers": urls}}
            with Daemon(urls[0], settings) as daemon, ExitStack() as stack:
                old = server_of(daemon, cluster)
                [new] = [server for server in cluster.servers if server is not old]
                raw = stack.enter_context(RawNats(new.port))
                assert publish(raw, "ids.a", b"1")["seq"] == 1
                thread.call(partial(links.isolate, cluster.servers.index(old), hears=True))
                for number in range(2, 102):
                    raw.pub("ids.a", b"%d" % number, reply=raw.new_reply())
                until(lambda: describe(daemon, "ids").high_watermark == 102)
                known = new.subjects()
                old.lame_duck()
                until(lambda: any(one.startswith("_INBOX.") for one in new.subjects() - known))
                thread.call(links.heal)
                until(lambda: daemon.metric("liftlog_nats_handovers_total") == 1)
                assert publish(raw, "ids.a", b"102")["seq"] == 102
                assert describe(daemon, "witness").high_watermark == 1, "none of our acks is there"
                assert describe(daemon, "ids").possible_losses == []
                assert_no_traceback(daemon)


def test_lame_duck_without_another_server() -> None:
    """There is nowhere to go: as good as any restart, and told as what it was."""
    with NatsServer(**LAME) as server, serving(server) as daemon, RawNats(server.port) as raw:
        assert publish(raw, "ids.a", b"1")["seq"] == 1
        server.lame_duck()
        until(lambda: "lame_duck" in json.loads(daemon.get("/readyz")[1])["warnings"])
        assert publish(raw, "ids.a", b"2")["seq"] == 2, "it serves until the end"
        server.wait_ended()
        until(lambda: not daemon.ready)
        server.start()
        until(lambda: daemon.ready)
        [loss] = describe(daemon, "ids").possible_losses
        assert "no other server was available" in loss["reason"]
        assert daemon.metric("liftlog_nats_disconnects_by_cause_total", cause="lame_duck") == 1
        with RawNats(server.port) as again:
            assert publish(again, "ids.a", b"3")["seq"] == 3


def test_the_server_dies_during_the_handover(cluster: NatsCluster) -> None:
    """Then something may be lost, and the streams note it."""
    with serving(cluster.servers[0]) as daemon:
        server = server_of(daemon, cluster)
        others = [one for one in cluster.servers if one is not server]
        plain = SteadyPublisher(others[0].port, "plain.a", per_second=500)
        plain.start()
        until(lambda: describe(daemon, "plain").high_watermark > 100)
        server.lame_duck()
        until(lambda: others[0].connections() + others[1].connections() >= 2)
        server.kill()
        until(lambda: daemon.metric("liftlog_nats_handovers_total") == 1)
        until(lambda: daemon.ready)
        plain.finish()
        [loss] = describe(daemon, "plain").possible_losses
        assert "the old connection" in loss["reason"]
        until(lambda: b"%d" % (plain.published - 1) in values_of(daemon, "plain"))
        numbers = [int(value or b"") for value in values_of(daemon, "plain")]
        assert numbers == sorted(set(numbers)), "none doubled"
        assert_no_traceback(daemon)


def test_over_websockets_too() -> None:
    websocket = {"listen": "127.0.0.1:-1", "no_tls": True}
    with NatsCluster(2, websocket=websocket, **LAME) as cluster:
        found = re.search(r"websocket clients on (ws://127\.0\.0\.1:\d+)", cluster.servers[0].log)
        assert found is not None
        with Daemon(found[1], {"streams": STREAMS}) as daemon:
            cluster.servers[0].lame_duck()
            until(lambda: daemon.metric("liftlog_nats_handovers_total") == 1)
            with RawNats(cluster.servers[1].port) as raw:
                assert publish(raw, "ids.a", b"1")["seq"] == 1
            assert daemon.metric("liftlog_nats_disconnects_total") == 0
            assert_no_traceback(daemon)
