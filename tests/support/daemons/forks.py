"""Processes of tests, forked from a Python that has imported the daemon already.

Starting a Python process that imports the daemon takes 0.7 s of processor time, and the tests start
hundreds of processes. So each process that runs tests has a server, which has imported all modules.
`Forked` lets this server fork. Tests of a complete start (the interpreter, the imports, variables
that it reads before them) use `subprocess` or `Daemon(fresh=True)`.

The server runs this module as a program. Each child gets a socket. Over this socket, the child
sends its process id, and the server later sends the exit status of the child. Until the status is
read, the ended child stays a zombie, so that signals reach no other process. When the tests end,
their socket is closed, and the server ends all its children.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import gc
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from support.daemons.shifted_clock import follow_clock
from support.repository import REPOSITORY

_TESTS = str(REPOSITORY / "tests")
_READ_AT_START = ("PYTHON", "LC_", "LANG", "LD_", "OPENBLAS", "OMP_")
_MAX_REQUEST_BYTES = 1 << 20
_PR_SET_PDEATHSIG = 1
_CLONE_NEWNS = 0x20000
_CLONE_NEWNET = 0x40000000
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 0x40000


_allowed = False


def allow() -> None:
    """Allow forks in this process; called by tests/conftest.py. A benchmark starts its programs
    without forks."""
    global _allowed
    _allowed = sys.platform == "linux"


def can_fork(environ: Mapping[str, str] = os.environ) -> bool:
    """Return True if `Forked` may be used for a Python in this environment, because it would start
    like this one."""
    return _allowed and _read_at_start(environ) == _read_at_start(os.environ)


def _read_at_start(environ: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environ.items()
        if name.startswith(_READ_AT_START) and name != "PYTHONPATH"
    }


class Forked:
    """A process in its own session, with the methods of `subprocess.Popen` that tests use. It has
    no input, and writes to `output`. `arguments` are the arguments of `liftlog` or, with `program`,
    of that file. `boot_id` is a file that replaces the system's boot id, as after a reboot.
    `network` is the file of the network namespace in which the process runs. Both need root.
    `clock` is the file of a `ShiftedClock`."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        output: int,
        cwd: Path | None = None,
        environ: Mapping[str, str] | None = None,
        program: Path | None = None,
        boot_id: Path | None = None,
        network: Path | None = None,
        clock: Path | None = None,
    ) -> None:
        self.args = list(arguments)
        self.returncode: int | None = None
        self._lock = threading.Lock()
        request = {
            "arguments": self.args,
            "program": None if program is None else str(program),
            "boot_id": None if boot_id is None else str(boot_id),
            "network": None if network is None else str(network),
            "clock": None if clock is None else str(clock),
            "cwd": os.fspath(cwd or Path.cwd()),
            "environ": dict(os.environ if environ is None else environ),
        }
        self._told, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            files = [theirs.fileno(), output]
            socket.send_fds(_server(), [json.dumps(request).encode()], files)
        self.pid = self._number()

    def poll(self) -> int | None:
        with self._lock:
            if self.returncode is None:
                self._told.setblocking(False)
                try:
                    self.returncode = self._number()
                except BlockingIOError:
                    return None
                # The end of the socket shows that the zombie is gone.
                self._told.setblocking(True)
                self._told.shutdown(socket.SHUT_WR)
                self._told.recv(1)
                self._told.close()
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                assert timeout is not None
                raise subprocess.TimeoutExpired(self.args, timeout)
            time.sleep(0.005)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def _number(self) -> int:
        said = self._told.recv(64)
        if not said:
            raise RuntimeError(f"what forks has ended; it was to run {self.args}")
        return int(said)


_starting = threading.Lock()


