"""What the image, the unit and the StatefulSet run, run here: the same command, environment and
health check, without rights, on a file system that is read-only but for the data and /tmp.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.clients.ingesting import until
from support.clients.raw_nats import RawNats
from support.daemons.nats_server import NatsServer
from support.daemons.ports import free_port
from support.repository import REPOSITORY

from liftlog.client import connect_sync
from liftlog.server.vitals.child_processes import tied_to_parent

pytestmark = pytest.mark.integration

DOCKERFILE = (REPOSITORY / "Dockerfile").read_text().replace("\\\n", " ")
COMPOSE = yaml.safe_load((REPOSITORY / "docker-compose.yml").read_text())

# A mount namespace of its own: everything read-only, but for $1; then without capabilities.
_READ_ONLY = """\
set -e
mount --make-rprivate /
mount --bind "$1" "$1"
case "$2" in
  /tmp/*) ;;  # the code lies there too
  *) mount -t tmpfs tmpfs /tmp -o size=16m ;;
esac
mount -o remount,ro,bind /
shift 2
exec setpriv --no-new-privs --bounding-set=-all --inh-caps=-all "$@"
"""


def last(instruction: str) -> str:
    return re.findall(rf"^{instruction} +(.*)$", DOCKERFILE, re.MULTILINE)[-1]


def can_unshare() -> bool:
    tools = all(map(shutil.which, ("unshare", "mount", "setpriv")))
    return tools and subprocess.run(["unshare", "--mount", "true"]).returncode == 0


@pytest.fixture
def server() -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server


class Container:
    """`docker run` of the image with compose's settings, as far as this machine can do it."""

    def __init__(self, server: NatsServer, data: Path) -> None:
        self.pull, self.http = free_port(), free_port()
        environ = dict(pair.split("=", 1) for pair in shlex.split(last("ENV")))
        environ |= COMPOSE["services"]["liftlog"]["environment"]
        environ |= {
            "LIFTLOG_NATS__SERVERS": server.url,
            "LIFTLOG_DATA_DIR": str(data),
            "LIFTLOG_PULL__LISTEN": f"tcp://127.0.0.1:{self.pull}",
            "LIFTLOG_HTTP__LISTEN": f"127.0.0.1:{self.http}",
        }
        self.environ = {**environ, "PATH": os.environ["PATH"], "PYTHONPATH": str(REPOSITORY)}
        entry = json.loads(last("ENTRYPOINT"))
        assert entry == ["liftlog"]
        command = [sys.executable, "-m", *entry, *json.loads(last("CMD"))]
        if can_unshare():
            script = ["sh", "-c", _READ_ONLY, "sh", str(data), str(data)]
            command = ["unshare", "--mount", *script, *command]
        tied = tied_to_parent([str(shutil.which(command[0])), *command[1:]])
        self.process = subprocess.Popen(
            tied, cwd=data, env=self.environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    def health_check(self) -> int:
        check = json.loads(re.search(r"\[.*\]", last("HEALTHCHECK"))[0])  # type: ignore[index]
        port = COMPOSE["services"]["liftlog"]["environment"]["LIFTLOG_HTTP__LISTEN"].split(":")[1]
        command = [part.replace(f":{port}/", f":{self.http}/") for part in check]
        assert command != check, "the check asks another port than compose listens on"
        command[0] = sys.executable
        return subprocess.run(command, env=self.environ, stderr=subprocess.DEVNULL).returncode

    def stop(self) -> tuple[int, str]:
        self.process.send_signal(getattr(signal, last("STOPSIGNAL")))
        grace = COMPOSE["services"]["liftlog"]["stop_grace_period"]
        output, _ = self.process.communicate(timeout=float(grace.removesuffix("s")))
        return self.process.returncode, output.decode()


@pytest.mark.long
def test_the_image_s_command(server: NatsServer) -> None:
    # Not below /tmp, where the container has a tmpfs.
    directory = REPOSITORY / "build" / "container-test"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    container = Container(server, directory)
    try:
        until(lambda: container.health_check() == 0 or container.process.poll() is not None, 30)
        with RawNats(server.port) as raw:
            assert json.loads(raw.request("orders.a", b"x").payload)["seq"] == 1
        with connect_sync(f"tcp://127.0.0.1:{container.pull}") as client:
            assert [r.value for r in client.read("orders", start=1, until="end")] == [b"x"]
        if can_unshare():
            mounts = Path(f"/proc/{container.process.pid}/mountinfo").read_text().splitlines()
            options = {line.split()[4]: line.split()[5].split(",") for line in mounts}
            assert "ro" in options["/"]
            status = Path(f"/proc/{container.process.pid}/status").read_text()
            assert re.search(r"^NoNewPrivs:\s+1$", status, re.MULTILINE)
            assert re.search(r"^CapBnd:\s+0+$", status, re.MULTILINE)
        server.stop()
        until(lambda: container.health_check() != 0)
        server.start()
        until(lambda: container.health_check() == 0)
        code, output = container.stop()
        assert code == 0, output
        assert "Traceback" not in output, output
        assert '"level": "error"' not in output, output
    finally:
        container.process.kill()
        container.process.communicate()
        shutil.rmtree(directory, ignore_errors=True)


def test_it_works_without_writable_code(server: NatsServer) -> None:
    """MemoryDenyWriteExecute of the unit, as the kernel's own switch for it."""
    script = (
        "import ctypes, os, sys\n"
        "if ctypes.CDLL(None).prctl(65, 1, 0, 0, 0): sys.exit(77)\n"  # PR_SET_MDWE
        "os.execv(sys.executable, [sys.executable, '-m', 'liftlog', 'serve', *sys.argv[1:]])\n"
    )
    from support.daemons.daemon import Daemon

    class Denied(Daemon):
        program = (sys.executable, "-c", script)

    settings: dict[str, Any] = {
        "cleaner": {"interval": "100ms"},
        "streams": {"s": {"subject": "mdwe.>", "compaction": {"enabled": True}}},
    }
    daemon = Denied(server.url, settings).spawn()
    try:
        daemon.wait_ready()
    except RuntimeError as error:
        if "ended with 77" in str(error):
            pytest.skip("this kernel has no PR_SET_MDWE")
        raise
    with daemon:
        with RawNats(server.port) as raw, connect_sync(daemon.pull_address) as client:
            raw.request("mdwe.a", b"x", headers=b"NATS/1.0\r\nLiftlog-Key: k\r\n\r\n")
            client.compact_stream("s")  # in the worker process
            until(lambda: client.describe_stream("s").compaction["finished"] == 1)
            assert [r.value for r in client.read("s", start=1, until="end")] == [b"x"]
        assert daemon.stop().exit_code == 0
