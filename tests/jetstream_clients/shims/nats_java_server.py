"""In the place of the `nats-server` that nats.java's tests start. A run without JetStream, or one
with JetStream itself, gets the real nats-server; any other one a core server and a daemon.

The real server dies with this process, and the daemon, too, since its socket is closed then.
JETSTREAM_CLIENTS_OWN is a directory of one test: what servers stored is there, by port, and a file
says that the test may connect.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import nats_js_server as shared

_USER = shared.USER
_BLOCK = re.compile(r"^jetstream\s*[:=]?\s*(\{.*?\}|\w+)\s*$", re.MULTILINE | re.DOTALL)
_USERS = re.compile(r"^(authorization\s*\{.*?^\s*users\s*[:=]?\s*\[)", re.MULTILINE | re.DOTALL)


def main() -> None:
    arguments = sys.argv[1:]
    config = _after(arguments, "--config")
    text = Path(config).read_text() if config else ""
    port = _after(arguments, "--port") or _value(text, "port")
    jetstream = _BLOCK.search(text)
    if "--version" in arguments:
        os.execv(shared.REAL, [shared.REAL, *arguments])
    own = Path(os.environ["JETSTREAM_CLIENTS_OWN"])
    store = (jetstream and _value(jetstream[0], "store_dir")) or str(own / f"{port}.store")
    ready = own / f"{port}.ready"
    ready.unlink(missing_ok=True)  # from an earlier server on this port
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    if "JETSTREAM_CLIENTS_THEIRS" in os.environ or not (jetstream or "-js" in arguments):
        arguments += ["-sd", store]
        _wait_with(subprocess.Popen([shared.REAL, *arguments], **shared.TIED), ready)
        return
    core = text[: jetstream.start()] + text[jetstream.end() :] if jetstream else text
    core, has_users = _USERS.subn(
        rf"\g<1>\n{{ user: {_USER}, password: {_USER} }}\n", core, count=1
    )
    leafnode = f"127.0.0.1:{shared.free_port()}"
    core += f"\nleafnodes {{ listen: {leafnode} }}\n"
    written = own / f"{port}.conf"
    written.write_text(core if config else f"port: {port}\n{core}")
    server = subprocess.Popen([shared.REAL, "-c", str(written)], **shared.TIED)
    request = {"url": f"nats://127.0.0.1:{port}", "leafnode": leafnode, "store_dir": store}
    if has_users:
        request["user"] = _USER
    link = shared.daemon(request)
    _wait_with(server, ready)
    link.close()


def _wait_with(server: subprocess.Popen[bytes], ready: Path) -> None:
    """Report to the tests that they may connect. Returns when the server has ended."""
    try:
        ready.touch()
        server.wait()
    finally:
        ready.unlink(missing_ok=True)
        server.kill()
        server.wait()


def _after(arguments: list[str], option: str) -> str:
    return arguments[arguments.index(option) + 1] if option in arguments else ""


def _value(text: str, name: str) -> str:
    found = re.search(rf"^\s*{name}\s*[:=]\s*(\S+)", text, re.MULTILINE)
    return found[1].strip("\"'") if found else ""


if __name__ == "__main__":
    main()
