"""Decides when this node takes over the leadership of a stream, and when this node resigns as the
leader.

Each run of a node's process has one `Elections`. Events report this node's observations of the
other nodes. About ten times a second, the caller asks for the resulting actions:

    heard(node)   lost(node)   told(peer, about, opinion)        events of the other nodes
    renewed(deadline)   sessions(live)                             events of the metadata store
    look(now)   questions(records)   decide(record, log)           which actions to take
    stops(leader)   yields(leaders, stalled)                       streams to stop or to hand over
    takes_over(record, asker)                                      which stream of a peer to accept

Safety does not depend on this module. A leader that is deposed by mistake commits nothing more, and
every replica that can be elected has all records that this leader committed
(`transitions.failover`). The rules in this module decide how soon a dead leader is replaced, and
prevent the replacement of a live leader.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from liftlog.cluster import transitions
from liftlog.cluster.leading import Leader
from liftlog.cluster.record import StreamMetadata


@dataclass(frozen=True, slots=True)
class Patience:
    """Time limits of failure detection and elections, in seconds."""

    session: float = 15.0
    """The session of a node ends if the node has not renewed it for this time."""
    silence: float = 2.0
    """A connected node that has sent no byte for this time is suspected. Connected nodes send data
    twice a second."""
    reconnect: float = 0.5
    """A node whose connection was lost is suspected if it has not reconnected within this time."""
    refused: float = 0.2
    """Like `reconnect`, for a node whose machine refuses connections because the process of the
    node has ended."""
    veto: float = 2.0
    """A node that received a heartbeat within this time votes against electing a new leader."""
    rank: float = 0.3
    """Head start per rank. The node with the second longest log waits for this time, so that the
    node with the longest log is elected first. The third node waits twice as long, and so on."""
    question: float = 0.2
    """Time between two questions to the same node."""
    answer: float = 1.0
    """Time for which an answer to a question counts."""
    stall: float = 1.0
    """If `look` was not called for this time, this process was paused. The silence of other nodes
    in that time does not count."""
    detached: float = 5.0
    """A leader hands over its streams if it has had no connection to NATS, and so has received no
    messages, for this time. Usually the leader reconnects to another NATS server sooner."""
    unserving: float = 2.0
    """A node without a connection to NATS waits this long before it stands for election, so that
    nodes with a connection are elected first."""
    yielding: float = 1.0
    """Time between two requests to take over a stream."""


class LogEnd(NamedTuple):
    """The end of a log. Of two logs, the log with the greater end has every committed record of the
    other log."""

    last_epoch: int
    end: int


@dataclass(frozen=True, slots=True)
class Opinion:
    """The answer to a question. `suspects` is True if the peer suspects the node in question. The
    other fields describe the peer's own copies of the streams that this node leads."""

    suspects: bool
    logs: Mapping[str, LogEnd] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Question:
    """Ask `peer` for its opinion of `about`."""

    peer: str
    about: str


@dataclass(frozen=True, slots=True)
class Elect:
    """Commit `transitions.failover` once, with these dead nodes."""

    dead: frozenset[str]


class Lack(enum.Enum):
    """The resource that a leader lacks, so that it cannot serve its streams."""

    NATS = "no connection to NATS"
    STORE = "the metadata store is out of reach"
    DISK = "the disk does not answer"


@dataclass(frozen=True, slots=True)
class Yield:
    """Ask `peer` to take over these streams."""

    peer: str
    streams: tuple[str, ...]
    lack: Lack

    @property
    def detached(self) -> bool:
        """True if this node receives no messages for the streams. In this case `peer` must take
        over even if it cannot ack anything until more replicas are in sync."""
        return self.lack is Lack.NATS


@dataclass(slots=True)
class _Sight:
    """The observations of another node, made by this node and by its peers."""

    heard: float
    lost: float | None = None
    """Time at which the last connection ended; None while there is a connection, and before the
    first connection."""
    is_refused: bool = False
    """True if the node's machine refuses connections, because no process listens there."""
    asked: dict[str, float] = field(default_factory=dict)
    answers: dict[str, tuple[float, Opinion]] = field(default_factory=dict)


