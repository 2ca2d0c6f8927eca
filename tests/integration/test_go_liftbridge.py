"""The unmodified Go client of Liftbridge as publisher: what it believes is what happened."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.clients.ingesting import assert_no_traceback, records_of, refused
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer
from support.repository import REPOSITORY
from support.rounds import is_torture

from envelope import liftbridge
from liftlog.client import connect_sync

pytestmark = pytest.mark.integration

SOURCE = REPOSITORY / "tests/support/clients/go_liftbridge"
BUILD_SECONDS = 300
STREAMS = {
    "orders": {"subject": "orders.*", "liftbridge": True, "acks": "envelope"},
    "small": {"subject": "small", "liftbridge": True, "max_message_bytes": "200"},
    "paused": {"subject": "paused", "liftbridge": True, "paused": True},
    "finished": {"subject": "finished", "liftbridge": True, "read_only": True},
}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not is_torture():
        pytest.skip("compiling this client takes minutes: make torture runs its tests")
    if shutil.which("go") is None:
        pytest.skip("Go is not installed")
    directory = tmp_path_factory.mktemp("go") / "source"
    shutil.copytree(SOURCE, directory)
    environ = os.environ | {"GOFLAGS": "-mod=readonly -buildvcs=false", "GOTOOLCHAIN": "local"}

    def go(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["go", *arguments],
            cwd=directory,
            env=environ,
            capture_output=True,
            text=True,
            timeout=BUILD_SECONDS,
            check=False,
        )

    fetched = go("mod", "download")
    if fetched.returncode:
        pytest.skip(f"the Go client of Liftbridge cannot be had: {fetched.stderr[-300:]}")
    built = go("build", "-o", "publisher", ".")
    assert built.returncode == 0, built.stderr
    return directory / "publisher"


@pytest.fixture(scope="module")
def daemon(server: NatsServer, program: Path) -> Iterator[Daemon]:
    with Daemon(server.url, {"streams": STREAMS}) as daemon:
        yield daemon
        assert_no_traceback(daemon)


class GoPublisher:
    def __init__(self, program: Path, url: str) -> None:
        self._process = subprocess.Popen(
            [program, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def publish(
        self, subject: str, value: bytes = b"v", *, timeout_ms: int = 10_000, **fields: Any
    ) -> dict[str, Any]:
        """What the publisher believes afterwards: `error`, or `stream` and `offset`."""
        wish = {"subject": subject, "value": _base64(value), "timeout_ms": timeout_ms, **fields}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(wish) + "\n")
        self._process.stdin.flush()
        found: dict[str, Any] = json.loads(self._process.stdout.readline())
        return found

    def close(self) -> None:
        self._process.communicate(timeout=10)
        assert self._process.returncode == 0


@pytest.fixture
def go(program: Path, server: NatsServer, daemon: Daemon) -> Iterator[GoPublisher]:
    publisher = GoPublisher(program, server.url)
    yield publisher
    publisher.close()


def _base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def test_what_is_stored_is_acked(go: GoPublisher, daemon: Daemon) -> None:
    headers = {"trace": b"t9", "raw": b"\xff\x00", "a b": b"1\r\n2", "é": b""}
    encoded = {name: _base64(value) for name, value in headers.items()}
    first = go.publish("orders.eu", b"paid", key=_base64(b"k1"), headers=encoded)
    assert first == {"stream": "orders", "offset": 1}
    second = go.publish("orders.eu", b"sent", correlation_id="c7", ack_all=True)
    assert second == {"stream": "orders", "offset": 2, "correlation_id": "c7"}
    stored = records_of(daemon, "orders")
    assert [(r.offset, r.key, r.value) for r in stored] == [(1, b"k1", b"paid"), (2, None, b"sent")]
    assert liftbridge.liftbridge_headers(stored[0].headers) == headers


@pytest.mark.parametrize(("stream", "reason"), [("paused", "paused"), ("finished", "read_only")])
def test_what_is_not_stored_times_out(
    stream: str, reason: str, go: GoPublisher, daemon: Daemon
) -> None:
    """The client drops the error of an Ack: any answer would be taken for "stored"."""
    assert go.publish(stream, timeout_ms=500) == {"error": "nats: timeout", "offset": 0}
    assert refused(daemon, stream, reason) == 1
    assert records_of(daemon, stream) == []


def test_a_publisher_that_repeats_gets_through_a_pause(go: GoPublisher, daemon: Daemon) -> None:
    headers = {"Nats-Msg-Id": _base64(b"order-1")}
    with connect_sync(daemon.pull_address) as client:
        assert "error" in go.publish("paused", timeout_ms=300, headers=headers)
        client.update_stream("paused", {"paused": False})
        ack = go.publish("paused", headers=headers)
        assert go.publish("paused", headers=headers) == ack == {"stream": "paused", "offset": 1}
        client.update_stream("paused", {"paused": True})
    assert len(records_of(daemon, "paused")) == 1


def test_what_liftbridge_itself_answers(go: GoPublisher, daemon: Daemon) -> None:
    """The error is lost in the client, so offset 0 has to say it: no record ever gets it."""
    nothing = {"stream": "small", "offset": 0}
    assert go.publish("small", b"x" * 300) == nothing
    assert go.publish("small", expected_offset=7) == nothing
    assert go.publish("small", expected_offset=1) == {"stream": "small", "offset": 1}
    assert go.publish("small", expected_offset=1) == nothing
    assert len(records_of(daemon, "small")) == 1
