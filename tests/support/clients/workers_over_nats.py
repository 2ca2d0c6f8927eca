"""Consumers with acks of the stream `jobs`, created and used over NATS."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from support.clients.ingesting import assert_no_traceback, until
from support.clients.raw_nats import RawMessage, RawNats
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer

SECOND = 10**9
PATIENCE = 60


def leafnode_of(server: NatsServer) -> str:
    """Return the address at which a server listens for leaf nodes."""
    found = re.search(r"Listening for leafnode connections on (\S+:\d+)", server.log)
    assert found is not None, server.log
    return found[1]


@contextmanager
def daemon_for_workers(server: NatsServer, **streams: Any) -> Iterator[Daemon]:
    """Start a daemon that serves workers of `jobs`, on the subjects `jobs.>`, and also has other
    streams."""
    settings = {
        "nats": {"jetstream_api": True, "leafnode": leafnode_of(server)},
        "streams": {"jobs": {"subject": "jobs.>"}, **streams},
    }
    with Daemon(server.url, settings) as daemon:
        until(lambda: "jetstream-api-answers" in daemon.log and "leaf-connected" in daemon.log)
        yield daemon
        assert_no_traceback(daemon)


def create(raw: RawNats, name: str, **config: Any) -> None:
    body = {
        "stream_name": "jobs",
        "config": {"durable_name": name, "ack_policy": "explicit", **config},
    }
    subject = f"$JS.API.CONSUMER.DURABLE.CREATE.jobs.{name}"
    answer = raw.request(subject, json.dumps(body).encode()).json()
    assert "error" not in answer, answer


def pulled(raw: RawNats, name: str, batch: int) -> list[RawMessage]:
    """Return the next `batch` messages, which may not have arrived yet."""
    body = json.dumps({"batch": batch, "expires": PATIENCE * SECOND})
    raw.pub(f"$JS.API.CONSUMER.MSG.NEXT.jobs.{name}", body, reply=raw.new_reply())
    return [raw.next_message() for _ in range(batch)]
