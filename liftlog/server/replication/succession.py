"""This node's part in the elections of leaders. The node takes part for each stream of which it has
a copy.

`liftlog.cluster.election` decides. This module passes the silences of nodes and the content of the
store to `election`. It then carries out the decisions: it asks other nodes, and changes metadata.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable
from typing import Any, Protocol

from liftlog.cluster import transitions
from liftlog.cluster.election import Elect, Elections, LogEnd, Opinion, Question
from liftlog.cluster.leading import Leader
from liftlog.cluster.record import Change, StreamMetadata
from liftlog.cluster.store import NodeSession
from liftlog.errors import LiftlogError
from liftlog.protocol.client_connection import Exchange
from liftlog.protocol.replication import (
    MAX_ASKED,
    Resign,
    ResignAnswer,
    Suspect,
    SuspectAnswer,
)
from liftlog.server.metadata.mirror import Mirror
from liftlog.server.replication.hearing import Hearing
from liftlog.server.replication.peer_link import PeerLink
from liftlog.server.vitals.rare_warnings import RareWarnings

logger = logging.getLogger("liftlog.server.replication")

_LOOK_SECONDS = 0.1
_HEAR_AGAIN_SECONDS = 0.5
_LOOK_AT_DISK_SECONDS = 1.0
_MAX_UNDER_WAY = 64
ELECTION_REASONS = ("leader-lost", "no-leader")
"""The reasons for elections. `leader-lost`: most replicas received no heartbeats from the leader.
`no-leader`: no node led, because the leader had resigned."""
_MAX_TOLD = 10_000
"""Maximum number of copies in an answer."""


class Copies(Protocol):
    """The copies of replicated streams on this node."""

    def names(self) -> Collection[str]: ...

    def log_end(self, name: str) -> LogEnd | None:
        """Return the end of the copy; None if the copy cannot be served."""
        ...

    def prepare_to_lead(self, name: str) -> bool:
        """Begin slow preparations that are necessary before this node can lead. Returns True when
        they are done. Called repeatedly while this node may have to lead."""
        ...

    def leading(self) -> Iterable[tuple[str, Leader]]:
        """Return the streams that this node leads."""
        ...

    def stalled(self, names: Iterable[str]) -> Iterable[tuple[StreamMetadata, float]]:
        """Return the streams among `names` that wait for this node's disk, each with the duration
        of the wait in seconds. According to the metadata, this node leads all streams in
        `names`."""
        ...

    def stop_leading(self, name: str, reason: str) -> None:
        """Stop leading a stream: accept no more messages in this epoch."""
        ...

    def hear_again(self) -> None:
        """Make the followers of all streams that this node leads send a request now."""
        ...


class Succession:
    """Takes part in elections. Belongs to one event loop; `run` checks until it is cancelled."""

    def __init__(
        self,
        elections: Elections,
        mirror: Mirror,
        hearing: Hearing,
        session: NodeSession,
        copies: Copies,
        *,
        link_to: Callable[[str], PeerLink],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        is_attached: Callable[[], bool],
    ) -> None:
        """`is_attached` returns True if NATS delivers to this node."""
        self._elections = elections
        self._mirror = mirror
        self._hearing = hearing
        self._session = session
        self._copies = copies
        self._link_to = link_to
        self._spawn = spawn
        self._is_attached = is_attached
        self._loop = asyncio.get_running_loop()
        self._warn = RareWarnings(logger).warn
        self._under_way: set[str] = set()
        self._heard_again_at = self._disk_looked_at = 0.0
        self._led_by: dict[str | None, list[str]] = {}
        """A cache of the names of all streams, by leader (None: no leader). It is valid while
        `_mirror.changes` equals `_led_by_as_of`."""
        self._led_by_as_of = -1
        self.elections = dict.fromkeys(ELECTION_REASONS, 0)
        """Elections that this node has won, by reason."""

    def stand_down(self) -> None:
        """Take over no more streams, because this node stops."""
        self._elections.is_stopping = True

    def may_lead(self, leader: Leader) -> bool:
        """Return True if this node may lead at this moment. If the result is False, `look` will end
        its leadership shortly."""
        return not self._elections.stops(leader, self._loop.time())

    @property
    def is_electing(self) -> bool:
        """True during an election that may make this node a leader."""
        return bool(self._under_way)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            self.look()

    def look(self) -> None:
        """Stop leading, ask other nodes, and elect leaders, if any of these actions is due."""
        now = self._loop.time()
        self._see(now)
        self._stop_leading(now)
        self._yield(now)
        records = self._in_question(now)
        if not records:
            return
        for question in self._elections.questions(records, now):
            self._ask(question)
        for record in records:
            log = self._copies.log_end(record.name)
            if log is None or record.name in self._under_way:
                continue
            is_prepared = self._copies.prepare_to_lead(record.name)
            claim = self._elections.decide(record, log, now)
            # The number of concurrent elections is limited. With more elections, the node with the
            # copy that is next in turn could lead sooner.
            if claim is not None and is_prepared and len(self._under_way) < _MAX_UNDER_WAY:
                self._under_way.add(record.name)
                self._spawn(self._elect(record, claim))

    def opinion(self, node: str) -> SuspectAnswer:
        """Return this node's view of another node: whether it is suspected, for how long it has
        been silent, and this node's copies of the streams that the other node leads."""
        now = self._loop.time()
        self._see(now)
        logs: dict[str, list[int]] = {}
        for name in self._copies.names():
            record = self._mirror.records.get(name)  # None if the stored metadata are not trusted
            if record is not None and record.leader == node and len(logs) < _MAX_TOLD:
                log = self._copies.log_end(name)
                if log is not None:
                    logs[name] = list(log)
        silent_ms = round(1000 * self._hearing.silent_seconds(node))
        return SuspectAnswer(self._elections.suspects(node, now), silent_ms, logs)

    async def take_over(
        self, asker: str, names: Iterable[str], *, detached: bool
    ) -> dict[str, StreamMetadata]:
        """Begin to lead streams that `asker` still leads, if this node can serve them. Returns the
        metadata of the streams that this node then leads."""
        now = self._loop.time()
        claims: list[Coroutine[Any, Any, None]] = []
        self._see(now)
        for name in names:
            record = self._mirror.records.get(name)
            if record is None or name in self._under_way or len(claims) == _MAX_UNDER_WAY:
                continue
            claim = self._elections.takes_over(
                record, asker, now, is_attached=self._is_attached(), detached=detached
            )
            if claim is not None:
                self._under_way.add(name)
                claims.append(self._elect(record, claim))
        await asyncio.gather(*claims)
        records, me = self._mirror.records, self._elections.node
        return {
            name: records[name]
            for name in names
            if name in records and records[name].leader == me and not records[name].deleted
        }

    # --- parts -----------------------------------------------------------------------

    def _see(self, now: float) -> None:
        elections, directory = self._elections, self._mirror.directory
        elections.renewed(self._session.deadline, now)
        elections.sessions(directory.live)
        elections.stopping = directory.stopping
        # If the store was restored to an older state, it may lack the entry of a leader.
        for node in {*directory.nodes, *self._leaders()}:
            if node != elections.node:
                self._hearing.expect(node)
            elections.heard(node, now - self._hearing.silent_seconds(node))
            gone = self._hearing.gone_seconds(node)
            if gone:
                refused = self._hearing.is_refusing(node)
                elections.lost(node, now - gone, is_refused=refused)
        elections.look(now)

    def _in_question(self, now: float) -> list[StreamMetadata]:
        """Return the streams whose leader may have to be replaced; normally empty."""
        mirror, copies = self._mirror, self._copies.names()
        records = mirror.records
        doubtful = {None, *self._elections.in_doubt(self._leaders(), now)}
        return [
            records[name]
            for leader in doubtful
            for name in self._led_by.get(leader, ())
            if name in copies and name not in mirror.regressed
        ]

    def _leaders(self) -> list[str]:
        """Return the nodes that lead a stream, even those without an entry in the store."""
        if self._led_by_as_of != self._mirror.changes:
            self._led_by_as_of = self._mirror.changes
            self._led_by = {}
            for name, record in self._mirror.records.items():
                self._led_by.setdefault(record.leader, []).append(name)
        return [leader for leader in self._led_by if leader is not None]

    def _stop_leading(self, now: float) -> None:
        if not self._elections.session_ends_soon(now):
            return
        if now - self._heard_again_at >= _HEAR_AGAIN_SECONDS:
            # If there are no new records, followers may have been silent for long although they
            # run.
            self._heard_again_at = now
            self._copies.hear_again()
        for name, leader in list(self._copies.leading()):
            if self._elections.stops(leader, now):
                self._copies.stop_leading(
                    name, "this node could not renew its session, and most replicas do not ask"
                )

    def _yield(self, now: float) -> None:
        """Ask other nodes to take over streams that this node cannot serve."""
        leading = self._copies.leading()  # a generator, because it is normally not iterated
        stalled: Iterable[tuple[StreamMetadata, float]] = ()
        if now - self._disk_looked_at >= _LOOK_AT_DISK_SECONDS:
            self._disk_looked_at = now
            stalled = self._copies.stalled(self._led_by.get(self._elections.node, ()))
        for one in self._elections.yields(
            leading, now, is_attached=self._is_attached(), stalled=stalled
        ):
            logger.warning(
                "hands-over to=%s streams=%d reason=%s",
                one.peer,
                len(one.streams),
                one.lack.value,
            )
            for first in range(0, len(one.streams), MAX_ASKED):
                some = list(one.streams[first : first + MAX_ASKED])
                exchange = Exchange(on_done=self._handed_over)
                self._link_to(one.peer).request(Resign(some, one.detached), exchange)

    def _handed_over(self, exchange: Exchange) -> None:
        """Adopt the metadata in the answer of the next leader, because the store may not notify
        this node for a long time."""
        if not isinstance(exchange.answer, ResignAnswer):
            return
        for name, data in exchange.answer.streams.items():
            try:
                record = StreamMetadata.from_json(data if isinstance(data, bytes) else b"")
            except LiftlogError as error:
                logger.warning("record-not-understood stream=%.128r error=%s", name, error)
            else:
                self._mirror.told(record)

    def _ask(self, question: Question) -> None:
        def answered(exchange: Exchange) -> None:
            answer = exchange.answer
            if isinstance(answer, SuspectAnswer):
                opinion = Opinion(answer.suspects, _logs_from(answer.logs))
                now = self._loop.time()
                self._elections.told(question.peer, question.about, opinion, now)

        exchange = Exchange(on_done=answered)
        self._link_to(question.peer).request(Suspect(question.about), exchange)

    async def _elect(self, record: StreamMetadata, claim: Elect) -> None:
        """Try the election once. If the metadata have changed, a later call of `look` examines the
        new metadata."""
        try:
            after = transitions.failover(record, claim.dead, self._elections.node)
            if after is None:
                return
            await self._mirror.commit(Change(record, after))
            if self._mirror.records[record.name] == after:
                reason = "leader-lost" if record.leader in claim.dead else "no-leader"
                self.elections[reason] += 1
                logger.warning(
                    "elected stream=%s epoch=%d instead_of=%s dead=%s",
                    record.name,
                    after.leader_epoch,
                    record.leader or "none",
                    ",".join(sorted(claim.dead)) or "none",
                )
        except LiftlogError as error:
            self._warn("not-elected stream=%s error=%s", record.name, error)
        finally:
            self._under_way.discard(record.name)


def _logs_from(logs: dict[str, Any]) -> dict[str, LogEnd]:
    """Convert data from another node, which are not trusted. Values of a wrong form are left
    out."""
    return {
        name: LogEnd(*pair)
        for name, pair in logs.items()
        if isinstance(pair, list) and len(pair) == 2 and all(type(one) is int for one in pair)
    }
