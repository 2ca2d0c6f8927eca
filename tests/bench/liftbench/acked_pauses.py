"""Measures pauses of deliveries after a kill of the daemon. The workers of other languages use the
default expiry and heartbeat of their clients, because other values hide stalls."""

from __future__ import annotations

import itertools
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import IO

from support.clients.client_publishers import Program
from support.clients.ingesting import until
from support.clients.raw_nats import RawNats
from support.clients.workers_over_nats import leafnode_of
from support.daemons.cluster import Cluster
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer

from .acked_rows import OURS, Found, Round, percentile
from .acked_sides import PATIENCE_SECONDS, PAYLOAD, Side, wait_ready

_RATE = 100
_STALL_SECONDS = 20.0
_KILLS = 20
_SETTLED_SECONDS = 0.5


class _Watcher:
    """A worker that waits for the answer to each ack. `times` are the times of its deliveries, in
    seconds since 1970."""

    def __init__(self, program: Program, side: Side, stream: str) -> None:
        self.client = program.client
        self.times: list[float] = []
        self.again = 0
        """Number of deliveries after a confirmed ack."""
        with side.connect() as raw:
            name = side.consumer(raw, stream, program.client.replace(".", "-"))
        url = f"nats://127.0.0.1:{side.port}"
        self._process = subprocess.Popen(
            [*program.command, url, stream, name, "0"], stdout=subprocess.PIPE
        )
        assert self._process.stdout is not None
        self._reading = threading.Thread(
            target=self._read, args=[self._process.stdout], daemon=True
        )
        self._reading.start()

    def _read(self, lines: IO[bytes]) -> None:
        acked: set[int] = set()
        for line in lines:
            kind, *numbers = line.split()
            sequence = int(numbers[-1])
            if kind == b"a":
                acked.add(sequence)
                continue
            self.times.append(int(numbers[0]) / 1e9)
            self.again += sequence in acked

    def since(self, moment: float) -> list[float]:
        return [one for one in self.times.copy() if one >= moment]

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reading.join()


@contextmanager
def _watchers(setting: Round, side: Side, stream: str) -> Iterator[list[_Watcher]]:
    """Yield workers of the stream, each with its own consumer, while messages are published."""
    ends = threading.Event()

    def publish() -> None:
        with RawNats(side.port, timeout=PATIENCE_SECONDS) as raw:
            while not ends.wait(1 / _RATE):
                raw.pub(f"{stream}.a", PAYLOAD)

    with ExitStack() as stack:
        found = []
        for program in setting.programs:
            found.append(_Watcher(program, side, stream))
            stack.callback(found[-1].close)
        publisher = threading.Thread(target=publish, daemon=True)
        publisher.start()
        stack.callback(publisher.join)
        stack.callback(ends.set)
        yield found


def _until_delivered(watchers: list[_Watcher], moment: float) -> None:
    for one in watchers:
        until(
            lambda one=one: one.since(moment),
            PATIENCE_SECONDS,
            f"{one.client} gets messages",
        )


def _kills(setting: Round) -> int:
    return max(round(_KILLS * setting.share), 3)


def _figures(pauses: list[float], watchers: list[_Watcher]) -> Found:
    return {
        "p50_s": percentile(pauses, 0.5),
        "p99_s": percentile(pauses, 0.99),
        "stalls": sum(one > _STALL_SECONDS for one in pauses),
        "again": sum(one.again for one in watchers),
        "pauses": len(pauses),
    }


def after_kill(setting: Round) -> Found:
    """Return the seconds from the moment at which a killed daemon is ready again to the next
    delivery of each worker."""
    ours, pauses = setting.ours, list[float]()
    daemon = ours.server
    assert isinstance(daemon, Daemon)
    with ours.stream() as stream, _watchers(setting, ours, stream) as watchers:
        for _ in range(_kills(setting)):
            _until_delivered(watchers, time.time() + _SETTLED_SECONDS)
            daemon.kill()
            seen, began = len(daemon.log), time.time()
            daemon.restart()
            wait_ready(daemon, seen)
            ready = time.time()
            _until_delivered(watchers, began)
            pauses += [max(one.since(began)[0] - ready, 0.0) for one in watchers]
    return _figures(pauses, watchers)


def after_leader_kill(setting: Round) -> Found:
    """Return the longest time between two deliveries of each worker, while the leader of its stream
    is killed and another node takes over."""
    pauses = list[float]()
    directory = setting.directory / "cluster"
    leaf = {"listen": "127.0.0.1:-1"}
    with NatsServer(directory / "nats", leafnodes=leaf) as server:
        settings = {"nats": {"jetstream_api": True, "leafnode": leafnode_of(server)}}
        with Cluster(server.url, settings=settings, directory=directory / "nodes") as cluster:
            for node in cluster.nodes.values():
                wait_ready(node)
            side = Side(OURS, cluster.nodes["a"], server.port)
            with side.stream(num_replicas=3) as stream:
                with _watchers(setting, side, stream) as watchers:
                    for _ in range(_kills(setting)):
                        cluster.wait_isr(stream)
                        _until_delivered(watchers, time.time() + _SETTLED_SECONDS)
                        pauses += _pauses_of_takeover(cluster, stream, watchers)
    return _figures(pauses, watchers)


def _pauses_of_takeover(cluster: Cluster, stream: str, watchers: list[_Watcher]) -> list[float]:
    leader, began = cluster.leader(stream), time.time()
    cluster.kill(leader)
    _until_delivered(watchers, time.time() + _SETTLED_SECONDS)
    _until_delivered(watchers, time.time() + _SETTLED_SECONDS)
    found = [
        max(later - one for one, later in itertools.pairwise(watcher.since(began - 0.1)))
        for watcher in watchers
    ]
    cluster.start(leader)
    return found
