"""When this node takes over the lead of a stream, and when it gives its own up.

One `Elections` exists per life of a node. Events tell it what the node hears of the others; it is
asked, about ten times a second, what follows from that:

    heard(node)   lost(node)   told(peer, about, opinion)        of the other nodes
    renewed(deadline)   sessions(live)                             of the metadata store
    look(now)   questions(records)   decide(record, log)           what to do
    stops(leader)   yields(leaders, stalled)                       what to stop, or to hand over
    takes_over(record, asker)                                      what another node hands over

None of this is needed for safety. A leader that is deposed by mistake commits nothing more, and
what it had committed is in every log that can be elected (`transitions.failover`). What is decided
here is how soon a dead leader is replaced, and that a living one is left alone.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from liftlog.cluster import transitions
from liftlog.cluster.leading import Leader
from liftlog.cluster.record import StreamRecord


@dataclass(frozen=True, slots=True)
class Patience:
    """How long what is waited for, in seconds."""

    session: float = 15.0
    """A node without a renewal for so long has no session."""
    silence: float = 2.0
    """A connected node that has sent no byte for so long is suspected. Nodes that are connected
    send something twice a second."""
    reconnect: float = 0.5
    """So long a lost connection may take to come back."""
    refused: float = 0.2
    """The same, of a node whose machine says that its process has ended."""
    veto: float = 2.0
    """Who heard a node so recently does not believe that its session has ended."""
    rank: float = 0.3
    """The node with the second longest log waits so long for the one with the longest, and so
    on."""
    question: float = 0.2
    """Between two questions to the same node."""
    answer: float = 1.0
    """So long an answer is believed."""
    stall: float = 1.0
    """A node that has not looked for so long knows nothing of the time between."""
    detached: float = 5.0
    """A leader that has received nothing from NATS for so long, for lack of a connection, hands
    over. A NATS server that dies is replaced by another one sooner than that."""
    unserving: float = 2.0
    """So long a node without NATS waits for one that has a connection."""
    yielding: float = 1.0
    """Between two requests to take over a stream."""


class LogEnd(NamedTuple):
    """Where a log ends. The greater one has everything committed that the other one has."""

    last_epoch: int
    end: int


@dataclass(frozen=True, slots=True)
class Opinion:
    """What a node says of another one, `suspects` for short, and of its own copies of the streams
    that the other one leads."""

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
    """What a leader lacks that cannot serve its streams."""

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
        """They get no messages here: `peer` is to take over even if none is acked until more
        replicas are in sync."""
        return self.lack is Lack.NATS


@dataclass(slots=True)
class _Sight:
    """What is known of another node first hand, and what others have said of it."""

    heard: float
    lost: float | None = None
    """Since when there has been no connection; None while there is one, or none was made yet."""
    is_refused: bool = False
    """No process listens there."""
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
        """This node takes over nothing any more."""
        self.stopping: Collection[str] = ()
        """The nodes that take over nothing any more, as they have told."""
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
        """A byte of `node` has come, over a connection in either direction."""
        sight = self._sight(node)
        sight.heard = max(sight.heard, now)
        sight.lost = None

    def lost(self, node: str, now: float, *, is_refused: bool = False) -> None:
        """The connection to `node` has ended; no earlier end is forgotten by this. `is_refused`: no
        process listens where it did."""
        sight = self._sight(node)
        sight.is_refused = is_refused
        if sight.lost is None:
            sight.lost = now

    def told(self, peer: str, about: str, opinion: Opinion, now: float) -> None:
        """The answer to a question."""
        self._sight(about).answers[peer] = (now, opinion)

    def renewed(self, deadline: float, now: float) -> None:
        """The deadline of the own session, which each renewal moves.

        If that took long, the store was out of reach, and other sessions may have ended for that
        reason alone: none is missed before all had the time to come back.
        """
        if deadline > self._deadline:
            if deadline - self._deadline > self._patience.session / 2:
                self._absence_counts_from = now + self._patience.session
            self._deadline = deadline

    def sessions(self, live: Collection[str]) -> None:
        """The nodes that have a session, as the store tells."""
        self._live = frozenset(live)

    def look(self, now: float) -> None:
        """Called before the questions below, as often as they are asked.

        A process that was stopped, or a machine that slept, has heard no one for a while. That says
        nothing about the others, who may have slept as well.
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
        """Whether this node, by itself, takes `node` for dead."""
        sight = self._sight(node)
        patience = self._patience.refused if sight.is_refused else self._patience.reconnect
        if sight.lost is not None and now - sight.lost >= patience:
            return True
        return now - sight.heard >= self._patience.silence

    def has_session(self, now: float) -> bool:
        """Whether no other node can have seen the own session end."""
        return now < self._deadline

    def session_ends_soon(self, now: float) -> bool:
        """Whether the own session has ended, or does before followers that are asked to can have
        shown for `veto` that they are there."""
        return now >= self._deadline - 2 * self._patience.veto

    def in_doubt(self, nodes: Iterable[str], now: float) -> set[str]:
        """Of these nodes, those that this one does not hear, or that have no session: only about
        streams that one of them leads is anything to be asked or decided."""
        return {node for node in nodes if node not in self._live or self.suspects(node, now)}

    def questions(self, records: Iterable[StreamRecord], now: float) -> list[Question]:
        """What to ask whom: of each suspected leader of a stream with a copy here, the other nodes
        that have one."""
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

    def decide(self, record: StreamRecord, log: LogEnd, now: float) -> Elect | None:
        """Whether to take over the stream of this record now. `log` is where its copy here ends.

        The same answer comes again, until the record has changed.
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
        """Whether to take no more messages for a stream that is led here: another node may have
        been elected since, because no one sees this one any longer.

        While most replicas ask, they have elected no one. So a store that is out of reach stops no
        leader.
        """
        return not self.has_session(now) and not leader.heard_by_majority(now, self._patience.veto)

    # --- handing over in need ----------------------------------------------------------

    def yields(
        self,
        leaders: Iterable[tuple[str, Leader]],
        now: float,
        *,
        is_attached: bool,
        stalled: Iterable[tuple[StreamRecord, float]] = (),
    ) -> list[Yield]:
        """Whom to ask to take over which of the streams that are led here, because this node cannot
        serve them: it is not `is_attached` to NATS for a while; or it does not reach the store, and
        acks of a stream wait for a change of its ISR; or it waits for its disk for as long as
        others would wait for a node that hangs.

        `stalled` are streams that this node leads by their records, and for how many seconds each
        has waited for the disk. The peers in sync are asked in turn, until the record of the stream
        has changed.
        """
        if is_attached:
            self._detached_since = None
        elif self._detached_since is None:
            self._detached_since = now
        since = self._detached_since
        lacks: dict[str, tuple[StreamRecord, Lack]] = {
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
        self, record: StreamRecord, asker: str, now: float, *, is_attached: bool, detached: bool
    ) -> Elect | None:
        """Whether to take over the stream that `asker` leads and hands over. Its own word is enough
        to depose it; this node must be able to serve the stream better."""
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

    def _may_stand(self, record: StreamRecord) -> bool:
        return (
            not self.is_stopping
            and not record.deleted
            and record.must_keep(self.node)
            and record.starts.get(self.node) == self.start
        )

    def _dead(self, record: StreamRecord, now: float) -> frozenset[str]:
        """The replicas that are not waited for any longer."""
        others = {*record.isr, record.leader} - {self.node, None}
        return frozenset(
            node
            for node in others
            if node is not None
            and (self._is_deserted(node, record, now) or self._is_absent(node, now))
        )

    def _is_deserted(self, node: str, record: StreamRecord, now: float) -> bool:
        """Most replicas do not hear it; it does not count itself. So one broken line, or one node
        that hears no one, deposes no leader."""
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
        """Its session has ended, as far as that says something of the node."""
        return (
            node not in self._live
            and now >= self._absence_counts_from
            and now - self._sight(node).heard >= self._patience.veto
        )

    def _rank(self, record: StreamRecord, dead: frozenset[str], log: LogEnd, now: float) -> int:
        """How many others should rather lead: the longest log gives up least of what was not
        committed yet. Of equal logs, or where nothing is known, the first replica goes first."""
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
