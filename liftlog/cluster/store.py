"""Interface of the metadata store: seven calls on keys and values.

Only compare-and-set (CAS) decides between writers. The result of a read may be outdated when it
arrives; the next CAS then fails. Revisions are valid only within one store: they begin again when
the store is created again. Therefore leaders are fenced by the version and the epoch inside the
record, never by a revision.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from liftlog.errors import InvalidArgument

CLUSTER_KEY = "cluster"
"""Key that holds the id of the cluster to which the store belongs."""
MAX_VALUE_BYTES = 64 * 1024
MAX_GIVEN_BYTES = 48 * 1024
"""Size limit of a record that an operator or a client creates. The limit leaves space for the
decisions that nodes add later. If the record were full, no other node could become the leader of
its stream."""


class MetaStoreError(Exception):
    """A call to the store failed. Stores raise only the subclasses below. The message contains the
    next step for the operator."""


class CasLost(MetaStoreError):
    """The key is not at the expected revision. The change was not made, and will not be made later.
    The caller must read the key again, and decide again."""


class CasUnknown(MetaStoreError):
    """The store did not report the outcome of the change. The change was made, will be made
    **later**, or will never be made. Until a read shows a newer version, the caller must be
    prepared for each of these outcomes."""


class StoreUnavailable(MetaStoreError):
    """The store cannot be reached, or cannot be read or written. Nothing was changed; the call may
    be repeated."""


def check_size(key: str, value: bytes) -> None:
    """Raise InvalidArgument if the value is too large for the store."""
    if len(value) > MAX_VALUE_BYTES:
        raise InvalidArgument(
            f"the record {key} has {len(value):,} bytes, more than the {MAX_VALUE_BYTES:,} that "
            "the metadata store accepts"
        )


def check_given(key: str, value: bytes) -> None:
    """Raise InvalidArgument if a requested record leaves too little room for later changes."""
    if len(value) > MAX_GIVEN_BYTES:
        raise InvalidArgument(
            f"the record {key} would have {len(value):,} bytes, and a cluster accepts "
            f"{MAX_GIVEN_BYTES:,}",
            hint="give the stream less metadata, or fewer subjects",
        )


class Entry(NamedTuple):
    """A value and the revision at which it was written; revisions begin with 1."""

    revision: int
    value: bytes


OnChange = Callable[[str, Entry | None], None]
"""A callback that receives the key and its newest entry; the entry is None if the key was
deleted."""


class NodeSession(Protocol):
    """A key that exists as long as its holder renews it."""

    @property
    def renewed_at(self) -> float:
        """Time at which the last acknowledged renewal was sent, as `time.monotonic()` in seconds.
        The store was reachable at that time."""
        ...

    @property
    def deadline(self) -> float:
        """Time before which the key cannot expire for any other process, as `time.monotonic()` in
        seconds.

        The deadline is `renewed_at` plus 0.8 of the TTL. If the key was taken over or cannot be
        renewed, the deadline does not change, and passes.
        """
        ...

    async def taken_over(self) -> None:
        """Wait until the key has expired and another process has written it again."""
        ...

    async def close(self) -> None:
        """Stop renewing, and delete the key if this session still owns it. Does not raise: if the
        key cannot be deleted, it expires."""
        ...


class MetaStore(Protocol):
    """A store of keys and values with compare-and-set.

    A key consists of words joined by dots, such as `stream.orders`; a word consists of letters,
    digits, `-`, `_`, `=` and `/`. A value is JSON in UTF-8, of at most 64 KiB, which the store does
    not interpret. A call that is cancelled may have changed the store, as after CasUnknown.
    """

    async def get(self, key: str) -> Entry | None:
        """Return the entry; None if the key does not exist. Raises StoreUnavailable."""
        ...

    async def get_newest(self, key: str) -> Entry | None:
        """Like `get`, but the entry was the newest one at some moment during the call.

        Use it for decisions that are not confirmed by a CAS of the same key. The call may need a
        write. Raises StoreUnavailable.
        """
        ...

    async def cas(self, key: str, value: bytes, revision: int) -> int:
        """Write `value` if the key is at `revision`; 0 means that the key must not exist.

        Returns the new revision; the change is as durable as the store is. Raises CasLost,
        CasUnknown, StoreUnavailable, and InvalidArgument for a value that is too large.
        """
        ...

    async def delete(self, key: str, revision: int) -> None:
        """Delete the key if it is at `revision`. Raises the same errors as `cas`."""
        ...

    async def scan(self, prefix: str) -> dict[str, Entry]:
        """Return all entries whose key begins with `prefix`. Raises StoreUnavailable."""
        ...

    async def watch(self, prefix: str, on_change: OnChange) -> None:
        """Report the keys that begin with `prefix`: first all existing keys, then changes. Runs
        until cancelled.

        Reports are hints: they may come late, and of several changes of a key only the last may be
        reported. While the store is unavailable, the watch logs the problem and continues.
        """
        ...

    async def session(
        self, key: str, value: bytes, ttl_seconds: int, revision: int = 0
    ) -> NodeSession:
        """Write the key if it is at `revision`, as `cas` does, and renew it in the background.

        The key disappears `ttl_seconds` after its last renewal. Raises CasLost, CasUnknown,
        StoreUnavailable.
        """
        ...
