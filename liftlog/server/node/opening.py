"""The start of a node. Loads the records that the node received earlier, finds the copies on its
disk, and opens the streams."""

from __future__ import annotations

import asyncio

from liftlog.server.metadata.known_records import KnownRecords
from liftlog.server.node import copies
from liftlog.server.node.local_node import LocalNode
from liftlog.server.node.replicas import Replicas

_SET_BACK = (
    "the metadata store has lost the newest record of it. The nodes restore that record once they "
    "are in contact; otherwise `liftlog cluster restore-metadata` does"
)


class Opening:
    """The start of one node. Belongs to the event loop. Call `remember` and `find_copies` before
    anything is read from the metadata store, then `open_streams`."""

    def __init__(self, node: LocalNode, replicas: Replicas, known: KnownRecords) -> None:
        self.known = known
        self._node = node
        self._replicas = replicas
        self._on_disk: list[str] = []

    async def remember(self) -> None:
        """Load the records that this node has received in earlier starts, and write newer records
        from now on."""
        self._node.mirror.remember(await asyncio.to_thread(self.known.read))
        self._node.spawn(self.known.run())

    async def find_copies(self) -> None:
        """Find the copies on the disk, and remove copies whose creation was not completed. Call
        this method first: a later call could remove a copy that is just being created, including
        records that this node has confirmed."""
        self._on_disk = await asyncio.to_thread(self._node.data_dir.stream_names)

    async def open_streams(self) -> None:
        """Read the records, and open the streams that have a copy on this node."""
        mirror, me = self._node.mirror, self._node.member.name
        await mirror.load()
        unknown = await asyncio.to_thread(
            copies.unknown_streams, self._node.data_dir, self._on_disk, mirror.records, me
        )
        unknown |= dict.fromkeys(mirror.doubtful & unknown.keys(), _SET_BACK)
        self._node.hosts.broken.update(unknown)
        await self._replicas.all_opened()
        if not (mirror.doubtful or mirror.newer):
            records = mirror.records.values()
            self.known.all_held(one for one in records if me in one.members and not one.deleted)
