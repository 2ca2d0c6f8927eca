"""The log of the journal and its ledger: appends, syncs, rolls back after a failed sync, and cuts
off old segments. Each change has a position: its number since the start. Changes that are appended
but not synced stay in memory. After a failed sync, they are appended again.

Threads: `write`, `sync`, `abandon` and `cut` may run in another thread. All other methods belong to
the event loop. Only one of `write`, `sync` and `abandon` may run at a time, with one exception:
`write` may run during `sync` if it does not roll to another segment.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from liftlog.errors import SyncFailed
from liftlog.log import ActiveState, EncodedBatch, Log
from liftlog.records.encode import encode_batch
from liftlog.records.format import MAX_BATCH_RECORDS
from liftlog.server.journal.content import StoredConsumer, read_chain, read_consumer
from liftlog.server.journal.ledger import Chainer, Entry, Ledger
from liftlog.server.journal.records import (
    Change,
    ConsumerKey,
    encode_key,
    encode_value,
    size_of,
)

SEGMENT_BYTES = 8 * 1024 * 1024
SUBJECT = b"liftlog.deliveries"

_BATCH_BYTES = 4 * 1024 * 1024


class Prepared(NamedTuple):
    """Changes that are encoded for the end of the log."""

    changes: Sequence[Change]
    offsets: Sequence[int]
    """The offset of each change. It is 0 if the change is not written because its consumer does not
    exist."""
    batches: list[EncodedBatch]
    size_bytes: int


class JournalStore:
    """One log with its ledger."""

    def __init__(self, log: Log, ledger: Ledger) -> None:
        self.log = log
        self.ledger = ledger
        self.written_position = 0
        """All changes up to this position were appended."""
        self.synced_position = 0
        """All changes up to this position were fdatasynced."""
        self.must_abandon = False
        """True after a failed sync. No append is allowed before `abandon`."""
        self._unsynced: deque[tuple[int, Change]] = deque()
        self._syncing_position = 0

    @property
    def has_unsynced(self) -> bool:
        return self.written_position > self.synced_position

    # --- appending ---

    def prepare(self, changes: Sequence[Change]) -> Prepared:
        """Encode changes for the end of the log."""
        log = self.log
        chainer, durable_end = Chainer(self.ledger), log.durable_end_offset
        next_offset = base = log.log_end_offset
        offsets, batches = [], []
        keys: list[bytes] = []
        values: list[bytes] = []
        size = 0
        for change in changes:
            chaining = chainer.chain(change, next_offset, durable_end)
            if chaining is None:
                offsets.append(0)
                continue
            offsets.append(next_offset)
            keys.append(encode_key(change.key))
            values.append(encode_value(change, chaining))
            next_offset += 1
            size += size_of(change)
            if size >= _BATCH_BYTES or len(keys) == MAX_BATCH_RECORDS:
                batches.append(self._batch(base, keys, values))
                base, keys, values, size = next_offset, [], [], 0
        if keys:
            batches.append(self._batch(base, keys, values))
        return Prepared(changes, offsets, batches, sum(len(one.data) for one in batches))

    def _batch(self, base: int, keys: list[bytes], values: list[bytes]) -> EncodedBatch:
        log, count = self.log, len(keys)
        stamp = log.environment.clock.now_ns()
        data = encode_batch(
            base_offset=base,
            leader_epoch=log.leader_epoch,
            commit_group=log.writer.commit_group,
            stamps=[(stamp, count)],
            subjects=[SUBJECT] * count,
            keys=keys,
            values=values,
        )
        return EncodedBatch(data, base, base + count, count, stamp, stamp)

    def rolls(self, prepared: Prepared) -> bool:
        """Return True if `write` will begin another segment, which takes several syncs."""
        batches = prepared.batches
        return bool(batches) and self.log.writer.must_roll(
            prepared.size_bytes, batches[-1].next_offset
        )

    def write(self, prepared: Prepared) -> None:
        """Append all changes or, on an error, none. The changes are not durable yet. Raises
        DiskFull, StorageError."""
        if self.must_abandon:
            raise SyncFailed(f"the end of {self.log.name} is not dropped yet")
        if prepared.batches:
            self.log.append(prepared.batches)

    def written(self, prepared: Prepared) -> None:
        """Record that the log contains the changes that `write` has appended."""
        position = self.written_position
        for change, offset in zip(prepared.changes, prepared.offsets, strict=True):
            position += 1
            self._unsynced.append((position, change))
            if offset:
                self.ledger.add(change, offset)
        self.written_position = position

    # --- syncs ---

    def sync_begins(self) -> None:
        """Record that a sync begins. It covers all changes written so far."""
        self.ledger.sync_begins()
        self._syncing_position = self.written_position

    def sync(self) -> None:
        """Make all written changes durable. Raises SyncFailed; the caller must then call
        `failed`."""
        self.log.sync()

    def synced(self) -> None:
        """Record that `sync` has succeeded. Raises StorageError if the acked end cannot be
        stored."""
        self.ledger.synced()
        self.synced_position = position = self._syncing_position
        unsynced = self._unsynced
        while unsynced and unsynced[0][0] <= position:
            unsynced.popleft()
        self.log.commit_up_to(self.log.durable_end_offset)

    def failed(self) -> list[Change]:
        """Roll back after a failed sync. Returns the changes that were not synced, for
        `prepare`."""
        self.must_abandon = True
        self.ledger.take_back()
        self.written_position = self.synced_position
        changes = [change for _, change in self._unsynced]
        self._unsynced.clear()
        return changes

    def abandon(self) -> None:
        """Truncate the log's unsynced end after a failed sync, because it is unknown which of its
        records are on disk. Raises StorageError, DiskFull; after an error the caller must repeat
        the call."""
        if self.must_abandon:
            self.log.writer.abandon_tail(keep_offsets=False)
            self.must_abandon = False

    # --- reading ---

    def is_readable(self, entry: Entry) -> bool:
        """True if all records of the consumer are committed."""
        return entry.last < self.log.high_watermark

    def read(self, key: ConsumerKey, entry: Entry) -> StoredConsumer:
        """Return the snapshot of the consumer and its later changes. Raises StorageError. Any
        thread may call this."""
        return read_consumer(self.log, key, entry)

    def read_changes(self, key: ConsumerKey, entry: Entry) -> list[Change]:
        """Return the records of a consumer, to be written again. Raises StorageError. Any thread
        may call this."""
        return read_chain(self.log, key, entry)

    # --- its size ---

    @property
    def size_bytes(self) -> int:
        return self.log.view.size_bytes

    def cut_offset(self) -> int | None:
        """Return an offset below which no record is needed. Return None if a cut there would free
        no segment."""
        segments = self.log.segments
        if len(segments) < 2:
            return None
        floor = self.ledger.floor()
        high_watermark = self.log.high_watermark
        offset = high_watermark if floor is None else min(floor, high_watermark)
        return offset if segments[0].next_offset <= offset else None

    def cut(self, offset: int) -> int:
        """Remove the segments below `offset`. Returns the number of bytes freed. Durable on return.
        Raises StorageError, DiskFull. Any thread may call it."""
        return self.log.structure.remove_before(offset, self.log.segment_count)

    def close(self) -> ActiveState | None:
        """Sync and close the log; see `Log.close`."""
        if self.must_abandon:
            self.log.close_files()
            return None
        return self.log.close()
