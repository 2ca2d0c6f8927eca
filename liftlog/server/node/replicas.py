"""The replicas of this node: one for each stream with a present or future copy on this node."""

from __future__ import annotations

import asyncio
import contextlib

from liftlog.cluster.record import StreamMetadata
from liftlog.errors import LiftlogError
from liftlog.server.node.local_node import LocalNode
from liftlog.server.node.replica import Replica

_CHANGES_AT_ONCE = 64


class Replicas:
    """The replicas by the names of their streams. Belongs to the event loop.

    A replica is in `by_name` while its task runs. The task runs from the first record that concerns
    this node until the copy is removed. When the node is about to stop, no more replicas are added.
    """

    def __init__(self, node: LocalNode) -> None:
        self.by_name: dict[str, Replica] = {}
        self.is_stopping = False
        self._node = node

    def record_changed(self, record: StreamMetadata) -> None:
        """Called with a newer record of a stream."""
        replica = self.by_name.get(record.name)
        if replica is None:
            # This node may have been down when the stream was deleted or moved.
            if self.is_stopping or not record.concerns(self._node.member.name):
                return
            replica = self._add(record.name)
        replica.record_changed(record)

    def stand_aside(self) -> None:
        """Ignore all records from now on, because another process runs as this node."""
        self.is_stopping = True
        for replica in self.by_name.values():
            replica.stand_aside()

    def _add(self, name: str) -> Replica:
        replica = self.by_name[name] = Replica(name, self._node)
        self._node.spawn(self._follow(replica))
        return replica

    async def _follow(self, replica: Replica) -> None:
        if await replica.run():
            del self.by_name[replica.name]
            # The stream may have been created again in the meantime.
            record = self._node.mirror.records.get(replica.name)
            if record is not None:
                self.record_changed(record)
            replica.opened.set()

    def wake(self) -> None:
        """Wake all replicas, because a node was added or removed. A stream may wait for such a
        change."""
        for replica in self.by_name.values():
            replica.wake()

    # --- copies that are of no use ---

    def copy_again(self, name: str) -> bool:
        """Fetch the whole copy again, because it has damage that other replicas cannot repair.
        Return True if this node leads the stream, and must hand the stream over first."""
        replica = self.by_name.get(name)
        if replica is None:
            return False
        replica.copy_again()
        return replica.role.led is not None

    def give_up(self, name: str, stored: StreamMetadata) -> None:
        """Discard this node's record of the stream, and adopt the successors of `stored`."""
        replica = self.by_name.get(name)
        mirror, me = self._node.mirror, self._node.member.name
        if replica is None and not mirror.known[name].concerns(me):
            self._node.spawn(self._go_over(name, stored))
            return
        if replica is None:
            replica = self._add(name)
        replica.give_up(stored)

    async def _go_over(self, name: str, stored: StreamMetadata) -> None:
        with contextlib.suppress(LiftlogError):  # the guard retries it
            await self._node.mirror.go_over(name, self._node.member.name, stored)

    # --- the start ---

    async def all_opened(self) -> None:
        """Wait until each copy that exists on this node at the time of the call was opened, or
        could not be opened."""
        opening = [one.opened for one in self.by_name.values()]
        await asyncio.gather(*(one.wait() for one in opening))

    async def opened(self, name: str) -> None:
        """Wait until the copy of a stream was opened, or could not be opened. Returns at once if
        this node has no copy."""
        replica = self.by_name.get(name)
        while replica is not None:
            await replica.opened.wait()
            # The replica may have been removed and replaced by the replica of a new stream with the
            # same name.
            before, replica = replica, self.by_name.get(name)
            if replica is before:
                return

    # --- the end ---

    async def leave(self) -> None:
        """Remove this node from the in-sync sets, and resign the leadership of all streams."""
        gate = asyncio.Semaphore(_CHANGES_AT_ONCE)

        async def leave(one: Replica) -> None:
            async with gate:  # in parallel, so that the slowest stream does not delay the others
                await one.leave()

        await asyncio.gather(*map(leave, list(self.by_name.values())))

    def stop(self) -> None:
        """End the roles. The logs stay open."""
        for replica in self.by_name.values():
            replica.role.stop()
