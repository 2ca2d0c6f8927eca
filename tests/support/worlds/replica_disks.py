"""The disks of the nodes of `replica_world`: a list, or the real log on a simulated disk.

Both show the log as a list, in which the index is the offset. A record is (epoch, value); an offset
without a record is None. `synced` is the durable end, `first` the first stored offset.
"""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any, Protocol

from support.disks.logs import BASE_NS, DIRECTORY, environment
from support.disks.simfs import Fault, Keep, SimFileSystem
from support.worlds.crash_scenarios import CLEAN, POINTS, new_disk, store_state
from support.worlds.replica_scenarios import INCARNATION, REPLICA, start
from support.worlds.rewriting import rebatch_file

from compaction import CompactionPolicy, plan_compaction
from liftlog.cluster.epochs import EpochTable, begin_epoch, cut, extend
from liftlog.errors import StorageError, SyncFailed
from liftlog.log import EncodedBatch, Log
from liftlog.log.read.reading import Gap
from liftlog.log.rewrite import CompactJob, apply_compaction, compact
from liftlog.records import encode_batch, iter_batches

Entry = tuple[int, int] | None
Body = Any
"""The data that one replica reads and another appends."""

KEEPS: list[Keep] = ["none", "some", "all", "last"]


class Disk(Protocol):
    log: list[Entry]
    synced: int
    first: int

    @property
    def log_start(self) -> int:
        """The end of the records that retention has deleted. Some of them may still be stored."""
        ...

    epochs: EpochTable
    high_watermark: int
    """The high watermark that is known after a start."""
    tombstones_removed_below: int

    def begin_epoch(self, epoch: int) -> None: ...
    def append(self, entries: list[tuple[int, int]]) -> None: ...
    def skip(self, count: int) -> None: ...
    def read(self, offset: int, records: int) -> tuple[Body, int]:
        """Return records from `offset` on, or the end of the gap at `offset`."""
        ...

    def add(self, body: Body) -> None: ...
    def gap(self, next_offset: int, epochs: EpochTable) -> None: ...
    def cut(self, end: int, *, below_high_watermark: bool = False) -> None: ...
    def start_over(self, offset: int, tombstones_removed_below: int) -> None: ...
    def sync(self) -> None: ...
    def fail_to_sync(self) -> None: ...
    def commit(self, end: int) -> None: ...
    def retain(self, first: int) -> None: ...
    def tidy(self, rng: random.Random, tombstone_bound: int) -> None:
        """Do background work of a daemon now and then."""
        ...

    def close(self, high_watermark: int) -> None: ...
    def kill(self, high_watermark: int, rng: random.Random) -> None: ...
    def cut_power(self, rng: random.Random) -> None: ...
    def lose(self, rng: random.Random) -> None:
        """Replace the disk, or restore an older state of it."""
        ...

    def recover(self) -> None: ...


class ListDisk:
    """A list with a durable end. It is fast, and has no storage errors."""

    def __init__(self) -> None:
        self.log: list[Entry] = []
        self.synced = 0
        self.first = 0
        self.epochs: EpochTable = ()
        self.high_watermark = 0
        self.tombstones_removed_below = 0

    @property
    def log_start(self) -> int:
        return self.first

    def begin_epoch(self, epoch: int) -> None:
        self.epochs = begin_epoch(self.epochs, epoch, len(self.log))

    def append(self, entries: list[tuple[int, int]]) -> None:
        self.log += entries

    def skip(self, count: int) -> None:
        self.log += [None] * count

    def read(self, offset: int, records: int) -> tuple[Body, int]:
        if offset < self.first:
            return [], offset
        body = self.log[offset : offset + records]
        holes = 0
        while holes < len(body) and body[holes] is None:
            holes += 1
        if holes:
            return [], offset + holes
        return (body[: body.index(None)] if None in body else body), offset

    def add(self, body: Body) -> None:
        for entry in body:
            self.epochs = extend(self.epochs, ((entry[0], len(self.log)),))
            self.log.append(entry)

    def gap(self, next_offset: int, epochs: EpochTable) -> None:
        self.epochs = extend(self.epochs, epochs)
        self.log += [None] * (next_offset - len(self.log))

    def cut(self, end: int, *, below_high_watermark: bool = False) -> None:
        del self.log[end:]
        self.epochs = cut(self.epochs, len(self.log))
        self.synced = min(self.synced, len(self.log))
        self.high_watermark = min(self.high_watermark, len(self.log))

    def start_over(self, offset: int, tombstones_removed_below: int) -> None:
        self.log = [None] * offset
        self.first = self.synced = offset
        self.epochs = ()
        self.high_watermark = 0
        self.tombstones_removed_below = tombstones_removed_below

    def sync(self) -> None:
        self.synced = len(self.log)

    def fail_to_sync(self) -> None:
        self.cut(self.synced)

    def commit(self, end: int) -> None:
        pass

    def retain(self, first: int) -> None:
        self.first = max(self.first, first)
        ends = [begin for _, begin in self.epochs[1:]]
        self.epochs = tuple(
            entry for i, entry in enumerate(self.epochs) if i == len(ends) or ends[i] > self.first
        )

    def tidy(self, rng: random.Random, tombstone_bound: int) -> None:
        pass

    def close(self, high_watermark: int) -> None:
        self.sync()
        self.high_watermark = high_watermark

    def kill(self, high_watermark: int, rng: random.Random) -> None:
        low = min(self.high_watermark, high_watermark)
        self.high_watermark = rng.randrange(low, high_watermark + 1)

    def cut_power(self, rng: random.Random) -> None:
        self.cut(rng.randrange(self.synced, len(self.log) + 1))

    def lose(self, rng: random.Random) -> None:
        self.cut(rng.randrange(max(self.synced, 1)))
        self.first = min(self.first, len(self.log))

    def recover(self) -> None:
        self.synced = len(self.log)


