"""JetStream's clients manage streams of the daemon over `$JS.API`."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator

import nats
import pytest
from nats.js import JetStreamContext
from nats.js.errors import NotFoundError
from support.daemon import Daemon
from support.ingesting import assert_no_traceback, until
from support.nats_server import NatsServer
from support.raw_nats import RawNats

pytestmark = pytest.mark.integration

SETTINGS = {
    "nats": {"jetstream_api": True},
    "streams": {"configured": {"subject": "configured.>"}},
}


@pytest.fixture(scope="module")
def daemon(server: NatsServer) -> Iterator[Daemon]:
    with Daemon(server.url, SETTINGS) as daemon:
        with RawNats(server.port) as raw:
            until(lambda: raw.request("$JS.API.INFO", b"").payload != b"")
        yield daemon
        assert_no_traceback(daemon)


@pytest.fixture
async def js(server: NatsServer, daemon: Daemon) -> AsyncIterator[JetStreamContext]:
    client = await nats.connect(server.url)
    try:
        yield client.jetstream()
    finally:
        await client.close()


async def test_the_account_has_streams(js: JetStreamContext) -> None:
    info = await js.account_info()
    assert info.streams >= 1
    assert info.limits.max_streams == -1


async def test_a_stream_is_described_with_the_sequences_of_its_acks(js: JetStreamContext) -> None:
    before = await js.stream_info("configured")
    assert before.config.subjects == ["configured.>"]
    acks = [await js.publish("configured.a", b"12345") for _ in range(3)]
    info = await js.stream_info("configured")
    assert info.state.last_seq == acks[-1].seq
    assert info.state.messages == before.state.messages + 3


async def test_a_stream_that_does_not_exist_is_not_found(js: JetStreamContext) -> None:
    with pytest.raises(NotFoundError) as refusal:
        await js.stream_info("missing")
    assert refusal.value.err_code == 10059


def test_where_jetstream_is_on_the_daemon_is_silent() -> None:
    with NatsServer(jetstream=True) as server, Daemon(server.url, SETTINGS) as daemon:
        until(lambda: "jetstream_api" in json.loads(daemon.get("/readyz")[1])["warnings"])
        with RawNats(server.port) as raw:
            assert b"liftlog" not in raw.request("$JS.API.INFO", b"").payload
