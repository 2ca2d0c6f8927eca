"""The real daemon with compressed streams, read over TLS: clients, commands, restarts."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.clients.ingesting import assert_no_traceback, describe, records_of, until
from support.clients.raw_nats import RawNats, pub_frame
from support.daemons.certificates import Authority
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer
from support.repository import REPOSITORY

from liftlog.client import connect_sync
from liftlog.client.reading.read_options import Filter
from liftlog.errors import Conflict, ConnectionLost, ProtocolViolation

pytestmark = pytest.mark.integration

NAMES = ("none", "lz4", "zstd")
COUNT = 3000
VALUES = [b'{"order": %d, "state": "paid", "currency": "EUR"}' % i for i in range(COUNT)]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def daemon(server: NatsServer, authority: Authority) -> Iterator[Daemon]:
    pair = authority.issue("daemon")
    settings = {
        "pull": {
            "listen": ["tcp://127.0.0.1:0", "tls://127.0.0.1:0"],
            "tls": {
                "cert": str(pair.cert),
                "key": str(pair.key),
                "client_ca": str(authority.ca),
                "min_version": 1.3,
            },
        },
        "cleaner": {"interval": "100ms"},
        "streams": {
            name: {
                "subject": f"orders.{name}",
                "compression": name,
                "segment": {"max_bytes": "16KiB"},
                "rebatch": {"min_age": "0s"},
            }
            for name in NAMES
        },
    }
    with Daemon(server.url, settings) as daemon:
        yield daemon
        assert_no_traceback(daemon)


@pytest.fixture(scope="module")
def filled(daemon: Daemon, server: NatsServer) -> Daemon:
    with RawNats(server.port) as raw:
        for name in NAMES:
            for first in range(0, COUNT, 100):
                part = VALUES[first : first + 100]
                raw.send(b"".join([pub_frame(f"orders.{name}", value) for value in part]))
                raw.ping()
    for name in NAMES:
        until(lambda name=name: describe(daemon, name).high_watermark == COUNT + 1)  # type: ignore[misc]
    return daemon


@pytest.fixture(scope="module")
def options(authority: Authority) -> dict[str, str]:
    """For commands, from the environment."""
    mine = authority.issue("client")
    return {
        "LIFTLOG_TLS_CA": str(authority.ca),
        "LIFTLOG_TLS_CERT": str(mine.cert),
        "LIFTLOG_TLS_KEY": str(mine.key),
    }


def secured_address(daemon: Daemon) -> str:
    addresses = json.loads(daemon.addresses_path.read_text())["pull"]
    (address,) = [one for one in addresses if one.startswith("tls://")]
    return str(address)


def command(*arguments: str, environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "liftlog", *arguments],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("name", NAMES)
def test_the_records_are_those_that_were_published(filled: Daemon, name: str) -> None:
    assert [record.value for record in records_of(filled, name)] == VALUES
    assert describe(filled, name).settings["compression"] == name


@pytest.mark.parametrize("name", NAMES)
def test_a_filter_looks_inside(filled: Daemon, name: str) -> None:
    with connect_sync(filled.pull_address) as client:
        found = list(client.read(name, until="end", filter=Filter(subject=f"orders.{name}")))
        assert [record.value for record in found] == VALUES
        assert not list(client.read(name, until="end", filter=Filter(subject="orders.other")))


def test_compressed_streams_take_less_room(filled: Daemon) -> None:
    sizes = {name: describe(filled, name).size_bytes for name in NAMES}
    assert sizes["lz4"] < sizes["none"] / 2
    assert sizes["zstd"] < sizes["none"] / 2


def test_files_are_verified_and_dumped(filled: Daemon) -> None:
    name = "zstd"
    stream = filled.data_dir / "streams" / name
    found = command("log", "dump", str(stream), "-o", "json", environ={})
    assert found.returncode == 0, found.stderr
    assert f'"{name}"' in found.stdout
    found = command("log", "verify", str(stream), environ={})
    assert found.returncode == 0, found.stdout + found.stderr


def test_the_secured_address_asks_for_a_certificate(
    filled: Daemon, authority: Authority, options: dict[str, str]
) -> None:
    address = secured_address(filled)
    with pytest.raises(ConnectionLost):
        connect_sync(address, tls=authority.ca)
    arguments = ("consume", "zstd", "--server", address, "--until-end", "-o", "jsonl")
    assert command(*arguments, environ={}).returncode != 0
    found = command(*arguments, environ=options)
    assert found.returncode == 0, found.stderr
    assert len(found.stdout.splitlines()) == COUNT


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_a_reader_in_another_language(filled: Daemon) -> None:
    reader = Path(REPOSITORY) / "docs" / "examples" / "reader.js"
    found = subprocess.run(
        ["node", str(reader), "lz4", "--address", filled.pull_address],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    values = [json.loads(line)["value"] for line in found.stdout.splitlines()]
    assert values == [value.decode() for value in VALUES]


def test_another_compression_is_a_conflict(filled: Daemon) -> None:
    with connect_sync(filled.pull_address) as client:
        client.create_stream("made", "made", compression="lz4")
        client.create_stream("made", "made", compression="lz4")
        with pytest.raises(Conflict, match="compression: lz4 here, zstd asked"):
            client.create_stream("made", "made", compression="zstd")


@pytest.mark.parametrize("name", NAMES)
def test_everything_is_there_after_a_crash(filled: Daemon, name: str) -> None:
    if name == NAMES[0]:
        filled.kill()
        filled.start()
    assert [record.value for record in records_of(filled, name)] == VALUES


def test_a_client_without_tls_is_told_what_the_port_speaks(daemon: Daemon) -> None:
    address = secured_address(daemon).replace("tls://", "tcp://")
    with pytest.raises(ProtocolViolation, match="look like TLS") as raised:
        connect_sync(address)
    assert "use tls://" in raised.value.hint
