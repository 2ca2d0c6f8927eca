"""The metadata records of a daemon without a cluster, in `<data_dir>/records`.

Without a cluster the directories of the streams are authoritative, and the records are derived from
them. A change of a manifest is copied into the record at the next start at the latest. So older
versions of liftlog, which do not have the file, may create, change and delete streams. If the
daemon stops between the write of a manifest and the write of its record, nothing is lost.

The record of a new stream is written later than its manifest, together with the records of other
new streams: within 5 s, and at a stop. A start creates a missing record from the manifest.

An unclean start raises the leader epoch in the manifest while it opens the log, and then in the
record. All records that a start changes are stored with one write. If a log has an older epoch than
its record, the directory of the log was restored to an older state. The log then continues in an
epoch above both. So readers that have read beyond the log's end get an error.

The file also names the streams that the directory has held. If the directory of such a stream is
missing, it was lost, for example because of a forgotten mount. Its offsets must not be used again.
Only this file contains the list. While the file cannot be read, no stream is created, and the file
does not change. An operator must then restore the file. By removing the file instead, the operator
confirms that no stream is missing.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from liftlog.cluster.record import StreamMetadata
from liftlog.cluster.store import CasLost, CasUnknown, Entry, MetaStoreError
from liftlog.cluster.transitions import create, register, truncate, update
from liftlog.errors import CorruptMetadata, DiskFull, LiftlogError, StorageError, UnsupportedFormat
from liftlog.log import Log
from liftlog.log.files.filesystem import FileSystem, is_full
from liftlog.log.files.unreadable import read_small_file
from liftlog.server.metadata.file_store import FileMetaStore
from liftlog.server.metadata.records_file import Change, parse_records

logger = logging.getLogger("liftlog.server")

RECORDS_NAME = "records"
LOCAL = "local"
"""The node of a daemon without a cluster."""
_PREFIX = "stream."
_HELD_PREFIX = "held."
_HELD = b"{}"
_TRIES = 5
_BEHIND_SECONDS = 5.0
"""Maximum time, in seconds, until the records of new streams are written."""


class ManifestFacts(NamedTuple):
    """The facts about a stream that the manifest of its open log contains."""

    name: str
    incarnation: str
    leader_epoch: int
    log_start_offset: int
    settings: Mapping[str, Any]
    is_system: bool = False

    @classmethod
    def of(cls, log: Log) -> ManifestFacts:
        manifest = log.view.manifest
        return cls(
            log.name,
            manifest.incarnation,
            manifest.leader_epoch,
            manifest.log_start_offset,
            manifest.metadata.get("settings", {}),
            log.name.startswith("_"),
        )


def read_stored_record(fs: FileSystem, data_dir: Path, name: str) -> StreamMetadata | None:
    """Return the record of a stream, for tools that run without the daemon; None if no readable
    record exists. Blocking."""
    try:
        raw = read_small_file(fs, data_dir / RECORDS_NAME)
        if not isinstance(raw, bytes):
            return None
        stored = parse_records(raw, RECORDS_NAME).entries.get(_PREFIX + name)
        record = None if stored is None else StreamMetadata.from_json(stored.entry.value)
    except (CorruptMetadata, UnsupportedFormat, OSError):
        return None
    return None if record is None or record.deleted else record


def following(
    record: StreamMetadata | None, facts: ManifestFacts, *, closed: bool
) -> StreamMetadata:
    """Return the record that matches the manifest. If `record` matches, it is returned; otherwise
    its next version.

    `closed` means that no record was added to the log after the state in the manifest. This is the
    case after a clean stop, and while the log is open. Otherwise the result counts a new start. The
    leader epoch of the result is at least the epoch of the manifest. If it is higher, the log must
    begin that epoch.
    """
    if record is None or record.incarnation != facts.incarnation or record.members != (LOCAL,):
        made = create(
            facts.name,
            facts.incarnation,
            facts.settings,
            [LOCAL],
            starts={LOCAL: 1},
            leader_epoch=facts.leader_epoch,
            system=facts.is_system,
        )
        return made if record is None else replace(made, version=record.version + 1)
    after = record
    if record.deleted or record.leader != LOCAL or record.isr != (LOCAL,):
        after = replace(record, deleted=False, leader=LOCAL, isr=(LOCAL,))
    if not closed:
        start = record.starts.get(LOCAL, 0) + 1
        after = register(after, LOCAL, start, clean=True) or after
    if after.settings != facts.settings:
        after = update(after, facts.settings) or after
    epoch = max(after.leader_epoch, facts.leader_epoch)
    if closed and facts.leader_epoch < epoch:
        epoch += 1
    log_start = min(after.log_start, facts.log_start_offset)
    if (epoch, log_start) != (after.leader_epoch, after.log_start):
        after = replace(after, leader_epoch=epoch, log_start=log_start)
    if after is record:
        return record
    return replace(after, version=record.version + 1)


def _certainly_follows(value: bytes, facts: ManifestFacts) -> bool:
    """Return True if a stored record certainly matches the manifest. The check takes a quarter of
    the time of `following`. This is important because a start checks every stream."""
    try:
        record = json.loads(value)
        return bool(
            record["incarnation"] == facts.incarnation
            and record["leader_epoch"] == facts.leader_epoch
            and record["settings"] == facts.settings
            and record["log_start"] <= facts.log_start_offset
            and record["replicas"] == record["isr"] == [record["leader"]] == [LOCAL]
            and not record["deleted"]
        )
    except (ValueError, KeyError, TypeError):
        return False


class StreamRecords:
    """The records of a daemon without a cluster. Belongs to the event loop."""

    def __init__(self, store: FileMetaStore, *, behind_seconds: float = _BEHIND_SECONDS) -> None:
        """`behind_seconds` is the time, in seconds, after which the records of new streams are
        written."""
        self._store = store
        self._behind_seconds = behind_seconds
        self._entries: dict[str, Entry] = {}
        """The stored entries, by stream."""
        self._held: dict[str, int] = {}
        """The streams that the directory has held. The values are the revisions of the entries that
        state this."""
        self._due: dict[str, StreamMetadata | None] = {}
        """Changes that are necessary after the start and not stored yet, by stream. None deletes
        the record."""
        self._behind: dict[str, StreamMetadata | None] = {}
        """The new streams that the file does not contain yet. The value is None if the record is
        stored, and only the note that the directory has the stream is missing."""
        self._changing = asyncio.Lock()
        """A lock that is held while records of single streams are written. Without it, the record
        of a new stream could be written after the deletion of the stream."""
        self._timer: asyncio.TimerHandle | None = None
        self._flushing: asyncio.Task[None] | None = None
        self.problem = ""
        """The reason why the file could not be read; empty if it could be read, or does not
        exist."""

    def close(self) -> None:
        """Wait for the current write. Nothing is stored afterwards. Call `flush` before."""
        if self._timer is not None:
            self._timer.cancel()
        self._store.close()

    def record(self, name: str) -> StreamMetadata | None:
        """Return the record of a stream, even if it is not written yet. An unreadable record counts
        as missing."""
        waiting = self._behind.get(name)
        if waiting is not None:
            return waiting
        entry = self._entries.get(name)
        if entry is None:
            return None
        try:
            return StreamMetadata.from_json(entry.value)
        except (CorruptMetadata, UnsupportedFormat) as error:
            logger.warning("record-ignored stream=%s error=%s", name, error)
            return None

    # --- the start ---

    async def load(self, present: Collection[str]) -> list[str]:
        """Read the records. Return the streams that this directory has held but that are missing.
        Their records are kept.

        `present` contains the directories on disk. `store` deletes the records of other streams. If
        there is no file, every stream gets a new record. If the file cannot be read, `problem`
        contains the reason, and no stream may be created.
        """
        try:
            entries = await self._store.scan(_PREFIX)
            held = await self._store.scan(_HELD_PREFIX)
        except MetaStoreError as error:
            self.problem = str(error)
            logger.error("records-not-read error=%s", error)  # noqa: TRY400
            return []
        self._entries = {key.removeprefix(_PREFIX): one for key, one in entries.items()}
        self._held = {key.removeprefix(_HELD_PREFIX): one.revision for key, one in held.items()}
        missing = [name for name in self._entries if name not in present]
        lost = [name for name in missing if name in self._held]
        self._due = {name: None for name in missing if name not in lost}
        return lost

    async def hold(self, names: Iterable[str]) -> None:
        """Note, with one write, that the directory has these streams. A failure is only logged,
        because the next start repeats the note."""
        new = [name for name in names if name not in self._held]
        if not new:
            return
        changes = [Change(_HELD_PREFIX + name, _HELD, 0) for name in new]
        try:
            results = await self._store.apply(changes)
        except MetaStoreError as error:
            logger.warning("records-not-stored count=%d error=%s", len(new), error)
            return
        for name, result in zip(new, results, strict=True):
            if isinstance(result, int):
                self._held[name] = result

    def is_held(self, name: str) -> bool:
        """Return True if the directory has held this stream, according to the content of the
        file."""
        return name in self._held

    def opened(self, log: Log, *, clean: bool) -> int:
        """Note that a stream of the data directory was opened; `store` then stores its record.
        Returns the leader epoch in which the log must continue."""
        facts = ManifestFacts.of(log)
        entry = self._entries.get(log.name)
        if clean and entry is not None and _certainly_follows(entry.value, facts):
            return facts.leader_epoch
        record = self.record(log.name)
        try:
            after = following(record, facts, closed=clean)
        except LiftlogError as error:  # settings could not be stored in the manifest
            logger.warning("record-not-made stream=%s error=%s", log.name, error)
            return facts.leader_epoch
        if after is not record:
            self._due[log.name] = after
        return after.leader_epoch

    async def store(self) -> None:
        """Store the changes that the start has found, with one write. A failure is only logged: the
        manifests contain all changes, and the next change or start stores them."""
        due, self._due = self._due, {}
        try:
            await self._store_all(due)
        except MetaStoreError as error:
            logger.warning("records-not-stored count=%d error=%s", len(due), error)

    # --- changes ---

    async def create(
        self, settings: Mapping[str, Mapping[str, Any]], *, is_system: bool = False
    ) -> dict[str, StreamMetadata]:
        """Store and return the records of streams that are about to be created. `settings` contains
        the settings of each stream, by name.

        Durable on return, with one write. Raises StorageError, DiskFull. After an error some
        records may have been stored; the next start deletes them.
        """
        made = {
            name: create(name, uuid.uuid4().hex, one, [LOCAL], starts={LOCAL: 1}, system=is_system)
            for name, one in settings.items()
        }
        try:
            await self._store_all(made)
        except MetaStoreError as error:
            raise _storage_error(error) from error
        return made

    def draw(
        self, name: str, settings: Mapping[str, Any], *, is_system: bool = False
    ) -> StreamMetadata:
        """Create the record of a stream that is about to be created, with a new incarnation. Raises
        StorageError if the file could not be read, because the file may name a lost stream of this
        name."""
        if self.problem:
            raise _not_stored(StorageError, self.problem)
        incarnation = uuid.uuid4().hex
        return create(name, incarnation, settings, [LOCAL], starts={LOCAL: 1}, system=is_system)

    def created(self, record: StreamMetadata) -> None:
        """Store the record of a stream whose manifest is durable, and note that the directory has
        the stream. Both are written within 5 s. Until then, only its directory shows that the
        stream exists."""
        self._behind[record.name] = record
        self._flush_later()

    def _flush_later(self) -> None:
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._behind_seconds, self._begin_flush)

    def _begin_flush(self) -> None:
        self._timer = None
        self._flushing = asyncio.get_running_loop().create_task(self.flush(), name="records")

    async def flush(self) -> None:
        """Store the records of new streams that are not stored yet. A failure is only logged. The
        next flush repeats the write, and a start creates missing records from the manifests."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        async with self._changing:
            behind, self._behind = self._behind, {}
            if not behind:
                return
            try:
                await self._store_all({name: one for name, one in behind.items() if one})
            except MetaStoreError as error:
                self._behind = behind | self._behind
                self._flush_later()
                logger.warning("records-not-stored count=%d error=%s", len(behind), error)
            else:
                await self.hold(behind)

    async def changed(self, log: Log) -> None:
        """Update the record after a change of the settings in the manifest. Durable on return. A
        failure is only logged; see `store`."""
        await self._follow(log, log_start=0)

    async def truncated(self, log: Log, offset: int) -> None:
        """Update the record after an administrator has made `offset` the log start. Apart from
        that, like `changed`."""
        await self._follow(log, log_start=offset)

    async def removed(self, name: str) -> None:
        """Note that the stream is about to be deleted. Apart from that, like `changed`."""
        async with self._changing:
            self._behind.pop(name, None)
            try:
                revision = self._held.pop(name, 0)
                if revision:
                    with contextlib.suppress(CasLost):
                        await self._store.delete(_HELD_PREFIX + name, revision)
                await self._commit(name, partial(_instead, None))
            except MetaStoreError as error:
                logger.warning("record-not-deleted stream=%s error=%s", name, error)

    async def _follow(self, log: Log, *, log_start: int) -> None:
        def change(record: StreamMetadata | None) -> StreamMetadata:
            after = following(record, ManifestFacts.of(log), closed=True)
            return truncate(after, log_start) or after

        async with self._changing:
            if log.name in self._behind:  # the record that is written next is newer
                self._behind[log.name] = None
            try:
                await self._commit(log.name, change)
            except (MetaStoreError, LiftlogError) as error:
                logger.warning("record-not-stored stream=%s error=%s", log.name, error)

    async def _store_all(self, records: Mapping[str, StreamMetadata | None]) -> None:
        """Store or delete these records with one write, regardless of the stored records. Raises
        MetaStoreError."""
        changes: dict[str, Change] = {}
        for name, record in records.items():
            entry = self._entries.get(name)
            value = None if record is None else record.to_json()
            if value is not None or entry is not None:
                revision = 0 if entry is None else entry.revision
                changes[name] = Change(_PREFIX + name, value, revision)
        if not changes:
            return
        results = await self._store.apply(list(changes.values()))
        for (name, change), result in zip(changes.items(), results, strict=True):
            if not isinstance(result, int):
                await self._read_again(name)
                await self._commit(name, partial(_instead, records[name]))
            elif change.value is None:
                del self._entries[name]
            else:
                self._entries[name] = Entry(result, change.value)

    async def _commit(self, name: str, change: NextRecord) -> None:
        """Apply `change` to the stored record and store the result. Raises MetaStoreError."""
        key = _PREFIX + name
        for tries_left in reversed(range(_TRIES)):
            entry = self._entries.get(name)
            revision = 0 if entry is None else entry.revision
            before = self.record(name)
            after = change(before)
            try:
                if after is None:
                    if entry is not None:
                        await self._store.delete(key, revision)
                        self._entries.pop(name, None)
                elif after is not before:
                    value = after.to_json()
                    made = await self._store.cas(key, value, revision)
                    self._entries[name] = Entry(made, value)
            except (CasLost, CasUnknown):
                await self._read_again(name)
                if not tries_left:
                    raise
            else:
                return

    async def _read_again(self, name: str) -> None:
        entry = await self._store.get(_PREFIX + name)
        if entry is None:
            self._entries.pop(name, None)
        else:
            self._entries[name] = entry


NextRecord = Callable[[StreamMetadata | None], StreamMetadata | None]
"""Function that maps the stored record to the new record. Returns None to delete the record."""


def _instead(record: StreamMetadata | None, before: StreamMetadata | None) -> StreamMetadata | None:
    """Return `record` with a version with which it can replace the stored record `before`."""
    if record is None or before is None or record.version > before.version:
        return record
    return replace(record, version=before.version + 1)


def _storage_error(error: MetaStoreError) -> LiftlogError:
    is_of_space = isinstance(error.__cause__, OSError) and is_full(error.__cause__)
    return _not_stored(DiskFull if is_of_space else StorageError, error)


def _not_stored(kind: type[LiftlogError], problem: object) -> LiftlogError:
    return kind(f"no stream can be created, since its record cannot be stored: {problem}")
