"""The demo of a cluster: three NATS servers, three daemons, and the death of the leader."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from liftlog.cli.lib.exit_codes import ExitCode
from liftlog.cli.lib.problems import Problem
from liftlog.client import ClusterStream, Record, connect
from liftlog.client.publisher import Publisher
from liftlog.demo.running import DemoDaemon, Story, conclude, run_in_directory
from liftlog.errors import LiftlogError
from liftlog.server.life.embedded import EmbeddedNats

STREAM = "orders"
NODES = ("a", "b", "c")
_PER_SECOND = 1000
_SETTLE_SECONDS = 60.0
_POLL_SECONDS = 0.05

_CONFIG = """\
data_dir: {directory}/data
nats: {{servers: {servers}}}
pull: {{listen: ["{address}"]}}
http: {{listen: "127.0.0.1:0"}}
cluster: {{name: demo, node: {node}, advertise: "{address}", store: nats}}
streams:
  orders: {{subject: "orders.>", replicas: 3, min_isr: 2}}   # an ack: fsynced on at least two
"""


def run_demo(messages: int, *, keep: bool) -> ExitCode:
    """Run the demo. Raises Problem, ConfigError or another LiftlogError if it cannot continue."""
    return run_in_directory(lambda where, stack: _Demo(where, messages, stack).run(), keep=keep)


class _Demo:
    def __init__(self, directory: Path, messages: int, stack: contextlib.AsyncExitStack) -> None:
        self._directory = directory
        self._messages = messages
        self._stack = stack
        self._story = Story()
        self._problems: list[str] = []
        self._daemons: dict[str, DemoDaemon] = {}
        self._servers: list[str] = []
        self._acked: dict[int, int] = {}  # offset of each message by its number
        self._acked_at: list[float] = []

    async def run(self) -> ExitCode:
        self._story.title("liftlog demo-cluster: kill the leader, lose nothing")
        await self._start_nats()
        await self._start_daemons()
        killed = await self._publish_and_kill()
        await self._come_back(killed)
        await self._read_back()
        return conclude(self._story, self._problems, "every acked message is there, once")

    # --- the chapters ---

    async def _start_nats(self) -> None:
        self._story.chapter("Three NATS servers")
        ports = free_ports(len(NODES))
        routes = [f"nats://127.0.0.1:{port}" for port in ports]
        servers = [
            EmbeddedNats(
                self._directory / f"nats-{number}",
                extra={
                    "server_name": f"n{number}",
                    "cluster": {"name": "demo", "listen": f"127.0.0.1:{port}", "routes": routes},
                    "jetstream": {
                        "store_dir": str(self._directory / f"nats-{number}" / "jetstream"),
                        "sync_interval": "always",
                    },
                },
            )
            for number, port in enumerate(ports)
        ]
        for server in servers:
            self._stack.push_async_callback(server.stop)
        self._servers = list(await asyncio.gather(*(server.start() for server in servers)))
        self._story.tell(
            f"They form a cluster: {', '.join(self._servers)}. The messages pass through them as",
            "always; their JetStream keeps nothing but the metadata of the daemons: who has",
            "which replicas, and who leads.",
        )

    async def _start_daemons(self) -> None:
        story = self._story
        story.chapter("Three daemons")
        addresses = [f"tcp://127.0.0.1:{port}" for port in free_ports(len(NODES))]
        for node, address in zip(NODES, addresses, strict=True):
            directory = self._directory / node
            directory.mkdir()
            config = directory / "liftlog.yaml"
            text = _CONFIG.format(
                directory=directory, servers=_quoted(self._servers), address=address, node=node
            )
            config.write_text(text)
            self._daemons[node] = DemoDaemon(config, directory / "data")
        story.show((self._directory / "a" / "liftlog.yaml").read_text())
        await self._init()
        for daemon in self._daemons.values():
            self._stack.push_async_callback(daemon.stop)
        started = time.monotonic()
        await asyncio.gather(*(daemon.start() for daemon in self._daemons.values()))
        await self._settled(set(NODES))
        story.tell(
            f"After {time.monotonic() - started:.1f} s all three are ready, and the stream has its",
            "replicas.",
        )
        await self._show_status()

    async def _publish_and_kill(self) -> str:
        story = self._story
        story.chapter("kill -9 of the leader")
        leader = (await self._stream()).leader
        assert leader is not None
        story.tell(
            f"Node {leader} leads. Now {self._messages:,} messages, {_PER_SECOND:,} a second.",
            f"After half of them {leader} gets SIGKILL. A publisher that hears nothing publishes",
            "again, with the same Nats-Msg-Id.",
        )
        killed_at = await self._publish(self._daemons[leader])
        await self._daemons[leader].wait()
        gap = _longest_gap(self._acked_at, killed_at)
        found = await self._settled(set(NODES) - {leader})
        story.tell(
            f"{len(self._acked):,} messages are acked. Node {found.leader} leads, in epoch",
            f"{found.leader_epoch}. The longest time without an ack was {gap:.2f} s.",
        )
        await self._show_status()
        return leader

    async def _publish(self, victim: DemoDaemon) -> float:
        """Publish until a message gets no ack because the daemon was killed; return the time of the
        kill."""
        killed_at = 0.0
        async with Publisher(self._servers[0], ack_timeout=0.5, max_in_flight=4096) as publisher:

            async def one(number: int) -> None:
                try:
                    done = await publisher.publish("orders.new", b"order %d" % number)
                except LiftlogError as error:
                    self._problems.append(f"message {number} was not acked: {error.message}")
                    return
                self._acked[number] = done.offset
                self._acked_at.append(time.monotonic())

            async with asyncio.TaskGroup() as group:
                began = time.monotonic()
                for number in range(self._messages):
                    if number == self._messages // 2:
                        victim.kill()
                        killed_at = time.monotonic()
                    group.create_task(one(number))
                    await asyncio.sleep(max(0.0, began + number / _PER_SECOND - time.monotonic()))
        return killed_at

    async def _come_back(self, killed: str) -> None:
        story = self._story
        story.chapter("It comes back")
        started = time.monotonic()
        await self._daemons[killed].start()
        await self._settled(set(NODES))
        story.tell(
            f"Node {killed} has cut what it had not committed, fetched what it missed, and is in",
            f"sync after {time.monotonic() - started:.1f} s.",
        )
        await self._show_status()

    async def _read_back(self) -> None:
        story = self._story
        story.chapter("Everything is read back, from each node's copy")
        for node in NODES:
            records = await self._read(node)
            self._check(node, records)

    async def _read(self, node: str) -> list[Record]:
        everyone = ",".join(daemon.pull_address for daemon in self._daemons.values())
        client = await connect(everyone)
        try:
            reading = client.read(STREAM, start="earliest", until="end", replica=node)
            return [record async for record in reading]
        finally:
            await client.close()

    def _check(self, node: str, records: list[Record]) -> None:
        wrong = find_lost(node, self._acked, records)
        self._problems += wrong
        if not wrong:
            self._story.good(
                f"Node {node}: {len(records):,} records. Each acked message is at the offset that "
                "its ack named, and no message is there twice."
            )

    # --- the commands that an operator types ---

    async def _init(self) -> None:
        """Run `liftlog cluster init`; it is retried, because the servers must elect a leader
        first."""
        command = ("cluster", "init", "-c", str(self._directory / "a" / "liftlog.yaml"))
        self._story.command("liftlog cluster init -c liftlog.yaml")
        deadline = time.monotonic() + _SETTLE_SECONDS
        while True:
            status, text = await _liftlog(*command)
            if status == ExitCode.OK:
                self._story.show(text)
                return
            if time.monotonic() > deadline:
                raise Problem(f"the metadata store could not be made\n{text}", ExitCode.FAILED)
            await asyncio.sleep(0.5)

    async def _show_status(self) -> None:
        self._story.command("liftlog cluster status")
        _, text = await _liftlog("cluster", "status", server=self._alive().pull_address)
        self._story.show(text)

    # --- the state of the cluster ---

    def _alive(self) -> DemoDaemon:
        return next(daemon for daemon in self._daemons.values() if daemon.is_running)

    async def _stream(self) -> ClusterStream:
        client = await connect(self._alive().pull_address)
        try:
            info = await client.cluster()
        finally:
            await client.close()
        return next(one for one in info.replicated if one.name == STREAM)

    async def _settled(self, in_sync: set[str]) -> ClusterStream:
        """Wait until the stream has a leader and these replicas in sync. Raises Problem."""
        deadline = time.monotonic() + _SETTLE_SECONDS
        while time.monotonic() < deadline:
            with contextlib.suppress(LiftlogError, StopIteration):
                found = await self._stream()
                if found.leader is not None and set(found.isr) == in_sync:
                    return found
            await asyncio.sleep(_POLL_SECONDS)
        raise Problem(
            f"the nodes {', '.join(sorted(in_sync))} are not in sync after {_SETTLE_SECONDS:g} s",
            ExitCode.FAILED,
        )


async def _liftlog(*arguments: str, server: str = "") -> tuple[int, str]:
    """Run the command; return its exit status and its output."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith("LIFTLOG_")}
    if server:
        environ["LIFTLOG_SERVER"] = server
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "liftlog", *arguments),
        env=environ,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(errors="replace")


def free_ports(count: int) -> list[int]:
    """Return free ports of the loopback interface. Another process may take a port before it is
    used."""
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def _longest_gap(acked_at: list[float], since: float) -> float:
    """Return the longest time between two acks after `since`."""
    times = [since, *sorted(at for at in acked_at if at >= since)]
    return max((b - a for a, b in pairwise(times)), default=0.0)


def _quoted(servers: list[str]) -> str:
    return "[" + ", ".join(f'"{one}"' for one in servers) + "]"


def find_lost(node: str, acked: Mapping[int, int], records: Sequence[Record]) -> list[str]:
    """List the acked messages that a replica lacks, and the messages that it has twice. `acked`
    maps the number of each message to its offset."""
    stored = {record.offset: record.value for record in records}
    wrong = [
        f"node {node}: offset {offset:,} does not hold message {number:,}"
        for number, offset in acked.items()
        if stored.get(offset) != b"order %d" % number
    ]
    times = Counter(record.value for record in records)
    return wrong + [
        f"node {node}: message {value!r} is there {count} times"
        for value, count in times.items()
        if count > 1
    ]
