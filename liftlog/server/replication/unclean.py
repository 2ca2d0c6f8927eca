"""Unclean recovery with `cluster.unclean: balanced`: streams without a complete copy get a leader.

`liftlog.cluster.unclean` tells which node has the best copy; that one makes itself the leader.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from liftlog.cluster import transitions
from liftlog.cluster.record import StreamRecord
from liftlog.cluster.unclean import best_copy, has_no_complete_copy
from liftlog.errors import LiftlogError
from liftlog.protocol.replication import Copies, CopiesAnswer
from liftlog.server.replication.asking import MAX_STREAMS_ASKED, ask_nodes, known_from
from liftlog.server.replication.mirror import Mirror
from liftlog.server.replication.peer_link import PeerLink
from liftlog.server.replication.rare_warnings import RareWarnings

logger = logging.getLogger("liftlog.server.replication")

_LOOK_SECONDS = 1.0


class UncleanRecovery:
    """Belongs to one event loop. `answer` tells what this node, `node`, knows of streams;
    `may_lead` whether it can take the lead of one now."""

    def __init__(
        self,
        mirror: Mirror,
        node: str,
        *,
        link_to: Callable[[str], PeerLink],
        answer: Callable[[list[str]], CopiesAnswer],
        may_lead: Callable[[str], bool],
        on_recovered: Callable[[StreamRecord], None],
    ) -> None:
        self._mirror = mirror
        self._node = node
        self._link_to = link_to
        self._answer = answer
        self._may_lead = may_lead
        self._on_recovered = on_recovered
        self._warn = RareWarnings(logger).warn
        self.recovered = 0
        """The streams that this node leads, or has led, by this."""

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            await self.look()

    async def look(self) -> None:
        """Take the lead of the streams that no node can lead, and of which this one has the best
        copy. Does not raise."""
        mirror = self._mirror
        records = [
            record
            for name, record in mirror.records.items()
            if has_no_complete_copy(record)
            and self._node in record.replicas
            and mirror.directory.live.issuperset(record.replicas)
            and name not in mirror.regressed
        ]
        for first in range(0, len(records), MAX_STREAMS_ASKED):
            await self._look_at(records[first : first + MAX_STREAMS_ASKED])

    async def _look_at(self, records: list[StreamRecord]) -> None:
        names = [record.name for record in records]
        others = {node for record in records for node in record.replicas} - {self._node}
        answers = await ask_nodes(others, Copies(names), self._link_to)
        answers[self._node] = self._answer(names)
        told = {node: known_from(answer.copies) for node, answer in answers.items()}
        for record in records:
            name = record.name
            best = best_copy(record, {node: known.get(name) for node, known in told.items()})
            if best == self._node and self._may_lead(name):
                await self._recover(record)

    async def _recover(self, record: StreamRecord) -> None:
        """Unless the record has changed since the copies were compared."""

        def step(present: StreamRecord) -> StreamRecord | None:
            return transitions.recover(present, self._node) if present == record else None

        try:
            after = await self._mirror.change(record.name, step)
        except LiftlogError as error:
            self._warn("not-recovered stream=%s error=%s", record.name, error)
            return
        if after is not None and after.leads(self._node, record.starts[self._node]):
            logger.warning(
                "unclean-recovery stream=%s node=%s epoch=%d unclean=balanced",
                record.name,
                self._node,
                after.leader_epoch,
            )
            self.recovered += 1
            self._on_recovered(after)
