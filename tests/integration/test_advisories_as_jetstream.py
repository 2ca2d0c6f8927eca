"""Advisories about consumers have the subjects and the fields of JetStream's."""

from __future__ import annotations

import asyncio
import json
import re
import time
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from support.clients.raw_nats import RawNats
from support.daemons.nats_server import NatsServer

from liftlog.deliveries.instructions import Advisory, AdvisoryKind
from liftlog.server.jetstream_api.answers import time_text
from liftlog.server.jetstream_api.consumers.config import parse_time
from liftlog.server.jetstream_api.consumers.leaf import LeafLink
from liftlog.server.jetstream_api.consumers.leaf_login import LeafLogin
from liftlog.server.jetstream_api.workers.advisories import Advisories
from liftlog.settings import NatsSettings

pytestmark = pytest.mark.integration

SECOND = 10**9
PATIENCE = 20.0
ADVISORIES = "$JS.EVENT.ADVISORY.CONSUMER.>"
NEXT = "$JS.API.CONSUMER.MSG.NEXT.s.c"
COUNT = 7


def asked(raw: RawNats, method: str, body: Any) -> Any:
    answer = raw.request(f"$JS.API.{method}", json.dumps(body).encode()).json()
    assert "error" not in answer, answer
    return answer


def seen(raw: RawNats, count: int) -> list[tuple[str, dict[str, Any]]]:
    """The next advisories, without what is different each time."""
    found = []
    while len(found) < count:
        message = raw.next_message(timeout=PATIENCE)
        if not message.subject.startswith(b"$JS.EVENT."):
            continue
        body = message.json()
        assert re.fullmatch(r"\w{22}", body.pop("id"))
        assert abs(parse_time(body.pop("timestamp")) - time.time_ns()) < PATIENCE * SECOND
        assert list(body)[:3] == ["type", "stream", "consumer"]
        found.append((message.subject.decode(), body))
    return found


def theirs(until_ns: int) -> list[tuple[str, dict[str, Any]]]:
    with (
        NatsServer(jetstream=True) as server,
        RawNats(server.port, timeout=PATIENCE) as watcher,
        RawNats(server.port, timeout=PATIENCE) as raw,
    ):
        watcher.sub(ADVISORIES)
        watcher.ping()
        asked(raw, "STREAM.CREATE.s", {"name": "s", "subjects": ["s.>"]})
        config = {"durable_name": "c", "ack_policy": "explicit", "max_deliver": 2}
        body = {"stream_name": "s", "config": {**config, "ack_wait": SECOND // 5}}
        asked(raw, "CONSUMER.DURABLE.CREATE.s.c", body)
        found = seen(watcher, 1)
        for number in range(2):
            raw.request(f"s.{number}", b"")
        raw.pub(NEXT, b"2", reply=raw.new_reply())
        first, second = raw.next_message(), raw.next_message()
        raw.pub(first.reply, b"+TERM bad input")
        found += seen(watcher, 1)
        raw.pub(second.reply, b"-NAK")
        found += seen(watcher, 1)
        raw.pub(NEXT, b"1", reply=raw.new_reply())
        raw.next_message()  # the second delivery, never acked
        raw.pub(NEXT, b'{"batch": 1, "expires": 60000000000}', reply=raw.new_reply())
        found += seen(watcher, 1)
        asked(raw, "CONSUMER.PAUSE.s.c", {"pause_until": time_text(until_ns)})
        found += seen(watcher, 1)
        asked(raw, "CONSUMER.PAUSE.s.c", {})
        found += seen(watcher, 1)
        asked(raw, "CONSUMER.DELETE.s.c", {})
        return found + seen(watcher, 1)


def about(kind: AdvisoryKind, offset: int, count: int, *reasons: str) -> Advisory:
    numbers = np.array([offset])
    return Advisory(kind, numbers, numbers, np.array([count]), reasons)


def say(advisories: Advisories, until_ns: int) -> None:
    advisories.created("s", "c")
    for advisory in (
        about(AdvisoryKind.TERMINATED, 1, 1, "bad input"),
        about(AdvisoryKind.NAK, 2, 1),
        about(AdvisoryKind.MAX_DELIVERIES, 2, 2),
    ):
        advisories.about_messages("s", "c", advisory)
    advisories.paused("s", "c", until_ns)
    advisories.paused("s", "c", 0)
    advisories.deleted("s", "c")


@pytest.fixture
def permissions() -> dict[str, Any]:
    """The leaf login may send these and no more."""
    allowed = {"publish": ["$JS.EVENT.ADVISORY.CONSUMER.>"], "subscribe": ["$JS.FC.>"]}
    leaf = {"user": "leaf", "password": "secret", "permissions": allowed}
    everybody = {"user": "all", "password": "all"}
    return {"authorization": {"users": [leaf, everybody]}, "no_auth_user": "all"}


async def test_the_same_subjects_and_fields(permissions: dict[str, Any]) -> None:
    until_ns = int(datetime(2200, 1, 1, tzinfo=UTC).timestamp()) * SECOND
    expected = await asyncio.to_thread(theirs, until_ns)
    with NatsServer(leafnodes={"listen": "127.0.0.1:-1"}, **permissions) as server:
        found = re.search(r"Listening for leafnode connections on (\S+:\d+)", server.log)
        assert found is not None, server.log
        login = LeafLogin(NatsSettings(user="leaf", password="secret"))
        leaf = LeafLink([found[1]], login, name="test")
        leaf.start()
        try:
            await leaf.wait_connected()
            advisories = Advisories(leaf)
            advisories.created("s", "nobody listens")
            with RawNats(server.port, timeout=PATIENCE) as raw:
                raw.sub(ADVISORIES, queue="watchers")
                raw.ping()
                async with asyncio.timeout(PATIENCE):
                    while not leaf.has_interest(b"$JS.EVENT.ADVISORY.CONSUMER.PAUSE.s.c"):
                        await leaf.interest_changed()
                say(advisories, until_ns)
                assert advisories.sent.total() == COUNT
                assert await asyncio.to_thread(seen, raw, COUNT) == expected
        finally:
            await leaf.close()