@functools.cache
def _started_server() -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    path = os.pathsep.join((str(REPOSITORY), _TESTS))
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "support.daemons.forks", str(theirs.fileno())],
            # Only one thread, because a process that forks must have no other threads. The server
            # calculates nothing with numpy.
            env={**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"},
            cwd=REPOSITORY,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    atexit.register(_end, process, ours)
    return ours


def _server() -> socket.socket:
    with _starting:
        return _started_server()


def _end(process: subprocess.Popen[bytes], control: socket.socket) -> None:
    control.close()
    process.wait(60)


# --- the process that forks ---------------------------------------------------------


class _Child:
    def __init__(self, pid: int, told: socket.socket) -> None:
        self.pid = pid
        self.told = told
        self.ended = os.pidfd_open(pid)

    def tell(self) -> None:
        """Send the exit status of the child, which stays a zombie until then."""
        found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        assert found is not None
        is_exit = found.si_code == os.CLD_EXITED
        code = found.si_status if is_exit else -found.si_status
        try:
            self.told.send(b"%d" % code)
        except BrokenPipeError:  # nobody waits for the status
            pass

    def close(self) -> None:
        os.close(self.ended)
        self.told.close()


def _serve(control: socket.socket) -> list[str]:
    """Fork until the tests have ended. Returns only in the children: the arguments that they
    run."""
    children: dict[int, _Child] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ, None)
        while True:
            for key, _ in selector.select():
                child: _Child | None = key.data
                if child is None:
                    content, files, _, _ = socket.recv_fds(control, _MAX_REQUEST_BYTES, 2)
                    if not content:
                        _kill_all(children)
                        os._exit(0)
                    told, output = socket.socket(fileno=files[0]), files[1]
                    if (pid := os.fork()) == 0:
                        selector.close()
                        control.close()
                        for other in children.values():
                            other.close()
                        return _become(json.loads(content), told, output)
                    os.close(output)
                    child = children[pid] = _Child(pid, told)
                    selector.register(child.ended, selectors.EVENT_READ, child)
                elif key.fd == child.ended:
                    child.tell()
                    selector.unregister(child.ended)
                    selector.register(child.told, selectors.EVENT_READ, child)
                else:  # it was heard
                    selector.unregister(child.told)
                    del children[child.pid]
                    os.waitpid(child.pid, 0)
                    child.close()


def _kill_all(children: Mapping[int, _Child]) -> None:
    for pid in children:
        try:
            os.killpg(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def _become(request: Mapping[str, object], told: socket.socket, output: int) -> list[str]:
    _libc("prctl", _PR_SET_PDEATHSIG, signal.SIGKILL)
    os.setsid()
    for number in (1, 2):
        os.dup2(output, number)
    os.close(output)
    if request["boot_id"] is not None:
        _show_boot_id(str(request["boot_id"]))
    if request["network"] is not None:
        enter_network(Path(str(request["network"])))
    arguments, environ = request["arguments"], request["environ"]
    assert isinstance(arguments, list)
    assert isinstance(environ, dict)
    os.chdir(str(request["cwd"]))
    os.environ.clear()
    os.environ.update(environ)
    time.tzset()
    if request["clock"] is not None:
        follow_clock(Path(str(request["clock"])))
    with told:
        told.send(b"%d" % os.getpid())
    if request["program"] is not None:
        program = str(request["program"])
        os.execv(program, [program, *arguments])
    # The same values as with `python -m liftlog`.
    sys.argv = [str(REPOSITORY / "liftlog" / "__main__.py"), *arguments]
    sys.path[0] = os.getcwd()
    sys.path.remove(_TESTS)
    return arguments


def _show_boot_id(path: str) -> None:
    """Replace the system's boot id by this file, for this process and its children."""
    _libc("unshare", _CLONE_NEWNS)
    _libc("mount", b"none", b"/", None, _MS_REC | _MS_PRIVATE, None)
    _libc("mount", os.fsencode(path), b"/proc/sys/kernel/random/boot_id", None, _MS_BIND, None)


def enter_network(place: Path) -> None:
    """Move this thread, and processes that it starts, to the network namespace of this file."""
    with place.open("rb") as file:
        _libc("setns", file.fileno(), _CLONE_NEWNET)


def _libc(function: str, *arguments: object) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), function)(*arguments):
        raise OSError(ctypes.get_errno(), f"{function}: {os.strerror(ctypes.get_errno())}")


def main() -> None:
    from liftlog.cli import main as command
    from liftlog.cli import root, serve  # noqa: F401
    from liftlog.server import daemon, late_parts  # noqa: F401

    # `serve` imports the daemon when it runs, and the daemon imports these modules later. Without
    # this import, each of hundreds of forks would import them, which takes a tenth of a second.
    late_parts.import_http()
    late_parts.jetstream_api()

    assert threading.active_count() == 1
    control = socket.socket(fileno=int(sys.argv[1]))
    # The garbage collector of a child would copy the memory pages of all objects that it visits.
    gc.collect()
    gc.freeze()
    command.main(_serve(control))


if __name__ == "__main__":
    main()
