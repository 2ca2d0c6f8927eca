"""A cluster with many streams. Measures their creation, their idle cost, the start of a node, and
the loss of the node that leads most of them."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from support.clients.raw_nats import RawNats, pub_frame
from support.daemons.cluster import NODES, Cluster
from support.daemons.nats_cluster import NatsCluster

from liftlog.client import connect, connect_sync

from .figures import Measurements, Row
from .main import interrupt, scratch_directory
from .progress import Progress

FILE, NATS = "file", "nats"
CREATED, IDLE, STOPPED, STARTED = "create", "idle", "stop", "start"
IN_SYNC, FAILOVER = "in-sync", "failover"
_SUBJECT = "many.{}"
_PATIENCE_SECONDS = 300.0
_REFUSED_SECONDS = 0.1
_UNANSWERED_SECONDS = 1.0
"""Pause of a publisher after a refusal, and after a message without an answer. A shorter pause
would measure how a cluster stores messages for which nobody waits any more."""
_SETTLE_SECONDS = 5.0

MUSTS = {
    CREATED: ("creating one stream, all nodes included", 0.03, 0.01, "s"),
    IDLE: ("CPU of the busiest node while nothing happens", 5.0, 2.0, "% of a core"),
    STOPPED: ("a node hands over its streams, leaves and ends", 30.0, 15.0, "s"),
    STARTED: ("a node starts, until it is ready", 30.0, 10.0, "s"),
    IN_SYNC: ("and until all its copies are in sync", 60.0, 20.0, "s"),
    FAILOVER: ("all streams of a killed node are acked again after", 5.0, 2.0, "s"),
}


def rows(store: str) -> list[Row]:
    """Return the verdicts. For every figure, lower is better."""
    return [
        Row(
            what,
            title,
            ((store, what),),
            lambda measured, what=what: measured.median((store, what)),  # type: ignore[misc]
            must,
            reach,
            lower_is_better=True,
            unit=unit,
        )
        for what, (title, must, reach, unit) in MUSTS.items()
    ]


def build(stack: ExitStack, directory: Path, store: str) -> tuple[int, Cluster]:
    """Return the port of a nats-server, and a cluster of three nodes that uses three
    nats-servers."""
    nats = stack.enter_context(NatsCluster(3, directory / "nats", jetstream=True, sync_always=True))
    cluster: dict[str, Any] = {"balance_interval": "1h", "ready_after": "10m"}
    if store == NATS:
        cluster["store"] = "nats"
    servers = [server.url for server in nats.servers]
    built = Cluster(servers, cluster=cluster, directory=directory / "nodes")
    return nats.servers[0].port, stack.enter_context(built)


async def create(cluster: Cluster, names: Sequence[str], *, at_once: int) -> None:
    """Create streams with three replicas through all nodes, `at_once` at a time."""
    places = asyncio.Semaphore(at_once)
    addresses = ",".join(cluster.nodes[node].pull_address for node in NODES)
    async with connect(addresses) as client:

        async def create_one(name: str) -> None:
            async with places:
                await client.create_stream(name, _SUBJECT.format(name), replicas=len(NODES))

        async with asyncio.TaskGroup() as group:
            for name in names:
                group.create_task(create_one(name))


def wait_in_sync(cluster: Cluster, names: Sequence[str]) -> None:
    """Wait until, according to each node, each stream has a leader and all its replicas in sync."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    for node in cluster.up():
        with connect_sync(cluster.nodes[node].pull_address) as client:
            while True:
                known = {one.name: one for one in client.cluster().replicated}
                whole = [
                    name
                    for name in names
                    if name in known and len(known[name].isr) == len(NODES) and known[name].leader
                ]
                if len(whole) == len(names):
                    break
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{len(whole)} of {len(names)} streams are in sync")
                time.sleep(0.2)


