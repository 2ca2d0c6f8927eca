"""The cluster as this node sees it: its streams, their leaders, and the nodes that this node
receives heartbeats from.

Answers requests of clients, or finds the node that can answer them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from liftlog.cluster.record import StreamMetadata
from liftlog.errors import LiftlogError, NotLeader, NotReady, StreamNotFound
from liftlog.names import is_stream_name
from liftlog.protocol.replication import ClusterInfo, ClusterNode, ClusterStream
from liftlog.server.commits.host import StreamHost
from liftlog.server.metadata.membership import Member
from liftlog.server.metadata.mirror import Mirror
from liftlog.server.replication.hearing import ENDED_SECONDS, Hearing

_SILENT_SECONDS = 2.0


class ClusterView:
    """Reads the newest metadata that this node has received; changes nothing. Belongs to the event
    loop."""

    def __init__(self, member: Member, mirror: Mirror, hearing: Hearing) -> None:
        self._member = member
        self._mirror = mirror
        self._hearing = hearing

    # --- streams ---

    def known(self, name: str) -> StreamMetadata | None:
        """Return the metadata record of a stream; None if the cluster has no such stream."""
        record = self._mirror.records.get(name)
        return None if record is None or record.deleted else record

    def knows(self, name: str) -> bool:
        """Return True if the cluster has a stream of this name."""
        return self.known(name) is not None

    def stream_names(self) -> list[str]:
        """Return all streams of the cluster, without the system streams."""
        return [name for name in filter(is_stream_name, self._mirror.records) if self.knows(name)]

    def leads(self, name: str) -> bool:
        """Return True if this node leads the stream according to its metadata."""
        record = self.known(name)
        return record is not None and record.leader == self._member.name

    def leads_elsewhere(self, name: str) -> bool:
        """Return True if another node leads the stream according to its metadata."""
        record = self.known(name)
        return record is not None and record.leader not in (None, self._member.name)

    def is_in_sync(self, name: str) -> bool:
        """Return True if another node leads the stream, and the copy on this node is in sync. Uses
        the newest metadata that this node has."""
        record, me = self._mirror.records.get(name), self._member.name
        return record is not None and me in record.isr and record.leader != me

    def leader_of(self, record: StreamMetadata) -> str | None:
        """Return the node that leads the stream. Return None if the stream has no leader, or if the
        leader is down. After a failure of the leader, the stream's metadata still names this
        leader until another replica has taken over."""
        return None if record.leader is None or self.is_down(record.leader) else record.leader

    def answerer(self, name: str) -> str | None:
        """Return the other node that answers requests about a stream. Return None if this node
        answers them; this is also the case for a stream that does not exist. Raises NotLeader if
        the stream has no leader."""
        record = self.known(name)
        if record is None or record.leader == self._member.name:
            return None
        leader = self.leader_of(record)
        if leader is None:
            raise self.not_leader(name)
        return leader

    def other_leaders(self) -> dict[str, str]:
        """Return the other nodes that lead streams, each with one of the streams that it leads."""
        found: dict[str, str] = {}
        for name, record in self._mirror.records.items():
            if record.leader not in (None, self._member.name) and not record.deleted:
                found.setdefault(str(record.leader), name)
        return found

    def without_leader(self) -> list[StreamMetadata]:
        """Return the streams of the cluster without a leader."""
        records = [one for one in self._mirror.records.values() if not one.deleted]
        leaders = {one.leader for one in records}
        leading = {node for node in leaders if node is not None and not self.is_down(node)}
        return [one for one in records if one.leader not in leading]

    def why_without_leader(self, record: StreamMetadata) -> tuple[str, str]:
        """Return the reason why the stream has no leader, and the remedy."""
        whole = record.isr or record.eligible
        if not whole:
            return (
                "no complete copy of it is left",
                "to let an older copy lead, and lose the records that it lacks: `liftlog cluster "
                f"elect {record.name} --node NODE --lost {','.join(record.replicas)}`",
            )
        if all(map(self.is_down, whole)):
            names = ", ".join(whole)
            start = f"start node {names}" if len(whole) == 1 else f"start one of the nodes {names}"
            return f"all acked messages are only on nodes that are down: {names}", start
        return "another replica is about to take over", "try again"

    # --- nodes ---

    def reaches(self, node: str) -> bool:
        """Return True if there is a connection to or from another node."""
        return self._hearing.gone_seconds(node) == 0

    def is_down(self, node: str) -> bool:
        """Return True if a node has no session and this node receives nothing from it."""
        is_live = node == self._member.name or node in self._mirror.directory.live
        return not is_live and self.silent_seconds(node) > 0

    def silent_seconds(self, node: str) -> float:
        """Return the time, in seconds, since the last heartbeat from another node. Return 0.0 if
        the time is too short to be significant."""
        seconds = 0.0 if node == self._member.name else self._hearing.silent_seconds(node)
        enough = ENDED_SECONDS if self._hearing.is_refusing(node) else _SILENT_SECONDS
        return round(seconds, 1) if seconds >= enough else 0.0

    def other_nodes(self) -> list[str]:
        """Return the other nodes of the cluster."""
        return [node for node in self._mirror.directory.nodes if node != self._member.name]

    def addresses(self) -> list[str]:
        """Return the addresses at which the nodes of the cluster serve clients."""
        nodes = self._mirror.directory.nodes
        return [nodes[name].address for name in sorted(nodes)]

    # --- errors ---

    def not_leader(self, name: str) -> LiftlogError:
        """Return the error for a request that only the leader of `name` can answer."""
        record = self.known(name)
        if record is None:
            return StreamNotFound(f"there is no stream {name!r}")
        leader = self.leader_of(record) or ""
        info = self._mirror.directory.nodes.get(leader)
        address = "" if info is None else info.address
        hint = f"connect to {address}" if address else "try again"
        if not leader:
            why, hint = self.why_without_leader(record)
            message = f"stream {name} has no leader: {why}"
        elif leader == self._member.name:
            message = f"node {leader} is elected to lead stream {name}, and does not lead it yet"
        else:
            message = f"stream {name} is led by node {leader}, not by {self._member.name}"
        return NotLeader(
            message,
            hint=hint,
            leader=leader,
            address=address,
            replicas=list(record.replicas),
            epoch=record.leader_epoch,
        )

    def begins_to_lead(self, name: str) -> NotReady:
        """Return the error for requests to a new leader. This node leads the stream, but has not
        determined the stream's high watermark yet."""
        return NotReady(
            f"node {self._member.name} begins to lead stream {name}",
            hint="try again; `liftlog cluster status` shows whether enough replicas are there",
        )

    def check_is_here(self, node: str) -> None:
        """Raise NotLeader unless `node` is this node."""
        if node != self._member.name:
            info = self._mirror.directory.nodes.get(node)
            raise NotLeader(
                f"this is node {self._member.name}, not {node}",
                hint=f"connect to {info.address}" if info else "there is no such node",
                address=info.address if info else "",
            )

    # --- the whole cluster ---

    def describe(
        self,
        hosts: Mapping[str, StreamHost],
        may_read: Callable[[str], bool],
        clock_ahead_seconds: Callable[[str], float],
    ) -> ClusterInfo:
        """Describe the cluster, and the streams that the caller may read. All offsets come from
        this node. `clock_ahead_seconds` returns the number of seconds by which a node's clock is
        ahead."""
        mirror = self._mirror
        streams = []
        forgotten = {name: mirror.known[name] for name in mirror.regressed if name in mirror.known}
        for name, record in sorted((mirror.records | forgotten).items()):
            if record.deleted or not may_read(name):
                continue
            host = hosts.get(name)
            streams.append(
                ClusterStream(
                    name,
                    self.leader_of(record),
                    record.leader_epoch,
                    list(record.replicas),
                    list(record.isr),
                    list(record.eligible),
                    list(record.adding),
                    list(record.removing),
                    None if host is None else host.log.high_watermark,
                    None if host is None else host.log.log_end_offset,
                    name in forgotten,
                )
            )
        return ClusterInfo(
            self._member.cluster_id,
            [one.to_wire() for one in self._nodes(clock_ahead_seconds)],
            [one.to_wire() for one in streams],
            node=self._member.name,
        )

    def _nodes(self, clock_ahead_seconds: Callable[[str], float]) -> list[ClusterNode]:
        directory = self._mirror.directory
        records = [one for one in self._mirror.records.values() if not one.deleted]
        held = Counter(node for record in records for node in record.members)
        led = Counter(record.target[0] for record in records)
        return [
            ClusterNode(
                name,
                name in directory.live,
                one.address,
                one.version,
                one.draining,
                one.zone,
                held[name],
                led[name],
                one.stopping,
                self.silent_seconds(name),
                clock_ahead_seconds(name),
            )
            for name, one in sorted(directory.nodes.items())
        ]
