"""The periodic work of a node. It commits changes of in-sync sets, moves replicas and leaderships,
removes the records of deleted streams, and allows compaction to remove tombstones."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping

from liftlog.cluster.record import Change
from liftlog.server.node.leadership import Leadership
from liftlog.server.node.local_node import LocalNode
from liftlog.server.node.moves import Moves
from liftlog.server.node.replica import Replica

_PROPOSE_SECONDS = 0.1
_SIDE_TURNS = 10
_PLACE_SECONDS = 0.2
_CHANGES_AT_ONCE = 64


class Upkeep:
    """Runs the periodic work. Belongs to the event loop. `replicas` are the replicas on this node,
    by stream."""

    def __init__(
        self,
        node: LocalNode,
        replicas: Mapping[str, Replica],
        moves: Moves,
        leadership: Leadership,
    ) -> None:
        self._node = node
        self._replicas = replicas
        self._moves = moves
        self._leadership = leadership

    async def keep_in_sync(self) -> None:
        """Commit the changes of in-sync sets that are due, until cancelled."""
        for turn in itertools.count():
            await asyncio.sleep(_PROPOSE_SECONDS)
            # Changes that become due only by the passage of time are checked less often.
            due = self._changes_due(for_all=turn % _SIDE_TURNS == 0)
            # If a node dies, it leaves the in-sync sets of all streams at once. The acks of each
            # stream wait for this change.
            for start in range(0, len(due), _CHANGES_AT_ONCE):
                some = due[start : start + _CHANGES_AT_ONCE]
                await asyncio.gather(*(replica.role.commit(change) for replica, change in some))

    def _changes_due(self, *, for_all: bool) -> list[tuple[Replica, Change]]:
        """Return the changes of in-sync sets that are due. If `for_all` is true, all streams that
        this node leads are examined; otherwise only streams whose `Leader` may propose a change."""
        stirred, due = self._node.stirred, []
        names = list(self._node.led if for_all else stirred)
        stirred.clear()
        for name in names:
            led = self._node.led.get(name)
            if led is None or led.is_quiet:
                continue
            replica = self._replicas[name]
            change = replica.role.change_due()
            if change is not None:
                due.append((replica, change))
            if not led.leader.is_settled:
                stirred.add(name)
        return due

    async def keep_placed(self) -> None:
        """Do the following at intervals, until cancelled:

        - begin the moves that drained nodes need
        - hand over streams whose moves wait for a handover
        - hand over streams whose messages this node cannot store
        """
        while True:
            await asyncio.sleep(_PLACE_SECONDS)
            await self._moves.leave_drained(self._node.led)
            await self._leadership.hand_over_moved()
            await self._leadership.hand_over_refusing()

    async def purge_deleted(self, after_seconds: float) -> None:
        """Remove records of deleted streams, until cancelled. A record is kept for some time after
        the last node has removed its copy, because late notifications may arrive during this
        time."""
        since: dict[tuple[str, str], float] = {}
        while True:
            now = asyncio.get_running_loop().time()
            records = self._node.mirror.records.values()
            gone = [one for one in records if one.deleted and not one.starts]
            names = [(one.name, one.incarnation) for one in gone]
            since = {name: since.get(name, now) for name in names}
            for (name, _), at in since.items():
                if now - at >= after_seconds:
                    await self._node.mirror.purge(name)
            await asyncio.sleep(after_seconds / 10)

    async def let_tombstones_go(self, interval_seconds: float, forget_after_seconds: float) -> None:
        """At intervals, until cancelled, report to compaction the tombstones that every replica
        has. Replicas that have been silent for `forget_after_seconds` are ignored."""
        while True:
            await asyncio.sleep(interval_seconds)
            for replica in list(self._replicas.values()):
                await replica.role.let_tombstones_go(forget_after_seconds)
