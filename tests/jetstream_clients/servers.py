"""What tests of JetStream clients take for a nats-server with JetStream: a core nats-server and a
daemon that answers `$JS.API`.

A test, in whatever language, connects to the socket and sends one line of JSON: `port` to listen on
(-1: any), or the `url` of a nats-server of its own and the address of its `leafnode` listener; and
`store_dir`, if it wants to come back to what it stored. The answer is `ready URL`. The servers end
with the connection; `gone` is the last line.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import tempfile
import threading
from pathlib import Path
from typing import Any

from support import forks
from support.daemon import Daemon
from support.ingesting import until
from support.nats_server import NatsServer
from support.raw_nats import RawNats


class Servers:
    """Use as a context manager; `path` is that of the socket."""

    def __enter__(self) -> Servers:
        forks.allow()
        self._directory = tempfile.TemporaryDirectory(prefix="jetstream-clients-")
        self.path = f"{self._directory.name}/servers.sock"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
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
            threading.Thread(target=_serve, args=(connection,), daemon=True).start()


def _serve(connection: socket.socket) -> None:
    with connection, contextlib.ExitStack() as stack:
        with connection.makefile("rb") as lines:
            request: dict[str, Any] = json.loads(lines.readline())
        url, leafnode = request.get("url"), request.get("leafnode")
        if url is None:
            server = NatsServer(
                listen=f"127.0.0.1:{request['port']}", leafnodes={"listen": "127.0.0.1:-1"}
            )
            stack.enter_context(server)
            url = server.url
            found = re.search(r"for leafnode connections on (\S+)", server.log)
            assert found is not None, server.log
            leafnode = found[1]
        store = request.get("store_dir")
        daemon = Daemon(
            url,
            {"nats": {"jetstream_api": True, "leafnode": leafnode}},
            directory=Path(store) if store else None,
        )
        stack.callback(daemon.kill)
        daemon.start()
        port = int(url.rpartition(":")[2])
        until(lambda: _answers(port), what=f"an answer on $JS.API.INFO\n{daemon.log}")
        connection.sendall(f"ready {url}\n".encode())
        with contextlib.suppress(OSError):
            connection.recv(1)  # the end
        stack.close()
        with contextlib.suppress(OSError):
            connection.sendall(b"gone\n")


def _answers(port: int) -> bool:
    try:
        with RawNats(port) as raw:
            return raw.request("$JS.API.INFO", b"").payload != b""
    except OSError:
        return False
