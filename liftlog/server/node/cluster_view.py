"""What clients are told of the cluster: its nodes and streams, and who else can answer them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from liftlog.cluster.leading import Leader
from liftlog.cluster.record import StreamRecord
from liftlog.errors import LiftlogError, NotLeader, NotReady, StreamNotFound
from liftlog.protocol.replication import ClusterInfo, ClusterNode, ClusterStream
from liftlog.server.commits.host import StreamHost
from liftlog.server.metadata.membership import Member
from liftlog.server.metadata.mirror import Mirror


def describe_cluster(
    member: Member,
    mirror: Mirror,
    hosts: Mapping[str, StreamHost],
    may_read: Callable[[str], bool],
    silent_seconds: Callable[[str], float],
    clock_ahead_seconds: Callable[[str], float],
    is_down: Callable[[str], bool],
) -> ClusterInfo:
    """The cluster, with the streams that the caller may read. Offsets are those of this node.
    `silent_seconds` tells for how long this one has heard nothing of another one, `is_down` whether
    that one has no session either, `clock_ahead_seconds` how far its clock is ahead."""
    directory = mirror.directory
    records = [one for one in mirror.records.values() if not one.deleted]
    held = Counter(node for record in records for node in record.members)
    led = Counter(record.target[0] for record in records)
    nodes = [
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
            silent_seconds(name),
            clock_ahead_seconds(name),
        )
        for name, one in sorted(directory.nodes.items())
    ]
    streams = []
    forgotten = {name: mirror.known[name] for name in mirror.regressed if name in mirror.known}
    for name, record in sorted((mirror.records | forgotten).items()):
        if record.deleted or not may_read(name):
            continue
        host = hosts.get(name)
        streams.append(
            ClusterStream(
                name,
                leader_of(record, is_down),
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
        member.cluster_id,
        [one.to_wire() for one in nodes],
        [one.to_wire() for one in streams],
        node=member.name,
    )


def leader_of(record: StreamRecord, is_down: Callable[[str], bool]) -> str | None:
    """The node that leads the stream. A node that is down leads nothing, whatever the record says:
    that names it for as long as no other replica can take over."""
    return None if record.leader is None or is_down(record.leader) else record.leader


def why_without_leader(record: StreamRecord, is_down: Callable[[str], bool]) -> tuple[str, str]:
    """Why no node leads the stream, and what to do."""
    whole = record.isr or record.eligible
    if not whole:
        return (
            "no complete copy of it is left",
            f"if an older one is to lead, and what it lacks is given up: `liftlog cluster elect "
            f"{record.name} --node NODE --lost {','.join(record.replicas)}`",
        )
    if all(map(is_down, whole)):
        names = ", ".join(whole)
        start = f"start node {names}" if len(whole) == 1 else f"start one of the nodes {names}"
        return f"all that was acked is only on nodes that are down: {names}", start
    return "another replica is about to take over", "try again"


def not_leader(
    member: Member, mirror: Mirror, name: str, is_down: Callable[[str], bool]
) -> LiftlogError:
    """The error for a request that only the leader of `name` can answer."""
    record = mirror.records.get(name)
    if record is None or record.deleted:
        return StreamNotFound(f"there is no stream {name!r}")
    leader = leader_of(record, is_down) or ""
    info = mirror.directory.nodes.get(leader)
    address = "" if info is None else info.address
    hint = f"connect to {address}" if address else "try again"
    if not leader:
        why, hint = why_without_leader(record, is_down)
        message = f"stream {name} has no leader: {why}"
    elif leader == member.name:
        message = f"node {leader} is elected to lead stream {name}, and does not lead it yet"
    else:
        message = f"stream {name} is led by node {leader}, not by {member.name}"
    return NotLeader(
        message,
        hint=hint,
        leader=leader,
        address=address,
        replicas=list(record.replicas),
        epoch=record.leader_epoch,
    )


def check_ready(member: Member, leader: Leader) -> None:
    """Raises NotReady while the high watermark of a new leader may lag behind what clients have
    seen: until the followers have asked once."""
    if not leader.is_ready:
        raise begins_to_lead(member, leader.record.name)


def begins_to_lead(member: Member, name: str) -> NotReady:
    """The error while this node does not know yet how far a stream was committed before."""
    return NotReady(
        f"node {member.name} begins to lead stream {name}",
        hint="try again; `liftlog cluster status` shows whether enough replicas are there",
    )


def check_is_here(member: Member, mirror: Mirror, node: str) -> None:
    """Raises NotLeader unless `node` is this one."""
    if node != member.name:
        info = mirror.directory.nodes.get(node)
        raise NotLeader(
            f"this is node {member.name}, not {node}",
            hint=f"connect to {info.address}" if info else "there is no such node",
            address=info.address if info else "",
        )
