"""Checkpoints of a real daemon: by both clients, over NATS, on the command line, with an ACL."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from support.clients.ingesting import assert_no_traceback, publish, records_of, until
from support.clients.raw_nats import RawNats
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer

from acl.tokens import hash_token, new_secret
from liftlog.cli.lib.exit_codes import ExitCode
from liftlog.cli.root import cli
from liftlog.client import SyncClient, connect, connect_sync
from liftlog.errors import (
    CheckpointMoved,
    Forbidden,
    InvalidArgument,
    LiftlogError,
    OffsetOutOfRange,
    StaleIncarnation,
    StreamNotFound,
)
from liftlog.server.checkpoints.checkpoint import decode_key, decode_value

pytestmark = pytest.mark.integration

NAME = "main"
RECORDS = 10


@pytest.fixture(scope="module")
def daemon(server: NatsServer) -> Iterator[Daemon]:
    settings = {
        "name": NAME,
        "streams": {"orders": {"subject": "orders.>"}, "other": {"subject": "other.>"}},
    }
    with Daemon(server.url, settings) as daemon, RawNats(server.port) as raw:
        for _ in range(RECORDS):
            publish(raw, "orders.a", b"x")
        yield daemon
        assert_no_traceback(daemon)


@pytest.fixture
def client(daemon: Daemon) -> Iterator[SyncClient]:
    with connect_sync(daemon.pull_address) as client:
        yield client
        for one in client.list_checkpoints():
            client.delete_checkpoint(one.consumer, one.stream)
        assert client.list_checkpoints() == []


def test_commit_fetch_list_delete(client: SyncClient) -> None:
    assert client.fetch_checkpoint("billing", "orders") is None
    client.commit_checkpoint("billing", "orders", 4, 0, metadata="at home")
    client.commit_checkpoint("billing", "other", 1)
    found = client.fetch_checkpoint("billing", "orders")
    assert found is not None
    assert (found.offset, found.lag, found.metadata, found.problem) == (4, 7, "at home", "")
    assert found.incarnation == client.describe_stream("orders").incarnation
    with pytest.raises(CheckpointMoved) as caught:
        client.commit_checkpoint("billing", "orders", 5, 3)
    assert caught.value.details == {"offset": 4}
    client.commit_checkpoint("billing", "orders", 5, 4)
    assert [(one.stream, one.offset) for one in client.list_checkpoints()] == [
        ("orders", 5), ("other", 1),
    ]  # fmt: skip
    assert [one.stream for one in client.list_checkpoints(stream="other")] == ["other"]
    assert client.list_checkpoints(consumer="bill") == []
    with pytest.raises(CheckpointMoved):
        client.delete_checkpoint("billing", "orders", 4)
    client.delete_checkpoint("billing", "orders", 5)
    client.delete_checkpoint("billing", "orders")
    assert client.fetch_checkpoint("billing", "orders") is None


async def test_the_async_client_and_many_at_once(daemon: Daemon, client: SyncClient) -> None:
    async with connect(daemon.pull_address) as one:
        commits = [one.commit_checkpoint(f"c{n}", "orders", 1 + n % 11) for n in range(500)]
        await asyncio.gather(*commits)
        listed = await one.list_checkpoints()
        assert {found.consumer: found.offset for found in listed} == {
            f"c{n}": 1 + n % 11 for n in range(500)
        }
        results = await asyncio.gather(
            *(one.commit_checkpoint("c0", "orders", 2 + n, 1) for n in range(RECORDS)),
            return_exceptions=True,
        )
        assert sum(result is None for result in results) == 1
        assert sum(isinstance(result, CheckpointMoved) for result in results) == RECORDS - 1
        await one.delete_checkpoint("c0", "orders")
        assert await one.fetch_checkpoint("c0", "orders") is None


@pytest.mark.parametrize(
    ("error", "arguments"),
    [
        (InvalidArgument, ("a b", "orders", 1)),
        (InvalidArgument, ("c", "../orders", 1)),
        (InvalidArgument, ("c", "orders", 0)),
        (StreamNotFound, ("c", "none", 1)),
        (OffsetOutOfRange, ("c", "orders", RECORDS + 2)),
    ],
)
def test_what_is_refused(
    client: SyncClient, error: type[LiftlogError], arguments: tuple[str, str, int]
) -> None:
    with pytest.raises(error):
        client.commit_checkpoint(*arguments)


def test_another_incarnation_is_an_error_to_its_reader(client: SyncClient) -> None:
    first = client.create_stream("short", "short.>")
    client.commit_checkpoint("c", "short", 1, incarnation=first.incarnation, epoch=1)
    client.delete_stream("short")
    with pytest.raises(StreamNotFound):
        client.fetch_checkpoint("c", "short")
    assert [one.problem for one in client.list_checkpoints()] == ["STREAM_NOT_FOUND"]
    client.create_stream("short", "short.>")
    with pytest.raises(StaleIncarnation):
        client.fetch_checkpoint("c", "short")
    found = client.fetch_checkpoint("c", "short", check=False)
    assert found is not None
    assert found.incarnation == first.incarnation
    with pytest.raises(StaleIncarnation):
        client.commit_checkpoint("c", "short", 1, incarnation=first.incarnation)
    client.commit_checkpoint("c", "short", 1)
    assert client.fetch_checkpoint("c", "short") is not None
    client.delete_stream("short")


def test_the_stream_itself(daemon: Daemon, client: SyncClient) -> None:
    client.commit_checkpoint("billing", "orders", 3)
    record = records_of(daemon, "_offsets")[-1]
    assert record.subject == f"liftlog.{NAME}.offsets.orders.billing"
    assert decode_key(record.key) == ("billing", "orders")
    assert record.value is not None
    assert decode_value(record.value).offset == 3
    assert "_offsets" not in [info.name for info in client.list_streams()]
    info = client.describe_stream("_offsets")
    assert (info.state, info.origin) == ("attached", "system")
    for change in (
        lambda: client.delete_stream("_offsets"),
        lambda: client.create_stream("_offsets", "x"),
    ):
        with pytest.raises(InvalidArgument, match="reserved"):
            change()


def test_compaction_and_a_restart(server: NatsServer, tmp_path: Path) -> None:
    settings = {"name": "again", "streams": {"orders": {"subject": "again"}}}
    with Daemon(server.url, settings, directory=tmp_path) as daemon, RawNats(server.port) as raw:
        for _ in range(RECORDS):
            publish(raw, "again", b"x")
        with connect_sync(daemon.pull_address) as client:
            compact_and_restart(daemon, client)
        assert_no_traceback(daemon)


def compact_and_restart(daemon: Daemon, client: SyncClient) -> None:
    for offset in range(1, RECORDS + 1):
        client.commit_checkpoint("billing", "orders", offset)
    client.commit_checkpoint("gone", "orders", 1)
    client.delete_checkpoint("gone", "orders")
    before = client.list_checkpoints()
    info = client.compact_stream("_offsets", wait=True)
    assert info.compaction["cleaned_below"] == info.high_watermark
    stored = [
        record for record in records_of(daemon, "_offsets") if record.key == b"billing/orders"
    ]
    assert len(stored) == 1
    for end in (daemon.stop, daemon.kill):
        end()
        daemon.start()
        with connect_sync(daemon.pull_address) as again:
            assert again.list_checkpoints() == before


# --- over NATS ---


def test_over_nats(daemon: Daemon, server: NatsServer, client: SyncClient) -> None:
    subject = f"liftlog.{NAME}.offsets.orders.billing"
    with RawNats(server.port) as raw:
        answer = raw.request(subject, b"7").json()
        assert answer == {"stream": "orders", "consumer": "billing", "offset": 7}
        found = client.fetch_checkpoint("billing", "orders")
        assert found is not None
        assert found.offset == 7
        answer = raw.request(subject, b'{"offset":8,"expected":6}').json()
        assert answer["error"]["name"] == "CHECKPOINT_MOVED"
        assert answer["error"]["offset"] == 7
        answer = raw.request(subject, b'{"offset":99}').json()
        assert answer["error"]["name"] == "OFFSET_OUT_OF_RANGE"
        answer = raw.request(f"liftlog.{NAME}.offsets.none.billing", b"1").json()
        assert answer["error"]["name"] == "STREAM_NOT_FOUND"
        answer = raw.request(subject, b"\x00").json()
        assert answer["error"]["name"] == "INVALID_ARGUMENT"
        raw.pub(subject, b'{"offset":8,"metadata":"silent"}')

        def stored() -> bool:
            found = client.fetch_checkpoint("billing", "orders")
            return found is not None and (found.offset, found.metadata) == (8, "silent")

        until(stored)


ACL = """
principals:
  consumer: {{token_hash: "{0}"}}
  reader: {{token_hash: "{1}"}}
