"""`liftlog import stan` and `liftbridge`, from real servers of both.

They are not among what the project installs: `go install github.com/nats-io/nats-streaming-server@
v0.25.6`, `go install github.com/liftbridge-io/liftbridge@latest`, on the PATH or in build/tools.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nats
import pytest
from support.clients.command_line import Cli
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer
from support.repository import REPOSITORY

from envelope import protobuf
from envelope.protobuf import BYTES, INT32, MAP, TEXT
from liftlog.cli.lib.exit_codes import ExitCode
from liftlog.client import Record, connect_sync

pytestmark = pytest.mark.integration

STREAM = "copy"


def program(name: str) -> str:
    found = shutil.which(name) or shutil.which(name, path=REPOSITORY / "build/tools")
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


@contextlib.contextmanager
def running(*command: str) -> Iterator[None]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def old_nats() -> Iterator[NatsServer]:
    """That of the servers to copy from."""
    with NatsServer() as server:
        yield server


@pytest.fixture
def liftlog() -> Iterator[Cli]:
    with NatsServer() as server, Daemon(server.url) as daemon:
        cli = Cli(daemon, server)
        cli.ok("stream", "create", STREAM, "--subject", "orders.>")
        yield cli


def records(liftlog: Cli) -> list[Record]:
    with connect_sync(liftlog.daemon.pull_address) as client:
        return list(client.read(STREAM, until="end"))


def numbers(found: list[Record]) -> list[int]:
    return [int(one.headers["Copied-Sequence"]) for one in found]


# --- NATS Streaming ---


@pytest.fixture(scope="module")
def streaming(old_nats: NatsServer) -> Iterator[Channel]:
    server = program("nats-streaming-server")
    options = ("-store", "memory", "-cluster_id", "old", "-max_msgs", "3000")
    with running(server, "-ns", old_nats.url, *options):
        yield Channel(old_nats.url)


class Channel:
    """Publishes in NATS Streaming."""

    def __init__(self, url: str) -> None:
        self.url = url

    def publish(self, channel: str, values: list[bytes]) -> None:
        asyncio.run(self._publish(channel, values))

    async def _publish(self, channel: str, values: list[bytes]) -> None:
        client, identity = f"publisher-{secrets.token_hex(4)}", secrets.token_bytes(16)
        connection = await nats.connect(self.url)
        table = {1: ("", TEXT), 2: ("", TEXT), 3: ("", INT32), 4: ("", BYTES)}
        asked = protobuf.encode((client, connection.new_inbox(), 1, identity), table)
        deadline = time.monotonic() + 60
        while True:
            try:
                answer = await connection.request("_STAN.discover.old", asked, timeout=5)
                break
            except nats.errors.Error:
                assert time.monotonic() < deadline, "NATS Streaming has not started"
                await asyncio.sleep(0.1)
        told = protobuf.decode(answer.data, {1: ("prefix", TEXT), 5: ("error", TEXT)})
        assert told is not None
        assert "error" not in told, told
        table = {1: ("", TEXT), 2: ("", TEXT), 3: ("", TEXT), 5: ("", BYTES), 7: ("", BYTES)}
        for start in range(0, len(values), 200):
            await asyncio.gather(
                *(
                    connection.request(
                        f"{told['prefix']}.{channel}",
                        protobuf.encode(
                            (client, secrets.token_hex(8), channel, value, identity), table
                        ),
                        timeout=30,
                    )
                    for value in values[start : start + 200]
                )
            )
        await connection.close()


def test_a_channel_is_copied_once_and_continued(streaming: Channel, liftlog: Cli) -> None:
    given = ("--cluster", "old", "--source-nats", streaming.url)
    words = ("import", "stan", "orders.eu", STREAM, *given)
    streaming.publish("orders.eu", [b"%d" % number for number in range(1, 1201)] + [b"", b"\0\0"])
    assert liftlog.ok(*words).startswith("1,202 messages copied")
    streaming.publish("orders.eu", [b"later"])
    (again,) = liftlog.objects(*words)
    assert (again["copied"], again["last"]) == (1, 1203)
    assert liftlog.objects(*words)[0]["copied"] == 0
    found = records(liftlog)
    assert numbers(found) == list(range(1, 1204))
    assert {one.value for one in found} == {b"%d" % n for n in range(1, 1201)} | {
        b"",
        b"\0\0",
        b"later",
    }
    assert [one.value for one in found[:2]] == [b"1", b"2"]
    assert {one.subject for one in found} == {"orders.eu"}
    assert found[0].headers["Copied-From"] == "stan/orders.eu"
    assert found[0].headers["Copied-Time"].startswith("20")


def test_what_the_server_has_deleted_is_skipped(streaming: Channel, liftlog: Cli) -> None:
    streaming.publish("orders.us", [b"x" * 100] * 3500)
    words = ("import", "stan", "orders.us", STREAM, "--cluster", "old")
    liftlog.ok(*words, "--source-nats", streaming.url)
    assert numbers(records(liftlog)) == list(range(501, 3501))


def test_large_messages(streaming: Channel, liftlog: Cli) -> None:
    streaming.publish("orders.big", [bytes([n]) * 900_000 for n in range(40)])
    words = ("import", "stan", "orders.big", STREAM, "--cluster", "old")
    liftlog.ok(*words, "--source-nats", streaming.url)
    assert [one.value for one in records(liftlog)] == [bytes([n]) * 900_000 for n in range(40)]


def test_what_a_user_gets_wrong(streaming: Channel, liftlog: Cli) -> None:
    given = ("--source-nats", streaming.url)
    streaming.publish("orders.eu", [b"the server is there"])
    result = liftlog("import", "stan", "orders.eu", STREAM, *given)
    assert result.exit_code == ExitCode.CANNOT_CONNECT
    assert "no NATS Streaming server of the cluster 'test-cluster' answers" in result.stderr
    result = liftlog("import", "stan", "orders.none", STREAM, "--cluster", "old", *given)
    assert result.exit_code == ExitCode.NOT_FOUND
    assert "no message of channel orders.none came" in result.stderr


# --- Liftbridge ---


class Liftbridge:
    def __init__(self, address: str) -> None:
        import grpc

        self.address = address
        self._grpc = grpc
        self._channel = grpc.insecure_channel(address)

    def ask(self, method: str, request: bytes) -> bytes:
        return bytes(self._channel.unary_unary(f"/proto.API/{method}")(request, timeout=30))

    def create(self, name: str, subject: str, partitions: int = 1) -> None:
        table = {1: ("", TEXT), 2: ("", TEXT), 4: ("", INT32), 5: ("", INT32)}
        request = protobuf.encode((subject, name, 1, partitions), table)
        deadline = time.monotonic() + 60
        while True:
            try:
                self.ask("CreateStream", request)
                return
            except self._grpc.RpcError as error:
                if "already exists" in str(error.details()):
                    return
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def publish(
        self, stream: str, value: bytes, *, key: bytes = b"", partition: int = 0, **headers: bytes
    ) -> None:
        table = {1: ("", BYTES), 2: ("", BYTES), 3: ("", TEXT), 4: ("", INT32), 5: ("", MAP)}
        request = protobuf.encode((key, value, stream, partition, headers), table)
        self.ask("Publish", request)

    def close(self) -> None:
        self._channel.close()


@pytest.fixture(scope="module")
def liftbridge(old_nats: NatsServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    server = program("liftbridge")
    pytest.importorskip("grpc")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    config: Path = tmp_path_factory.mktemp("liftbridge") / "config.yaml"
    config.write_text(
        f"listen: 127.0.0.1:{port}\ndata.dir: {config.parent / 'data'}\n"
        f"nats.servers: [{old_nats.url}]\n"
        "clustering: {server.id: one, raft.bootstrap.seed: true}\n"
    )
    with running(server, "--config", os.fspath(config)):
        opened = Liftbridge(f"127.0.0.1:{port}")
        yield opened
        opened.close()


def test_a_partition_is_copied_once_and_continued(liftbridge: Liftbridge, liftlog: Cli) -> None:
    liftbridge.create("old-orders", "orders.eu")
    for number in range(1200):
        liftbridge.publish("old-orders", b"%d" % number, key=b"k%d" % (number % 7), trace=b"t9")
    liftbridge.publish("old-orders", b"", key=b"\0\xff")
    given = ("--source-servers", f"127.0.0.1:1,{liftbridge.address}")
    words = ("import", "liftbridge", "old-orders", STREAM, "--envelope", *given)
    assert liftlog.ok(*words).startswith("1,201 messages copied")
    liftbridge.publish("old-orders", b"later")
    (again,) = liftlog.objects(*words)
    assert (again["copied"], again["last"]) == (1, 1202)
    assert liftlog.objects(*words)[0]["copied"] == 0
    found = records(liftlog)
    assert numbers(found) == list(range(1, 1203))
    assert [one.value for one in found] == [b"%d" % n for n in range(1200)] + [b"", b"later"]
    assert [one.key for one in found[-3:]] == [b"k2", b"\0\xff", None]
    assert found[0].headers["trace"] == "t9"
    assert "reply" not in found[0].headers
    assert {one.subject for one in found} == {"orders.eu"}


def test_a_partition_of_several(liftbridge: Liftbridge, liftlog: Cli) -> None:
    liftbridge.create("parted", "orders.us", 2)
    for number in range(20):
        liftbridge.publish("parted", b"%d" % number, partition=number % 2)
    given = ("--source-servers", liftbridge.address, "--partition", "1")
    result = liftlog("import", "liftbridge", "parted", STREAM, *given)
    assert result.exit_code == 0, result.output
    assert [one.value for one in records(liftlog)] == [b"%d" % n for n in range(1, 20, 2)]
    assert records(liftlog)[0].headers["Copied-From"] == "liftbridge/parted/1"


def test_what_a_user_gets_wrong_with_liftbridge(liftbridge: Liftbridge, liftlog: Cli) -> None:
    liftbridge.create("empty", "orders.empty")
    words = ("import", "liftbridge", "none", STREAM, "--source-servers")
    result = liftlog(*words, liftbridge.address)
    assert result.exit_code == ExitCode.NOT_FOUND
    assert "Liftbridge has no stream none" in result.stderr
    result = liftlog(*words, "127.0.0.1:1")
    assert result.exit_code == ExitCode.CANNOT_CONNECT
    assert "127.0.0.1:1" in result.stderr
    given = ("--source-servers", liftbridge.address)
    assert liftlog.objects("import", "liftbridge", "empty", STREAM, *given)[0]["copied"] == 0
