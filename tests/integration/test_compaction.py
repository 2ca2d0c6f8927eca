"""Compaction in a real daemon: what stays, what goes, and that everything else goes on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.daemon import Daemon
from support.ingesting import assert_no_traceback, describe, publish, records_of, until
from support.nats_server import NatsServer
from support.raw_nats import RawNats

from liftlog.client import connect_sync

pytestmark = pytest.mark.integration

COMPACTED: dict[str, Any] = {"compaction": {}, "dedupe_window": "0s"}
QUICK = {"cleaner": {"interval": "100ms"}, "log": {"retention_interval": "100ms"}}


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server


@pytest.fixture
def raw(server: NatsServer) -> Iterator[RawNats]:
    with RawNats(server.port) as client:
        yield client


def put(raw: RawNats, subject: str, key: str, value: bytes) -> int:
    offset: int = publish(raw, subject, value, Liftlog_Key=key)["seq"]
    return offset


def view(daemon: Daemon, stream: str) -> dict[bytes | None, list[tuple[int, bytes | None]]]:
    """What is there of each key, oldest first."""
    found: dict[bytes | None, list[tuple[int, bytes | None]]] = {}
    for record in records_of(daemon, stream):
        found.setdefault(record.key, []).append((record.offset, record.value))
    return found


def test_on_demand(server: NatsServer, raw: RawNats) -> None:
    streams = {"users": {"subject": "users", **COMPACTED}}
    with Daemon(server.url, {"streams": streams, **QUICK}) as daemon:
        for number in range(30):
            put(raw, "users", f"key-{number % 3}", b"%d" % number)
        assert publish(raw, "users", b"no key")["seq"] == 31
        with connect_sync(daemon.pull_address) as client:
            info = client.compact_stream("users", wait=True)
        assert info.compaction["last_pass"]["records_in"] == 31, info.compaction
        assert view(daemon, "users") == {
            b"key-0": [(28, b"27")],
            b"key-1": [(29, b"28")],
            b"key-2": [(30, b"29")],
            None: [(31, b"no key")],
        }
        assert put(raw, "users", "key-0", b"30") == 32
        assert_no_traceback(daemon)
        print(describe(daemon, "users").compaction)
        print(daemon.log)
