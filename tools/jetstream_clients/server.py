"""What the tests of JetStream's clients take for a nats-server with JetStream: a core nats-server
and a daemon that answers `$JS.API`, as one process to start and to kill.

    python -m tools.jetstream_clients.server --port 4222 --store-dir DIR [--config FILE]
    python -m tools.jetstream_clients.server --url nats://127.0.0.1:4222 --leafnode HOST:PORT

With `--url` the nats-server runs elsewhere, and only the daemon is started. Prints `ready URL` when
`$JS.API.INFO` is answered. Ends at SIGTERM, or with the process that started it.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

from liftlog.server.life.embedded import find_nats_server
from liftlog.server.vitals.child_processes import tied_to_parent

_READY_SECONDS = 60.0
_REPOSITORY = Path(__file__).parents[2]
_QUESTION = (
    b'CONNECT {"verbose":false}\r\nSUB _INBOX.ready 1\r\n'
    b"PUB $JS.API.INFO _INBOX.ready 0\r\n\r\nPING\r\n"
)


def main() -> None:
    options = _parse()
    parent = os.getppid()
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # children are tied to this process
    if os.getppid() != parent:
        sys.exit(1)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    store = Path(options.store_dir or tempfile.mkdtemp(prefix="jetstream-clients-")).absolute()
    store.mkdir(parents=True, exist_ok=True)
    processes = []
    try:
        url, leafnode = options.url, options.leafnode
        if url is None:
            leafnode = f"127.0.0.1:{_free_port()}"
            port = options.port if options.port > 0 else _free_port()
            url = f"nats://127.0.0.1:{port}"
            processes.append(_start_nats(store, port, leafnode, options))
            _wait(processes, lambda: _greets(port), "nats-server does not greet")
        processes.append(_start_daemon(store, url, leafnode))
        port = int(url.rpartition(":")[2])
        _wait(processes, lambda: _answers(port), f"the daemon does not answer: see {store}")
        print(f"ready {url}", flush=True)
        while all(process.poll() is None for process in processes):
            time.sleep(0.05)
        sys.exit("a server ended by itself")
    finally:
        for process in reversed(processes):
            process.kill()
            process.wait()


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", "-p", type=int, default=-1)
    parser.add_argument("--url")
    parser.add_argument("--leafnode")
    parser.add_argument("--http-port", type=int, default=0)
    parser.add_argument("--store-dir")
    parser.add_argument("--config", "-c")
    return parser.parse_args()


def _start_nats(
    store: Path, port: int, leafnode: str, options: argparse.Namespace
) -> subprocess.Popen[bytes]:
    config = store / "core.conf"
    own = without_jetstream(Path(options.config).read_text()) if options.config else ""
    config.write_text(f'{own}\nleafnodes {{ listen: "{leafnode}" }}\n')
    command = [str(find_nats_server()), "-a", "127.0.0.1", "-p", str(port), "-c", str(config)]
    if options.http_port:
        command += ["-m", str(options.http_port)]
    return _start(command, store / "nats-server.log")


def without_jetstream(config: str) -> str:
    """nats-server's configuration without its `jetstream` block or line."""
    found = re.search(r"^\s*\"?jetstream\"?\s*[:=]?\s*(\{?)", config, re.MULTILINE | re.IGNORECASE)
    if found is None:
        return config
    end, depth = found.end(), len(found[1])
    if not depth:
        end = config.find("\n", end) % (len(config) + 1)
    while depth and end < len(config):
        depth += {"{": 1, "}": -1}.get(config[end], 0)
        end += 1
    return config[: found.start()] + "\n" + config[end:].lstrip(",")


def _start_daemon(store: Path, url: str, leafnode: str) -> subprocess.Popen[bytes]:
    config = store / "liftlog.yaml"
    settings = {
        "data_dir": str(store / "liftlog"),
        "nats": {"servers": [url], "jetstream_api": True, "leafnode": leafnode},
        "pull": {"listen": [f"unix://{store}/pull.sock"]},
        "http": {"listen": "127.0.0.1:0"},
    }
    config.write_text(yaml.safe_dump(settings))
    command = [sys.executable, "-m", "liftlog", "serve", "-c", str(config)]
    return _start(command, store / "liftlog.log")


def _start(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    environ = {key: value for key, value in os.environ.items() if not key.startswith("LIFTLOG_")}
    with log.open("ab") as output:
        return subprocess.Popen(
            tied_to_parent(command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**environ, "PYTHONPATH": str(_REPOSITORY)},
        )


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _wait(processes, condition, complaint: str) -> None:  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + _READY_SECONDS
    while not condition():
        if any(process.poll() is not None for process in processes):
            sys.exit("a server ended by itself")
        if time.monotonic() > deadline:
            sys.exit(complaint)
        time.sleep(0.02)


def _greets(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 1) as one:
            return one.recv(4) == b"INFO"
    except OSError:
        return False


def _answers(port: int) -> bool:
    """Whether someone answers on `$JS.API.INFO`."""
    try:
        with socket.create_connection(("127.0.0.1", port), 1) as one:
            one.sendall(_QUESTION)
            received = b""
            while b"account_info_response" not in received:
                more = one.recv(65536)
                if not more:
                    return False
                received += more
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main()
