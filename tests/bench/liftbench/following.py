"""Measures live delivery of messages at a fixed rate to one or many followers at the end of the
stream.

Measures the time from publishing to delivery, and the processor time of the server that delivers.
The followers are ordered consumers of nats.go, of JetStream and of liftlog, and liftlog's client.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import statistics
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from support.clients.building import built_with_go
from support.clients.raw_nats import RawNats
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer
from support.daemons.processes import cpu_seconds
from support.repository import REPOSITORY

from liftlog.client import Client, connect

from .progress import Progress

_SOURCE = REPOSITORY / "tests/support/clients/go_publisher"
_STREAM, _SUBJECT = "live", "live.a"
_RATE, _SIZE = 1_000, 128
_PATIENCE_SECONDS = 60.0

JETSTREAM = "JetStream, nats.go"
DOOR = "liftlog over NATS, nats.go"
OWN = "liftlog's client"
BEFORE = ", before"
MUSTS_MS = {
    (DOOR, 1): (0.8, 0.4),
    (DOOR, 50): (4.0, 1.5),
    (OWN, 1): (0.7, 0.4),
    (OWN, 50): (6.0, 3.0),
}
"""The required p50 and the desired p50, in ms."""


class Result(NamedTuple):
    p50_us: float
    p99_us: float
    cpu_us: float
    """Processor time of the server per delivery, including the time to store the messages."""


class Server:
    """A server with the stream, and the kinds of followers that it supports."""

    def __init__(self, port: int, pid: int, pull_address: str | None = None) -> None:
        self.port, self.pid, self.pull_address = port, pid, pull_address
        self._program = built_with_go(_SOURCE, "go-follower", "./follower")
        with RawNats(port, timeout=_PATIENCE_SECONDS) as raw:
            config = f'{{"name":"{_STREAM}","subjects":["live.>"],"storage":"file"}}'
            answer = raw.request(f"$JS.API.STREAM.CREATE.{_STREAM}", config).json()
            if "error" in answer:
                raise RuntimeError(str(answer["error"]))

    def over_nats(self, followers: int, count: int) -> Result:
        spent = cpu_seconds(self.pid)
        p50, p99, delivered = self._publish(count, followers)
        if delivered != followers * count:
            raise RuntimeError(f"{delivered} of {followers * count} messages were delivered")
        return Result(p50, p99, (cpu_seconds(self.pid) - spent) / delivered * 1e6)

    def own(self, followers: int, count: int) -> Result:
        spent = cpu_seconds(self.pid)
        waits = sorted(asyncio.run(self._follow(followers, count)))
        used = cpu_seconds(self.pid) - spent
        p50, p99 = (waits[len(waits) * part // 100] / 1000 for part in (50, 99))
        return Result(p50, p99, used / len(waits) * 1e6)

    def _publish(self, count: int, followers: int = 0) -> tuple[int, ...]:
        words = _STREAM, _SUBJECT, followers, _RATE, count, _SIZE
        out = subprocess.run(
            [str(self._program), f"nats://127.0.0.1:{self.port}", *map(str, words)],
            capture_output=True, text=True, check=False, timeout=_PATIENCE_SECONDS,
        )  # fmt: skip
        if out.returncode:
            raise RuntimeError(out.stderr)
        return tuple(map(int, out.stdout.split()))

    async def _follow(self, followers: int, count: int) -> list[int]:
        """Return the delays of all deliveries, in ns."""
        assert self.pull_address is not None
        waits: list[int] = []
        ready = asyncio.Semaphore(0)

        async def follow(client: Client) -> None:
            got = 0
            reader = client.read_batches(_STREAM, "latest")
            ready.release()
            async for batch in reader:
                now = time.time_ns()
                values = batch.values()
                waits.extend([now - int.from_bytes(one[:8], "little") for one in values if one])
                got += len(values)
                if got == count:
                    return

        async with asyncio.timeout(_PATIENCE_SECONDS), asyncio.TaskGroup() as group:
            clients = [await connect(self.pull_address) for _ in range(followers)]
            tasks = [group.create_task(follow(client)) for client in clients]
            for _ in tasks:
                await ready.acquire()
            await asyncio.sleep(0.5)  # their fetches arrive
            await asyncio.to_thread(self._publish, count)
            await asyncio.gather(*tasks)
            for client in clients:
                await client.close()
        return waits


def _liftlog(stack: ExitStack, directory: Path, tree: Path | None) -> Server:
    nats = stack.enter_context(NatsServer(directory / "nats", leafnodes={"listen": "127.0.0.1:-1"}))
    listener = re.search(r"for leafnode connections on (\S+)", nats.log)
    assert listener is not None, nats.log
    settings = {"nats": {"jetstream_api": True, "leafnode": listener[1]}}
    daemon = Daemon(nats.url, settings, directory=directory / "liftlog", fresh=True)
    daemon.use_version(tree)
    stack.enter_context(daemon)
    while "jetstream-api-answers" not in daemon.log or "nats-leaf-connected" not in daemon.log:
        time.sleep(0.05)
    return Server(nats.port, daemon.pid, daemon.pull_address)


def measure(options: argparse.Namespace, directory: Path) -> dict[tuple[str, int], list[Result]]:
    """Return the results of each kind and number of followers, in each round."""
    progress = Progress(quiet=options.quiet)
    found: dict[tuple[str, int], list[Result]] = {}
    with ExitStack() as stack:
        theirs = stack.enter_context(NatsServer(directory / "theirs", jetstream=True))
        peer = Server(theirs.port, theirs.pid)
        ways: dict[str, Callable[[int, int], Result]] = {JETSTREAM: peer.over_nats}
        trees = {"": None} if options.before is None else {BEFORE: options.before, "": None}
        for title, tree in trees.items():
            ours = _liftlog(stack, directory / f"ours{title}", tree)
            ways |= {DOOR + title: ours.over_nats, OWN + title: ours.own}
        for number in range(options.rounds):
            for followers in options.followers:
                for name, way in ways.items():
                    result = way(followers, options.seconds * _RATE)
                    progress.say(f"round {number + 1}: {followers} followers, {name}: {result}")
                    found.setdefault((name, followers), []).append(result)
    return found


def show(found: dict[tuple[str, int], list[Result]]) -> None:
    print("| followers | way | p50 | p99 | p50 / JetStream | processor time of a delivery | must |")
    print("|---|---|---|---|---|---|---|")
    for (name, followers), rounds in found.items():
        p50, p99, cpu = (statistics.median(column) for column in zip(*rounds, strict=True))
        base = found[JETSTREAM, followers]
        ratio = statistics.median(
            one.p50_us / other.p50_us for one, other in zip(rounds, base, strict=True)
        )
        must = MUSTS_MS.get((name, followers))
        verdict = "" if must is None else f"{must[0]:g} ms, reach {must[1]:g}"
        cells = f"{p50 / 1000:.2f} ms", f"{p99 / 1000:.1f} ms", f"{ratio:.1f}", f"{cpu:.1f} us"
        print(f"| {followers} | {name} | {' | '.join(cells)} | {verdict} |")
