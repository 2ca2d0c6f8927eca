"""Nodes with one replicated stream in simulated time: checks which node becomes the leader, and
which must not.

`liftlog.cluster.election` decides. This module simulates processes that die, hang and start, lines
that lose data in one direction, and a metadata store that one node or all nodes cannot reach, while
its sessions expire. No records are copied here. `replica_world` checks that an elected node has all
acked records.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from liftlog.cluster import transitions as t
from liftlog.cluster.election import (
    Elect,
    Elections,
    LogEnd,
    Opinion,
    Patience,
    Question,
    Yield,
)
from liftlog.cluster.followers import FetchRequest
from liftlog.cluster.leading import Leader
from liftlog.cluster.record import Change, StreamMetadata

TICK = 0.05
PATIENCE = Patience()
SESSION = PATIENCE.session
NOTICE = 0.2
"""Seconds within which every node that reaches the store gets the newest record."""
WAKING = 0.3
"""After a suspension of the machine, its processes continue one after the other, within this
time."""
QUICK = 1.6
"""A dead leader is replaced within this number of seconds, and a hanging leader this long after its
silence."""


class Misjudged(AssertionError):
    """An election that was wrong, or a missing election."""


@dataclass
class Node:
    name: str
    start: int = 1
    up: bool = True
    hung_until: float = 0.0
    stopped: bool = False
    """True if the node leads according to the record, but accepts no more messages."""
    store: bool = True
    """True if the node reaches the store."""
    attached: bool = True
    """True if the node has a connection to NATS."""
    view: StreamMetadata = field(kw_only=True)
    elections: Elections = field(kw_only=True)
    log: LogEnd = LogEnd(1, 10)
    leader: Leader | None = None
    asked: dict[str, float] = field(default_factory=dict)
    """Time of the last request from each other node to this node as the leader."""
    renews: float = 0.0
    sent: float = 0.0
    inbox: list[Callable[[float], None]] = field(default_factory=list)


class ElectionWorld:
    def __init__(
        self, seed: int, *, replicas: int = 3, elections: type[Elections] = Elections
    ) -> None:
        self.random = random.Random(seed)
        self.now = 100.0
        self.make = elections
        self.stats: Counter[str] = Counter()
        names = tuple("abcde"[:replicas])
        self.record = t.create("s", "i", {}, names, starts=dict.fromkeys(names, 1))
        self.changed = 0.0
        self.expiry: dict[str, float] = {}
        self.store_up = True
        self.cuts: set[tuple[str, str]] = set()
        """Lines that lose all data: (from, to)."""
        self.calm_since = 0.0
        """Time of the last fault or repair."""
        self.fault = ""
        self.slept_at = self.awake_at = 0.0
        """Begin of the last suspension of the machine, and the time at which all processes run
        again."""
        self.gone_since: float | None = None
        self.nats_fails = False
        """True if `break_one` may also interrupt the NATS connections of nodes."""
        self.detached_since = self.now
        self.nodes = {
            name: Node(name, view=self.record, elections=self._elections(name, 1)) for name in names
        }

    def _elections(self, name: str, start: int) -> Elections:
        return self.make(name, start, now=self.now, patience=PATIENCE)

    # --- time ------------------------------------------------------------------------

    def run(self, seconds: float, act: Callable[[], None] | None = None) -> None:
        """Run for this time. `act` may cause faults before each tick."""
        for _ in range(round(seconds / TICK)):
            self.now += TICK
            if act is not None:
                act()
            for node in self.nodes.values():
                if node.up and node.hung_until <= self.now:
                    self._turn(node)
                    self._check_stopped(node)
            self._check_leader()

    def _turn(self, node: Node) -> None:
        now, elections = self.now, node.elections
        inbox, node.inbox = node.inbox, []
        if self.random.random() < 0.5:  # an event loop may run timers before it reads
            elections.look(now)
        for letter in inbox:
            letter(now)
        elections.look(now)
        self._use_store(node)
        if now - node.sent >= 0.5:
            node.sent = now
            for other in self.nodes:
                self._send(node.name, other, _hearing(self.nodes[other], node.name))
        self._lead(node)
        leading = [] if node.leader is None or node.stopped else [("s", node.leader)]
        for request in elections.yields(leading, now, is_attached=node.attached):
            self._hand_over(node, request)
        for question in elections.questions([node.view], now):
            self._ask(node, question)
        claim = elections.decide(node.view, node.log, now)
        if claim is not None and self._reaches_store(node):
            self._elect(node, claim)

    def _use_store(self, node: Node) -> None:
        if not self._reaches_store(node):
            return
        if self.now >= node.renews:
            node.renews = self.now + SESSION / 5
            self.expiry[node.name] = self.now + SESSION
            node.inbox.append(_renewal(node, self.now))  # the answer arrives a moment later
        node.elections.sessions([one for one, end in self.expiry.items() if end > self.now])
        node.elections.stopping = {
            one.name for one in self.nodes.values() if one.up and one.elections.is_stopping
        }
        if node.view.version < self.record.version and (
            self.now - self.changed >= NOTICE or self.random.random() < 0.2
        ):
            node.view = self.record
        if node.view.starts[node.name] != node.start:
            self._put(t.register(self.record, node.name, node.start, clean=True))
            node.view = self.record

    def _put(self, record: StreamMetadata | None) -> None:
        if record is not None:
            self.record = record
            self.changed = self.now

    def _reaches_store(self, node: Node) -> bool:
        return self.store_up and node.store

    # --- messages ----------------------------------------------------------------------

    def _send(self, source: str, target: str, letter: Callable[[float], None]) -> None:
        node = self.nodes[target]
        if source != target and node.up and (source, target) not in self.cuts:
            node.inbox.append(letter)

    def _ask(self, node: Node, question: Question) -> None:
        peer, about = self.nodes[question.peer], question.about

        def asked(now: float) -> None:
            opinion = Opinion(
                peer.elections.suspects(about, now),
                {"s": peer.log} if peer.view.leader == about else {},
            )

            def answered(at: float) -> None:
                node.elections.heard(peer.name, at)
                node.elections.told(peer.name, about, opinion, at)

            self._send(peer.name, node.name, answered)

        self._send(node.name, peer.name, asked)

    def _hand_over(self, node: Node, request: Yield) -> None:
        """Let the leader ask a peer to take over. The leader gets the answer of the peer."""
        peer = self.nodes[request.peer]
        if node.attached and node.elections.has_session(self.now):
            raise Misjudged(f"{node.name} hands over, and lacks nothing")

        def asked(now: float) -> None:
            claim = peer.elections.takes_over(
                peer.view,
                node.name,
                now,
                is_attached=peer.attached,
                detached=request.detached,
            )
            if claim is None or not self._reaches_store(peer) or peer.view != self.record:
                return
            after = t.failover(self.record, claim.dead, peer.name)
            if not peer.attached or after is None:
                raise Misjudged(f"{peer.name} takes over what it cannot serve: {claim}")
            if self.record.leader != node.name or self.record.starts[node.name] != node.start:
                raise Misjudged(f"{peer.name} deposes another one than {node.name}")
            if node.attached and not after.can_commit and self.record.can_commit:
                raise Misjudged(f"{peer.name} ends the acks of {node.name}: {after}")
            self.stats["handed over"] += 1
            self._put(after)
            peer.view = after

            def answered(at: float) -> None:
                node.elections.heard(peer.name, at)
                if node.view.version < after.version:
                    node.view = after

            self._send(peer.name, node.name, answered)

        self._send(node.name, peer.name, asked)

    # --- leading -----------------------------------------------------------------------

    def _lead(self, node: Node) -> None:
        """Lead: followers that reach the leader send requests, and the leader changes the ISR
        accordingly."""
        view, now = node.view, self.now
        if view.leader != node.name or view.starts[node.name] != node.start:
            node.leader, node.stopped = None, False
            leader = self.nodes.get(view.leader or "")
            if leader is not None and leader is not node:
                self._fetch(node, leader)
            return
        if node.leader is None or node.leader.epoch != view.leader_epoch:
            node.log = LogEnd(view.leader_epoch, node.log.end)
            node.leader = Leader(
                view, node.name, (), log_end=0, durable_end=0, high_watermark=0, now=now
            )
        node.leader.adopt(view)
        node.log = LogEnd(view.leader_epoch, node.log.end + self.random.randrange(3))
        node.stopped = node.elections.stops(node.leader, now)
        if not self._reaches_store(node):
            silent = [one for one in view.isr if one != node.name]
            silent = [one for one in silent if node.elections.suspects(one, now)]
            for one in silent:
                node.leader.lost(one)
            after = t.fence(view, silent)
            node.leader.pending = None if after is None else Change(view, after)
        if not self._reaches_store(node) or view.version != self.record.version:
            return
        for name in view.replicas:
            silent = name != node.name and node.elections.suspects(name, now)
            if silent and name in view.isr:
                self._put(t.shrink(view, name))
                return
            other = self.nodes[name]
            fit = other.up and view.starts[name] == other.start and other.hung_until <= now
            if fit and not silent and name not in view.isr:
                self._put(t.expand(view, name, other.start))
                return

    def _fetch(self, node: Node, leader: Node) -> None:
        epoch, start = node.view.leader_epoch, node.start

        def fetched(now: float) -> None:
            if leader.leader is not None:
                leader.asked[node.name] = now
                leader.leader.fetched(FetchRequest(node.name, start, epoch, 0, 0), now)

        self._send(node.name, leader.name, fetched)
        if (
            (leader.name, node.name) not in self.cuts
            and leader.up
            and leader.hung_until <= self.now
        ):
            behind = max(0, leader.log.end - self.random.randrange(5))
            node.log = max(node.log, LogEnd(leader.log.last_epoch, behind))

    def _elect(self, node: Node, claim: Elect) -> None:
        before = self.record
        if node.view.version != before.version:
            self.stats["late"] += 1
            node.view = before
            return
        self._check_claim(node, claim)
        after = t.failover(before, claim.dead, node.name)
        assert after is not None
        self.stats["elections"] += 1
        self._put(after)
        node.view = after

    # --- what must hold ------------------------------------------------------------------

    def _check_claim(self, node: Node, claim: Elect) -> None:
        now, leader = self.now, self.nodes.get(self.record.leader or "")
        if not node.elections.has_session(now):
            raise Misjudged(f"{node.name} elects itself without a session")
        if leader is None:
            return
        # After a suspension of all processes without another fault, all nodes are equally good.
        slept = self.slept_at == self.calm_since and now >= self.awake_at - WAKING
        fine = leader.up and leader.hung_until <= (self.awake_at if slept else now)
        hears = [
            one
            for one in self.record.replicas
            if one != leader.name and (leader.name, one) not in self.cuts and self.nodes[one].up
        ]
        heard_by_most = 2 * (len(hears) + 1) > len(self.record.replicas)
        calm = now - self.calm_since
        if fine and heard_by_most and self._reaches_store(leader) and calm > 1.0:
            raise Misjudged(f"{node.name} deposes {leader.name}, which {hears} hear: {claim}")
        if fine and node.name in hears and calm > 1.0:
            raise Misjudged(f"{node.name} deposes {leader.name}, which it hears: {claim}")
        if self.nodes[node.name].elections.is_stopping:
            raise Misjudged(f"{node.name} is elected, and stops")
        standing = [
            one
            for one in self.record.isr
            if one not in claim.dead and not self.nodes[one].elections.is_stopping
        ] or [node.name]
        longest = max(standing, key=lambda one: self.nodes[one].log)
        if self.fault in ("killed", "hung") and self.nodes[longest].log > node.log:
            raise Misjudged(f"{node.name} is elected with {node.log}, {longest} has more")

    def _check_stopped(self, node: Node) -> None:
        """Check that a leader accepts no more messages when its session has ended and most replicas
        send it no requests, because they may have elected another leader."""
        if node.leader is None or node.stopped or self.expiry.get(node.name, 0.0) > self.now:
            return
        replicas = node.leader.record.replicas
        asking = [
            one for one in replicas if self.now - node.asked.get(one, 0.0) <= PATIENCE.veto + TICK
        ]
        if 2 * (len(asking) + 1) <= len(replicas):
            raise Misjudged(f"{node.name} goes on without a session, and only {asking} ask it")

    def _check_leader(self) -> None:
        """Check that there is a new leader in time if there was none and no further fault
        occurs."""
        leader = self.nodes.get(self.record.leader or "")
        if leader is not None and leader.up and leader.hung_until <= self.now:
            self.gone_since = None
            self._check_served(leader)
            return
        if self.gone_since is None:
            self.gone_since = self.now
        gone = self.now - max(self.gone_since, self.calm_since)
        bound = {"killed": QUICK, "hung": PATIENCE.silence + QUICK}.get(self.fault, 2 * SESSION + 5)
        if gone > bound and self._can_be_elected():
            raise Misjudged(f"no leader for {gone:.1f} s ({self.fault}): {self.record}")

    def _check_served(self, leader: Node) -> None:
        """Check that a leader without NATS hands over in time to a node that can serve the
        stream."""
        if leader.attached or leader.stopped:
            self.detached_since = self.now
        waited = self.now - max(self.detached_since, self.calm_since, self.changed)
        if waited <= PATIENCE.detached + len(self.record.isr) * PATIENCE.yielding + 1:
            return
        for name in self.record.isr:
            peer = self.nodes[name]
            lines = {(leader.name, name), (name, leader.name)}
            fit = peer.up and peer.hung_until <= self.now and peer.attached
            fit = fit and self._reaches_store(peer) and not lines & self.cuts
            # Not a node that was disconnected from the store, because it may be about to renew its
            # session.
            if name != leader.name and fit and peer.elections.has_session(self.now):
                raise Misjudged(f"{leader.name} has no NATS for {waited:.1f} s, and {name} has")

    def _can_be_elected(self) -> bool:
        gone = {one.name for one in self.nodes.values() if not one.up or one.hung_until > self.now}
        return any(
            t.failover(self.record, gone, one.name) is not None
            for one in self.nodes.values()
            if one.name not in gone and self._reaches_store(one)
        )

    # --- faults --------------------------------------------------------------------------

    def break_one(self) -> None:
        """Cause or repair a random fault, once in a few seconds."""
        if self.random.random() > TICK / 4:
            return
        node = self.random.choice(list(self.nodes.values()))
        faults: list[Callable[[Node], None]] = [
            self.kill,
            self.restart,
            self.restart,
            self.hang,
            self.cut,
            self.cut_store,
            self.lose_store,
            self.stall,
            self.heal,
        ]
        if self.nats_fails:
            faults += [self.detach, self.detach]
        chosen = self.random.choice(faults)
        self.calm_since, self.fault = self.now, ""
        self.stats[chosen.__name__] += 1
        chosen(node)

    def kill(self, node: Node) -> None:
        """Kill the process, possibly with its machine. Connected nodes detect the end of their
        connections."""
        if not node.up:
            return
        node.up, node.leader, node.inbox = False, None, []
        refused = self.random.random() < 0.5
        for name in self.nodes:
            self._send(node.name, name, _ending(self.nodes[name], node.name, refused))

    def restart(self, node: Node) -> None:
        if node.up:
            return
        node.up, node.start = True, node.start + 1
        node.elections = self._elections(node.name, node.start)
        node.renews = node.hung_until = 0.0

    def hang(self, node: Node) -> None:
        node.hung_until = self.now + self.random.choice((0.5, 3, 20, 40))

    def cut(self, node: Node) -> None:
        other = self.random.choice([one for one in self.nodes if one != node.name])
        self.cuts.add((node.name, other))
        if self.random.random() < 0.5:
            self.cuts.add((other, node.name))

    def cut_store(self, node: Node) -> None:
        node.store = not node.store

    def detach(self, node: Node) -> None:
        node.attached = not node.attached

    def lose_store(self, _: Node) -> None:
        self.store_up = not self.store_up

    def stall(self, _: Node) -> None:
        """Suspend the machine: all processes hang for the same time."""
        until = self.now + self.random.choice((1.5, 5, 30))
        self.slept_at, self.awake_at = self.now, until + WAKING
        for node in self.nodes.values():
            node.hung_until = max(node.hung_until, until + self.random.random() * WAKING)

    def heal(self, _: Node) -> None:
        self.cuts.clear()
        self.store_up = True
        for node in self.nodes.values():
            node.store = True
            node.hung_until = min(node.hung_until, self.now)


def _hearing(target: Node, source: str) -> Callable[[float], None]:
    return lambda now: target.elections.heard(source, now)


def _ending(target: Node, source: str, refused: bool) -> Callable[[float], None]:
    return lambda now: target.elections.lost(source, now, is_refused=refused)


def _renewal(node: Node, sent: float) -> Callable[[float], None]:
    return lambda now: node.elections.renewed(sent + 0.8 * SESSION, now)
