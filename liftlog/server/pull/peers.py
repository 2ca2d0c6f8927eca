"""Handles the requests of another node of the cluster, on one connection."""

from __future__ import annotations

from liftlog.errors import BadRequest, Conflict, UnknownRequest
from liftlog.log import LogSlice
from liftlog.protocol.consumer_states import ConsumerChanges, FetchConsumers
from liftlog.protocol.frames import decode_map
from liftlog.protocol.limits import MAX_REQUEST_VALUES
from liftlog.protocol.messages import REQUESTS, Pong
from liftlog.protocol.replication import (
    PEER_MAX_IN_FLIGHT,
    Copies,
    Ends,
    EndsAnswer,
    Forward,
    Peer,
    PeerAnswer,
    Replica,
    Replicate,
    Resign,
    ResignAnswer,
    Suspect,
)
from liftlog.protocol.wire import KIND_KEY, Message
from liftlog.server.access.gate import Gate
from liftlog.server.node.cluster_catalog import needed_node_of
from liftlog.server.node.replicated import ReplicatedStreams
from liftlog.server.pull.answers import Answers
from liftlog.server.requests.rights import HANDLERS, STARTERS, Caller

_SHARED_BY_ALL = "_offsets"
"""A stream that all nodes share. A principal that may replicate this stream counts as a node of the
cluster."""

_OPEN = Gate(None)
"""Gate that permits everything. It is used for forwarded requests, because the node that forwards a
request has already checked the rights."""


