"""What systemd hears, on a real datagram socket."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from liftlog.server.life.service_manager import ServiceManager


@contextmanager
def listening(address: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind("\0" + address[1:] if address[0] == "@" else address)
        heard.settimeout(5)
        yield heard


@pytest.fixture(params=["path", "abstract"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    name = f"liftlog-{secrets.token_hex(8)}"
    return str(tmp_path / "notify") if request.param == "path" else f"@{name}"


def lines(heard: socket.socket) -> list[str]:
    return heard.recv(4096).decode().splitlines()


def test_the_whole_life(address: str) -> None:
    environ = {"NOTIFY_SOCKET": address, "PATH": "/bin"}
    manager = ServiceManager.from_environment(environ)
    assert environ == {"PATH": "/bin"}, "children would speak in our name"
    with listening(address) as heard:
        manager.status("recovering\nREADY=1")
        assert lines(heard) == ["STATUS=recovering READY=1"]
        manager.ready("serving 2 streams")
        assert lines(heard) == ["READY=1", "STATUS=serving 2 streams"]
        manager.reloading()
        told, moment, _ = lines(heard)
        assert told == "RELOADING=1"
        assert moment.removeprefix("MONOTONIC_USEC=").isdecimal()
        manager.stopping(120.0)
        told, more_time, _ = lines(heard)
        assert told == "STOPPING=1"
        assert more_time == "EXTEND_TIMEOUT_USEC=140000000"
        manager.close()
        manager.ready("again")
        heard.setblocking(False)
        with pytest.raises(BlockingIOError):
            heard.recv(4096)


async def test_the_watchdog_hears_three_times_per_deadline(address: str) -> None:
    environ = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "90000", "WATCHDOG_PID": str(os.getpid())}
    with listening(address) as heard:
        manager = ServiceManager.from_environment(environ)
        assert manager.watchdog_seconds == pytest.approx(0.09)
        keeping = asyncio.get_running_loop().create_task(manager.keep_watchdog())
        loop = asyncio.get_running_loop()
        started = loop.time()
        for _ in range(4):
            assert await asyncio.to_thread(heard.recv, 4096) == b"WATCHDOG=1"
        assert loop.time() - started >= 3 * 0.03 - 0.005
        keeping.cancel()
        manager.close()


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"WATCHDOG_USEC": "0"},
        {"WATCHDOG_USEC": "soon"},
        {"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"},  # meant for another process
    ],
)
async def test_no_watchdog_is_wanted(environ: dict[str, str]) -> None:
    manager = ServiceManager.from_environment(environ)
    assert environ == {}
    await asyncio.wait_for(manager.keep_watchdog(), 5)


@pytest.mark.parametrize("wrong", ["", "relative/path", "vsock:1:2"])
def test_an_address_that_is_none_of_ours(wrong: str) -> None:
    manager = ServiceManager.from_environment({"NOTIFY_SOCKET": wrong})
    manager.ready("no one hears")
    manager.close()


def test_nobody_listens_any_more(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    manager = ServiceManager(str(tmp_path / "gone"))
    manager.ready("one")
    manager.ready("two")
    manager.close()
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_a_socket_that_nobody_empties_stops_nothing(address: str) -> None:
    manager = ServiceManager(address)
    with listening(address):
        for _ in range(1000):
            manager.status("x" * 1000)
    manager.close()


async def test_what_found_no_room_is_told_later(address: str) -> None:
    """The notification is sent even if many pings found no room in the queue meanwhile."""
    manager = ServiceManager(address, watchdog_seconds=0.03)
    with listening(address) as heard:
        for _ in range(1000):
            manager.status("x" * 1000)
        manager.stopping(1.0)
        keeping = asyncio.get_running_loop().create_task(manager.keep_watchdog())
        await asyncio.sleep(0.5)
        found: list[str] = []
        while "WATCHDOG=1" not in found:
            found += await asyncio.to_thread(lines, heard)
        assert "STOPPING=1" in found
        keeping.cancel()
    manager.close()
