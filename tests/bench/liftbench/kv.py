"""Measures a key-value bucket over NATS, of liftlog and of JetStream, with nats.go: gets and puts
per second, one at a time and many at a time. JetStream stores the bucket in files, and does not
sync them."""

from __future__ import annotations

import argparse
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from support.clients.building import built_with_go
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer
from support.repository import REPOSITORY

from .main import interrupt, scratch_directory
from .progress import Progress

_SOURCE = REPOSITORY / "tests/support/clients/go_publisher"
_SIZE = 256
_PATIENCE_SECONDS = 120.0


class Load(NamedTuple):
    kind: str
    connections: int
    in_flight: int
    count: int

    def __str__(self) -> str:
        return f"{self.kind} {self.connections}x{self.in_flight}"


LOADS = (
    Load("get", 1, 1, 1),
    Load("get", 8, 16, 4),
    Load("put", 1, 1, 1),
    Load("put", 8, 16, 4),
    Load("put", 64, 16, 4),
)
"""Kinds of load; `count` is a factor."""


class Result(NamedTuple):
    per_second: float
    p50_us: float
    cpu_us: float
    """Processor time per operation of the server that stores the bucket."""


class Side(NamedTuple):
    port: int
    pid: int


def run(program: Path, side: Side, load: Load, count: int, keys: int) -> Result:
    before = _processor_seconds(side.pid)
    out = subprocess.run(
        [str(program), f"nats://127.0.0.1:{side.port}", "bench", load.kind,
         str(load.connections), str(load.in_flight), str(count), str(keys), str(_SIZE)],
        capture_output=True, text=True, check=False, timeout=_PATIENCE_SECONDS,
    )  # fmt: skip
    if out.returncode:
        raise RuntimeError(out.stderr)
    seconds, p50 = map(float, out.stdout.split())
    used = _processor_seconds(side.pid) - before
    return Result(count / seconds, p50, used / count * 1e6)


def _processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(options: argparse.Namespace, directory: Path) -> dict[Load, list[tuple[Result, ...]]]:
    """Return the results of both sides in each round, JetStream's first."""
    progress = Progress(quiet=options.quiet)
    program = built_with_go(_SOURCE, "go-kv", "./kv")
    found: dict[Load, list[tuple[Result, ...]]] = {}
    with ExitStack() as stack:
        theirs = stack.enter_context(NatsServer(directory / "theirs", jetstream=True))
        ours = stack.enter_context(
            NatsServer(directory / "ours", leafnodes={"listen": "127.0.0.1:-1"})
        )
        listener = re.search(r"for leafnode connections on (\S+)", ours.log)
        assert listener is not None, ours.log
        settings = {"nats": {"jetstream_api": True, "leafnode": listener[1]}}
        daemon = stack.enter_context(Daemon(ours.url, settings, directory=directory / "liftlog"))
        while "jetstream-api-answers" not in daemon.log or "nats-leaf-connected" not in daemon.log:
            time.sleep(0.05)
        sides = (Side(theirs.port, theirs.pid), Side(ours.port, daemon.pid))
        for side in sides:
            run(program, side, Load("put", 8, 16, 1), options.keys, options.keys)
        chosen = [load for load in LOADS if options.only in str(load)]
        for number in range(options.rounds):
            for load in chosen:
                progress.say(f"round {number + 1}: {load}")
                count = options.count * load.count
                both = tuple(run(program, side, load, count, options.keys) for side in sides)
                found.setdefault(load, []).append(both)
    return found


def show(found: dict[Load, list[tuple[Result, ...]]]) -> None:
    print("| load | JetStream | liftlog | liftlog / JetStream | processor time of liftlog |")
    print("|---|---|---|---|---|")
    for load, rounds in found.items():
        shown = []
        for side in zip(*rounds, strict=True):
            rate = statistics.median(one.per_second for one in side)
            shown.append(
                f"{rate:,.0f}/s, p50 {statistics.median(one.p50_us for one in side):,.0f} us"
            )
        ratio = statistics.median(ours.per_second / theirs.per_second for theirs, ours in rounds)
        cpu = statistics.median(ours.cpu_us for _, ours in rounds)
        print(f"| {load} | {shown[0]} | {shown[1]} | {ratio:.2f} | {cpu:.0f} us |")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests/bench/kv.py", description=__doc__)
    parser.add_argument(
        "--count",
        type=int,
        default=5_000,
        help="operations of a lone client in a round; several do four times as many "
        "(default: %(default)s)",
    )
    parser.add_argument("--keys", type=int, default=10_000, help="(default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="(default: %(default)s)")
    parser.add_argument(
        "--only",
        default="",
        help="the loads whose names contain this text, such as 'get' or '8x16'",
    )
    parser.add_argument("--dir", type=Path, help="where the data go (default: build/)")
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    signal.signal(signal.SIGTERM, interrupt)
    try:
        with scratch_directory(options.dir) as directory:
            found = measure(options, directory)
    except KeyboardInterrupt:
        print("Interrupted; servers stopped, files removed.", file=sys.stderr)
        return 130
    show(found)
    return 0
