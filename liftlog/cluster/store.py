"""Interface of the metadata store: seven calls on keys and values.

Compare-and-set (CAS) is the only operation that decides anything. The result of a read may be out
of date when it arrives, so it is a guess that the next CAS confirms or refutes. Revisions are valid
within one store only: they begin again when the store is created again. So leaders are fenced by
the version and the epoch inside of the record, never by a revision.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from liftlog.errors import InvalidArgument

CLUSTER_KEY = "cluster"
"""Holds the id of the cluster whose store this is."""
MAX_VALUE_BYTES = 64 * 1024
MAX_GIVEN_BYTES = 48 * 1024
"""Size limit of a record that an operator or a client creates. Nodes add their own decisions to it
later, and a stream whose record is full could not change its leader."""


class MetaStoreError(Exception):
    """A call to the store failed. Only the classes below are raised; the message says what to
    do."""


class CasLost(MetaStoreError):
    """The key is not at the expected revision. The change was not made and never will be: read
    again, and decide again."""


class CasUnknown(MetaStoreError):
    """The store did not report the outcome of the change: it was made, it will be made **later**,
    or it never will. Until a read shows a newer version, act as if both outcomes were true."""


class StoreUnavailable(MetaStoreError):
    """The store cannot be reached, or cannot be read or written. Nothing was changed; the call may
    be repeated."""


def check_size(key: str, value: bytes) -> None:
    """Raise InvalidArgument if the value is too large for the store."""
    if len(value) > MAX_VALUE_BYTES:
        raise InvalidArgument(
            f"the record {key} has {len(value):,} bytes, more than the {MAX_VALUE_BYTES:,} that "
            "the metadata store takes"
        )


def check_given(key: str, value: bytes) -> None:
    """Raise InvalidArgument if a requested record leaves too little room for later changes."""
    if len(value) > MAX_GIVEN_BYTES:
        raise InvalidArgument(
            f"the record {key} would have {len(value):,} bytes, and a cluster takes "
            f"{MAX_GIVEN_BYTES:,}",
            hint="give the stream less metadata, or fewer subjects",
        )


class Entry(NamedTuple):
    """A value and the revision at which it was written; revisions begin with 1."""

    revision: int
    value: bytes


OnChange = Callable[[str, Entry | None], None]
"""Called with the key and its newest entry; None if the key is gone."""


class NodeSession(Protocol):
    """A key that exists as long as its holder renews it."""

    @property
    def renewed_at(self) -> float:
        """When the last acknowledged renewal was sent, as `time.monotonic()` in seconds. The store
        was reachable at that time."""
        ...

    @property
    def deadline(self) -> float:
        """Time up to which no other process can see the key expire, as `time.monotonic()` in
        seconds.

        It is `renewed_at` plus 0.8 of the TTL. A session whose key was taken over or cannot be
        renewed keeps its last deadline, which passes.
        """
        ...

    async def taken_over(self) -> None:
        """Return when another process has written the key, which had expired before."""
        ...

    async def close(self) -> None:
        """Stop renewing, and delete the key if this session still owns it. Does not raise: a key
        that cannot be deleted expires."""
        ...


class MetaStore(Protocol):
    """A store of keys and values with compare-and-set.

    A key consists of words joined by dots, such as `stream.orders`; a word consists of letters,
    digits, `-`, `_`, `=` and `/`. A value is JSON in UTF-8, of at most 64 KiB, which the store does
    not interpret. A call that is cancelled may have changed the store, as after CasUnknown.
    """

    async def get(self, key: str) -> Entry | None:
        """Return the entry; None if there is none. Raises StoreUnavailable."""
        ...

    async def get_newest(self, key: str) -> Entry | None:
        """As `get`, but the result was the newest entry at some moment during the call.

        For a decision that no CAS of this key confirms; it may cost a write. Raises
        StoreUnavailable.
        """
        ...

    async def cas(self, key: str, value: bytes, revision: int) -> int:
        """Write `value` if the key is at `revision`; 0 means that the key must not exist.

        Returns the new revision; the change is as durable as the store is. Raises CasLost,
        CasUnknown, StoreUnavailable, and InvalidArgument for a value that is too large.
        """
        ...

    async def delete(self, key: str, revision: int) -> None:
        """Delete the key if it is at `revision`. Raises as `cas`."""
        ...

    async def scan(self, prefix: str) -> dict[str, Entry]:
        """Return all entries whose key begins with `prefix`. Raises StoreUnavailable."""
        ...

    async def watch(self, prefix: str, on_change: OnChange) -> None:
        """Report the keys that begin with `prefix`: first all of them, then changes. Runs until
        cancelled.

        Reports are hints: they may come late, and of several changes of a key only the last may be
        reported. If the store is unavailable meanwhile, this is logged and the watch continues.
        """
        ...

    async def session(
        self, key: str, value: bytes, ttl_seconds: int, revision: int = 0
    ) -> NodeSession:
        """Write the key if it is at `revision`, as `cas` does, and renew it in the background.

        Without renewal the key disappears `ttl_seconds` after the last one. Raises CasLost,
        CasUnknown, StoreUnavailable.
        """
        ...
