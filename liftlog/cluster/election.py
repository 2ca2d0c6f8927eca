"""Decides when this node takes over the lead of a stream, and when it resigns a lead of its own.

One `Elections` exists per life of a node. Events report what this node observes of the others; the
caller asks about ten times a second what follows from them:

    heard(node)   lost(node)   told(peer, about, opinion)        events of the other nodes
    renewed(deadline)   sessions(live)                             events of the metadata store
    look(now)   questions(records)   decide(record, log)           what to do
    stops(leader)   yields(leaders, stalled)                       what to stop, or to hand over
    takes_over(record, asker)                                      what to accept from another node

Safety does not depend on this module. A leader that is deposed by mistake commits nothing more, and
every log that can be elected has all that it committed (`transitions.failover`). The rules here
decide how soon a dead leader is replaced, and they protect a live one from being replaced.
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
    """The session of a node ends if the node has not renewed it for this long."""
    silence: float = 2.0
    """A connected node that has sent no byte for this long is suspected. Connected nodes send
    something twice a second."""
    reconnect: float = 0.5
    """A node whose connection was lost is suspected if it has not reconnected within this time."""
    refused: float = 0.2
    """The same limit for a node whose machine refuses connections, because its process has
    ended."""
    veto: float = 2.0
    """A node that received a heartbeat within this time votes against electing a new leader."""
    rank: float = 0.3
    """Head start per rank: the node with the second longest log waits this long for the one with
    the longest, the third twice as long, and so on."""
    question: float = 0.2
    """Time between two questions to the same node."""
    answer: float = 1.0
    """An answer counts for this long."""
    stall: float = 1.0
    """If `look` was not called for this long, this process was paused, and the silence of the
    others in that time does not count."""
    detached: float = 5.0
    """A leader that has had no connection to NATS for this long, and so no messages, hands over. A
    dead NATS server is usually replaced by another one sooner."""
    unserving: float = 2.0
    """A node without a connection to NATS lets nodes that have one stand first for this long."""
    yielding: float = 1.0
    """Time between two requests to take over a stream."""


class LogEnd(NamedTuple):
    """Where a log ends. A greater end has every committed record that a smaller one has."""

    last_epoch: int
    end: int


@dataclass(frozen=True, slots=True)
class Opinion:
    """The answer to a question: `suspects` says whether the peer suspects the other node, the rest
    describes the peer's own copies of the streams that this other node leads."""

    suspects: bool
    logs: Mapping[str, LogEnd] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Question:
    """Ask `peer` for its opinion of `about`."""

    peer: str
    about: str


@dataclass(frozen=True, slots=True)
class Elect:
    """Commit `transitions.failover` with these dead nodes, once."""

    dead: frozenset[str]


class Lack(enum.Enum):
    """The resource whose absence keeps a leader from serving its streams."""

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
        """True if the streams get no messages here: `peer` is to take over even if it can ack
        nothing until more replicas are in sync."""
        return self.lack is Lack.NATS


@dataclass(slots=True)
class _Sight:
    """Observations of another node: those of this node, and those that the others reported."""

    heard: float
    lost: float | None = None
    """Time since which there is no connection; None while there is one, or before the first one."""
    is_refused: bool = False
    """True if its machine refuses connections: no process listens there."""
    asked: dict[str, float] = field(default_factory=dict)
    answers: dict[str, tuple[float, Opinion]] = field(default_factory=dict)


