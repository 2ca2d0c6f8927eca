"""Measures starts: commands, the import of the client, and a daemon until its first ack, compared
with a nats-server with JetStream that is started in the same way."""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

from support.clients.raw_nats import RawNats
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer
from support.daemons.processes import cpu_seconds
from support.repository import REPOSITORY

from . import report
from .figures import Measurements, Row
from .main import interrupt, scratch_directory
from .processes import WorkerFailed, run_worker, settle_disk
from .progress import Progress
from .publisher import ACK
from .systems import DEFAULT, LIFTLOG

_PATIENCE_SECONDS = 300.0
_EVERY_SECONDS = 0.002
"""Interval at which a publisher sends a message until the first ack arrives."""
_FILLED_AT_ONCE = (16, 400)
"""Number of connections of the publisher that fills the streams, and of messages in flight on
each."""
_FILL_BYTES = 64
_FEW = 3
"""Number of records of each stream if there are many streams."""

PYTHON = "python"
_BARE = "pass"


class Command(NamedTuple):
    title: str
    arguments: tuple[str, ...]
    must_ms: float
    reach_ms: float


COMMANDS = {
    "version": Command("`liftlog --version`", ("-m", "liftlog", "--version"), 120, 80),
    "stream-ls": Command("`liftlog stream ls`", ("-m", "liftlog", "stream", "ls"), 350, 250),
    "import": Command("`import liftlog.client`", ("-c", "import liftlog.client"), 250, 150),
    "connect-sync": Command(
        "`import liftlog.client` and `connect_sync`",
        ("-c", "from liftlog.client import SyncClient, connect_sync"),
        250,
        150,
    ),
    "connect": Command(
        "`import liftlog.client` and `connect`",
        ("-c", "from liftlog.client import Client, connect"),
        250,
        150,
    ),
}


class Content(NamedTuple):
    title: str
    records: int
    streams: int
    is_killed: bool
    must: float
    reach: float


CONTENTS = {
    "1-stream": Content("first ack after kill -9, 1 stream of 1 M", 10**6, 1, True, 0.8, 0.5),
    "16-streams": Content("the same, 1 M over 16 streams", 10**6, 16, True, 0.9, 0.6),
    "10-million": Content("the same, 1 stream of 10 M", 10**7, 1, True, 1.2, 0.8),
    "1000-streams": Content(
        "first ack after a clean stop, 1,000 streams", _FEW * 1000, 1000, False, 3.0, 1.5
    ),
}
IN_SECONDS = "1000-streams"
"""True if the limits are seconds. Otherwise they are ratios to JetStream."""


def rows() -> list[Row]:
    """Return the verdicts. For every figure, lower is better."""
    found = [
        Row(
            key,
            f"{command.title}, processor time",
            ((LIFTLOG, key),),
            lambda measured, key=key: measured.median((LIFTLOG, key)),  # type: ignore[misc]
            command.must_ms,
            command.reach_ms,
            lower_is_better=True,
            unit="ms",
        )
        for key, command in COMMANDS.items()
    ]
    for key, content in CONTENTS.items():
        ours, theirs = (LIFTLOG, key), (DEFAULT, key)

        def value(
            measured: Measurements, ours: Any = ours, theirs: Any = theirs, key: str = key
        ) -> float:
            first = measured.median(ours)
            return first if key == IN_SECONDS else first / measured.median(theirs)

        title = content.title if key == IN_SECONDS else f"{content.title} / JetStream"
        unit = "s" if key == IN_SECONDS else "x"
        found.append(
            Row(key, title, (ours, theirs), value, content.must, content.reach, True, unit)
        )
    return found


# --- commands ---------------------------------------------------------------------


def measure_commands(
    wanted: Sequence[str], directory: Path, measured: Measurements, rounds: int
) -> None:
    """Measure whole processes, in turns with a Python process that does nothing. One unmeasured run
    of each compiles all modules. The verdict uses the processor time. It equals the time of a start
    on an idle machine, and other processes affect it less."""
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    runs: dict[str, tuple[str, ...]] = {_BARE: ("-c", "pass")}
    runs |= {key: COMMANDS[key].arguments for key in wanted}
    with ExitStack() as stack:
        if "stream-ls" in runs:
            nats = stack.enter_context(NatsServer(directory / "nats"))
            daemon = Daemon(
                nats.url, {"streams": {"orders": {"subject": "orders.>"}}}, directory=directory
            )
            stack.enter_context(daemon)
            environ["LIFTLOG_SERVER"] = daemon.pull_address
        for number in range(rounds + 1):
            for key, arguments in runs.items():
                cpu, wall = _run([sys.executable, *arguments], environ, directory)
                if number:
                    who = PYTHON if key == _BARE else LIFTLOG
                    measured.add(who, key, cpu)
                    measured.add(who, f"{key}-wall", wall)


