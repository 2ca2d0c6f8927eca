"""Decides when this node may lead a stream, and when it begins an election. Also decides when the
records that elections need are restored or abandoned."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from liftlog.cluster.election import Elections, Patience
from liftlog.cluster.store import NodeSession
from liftlog.server.node.election_copies import ElectionCopies
from liftlog.server.node.local_node import LocalNode
from liftlog.server.node.replicas import Replicas
from liftlog.server.replication.guarding import Guard
from liftlog.server.replication.peer_link import PeerLink
from liftlog.server.replication.succession import Succession
from liftlog.server.replication.unclean import UncleanRecovery


class Candidacy:
    """This node as a candidate in elections. Before `stand`, this node takes part in no election,
    but it may lead the streams that it leads according to their records. Belongs to the event
    loop."""

    def __init__(
        self, node: LocalNode, replicas: Replicas, link_to: Callable[[str], PeerLink]
    ) -> None:
        self._node = node
        self._replicas = replicas
        self.copies = ElectionCopies(node, replicas.by_name)
        self.session: NodeSession | None = None
        self.succession: Succession | None = None
        self.guard = Guard(
            node.mirror,
            node.member.name,
            link_to=link_to,
            log_end=self.copies.log_end,
            stand_aside=self.copies.stand_aside,
            give_up=replicas.give_up,
        )
        self.unclean = UncleanRecovery(
            node.mirror,
            node.member.name,
            node.member.start,
            link_to=link_to,
            answer=self.guard.answer,
            may_lead=self._may_recover,
            on_recovered=node.handovers.tell,
        )

    def stand(self, session: NodeSession, patience: Patience) -> None:
        """From now on, take over streams that have lost their leader. If this node loses its
        `session`, resign the leadership of all streams."""
        node = self._node
        self.session = session
        elections = Elections(
            node.member.name,
            node.member.start,
            now=asyncio.get_running_loop().time(),
            patience=patience,
        )
        self.succession = Succession(
            elections,
            node.mirror,
            node.hearing,
            session,
            self.copies,
            link_to=node.link_to,
            spawn=node.spawn,
            is_attached=lambda: node.hosts.attachments.connected,
        )

    async def run(self) -> None:
        """Take part in elections, after `stand`, until cancelled."""
        assert self.succession is not None
        await self.succession.run()

    def stand_down(self) -> None:
        """Take over no more streams, because this node stops."""
        if self.succession is not None:
            self.succession.stand_down()

    def stop_leading(self, reason: str) -> None:
        """Resign the leadership of all streams at once."""
        for name in list(self._node.led):
            self.copies.stop_leading(name, reason)

    def _may_recover(self, name: str) -> bool:
        """Return the result of `ElectionCopies.may_recover`; False once this node stops."""
        is_stopping = self._replicas.is_stopping or self._node.handovers.is_stopping
        return not is_stopping and self.copies.may_recover(name)

    # --- facts ---

    @property
    def is_electing(self) -> bool:
        """True if this node may become leader by an election that has begun."""
        return self.succession is not None and self.succession.is_electing

    @property
    def won(self) -> Mapping[str, int]:
        """Elections that this node has won, by reason."""
        if self.succession is None:
            return {}
        return {**self.succession.elections, "unclean": self.unclean.recovered}

    def may_answer(self, name: str) -> bool:
        """Return True if this node leads the stream, and if the sessions show that no other node
        can have been elected. A newer record with another leader may still be on its way to this
        node."""
        led = self._node.led.get(name)
        if led is None or led.leader.resigned:
            return False
        return self.succession is None or self.succession.may_lead(led.leader)
