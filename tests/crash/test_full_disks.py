"""Disks that are really full, on several file systems: errors and refusals, never a dead daemon.

File systems differ when they are full: btrfs has no room even to overwrite data, and ext4 and tmpfs
report late that a sparse file has no block. In each case acked records are kept, reads continue, a
start with a full disk serves them, and retention frees space.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.clients.ingesting import assert_no_traceback, describe, publish, records_of, until
from support.clients.ledger import PATIENCE
from support.clients.raw_nats import RawNats
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer
from support.disks.small_disks import KINDS, SmallDisk, small_disk
from support.rounds import modes

from liftlog.client import connect_sync
from liftlog.errors import DiskFull

pytestmark = pytest.mark.integration

VALUE = b"x" * 400
RETAINED = {
    "subject": "kept.>",
    "segment": {"max_bytes": "128KiB"},
    "dedupe_window": "0s",
}


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server


@pytest.fixture(params=modes(*KINDS))
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(request.param, tmp_path) as found:
        yield found


def daemon_on(disk: SmallDisk, server: NatsServer, **streams: object) -> Daemon:
    data_dir = disk.path / "data"
    settings = {
        "streams": {"in": {"subject": "in.>"}, **streams},
        "data_dir": str(data_dir),
        "log": {"retention_interval": "200ms"},
        "nats": {"reconnect_wait": "50ms"},
    }
    daemon = Daemon(server.url, settings, directory=disk.path.parent)
    daemon.data_dir = data_dir
    return daemon


def fill(raw: RawNats, subject: str = "in.x", *, most: int = 200_000) -> list[int]:
    """Publish until the publisher was refused a hundred times. Returns the acked offsets."""
    acked: list[int] = []
    refused = 0
    while refused < 100 and len(acked) < most:
        answer = publish(raw, subject, b"%6d" % len(acked) + VALUE)
        if "error" in answer:
            assert answer["error"]["err_code"] == 10077
            refused += 1
        else:
            acked.append(answer["seq"])
    return acked


def is_served(daemon: Daemon, acked: list[int], stream: str = "in") -> None:
    found = [record.offset for record in records_of(daemon, stream)]
    assert set(acked) <= set(found)
    assert found == sorted(set(found))


def test_a_disk_that_another_program_fills_under_commits(
    disk: SmallDisk, server: NatsServer
) -> None:
    """The segment has space that was allocated ahead, so commits continue. Other operations may
    fail, but only with an error."""
    with daemon_on(disk, server) as daemon, RawNats(server.port) as raw:
        acked = [publish(raw, "in.x", VALUE)["seq"] for _ in range(20)]
        disk.fill()
        acked += fill(raw)
        assert daemon.running
        is_served(daemon, acked)
        daemon.kill()
        daemon.spawn().wait_listening()
        is_served(daemon, acked)
        disk.make_room()
        assert publish_until_stored(daemon, raw) > acked[-1]
        daemon.wait_ready()
        assert describe(daemon, "in").quarantined == []
        assert_no_traceback(daemon)


def publish_until_stored(daemon: Daemon, raw: RawNats) -> int:
    until(lambda: describe(daemon, "in").state == "attached", PATIENCE)
    answers: list[int] = []

    def stored() -> bool:
        answer = publish(raw, "in.x", b"room again")
        answers.append(answer.get("seq", 0))
        return "error" not in answer

    until(stored, PATIENCE)
    return answers[-1]


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_start_while_the_disk_is_still_full(
    how: str, disk: SmallDisk, server: NatsServer
) -> None:
    """Existing records are read, new ones are refused, and retention frees space without help."""
    with daemon_on(disk, server, kept=dict(RETAINED)) as daemon, RawNats(server.port) as raw:
        kept = [publish(raw, "kept.x", b"%5d" % i + VALUE * 20)["seq"] for i in range(200)]
        acked = [publish(raw, "in.x", VALUE)["seq"] for _ in range(50)]
        disk.fill()
        getattr(daemon, how)()
        disk.fill()
        daemon.spawn().wait_listening()
        is_served(daemon, acked)
        is_served(daemon, kept, "kept")
        daemon.stop()
        disk.fill()
        daemon.settings["streams"]["kept"]["retention"] = {"max_bytes": "256KiB"}
        daemon.arguments.append("--yes")
        daemon.spawn().wait_listening()
        is_served(daemon, acked)
        until(lambda: describe(daemon, "kept").size_bytes < 600_000, PATIENCE)
        assert publish_until_stored(daemon, raw) > acked[-1]
        assert_no_traceback(daemon)


def test_creating_streams_with_a_few_blocks_left(disk: SmallDisk, server: NatsServer) -> None:
    """Whatever operation finds no space, the creation is refused, and the stream does not exist."""
    with daemon_on(disk, server) as daemon, RawNats(server.port) as raw:
        assert publish(raw, "in.x", VALUE)["seq"] == 1
        made = {"in"}
        disk.fill()
        for blocks in range(16):
            disk.give_back(4096)
            name = f"s{blocks}"
            with connect_sync(daemon.pull_address) as client:
                try:
                    client.create_stream(name, subject=f"s.{blocks}")
                    made.add(name)
                except DiskFull:
                    pass
                assert {info.name for info in client.list_streams()} == made
        is_served(daemon, [1])
        disk.make_room()
        for name in made - {"in"}:
            assert publish(raw, f"s.{name[1:]}", VALUE)["seq"] == 1
        assert_no_traceback(daemon)
