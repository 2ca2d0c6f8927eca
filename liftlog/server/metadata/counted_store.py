"""Accesses the metadata store, one key at a time. Raises the errors that clients receive, and
counts writes."""

from __future__ import annotations

from liftlog.cluster.store import CasLost, CasUnknown, Entry, MetaStore, StoreUnavailable
from liftlog.errors import MetadataUnavailable

ATTEMPTS = 50
"""Number of attempts to change a record. An attempt fails only if another change came first."""


class CountedStore:
    """Accesses one metadata store. All methods raise MetadataUnavailable if the store does not
    answer."""

    def __init__(self, raw: MetaStore) -> None:
        self.raw = raw
        self.writes = dict.fromkeys(("stored", "lost", "unknown", "unavailable"), 0)
        """Attempts to change a record, by result."""

    async def read(self, key: str) -> Entry | None:
        """Return the entry, which may be outdated."""
        try:
            return await self.raw.get(key)
        except StoreUnavailable as error:
            raise MetadataUnavailable(str(error)) from error

    async def read_newest(self, key: str) -> Entry | None:
        """Return the entry that is valid at this moment. To confirm the entry, a write may be
        necessary."""
        try:
            return await self.raw.get_newest(key)
        except (CasUnknown, StoreUnavailable) as error:
            raise MetadataUnavailable(str(error)) from error

    async def write(self, key: str, value: bytes, revision: int) -> int | None:
        """Store a value if the stored value has this revision. Returns the new revision. Returns
        None if another change came first."""
        try:
            stored = await self.raw.cas(key, value, revision)
        except CasLost:
            self.writes["lost"] += 1
            return None
        except (CasUnknown, StoreUnavailable) as error:
            self.writes["unknown" if isinstance(error, CasUnknown) else "unavailable"] += 1
            raise MetadataUnavailable(str(error)) from error
        self.writes["stored"] += 1
        return stored


def busy(what: str) -> MetadataUnavailable:
    """Return the error after `ATTEMPTS` attempts."""
    return MetadataUnavailable(f"the record of {what} changes all the time: try again")
