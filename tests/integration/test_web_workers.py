"""Consumers with acks on the web page, of a daemon with real workers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from support.clients.ingesting import until
from support.clients.raw_nats import RawNats
from support.clients.workers_over_nats import PATIENCE, SECOND, create, daemon_for_workers, pulled
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with NatsServer(leafnodes={"listen": "127.0.0.1:-1"}) as server:
        yield server


@pytest.fixture(scope="module")
def daemon(server: NatsServer) -> Iterator[Daemon]:
    with daemon_for_workers(server, quiet={"subject": "quiet"}) as daemon:
        yield daemon


@pytest.fixture
def raw(server: NatsServer) -> Iterator[RawNats]:
    with RawNats(server.port, timeout=PATIENCE) as raw:
        yield raw


def twin(daemon: Daemon, path: str) -> Any:
    status, text = daemon.get(f"/ui/streams/{path}.json")
    assert status == 200, text
    return json.loads(text)


def test_a_stream_lists_them_and_each_has_a_page(daemon: Daemon, raw: RawNats) -> None:
    create(raw, "billing", max_deliver=1, ack_wait=SECOND, metadata={"team": "<b>money</b>"})
    create(raw, "mail", deliver_subject="mail.in", max_ack_pending=2)
    create(raw, "rest", max_ack_pending=2, backoff=[SECOND, 60 * SECOND], max_deliver=3)
    for number in range(5):
        assert "seq" in raw.request("jobs.a", b"%d" % number).json()
    found = twin(daemon, "jobs")["workers"]
    assert {one["name"]: (one["kind"], one["waiting"], one["state"]) for one in found} == {
        "billing": ("pull", 5, "no worker asks"),
        "mail": ("push", 5, ""),
        "rest": ("pull", 5, "no worker asks"),
    }
    first = pulled(raw, "billing", 2)
    raw.request(first[0].reply, b"+ACK")
    pulled(raw, "rest", 2)
    assert twin(daemon, "jobs/workers/rest")["state"] == "at max_ack_pending"
    until(lambda: twin(daemon, "jobs/workers/billing")["exhausted"] == [2])
    page = twin(daemon, "jobs/workers/billing")
    assert (page["waiting"], page["pending"], page["ack_floor"], page["deliveries"]) == (3, 0, 3, 2)
    pause = json.dumps({"pause_until": "2999-01-01T00:00:00Z"}).encode()
    raw.request("$JS.API.CONSUMER.PAUSE.jobs.billing", pause)
    assert twin(daemon, "jobs/workers/billing")["state"] == "paused"
    status, text = daemon.get("/ui/streams/jobs/workers/billing")
    assert status == 200
    assert 'href="/ui/streams/jobs/records/2"' in text
    assert "&lt;b&gt;money" in text
    assert '<td class="text">1 s</td>' in text
    status, text = daemon.get("/ui/streams/jobs/workers/rest")
    assert "1 s, 60 s" in text
    status, text = daemon.get("/ui/streams/jobs")
    assert 'href="/ui/streams/jobs/workers/mail"' in text
    assert "at max_ack_pending" in text


def test_there_is_no_such_consumer(daemon: Daemon) -> None:
    status, text = daemon.get("/ui/streams/jobs/workers/nobody")
    assert status == 200
    assert "There is no consumer" in text
    assert "Consumers with acks" not in daemon.get("/ui/streams/quiet")[1]
