"""A consumer in the journal: its settings, and its state after all deltas."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import NamedTuple, Protocol

from liftlog.deliveries.codec import apply_delta
from liftlog.deliveries.snapshot import decode_snapshot
from liftlog.deliveries.state import ConsumerState
from liftlog.server.jetstream_api.answers import JetStreamError, stream_not_found
from liftlog.server.jetstream_api.consumers.config import ConsumerSpec, parse_consumer
from liftlog.server.jetstream_api.consumers.cursor import Cursor
from liftlog.server.jetstream_api.workers.changes import StreamChanges
from liftlog.server.journal import Change, ConsumerKey, StateVersion, StoredConsumer


class Origin(NamedTuple):
    """Time and place of the creation of a consumer."""

    created_ns: int
    is_local: bool = False
    """True if a client of the pull socket has created the consumer."""


class Loaded(NamedTuple):
    spec: ConsumerSpec
    state: ConsumerState
    version: StateVersion
    origin: Origin
    chosen_end: int
    """Below this offset, the consumer delivers only the records that its deliver policy has chosen.
    0 if the policy has chosen no records."""


class HasOrigin(Protocol):
    origin: Origin
    cursor: Cursor


class Storable(Protocol):
    """A consumer in memory."""

    key: ConsumerKey
    version: StateVersion
    is_closed: bool
    changes: StreamChanges

    @property
    def local(self) -> HasOrigin: ...

    def snapshot(self) -> Change: ...

    def stored_settings(self) -> bytes: ...

    def abandon(self) -> None: ...


def encode_settings(spec: ConsumerSpec, origin: Origin, chosen_end: int) -> bytes:
    """Return the settings that the journal stores together with the state."""
    kept = {"config": spec.config, "created_ns": origin.created_ns, "chosen_end": chosen_end}
    if origin.is_local:
        kept["is_local"] = True
    return json.dumps(kept, separators=(",", ":")).encode()


def load(stored: StoredConsumer, name: str) -> Loaded:
    """Decode a consumer that the journal has read. Raises CorruptState, NewerFormat,
    JetStreamError, ValueError, KeyError."""
    kept = json.loads(stored.settings)
    state, version = decode_snapshot(stored.state), stored.version
    for version, delta in stored.deltas:  # noqa: B007  # the last one counts
        apply_delta(state, delta)
    spec = parse_consumer(kept["config"], name)
    origin = Origin(kept["created_ns"], kept.get("is_local") is True)
    return Loaded(spec, state, version, origin, kept["chosen_end"])


async def store_new(
    changes: StreamChanges, consumer: Storable, is_wanted: Callable[[], bool]
) -> None:
    """Store a new consumer. Durable on return. Raises LiftlogError. Raises JetStreamError if
    `is_wanted` returns False because the stream was deleted. After an error or a cancellation the
    consumer is stopped and is not stored."""
    try:
        await changes.synced(changes.write(consumer.snapshot()))
        if not is_wanted():
            raise stream_not_found()
    except BaseException:
        changes.write(Change.deleted(consumer.key))
        consumer.abandon()
        raise


async def store_settings(
    changes: StreamChanges, consumer: Storable, spec: ConsumerSpec, cursor: Cursor | None
) -> None:
    """Store new settings before they take effect. Durable on return. `cursor` is the new cursor, or
    None if the present cursor stays. Raises LiftlogError. Raises JetStreamError if the consumer is
    deleted during the call. After an error the old settings stay."""
    key, old = consumer.key, consumer.stored_settings()
    chosen_end = (cursor or consumer.local.cursor).chosen_end
    new = encode_settings(spec, consumer.local.origin, chosen_end)
    try:
        await changes.synced(changes.write(Change.updated(key, consumer.version, new)))
    except BaseException:
        changes.write(Change.updated(key, consumer.version, old))
        raise
    if consumer.is_closed:
        raise JetStreamError(404, 10014, "consumer not found")


async def store_deletion(
    changes: StreamChanges, key: ConsumerKey, snapshot: Callable[[], Change | None]
) -> None:
    """Delete a consumer in the journal. Durable on return. Raises LiftlogError. After an error or a
    cancellation, the state that `snapshot` returns is stored again."""
    try:
        await changes.synced(changes.write(Change.deleted(key)))
    except BaseException:
        change = snapshot()
        if change is not None:
            changes.write(change)
        raise
