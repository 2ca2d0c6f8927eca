"""The NATS servers that a daemon knows, from its settings and from what servers announce."""

from __future__ import annotations

import pytest

from liftlog.server.ingest import servers
from liftlog.server.ingest.servers import NatsServerAddress, ServerPool


def shown(pool: ServerPool) -> set[str]:
    return {one.shown for one in pool.round()}


def test_servers_that_are_announced_replace_those_of_before() -> None:
    pool = ServerPool(["nats://me:secret@a:4222"])
    [source] = pool.round()
    pool.learn(source, ["a:4222", "b:4222"])
    assert shown(pool) == {"a:4222", "b:4222"}
    assert {one.url for one in pool.round()} == {
        "nats://me:secret@a:4222",
        "nats://me:secret@b:4222",
    }
    pool.learn(source, ["c:4222"])
    assert shown(pool) == {"a:4222", "c:4222"}
    pool.learn(source, [])
    assert shown(pool) == {"a:4222", "c:4222"}, "what is known stays"
    pool.learn(source, ["a:4222", "b:4222"])
    assert shown(pool) == {"a:4222", "b:4222"}


def test_what_is_announced_again_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = ServerPool(["nats://a:4222"])
    [source] = pool.round()
    announced = ["b:4222"]
    pool.learn(source, announced)
    announced.append("c:4222")  # the list of a connection is that of its last INFO
    pool.learn(source, announced)
    assert shown(pool) == {"a:4222", "b:4222", "c:4222"}
    monkeypatch.setattr(servers, "urlsplit", None)
    pool.learn(source, announced)


def test_where_a_server_listens() -> None:
    for url, endpoint in (
        ("nats://a:1", ("a", 1)),
        ("nats://user:secret@[::1]", ("::1", 4222)),
        ("ws://a/path", ("a", 80)),
        ("wss://a", ("a", 443)),
    ):
        assert NatsServerAddress(url).endpoint == endpoint
