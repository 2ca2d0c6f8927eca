"""Answers of JetStream's API are those of JetStream, byte for byte.

A real JetStream and the daemon get the same hostile messages, and are asked for them in every way.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pytest
from support.clients.hostile_messages import MAX_PAYLOAD, messages
from support.clients.ingesting import assert_no_traceback, until
from support.clients.raw_nats import RawMessage, RawNats
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer
from support.rounds import chance_of, rounds

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

SECOND = 10**9
FEW = 30
TIME = re.compile(rb"\b20[2-9]\d-\d\d-\d\dT[0-9:.]+Z")

BLOCKS = [
    b"NATS/1.0\r\nNats-Sequence: 99\r\nNats-Subject: forged\r\nNats-Stream: other\r\n"
    b"Nats-Time-Stamp: 1999-01-01T00:00:00Z\r\nX: y\r\n\r\n",
    b"NATS/1.0\r\nnats-sequence: 44\r\nNATS-SUBJECT: loud\r\n\r\n",
    b"NATS/1.0\r\nNats-Num-Pending: 7\r\nNats-Last-Sequence: 5\r\nNats-UpTo-Sequence: 3\r\n\r\n",
    b"NATS/1.0\r\nE:\r\nF: \r\nG:  two \r\nA: 1\r\nA: 2\r\n\r\n",
    b"NATS/1.0\r\n\r\n",
    b"NATS/1.0 404 Not Found\r\n\r\n",
    b"NATS/1.0 404 Not Found\r\nX: y\r\n\r\n",
    b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 7\r\n\r\n",
    b"NATS/1.0 503\r\n\r\n",
    b"NATS/1.0 \r\nA: b\r\n\r\n",
]
"""Republished and forged headers, and status lines: a client takes a message with one for a message
of the server, so a publisher could end a reader or be passed over."""


class Sent(NamedTuple):
    subject: bytes
    block: bytes
    value: bytes


class Seen(NamedTuple):
    how: str
    headers: bytes
    payload: bytes


def to_send(chance: random.Random) -> list[Sent]:
    found = [Sent(b"h.odd.%d" % at, block, b"v%d" % at) for at, block in enumerate(BLOCKS)]
    found += [Sent(b"h.lit.a*", b"", b"a literal"), Sent(b"h.lit.ab", b"", b"another")]
    for number, one in enumerate(messages(chance, rounds(FEW))):
        if one.is_tombstone or b"\n" in one.tail.encode():
            continue  # JetStream does not know tombstones
        subject = b"h.%d.%b" % (number, one.tail.encode())
        found.append(Sent(subject, one.block, one.value))
    return found


class Asker:
    """One server, JetStream or the daemon, with a stream that has these messages."""

    def __init__(self, raw: RawNats, sent: Sequence[Sent]) -> None:
        self.raw = raw
        self.sent: list[Sent] = []
        config = {"name": "h", "subjects": ["h.>"], "allow_direct": True}
        assert "error" not in self._json("STREAM.CREATE.h", config)
        for one in sent:
            answer = raw.request(one.subject, one.value, headers=one.block).json()
            assert "error" not in answer, (one.subject, answer)
            self.sent.append(one)

    def _json(self, method: str, body: Any) -> Any:
        return self.raw.request(f"$JS.API.{method}", json.dumps(body)).json()

    def seen(self) -> Iterator[Seen]:
        for sequence, one in enumerate(self.sent, 1):
            for how, subject, body in (
                ("direct", b"DIRECT.GET.h", {"seq": sequence}),
                ("direct of the subject", b"DIRECT.GET.h." + one.subject, None),
                ("direct without headers", b"DIRECT.GET.h", {"seq": sequence, "no_hdr": True}),
                ("get", b"STREAM.MSG.GET.h", {"seq": sequence}),
            ):
                payload = b"" if body is None else json.dumps(body).encode()
                answer = self.raw.request(b"$JS.API." + subject, payload)
                yield self._as_seen(f"{how} {sequence}", answer)
        yield from self._batch({"seq": 1, "batch": len(self.sent)})
        yield from self._batch({"multi_last": ["h.odd.*"]})
        yield from self._batch({"seq": 2, "batch": 5, "next_by_subj": "h.*.*"})
        for config in ({}, {"headers_only": True}):
            yield from self._pushed(config)
            yield from self._pulled(config)

    def _as_seen(self, how: str, message: RawMessage) -> Seen:
        payload = message.payload
        if how.startswith("get"):
            payload = json.dumps(message.json(), sort_keys=True).encode()
            payload = TIME.sub(b"TIME", payload)
        return Seen(how, TIME.sub(b"TIME", message.headers), payload)

    def _batch(self, wish: dict[str, Any]) -> Iterator[Seen]:
        reply = self.raw.new_reply()
        self.raw.pub("$JS.API.DIRECT.GET.h", json.dumps(wish), reply=reply)
        while True:
            message = self.raw.next_message(timeout=60)
            yield self._as_seen(f"batch {wish}", message)
            if message.headers.startswith((b"NATS/1.0 204", b"NATS/1.0 4")):
                return

    def _consumer(self, config: dict[str, Any]) -> str:
        common = {"ack_policy": "none", "inactive_threshold": 60 * SECOND}
        body = {"stream_name": "h", "config": {**common, **config}}
        answer = self._json("CONSUMER.CREATE.h", body)
        return str(answer["name"])

    def _pushed(self, config: dict[str, Any]) -> Iterator[Seen]:
        inbox = f"_INBOX.pushed{len(config)}"
        self.raw.sub(inbox)
        self.raw.ping()
        self._consumer({**config, "deliver_subject": inbox})
        yield from self._received(f"pushed {config}")

    def _pulled(self, config: dict[str, Any]) -> Iterator[Seen]:
        name, reply = self._consumer(config), self.raw.new_reply()
        wish = {"batch": len(self.sent), "expires": 60 * SECOND}
        self.raw.pub(f"$JS.API.CONSUMER.MSG.NEXT.h.{name}", json.dumps(wish), reply=reply)
        yield from self._received(f"pulled {config}")

    def _received(self, how: str) -> Iterator[Seen]:
        for one in self.sent:
            message = self.raw.next_message(timeout=60)
            assert message.subject == one.subject
            yield self._as_seen(how, message)


def is_too_large(seen: Seen) -> bool:
    if seen.headers.startswith(b"NATS/1.0 400 message size exceeds maximum allowed"):
        return True
    return seen.how.startswith("get") and b'"err_code": 10054' in seen.payload


def test_what_comes_back() -> None:
    listener = {"listen": "127.0.0.1:-1"}
    sent = to_send(chance_of("same bytes as JetStream"))
    with (
        NatsServer(jetstream=True, max_payload=MAX_PAYLOAD) as real,
        NatsServer(leafnodes=listener, max_payload=MAX_PAYLOAD) as server,
        RawNats(real.port, timeout=60) as theirs,
        RawNats(server.port, timeout=60) as ours,
    ):
        found = re.search(r"Listening for leafnode connections on (\S+:\d+)", server.log)
        assert found is not None, server.log
        nats = {"jetstream_api": True, "leafnode": found[1]}
        with Daemon(server.url, {"nats": nats}) as daemon:
            until(lambda: "jetstream-api-answers" in daemon.log and "leaf-connected" in daemon.log)
            compared = refused = 0
            expected, given = Asker(theirs, sent).seen(), Asker(ours, sent).seen()
            for wanted in expected:
                got = next(given)
                assert got.how == wanted.how
                if got != wanted and is_too_large(got):
                    # JetStream is inside of the server, for which `max_payload` does not count.
                    assert len(wanted.headers) + len(wanted.payload) > MAX_PAYLOAD - 64
                    refused += 1
                    if wanted.how.startswith("batch"):
                        while not next(expected).headers.startswith(b"NATS/1.0 204"):
                            pass
                    continue
                assert got == wanted, (got[:2], wanted[:2], got.payload[:300], wanted.payload[:300])
                compared += 1
            assert next(given, None) is None
            assert compared > 6 * len(sent)
            assert refused > 0, "some are just below the limit"
            assert_no_traceback(daemon)
