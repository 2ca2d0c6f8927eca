"""The tests' daemons that are forked live and end as those that are started from nothing."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.clients.ingesting import until
from support.daemons.daemon import Daemon
from support.daemons.forks import Forked, can_fork
from support.daemons.nats_server import NatsServer
from support.repository import REPOSITORY

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks are for Linux")


def run(tmp_path: Path, *arguments: str, **more: object) -> tuple[int, str]:
    with (tmp_path / "output").open("wb") as output:
        code = Forked(arguments, output=output.fileno(), **more).wait(60)  # type: ignore[arg-type]
    return code, (tmp_path / "output").read_text()


def is_alive(pid: int) -> bool:
    """A zombie is not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"


def test_what_a_command_prints_and_its_exit_code(tmp_path: Path) -> None:
    code, printed = run(tmp_path, "--version")
    assert code == 0
    assert printed.startswith("liftlog ")
    code, printed = run(tmp_path, "serve", "--set", "a.b=1")
    assert code not in (0, 1)
    assert "a:" in printed


def test_its_environment_and_directory_are_those_asked_for(tmp_path: Path) -> None:
    _, printed = run(
        tmp_path,
        *("-c", "pwd; env"),
        program=Path("/bin/sh"),
        cwd=tmp_path,
        environ={"ONLY": "this"},
    )
    lines = printed.splitlines()
    assert lines[0] == str(tmp_path)
    assert "ONLY=this" in lines
    assert not [line for line in lines if line.startswith("HOME=")]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
def test_it_may_see_another_boot_id(tmp_path: Path) -> None:
    place = Path("/proc/sys/kernel/random/boot_id")
    (tmp_path / "other").write_text("another\n")
    before = place.read_text()
    code, printed = run(tmp_path, str(place), program=Path("/bin/cat"), boot_id=tmp_path / "other")
    assert (code, printed) == (0, "another\n")
    assert place.read_text() == before


def test_a_zombie_until_it_is_asked_for(tmp_path: Path) -> None:
    with (tmp_path / "output").open("wb") as output:
        sleeping = Forked(["3600"], program=Path("/bin/sleep"), output=output.fileno())
    assert os.getsid(sleeping.pid) == sleeping.pid
    with pytest.raises(subprocess.TimeoutExpired):
        sleeping.wait(0.01)
    os.kill(sleeping.pid, signal.SIGTERM)
    until(lambda: not is_alive(sleeping.pid), 60)
    os.kill(sleeping.pid, signal.SIGTERM)  # reaches no other process
    assert sleeping.wait(60) == -signal.SIGTERM
    assert not Path(f"/proc/{sleeping.pid}").exists()
    sleeping.send_signal(signal.SIGTERM)
    assert sleeping.poll() == -signal.SIGTERM


def test_a_forked_daemon_has_no_more_files_open_than_one_that_was_started(tmp_path: Path) -> None:
    with (
        NatsServer(tmp_path / "nats") as nats,
        Daemon(nats.url, directory=tmp_path / "one") as forked,
        Daemon(nats.url, directory=tmp_path / "two", fresh=True) as started,
    ):
        assert isinstance(forked.process, Forked)
        assert isinstance(started.process, subprocess.Popen)
        until(lambda: open_files(forked) == open_files(started), 60)


def open_files(daemon: Daemon) -> list[str]:
    found = []
    for place in Path(f"/proc/{daemon.pid}/fd").iterdir():
        try:
            path = os.readlink(place)
        except FileNotFoundError:  # closed meanwhile
            continue
        found.append(re.sub(r"\d+", "N", path.replace(str(daemon.directory), "")))
    return sorted(found)


def test_they_end_with_the_process_that_runs_the_tests(tmp_path: Path) -> None:
    program = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from support.daemons import forks\n"
        "forks.allow()\n"
        "one = forks.Forked(['3600'], program=Path('/bin/sleep'), output=1)\n"
        "print(one.pid, flush=True)\n"
        "sys.stdin.read()\n"
        "os._exit(0)\n"
    )
    path = os.pathsep.join((str(REPOSITORY / "tests"), str(REPOSITORY)))
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        assert is_alive(pid)
        process.kill()
    until(lambda: not is_alive(pid), 60)


def test_what_python_reads_when_it_starts_is_not_forked() -> None:
    assert can_fork(os.environ)
    assert not can_fork({**os.environ, "PYTHONTRACEMALLOC": "1"})
    assert not can_fork({**os.environ, "LC_ALL": "C"})