roles:
  consuming:
    - {{allow: [read, commit], streams: ["orders"]}}
  reading:
    - {{allow: [read], streams: ["other"]}}
bindings:
  consumer: [consuming]
  reader: [reading]
"""


def test_an_acl(tmp_path: Path, server: NatsServer) -> None:
    secrets = [new_secret(), new_secret()]
    acl = tmp_path / "acl.yaml"
    acl.write_text(ACL.format(*map(hash_token, secrets)))
    settings = {
        "name": "guarded",
        "acl": {"file": str(acl)},
        "streams": {"orders": {"subject": "guarded.orders"}, "other": {"subject": "guarded.o"}},
    }
    with Daemon(server.url, settings, directory=tmp_path / "daemon") as daemon:
        with connect_sync(daemon.pull_address, token=f"consumer.{secrets[0]}") as client:
            client.commit_checkpoint("c", "orders", 1)
            assert len(client.list_checkpoints()) == 1
            for forbidden in (
                lambda: client.commit_checkpoint("c", "other", 1),
                lambda: client.fetch_checkpoint("c", "other"),
                lambda: client.delete_checkpoint("c", "other"),
                lambda: client.fetch("_offsets"),
                lambda: client.commit_checkpoint("c", "none", 1),
            ):
                with pytest.raises(Forbidden):
                    forbidden()
        with connect_sync(daemon.pull_address, token=f"reader.{secrets[1]}") as client:
            assert client.list_checkpoints() == []
            with pytest.raises(Forbidden):
                client.fetch_checkpoint("c", "orders")
        with RawNats(server.port) as raw:
            raw.pub("liftlog.guarded.offsets.orders.c", b"1", reply=b"answers")
            raw.sub("answers")
            raw.ping()
            assert raw.no_message()
        with connect_sync(daemon.pull_address, token=f"consumer.{secrets[0]}") as client:
            # No one listens there: the daemon has no such subscription.
            assert client.describe_stream("orders").state == "attached"
        assert_no_traceback(daemon)


# --- the command line ---


def test_the_commands(daemon: Daemon, client: SyncClient) -> None:
    def run(*arguments: str) -> Result:
        environ = {"LIFTLOG_SERVER": daemon.pull_address}
        return CliRunner(env=environ).invoke(cli, ["offsets", *arguments])

    assert "There are no checkpoints." in run("ls").stderr
    assert run("get", "billing", "orders").exit_code == ExitCode.NOT_FOUND
    assert run("rm", "billing", "orders", "--yes").exit_code == ExitCode.NOT_FOUND
    shown = run("seek", "billing", "orders", "5", "--dry-run")
    assert shown.exit_code == 0
    assert "billing in orders: no checkpoint -> 5, 6 offsets left to read" in shown.stdout
    assert client.list_checkpoints() == []
    assert run("seek", "billing", "orders", "5").exit_code == 0
    assert run("seek", "billing", "orders", "6").exit_code == ExitCode.USAGE  # no terminal
    assert run("seek", "billing", "orders", "12", "--yes").exit_code == ExitCode.OUT_OF_RANGE
    result = run("seek", "billing", "orders", "earliest", "--yes", "-o", "jsonl")
    assert json.loads(result.stdout) == {
        "consumer": "billing",
        "stream": "orders",
        "before": 5,
        "offset": 1,
        "moved_by": -4,
        "lag": 10,
        "done": True,
    }
    assert "1 -> 11, 10 offsets skipped, 0 offsets left to read" in (
        run("seek", "billing", "orders", "latest", "--yes").stdout
    )
    assert "billing   orders      11    0" in run("ls").stdout
    (listed,) = json.loads(run("ls", "-o", "json").stdout)
    assert (listed["offset"], listed["lag"]) == (11, 0)
    assert json.loads(run("get", "billing", "orders", "-o", "json").stdout) == listed
    assert "checkpoint 11 is deleted" in run("rm", "billing", "orders", "--dry-run").stdout
    assert len(client.list_checkpoints()) == 1
    assert run("rm", "billing", "orders", "--yes").exit_code == 0
    assert client.list_checkpoints() == []
    assert run("get", "billing", "none").exit_code == ExitCode.NOT_FOUND
