"""Real damage under a real daemon: readers are told what is gone, and get all the rest."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from click.testing import CliRunner
from support.clients.ingesting import assert_no_traceback, describe, publish
from support.clients.raw_nats import RawNats
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer
from support.disks.stored_logs import batch_positions, flip

from liftlog.cli.lib.exit_codes import ExitCode
from liftlog.cli.root import cli
from liftlog.client import connect, connect_sync
from liftlog.errors import CorruptRange
from liftlog.records.format import HEADER_SIZE

pytestmark = pytest.mark.integration

COUNT = 12
POSITIONS = {"body": HEADER_SIZE + 200, "length": 4, "count": 20}
CASES = [(offset, kind) for offset in (1, 2, 3, COUNT) for kind in POSITIONS]
Read = Callable[..., list[int]]


def stream_of(offset: int, kind: str) -> str:
    return f"{kind}-{offset}"


STREAMS = {
    name: {"subject": name, "segment": {"max_bytes": "4KiB"}, "dedupe_window": "0s"}
    for name in ["killed", "repaired", *(stream_of(*case) for case in CASES)]
}


@pytest.fixture(scope="module")
def daemon(server: NatsServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """Streams with one batch for each of the offsets 1 to 12, in segments of three; damaged while
    the daemon was stopped."""
    directory = tmp_path_factory.mktemp("damage")
    with Daemon(server.url, {"streams": STREAMS}, directory=directory) as daemon:
        with RawNats(server.port) as raw:
            for name in STREAMS:
                for number in range(COUNT):
                    assert publish(raw, name, b"%04d" % number + b"x" * 996)["seq"] == number + 1
        assert describe(daemon, "killed").segment_count > 2
        daemon.stop()
        for offset, kind in CASES:
            damage(daemon, stream_of(offset, kind), offset, POSITIONS[kind])
        daemon.start()
        yield daemon
        assert_no_traceback(daemon)


def read_blocking(daemon: Daemon, name: str, start: int, **options: Any) -> list[int]:
    with connect_sync(daemon.pull_address) as client:
        return [record.offset for record in client.read(name, start, "end", **options)]


def read_async(daemon: Daemon, name: str, start: int, **options: Any) -> list[int]:
    async def read() -> list[int]:
        async with connect(daemon.pull_address) as client:
            return [record.offset async for record in client.read(name, start, "end", **options)]

    return asyncio.run(read())


@pytest.fixture(params=[read_blocking, read_async], ids=["sync", "async"])
def read(request: pytest.FixtureRequest) -> Read:
    return request.param  # type: ignore[no-any-return]


def damage(daemon: Daemon, name: str, offset: int, position_in_batch: int) -> None:
    for path in sorted((daemon.data_dir / "streams" / name).glob("*.log")):
        for position, header in batch_positions(path):
            if header.base_offset == offset:
                flip(path, position + position_in_batch)
                return
    raise AssertionError(f"no batch holds offset {offset}")


@pytest.mark.parametrize(("offset", "kind"), CASES)
def test_the_range_is_exact_and_reading_goes_on(
    daemon: Daemon, read: Read, offset: int, kind: str
) -> None:
    name = stream_of(offset, kind)
    with pytest.raises(CorruptRange) as raised:
        read(daemon, name, 1)
    assert (raised.value.first_offset, raised.value.next_offset) == (offset, offset + 1)
    rest = [n for n in range(1, COUNT + 1) if n != offset]
    assert read(daemon, name, offset + 1) == [n for n in rest if n > offset]
    told: list[CorruptRange] = []
    assert read(daemon, name, 1, on_corrupt=told.append) == rest
    assert [(one.first_offset, one.next_offset) for one in told] == [(offset, offset + 1)]


def test_what_recovery_quarantined_is_told_too(daemon: Daemon) -> None:
    name = "killed"
    daemon.kill()
    (daemon.data_dir / "recovery-points").unlink(missing_ok=True)
    damage(daemon, name, 11, POSITIONS["count"])
    daemon.start()
    (bad,) = describe(daemon, name).quarantined
    assert (bad["first_offset"], bad["next_offset"]) == (11, 12)
    assert daemon.metric("liftlog_quarantined_ranges", stream=name) == 1
    for read in (read_blocking, read_async):
        with pytest.raises(CorruptRange) as raised:
            read(daemon, name, 5)
        assert (raised.value.first_offset, raised.value.next_offset) == (11, 12)
        assert read(daemon, name, 5, on_corrupt="skip") == [5, 6, 7, 8, 9, 10, 12]
    address = ["--server", daemon.pull_address]
    result = CliRunner().invoke(cli, ["stream", "info", name, *address])
    assert "offset 11" in result.stdout
    result = CliRunner().invoke(
        cli, ["consume", name, "--until-end", "--skip-corrupt", "-o", "jsonl", *address]
    )
    assert result.exit_code == ExitCode.DAMAGED
    offsets = [json.loads(line)["offset"] for line in result.stdout.splitlines()]
    assert offsets == [*range(1, 11), 12]


def test_after_an_offline_repair_the_daemon_goes_on(daemon: Daemon, server: NatsServer) -> None:
    name = "repaired"
    daemon.stop()
    damage(daemon, name, 2, POSITIONS["body"])
    directory = daemon.data_dir / "streams" / name
    for manifest in (directory / "manifest", directory / "manifest.copy"):
        flip(manifest, manifest.stat().st_size // 2)
    arguments = ["log", "repair", "--yes", str(directory), "-s", name, "--set", "dedupe_window=0s"]
    result = CliRunner().invoke(cli, [*arguments, "--set", "segment.max_bytes=4KiB"])
    assert result.exit_code == ExitCode.OK, result.output
    daemon.start()
    assert CliRunner().invoke(cli, arguments).exit_code == ExitCode.TRY_AGAIN
    (bad,) = describe(daemon, name).quarantined
    assert (bad["first_offset"], bad["next_offset"]) == (2, 3)
    with RawNats(server.port) as raw:
        assert publish(raw, name, b"after")["seq"] == COUNT + 1
    assert read_blocking(daemon, name, 1, on_corrupt="skip") == [1, *range(3, COUNT + 2)]
