"""Changes of the entries of nodes in the metadata store."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from liftlog.cluster.store import CasLost, CasUnknown, Entry, StoreUnavailable
from liftlog.errors import Conflict, MetadataUnavailable
from liftlog.server.metadata.counted_store import ATTEMPTS, CountedStore, busy
from liftlog.server.metadata.membership import Directory, NodeInfo, to_bytes, value_of

logger = logging.getLogger("liftlog.server.replication")

NODE_PREFIX = "node."


class NodeRecords:
    """Changes the entries of nodes. `note` is called with the key and the new entry after each
    change. `directory` contains the entries that this node has received."""

    def __init__(
        self,
        store: CountedStore,
        directory: Directory,
        note: Callable[[str, Entry | None], None],
    ) -> None:
        self._store = store
        self._directory = directory
        self._note = note

    async def change(
        self, node: str, step: Callable[[Mapping[str, Any]], dict[str, Any] | None]
    ) -> None:
        """Apply `step` to the store's entry of a node. `step` returns None if nothing has to be
        changed. Raises Conflict if the store no longer has the node. Also raises
        MetadataUnavailable, CorruptMetadata."""
        key = NODE_PREFIX + node
        for _ in range(ATTEMPTS):
            entry = await self._store.read(key)
            if entry is None:
                raise Conflict(f"node {node} was removed from the cluster meanwhile")
            after = step(value_of(entry))
            if after is None:
                return
            value = to_bytes(after)
            stored = await self._store.write(key, value, entry.revision)
            if stored is not None:
                self._note(key, Entry(stored, value))
                return
        raise busy(f"node {node}")

    async def restore(self, node: str, value: Mapping[str, Any]) -> None:
        """Store a node's description of itself again, if the store has lost the entry of this
        start. Raises MetadataUnavailable, CorruptMetadata."""
        key = NODE_PREFIX + node
        for _ in range(ATTEMPTS):
            entry = await self._store.read_newest(key)
            if entry is not None and int(value_of(entry).get("start", 0)) >= value["start"]:
                self._note(key, entry)
                return
            content = to_bytes(value)
            stored = await self._store.write(key, content, 0 if entry is None else entry.revision)
            if stored is not None:
                logger.warning("node-restored node=%s start=%d", node, value["start"])
                self._note(key, Entry(stored, content))
                return
        raise busy(f"node {node}")

    async def remove(self, node: str) -> None:
        """Remove the store's entry of a node that does not run. Raises Conflict if the node has
        started again, MetadataUnavailable, CorruptMetadata."""
        key = NODE_PREFIX + node
        entry = await self._store.read(key)
        if entry is None:
            return
        known = self._directory.nodes.get(node)
        try:
            if known is None or NodeInfo.from_value(node, value_of(entry)) != known:
                raise CasLost
            await self._store.raw.delete(key, entry.revision)
        except CasLost:
            raise Conflict(f"node {node} has started, or was changed, meanwhile") from None
        except (CasUnknown, StoreUnavailable) as error:
            raise MetadataUnavailable(str(error)) from error
        self._note(key, None)
