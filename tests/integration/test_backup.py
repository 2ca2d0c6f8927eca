"""liftlog backup against real daemons: under load, killed in the middle, and gone on with."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.clients.command_line import Cli
from support.clients.raw_nats import header_block, hpub_frame, pub_frame
from support.clients.steady_publisher import SteadyPublisher
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer

from liftlog.cli.lib.exit_codes import ExitCode
from liftlog.client import SyncClient, connect_sync
from liftlog.errors import Diverged, OffsetOutOfRange

pytestmark = pytest.mark.integration

SETTINGS = {
    "streams": {
        "orders": {"subject": "orders.>", "segment": {"max_bytes": "64KiB"}},
        "prices": {
            "subject": "prices.>",
            "segment": {"max_bytes": "64KiB"},
            "retention": {"max_messages": 300},
            "compaction": {"min_dirty_ratio": 0.1},
            "dedupe_window": 0,
        },
    },
    "log": {"retention_interval": "100ms"},
    "cleaner": {"interval": "100ms"},
}
FILLER = "x" * 200


@pytest.fixture(scope="module")
def nats() -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server


@pytest.fixture
def source(nats: NatsServer, tmp_path: Path) -> Iterator[Daemon]:
    with Daemon(nats.url, SETTINGS, directory=tmp_path / "source") as daemon:
        yield daemon


def values(client: SyncClient, stream: str, until: int | str = "end") -> dict[int, bytes | None]:
    records = client.read(stream, "earliest", until)  # type: ignore[arg-type]
    return {record.offset: record.value for record in records}


def _span(client: SyncClient, stream: str) -> int:
    info = client.describe_stream(stream)
    return info.high_watermark - info.log_start_offset


class Load(SteadyPublisher):
    """Numbered messages of 200 bytes and more. `{n}` in the key is the number of the message."""

    def __init__(self, nats: NatsServer, subject: str, key: str = "") -> None:
        super().__init__(nats.port, subject, per_second=3000)
        self._key = key

    def _frame(self, number: int) -> bytes:
        value = f"{number} {FILLER}"
        if not self._key:
            return pub_frame(self.subject, value)
        block = header_block({"Liftlog-Key": self._key.format(n=number)})
        return hpub_frame(self.subject, block, value)


def log_files(directory: Path) -> int:
    """How many there are while a process makes and moves them: `rglob` fails for a directory that
    goes away meanwhile, `os.walk` passes it by."""
    return sum(name.endswith(".log") for _, _, names in os.walk(directory) for name in names)


def wait_for(condition: Any, what: str, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.005)


def end(process: subprocess.Popen[bytes], number: int = signal.SIGTERM) -> None:
    if process.poll() is None:
        process.send_signal(number)
    process.communicate(timeout=30)


def test_under_load_and_what_comes_of_it(source: Daemon, nats: NatsServer, tmp_path: Path) -> None:
    command = Cli(source, nats)
    loads = [
        Load(nats, "orders.a"),
        Load(nats, "prices.a", "key-{n}"),
        Load(nats, "prices.b", "the same"),
    ]
    for load in loads:
        load.start()
    try:
        with connect_sync(source.pull_address) as client:
            for name in ("orders", "prices"):
                rolled = lambda name=name: client.describe_stream(name).segment_count > 5  # noqa: E731
                wait_for(rolled, "no load")
            client.commit_checkpoint("billing", "orders", 17)
            before = {info.name: info for info in client.list_streams()}
            command.ok("backup", "create", str(source.data_dir), str(tmp_path / "backup"))
            more = client.describe_stream("orders").high_watermark + 1000
            wait_for(lambda: client.describe_stream("orders").high_watermark > more, "no load")
    finally:
        for load in loads:
            load.finish()
    shown = json.loads(command.ok("backup", "info", str(tmp_path / "backup"), "-o", "json"))
    ends = {one["name"]: one["end_offset"] for one in shown["streams"]}
    assert set(ends) == {"_offsets", "orders", "prices"}
    for name, info in before.items():
        assert ends[name] >= info.high_watermark  # what was acked when it began is in it
    assert "ok, 3 streams" in command.ok("backup", "verify", str(tmp_path / "backup"))
    with connect_sync(source.pull_address) as client:
        epoch = client.describe_stream("orders").leader_epoch
        original = values(client, "orders", ends["orders"])
        newest = client.describe_stream("orders").high_watermark
    assert newest > ends["orders"] + 500
    source.stop()

    target = tmp_path / "restored"
    command.ok("backup", "restore", str(tmp_path / "backup"), str(target / "data"))
    with Daemon(nats.url, SETTINGS, directory=target) as daemon:
        assert "unclean" not in daemon.log
        _check_gone_on(Cli(daemon, nats), original, ends, epoch)


def _check_gone_on(
    command: Cli, original: dict[int, bytes | None], ends: dict[str, int], epoch: int
) -> None:
    with connect_sync(command.daemon.pull_address) as client:
        info = client.describe_stream("orders")
        assert (info.high_watermark, info.quarantined) == (ends["orders"], [])
        assert values(client, "orders") == original
        checkpoint = client.fetch_checkpoint("billing", "orders")
        assert checkpoint is not None
        assert (checkpoint.offset, checkpoint.problem) == (17, "")
        assert client.describe_stream("prices").quarantined == []
        # A reader that retention overtakes is refused, so let retention run first.
        wait_for(lambda: _span(client, "prices") <= 300, "retention did not run")
        assert 0 < len(values(client, "prices")) <= 300
        # Who read beyond the backup is told so, before and after others stand at these offsets.
        ahead = {"epoch": epoch, "incarnation": info.incarnation}
        lost = ends["orders"] + 100
        with pytest.raises((Diverged, OffsetOutOfRange)):
            client.fetch("orders", lost, **ahead)  # type: ignore[arg-type]
        command.ok("pub", "orders.new", "after {n}", "--count", "200")
        with pytest.raises(Diverged):
            client.fetch("orders", lost, **ahead)  # type: ignore[arg-type]
        assert client.fetch("orders", lost).header.offset == lost
        # Who had read exactly what the backup holds goes on.
        going_on = client.fetch("orders", ends["orders"], **ahead)  # type: ignore[arg-type]
        assert going_on.header.offset == ends["orders"]


def filled(source: Daemon, nats: NatsServer) -> Cli:
    command = Cli(source, nats)
    text = f"{{n}} {FILLER}"
    command.ok("pub", "orders.a", text, "--count", "6000")
    return command


@pytest.mark.long
def test_a_killed_create_leaves_no_backup(source: Daemon, nats: NatsServer, tmp_path: Path) -> None:
    command = filled(source, nats)
    unfinished = 0
    for number, files in enumerate((0, 1, 5, 30, 80)):
        backup = tmp_path / f"backup{number}"
        process = command.spawn("backup", "create", str(source.data_dir), str(backup))
        begun = lambda: log_files(backup) >= files and backup.exists()  # noqa: E731, B023
        wait_for(lambda: begun() or process.poll() is not None, "not begun")  # noqa: B023
        end(process, signal.SIGKILL)
        for action in (("verify", str(backup)), ("restore", str(backup), str(tmp_path / "no"))):
            if (backup / "backup").exists():
                continue  # it was quicker
            unfinished += 1
            result = command("backup", *action)
            assert result.exit_code == ExitCode.DAMAGED
            assert "not finished" in result.stderr
        assert not (tmp_path / "no").exists()
    assert unfinished >= 4
    command.ok("backup", "create", str(source.data_dir), str(tmp_path / "whole"))
    command.ok("backup", "verify", str(tmp_path / "whole"))


@pytest.mark.long
def test_a_killed_restore_leaves_no_data_directory(
    source: Daemon, nats: NatsServer, tmp_path: Path
) -> None:
    command = filled(source, nats)
    with connect_sync(source.pull_address) as client:
        expected = values(client, "orders")
    backup, target = tmp_path / "backup", tmp_path / "restored"
    command.ok("backup", "create", str(source.data_dir), str(backup))
    source.stop()
    daemon = Daemon(nats.url, SETTINGS, directory=target)
    refused = 0
    for files in (0, 3, 40):
        process = command.spawn("backup", "restore", str(backup), str(daemon.data_dir))
        begun = lambda: (  # noqa: E731
            (daemon.data_dir / "restoring").exists() and log_files(daemon.data_dir) >= files  # noqa: B023
        )
        wait_for(lambda: begun() or process.poll() is not None, "not begun")  # noqa: B023
        end(process, signal.SIGKILL)
        if process.returncode == 0:
            break
        daemon.spawn()
        assert daemon.wait(30).exit_code == ExitCode.DAMAGED
        assert "not all of it is there" in daemon.log
        refused += 1
    assert refused
    if process.returncode != 0:
        command.ok("backup", "restore", str(backup), str(daemon.data_dir))
    with daemon.start(), connect_sync(daemon.pull_address) as client:
        assert values(client, "orders") == expected


def test_what_is_refused(source: Daemon, nats: NatsServer, tmp_path: Path) -> None:
    command = Cli(source, nats)
    backup, data_dir = tmp_path / "backup", str(source.data_dir)
    command.ok("pub", "orders.a", "x")
    assert command("backup", "create", str(tmp_path), str(backup)).exit_code == ExitCode.NOT_FOUND
    result = command("backup", "create", data_dir, str(backup), "--stream", "ordes")
    assert result.exit_code == ExitCode.NOT_FOUND
    assert "did you mean 'orders'?" in result.stderr
    assert not backup.exists()
    command.ok("backup", "create", data_dir, str(backup), "--stream", "orders")
    result = command("backup", "create", data_dir, str(backup))
    assert result.exit_code == ExitCode.USAGE
    command.ok("backup", "verify", str(backup))
    result = command("backup", "restore", str(backup), data_dir)  # a daemon is in it
    assert result.exit_code == ExitCode.USAGE
    assert "is not empty" in result.stderr
    fresh = tmp_path / "fresh"
    command.ok("backup", "restore", str(backup), str(fresh), "--dry-run")
    assert not fresh.exists()
    (segment, *_) = sorted((backup / "streams" / "orders").glob("*.log"))
    segment.write_bytes(segment.read_bytes()[:-1] + b"\1")
    for action in (
        ("verify", str(backup)),
        ("restore", str(backup), str(fresh), "--dry-run"),
        ("restore", str(backup), str(fresh)),
    ):
        assert command("backup", *action).exit_code == ExitCode.DAMAGED
