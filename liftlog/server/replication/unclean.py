"""Unclean recovery with `cluster.unclean: balanced`: streams without a complete copy get a leader.

`liftlog.cluster.unclean` selects the node with the best copy. That node makes itself the leader.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import TypeAlias

from liftlog.cluster import transitions
from liftlog.cluster.guard import Known
from liftlog.cluster.record import StreamMetadata
from liftlog.cluster.unclean import best_copy, has_no_complete_copy, tells_of
from liftlog.errors import LiftlogError
from liftlog.protocol.replication import Copies, CopiesAnswer
from liftlog.server.metadata.mirror import Mirror
from liftlog.server.replication.asking import MAX_STREAMS_ASKED, ask_nodes, known_from
from liftlog.server.replication.peer_link import PeerLink
from liftlog.server.vitals.rare_warnings import RareWarnings

logger = logging.getLogger("liftlog.server.replication")

_LOOK_SECONDS = 1.0

Told: TypeAlias = Mapping[str, Known | None]
"""Maps each replica to the copy that it has reported, or to None if its report is missing or
unusable."""


class UncleanRecovery:
    """Makes this node the leader of streams for which it has the best copy. Belongs to one event
    loop.

    `start` identifies the current start of `node`. `answer` returns the metadata and the log ends
    that this node has for streams. `may_lead` returns True if this node can lead a stream now.
    """

    def __init__(
        self,
        mirror: Mirror,
        node: str,
        start: int,
        *,
        link_to: Callable[[str], PeerLink],
        answer: Callable[[list[str]], CopiesAnswer],
        may_lead: Callable[[str], bool],
        on_recovered: Callable[[StreamMetadata], None],
    ) -> None:
        self._mirror = mirror
        self._node, self._start = node, start
        self._link_to = link_to
        self._answer = answer
        self._may_lead = may_lead
        self._on_recovered = on_recovered
        self._warn = RareWarnings(logger).warn
        self._ends: dict[str, tuple[StreamMetadata, Told]] = {}
        """The reports on each stream at the last call of `look`."""
        self.recovered = 0
        """Number of unclean recoveries by which this node became the leader of a stream."""

    async def run(self) -> None:
        """Look for streams without a complete copy, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            await self.look()

    async def look(self) -> None:
        """Begin to lead streams that have no complete copy. For each of them, this node must have
        the best copy, and no copy may have changed since the last call. Does not raise."""
        directory, told = self._mirror.directory, dict[str, tuple[StreamMetadata, Told]]()
        records = [one for one in self._mirror.records.values() if self._concerns(one)]
        silent: set[str] = set()
        for first in range(0, len(records), MAX_STREAMS_ASKED):
            some = [
                one
                for one in records[first : first + MAX_STREAMS_ASKED]
                if directory.live - silent >= {*one.replicas}
            ]
            silent |= await self._ask(some, told)
        due = []
        for name, (record, copies) in told.items():
            best = best_copy(record, copies)
            if best is None:
                waits_for = [one for one, known in copies.items() if not tells_of(record, known)]
                self._warn("not-recovered stream=%s waits_for=%s", name, ",".join(waits_for))
            elif best == self._node and self._ends.get(name) == (record, copies):
                due.append(record)
        self._ends = told
        await asyncio.gather(*(self._recover(one) for one in due if self._may_lead(one.name)))

    def _concerns(self, record: StreamMetadata) -> bool:
        return (
            has_no_complete_copy(record)
            and self._node in record.replicas
            and record.starts.get(self._node) == self._start
            and record.name not in self._mirror.regressed
        )

    async def _ask(
        self, records: list[StreamMetadata], into: dict[str, tuple[StreamMetadata, Told]]
    ) -> set[str]:
        """Ask the replicas of these streams for their copies, and store the reports in `into`.
        Returns the nodes that have not answered."""
        names = [record.name for record in records]
        others = {node for record in records for node in record.replicas} - {self._node}
        answers = await ask_nodes(others, Copies(names), self._link_to) if names else {}
        silent = others - answers.keys()
        answers[self._node] = self._answer(names)
        known = {node: known_from(answer.copies) for node, answer in answers.items()}
        for record in records:
            name = record.name
            into[name] = record, {one: known.get(one, {}).get(name) for one in record.replicas}
        return silent

    async def _recover(self, record: StreamMetadata) -> None:
        """Recover the stream, unless the record has changed since the copies were compared."""
        made: StreamMetadata | None = None

        def step(present: StreamMetadata) -> StreamMetadata | None:
            nonlocal made
            made = transitions.recover(present, self._node) if present == record else None
            return made

        try:
            after = await self._mirror.change(record.name, step)
        except LiftlogError as error:
            self._warn("not-recovered stream=%s error=%s", record.name, error)
            return
        if after is not None and after == made:
            logger.warning(
                "unclean-recovery stream=%s node=%s epoch=%d unclean=balanced",
                record.name,
                self._node,
                after.leader_epoch,
            )
            self.recovered += 1
            self._on_recovered(after)
