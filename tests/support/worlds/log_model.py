"""A log and a plain dict. Rules write, fail to write, and change the structure of the log."""

from __future__ import annotations

import errno

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from support.disks.background_job import BackgroundJob
from support.disks.logs import BASE_NS, create
from support.disks.simfs import Fault, SimFileSystem
from support.worlds.rewriting import (
    MINUTE_NS,
    Row,
    Rows,
    encode_rows,
    row,
    rows_of,
)

from compaction import CompactionPolicy
from liftlog.errors import CorruptBatch, CorruptRange, DiskFull, StorageError, SyncFailed
from liftlog.log import ActiveState, Log
from liftlog.log.erased import ErasedSet
from liftlog.records import decode_batch, parse_header
from liftlog.server.commits.writing import compressed

records = st.tuples(st.sampled_from([None, b"a", b"b", b"c\0", b"\0"]), st.booleans())
groups = st.lists(st.lists(records, min_size=1, max_size=5), min_size=1, max_size=3)
feeds = st.lists(groups, max_size=4)
Group = list[list[tuple[bytes | None, bool]]]
fractions = st.floats(0, 1, exclude_max=True)
POLICY = CompactionPolicy(min_dirty_ratio=0, tombstone_retention_ns=MINUTE_NS)


def readable(log: Log) -> Rows:
    """Return every record that a reader gets if it continues after lost records."""
    found: Rows = {}
    offset = log.log_start_offset
    told: CorruptRange | None
    while True:
        try:
            piece = log.read(offset, 500)
        except CorruptRange as damage:
            told = damage
        else:
            told = None
        if told is not None:
            assert offset <= told.first_offset < told.next_offset
            if not log.is_quarantined(told.first_offset, told.next_offset):
                log.quarantine_damage(told.first_offset, told.next_offset)  # as the daemon does
            offset = told.next_offset
            continue
        if piece is None:
            return found
        with piece:
            raw, position, reached = piece.pread(), 0, offset
            while position < len(raw):
                try:
                    batch = decode_batch(raw, position)
                except CorruptBatch:
                    # A page that the disk could not read. It is quarantined now.
                    assert log.view.manifest.quarantined, "damage that was not reported"
                    break
                found.update((o, r) for o, r in rows_of(batch).items() if o >= offset)
                position += batch.header.length
                reached = batch.next_offset
            else:
                assert offset < piece.next_offset <= log.high_watermark
                reached = piece.next_offset
            offset = reached


def is_telling(raw: bytes, page: range) -> bool:
    """Return True if each batch on the page would lose bytes that are not zero. If a batch loses
    only zeros, reads around the page still return it, but a recovery loses it."""
    position = 0
    while position < len(raw):
        try:
            end = position + parse_header(raw, position).length
        except CorruptBatch:
            break
        lost = raw[max(position, page.start) : min(end, page.stop)]
        if lost and not any(lost):
            return False
        position = end
    return True


def offsets_on(raw: bytes, page: range) -> set[int]:
    """Return the offsets of the batches of a segment file that are at least partly in these
    bytes."""
    found: set[int] = set()
    position = 0
    while position < len(raw):
        try:
            header = parse_header(raw, position)
        except CorruptBatch:
            break
        if position < page.stop and page.start < position + header.length:
            found |= set(range(header.base_offset, header.next_offset))
        position += header.length
    return found


def unproven_behind(raw: bytes, page: range) -> set[int]:
    """Return the offsets of the complete batches between a lost page and a header that a torn write
    destroyed.

    If the page holds the header of a lost batch, no chain of headers leads from these batches to
    the end of the data. So recovery cannot distinguish them from bytes inside a value of the lost
    batch.
    """
    position = 0
    behind: set[int] = set()
    while position < len(raw):
        try:
            header = parse_header(raw, position)
        except CorruptBatch:
            return behind if any(raw[position:]) else set()
        if position >= page.stop:
            behind |= set(range(header.base_offset, header.next_offset))
        position += header.length
    return set()


def view(rows: Rows) -> dict[bytes, Row]:
    """Return the newest value of each key, which a compacted log must keep."""
    newest = {one.key: one for _, one in sorted(rows.items()) if one.key is not None}
    return {key: one for key, one in newest.items() if not one.is_tombstone}