KEYS = 5


def key_of(value: int) -> int:
    """Return the key of a record in a compacted stream."""
    return value % KEYS


def is_tombstone(value: int) -> bool:
    return value % 3 == 0


class LogDisk:
    """The real log on a file system that forgets unsynced data. Segments are small, and small
    batches are joined. `compacted`: only the newest record of each key is kept."""

    def __init__(self, *, compacted: bool = False) -> None:
        self.compacted = compacted
        self.boot = 1
        self.now_ns = BASE_NS
        self.fs = SimFileSystem()
        self.images: list[SimFileSystem] = []
        self.failed_syncs = 0
        self._create()
        self._look()

    def _create(self) -> None:
        self.fs = new_disk()
        self._log = Log.create(
            DIRECTORY,
            environment(self.fs),
            REPLICA,
            incarnation=INCARNATION,
            boot_id=f"boot-{self.boot}",
        )

    def _look(self) -> None:
        """Return all records, read like another replica."""
        log = self._log
        self.log: list[Entry] = [None] * log.view.first_stored_offset
        while (found := log.read_replica(len(self.log), 400)) is not None:
            if isinstance(found, Gap):
                self.log += [None] * (found.next_offset - len(self.log))
                continue
            with found:
                self._show(found.pread(), found.next_offset)
        self._take_ends()

    def _show(self, raw: Body, end: int) -> None:
        """Update the list after an append of batches that end at `end`."""
        for batch in iter_batches(raw):
            for one in batch.trim(len(self.log)):
                self.log += [None] * (one.offset - len(self.log))
                self.log.append((batch.header.leader_epoch, int(one.subject.split(".")[1])))
        self.log += [None] * (end - len(self.log))

    def _take_ends(self) -> None:
        log = self._log
        assert len(self.log) == log.log_end_offset
        self.synced = log.durable_end_offset
        self.first = log.view.first_stored_offset
        self.log_start = log.log_start_offset
        self.epochs: EpochTable = log.view.manifest.epochs
        self.high_watermark = log.high_watermark
        self.tombstones_removed_below = log.view.manifest.tombstones_removed_below

    def check(self) -> None:
        """Check that the list equals the content of the log."""
        known = self.log
        self._look()
        assert self.log[self.first :] == known[self.first :]

    def begin_epoch(self, epoch: int) -> None:
        self._log.writer.begin_epoch(epoch)
        self._take_ends()

    def append(self, entries: list[tuple[int, int]]) -> None:
        base = len(self.log)
        numbers = [value for _, value in entries]
        keys: list[bytes | None] = [b"%d" % key_of(number) for number in numbers]
        values = [
            None if self.compacted and is_tombstone(number) else b"." * (number % 9)
            for number in numbers
        ]
        raw = encode_batch(
            base_offset=base,
            leader_epoch=entries[0][0],
            commit_group=self._log.writer.commit_group,
            stamps=[(BASE_NS, len(values))],
            subjects=[b"orders.%d" % number for number in numbers],
            keys=keys if self.compacted else None,
            values=values,
            has_tombstones=None in values,
        )
        end = base + len(values)
        self._log.append([EncodedBatch(raw, base, end, len(values), BASE_NS, BASE_NS)])
        self.log += entries
        self._take_ends()

    def skip(self, count: int) -> None:
        self.gap(len(self.log) + count, ())

    def read(self, offset: int, records: int) -> tuple[Body, int]:
        if offset < self.first:
            return b"", offset
        found = self._log.read_replica(offset, 120 * records)
        if found is None:
            return b"", offset
        if isinstance(found, Gap):
            return b"", found.next_offset
        with found:
            return found.pread(), offset

    def add(self, body: Body) -> None:
        self._log.writer.append_raw(body)
        self._show(body, self._log.log_end_offset)
        self._take_ends()

    def gap(self, next_offset: int, epochs: EpochTable) -> None:
        self._log.writer.append_gap(next_offset, "skipped", is_loss=False, epochs=epochs)
        self.log += [None] * (next_offset - len(self.log))
        self._take_ends()

    def cut(self, end: int, *, below_high_watermark: bool = False) -> None:
        # At the beginning of a batch. The epochs may diverge in the middle of a batch that no other
        # log has.
        end = self._log.truncate_suffix(end, below_high_watermark=below_high_watermark)
        del self.log[end:]
        self.check()

    def start_over(self, offset: int, tombstones_removed_below: int) -> None:
        self._log.start_over(offset, tombstones_removed_below=tombstones_removed_below)
        self._look()

    def sync(self) -> None:
        self._log.sync()
        self._take_ends()

    def fail_to_sync(self) -> None:
        self.fs.faults = [Fault("fsync", path=".log")]
        try:
            self._log.sync()
        except SyncFailed:
            pass
        self.failed_syncs += 1
        # Every other time, the disk cannot store a new segment either. The next append then begins
        # it.
        self.fs.faults = [Fault("create", path=".log")] if self.failed_syncs % 2 else []
        with suppress(StorageError):
            self._log.writer.abandon_tail(keep_offsets=False)
        self.fs.faults = []
        del self.log[self._log.log_end_offset :]
        self.check()

    def commit(self, end: int) -> None:
        self.high_watermark = self._log.commit_up_to(end)

    def retain(self, first: int) -> None:
        log = self._log
        first = min(first, log.high_watermark)
        gone = sum(one.next_offset <= first for one in log.segments[:-1])
        if first > log.log_start_offset:
            log.structure.remove_before(first, gone)
            self._take_ends()

    def tidy(self, rng: random.Random, tombstone_bound: int) -> None:
        if rng.random() < 0.5:
            store_state(self.fs, POINTS.name, self._log.checkpoint())
        if rng.random() < 0.5:
            self._log.writer.roll()
        if rng.random() < 0.3:
            self.images = [*self.images[-1:], self.fs.power_cut("none")]
        self.check()
        committed = [
            number
            for number, one in enumerate(self._log.segments[:-1])
            if one.size_bytes and one.next_offset <= self._log.high_watermark
        ]
        if committed and rng.random() < 0.5:
            rebatch_file(self._log, self.fs, rng.choice(committed))
            self.check()
        if self.compacted:
            self._compact(tombstone_bound)
            self._look()

    def _compact(self, tombstone_bound: int) -> None:
        log = self._log
        self.now_ns += 1_000
        plan = plan_compaction(
            log.segments,
            CompactionPolicy(min_dirty_ratio=0, tombstone_retention_ns=1),
            cleaned_below=log.view.manifest.cleaned_below,
            log_start_offset=log.log_start_offset,
            bound_offset=log.high_watermark,
            segment_max_bytes=1 << 12,
            now_ns=self.now_ns,
            on_demand=True,
            keep_tombstones_from=tombstone_bound,
        )
        if plan is not None:
            job = CompactJob(
                str(DIRECTORY),
                plan,
                tuple(one.entry() for one in log.segments[: plan.sources]),
                log_start_offset=log.log_start_offset,
                memory_bytes=1 << 20,
                epochs=log.view.manifest.epochs,
                incarnation=log.incarnation,
            )
            apply_compaction(log, compact(job, self.fs))

    def close(self, high_watermark: int) -> None:
        state = self._log.close()
        assert state is not None
        store_state(self.fs, CLEAN.name, state)
        self._take_ends_of_closed()

    def _take_ends_of_closed(self) -> None:
        self.synced = len(self.log)

    def kill(self, high_watermark: int, rng: random.Random) -> None:
        self._log.close_files()
        self.fs = self.fs.kill()

    def cut_power(self, rng: random.Random) -> None:
        self.fs = self.fs.power_cut(rng.choice(KEEPS), rng.randrange(1 << 30))
        self.boot += 1

    def lose(self, rng: random.Random) -> None:
        self.boot += 1
        if self.images and rng.random() < 0.7:
            self.fs = rng.choice(self.images).power_cut("none")
        else:
            self._create()
            self._log.close_files()

    def recover(self) -> None:
        self._log, report = start(self.fs, f"boot-{self.boot}")
        assert report.incomplete == "", "the start misses what was confirmed"
        self._look()
        assert self.synced == len(self.log)
