"""Sends the same requests to a real JetStream and to a daemon."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from support.clients.ingesting import assert_no_traceback, until
from support.clients.raw_nats import RawMessage, RawNats
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer

SECOND = 10**9
PATIENCE = 60
ACK = re.compile(r"\$JS\.ACK\.s\.c\.(\d+)\.(\d+)\.(\d+)\.\d+\.(\d+)")


class Sides(NamedTuple):
    theirs: RawNats
    ours: RawNats


@contextmanager
def both_sides() -> Iterator[Sides]:
    """Start a nats-server with JetStream, and a nats-server with a daemon."""
    with (
        NatsServer(jetstream=True) as real,
        NatsServer(leafnodes={"listen": "127.0.0.1:-1"}) as server,
        RawNats(real.port, timeout=PATIENCE) as theirs,
        RawNats(server.port, timeout=PATIENCE) as ours,
    ):
        found = re.search(r"Listening for leafnode connections on (\S+:\d+)", server.log)
        assert found is not None, server.log
        nats = {"jetstream_api": True, "leafnode": found[1]}
        with Daemon(server.url, {"nats": nats}) as daemon:
            until(lambda: "jetstream-api-answers" in daemon.log and "leaf-connected" in daemon.log)
            yield Sides(theirs, ours)
            assert_no_traceback(daemon)


@contextmanager
def with_stream(connected: Sides) -> Iterator[Sides]:
    """Create the stream `s` with the subjects `s.>` on both sides, until the end of the block."""
    for raw in connected:
        asked(raw, "STREAM.CREATE.s", {"name": "s", "subjects": ["s.>"]})
    yield connected
    for raw in connected:
        asked(raw, "STREAM.DELETE.s", {})
    for raw in connected:
        raw.forget()  # statuses of waiting pulls arrive over another connection, after the answer


def answered(raw: RawNats, method: str, body: Any) -> Any:
    return raw.request(f"$JS.API.{method}", json.dumps(body).encode()).json()


def asked(raw: RawNats, method: str, body: Any) -> Any:
    answer = answered(raw, method, body)
    assert "error" not in answer, answer
    return answer


def consumer(raw: RawNats, **config: Any) -> Any:
    common = {"durable_name": "c", "ack_policy": "explicit"}
    body = {"stream_name": "s", "config": common | config}
    return asked(raw, "CONSUMER.DURABLE.CREATE.s.c", body)


def publish(raw: RawNats, count: int) -> None:
    for number in range(count):
        assert "seq" in raw.request(f"s.{number % 3}", b"%d" % number).json()


def pull(raw: RawNats, batch: int, **more: Any) -> bytes:
    reply = raw.new_reply()
    body = {"batch": batch, "expires": 20 * SECOND, **more}
    raw.pub("$JS.API.CONSUMER.MSG.NEXT.s.c", json.dumps(body), reply=reply)
    return reply


def fetched(raw: RawNats, batch: int, **more: Any) -> list[RawMessage]:
    pull(raw, batch, **more)
    return [raw.next_message() for _ in range(batch)]


def shown(message: RawMessage) -> str:
    """Return everything that a worker receives with a delivery, except its time."""
    if not message.reply:
        return message.headers.decode().strip()
    found = ACK.fullmatch(message.reply.decode())
    assert found is not None, message.reply
    count, offset, sequence, pending = found.groups()
    return f"{message.payload.decode()}: {count}. of {offset}, {sequence}, {pending} left"


def ack(raw: RawNats, message: RawMessage, body: bytes = b"+ACK") -> str:
    """Send an ack, and return the answer."""
    return raw.request(message.reply, body).payload.decode()


FIGURES = ("delivered", "ack_floor", "num_ack_pending", "num_redelivered", "num_waiting",
           "num_pending")  # fmt: skip


def figures(raw: RawNats) -> dict[str, Any]:
    found = asked(raw, "CONSUMER.INFO.s.c", {})
    both = {"consumer_seq", "stream_seq"}
    return {
        name: {key: one for key, one in found[name].items() if key in both}
        if isinstance(found[name], dict)
        else found[name]
        for name in FIGURES
    }