class PeerRequests:
    """The requests of another node. The node must identify itself before any other request. Belongs
    to the loop's thread."""

    def __init__(self, caller: Caller, answers: Answers) -> None:
        self._caller = caller
        self._answers = answers
        self._peer: Peer | None = None

    def introduce(self, request_id: int, peer: Peer) -> None:
        """Answer with the identity of this node. Raises Forbidden. Raises Conflict for a node of
        another cluster."""
        caller = self._caller
        caller.gate.authorize(caller.principal, "replicate", _SHARED_BY_ALL, peer=caller.peer)
        streams = self._streams()
        member = streams.member
        if peer.cluster_id != member.cluster_id:
            raise Conflict(
                f"this node belongs to cluster {member.cluster_id}, not to {peer.cluster_id}",
                hint="one of the two nodes has a wrong address in cluster.advertise",
            )
        if self._peer is None:
            streams.peers.peer_came(peer.node)
        elif self._peer.node != peer.node:
            raise BadRequest(f"this connection is node {self._peer.node}'s")
        self._peer = peer
        self._answers.allow_in_flight(PEER_MAX_IN_FLIGHT)
        self._answers.answer(request_id, PeerAnswer(member.name, member.start))

    @property
    def is_known(self) -> bool:
        """True if the node has identified itself."""
        return self._peer is not None

    def replicate(self, request_id: int, request: Replicate) -> None:
        """Begin to answer a follower's replication request; the answer may be sent later. Raises
        Forbidden, NotLeader."""
        caller = self._caller
        caller.gate.authorize(caller.principal, "replicate", request.stream, peer=caller.peer)
        if self._peer is None:
            raise BadRequest("replicate comes after peer")
        streams = self._streams()
        streams.hearing.heard(self._peer.node)
        streams.peers.replicate(self._peer, request, _Reply(self._answers, request_id))

    def consumers(self, request_id: int, request: FetchConsumers) -> None:
        """Begin to answer a follower's request for the states of consumers; the answer may be sent
        later. Raises Forbidden, NotLeader."""
        caller = self._caller
        caller.gate.authorize(caller.principal, "replicate", request.stream, peer=caller.peer)
        if self._peer is None:
            raise BadRequest("consumerstates comes after peer")
        streams = self._streams()
        streams.hearing.heard(self._peer.node)
        streams.peers.consumers(self._peer, request, _Reply(self._answers, request_id))

    def forwarded(self, request: Forward) -> tuple[Caller, Message]:
        """Return the forwarded request of a client, and its caller. The other node has checked the
        client's rights. Raises Forbidden, BadRequest, UnknownRequest."""
        caller = self._caller
        caller.gate.authorize(caller.principal, "replicate", _SHARED_BY_ALL, peer=caller.peer)
        if self._peer is None:
            raise BadRequest("forward comes after peer")
        self._streams().hearing.heard(self._peer.node)
        content = decode_map(request.request, MAX_REQUEST_VALUES)
        kind = content.get(KIND_KEY)
        cls = REQUESTS.get(kind) if isinstance(kind, str) else None
        if cls is None or (cls not in HANDLERS and cls not in STARTERS):
            raise UnknownRequest(f"this node answers no forwarded request {str(kind)[:40]!r}")
        peer = f"{caller.peer} (node {self._peer.node})"
        asks = Caller(request.principal, _OPEN, caller.broker, peer, is_forwarded=True)
        return asks, cls.from_map(content)

    def pong(self) -> Pong:
        """Return the answer to a ping. If the node has identified itself, the answer contains the
        time."""
        if self._peer is None:
            return Pong()
        streams = self._streams()
        streams.hearing.heard(self._peer.node)
        return Pong(*streams.peers.told_time())

    def suspect(self, request_id: int, request: Suspect) -> None:
        """Report to the other node whether this node suspects a third node. Raises Forbidden."""
        caller = self._caller
        caller.gate.authorize(caller.principal, "replicate", _SHARED_BY_ALL, peer=caller.peer)
        if self._peer is None:
            raise BadRequest("suspect comes after peer")
        streams = self._streams()
        streams.hearing.heard(self._peer.node)
        self._answers.answer(request_id, streams.peers.opinion(request.node))

    def copies(self, request_id: int, request: Copies) -> None:
        """Answer with the stream metadata that this node has read, for the requested streams.
        Raises Forbidden."""
        caller = self._caller
        caller.gate.authorize(caller.principal, "replicate", _SHARED_BY_ALL, peer=caller.peer)
        if self._peer is None:
            raise BadRequest("copies comes after peer")
        self._answers.answer(request_id, self._streams().candidacy.guard.answer(request.streams))

    def ends(self, request_id: int, request: Ends) -> None:
        """Answer with the end offsets of the requested streams that this node leads. Raises
        Forbidden."""
        caller = self._caller
        caller.gate.authorize(caller.principal, "replicate", _SHARED_BY_ALL, peer=caller.peer)
        if self._peer is None:
            raise BadRequest("ends comes after peer")
        self._answers.answer(request_id, EndsAnswer(self._streams().peers.ends(request.streams)))

    async def resign(self, request_id: int, request: Resign) -> None:
        """Take over the leadership of streams that the other node can no longer serve. Raises
        Forbidden."""
        caller = self._caller
        caller.gate.authorize(caller.principal, "replicate", _SHARED_BY_ALL, peer=caller.peer)
        if self._peer is None:
            raise BadRequest("resign comes after peer")
        node, streams = self._peer.node, self._streams()
        led = await streams.peers.take_over(node, request.streams, detached=request.detached)
        records = {name: record.to_json() for name, record in led.items()}
        self._answers.answer(request_id, ResignAnswer(records))

    def close(self) -> None:
        """Release the resources of the node, because its connection is closed."""
        if self._peer is not None:
            self._streams().peers.peer_went(self._peer.node)
            self._peer = None

    def _streams(self) -> ReplicatedStreams:
        return needed_node_of(self._caller.broker)


class _Reply:
    def __init__(self, answers: Answers, request_id: int) -> None:
        self._answers = answers
        self._request_id = request_id

    @property
    def may_copy(self) -> bool:
        return self._answers.may_encode

    def replica(self, header: Replica, body: LogSlice | bytes | None) -> None:
        self._answers.replicated(self._request_id, header, body)

    def changes(self, header: ConsumerChanges, body: bytes) -> None:
        self._answers.replicated(self._request_id, header, body)

    def refuse(self, error: Exception) -> None:
        self._answers.refuse(self._request_id, error)
        self._answers.flush()
