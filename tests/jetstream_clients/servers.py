"""What tests of JetStream clients take for a nats-server with JetStream: a core nats-server and a
daemon that answers `$JS.API`.

A test, in whatever language, connects to the socket and sends one line of JSON: `port` to listen on
(-1: any), or the `url` of a nats-server of its own and the address of its `leafnode` listener, with
the name of a `user`, which is also the password, if that server has users;
`store_dir`, if it wants to come back to what it stored; and `max_payload`, in bytes. The answer is
`ready URL`. The servers end with the connection; `gone` is the last line.

With `theirs`, a test gets a nats-server with JetStream itself: what fails there, too, says nothing
of liftlog. Tests that bring their own server are told by JETSTREAM_CLIENTS_THEIRS, and do not ask.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from support.clients.ingesting import until
from support.clients.raw_nats import RawNats
from support.daemons import forks
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer

_stores: dict[str, threading.Lock] = {}
"""Stores in use. A server that is started again waits until the previous server has released its
store."""


class Servers:
    """Use as a context manager. `environ` contains the address of the socket for the tests."""

    def __init__(self, *, theirs: bool = False) -> None:
        self._theirs = theirs

    def __enter__(self) -> Servers:
        forks.allow()
        self._directory = tempfile.TemporaryDirectory(prefix="jetstream-clients-")
        path = f"{self._directory.name}/servers.sock"
        self.environ = {"JETSTREAM_CLIENTS_SERVERS": path}
        if self._theirs:
            self.environ["JETSTREAM_CLIENTS_THEIRS"] = "1"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._listener.close()
        self._directory.cleanup()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            serve = _serve_theirs if self._theirs else _serve
            threading.Thread(target=serve, args=(connection,), daemon=True).start()


def _serve(connection: socket.socket) -> None:
    with connection, contextlib.ExitStack() as stack:
        request = _request(connection)
        if store := request.get("store_dir"):
            stack.enter_context(_stores.setdefault(store, threading.Lock()))
        url, leafnode = request.get("url"), request.get("leafnode")
        if url is None:
            server = _nats_server(request, leafnodes={"listen": "127.0.0.1:-1"})
            stack.enter_context(server)
            url = server.url
            found = re.search(r"for leafnode connections on (\S+)", server.log)
            assert found is not None, server.log
            leafnode = found[1]
        login = {"user": user, "password": user} if (user := request.get("user")) else {}
        daemon = Daemon(
            url,
            {"nats": {"jetstream_api": True, "leafnode": leafnode, **login}},
            directory=Path(store) if store else None,
        )
        stack.callback(daemon.kill)
        daemon.start()
        port = int(url.rpartition(":")[2])
        until(lambda: _answers(port, login), what=f"an answer on $JS.API.INFO\n{daemon.log}")
        _say_and_wait(connection, f"ready {url}\n")
        stack.close()
        with contextlib.suppress(OSError):
            connection.sendall(b"gone\n")


def _serve_theirs(connection: socket.socket) -> None:
    with connection:
        request = _request(connection)
        store = request.get("store_dir")
        directory = Path(store) if store else None
        with _nats_server(request, directory=directory, jetstream=True) as server:
            _say_and_wait(connection, f"ready {server.url}\n")
        with contextlib.suppress(OSError):
            connection.sendall(b"gone\n")


def _request(connection: socket.socket) -> dict[str, Any]:
    with connection.makefile("rb") as lines:
        request: dict[str, Any] = json.loads(lines.readline())
    return request


def _nats_server(request: dict[str, Any], **options: Any) -> NatsServer:
    listen = f"127.0.0.1:{request['port']}"
    return NatsServer(listen=listen, max_payload=request.get("max_payload"), **options)


def _say_and_wait(connection: socket.socket, line: str) -> None:
    """Send a line, and return when the client has closed its side."""
    with contextlib.suppress(OSError):
        connection.sendall(line.encode())
        connection.recv(1)


def _answers(port: int, login: Mapping[str, str]) -> bool:
    options = {"user": login["user"], "pass": login["password"]} if login else {}
    try:
        with RawNats(port, connect_options=options) as raw:
            return raw.request("$JS.API.INFO", b"").payload != b""
    except OSError:
        return False
