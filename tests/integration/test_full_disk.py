"""A full disk: clear nacks until there is room, nothing acked lost, no restart needed."""

from __future__ import annotations

import contextlib
import json
import resource
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.clients.ingesting import (
    assert_no_traceback,
    describe,
    publish,
    records_of,
    refused,
    until,
)
from support.clients.raw_nats import RawNats
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer

from liftlog.cli.root import cli
from liftlog.client import connect_sync
from liftlog.errors import DiskFull

pytestmark = pytest.mark.integration

STREAMS = {"in": {"subject": "in.>"}, "other": {"subject": "other.>"}}
VALUE = b"x" * 60_000


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 6 MiB."""
    path = tmp_path / "disk"
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"cannot mount a tmpfs: {done.stderr.strip()}")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


def enlarge(disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,size=12m", str(disk)], check=True)


def daemon_on(disk: Path, server: NatsServer) -> Daemon:
    """Its data on the small disk, its log beside it."""
    data_dir = disk / "data"
    settings = {"streams": STREAMS, "data_dir": str(data_dir)}
    daemon = Daemon(server.url, settings, directory=disk.parent)
    daemon.data_dir = data_dir
    return daemon


def fill(raw: RawNats, subject: str) -> tuple[list[int], dict[str, object]]:
    """Publish until it is refused: the acked offsets and the refusal."""
    acked: list[int] = []
    while True:
        answer = publish(raw, subject, b"%6d" % len(acked) + VALUE)
        if "error" in answer:
            return acked, answer["error"]
        acked.append(answer["seq"])
        assert len(acked) < 1000


def check_full_and_free(
    daemon: Daemon, raw: RawNats, make_room: Callable[[], None], reason: str
) -> None:
    acked, error = fill(raw, "in.x")
    assert len(acked) > 5
    assert acked == list(range(1, len(acked) + 1))
    assert (error["code"], error["err_code"]) == (503, 10077)
    for _ in range(20):
        assert publish(raw, "in.x", VALUE)["error"]["err_code"] == 10077
    assert refused(daemon, "in", reason) == 21
    info = describe(daemon, "in")
    assert (info.state, info.log_end_offset) == ("attached", len(acked) + 1)
    assert len(records_of(daemon, "in")) == len(acked), "reading goes on"

    make_room()
    more = [publish(raw, "in.x", b"%6d" % i)["seq"] for i in range(3)]
    assert more == [len(acked) + 1, len(acked) + 2, len(acked) + 3]
    records = records_of(daemon, "in")
    assert [record.offset for record in records] == acked + more
    assert all(
        int((record.value or b"")[:6]) == i for i, record in enumerate(records[: len(acked)])
    )


def test_no_space_left(server: NatsServer, small_disk: Path) -> None:
    with daemon_on(small_disk, server) as daemon:
        with RawNats(server.port) as raw:
            check_full_and_free(daemon, raw, lambda: enlarge(small_disk), "disk_full")
        before = describe(daemon, "in")
        daemon.restart()
        after = describe(daemon, "in")
        assert (after.log_end_offset, after.leader_epoch) == (before.log_end_offset, 1)
        assert_no_traceback(daemon)


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_ending_and_starting_on_a_full_disk(how: str, server: NatsServer, small_disk: Path) -> None:
    with daemon_on(small_disk, server) as daemon, RawNats(server.port) as raw:
        acked, _ = fill(raw, "in.x")
        # To the last byte, as another program would.
        with contextlib.suppress(OSError), (small_disk / "hog").open("wb", 0) as hog:
            while True:
                hog.write(b"x" * 4096)
        getattr(daemon, how)()
        daemon.spawn().wait_listening()
        until(lambda: set(readiness(daemon)["problems"]) == {"disk"}, timeout=60)
        assert len(records_of(daemon, "in")) == len(acked)
        assert publish(raw, "in.x", VALUE)["error"]["err_code"] == 10077
        enlarge(small_disk)
        assert publish(raw, "in.x", VALUE)["seq"] > acked[-1]
        daemon.wait_ready()
        assert_no_traceback(daemon)


def readiness(daemon: Daemon) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(daemon.get("/readyz")[1])
    return found


def test_a_full_disk_looks_full_everywhere(server: NatsServer, small_disk: Path) -> None:
    """The same words on every surface, and none of them once there is room."""
    with daemon_on(small_disk, server) as daemon, RawNats(server.port) as raw:
        fill(raw, "in.x")
        with contextlib.suppress(OSError), (small_disk / "hog").open("wb", 0) as hog:
            while True:
                hog.write(b"x" * 4096)
        until(lambda: "disk" in readiness(daemon)["problems"])
        words = readiness(daemon)["problems"]["disk"]
        assert words == "the data directory cannot be written: No space left on device"
        refusing = "in: refuses messages: no space left on the disk of the log"
        assert readiness(daemon)["warnings"] == {"refusing": refusing}
        surfaces = surfaces_of(daemon)
        for surface, text in surfaces.items():
            assert words in text, surface
            assert (refusing in text) == (surface not in ("stream info",)), surface
        assert surfaces["health"].startswith("11 ready")
        assert surfaces["doctor"].startswith("1 ")
        (small_disk / "hog").unlink()
        enlarge(small_disk)
        assert publish(raw, "in.x", VALUE)["seq"] > 0
        daemon.wait_ready()
        for surface, text in surfaces_of(daemon).items():
            assert words not in text, surface
            assert "refuses messages" not in text, surface


def surfaces_of(daemon: Daemon) -> dict[str, str]:
    """The texts that an operator sees on each surface; commands with their exit code."""
    commands = {
        "health": ("health",),
        "info": ("info",),
        "stream info": ("stream", "info", "in"),
        "top": ("top", "--once", "--interval", "0.1"),
        "doctor": ("doctor", "-c", str(daemon.config_path)),
    }
    found = {}
    for name, words in commands.items():
        result = CliRunner().invoke(cli, [*words, "--server", daemon.pull_address])
        found[name] = f"{result.exit_code} {result.output}"
    return found | {path: daemon.get(path)[1] for path in ("/ui/streams", "/ui/streams/in")}


def test_checkpoints_on_a_full_disk(server: NatsServer, small_disk: Path) -> None:
    """Refused in words, without touching the reserve, and stored as soon as there is room."""
    with daemon_on(small_disk, server) as daemon, RawNats(server.port) as raw:
        assert publish(raw, "in.x", b"1")["seq"] == 1
        with connect_sync(daemon.pull_address) as client:
            client.commit_checkpoint("billing", "in", 1)
            fill(raw, "in.x")
            with contextlib.suppress(OSError), (small_disk / "hog").open("wb", 0) as hog:
                while True:
                    hog.write(b"x" * 4096)
            metadata = "x" * 4096
            refusals = 0
            for _ in range(50):  # what is written of the segment already takes some
                try:
                    client.commit_checkpoint("billing", "in", 2, metadata=metadata)
                except DiskFull:
                    refusals += 1
            assert refusals > 20
            reserve = (daemon.data_dir / "reserve").stat()
            assert reserve.st_blocks * 512 == reserve.st_size == 1 << 20
            found = client.fetch_checkpoint("billing", "in")
            assert found is not None
            kept = found.offset
            daemon.kill()
            daemon.spawn()
            daemon.wait_listening()
        with connect_sync(daemon.pull_address) as client:
            found = client.fetch_checkpoint("billing", "in")
            assert found is not None
            assert found.offset == kept
            enlarge(small_disk)
            client.commit_checkpoint("billing", "in", 3, expected=kept)
            found = client.fetch_checkpoint("billing", "in")
            assert found is not None
            assert found.offset == 3
        assert_no_traceback(daemon)


def test_a_file_may_not_grow(server: NatsServer) -> None:
    """The limit of file sizes stands in for a disk error that is not `no space`."""
    with Daemon(server.url, {"streams": STREAMS}) as daemon, RawNats(server.port) as raw:
        limit = resource.RLIMIT_FSIZE
        _, hard = resource.prlimit(daemon.pid, limit)
        resource.prlimit(daemon.pid, limit, (1_000_000, hard))

        def make_room() -> None:
            resource.prlimit(daemon.pid, limit, (hard, hard))

        check_full_and_free(daemon, raw, make_room, "store_failed")
        assert publish(raw, "other.x", b"1")["seq"] == 1
        assert_no_traceback(daemon)