class Elections:
    """The view of `node`, in the life that began with `start`. Times are monotonic seconds."""

    def __init__(
        self, node: str, start: int, *, now: float, patience: Patience | None = None
    ) -> None:
        self.node = node
        self.start = start
        self.is_stopping = False
        """Set when this node stops: it takes over no more streams."""
        self.stopping: Collection[str] = ()
        """Nodes that reported that they are stopping; they take over no more streams."""
        self._patience = patience or Patience()
        self._deadline = 0.0
        self._live: frozenset[str] = frozenset()
        self._absence_counts_from = now + self._patience.session
        self._sights: dict[str, _Sight] = {}
        self._began = self._looked = now
        self._due: dict[str, tuple[int, float]] = {}  # by stream: the epoch, and since when
        self._detached_since: float | None = None
        self._yields_at = now
        self._yields = 0

    # --- events --------------------------------------------------------------------

    def heard(self, node: str, now: float) -> None:
        """Note that a byte from `node` has arrived, over a connection in either direction."""
        sight = self._sight(node)
        sight.heard = max(sight.heard, now)
        sight.lost = None

    def lost(self, node: str, now: float, *, is_refused: bool = False) -> None:
        """Note that the connection to `node` has ended. The time of an earlier end stays as it is.

        `is_refused`: the machine of the node refused the connection, so no process listens there.
        """
        sight = self._sight(node)
        sight.is_refused = is_refused
        if sight.lost is None:
            sight.lost = now

    def told(self, peer: str, about: str, opinion: Opinion, now: float) -> None:
        """Note the answer of `peer` to a question."""
        self._sight(about).answers[peer] = (now, opinion)

    def renewed(self, deadline: float, now: float) -> None:
        """Note the new `deadline` of this node's session after a renewal.

        If the renewal took long, the store was unreachable, and other sessions may have ended for
        that reason alone. No session counts as ended before every node had time to renew its own.
        """
        if deadline > self._deadline:
            if deadline - self._deadline > self._patience.session / 2:
                self._absence_counts_from = now + self._patience.session
            self._deadline = deadline

    def sessions(self, live: Collection[str]) -> None:
        """Note the nodes that have a session, according to the store."""
        self._live = frozenset(live)

    def look(self, now: float) -> None:
        """Detect pauses of this process. Called before each round of the questions below.

        A process that was paused, or a machine that slept, has received nothing for a while. This
        says nothing about the others, which may have slept too.
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
        """Return True if no other node can have seen this node's session end."""
        return now < self._deadline

    def session_ends_soon(self, now: float) -> bool:
        """Return True if this node's session has ended, or ends within 2 * `veto` seconds.

        That is the time in which followers can be asked, and can then show for `veto` seconds that
        they still fetch.
        """
        return now >= self._deadline - 2 * self._patience.veto

    def in_doubt(self, nodes: Iterable[str], now: float) -> set[str]:
        """Return those of `nodes` that this node does not receive heartbeats from or that have no
        session.

        Only streams that one of them leads need questions or decisions.
        """
        return {node for node in nodes if node not in self._live or self.suspects(node, now)}

    def questions(self, records: Iterable[StreamMetadata], now: float) -> list[Question]:
        """Return the questions to send: about each suspected leader of a stream with a copy here,
        to the other nodes that have a copy."""
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
        """Return an election to commit if this node should take over the stream of `record` now,
        else None.

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
        """Return True if this node should take no more messages for a stream that it leads, because
        the other nodes may have elected a new leader meanwhile.

        Replicas that still fetch from this leader have not elected another one. So a leader that
        most replicas fetch from continues even while the store is unreachable.
        """
        return not self.has_session(now) and not leader.heard_by_majority(now, self._patience.veto)

    # --- handing over in need ----------------------------------------------------------

    def yields(
        self,
        leaders: Iterable[tuple[str, Leader]],
        now: float,
        *,
        is_attached: bool,
        stalled: Iterable[tuple[StreamMetadata, float]] = (),
    ) -> list[Yield]:
        """Return which peers to ask to take over which of the streams that this node leads but
        cannot serve.

        A node cannot serve its streams if it has not been attached to NATS (`is_attached`) for a
        while; if it cannot reach the store while acks of a stream wait for a change of its ISR; or
        if it has been blocked on its disk for as long as others would wait for a node that hangs.

        `stalled` maps streams that this node leads by their records to the seconds for which each
        has been blocked on the disk. The peers in sync are asked in turn, until the record of the
        stream changes.
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
        """Return True if this node should take over the stream that `asker` leads and hands over.

        The request of the leader itself is enough to depose it, but this node must be able to serve
        the stream better.
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
        """Return the replicas that the election need not wait for."""
        others = {*record.isr, record.leader} - {self.node, None}
        return frozenset(
            node
            for node in others
            if node is not None
            and (self._is_deserted(node, record, now) or self._is_absent(node, now))
        )

    def _is_deserted(self, node: str, record: StreamMetadata, now: float) -> bool:
        """Return True if most replicas receive nothing from `node`, not counting `node` itself.

        So neither one broken connection nor one isolated node deposes a leader.
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
        """Return True if the session of `node` has ended and this is evidence that the node is
        down."""
        return (
            node not in self._live
            and now >= self._absence_counts_from
            and now - self._sight(node).heard >= self._patience.veto
        )

    def _rank(self, record: StreamMetadata, dead: frozenset[str], log: LogEnd, now: float) -> int:
        """Return how many other nodes are better candidates.

        The longest log loses the fewest records that were not committed yet, so it goes first.
        Among equal logs, or if nothing is known about them, the first replica goes first.
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