def wait_acked(port: int, names: Sequence[str]) -> float:
    """Publish to each stream until it has acked a message that was sent after this call. Returns
    the monotonic time of the last ack. Each stream has a publisher that waits for its answer."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    due = dict.fromkeys(names, 0.0)
    with RawNats(port) as client:
        inbox = client.new_reply().rpartition(b".")[0]
        while due:
            now = time.monotonic()
            if now > deadline:
                raise TimeoutError(f"{len(due)} streams do not ack")
            sent = [name for name, at in due.items() if at <= now]
            if sent:
                due |= dict.fromkeys(sent, now + _UNANSWERED_SECONDS)
                frames = (
                    pub_frame(_SUBJECT.format(name), b"x", reply=inbox + b"." + name.encode())
                    for name in sent
                )
                client.send(b"".join(frames))
            with contextlib.suppress(TimeoutError):
                message = client.next_message(0.02)
                name = message.subject.rpartition(b".")[2].decode()
                if name not in due:
                    continue
                if message.payload and "error" not in message.json():
                    del due[name]
                else:  # no responders, or a refusal
                    due[name] = time.monotonic() + _REFUSED_SECONDS
    return time.monotonic()


def leads(cluster: Cluster, through: str) -> Counter[str]:
    """Return the number of streams that each node leads, according to this node."""
    with connect_sync(cluster.nodes[through].pull_address) as client:
        return Counter(one.leader for one in client.cluster().replicated if one.leader)


def measure(
    options: argparse.Namespace, directory: Path, measured: Measurements, progress: Progress
) -> None:
    """Run one round: measure each figure once."""
    store, names = options.store, [f"s{number:04}" for number in range(options.streams)]
    with ExitStack() as stack:
        port, cluster = build(stack, directory, store)
        progress.say(f"creating {len(names)} streams")
        began = time.monotonic()
        asyncio.run(create(cluster, names, at_once=options.at_once))
        wait_in_sync(cluster, names)
        measured.add(store, CREATED, (time.monotonic() - began) / len(names))
        wait_acked(port, names)
        time.sleep(_SETTLE_SECONDS)
        progress.say(f"idle for {options.idle} s")
        before = {node: cluster.nodes[node].cpu_seconds for node in NODES}
        began = time.monotonic()
        time.sleep(options.idle)
        took = time.monotonic() - began
        spent = [cluster.nodes[node].cpu_seconds - before[node] for node in NODES]
        measured.add(store, IDLE, 100 * max(spent) / took)
        progress.say("stopping and starting a node")
        stopped = cluster.nodes["c"].stop(timeout=_PATIENCE_SECONDS)
        measured.add(store, STOPPED, stopped.seconds)
        began = time.monotonic()
        cluster.start("c")
        measured.add(store, STARTED, time.monotonic() - began)
        wait_in_sync(cluster, names)
        measured.add(store, IN_SYNC, time.monotonic() - began)
        found = leads(cluster, "a")
        busiest = max(found, key=lambda node: found[node])
        progress.say(f"killing {busiest}, which leads {found[busiest]}")
        others = [cluster.nodes[node] for node in NODES if node != busiest]
        spent_before = sum(node.cpu_seconds for node in others)
        killed = time.monotonic()
        cluster.kill(busiest)
        measured.add(store, FAILOVER, wait_acked(port, names) - killed)
        spent_others = sum(node.cpu_seconds for node in others) - spent_before
        progress.say(f"the others spent {spent_others:.2f} s of CPU on that")
        cluster.assert_sound()
        cluster.kill()


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tests/bench/streams.py",
        description="Measures three daemons with many replicated streams on this machine. Ends "
        "with 1 when a figure falls short of its must.",
    )
    parser.add_argument("--streams", type=int, default=300, help="(default: %(default)s)")
    parser.add_argument("--store", choices=(NATS, FILE), default=NATS, help="of the metadata")
    parser.add_argument("--rounds", type=int, default=1, help="(default: %(default)s)")
    parser.add_argument("--idle", type=float, default=60.0, metavar="SECONDS")
    parser.add_argument("--at-once", type=int, default=16, help="requests to create a stream")
    parser.add_argument("--dir", type=Path, help="where the data go (default: build/)")
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    progress, measured = Progress(quiet=options.quiet), Measurements()
    signal.signal(signal.SIGTERM, interrupt)
    try:
        with scratch_directory(options.dir) as directory:
            for number in range(options.rounds):
                measure(options, directory / str(number), measured, progress)
    except KeyboardInterrupt:
        print("Interrupted; servers stopped, files removed.", file=sys.stderr)
        return 130
    is_short = False
    print(f"{options.streams} streams on three nodes, metadata: {options.store}")
    for row in rows(options.store):
        value = row.value(measured)
        verdict = row.verdict(value)
        is_short |= verdict == "SHORT"
        print(
            f"  {row.title:52} {value:8.3g} {row.unit:12} must {row.must:g}, "
            f"reach {row.reach:g}: {verdict}"
        )
    return 1 if is_short else 0
