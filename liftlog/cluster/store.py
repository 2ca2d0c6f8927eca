"""The store of the records, as everything above it sees it: seven calls on keys and values.

The only operation that decides anything is compare-and-set (CAS). What a read returns may be out of
date when it arrives, so it is a guess, which the next CAS confirms or refutes. A revision belongs
to one store only: it begins again when the store is made again. What fences a leader is therefore
never a revision but the version and the epoch inside of the record.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from liftlog.errors import InvalidArgument

CLUSTER_KEY = "cluster"
"""Holds the id of the cluster whose store this is."""
MAX_VALUE_BYTES = 64 * 1024
MAX_GIVEN_BYTES = 48 * 1024
"""Of a record as an operator or a client makes it: nodes add to it what they decide later, and a
stream whose record is full could get no other leader."""


class MetaStoreError(Exception):
    """A call to the store failed. Only the classes below are raised; the message says what to
    do."""


class CasLost(MetaStoreError):
    """The key is not at the expected revision. The change was not made and never will be: read
    again, and decide again."""


class CasUnknown(MetaStoreError):
    """The store did not say what became of the change: it was made, it will be made **later**, or
    it never will. Until a read shows a newer version, act as if both outcomes were true."""


class StoreUnavailable(MetaStoreError):
    """The store cannot be reached, or cannot be read or written. Nothing was changed; the call may
    be repeated."""


def check_size(key: str, value: bytes) -> None:
    """Raises InvalidArgument when no store takes the value."""
    if len(value) > MAX_VALUE_BYTES:
        raise InvalidArgument(
            f"the record {key} has {len(value):,} bytes, more than the {MAX_VALUE_BYTES:,} that "
            "the metadata store takes"
        )


def check_given(key: str, value: bytes) -> None:
    """Raises InvalidArgument when a record that is asked for leaves too little room."""
    if len(value) > MAX_GIVEN_BYTES:
        raise InvalidArgument(
            f"the record {key} would have {len(value):,} bytes, and a cluster takes "
            f"{MAX_GIVEN_BYTES:,}",
            hint="give the stream less metadata, or fewer subjects",
        )


class Entry(NamedTuple):
    """A value and the revision at which it was written, from 1 on."""

    revision: int
    value: bytes


OnChange = Callable[[str, Entry | None], None]
"""Called with the key and its newest entry, None when the key is gone."""


class NodeSession(Protocol):
    """A key that exists as long as its holder renews it."""

    @property
    def renewed_at(self) -> float:
        """When the last acknowledged renewal was sent, as `time.monotonic()` in seconds: the store
        worked then."""
        ...

    @property
    def deadline(self) -> float:
        """Until when no other process can see the key expire, as `time.monotonic()` in seconds:
        `renewed_at` plus 0.8 of the TTL. A session whose key was taken over or cannot be renewed
        keeps its last deadline, which passes."""
        ...

    async def taken_over(self) -> None:
        """Return when another process has written the key, which had expired before."""
        ...

    async def close(self) -> None:
        """Stop renewing and delete the key, if it is still the own one. Does not raise: a key that
        cannot be deleted expires."""
        ...


class MetaStore(Protocol):
    """A key is words joined by dots, such as `stream.orders`; a word consists of letters, digits,
    `-`, `_`, `=` and `/`. A value is JSON in UTF-8, of at most 64 KiB; the store does not look into
    it.

    A call that is cancelled may have changed the store, as after CasUnknown.
    """

    async def get(self, key: str) -> Entry | None:
        """The entry, None when there is none. Raises StoreUnavailable."""
        ...

    async def get_newest(self, key: str) -> Entry | None:
        """As `get`, and at some moment during the call this was the newest entry. For a decision
        that no CAS of this key confirms; it may cost a write. Raises StoreUnavailable."""
        ...

    async def cas(self, key: str, value: bytes, revision: int) -> int:
        """Write `value` if the key is at `revision`; 0: if the key does not exist. Returns the new
        revision; the change is as durable as the store is. Raises CasLost, CasUnknown,
        StoreUnavailable, and InvalidArgument for a value that is too large."""
        ...

    async def delete(self, key: str, revision: int) -> None:
        """Delete the key if it is at `revision`. Raises as `cas`."""
        ...

    async def scan(self, prefix: str) -> dict[str, Entry]:
        """All entries whose key begins with `prefix`. Raises StoreUnavailable."""
        ...

    async def watch(self, prefix: str, on_change: OnChange) -> None:
        """Report the keys that begin with `prefix`: all of them once, then what changes. Runs until
        it is cancelled.

        A hint: it may come late, and of several changes of a key only the last may be reported. A
        store that is unavailable meanwhile is logged, and the watch continues.
        """
        ...

    async def session(
        self, key: str, value: bytes, ttl_seconds: int, revision: int = 0
    ) -> NodeSession:
        """Write the key if it is at `revision`, as with `cas`, and renew it in the background.
        Without renewal it is gone `ttl_seconds` after the last one. Raises CasLost, CasUnknown,
        StoreUnavailable."""
        ...
