"""Measures new streams on one daemon, created one by one and 16 at a time: over the pull socket,
and over JetStream's API. The same client creates streams of JetStream for comparison."""

from __future__ import annotations

import argparse
import asyncio
import re
import signal
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from support.clients.raw_nats import RawNats
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer
from support.daemons.processes import cpu_seconds

from liftlog.client import connect

from . import report
from .main import interrupt, scratch_directory
from .processes import WorkerFailed, settle_disk
from .progress import Progress

PULL, OVER_NATS, JETSTREAM = "pull socket", "over NATS", "JetStream"
IN_FLIGHT = (1, 16)
_PATIENCE_SECONDS = 300.0
MUSTS = {1: (0.5, 0.8), 16: (0.4, 0.8)}
"""Limits of the ratio of streams per second to JetStream: the must and the reach, by the number in
flight."""
_MUST_GROWTH, _REACH_GROWTH = 2.0, 1.2
"""Limits of the time of the last hundred streams divided by the time of the first hundred."""


class Result(NamedTuple):
    seconds: float
    growth: float
    """Time of the last tenth of the streams divided by the time of the first tenth."""
    cpu_ms: float
    """Processor time of the server per stream."""
    count: int

    @property
    def per_second(self) -> float:
        return self.count / self.seconds


def created_over_nats(port: int, count: int, in_flight: int) -> list[float]:
    """Create streams by requests on JetStream's API. Returns the times of the answers."""
    ended: list[float] = []
    with RawNats(port, timeout=_PATIENCE_SECONDS) as client:
        sent = 0
        while len(ended) < count:
            while sent < count and sent - len(ended) < in_flight:
                name = f"s{sent:05d}"
                config = f'{{"name":"{name}","subjects":["{name}.>"],"storage":"file"}}'
                reply = client.new_reply()
                client.pub(f"$JS.API.STREAM.CREATE.{name}", config, reply=reply)
                sent += 1
            answer = client.next_message().json()
            if "error" in answer:
                raise WorkerFailed(f"a stream was not created: {answer['error']}")
            ended.append(time.monotonic())
    return ended


async def created_over_pull(address: str, count: int, in_flight: int) -> list[float]:
    ended: list[float] = []
    left = iter(range(count))
    async with connect(address) as client:

        async def some() -> None:
            for number in left:
                await client.create_stream(f"s{number:05d}", f"s{number:05d}.>")
                ended.append(time.monotonic())

        async with asyncio.TaskGroup() as group:
            for _ in range(in_flight):
                group.create_task(some())
    return ended


def measure(
    way: str, in_flight: int, count: int, directory: Path, tree: Path | None = None
) -> Result:
    """Create streams on a new server. `tree` is the checkout whose daemon is measured."""
    with ExitStack() as stack:
        if way == JETSTREAM:
            theirs = stack.enter_context(NatsServer(directory / "theirs", jetstream=True))
            port, pid = theirs.port, theirs.pid
        else:
            nats = stack.enter_context(
                NatsServer(directory / "ours", leafnodes={"listen": "127.0.0.1:-1"})
            )
            listener = re.search(r"for leafnode connections on (\S+)", nats.log)
            assert listener is not None, nats.log
            settings = {"nats": {"jetstream_api": True, "leafnode": listener[1]}}
            daemon = Daemon(nats.url, settings, directory=directory / "liftlog")
            daemon.use_version(tree)
            stack.enter_context(daemon)
            while "jetstream-api-answers" not in daemon.log or (
                "nats-leaf-connected" not in daemon.log
            ):
                time.sleep(0.05)
            port, pid = nats.port, daemon.pid
        settle_disk()
        spent, began = cpu_seconds(pid), time.monotonic()
        if way == PULL:
            ended = asyncio.run(created_over_pull(daemon.pull_address, count, in_flight))
        else:
            ended = created_over_nats(port, count, in_flight)
        spent = cpu_seconds(pid) - spent
        few = min(100, max(1, count // 10))
        first, last = ended[few - 1] - began, ended[-1] - ended[-1 - few]
        return Result(ended[-1] - began, last / first, spent / count * 1000, count)


def show(found: dict[tuple[str, int], list[Result]], count: int) -> bool:
    """Print the table and the verdicts. Returns True if a figure does not meet its must."""
    lines = [["way", "in flight", "streams/s", f"{count:,} streams", "last/first", "processor"]]
    lines.append(["---"] * len(lines[0]))
    middle: dict[tuple[str, int], Result] = {}
    for (way, in_flight), results in found.items():
        one = Result(*map(statistics.median, zip(*results, strict=True)))
        middle[way, in_flight] = one
        figures = f"{one.per_second:.0f}", f"{one.seconds:.1f} s", f"{one.growth:.2f}"
        lines.append([way, f"{in_flight}", *figures, f"{one.cpu_ms:.2f} ms"])
    print("\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n")
    is_short = False
    for (way, in_flight), one in middle.items():
        if way == JETSTREAM:
            continue
        theirs = middle.get((JETSTREAM, in_flight))
        if theirs is not None:
            must, reach = MUSTS[in_flight]
            ratio = one.per_second / theirs.per_second
            verdict = "reached" if ratio >= reach else "met" if ratio >= must else "SHORT"
            is_short |= verdict == "SHORT"
            print(f"  {way}, {in_flight} in flight / JetStream {ratio:.2f}: must {must}, {verdict}")
        grown = one.growth
        verdict = (
            "reached" if grown <= _REACH_GROWTH else "met" if grown <= _MUST_GROWTH else "SHORT"
        )
        is_short |= verdict == "SHORT"
        print(f"  {way}, {in_flight} in flight, last / first {grown:.2f}: {verdict}")
    return is_short


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tests/bench/creations.py",
        description="Measures the creation of streams on one daemon beside JetStream. Ends with 1 "
        "when a figure falls short of its must.",
    )
    parser.add_argument("--streams", type=int, default=1000, help="(default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="(default: %(default)s)")
    parser.add_argument(
        "--only", action="append", choices=(PULL, OVER_NATS, JETSTREAM), help="repeatable"
    )
    parser.add_argument(
        "--in-flight", action="append", type=int, choices=IN_FLIGHT, help="repeatable"
    )
    parser.add_argument("--before", type=Path, help="a checkout of the project, measured in turns")
    parser.add_argument("--dir", type=Path, help="where the data go (default: build/)")
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    progress = Progress(quiet=options.quiet)
    found: dict[tuple[str, int], list[Result]] = {}
    signal.signal(signal.SIGTERM, interrupt)
    ways: list[tuple[str, str, Path | None]] = []
    for way in options.only or (PULL, OVER_NATS, JETSTREAM):
        if options.before is not None and way != JETSTREAM:
            ways.append((f"{way} before", way, options.before.absolute()))
        ways.append((way, way, None))
    try:
        with scratch_directory(options.dir) as directory:
            about = report.environment(directory)
            for number in range(options.rounds):
                for in_flight in options.in_flight or IN_FLIGHT:
                    for title, way, tree in ways:
                        where = directory / f"{number}-{in_flight}-{title}"
                        one = measure(way, in_flight, options.streams, where, tree)
                        found.setdefault((title, in_flight), []).append(one)
                        progress.say(f"round {number + 1}, {title}, {in_flight} in flight: {one}")
    except WorkerFailed as error:
        print(f"The figures are void: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("Interrupted; servers stopped, files removed.", file=sys.stderr)
        return 130
    print(report.where(about, options.rounds))
    return int(show(found, options.streams))
