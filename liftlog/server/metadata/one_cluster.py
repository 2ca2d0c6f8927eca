"""Prevents a node from using the metadata store of another cluster.

If a bucket was lost, and `cluster init` without `--again` created it again, the new bucket belongs
to another cluster. Nodes that continued with the new bucket would mix the two clusters, and could
not start again. So they treat the new bucket as unreachable until it has the id of their own
cluster. After `cluster init --again` they store the metadata that they have.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from liftlog.cluster.store import CLUSTER_KEY, Entry, MetaStore, OnChange, StoreUnavailable
from liftlog.errors import CorruptMetadata
from liftlog.server.metadata.membership import value_of
from liftlog.server.metadata.sessions import ExpiringKeys, RenewedKey

logger = logging.getLogger("liftlog.server.replication")

_RETRY_SECONDS = 0.5


class Store(MetaStore, ExpiringKeys, Protocol):
    """The methods that a wrapped store must have."""


class OneClusterStore:
    """A MetaStore that passes calls to another store as long as that store belongs to the expected
    cluster. Until `expect` is called, it passes on all calls. Belongs to one event loop."""

    def __init__(self, store: Store, close: Callable[[], Awaitable[None]]) -> None:
        self._store = store
        self._close = close
        self._expected = ""
        self._found = ""
        self._is_ours = asyncio.Event()
        self._is_ours.set()
        self._turned = asyncio.Event()
        """Event that is set when the store changes to another cluster. A new event then replaces
        it."""
        self._watching: asyncio.Task[None] | None = None

    @property
    def problem(self) -> str:
        """The reason why the store is not used; empty if it is used."""
        if self._is_ours.is_set():
            return ""
        whose = f"that of cluster {self._found}" if self._found else "empty"
        return (
            f"the metadata store is {whose}, and this node belongs to cluster {self._expected}: "
            "restore the store from a backup, or `liftlog cluster init -c FILE --again`"
        )

    def expect(self, cluster_id: str) -> None:
        """From now on, use the store only while it belongs to this cluster."""
        self._expected = cluster_id
        if self._watching is None:
            watch = self._store.watch(CLUSTER_KEY, self._note)
            self._watching = asyncio.get_running_loop().create_task(watch)

    def _note(self, key: str, entry: Entry | None) -> None:
        if key != CLUSTER_KEY:
            return
        try:
            self._found = "" if entry is None else str(value_of(entry).get("cluster_id", ""))
        except CorruptMetadata:
            self._found = "?"
        is_ours, was_ours = self._found == self._expected, self._is_ours.is_set()
        (self._is_ours.set if is_ours else self._is_ours.clear)()
        if was_ours and not is_ours:
            self._turned.set()
            self._turned = asyncio.Event()
            logger.error("metadata-store-is-another problem=%s", self.problem)
        elif is_ours and not was_ours:
            logger.info("metadata-store-is-ours-again cluster=%s", self._expected)

    def _check(self) -> None:
        if not self._is_ours.is_set():
            raise StoreUnavailable(self.problem)

    async def _check_again(self, revision: int) -> None:
        """Read the id of the store's cluster again. Called before an entry is created. A new bucket
        would accept new entries before this node has read the bucket's id. Changes of existing
        entries fail in a new bucket anyway."""
        if revision or not self._expected:
            return
        self._note(CLUSTER_KEY, await self._store.get(CLUSTER_KEY))
        self._check()

    async def close(self) -> None:
        """Close the store."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait({self._watching})
        await self._close()

    # --- MetaStore ---

    async def get(self, key: str) -> Entry | None:
        self._check()
        return await self._store.get(key)

    async def get_newest(self, key: str) -> Entry | None:
        self._check()
        return await self._store.get_newest(key)

    async def cas(self, key: str, value: bytes, revision: int) -> int:
        self._check()
        await self._check_again(revision)
        return await self._store.cas(key, value, revision)

    async def put_for(self, key: str, value: bytes, revision: int, ttl_seconds: int) -> int:
        """Write an entry that expires; see `ExpiringKeys`."""
        self._check()
        await self._check_again(revision)
        return await self._store.put_for(key, value, revision, ttl_seconds)

    async def delete(self, key: str, revision: int) -> None:
        self._check()
        await self._store.delete(key, revision)

    async def scan(self, prefix: str) -> dict[str, Entry]:
        self._check()
        entries = await self._store.scan(prefix)
        if self._expected and not prefix:
            self._note(CLUSTER_KEY, entries.get(CLUSTER_KEY))
        self._check()
        return entries

    async def watch(self, prefix: str, on_change: OnChange) -> None:
        known: set[str] = set()

        def note(key: str, entry: Entry | None) -> None:
            if self._expected and key == CLUSTER_KEY:
                self._note(key, entry)
            if self._is_ours.is_set():
                (known.discard if entry is None else known.add)(key)
                on_change(key, entry)

        while True:
            await self._is_ours.wait()
            turned = asyncio.ensure_future(self._turned.wait())
            watching = asyncio.ensure_future(self._watch(prefix, known, note))
            try:
                await asyncio.wait({watching, turned}, return_when=asyncio.FIRST_COMPLETED)
                if watching.done():
                    watching.result()
            finally:
                turned.cancel()
                watching.cancel()
                await asyncio.wait({turned, watching})

    async def _watch(self, prefix: str, known: set[str], note: OnChange) -> None:
        await self._report_gone(prefix, known, note)
        await self._store.watch(prefix, note)

    async def _report_gone(self, prefix: str, known: set[str], note: OnChange) -> None:
        """Report keys that disappeared while the store belonged to another cluster. The next watch
        reports all other changes."""
        while known:
            try:
                there = await self.scan(prefix)
            except StoreUnavailable:
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            for key in [one for one in known if one not in there]:
                note(key, None)
            return

    async def session(
        self, key: str, value: bytes, ttl_seconds: int, revision: int = 0
    ) -> RenewedKey:
        session = RenewedKey(self, key, value, ttl_seconds)
        await session.begin(revision)
        return session
