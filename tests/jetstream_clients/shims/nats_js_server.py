"""In the place of `nats-server` on the PATH of nats.js's tests. A configuration without JetStream,
or a run with JetStream itself, gets the real nats-server; any other one a core server and a daemon.

The real server dies with this process, and the daemon, too, since its socket is closed then.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

REAL = os.environ["JETSTREAM_CLIENTS_NATS_SERVER"]
_PR_SET_PDEATHSIG = 1
USER = "daemon"
"""The daemon's name and password on a server that has users."""


def main() -> None:
    arguments = sys.argv[1:]
    config = Path(arguments[arguments.index("-c") + 1])
    text = config.read_text()
    jetstream = re.search(r"^jetstream \{$(.*?)^ \}$", text, re.MULTILINE | re.DOTALL)
    if jetstream is None or "JETSTREAM_CLIENTS_THEIRS" in os.environ:
        os.execv(REAL, [REAL, *arguments])
    core = text[: jetstream.start()] + text[jetstream.end() :]
    core, has_users = re.subn(
        r"(authorization \{\s*users:? \[)",
        rf"\g<1>\n{{ user: {USER}, password: {USER} }}\n",
        core,
    )
    leafnode = f"127.0.0.1:{free_port()}"
    core = re.sub(r"(leafnodes \{\s*listen: )\S+", rf"\g<1>{leafnode}", core)
    with tempfile.TemporaryDirectory(prefix="nats-js-") as directory:
        core = re.sub(r"^ports_file_dir: .*$", f"ports_file_dir: {directory}", core, flags=re.M)
        written = Path(directory, "nats.conf")
        written.write_text(core)
        server = subprocess.Popen([REAL, "-c", str(written)], **TIED)
        ports = _ports(Path(directory, f"nats-server_{server.pid}.ports"), server)
    request = {"leafnode": leafnode, "store_dir": _value(jetstream[1], "store_dir")}
    if has_users:
        request["user"] = USER
    link = daemon({"url": ports["nats"][0], **request})
    _announce(ports, Path(_value(text, "ports_file_dir")))
    server.wait()
    link.close()


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


TIED: dict[str, Any] = {"preexec_fn": _die_with_parent}
"""Options of a process that ends with this one."""


def _value(text: str, name: str) -> str:
    found = re.search(rf"^\s*{name}: (.*)$", text, re.MULTILINE)
    assert found is not None, f"no {name} in {text}"
    return found[1].strip('"')


def _ports(path: Path, server: subprocess.Popen[bytes]) -> dict[str, Any]:
    while server.poll() is None:
        try:
            ports: dict[str, Any] = json.loads(path.read_text())
            return ports
        except (OSError, ValueError):
            time.sleep(0.01)
    sys.exit(f"nats-server ended: {server.returncode}")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        port: int = one.getsockname()[1]
    return port


def daemon(request: dict[str, str]) -> socket.socket:
    link = socket.socket(socket.AF_UNIX)
    link.connect(os.environ["JETSTREAM_CLIENTS_SERVERS"])
    link.sendall(json.dumps(request).encode() + b"\n")
    if not link.recv(256).startswith(b"ready"):
        sys.exit("the daemon did not start")
    return link


def _announce(ports: dict[str, Any], directory: Path) -> None:
    path = directory / f"nats-server_{os.getpid()}.ports"
    new = path.with_suffix(".new")
    new.write_text(json.dumps(ports))
    new.replace(path)


if __name__ == "__main__":
    main()
