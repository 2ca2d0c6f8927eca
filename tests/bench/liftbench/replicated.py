"""Systems that store each message three times: daemons with one nats-server, and JetStream R3."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from support.clients.raw_nats import RawNats
from support.daemons.cluster import NODES, Cluster
from support.daemons.nats_cluster import NatsCluster
from support.daemons.nats_server import NatsServer

from liftlog.client import connect_sync

from .kinds import LIFTBRIDGE, PLAIN
from .processes import WorkerFailed
from .systems import Liftlog, System

RF3, RF1 = "liftlog-rf3", "liftlog-rf1"
R3_DEFAULT, R3_ALWAYS = "jetstream-r3-default", "jetstream-r3-always"
REPLICATED = (R3_DEFAULT, R3_ALWAYS, RF3, RF1)
REPLICAS = 3
_FORMING_SECONDS = 60.0
_NOT_FOUND = 10059
_SILENCE = {"err_code": 0, "description": "no answer"}


def build(name: str, directory: Path, wrapper: Sequence[str] = ()) -> System:
    if name == RF3:
        return LiftlogCluster(directory, wrapper=wrapper)
    if name == RF1:
        return LiftlogAlone(directory, wrapper=wrapper)
    return JetStreamCluster(directory, always=name == R3_ALWAYS, wrapper=wrapper)


class JetStreamCluster(System):
    """Three nats-servers, with file streams of three replicas and otherwise default settings.

    Publishers connect to the server that leads the stream, which saves each message and each ack a
    hop between servers.
    """

    def __init__(self, directory: Path, *, always: bool, wrapper: Sequence[str] = ()) -> None:
        super().__init__(directory, wrapper=wrapper)
        self.always = always
        self.name = R3_ALWAYS if always else R3_DEFAULT

    def _start(self) -> None:
        self._cluster = self._stack.enter_context(
            NatsCluster(REPLICAS, self.directory, jetstream=True, sync_always=self.always)
        )
        self.nats = self._cluster.servers[0]
        self._api = self._stack.enter_context(RawNats(self.nats.port, timeout=60))

    def _request(self, what: str, body: Any = None) -> Any:
        """Send a request. Repeats it until the servers have formed a cluster and elected a
        leader."""
        payload = b"" if body is None else json.dumps(body)
        deadline = time.monotonic() + _FORMING_SECONDS
        while True:
            try:
                message = self._api.request(f"$JS.API.STREAM.{what}", payload, timeout=5.0)
                answer = message.json() if message.payload else {"error": _SILENCE}
            except TimeoutError:
                answer = {"error": _SILENCE}
            if "error" not in answer:
                return answer
            if what.startswith("DELETE") and answer["error"]["err_code"] == _NOT_FOUND:
                return answer  # it was deleted, and the answer was lost
            if time.monotonic() > deadline:
                raise RuntimeError(f"{what}: {answer['error']}")
            time.sleep(0.2)

    def create(self, stream: str, subject: str, *, kind: str = PLAIN) -> None:
        config = {"name": stream, "subjects": [subject], "storage": "file"}
        self._request(f"CREATE.{stream}", {**config, "num_replicas": REPLICAS})
        deadline = time.monotonic() + _FORMING_SECONDS
        while True:
            cluster = self._request(f"INFO.{stream}")["cluster"]
            replicas = cluster.get("replicas", ())
            current = sum(bool(one.get("current")) for one in replicas)
            if cluster.get("leader") and current == REPLICAS - 1:
                break
            if time.monotonic() > deadline:
                raise WorkerFailed(f"the stream has no leader with two replicas: {cluster}")
            time.sleep(0.1)
        self.nats = self._cluster.servers[int(cluster["leader"].removeprefix("n"))]

    def delete(self, stream: str) -> None:
        self._request(f"DELETE.{stream}")

    def stored(self, stream: str) -> int:
        return int(self._request(f"INFO.{stream}")["state"]["messages"])


class LiftlogAlone(Liftlog):
    """One daemon without a cluster."""

    name = RF1


class LiftlogCluster(System):
    """Three daemons with default settings and one core nats-server. Streams have three replicas; an
    ack is sent when at least two replicas, and all replicas in sync, have fsynced the message."""

    name = RF3

    def _start(self) -> None:
        self.nats = self._stack.enter_context(NatsServer(self.directory / "nats"))
        self.cluster = self._stack.enter_context(
            Cluster(self.nats.url, directory=self.directory / "nodes", wrapper=self.wrapper)
        )

    def create(self, stream: str, subject: str, *, kind: str = PLAIN) -> None:
        with connect_sync(self.cluster.nodes[NODES[0]].pull_address) as client:
            client.create_stream(
                stream,
                subject=subject,
                replicas=REPLICAS,
                min_isr=2,
                liftbridge=kind == LIFTBRIDGE,
            )
        self.cluster.wait_isr(stream)
        self.daemon = self.cluster.nodes[self.cluster.leader(stream)]
        self._client = connect_sync(self.daemon.pull_address)

    def delete(self, stream: str) -> None:
        self._client.delete_stream(stream)
        self._client.close()

    def stored(self, stream: str) -> int:
        """Return the number of committed messages, when each replica has all of them."""
        self.cluster.wait_settled(stream)
        info = self._client.describe_stream(stream)
        return info.high_watermark - info.log_start_offset

    def fsyncs(self, stream: str) -> int | None:
        """Of all three."""
        nodes = self.cluster.nodes.values()
        return int(sum(node.metric("liftlog_fsync_total", stream=stream) for node in nodes))