def _run(command: list[str], environ: dict[str, str], directory: Path) -> tuple[float, float]:
    """Return processor time and elapsed time of a process, in milliseconds."""
    began = time.perf_counter()
    process = subprocess.Popen(
        command, env=environ, cwd=directory, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    _, status, used = os.wait4(process.pid, 0)
    wall = (time.perf_counter() - began) * 1000
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise WorkerFailed(f"{command} ended with {process.returncode}")
    return (used.ru_utime + used.ru_stime) * 1000, wall


# --- a server until its first ack -----------------------------------------------------


class Restarted(ABC):
    """A server with streams that is stopped and started."""

    @abstractmethod
    def fill(self, content: Content) -> None:
        """Create the streams and store their records."""

    @abstractmethod
    def first_ack_seconds(self, content: Content) -> tuple[float, float]:
        """Stop the server, start it, and publish until an ack arrives. Returns the time since the
        start, and the processor time of the server until then."""

    @abstractmethod
    def close(self) -> None: ...


class OurRestart(Restarted):
    def __init__(self, directory: Path, content: Content) -> None:
        self._stack = ExitStack()
        self._nats = self._stack.enter_context(NatsServer(directory / "nats"))
        streams = {f"s{n:04d}": {"subject": subject_of(n)} for n in range(content.streams)}
        self._daemon = Daemon(
            self._nats.url, {"streams": streams}, directory=directory / "daemon", fresh=True
        )
        self._stack.enter_context(self._daemon.start(_PATIENCE_SECONDS))

    def fill(self, content: Content) -> None:
        fill(self._nats.port, content)

    def first_ack_seconds(self, content: Content) -> tuple[float, float]:
        if content.is_killed:
            self._daemon.kill()
        else:
            self._daemon.stop(_PATIENCE_SECONDS)
        settle_disk()
        with RawNats(self._nats.port) as client:
            began = time.monotonic()
            self._daemon.spawn()
            took = until_acked(client) - began
            spent = self._daemon.cpu_seconds
        self._daemon.wait_ready(_PATIENCE_SECONDS)
        return took, spent

    def close(self) -> None:
        self._daemon.kill()
        self._stack.close()


class TheirRestart(Restarted):
    def __init__(self, directory: Path, content: Content) -> None:
        self._nats = NatsServer(directory, jetstream=True).start()
        with RawNats(self._nats.port, timeout=60) as api:
            for number in range(content.streams):
                name, subject = f"s{number:04d}", subject_of(number)
                config = f'{{"name":"{name}","subjects":["{subject}"],"storage":"file"}}'
                answer = api.request(f"$JS.API.STREAM.CREATE.{name}", config).json()
                if "error" in answer:
                    raise WorkerFailed(f"stream {name}: {answer['error']}")

    def fill(self, content: Content) -> None:
        fill(self._nats.port, content)

    def first_ack_seconds(self, content: Content) -> tuple[float, float]:
        if content.is_killed:
            self._nats.kill()
        else:
            self._nats.stop()
        settle_disk()
        began = time.monotonic()
        self._nats.start()  # it greets no connection before its streams are recovered
        with RawNats(self._nats.port) as client:
            took = until_acked(client) - began
            return took, cpu_seconds(self._nats.pid)

    def close(self) -> None:
        self._nats.kill()


def subject_of(stream: int) -> str:
    return f"bench.{stream}"


def fill(port: int, content: Content) -> None:
    connections, in_flight = _FILLED_AT_ONCE
    each = content.records // content.streams
    if content.streams > 100:
        with RawNats(port, timeout=60) as client:
            for number in range(content.streams):
                for _ in range(each):
                    client.request(subject_of(number), b"x" * _FILL_BYTES)
        return
    for number in range(content.streams):
        spec = {"port": port, "subject": subject_of(number), "count": each}
        spec |= {"connections": connections, "in_flight": in_flight, "payload_bytes": _FILL_BYTES}
        run_worker("publisher", spec)


def until_acked(client: RawNats) -> float:
    """Publish to the first stream until an ack arrives. Returns the time of its arrival."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < deadline:
        sent = time.monotonic()
        with suppress(TimeoutError):
            client.pub(subject_of(0), b"x" * _FILL_BYTES, reply=client.new_reply())
            while True:
                left = sent + _EVERY_SECONDS - time.monotonic()
                if ACK in client.next_message(max(left, 0.0001)).payload:
                    return time.monotonic()
        time.sleep(max(sent + _EVERY_SECONDS - time.monotonic(), 0))
    raise WorkerFailed(f"no ack within {_PATIENCE_SECONDS} s of the start")


def measure_restarts(
    key: str, directory: Path, measured: Measurements, progress: Progress, rounds: int
) -> None:
    content = CONTENTS[key]
    made: dict[str, Restarted] = {}
    try:
        for who, kind in ((LIFTLOG, OurRestart), (DEFAULT, TheirRestart)):
            made[who] = kind(directory / f"{key}-{who}", content)  # type: ignore[abstract]
            progress.say(f"{key}: {who} stores {content.records:,} records")
            made[who].fill(content)
        for number in range(rounds):
            order = list(made) if number % 2 == 0 else list(made)[::-1]
            for who in order:
                seconds, spent = made[who].first_ack_seconds(content)
                measured.add(who, key, seconds)
                measured.add(who, f"{key}-cpu", spent)
                progress.say(
                    f"{key}: round {number + 1}/{rounds} {who} {seconds * 1000:.0f} ms, "
                    f"{spent * 1000:.0f} ms of processor time"
                )
    finally:
        for one in made.values():
            one.close()


# --- the command line -----------------------------------------------------------------


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    keys = [*COMMANDS, *CONTENTS]
    parser = argparse.ArgumentParser(
        prog="tests/bench/starts.py",
        description="Measures the starts of commands and of the daemon on this machine. Ends with "
        "1 when a figure falls short of its must.",
    )
    parser.add_argument("--rounds", type=int, default=5, help="(default: %(default)s)")
    parser.add_argument("--only", action="append", choices=keys, metavar="ROW", help="repeatable")
    parser.add_argument("--dir", type=Path, help="where the data go (default: build/)")
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr")
    parser.epilog = f"rows: {' '.join(keys)}"
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    progress, measured = Progress(quiet=options.quiet), Measurements()
    wanted = options.only or [*COMMANDS, *CONTENTS]
    signal.signal(signal.SIGTERM, interrupt)
    try:
        with scratch_directory(options.dir) as directory:
            about = report.environment(directory)
            commands = [key for key in COMMANDS if key in wanted]
            if commands:
                measure_commands(commands, directory / "commands", measured, options.rounds)
            for key in CONTENTS:
                if key in wanted:
                    measure_restarts(key, directory, measured, progress, options.rounds)
    except WorkerFailed as error:
        print(f"The figures are void: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("Interrupted; servers stopped, files removed.", file=sys.stderr)
        return 130
    print(report.where(about, options.rounds))
    is_short = False
    for row in rows():
        if not measured.has(*row.needs):
            continue
        value = row.value(measured)
        verdict = row.verdict(value)
        is_short |= verdict == "SHORT"
        print(
            f"  {row.title:56} {value:8.3g} {row.unit:3} must {row.must:g}, "
            f"reach {row.reach:g}: {verdict:8} {_samples(measured, row)}"
        )
    if measured.has((PYTHON, _BARE)):
        bare, wall = (measured.median((PYTHON, f"{_BARE}{of}")) for of in ("", "-wall"))
        print(f"  Python alone: {bare:.0f} ms of processor time, {wall:.0f} ms in all")
    return 1 if is_short else 0


def _samples(measured: Measurements, row: Row) -> str:
    parts = []
    for who, what in row.needs:
        values = sorted(measured.samples[who, what])
        shown = (values[0], statistics.median(values), values[-1])
        parts.append(f"{who} " + "/".join(f"{one:.3g}" for one in shown))
        if measured.has((who, f"{what}-wall")):
            parts.append(f"in all {measured.median((who, f'{what}-wall')):.0f} ms")
        if measured.has((who, f"{what}-cpu")):
            parts.append(f"processor {measured.median((who, f'{what}-cpu')):.3g} s")
    return ", ".join(parts)
