"""The services of this node for the other nodes: serves their followers, and answers their
requests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping

from liftlog.cluster.record import StreamMetadata
from liftlog.errors import StaleIncarnation
from liftlog.protocol.consumer_states import FetchConsumers
from liftlog.protocol.replication import Peer, Replicate, SuspectAnswer
from liftlog.server.node.cluster_view import ClusterView
from liftlog.server.node.handing_over import LOOK_SECONDS
from liftlog.server.node.local_node import LocalNode
from liftlog.server.node.replica import Replica
from liftlog.server.replication.serving import Reply
from liftlog.server.replication.serving_consumers import ConsumerReply
from liftlog.server.replication.succession import Succession
from liftlog.server.vitals.clock_guard import STEP_NS

_RECONNECT_SECONDS = 1.0


class PeerService:
    """Answers other nodes. Belongs to the event loop. `replicas` are the replicas on this node, by
    stream; `succession` returns the elections of this node, or None before it takes part in
    elections."""

    def __init__(
        self,
        node: LocalNode,
        view: ClusterView,
        replicas: Mapping[str, Replica],
        succession: Callable[[], Succession | None],
    ) -> None:
        self._node = node
        self._view = view
        self._replicas = replicas
        self._succession = succession
        self._connections: dict[str, int] = {}
        """Number of open connections of each node."""

    # --- connections ---

    def peer_came(self, node: str) -> None:
        """Note that another node has identified itself on a new connection."""
        self._connections[node] = self._connections.get(node, 0) + 1
        self._node.hearing.connected(node)
        if node in self._node.mirror.directory.nodes:
            self._node.link_to(node).connect_soon()

    def peer_went(self, node: str) -> None:
        """Note that a connection has ended. If the node does not reconnect soon, acks stop waiting
        for it."""
        self._connections[node] -= 1
        self._node.hearing.disconnected(node)
        asyncio.get_running_loop().call_later(_RECONNECT_SECONDS, self._not_back, node)

    def _not_back(self, node: str) -> None:
        if not self._connections.get(node):
            self.lost(node)

    def lost(self, node: str) -> None:
        """Make acks stop waiting for `node`, until it fetches again."""
        for led in list(self._node.led.values()):
            led.lost(node)

    def connected(self, node: str) -> None:
        """Notify the replicas that follow another node, because this node has reconnected to
        `node`."""
        for followed in list(self._node.followed.values()):
            followed.connected(node)

    # --- streams ---

    def replicate(self, peer: Peer, request: Replicate, reply: Reply) -> None:
        """Serve a node that fetches missing records of a stream. Raises NotLeader."""
        led = self._node.led.get(request.stream)
        if led is None:
            raise self._view.not_leader(request.stream)
        if request.epoch > led.leader.epoch:
            self._replicas[request.stream].role.look_again()
        led.fetch(peer.node, peer.start, request, reply)

    def consumers(self, peer: Peer, request: FetchConsumers, reply: ConsumerReply) -> None:
        """Serve a node that fetches the states of a stream's consumers. Raises NotLeader,
        StaleIncarnation."""
        led = self._node.led.get(request.stream)
        if led is None:
            raise self._view.not_leader(request.stream)
        if request.incarnation != led.consumers.incarnation:
            raise StaleIncarnation(f"stream {request.stream} was created again")
        led.consumers.fetch(peer.node, peer.start, request, reply)

    def ends(self, names: Iterable[str]) -> dict[str, tuple[str, int, int]]:
        """Return incarnation, log start and high watermark of the streams that this node leads."""
        found = {}
        for name in names:
            if name in self._node.led:
                log = self._node.hosts.hosts[name].log
                found[name] = (log.incarnation, log.log_start_offset, log.high_watermark)
        return found

    async def look_again(self, name: str, version: int) -> None:
        """Wait, for a limited time, until this node has adopted this version of a record. Raises
        MetadataUnavailable."""
        known = self._node.mirror.records.get(name)
        if known is None or known.version < version:
            await self._node.mirror.change(name, lambda present: None)
        replica = self._replicas.get(name)
        if replica is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await replica.does(version)

    # --- elections and clocks ---

    def opinion(self, node: str) -> SuspectAnswer:
        """Return this node's answer when another node suspects `node`."""
        succession = self._succession()
        if succession is None:
            return SuspectAnswer(suspects=False, silent_ms=0)
        return succession.opinion(node)

    async def take_over(
        self, asker: str, names: Iterable[str], *, detached: bool
    ) -> dict[str, StreamMetadata]:
        """Begin to lead streams that `asker` leads but cannot serve, if this node can serve them.
        Returns the records of the streams that this node then leads."""
        succession = self._succession()
        if succession is None:
            return {}
        return await succession.take_over(asker, names, detached=detached)

    def told_time(self) -> tuple[int, bool]:
        """Return the wall clock for another node, and True if this node does not trust its
        clock."""
        environment = self._node.data_dir.environment
        now_ns = environment.clock.now_ns()
        return now_ns, now_ns - environment.age_clock_ns() > STEP_NS
