"""A failing disk under the real daemon: it refuses messages with a clear error, then continues, and
no ack was false.

Each fault is injected below the daemon, in the forgetful file system, so that a power cut
afterwards shows what had really reached the disk. A failed fsync drops the dirty pages there, as
Linux does: a program that syncs the same file again and trusts the result has lost them.
"""

from __future__ import annotations

import errno
import itertools
import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from support.clients.ingesting import AckedPublisher, assert_no_traceback, describe, publish, until
from support.clients.ledger import PATIENCE, Ledger
from support.clients.raw_nats import RawNats
from support.clients.readback import read_back
from support.daemons.daemon import Daemon
from support.daemons.machine import Machine
from support.daemons.nats_server import NatsServer
from support.disks.losefs import losefs
from support.rounds import modes

from liftlog.log.files.manifest import SKIPPED

pytestmark = pytest.mark.integration


class Fault(NamedTuple):
    operation: str
    path: str
    error: int
    times: int = 3


FAULTS = {
    "a write fails": [Fault("write", ".log", errno.EIO)],
    "no space": [Fault("write", ".log", errno.ENOSPC), Fault("allocate", ".log", errno.ENOSPC)],
    "a write fails and cannot be taken back": [
        Fault("write", ".log", errno.EIO),
        Fault("truncate", ".log", errno.EIO, 2),
    ],
    "an fsync fails": [Fault("fsync", ".log", errno.EIO, 1)],
    "a new segment cannot be made": [Fault("create", ".log", errno.EMFILE)],
    "the manifest cannot be renamed": [Fault("rename", "manifest", errno.EIO)],
    "the manifest cannot be synced": [Fault("fsync", "manifest", errno.EIO)],
    "the directory cannot be synced": [Fault("fsync_directory", "streams/in", errno.EIO)],
    "the file system is read-only": [
        Fault(operation, "streams/in", errno.EROFS, 20)
        for operation in ("write", "create", "rename", "truncate", "allocate", "unlink")
    ],
}


@pytest.fixture
def server() -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server


def settings(durability: str) -> dict[str, object]:
    stream = {
        "subject": f"fault.{durability}.>",
        "durability": durability,
        "flush": {"messages": 50, "interval": "1s"},
        "segment": {"max_bytes": "32KiB"},
    }
    return {"streams": {"in": stream}, "nats": {"reconnect_wait": "50ms"}}


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("durability", ["fsync", "interval", "os"])
def test_the_disk_fails_and_recovers(durability: str, server: NatsServer, tmp_path: Path) -> None:
    with losefs(tmp_path / "disk") as disk:
        machine = Machine(server, disk, settings(durability))
        daemon = machine.daemon.start()
        publisher = AckedPublisher(server.port, f"fault.{durability}.x", in_flight=30, pad=100)
        ledger = Ledger([publisher])
        ledger.start()
        for name, faults in FAULTS.items():
            ledger.wait_acked(50)
            refused = len(publisher.nacked)
            for fault in faults:
                disk.fail(fault.operation, path=fault.path, error=fault.error, times=fault.times)
            until(lambda: disk.status["hits"], PATIENCE, name)
            if faults[0].operation == "write":
                until(lambda r=refused: len(publisher.nacked) > r, PATIENCE, name)  # type: ignore[misc]
            disk.heal()
            ledger.wait_acked(300)
            assert describe(daemon, "in").state == "attached", name
            ledger.check(read_back(daemon, "in").records, acked=(), excused=lost_by(daemon))
        assert disk.status["retried"] == 0, "a file whose fsync failed was synced again"
        ledger.finish()
        assert set(publisher.nacked.values()) == {10077}
        until(lambda: everything_is_committed(daemon))
        ledger.check(read_back(daemon, "in").records, excused=lost_by(daemon))
        if durability == "fsync":
            assert lost_by(daemon) == []
        machine.lose_power(1)
        daemon.start()
        ledger.check(
            read_back(daemon, "in").records,
            may_lose_from=1 if durability == "os" else None,
            excused=lost_by(daemon) if durability == "interval" else (),
        )
        assert_no_traceback(daemon)
        daemon.stop()


