"""Renews a key with a time to live in the background: the session of a node."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import Protocol

from liftlog.cluster.store import CasLost, CasUnknown, Entry, MetaStoreError, StoreUnavailable

logger = logging.getLogger("liftlog.server.replication")

_RENEWALS_PER_TTL = 5
_RETRIES_PER_TTL = 30
_SAFE_PART_OF_TTL = 0.8
_TOLD_AGAIN_SECONDS = 60.0


class ExpiringKeys(Protocol):
    """The methods of a store that a session needs."""

    async def get(self, key: str) -> Entry | None:
        """Read an entry; see `MetaStore`."""
        ...

    async def delete(self, key: str, revision: int) -> None:
        """Delete an entry; see `MetaStore`."""
        ...

    async def put_for(self, key: str, value: bytes, revision: int, ttl_seconds: int) -> int:
        """Write an entry that expires. Apart from that, like `MetaStore.cas`."""
        ...


class RenewedKey:
    """A session: a key that this process renews until it is closed. See
    `liftlog.cluster.store.NodeSession`. The value identifies the holder, so no other holder may
    write the same value."""

    def __init__(self, store: ExpiringKeys, key: str, value: bytes, ttl_seconds: int) -> None:
        self._store = store
        self._key = key
        self._value = value
        self._ttl_seconds = ttl_seconds
        self._revision = 0
        self._own_revision = 0
        """The last revision at which this holder certainly had the key."""
        self._renewed_at = float("-inf")
        self._renewing: asyncio.Task[None] | None = None
        self._is_taken_over = asyncio.Event()

    @property
    def renewed_at(self) -> float:
        return self._renewed_at

    @property
    def deadline(self) -> float:
        return self._renewed_at + _SAFE_PART_OF_TTL * self._ttl_seconds

    async def begin(self, revision: int) -> None:
        """Write the key if it is at `revision`, and renew it from now on. Raises the errors of
        `MetaStore.cas`."""
        self._revision = revision
        await self._put()
        self._renewing = asyncio.get_running_loop().create_task(self._renew(), name="session")

    async def taken_over(self) -> None:
        await self._is_taken_over.wait()

    async def abandon(self) -> None:
        """Stop renewing, and let the key expire."""
        renewing, self._renewing = self._renewing, None
        if renewing is not None:
            renewing.cancel()
            await asyncio.wait({renewing})

    async def close(self) -> None:
        await self.abandon()
        with contextlib.suppress(MetaStoreError):
            try:
                await self._store.delete(self._key, self._revision)
            except CasLost:  # the renewal that was just cancelled may have caused this
                if await self._is_found_again() and self._revision:
                    await self._store.delete(self._key, self._revision)

    async def _put(self) -> None:
        sent = time.monotonic()
        self._revision = await self._store.put_for(
            self._key, self._value, self._revision, self._ttl_seconds
        )
        self._own_revision = self._revision
        self._renewed_at = sent

    async def _renew(self) -> None:
        pause = self._ttl_seconds / _RENEWALS_PER_TTL
        soon = self._ttl_seconds / _RETRIES_PER_TTL
        wait = pause
        told_at = -_TOLD_AGAIN_SECONDS
        while True:
            await asyncio.sleep(wait)
            wait = soon
            try:
                await self._put()
            except CasLost:
                if not await self._is_found_again():
                    logger.error("session-taken-over key=%s", self._key)  # noqa: TRY400
                    self._is_taken_over.set()
                    return
            except (CasUnknown, StoreUnavailable) as error:
                # If this renewal takes effect, now or later, the next one fails. The next one then
                # checks the key.
                if time.monotonic() - told_at >= _TOLD_AGAIN_SECONDS:
                    told_at = time.monotonic()
                    logger.warning("session-not-renewed key=%s error=%s", self._key, error)
            else:
                wait, told_at = pause, -_TOLD_AGAIN_SECONDS

    async def _is_found_again(self) -> bool:
        """Return True if this process may try again after a failed renewal. It must not try again
        after another holder has written the key.

        Revisions only grow, unless the store was restored to an older state. After a restore the
        key may have the value of an earlier start of this node, which no process renews.
        """
        try:
            found = await self._store.get(self._key)
        except StoreUnavailable:
            return True  # the next renewal will detect it
        if found is not None:
            if found.value == self._value:
                self._own_revision = found.revision
            elif found.revision > self._own_revision:
                return False
        self._revision = 0 if found is None else found.revision
        return True
