"""Requests between the nodes of a cluster, and their answers. Registered in `messages.py`.

A follower has one open `replicate` per stream. The offset of this request confirms that all records
below it are on the follower's disk.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from liftlog.protocol.described import Described
from liftlog.protocol.wire import BOOL, LABEL, MAP, NAME, Message, array_of, raw, uint
from liftlog.protocol.wire import wire as key

PEER_MAX_IN_FLIGHT = 65_536
"""Requests that a node may have in flight: one per stream that it follows."""

MAX_REPLICAS = 16
"""Maximum number of replicas of one stream."""

MAX_DIGEST_BYTES = 512 * 1024
"""Maximum number of bytes of digests in one `handover`."""

MAX_ASKED_RECORDS = 64
"""Maximum number of records whose state a node reports in one answer."""

MAX_STREAMS = 100_000
"""Maximum number of streams that one answer names."""

MAX_PARKED_MS = 30_000
"""Time limit, in milliseconds, for the answer to a `replicate` that finds no new records."""

MAX_ASKED = 1000
"""Maximum number of streams in one `ends` or `resign`."""

MAX_RECORD_BYTES = 64 * 1024
"""Longest record of a stream, as JSON."""

_MAX_FORWARDED_BYTES = 64 * 1024 * 1024  # the limit for frames is lower


# --- requests -------------------------------------------------------------------


class Peer(Message):
    """First request of a node to another node: its name and its start number."""

    KIND: ClassVar[str] = "peer"
    node: str = key("n", NAME)
    start: int = key("t", uint())
    cluster_id: str = key("c", LABEL)
    features: list[str] = key("f", array_of(LABEL, 64), default_factory=list)


class Replicate(Message):
    """Asks for the batches from `offset` on, and confirms that all records below `offset` are
    durable on the asking node.

    `last_epoch` is the leader epoch of the node's last batch, 0 if its log is empty. `side_version`
    is the version of the side state that the node has stored. `corrupt` is True if the last answer
    contained bytes that fail their checksum. `record` has the version and the checksum of the
    stream's record that the node has stored durably. `leader_record` has the version that the
    leader sent last, and the checksum of that version in the node's history of the record; each is
    0 if it is not known. `full` is True if the last answer could not be stored, because the disk is
    full. `old_consumers` is True if the node has states of consumers with acks that may differ from
    this leader's; `old_consumers` is None if the node's version of liftlog does not support
    consumers with acks.
    """

    KIND: ClassVar[str] = "replicate"
    stream: str = key("s", NAME)
    incarnation: str = key("x", LABEL)
    epoch: int = key("e", uint())
    offset: int = key("o", uint())
    last_epoch: int = key("l", uint())
    max_bytes: int = key("m", uint())
    side_version: int = key("v", uint(), default=0)
    corrupt: bool = key("c", BOOL, default=False)
    record: list[int] | None = key("r", array_of(uint(), 2), default=None)
    leader_record: list[int] | None = key("lr", array_of(uint(), 2), default=None)
    full: bool = key("f", BOOL, default=False)
    old_consumers: bool | None = key("oc", BOOL, default=None)


class Suspect(Message):
    """Asks a node whether it also considers `node` dead."""

    KIND: ClassVar[str] = "suspect"
    REPEATABLE: ClassVar[bool] = True
    node: str = key("n", NAME)


class Forward(Message):
    """A client's request, sent to the leader of its stream; the leader's answer goes back to the
    client.

    The sending node has checked the request against its ACL. `request` is the map of the client's
    frame, still encoded. So the limits on depth and number of values apply to the forwarded
    request, as to any request. `principal` is the client's principal.
    """

    KIND: ClassVar[str] = "forward"
    request: bytes = key("m", raw(1, _MAX_FORWARDED_BYTES))
    principal: str | None = key("p", LABEL, default=None)


class HandOver(Message):
    """The next step of a handover, sent by `node`, the leader of a stream, to the node that will
    lead next.

    `step` is "prepare" (read the message ids), "subscribe", "tell" or "drop". `token` identifies
    this handover. "tell" contains the end of the records that the leader has stored, and `digests`:
    eight bytes for each message that the leader has received since "subscribe". With `more`,
    further digests follow in another request.
    """

    KIND: ClassVar[str] = "handover"
    stream: str = key("s", NAME)
    incarnation: str = key("x", LABEL)
    epoch: int = key("e", uint())
    node: str = key("n", NAME)
    step: str = key("p", LABEL)
    token: bytes = key("y", raw(16, 16))
    end: int = key("o", uint(), default=0)
    digests: bytes = key("d", raw(0, MAX_DIGEST_BYTES), default=b"")
    more: bool = key("m", BOOL, default=False)


class LookAgain(Message):
    """Reports to a node that the record of a stream has changed. The node answers when it obeys
    `version` of the record."""

    KIND: ClassVar[str] = "look"
    REPEATABLE: ClassVar[bool] = True
    stream: str = key("s", NAME)
    version: int = key("v", uint())


class ElectLeader(Message):
    """Makes `node` the leader of a stream; without `node`, the first of the stream's replicas.

    `lost` names nodes whose complete copies are permanently lost, so that no other node can lead
    the stream any more. In this case `node` becomes the leader although its copy may lack acked
    records.
    """

    KIND: ClassVar[str] = "elect"
    REPEATABLE: ClassVar[bool] = True
    stream: str = key("s", NAME)
    node: str | None = key("n", NAME, default=None)
    lost: list[str] = key("l", array_of(NAME, MAX_REPLICAS), default_factory=list)


class Resign(Message):
    """A request of a leader that cannot serve these streams. It asks a node with replicas in sync
    to take them over.

    `detached` is True if the leader gets no messages. In this case a next leader that cannot ack
    yet does no harm.
    """

    KIND: ClassVar[str] = "resign"
    REPEATABLE: ClassVar[bool] = True
    streams: list[str] = key("s", array_of(NAME, MAX_ASKED))
    detached: bool = key("d", BOOL, default=False)


class Ends(Message):
    """Asks the leader of some streams for their ends. The answer omits streams that the node does
    not lead."""

    KIND: ClassVar[str] = "ends"
    REPEATABLE: ClassVar[bool] = True
    streams: list[str] = key("s", array_of(NAME, MAX_ASKED))


class DescribeCluster(Message):
    """Asks for the nodes and streams of the cluster, as this node sees them."""

    KIND: ClassVar[str] = "cluster"
    REPEATABLE: ClassVar[bool] = True


class MoveStream(Message):
    """Asks for a stream to be moved to the nodes `replicas`, the preferred leader first.

    Without `replicas`, cancels a pending move and returns to the replicas from before. Answered
    when the move has begun.
    """

    KIND: ClassVar[str] = "move"
    REPEATABLE: ClassVar[bool] = True
    stream: str = key("s", NAME)
    replicas: list[str] = key("r", array_of(NAME, MAX_REPLICAS), default_factory=list)


class DrainNode(Message):
    """Asks to move all replicas of `node` to other nodes, and to place no new replicas on it;
    `ends` ends the drain. Answered when the move has begun."""

    KIND: ClassVar[str] = "drain"
    REPEATABLE: ClassVar[bool] = True
    node: str = key("n", NAME)
    ends: bool = key("e", BOOL, default=False)


class ForgetNode(Message):
    """Asks to remove a node that is down, has no replicas, and will not return to the cluster."""

    KIND: ClassVar[str] = "forgetnode"
    node: str = key("n", NAME)


class Copies(Message):
    """Asks a node for the records of these streams that it has received, after the metadata store
    was restored to an older state. Without streams, asks for the names of all streams."""

    KIND: ClassVar[str] = "copies"
    REPEATABLE: ClassVar[bool] = True
    streams: list[str] = key("s", array_of(NAME, MAX_ASKED_RECORDS))


class RestoreMetadata(Message):
    """Asks to store the newest records that the nodes have received, if the metadata store has
    older records or none. With `dry_run`, the answer only names these records."""

    KIND: ClassVar[str] = "restore"
    REPEATABLE: ClassVar[bool] = True
    dry_run: bool = key("d", BOOL, default=False)


@dataclass(frozen=True, slots=True)
class ClusterNode(Described):
    """A node of the cluster.

    `live` is True if the node has renewed its session in time. `replicas` is the number of streams
    with a replica on the node, including replicas that are being moved to other nodes. `leads` is
    the number of streams whose first replica is on this node.
    """

    node: str = ""
    live: bool = False
    address: str = ""
    version: str = ""
    draining: bool = False
    zone: str = ""
    replicas: int = 0
    leads: int = 0
    stopping: bool = False
    """True if the node has begun to stop. Such a node hands over its streams, and gets no new
    streams."""
    silent_seconds: float = 0.0
    """Seconds since the answering node last received data from this node; 0.0 while it receives
    data."""
    clock_ahead_seconds: float = 0.0
    """The clock of this node minus the clock of the answering node; 0.0 if they differ by a few
    seconds at most, or if the difference is not known."""


@dataclass(frozen=True, slots=True)
class ClusterStream(Described):
    """A stream of the cluster, as the answering node describes it.

    `leader` is None while the stream has no leader. The offsets are those of the answering node's
    own copy; None if this node has no copy.
    """

    name: str = ""
    leader: str | None = None
    leader_epoch: int = 0
    replicas: list[str] = field(default_factory=list)
    isr: list[str] = field(default_factory=list)
    eligible: list[str] = field(default_factory=list)
    adding: list[str] = field(default_factory=list)
    removing: list[str] = field(default_factory=list)
    high_watermark: int | None = None
    log_end_offset: int | None = None
    is_set_back: bool = False
    """True if the metadata store has lost the state that is described here."""

    @property
    def is_under_replicated(self) -> bool:
        """True if a replica is not in sync, or if no node leads. Replicas that a move adds or
        removes do not count."""
        moved = {*self.adding, *self.removing}
        return self.leader is None or not {*self.replicas} - moved <= {*self.isr}

    @property
    def has_whole_copy(self) -> bool:
        """True if some replica is known to have everything that was acked. If there is no such
        replica, no election is possible."""
        return bool(self.isr or self.eligible)

    @property
    def is_moving(self) -> bool:
        """True if the stream is being moved to other nodes."""
        return bool(self.adding or self.removing)

    @property
    def target(self) -> list[str]:
        """The replicas of the stream after the pending move."""
        return [node for node in self.replicas if node not in self.removing]


@dataclass(frozen=True, slots=True)
class ClusterInfo(Described):
    """Snapshot of the cluster, from the metadata of one node.

    If the daemon does not belong to a cluster, `cluster_id`, `nodes` and `streams` are empty.
    """

    cluster_id: str = ""
    nodes: list[dict[str, Any]] = field(default_factory=list)
    streams: list[dict[str, Any]] = field(default_factory=list)
    is_store_lost: bool = False
    """True if the answering node could not reach the metadata store until its session ended. In
    this case its answers may be old, and changes are not possible."""
    node: str = ""
    """The answering node; empty in an answer of an older version. The offsets in the answer are its
    own."""

    @property
    def members(self) -> list[ClusterNode]:
        return [ClusterNode.from_wire(one) for one in self.nodes]

    @property
    def replicated(self) -> list[ClusterStream]:
        return [ClusterStream.from_wire(one) for one in self.streams]


# --- answers --------------------------------------------------------------------


class PeerAnswer(Message):
    """Answer to peer: name and start of the answering node."""

    KIND: ClassVar[str] = "node"
    node: str = key("n", NAME)
    start: int = key("t", uint())
    features: list[str] = key("f", array_of(LABEL, 64), default_factory=list)


class Replica(Message):
    """Answer to replicate; `body_length` bytes of whole record batches follow the frame.

    The first three fields repeat fields of the request, so that an answer to an outdated request
    can be dropped. With `diverging` (an epoch, and the offset at which this epoch ends on the
    leader) the follower truncates its log and sends another request; with `gap` it skips offsets.
    `first_stored` is the first offset that the leader still has. The leader has removed tombstones
    below `tombstones_removed_below`. `side_state` is sent if the follower has named another version
    than the leader's version. `record` is the leader's record of the stream as JSON, sent if acks
    wait until the follower has it; `record_version` and `record_checksum` identify the leader's
    version. `has_consumers` is True if the follower must ask for the states of consumers.
    """

    KIND: ClassVar[str] = "replica"
    epoch: int = key("e", uint())
    offset: int = key("o", uint())
    last_epoch: int = key("l", uint())
    high_watermark: int = key("h", uint())
    log_end_offset: int = key("g", uint())
    first_stored: int = key("f", uint())
    diverging: list[int] | None = key("dv", array_of(uint(), 2), default=None)
    gap: dict[str, Any] | None = key("gp", MAP, default=None)
    tombstones_removed_below: int = key("t", uint(), default=0)
    log_start_offset: int = key("s", uint(), default=0)
    first_epoch: int = key("fe", uint(), default=0)
    record_version: int = key("v", uint(), default=0)
    side_state: dict[str, Any] | None = key("sd", MAP, default=None)
    body_length: int = key("b", uint(), default=0)
    record: bytes | None = key("rc", raw(1, MAX_RECORD_BYTES), default=None)
    record_checksum: int = key("vc", uint(), default=0)
    has_consumers: bool = key("hc", BOOL, default=False)


class SuspectAnswer(Message):
    """Answer to a `suspect` request.

    `suspects` is True if the answering node suspects the node named in the request. `silent_ms` is
    the time in milliseconds since the answering node last received data from that node. `logs` maps
    each stream that the named node leads to the last epoch and the log end of the answering node's
    own copy.
    """

    KIND: ClassVar[str] = "opinion"
    suspects: bool = key("s", BOOL)
    silent_ms: int = key("t", uint())
    logs: dict[str, Any] = key("d", MAP, default_factory=dict)


class LeaderAnswer(Message):
    """Answer to elect: the node that leads now."""

    KIND: ClassVar[str] = "leader"
    node: str = key("n", NAME)


class CopiesAnswer(Message):
    """Answer to copies. It maps each stream to its record as JSON, and to the last epoch and the
    end of this node's copy of the log (nil if the node has no copy). `names` are the names of all
    streams that the node has received."""

    KIND: ClassVar[str] = "known"
    copies: dict[str, Any] = key("d", MAP)
    names: list[str] = key("s", array_of(NAME, MAX_STREAMS), default_factory=list)


class RestoreAnswer(Message):
    """Answer to restore: the records that were (or, for a dry run, would be) stored again, and the
    nodes that did not report their records."""

    KIND: ClassVar[str] = "restored"
    streams: list[dict[str, Any]] = key("d", array_of(MAP, MAX_STREAMS))
    unheard: list[str] = key("u", array_of(NAME, MAX_STREAMS), default_factory=list)


class ResignAnswer(Message):
    """Answer to resign. It maps the streams that the answering node leads now to their records in
    the metadata store. The answer contains the records because the asking node may be unable to
    reach the store."""

    KIND: ClassVar[str] = "deposed"
    streams: dict[str, Any] = key("d", MAP, default_factory=dict)


class EndsAnswer(Message):
    """Answer to ends: maps each stream to its incarnation, log start and high watermark."""

    KIND: ClassVar[str] = "ending"
    streams: dict[str, Any] = key("d", MAP, default_factory=dict)


class ClusterAnswer(Message):
    """Answer to cluster."""

    KIND: ClassVar[str] = "nodes"
    cluster: dict[str, Any] = key("d", MAP)

    @property
    def info(self) -> ClusterInfo:
        return ClusterInfo.from_wire(self.cluster)


REQUESTS: tuple[type[Message], ...] = (
    Peer,
    Replicate,
    Suspect,
    Forward,
    HandOver,
    LookAgain,
    ElectLeader,
    DescribeCluster,
    MoveStream,
    DrainNode,
    ForgetNode,
    Copies,
    RestoreMetadata,
    Ends,
    Resign,
)
ANSWERS: tuple[type[Message], ...] = (
    PeerAnswer,
    Replica,
    SuspectAnswer,
    LeaderAnswer,
    EndsAnswer,
    ResignAnswer,
    ClusterAnswer,
    CopiesAnswer,
    RestoreAnswer,
)
