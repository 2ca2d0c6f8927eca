"""A daemon on files that a newer version has written says what is not open, and changes nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.clients.command_line import Cli
from support.clients.ingesting import publish, until
from support.clients.raw_nats import RawNats
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer

from liftlog.cli.lib.exit_codes import ExitCode
from liftlog.client import connect_sync
from liftlog.log.files.filesystem import OsFileSystem
from liftlog.log.files.manifest import read_manifest

pytestmark = pytest.mark.integration


@pytest.fixture
def daemon(server: NatsServer, tmp_path: Path) -> Iterator[Daemon]:
    """Stopped, with two streams and a checkpoint."""
    with Daemon(server.url, directory=tmp_path) as daemon:
        with RawNats(server.port) as raw, connect_sync(daemon.pull_address) as client:
            for name in ("orders", "other"):
                client.create_stream(name, subject=f"{name}.>")
                publish(raw, f"{name}.x", b"1")
            client.commit_checkpoint("billing", "other", 2)
        daemon.stop()
        yield daemon


def store_newer(directory: Path) -> None:
    """Store what a version would that has one more setting, with a value that matters."""
    manifest = read_manifest(OsFileSystem(), directory)
    assert manifest is not None
    settings = {**manifest.metadata["settings"], "mirror": {"of": "elsewhere"}}
    metadata = {**manifest.metadata, "settings": settings}
    manifest.with_changes(metadata=metadata).write(OsFileSystem(), directory)


@pytest.mark.parametrize("stream", ["orders", "_offsets"])
def test_it_is_not_ready_and_names_the_stream(
    daemon: Daemon, server: NatsServer, stream: str
) -> None:
    directory = daemon.data_dir / "streams" / stream
    store_newer(directory)
    before = contents(directory)
    daemon.spawn()
    daemon.wait_listening()
    liftlog = Cli(daemon, server)
    status, text = daemon.get("/readyz")
    assert status == 503, text
    found = {one["name"]: one for one in json.loads(text)["conditions"]}
    assert found["newer_version"]["subject"] == stream
    assert "mirror" in found["newer_version"]["text"]
    assert "how-to/upgrade" in found["newer_version"]["next_step"]
    health = liftlog("health")
    assert health.exit_code == ExitCode.TRY_AGAIN
    assert stream in health.output
    with RawNats(server.port) as raw, connect_sync(daemon.pull_address) as client:
        until(lambda: client.describe_stream("other").state == "attached", 30)
        assert publish(raw, "other.x", b"2")["seq"] == 2, "the rest is served"
    daemon.stop()
    assert contents(directory) == before

    # The version that can read it finds it closed in order.
    metadata = json.loads((directory / "manifest").read_text().partition("\n")[2])["metadata"]
    del metadata["settings"]["mirror"]
    manifest = read_manifest(OsFileSystem(), directory)
    assert manifest is not None
    manifest.with_changes(metadata=metadata).write(OsFileSystem(), directory)
    daemon.start()
    assert daemon.get("/readyz")[0] == 200
    with connect_sync(daemon.pull_address) as client:
        assert client.describe_stream(stream).leader_epoch == 1
        checkpoint = client.fetch_checkpoint("billing", "other")
        assert checkpoint is not None
        assert checkpoint.offset == 2


def contents(directory: Path) -> dict[str, bytes]:
    return {
        one.name: one.read_bytes()
        for one in directory.iterdir()
        if one.name.startswith("manifest") or one.suffix == ".log"
    }


def test_what_is_stored_today_is_read_by_versions_without_later_settings(daemon: Daemon) -> None:
    for stream in ("orders", "other", "_offsets"):
        manifest = read_manifest(OsFileSystem(), daemon.data_dir / "streams" / stream)
        assert manifest is not None
        settings = manifest.metadata["settings"]
        assert "jetstream" not in settings
        assert "discard" not in settings["retention"]
