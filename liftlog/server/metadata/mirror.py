"""This node's copy of the metadata in the store, and its changes of the records of streams.

The result of a read may already be outdated when it arrives. So every change reads a record,
applies a pure function to it, and commits the result by compare-and-set. If another node was
faster, the change starts again with a new read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

from liftlog.cluster import transitions
from liftlog.cluster.guard import is_regressed
from liftlog.cluster.record import Change, StreamMetadata
from liftlog.cluster.store import (
    Entry,
    MetaStore,
    MetaStoreError,
    StoreUnavailable,
    check_given,
)
from liftlog.errors import (
    CorruptMetadata,
    LiftlogError,
    MetadataUnavailable,
    NewerFormat,
)
from liftlog.server.metadata.counted_store import ATTEMPTS, CountedStore, busy
from liftlog.server.metadata.known_records import KnownRecords
from liftlog.server.metadata.membership import Directory
from liftlog.server.metadata.node_records import NODE_PREFIX, NodeRecords

logger = logging.getLogger("liftlog.server.replication")

STREAM_PREFIX = "stream."
_CHANGES_AT_ONCE = 64
"""Maximum number of concurrent changes. A node with many streams changes the records of all its
streams when it starts and when it stops. More concurrent changes would delay urgent requests to the
store, such as the renewal of the session."""
_LOAD_ATTEMPTS = 20
_LOAD_PAUSE_SECONDS = 0.5


def record_of(key: str, entry: Entry) -> StreamMetadata:
    """Parse the entry of a stream. Raises CorruptMetadata, UnsupportedFormat."""
    record = StreamMetadata.from_json(entry.value)
    if STREAM_PREFIX + record.name != key:
        raise CorruptMetadata(f"the key {key} holds the record of stream {record.name!r}")
    return record


class Mirror:
    """This node's copy of the metadata in the store. Belongs to one event loop.

    `on_record` is called with each newer record of a stream. `on_nodes` is called when a node was
    added, changed or removed.
    """

    def __init__(
        self,
        store: MetaStore,
        *,
        on_record: Callable[[StreamMetadata], None],
        on_nodes: Callable[[], None],
        kept: KnownRecords | None = None,
    ) -> None:
        self.directory = Directory()
        self.records: dict[str, StreamMetadata] = {}
        self.changes = 0
        """Number of times that the record of a stream has changed or was removed."""
        self.known: dict[str, StreamMetadata] = {}
        """The newest records of streams that this node has received, in this start or earlier
        starts."""
        self.doubtful: set[str] = set()
        """Streams whose stored record may be older than a record that this node has received."""
        self.regressed: set[str] = set()
        """Streams whose stored record is older than a record that this node has received. No node
        leads, or is elected, on the basis of such an old record."""
        self.newer: dict[str, str] = {}
        """Streams whose record only a newer version can read, and the reason."""
        self._kept = kept
        self._store = CountedStore(store)
        self.nodes = NodeRecords(self._store, self.directory, self._note)
        self._turns = asyncio.Semaphore(_CHANGES_AT_ONCE)
        self._revisions: dict[str, int] = {}
        self._on_record = on_record
        self._on_nodes = on_nodes
        self._is_loaded = False

    @property
    def writes(self) -> Mapping[str, int]:
        """Number of attempts to change a record, by result."""
        return self._store.writes

    async def load(self) -> None:
        """Read the whole store once. Raises MetadataUnavailable if the store is unreachable for too
        long."""
        for attempts_left in reversed(range(_LOAD_ATTEMPTS)):
            try:
                entries = await self._store.raw.scan("")
                break
            except StoreUnavailable as error:
                if not attempts_left:
                    raise MetadataUnavailable(str(error)) from error
                logger.warning("records-not-read error=%s", error)
                await asyncio.sleep(_LOAD_PAUSE_SECONDS)
        self._is_loaded = True
        for key, entry in entries.items():
            self._note(key, entry)
        for name in [one for one in self.known if STREAM_PREFIX + one not in entries]:
            self._note_purged(name)

    def remember(self, records: Mapping[str, StreamMetadata]) -> None:
        """Add the records that this node has received in earlier starts.

        Call this before `load`. If these records cannot be read at that time, call it later. Until
        then `check_memory` prevents this node from changing metadata.
        """
        for name, record in records.items():
            seen = self.known.get(name)
            if seen is None:
                self.known[name] = record
                if self._is_loaded:
                    self._note_purged(name)
            elif is_regressed(record, seen):
                self._doubt(record)

    def _doubt(self, record: StreamMetadata) -> None:
        """Mark a stream as doubtful. This node received the given record before its last restart.
        Since then it has read neither this record nor a newer one from the store."""
        self.known[record.name] = record
        self.doubtful.add(record.name)
        self.records.pop(record.name, None)
        self._revisions.pop(record.name, None)
        self.changes += 1
        if self._kept is not None:
            self._kept.note(record)

    def check_memory(self) -> None:
        """Raise MetadataUnavailable while this node cannot read the records that it has received in
        earlier starts. Without these records, the node cannot detect that the store was restored to
        an older state."""
        if self._kept is not None and self._kept.problem:
            raise MetadataUnavailable(
                f"what this node has seen of the metadata cannot be read: {self._kept.problem}"
            )

    async def remembered(self) -> None:
        """Wait until the current records are durable on this node, so that they survive a loss of
        the store. Raises StorageError."""
        if self._kept is not None:
            await self._kept.written()

    async def hold(self, record: StreamMetadata) -> None:
        """Note that this node has a copy of the stream from now on. Durable on return. Raises
        StorageError."""
        if self._kept is not None:
            await self._kept.hold(record.name, record.incarnation)

    def has_held(self, record: StreamMetadata) -> bool | None:
        """Return True if this node has had a copy of the stream in its directory; None if the node
        does not know."""
        if self._kept is None:
            return None
        return self._kept.has_held(record.name, record.incarnation)

    async def run(self) -> None:
        """Receive changes until cancelled."""
        await self._store.raw.watch("", self._note)

    def _note(self, key: str, entry: Entry | None) -> None:
        try:
            if key.startswith(("node.", "live.")):
                if self._kept is not None and key.startswith(NODE_PREFIX):
                    self._kept.note_node(key[len(NODE_PREFIX) :], entry and entry.value)
                if self.directory.note(key, entry):
                    self._on_nodes()
            elif key.startswith(STREAM_PREFIX) and entry is not None:
                if not self._has_noted(key.removeprefix(STREAM_PREFIX), entry):
                    self._note_record(record_of(key, entry), entry.revision)
            elif key.startswith(STREAM_PREFIX):
                self._note_purged(key.removeprefix(STREAM_PREFIX))
        except LiftlogError as error:
            if isinstance(error, NewerFormat):
                self.newer[key.removeprefix(STREAM_PREFIX)] = str(error)
            logger.error("record-not-read key=%s error=%s", key, error)  # noqa: TRY400

    def _has_noted(self, name: str, entry: Entry) -> bool:
        """Return True if this entry is the newest known record. The entry is then not parsed again.
        This is usually the case on the node that has just stored the entry."""
        known = self.records.get(name)
        return (
            known is not None
            and self._revisions[name] == entry.revision
            and known.to_json() == entry.value
        )

    def _note_record(self, record: StreamMetadata, revision: int) -> None:
        """Adopt a newer version of a record. If the version is older, either the notice is late, or
        the store was restored to an older state."""
        seen = self.known.get(record.name)
        if seen is not None and is_regressed(seen, record):
            self.doubtful.add(record.name)
            return
        known = self.records.get(record.name)
        is_same_stream = known is not None and known.incarnation == record.incarnation
        if is_same_stream and known is not None and record.version <= known.version:
            if record.version == known.version:  # the known record may have come from another node
                self._revisions[record.name] = max(revision, self._revisions[record.name])
            return
        if not is_same_stream and revision <= self._revisions.get(record.name, 0):
            return
        self._adopt(record, revision)

    def _adopt(self, record: StreamMetadata, revision: int) -> None:
        self.records[record.name] = self.known[record.name] = record
        self.newer.pop(record.name, None)
        self._revisions[record.name] = revision
        self.changes += 1
        if self._kept is not None:
            self._kept.note(record)
        self._on_record(record)

    def _note_purged(self, name: str) -> None:
        """Note that the store no longer has the record of a stream. If the stream was not deleted,
        only a loss of metadata can have removed the record, so the record stays valid."""
        known = self.known.get(name)
        if known is None or not known.deleted:
            if known is not None:
                self.doubtful.add(name)
            return
        del self.known[name]
        self.changes += 1
        self.records.pop(name, None)
        self._revisions.pop(name, None)
        if self._kept is not None:
            self._kept.forget(name)

    # --- changes ---

    async def create(self, record: StreamMetadata, *, has_log: bool = False) -> StreamMetadata:
        """Store the first record of a stream. It may replace the record of a deleted stream.
        Returns the record that exists afterwards.

        If `has_log` is true, a daemon without a cluster had the stream. The settings of such a
        stream may exceed the size limit. Raises MetadataUnavailable. Raises InvalidArgument if the
        settings of any other stream are too large.
        """
        async with self._turns:
            for _ in range(ATTEMPTS):
                entry, first = await self._get(record.name), record
                present = self._believed(record.name, entry)
                if entry is not None and present is not None:
                    if not present.deleted:
                        self._note_record(present, entry.revision)
                        return present
                    first = transitions.in_place_of(record, present)
                if not has_log:
                    check_given(STREAM_PREFIX + record.name, record.to_json())
                if await self._cas(first, 0 if entry is None else entry.revision):
                    return first
        raise busy(f"stream {record.name}")

    async def change(
        self, name: str, step: Callable[[StreamMetadata], StreamMetadata | None]
    ) -> StreamMetadata | None:
        """Apply `step` to the record of a stream. `step` returns None if nothing has to be changed.
        Returns the record afterwards; None if the store has no record. Raises the errors of `step`,
        and MetadataUnavailable.

        The record is always read from the store first, even if the mirror has a record. If the
        store was restored from a backup, another node may have written a different record with the
        same revision. A compare-and-set against the mirror's revision would overwrite that record.
        """
        async with self._turns:
            for _ in range(ATTEMPTS):
                entry = await self._get(name)
                record = self._believed(name, entry)
                if entry is None or record is None:
                    return None
                self._note_record(record, entry.revision)
                after = step(record)
                if after is None:
                    return record
                if await self._cas(after, entry.revision):
                    return after
        raise busy(f"stream {name}")

    async def purge(self, name: str) -> None:
        """Remove the record of a deleted stream of which no node has a copy. The record stays if
        another change came first, or if the store does not answer. Raises CorruptMetadata."""
        try:
            entry = await self._store.raw.get(STREAM_PREFIX + name)
            if entry is None:
                self._note_purged(name)
                return
            record = record_of(STREAM_PREFIX + name, entry)
            if record.deleted and not record.starts:
                await self._store.raw.delete(STREAM_PREFIX + name, entry.revision)
                self._note_purged(name)
                logger.info("record-purged stream=%s", name)
        except MetaStoreError as error:
            logger.info("record-not-purged stream=%s reason=%s", name, error)

    async def update(
        self, name: str, step: Callable[[StreamMetadata], StreamMetadata | None]
    ) -> StreamMetadata | None:
        """Change the settings of a stream, like `change`. Raises InvalidArgument if the new
        settings are too large, unless the present settings are even larger."""

        def checked(present: StreamMetadata) -> StreamMetadata | None:
            after = step(present)
            if after is not None:
                with_these = replace(present, settings=after.settings).to_json()
                if len(with_these) > len(present.to_json()):
                    check_given(STREAM_PREFIX + name, with_these)
            return after

        return await self.change(name, checked)

    def told(self, record: StreamMetadata) -> None:
        """Adopt a record that another node has sent. This is necessary because the store may not
        notify this node for a long time. This node does not know the revision of the record."""
        known = self.records.get(record.name)
        if (
            known is not None
            and known.incarnation == record.incarnation
            and known.version < record.version
        ):
            self._note_record(record, 0)

    async def commit(self, change: Change) -> None:
        """Try a leader's change of the in-sync set once, after a read as in `change`. If another
        change came first, a newer record shows the result, or the leader requests the change again.
        Raises MetadataUnavailable, CorruptMetadata."""
        name = change.after.name
        known = self.records.get(name)
        if known is None or known.version != change.before.version:
            return
        for _ in range(2):  # if another change was faster, its read has noted the record
            entry = await self._get(name)
            record = self._believed(name, entry)
            if entry is None or record is None:
                return
            self._note_record(record, entry.revision)
            if record.version != change.before.version:
                return
            if await self._cas(change.after, entry.revision):
                return

    def _believed(self, name: str, entry: Entry | None) -> StreamMetadata | None:
        """Parse and return the stored record. Raises CorruptMetadata. Raises MetadataUnavailable if
        this node has received a newer record, because a change must not be based on an outdated
        record."""
        self.check_memory()
        known = self.known.get(name)
        if entry is not None and known is not None and known.to_json() == entry.value:
            return known  # the usual case: the record need not be parsed
        record = None if entry is None else record_of(STREAM_PREFIX + name, entry)
        if known is not None and is_regressed(known, record):
            self.doubtful.add(name)
            raise MetadataUnavailable(
                f"the metadata store has {'no' if record is None else 'an older'} record of stream "
                f"{name} than this node has seen",
                hint="if this persists, the store was set back: see `liftlog cluster status` and "
                "`liftlog cluster restore-metadata`",
            )
        return record

    async def confirmed(self, name: str) -> StreamMetadata | None:
        """Read the stored record that is valid at this moment, adopt it, and return it. To confirm
        the record, a write may be necessary. Raises CorruptMetadata. Raises MetadataUnavailable if
        the store does not answer, or if this node has received a newer record."""
        entry = await self._get_newest(name)
        record = self._believed(name, entry)
        if entry is not None and record is not None:
            self._note_record(record, entry.revision)
        return record

    # --- records that the store has lost ---

    async def read(self, name: str) -> StreamMetadata | None:
        """Return the stored record, even if this node does not trust it. Raises
        MetadataUnavailable, CorruptMetadata."""
        entry = await self._get(name)
        return None if entry is None else record_of(STREAM_PREFIX + name, entry)

    async def read_newest(self, name: str) -> tuple[StreamMetadata | None, int]:
        """Return the stored record that is valid at this moment, and its revision. To confirm the
        record, a write may be necessary."""
        entry = await self._get_newest(name)
        if entry is None:
            return None, 0
        return record_of(STREAM_PREFIX + name, entry), entry.revision

    async def read_newest_or_damaged(self, name: str) -> tuple[StreamMetadata | None, int]:
        """Return the record like `read_newest`. A damaged record counts as missing: the result is
        then None and the revision of the record. Raises UnsupportedFormat, MetadataUnavailable."""
        entry = await self._get_newest(name)
        if entry is None:
            return None, 0
        try:
            return record_of(STREAM_PREFIX + name, entry), entry.revision
        except CorruptMetadata:
            return None, entry.revision

    async def put(self, record: StreamMetadata, revision: int) -> bool:
        """Replace the record that has this revision (0: create it). Returns False if another change
        came first. Raises MetadataUnavailable."""
        self.check_memory()
        return await self._cas(record, revision)

    async def go_over(self, name: str, node: str, checked: StreamMetadata) -> StreamMetadata | None:
        """Adopt the stored record although it is not a successor of the record that this node has
        received. The stored record must be `checked` or a successor of `checked`. In the adopted
        record, the copy of `node` no longer counts. Returns the adopted record; None if the store
        has changed. Raises Conflict, MetadataUnavailable, CorruptMetadata."""
        stored, revision = await self.read_newest(name)
        known = self.known.get(name)
        if stored is None or known is None or not is_regressed(known, stored):
            return None
        if not stored.follows(checked):
            return None
        after = transitions.give_up(stored, node)
        if after is not None:
            written = await self._store.write(STREAM_PREFIX + name, after.to_json(), revision)
            if written is None:
                return None
            stored, revision = after, written
        self.doubtful.discard(name)
        self.regressed.discard(name)
        self._adopt(stored, revision)
        return stored

    # --- the store ---

    async def _get(self, name: str) -> Entry | None:
        return await self._store.read(STREAM_PREFIX + name)

    async def _get_newest(self, name: str) -> Entry | None:
        return await self._store.read_newest(STREAM_PREFIX + name)

    async def _cas(self, record: StreamMetadata, revision: int) -> bool:
        """Store a record if the stored record has this revision. Returns False if another change
        came first."""
        stored = await self._store.write(STREAM_PREFIX + record.name, record.to_json(), revision)
        if stored is None:
            return False
        self._note_record(record, stored)
        return True