class LogModel(RuleBasedStateMachine):
    """A log, its expected content, and rules that write and change its structure.

    `rows` is the expected readable content; `waiting` are the records appended after it.
    """

    log: Log

    def __init__(self) -> None:
        super().__init__()
        self.fs = SimFileSystem()
        self.rows: Rows = {}
        self.waiting: Rows = {}
        self.written: dict[int, list[Row]] = {}  # all records that may exist at an offset
        self.damaged: Rows = {}  # existed until its damage was found
        self.erased: Rows = {}  # existed until it was erased
        self.in_doubt: list[set[int]] = []  # failed erasures; one of them may be on the disk
        self.job: BackgroundJob | None = None  # planned; it has run if it has a result
        self.acked_early = False  # what waits was acked
        self.acked_end = 1  # no offset below it may be assigned again
        self.start = 1
        self.recovery_point: ActiveState | None = None
        self.boots = 1
        self.now = BASE_NS
        self.serial = 0

    @initialize(feed=feeds)
    def begin(self, feed: list[Group]) -> None:
        self.log = create(self.fs, boot="boot-1")
        self._feed(feed)

    # --- writing ---

    def _append(self, group: Group) -> None:
        batches = []
        for batch in group:
            made = []
            for key, delete in batch:
                self.serial += 1
                value = None if delete and key else b"%d." % self.serial + bytes(self.serial % 9)
                made.append(row(key, value, stamp=self.now))
            batches.append(made)
        encoded, found = encode_rows(self.log, batches)
        encoded = compressed(encoded, ("none", "lz4", "zstd")[self.serial % 3])
        for offset, one in found.items():
            self.written.setdefault(offset, []).append(one)
        active = self.log.segments[-1].path
        try:
            self.log.append(encoded)
        except StorageError:
            if self.fs.faults or not self.fs.is_bad(active):
                raise
            self.log.append(encoded)  # in another file: the old one cannot be continued
        self.waiting.update(found)

    @rule(group=groups, tick=st.integers(0, 5))
    def append(self, group: Group, tick: int) -> None:
        self.now += tick * 1_000_000
        self._append(group)
        if self.acked_early:
            self.log.writer.note_acked(self.log.log_end_offset)
            self.acked_end = self.log.log_end_offset

    def _feed(self, feed: list[Group]) -> None:
        """Make one sealed segment for each group, so that there are segments to work on."""
        for group in feed:
            self.append(group, 1)
            self.commit()
            self.log.writer.roll()

    @rule()
    def commit(self) -> None:
        try:
            self.log.commit_up_to(self.log.sync())
        except SyncFailed:
            self._abandon()
            return
        self._all_is_committed()

    def _all_is_committed(self) -> None:
        self.rows.update(self.waiting)
        self.waiting.clear()
        self.acked_early = False
        self.acked_end = self.log.log_end_offset

    def _abandon(self) -> None:
        self.fs.faults = []
        durable = self.log.durable_end_offset  # a roll may have synced a part
        self.log.writer.abandon_tail(keep_offsets=self.acked_early)
        self.waiting = {o: r for o, r in self.waiting.items() if o < durable}
        if self.acked_early:
            assert self.log.log_end_offset >= self.acked_end
            self._all_is_committed()

    @rule()
    def ack_before_the_sync(self) -> None:
        self.log.writer.admit_early_acks()
        self.log.writer.note_acked(self.log.log_end_offset)
        self.acked_early = True
        self.acked_end = self.log.log_end_offset

    @rule(group=groups, short=st.integers(0, 300), full=st.booleans())
    def append_fails(self, group: Group, short: int, full: bool) -> None:
        end = self.log.log_end_offset
        self.fs.faults = [Fault("write", path=".log", short=short)]
        self.fs.faults.append(
            Fault("write", path=".log", error=errno.ENOSPC if full else errno.EIO)
        )
        try:
            self.append(group, 0)
        except (StorageError, DiskFull):
            assert self.log.log_end_offset == end
        self.fs.faults = []

    @rule(group=groups)
    def sync_fails(self, group: Group) -> None:
        self.append(group, 0)
        self.fs.faults = [Fault("fsync", path=".log")]
        self.commit()
        self.fs.faults = []

    # --- structure ---

    @rule()
    def roll(self) -> None:
        self.log.writer.roll()

    @precondition(lambda self: self.log.segment_count > 1)
    @rule(where=fractions, part=fractions)
    def retention(self, where: float, part: float) -> None:
        segments = self.log.segments
        count = int(where * len(segments))
        low = segments[count].base_offset
        high = min(segments[count].next_offset, self.log.high_watermark)
        if low > high:
            return
        self.start = max(self.start, low + int(part * (high - low + 1)))
        self.log.structure.remove_before(self.start, count)

    @rule(where=fractions)
    def truncate_prefix(self, where: float) -> None:
        start, end = self.log.log_start_offset, self.log.high_watermark
        self.start = start + int(where * (end - start + 1))
        self.log.truncate_prefix(self.start)

    @rule(where=fractions)
    def truncate_suffix(self, where: float) -> None:
        self.commit()
        low, high = self.log.segments[0].base_offset, self.log.log_end_offset
        asked = low + int(where * min(high - low + 1, 100))
        end = self.log.truncate_suffix(asked)
        assert end <= max(asked, low)
        if end == high:
            return
        self._forget_from(end)
        assert self.log.log_end_offset == self.acked_end == end

    def _forget_from(self, end: int) -> None:
        for rows in (self.rows, self.waiting, self.written, self.damaged, self.erased):
            for offset in [offset for offset in rows if offset >= end]:
                del rows[offset]  # type: ignore[attr-defined]
        self.in_doubt = [{one for one in some if one < end} for some in self.in_doubt]
        self.acked_end = end
        self.start = min(self.start, end)

    # --- erasing ---

    def _chosen(self, where: float, count: int, step: int) -> list[int]:
        """Return offsets to erase. Some of them have no record."""
        low, high = self.log.segments[0].base_offset, self.log.log_end_offset + 2
        first = low + int(where * (high - low))
        return list(range(first, first + count * step, step))

    def _erase(self, offsets: list[int]) -> None:
        found = self.log.structure.erase(ErasedSet.of_offsets(np.array(offsets, np.int64)))
        hidden = set(found.offsets.offsets_in(0, 2**40).tolist())
        shown = {o for o in self.rows if self.log.log_start_offset <= o < self.log.high_watermark}
        told = {o for first, end in found.unreadable for o in range(first, end)}
        wanted = set(offsets)
        assert hidden <= wanted & (shown | self.damaged.keys())
        assert wanted & shown <= hidden | told
        for offset in hidden & self.rows.keys():
            self.erased[offset] = self.rows.pop(offset)

    @rule(where=fractions, count=st.integers(1, 8), step=st.integers(1, 3))
    def erase(self, where: float, count: int, step: int) -> None:
        self._erase(self._chosen(where, count, step))
        self.in_doubt.clear()

    @rule(
        where=fractions,
        count=st.integers(1, 8),
        operation=st.sampled_from(["create", "write", "fsync", "rename", "fsync-directory"]),
        fault=st.tuples(st.sampled_from([errno.ENOSPC, errno.EIO]), st.booleans()),
        countdown=st.integers(1, 3),
    )
    def erase_fails(
        self, where: float, count: int, operation: str, fault: tuple[int, bool], countdown: int
    ) -> None:
        """Let an erasure fail. No record is hidden. The disk may contain the erasure until the next
        change."""
        offsets = self._chosen(where, count, 1)
        error, after = fault
        self.fs.faults = [Fault(operation, error=error, after=after, countdown=countdown)]
        try:
            self._erase(offsets)
        except (StorageError, DiskFull):
            self.in_doubt.append(set(offsets) & self.rows.keys())
        self.fs.faults = []

    @rule()
    def checkpoint(self) -> None:
        self.recovery_point = self.log.checkpoint()

    @rule(number=st.integers(0, 99))
    def metadata(self, number: int) -> None:
        self.log.structure.set_metadata({"n": number})

    # --- what compaction may do ---

    def _compacted(self, found: Rows, before: Rows) -> None:
        """Check a compaction: nothing changed, no record came back, and the newest record of each
        key exists.

        A record may have been removed because of a newer record that was later found damaged.
        """
        start = self.log.log_start_offset
        before = {o: r for o, r in before.items() if o >= start}
        assert found.items() <= before.items()
        gone = self.damaged | self.erased
        known = before | {o: r for o, r in gone.items() if o >= start}
        newest = {r.key: o for o, r in sorted(known.items()) if r.key is not None}
        for offset in before.keys() - found.keys():
            one = before[offset]
            assert one.key is not None
            if newest[one.key] == offset:
                assert one.is_tombstone
                assert offset < self.log.view.manifest.tombstones_removed_below
                assert all(other.key != one.key for other in found.values())
        if not gone:
            assert view(found) == view(before)
        self.rows = {o: r for o, r in self.rows.items() if o < start} | found