def lost_by(daemon: Daemon) -> list[range]:
    """Return the ranges that the daemon reports as lost."""
    return [
        range(one["first_offset"], one["next_offset"]) for one in describe(daemon, "in").quarantined
    ]


def everything_is_committed(daemon: Daemon) -> bool:
    info = describe(daemon, "in")
    return bool(info.high_watermark == info.log_end_offset)


def test_a_disk_that_fills_up_under_load(server: NatsServer, tmp_path: Path) -> None:
    """Short writes at the limit, refusals, space again, and a power cut at the end."""
    with losefs(tmp_path / "disk") as disk:
        disk.limit(2_000_000)
        machine = Machine(server, disk, settings("fsync"))
        daemon = machine.daemon.start()
        publisher = AckedPublisher(server.port, "fault.fsync.full", in_flight=30, pad=1000)
        ledger = Ledger([publisher])
        ledger.start()
        until(lambda: len(publisher.nacked) > 100, PATIENCE)
        stored = len(publisher.acked)
        disk.limit(None)
        ledger.wait_acked(300)
        ledger.finish()
        assert stored > 500
        assert set(publisher.nacked.values()) == {10077}
        ledger.check(read_back(daemon, "in").records)
        machine.lose_power(2)
        daemon.start()
        ledger.check(read_back(daemon, "in").records)
        # What was left of refused groups may have cost offsets, never records.
        assert {bad["reason"] for bad in describe(daemon, "in").quarantined} <= {SKIPPED}
        assert_no_traceback(daemon)
        daemon.stop()


@pytest.mark.parametrize("durability", modes("interval", "fsync", "os"))
def test_too_many_open_files(durability: str, server: NatsServer) -> None:
    """No more file can be opened. Appends continue or are refused, and no acked message is lost."""
    with Daemon(server.url, settings(durability)) as daemon:
        publisher = AckedPublisher(server.port, f"fault.{durability}.x", in_flight=30, pad=200)
        ledger = Ledger([publisher])
        ledger.start()
        ledger.wait_acked(100)
        limits = resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)

        def refuses() -> bool:
            """Lower the limit further, since the daemon may have closed a file meanwhile."""
            resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (next_file(daemon), limits[1]))
            return bool(publisher.nacked)

        until(refuses, PATIENCE)
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, limits)
        ledger.wait_acked(300)
        ledger.finish()
        assert set(publisher.nacked.values()) == {10077}
        until(lambda: everything_is_committed(daemon))
        ledger.check(read_back(daemon, "in").records)
        assert lost_by(daemon) == []
        daemon.kill()
        daemon.start()
        ledger.check(read_back(daemon, "in").records)


def next_file(daemon: Daemon) -> int:
    """Return the lowest number that a new file would get. With this number as the limit, no file
    can be opened.

    Reads it many times, because a manifest that is being written uses some numbers only for a
    moment.
    """

    def free() -> int:
        taken = {int(number) for number in os.listdir(f"/proc/{daemon.pid}/fd")}
        return next(number for number in itertools.count() if number not in taken)

    return min(free() for _ in range(2000))


def test_a_read_only_disk_at_the_start(server: NatsServer, tmp_path: Path) -> None:
    """A stream that cannot be written is not served in part. When the disk can be written, it
    returns completely."""
    with losefs(tmp_path / "disk") as disk:
        machine = Machine(server, disk, settings("fsync"))
        daemon = machine.daemon.start()
        with RawNats(server.port) as raw:
            acked = [publish(raw, "fault.fsync.x", b"%d" % i)["seq"] for i in range(10)]
        daemon.kill()
        for operation in ("write", "create", "rename", "truncate", "allocate", "unlink"):
            disk.fail(operation, path="streams", error=errno.EROFS, times=1000)
        daemon.spawn()
        until(lambda: not daemon.running or machine.listening, PATIENCE)
        if daemon.running:
            with RawNats(server.port) as raw:
                answer = raw.request("fault.fsync.x", b"refused").payload
                assert b'"seq":1' not in answer
        daemon.kill()
        disk.heal()
        daemon.start()
        assert [record.offset for record in read_back(daemon, "in").records] == acked
        with RawNats(server.port) as raw:
            assert publish(raw, "fault.fsync.x", b"x")["seq"] == acked[-1] + 1
        daemon.stop()