class Elections:
    """The observations and decisions of `node`, in the process run with the number `start`. Times
    are monotonic seconds."""

    def __init__(
        self, node: str, start: int, *, now: float, patience: Patience | None = None
    ) -> None:
        self.node = node
        self.start = start
        self.is_stopping = False
        """True when this node stops. It then takes over no more streams."""
        self.stopping: Collection[str] = ()
        """Nodes that reported that they are stopping; they take over no more streams."""
        self._patience = patience or Patience()
        self._deadline = 0.0
        self._live: frozenset[str] = frozenset()
        self._absence_counts_from = now + self._patience.session
        self._sights: dict[str, _Sight] = {}
        self._began = self._looked = now
        self._due: dict[str, tuple[int, float]] = {}  # by stream: epoch, and its begin
        self._detached_since: float | None = None
        self._yields_at = now
        self._yields = 0

    # --- events --------------------------------------------------------------------

    def heard(self, node: str, now: float) -> None:
        """Record that data from `node` has arrived, over a connection that either node has
        opened."""
        sight = self._sight(node)
        sight.heard = max(sight.heard, now)
        sight.lost = None

    def lost(self, node: str, now: float, *, is_refused: bool = False) -> None:
        """Record that the connection to `node` has ended. If the connection had already ended, the
        earlier time stays.

        `is_refused` is True if the machine of the node refused the connection, so no process
        listens there.
        """
        sight = self._sight(node)
        sight.is_refused = is_refused
        if sight.lost is None:
            sight.lost = now

    def told(self, peer: str, about: str, opinion: Opinion, now: float) -> None:
        """Record the answer of `peer` to a question."""
        self._sight(about).answers[peer] = (now, opinion)

    def renewed(self, deadline: float, now: float) -> None:
        """Record the new `deadline` of this node's session after a renewal.

        If a renewal took long, the store was unreachable for a while, and other sessions may have
        ended only for this reason. In this case no session counts as ended until every node has had
        time to renew its session.
        """
        if deadline > self._deadline:
            if deadline - self._deadline > self._patience.session / 2:
                self._absence_counts_from = now + self._patience.session
            self._deadline = deadline

    def sessions(self, live: Collection[str]) -> None:
        """Record the nodes that have a session, according to the store."""
        self._live = frozenset(live)

    def look(self, now: float) -> None:
        """Detect pauses of this process. Called before each round of the questions below.

        A process that was paused, or whose machine was suspended, has received nothing for a while.
        So the silence is no evidence that other nodes are down; they may have been suspended, too.
        """
        if now - self._looked > self._patience.stall:
            for sight in self._sights.values():
                sight.heard = max(sight.heard, now)
                sight.lost = None if sight.lost is None else now
                sight.answers.clear()
            self._due.clear()
        self._looked = now

    # --- questions -----------------------------------------------------------------

    def suspects(self, node: str, now: float) -> bool:
        """Return True if this node, by its own observations, considers `node` dead."""
        sight = self._sight(node)
        patience = self._patience.refused if sight.is_refused else self._patience.reconnect
        if sight.lost is not None and now - sight.lost >= patience:
            return True
        return now - sight.heard >= self._patience.silence

    def has_session(self, now: float) -> bool:
        """Return True if no other node can have observed the end of this node's session."""
        return now < self._deadline

    def session_ends_soon(self, now: float) -> bool:
        """Return True if this node's session has ended, or ends within 2 * `veto` seconds.

        This time is enough to ask the followers, and then to observe for `veto` seconds whether
        they still fetch from this node.
        """
        return now >= self._deadline - 2 * self._patience.veto

    def in_doubt(self, nodes: Iterable[str], now: float) -> set[str]:
        """Return the nodes among `nodes` that have no session, or that send this node no
        heartbeats.

        Questions and decisions are needed only for streams whose leader is one of these nodes.
        """
        return {node for node in nodes if node not in self._live or self.suspects(node, now)}

    def questions(self, records: Iterable[StreamMetadata], now: float) -> list[Question]:
        """Return the questions to send. If this node suspects the leader of a stream, and has a
        copy of the stream, it asks the other nodes with a copy."""
        peers: dict[str, set[str]] = {}
        for record in records:
            leader = record.leader
            if leader is not None and leader != self.node and self._may_stand(record):
                peers.setdefault(leader, set()).update(record.replicas)
        found = []
        for about in sorted(peers):
            if not self.suspects(about, now):
                continue
            asked = self._sight(about).asked
            for peer in sorted(peers[about] - {about, self.node}):
                if now - asked.get(peer, 0.0) >= self._patience.question:
                    asked[peer] = now
                    found.append(Question(peer, about))
        return found

    def decide(self, record: StreamMetadata, log: LogEnd, now: float) -> Elect | None:
        """Return an election to commit if this node should now take over the stream of `record`;
        None otherwise.

        `log` is the end of this node's copy. The result stays the same until the record changes.
        """
        dead = self._dead(record, now)
        stands = self._may_stand(record) and self.has_session(now)
        if not stands or transitions.failover(record, dead, self.node) is None:
            self._due.pop(record.name, None)
            return None
        epoch, since = self._due.get(record.name, (-1, now))
        if epoch != record.leader_epoch:
            epoch, since = self._due[record.name] = (record.leader_epoch, now)
        pause = self._rank(record, dead, log, now) * self._patience.rank
        if self._detached_since is not None:
            pause += self._patience.unserving
        return Elect(dead) if now - since >= pause else None

    def stops(self, leader: Leader, now: float) -> bool:
        """Return True if this node should accept no more messages for a stream that it leads,
        because the other nodes may have elected a new leader meanwhile.

        Replicas that still fetch from this leader have not elected another one. So a leader from
        which most replicas fetch continues even while the store is unreachable.
        """
        return not self.has_session(now) and not leader.heard_by_majority(now, self._patience.veto)

    # --- handing over streams that this node cannot serve -------------------------------

    def yields(
        self,
        leaders: Iterable[tuple[str, Leader]],
        now: float,
        *,
        is_attached: bool,
        stalled: Iterable[tuple[StreamMetadata, float]] = (),
    ) -> list[Yield]:
        """Return the streams that this node leads but cannot serve, in groups, each with the peer
        to ask for a takeover.

        A node cannot serve its streams in three cases: it has had no connection to NATS for a while
        (`is_attached`); it cannot reach the store, and acks of a stream wait for a change of its
        ISR; or the disk has blocked one of its streams for as long as a session lasts.

        `stalled` contains the records of streams that this node leads, each with the seconds for
        which the disk has blocked the stream. The node asks the peers in sync in turn, until the
        record of the stream changes.
        """
        if is_attached:
            self._detached_since = None
        elif self._detached_since is None:
            self._detached_since = now
        since = self._detached_since
        lacks: dict[str, tuple[StreamMetadata, Lack]] = {
            record.name: (record, Lack.DISK)
            for record, seconds in stalled
            if seconds >= self._patience.session
        }
        detached = since is not None and now - since >= self._patience.detached
        has_all = not detached and self.has_session(now)
        if now < self._yields_at or (has_all and not lacks):
            return []
        self._yields_at = now + self._patience.yielding
        self._yields += 1
        for name, leader in () if has_all else leaders:
            if not leader.resigned and (detached or leader.needs_change(now)):
                lacks[name] = (leader.record, Lack.NATS if detached else Lack.STORE)
        wanted: dict[tuple[str, Lack], list[str]] = {}
        for name, (record, lack) in lacks.items():
            peers = [
                one
                for one in record.isr
                if one != self.node and one not in self.stopping and not self.suspects(one, now)
            ]
            if peers:
                wanted.setdefault((peers[self._yields % len(peers)], lack), []).append(name)
        return [Yield(peer, tuple(names), lack) for (peer, lack), names in wanted.items()]

    def takes_over(
        self, record: StreamMetadata, asker: str, now: float, *, is_attached: bool, detached: bool
    ) -> Elect | None:
        """Return an election to commit if this node should take over the stream from its leader
        `asker`, which has requested the takeover; None otherwise.

        The leader's own request is sufficient to depose it. But this node must be able to serve the
        stream better than the leader.
        """
        if record.leader != asker or asker == self.node or self.node not in record.isr:
            return None
        if not (is_attached and self._may_stand(record) and self.has_session(now)):
            return None
        dead = frozenset({asker})
        after = transitions.failover(record, dead, self.node)
        if after is None or not (detached or after.can_commit):
            return None
        return Elect(dead)

    # --- rules -----------------------------------------------------------------------

    def _may_stand(self, record: StreamMetadata) -> bool:
        return (
            not self.is_stopping
            and not record.deleted
            and record.must_keep(self.node)
            and record.starts.get(self.node) == self.start
        )

    def _dead(self, record: StreamMetadata, now: float) -> frozenset[str]:
        """Return the replicas that the election treats as dead, and does not wait for."""
        others = {*record.isr, record.leader} - {self.node, None}
        return frozenset(
            node
            for node in others
            if node is not None
            and (self._is_deserted(node, record, now) or self._is_absent(node, now))
        )

    def _is_deserted(self, node: str, record: StreamMetadata, now: float) -> bool:
        """Return True if most replicas receive nothing from `node`; `node` itself does not count.

        Because of this rule, one broken connection or one isolated node cannot depose a leader.
        """
        if not self.suspects(node, now):
            return False
        sight = self._sight(node)
        silent = 1
        for peer in record.replicas:
            at, opinion = sight.answers.get(peer, (0.0, None))
            if opinion is None or peer in (node, self.node):
                continue
            silent += opinion.suspects and now - at < self._patience.answer
        return 2 * silent > len(record.replicas)

    def _is_absent(self, node: str, now: float) -> bool:
        """Return True if the session of `node` has ended, unless the store's own outage explains
        the end."""
        return (
            node not in self._live
            and now >= self._absence_counts_from
            and now - self._sight(node).heard >= self._patience.veto
        )

    def _rank(self, record: StreamMetadata, dead: frozenset[str], log: LogEnd, now: float) -> int:
        """Return the number of other nodes that are better candidates.

        The node with the longest log goes first, because its election loses the fewest uncommitted
        records. Among equal logs, or if the ends of the logs are not known, the first replica goes
        first.
        """
        standing = [node for node in record.isr if node not in dead] or record.eligible
        order = {node: -index for index, node in enumerate(record.replicas)}
        mine = (log, order[self.node])
        answers = self._sight(record.leader).answers if record.leader is not None else {}
        rank = 0
        for node in standing:
            if node in (self.node, *self.stopping) or node in dead or node not in self._live:
                continue
            at, opinion = answers.get(node, (0.0, None))
            known = None
            if opinion is not None and now - at < self._patience.answer:
                known = opinion.logs.get(record.name)
            elif self.suspects(node, now):
                continue
            rank += (log if known is None else known, order[node]) > mine
        return rank

    def _sight(self, node: str) -> _Sight:
        sight = self._sights.get(node)
        if sight is None:
            sight = self._sights[node] = _Sight(self._began)
        return sight
