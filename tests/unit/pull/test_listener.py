from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest
from support.clients.raw_pull import RawPull
from support.daemons.pull_broker import LogBroker, pull_server

from liftlog.errors import ConfigError
from liftlog.server.pull import PullServer
from liftlog.server.pull.sockets import open_listener


async def test_a_unix_socket_serves_and_leaves_no_file(broker: LogBroker, tmp_path: Path) -> None:
    path = tmp_path / "pull.sock"
    async with pull_server(broker, listen=f"unix://{path}") as (_, address):
        assert address == f"unix://{path}"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        async with await RawPull.connect(address) as peer:
            peer.send({"k": "fetch", "i": 1, "s": "orders", "o": 1})
            assert (await peer.receive())["c"] == 100
    assert not path.exists()


def test_a_stale_socket_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "pull.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert path.exists()
    listener = open_listener(f"unix://{path}")
    listener.close()
    assert not path.exists()


def test_a_socket_file_in_use_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "pull.sock"
    listener = open_listener(f"unix://{path}")
    with pytest.raises(ConfigError, match="another process listens"):
        open_listener(f"unix://{path}")
    assert path.exists()
    listener.close()


def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("data")
    with pytest.raises(ConfigError, match="not a socket"):
        open_listener(f"unix://{path}")
    assert path.read_text() == "data"


def test_a_socket_file_that_someone_else_replaced_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "pull.sock"
    listener = open_listener(f"unix://{path}")
    os.rename(path, tmp_path / "moved")
    path.write_text("theirs")
    listener.close()
    assert path.read_text() == "theirs"


@pytest.mark.parametrize(
    "address",
    ["", "127.0.0.1:9292", "http://127.0.0.1:1", "tcp://127.0.0.1", "tcp://:x", "unix://rel/path",
     "tcp://127.0.0.1:99999", "unix:///nonexistent-directory/x.sock"],
)  # fmt: skip
def test_an_address_that_cannot_be_had_is_a_config_error(address: str) -> None:
    with pytest.raises(ConfigError, match=r"pull\.listen"):
        open_listener(address)


async def test_all_addresses_or_none(broker: LogBroker, tmp_path: Path) -> None:
    server = PullServer(broker)
    path = tmp_path / "pull.sock"
    with pytest.raises(ConfigError):
        await server.start([f"unix://{path}", "tcp://127.0.0.1:99999"])
    assert not path.exists()
    addresses = await server.start([f"unix://{path}", "tcp://127.0.0.1:0"])
    assert not addresses[1].endswith(":0")
    for address in addresses:
        await (await RawPull.connect(address)).close()
    await server.close(grace=1)


async def test_a_socket_file_that_cannot_be_removed_does_not_hold_up_the_end(
    broker: LogBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, missing_ok: bool = False) -> None:
        raise PermissionError

    async with pull_server(broker, listen=f"unix://{tmp_path}/pull.sock") as (server, address):
        async with await RawPull.connect(address):
            with monkeypatch.context() as patch:
                patch.setattr(Path, "unlink", refuse)
                await server.close(0.1)
        assert server.connection_count == 0
