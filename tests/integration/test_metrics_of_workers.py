"""The metrics of consumers with acks follow what workers do."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from support.clients.ingesting import until
from support.clients.raw_nats import RawNats
from support.clients.workers_over_nats import PATIENCE, SECOND, create, daemon_for_workers, pulled
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer

pytestmark = pytest.mark.integration


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    with (
        NatsServer(leafnodes={"listen": "127.0.0.1:-1"}) as server,
        daemon_for_workers(server) as daemon,
    ):
        yield daemon


@pytest.fixture
def raw(daemon: Daemon) -> Iterator[RawNats]:
    port = int(daemon.settings["nats"]["servers"][0].rpartition(":")[2])
    with RawNats(port, timeout=PATIENCE) as raw:
        yield raw


def value(daemon: Daemon, what: str, consumer: str) -> float | None:
    try:
        return daemon.metric(f"liftlog_ack_consumer_{what}", consumer=consumer, stream="jobs")
    except KeyError:
        return None


def publish(raw: RawNats, subject: str, count: int) -> None:
    for _ in range(count):
        assert "seq" in raw.request(subject, b"work").json()


def test_they_follow_the_workers(daemon: Daemon, raw: RawNats) -> None:
    create(raw, "all", max_deliver=1, ack_wait=SECOND)
    create(raw, "some", filter_subject="jobs.b")
    publish(raw, "jobs.a", 3)
    publish(raw, "jobs.b", 2)
    # A scrape begins to count, and a later one shows the number.
    until(lambda: value(daemon, "waiting", "all") == 5 and value(daemon, "waiting", "some") == 2)
    first = pulled(raw, "all", 2)
    assert value(daemon, "waiting", "all") == 3
    assert value(daemon, "pending", "all") == 2
    assert value(daemon, "deliveries_total", "all") == 2
    assert value(daemon, "exhausted_total", "all") == 0
    raw.request(first[0].reply, b"+ACK")
    assert value(daemon, "floor_offset", "all") == 2
    until(lambda: value(daemon, "exhausted_total", "all") == 1)
    assert value(daemon, "pending", "all") == 0
    assert value(daemon, "floor_offset", "all") == 3
    again = pulled(raw, "some", 2)
    raw.request(again[0].reply, b"-NAK")
    pulled(raw, "some", 1)
    assert value(daemon, "redelivered", "some") == 1
    assert value(daemon, "deliveries_total", "some") == 3
    assert value(daemon, "waiting", "some") == 0
    raw.pub(
        "$JS.API.CONSUMER.MSG.NEXT.jobs.some",
        json.dumps({"batch": 1, "expires": PATIENCE * SECOND}),
        reply=raw.new_reply(),
    )
    until(lambda: value(daemon, "pulls", "some") == 1)
    until_paused = json.dumps({"pause_until": "2999-01-01T00:00:00Z"}).encode()
    assert "error" not in raw.request("$JS.API.CONSUMER.PAUSE.jobs.some", until_paused).json()
    assert value(daemon, "paused", "some") == 1
    assert value(daemon, "paused", "all") == 0
    raw.request("$JS.API.CONSUMER.DELETE.jobs.some", b"")
    assert value(daemon, "waiting", "some") is None
    assert daemon.metric("liftlog_ack_consumers_not_shown") == 0


def test_a_page_has_no_more_than_a_thousand(daemon: Daemon, raw: RawNats) -> None:
    create(raw, "behind", deliver_policy="all")
    publish(raw, "jobs.a", 1)
    for number in range(1004):
        create(raw, f"c{number}", deliver_policy="new")
    until(lambda: value(daemon, "waiting", "behind") == 1)
    text = daemon.get("/metrics")[1]
    assert text.count("\nliftlog_ack_consumer_waiting{") == 1000
    assert daemon.metric("liftlog_ack_consumers_not_shown") == 5
    # The consumer with messages is among those that are shown.
    assert 'liftlog_ack_consumer_waiting{consumer="behind",stream="jobs"} 1\n' in text
