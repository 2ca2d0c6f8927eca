"""The log beside a plain dict, through any order of operations, failures, stops and power cuts."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.background_job import BackgroundJob, check_files
from support.logs import BASE_NS, SMALL, create, reopen
from support.rewriting import (
    MINUTE_NS,
    Row,
    Rows,
    compact_once,
    encode_rows,
    expected,
    rebatch_file,
    row,
    rows_of,
)
from support.simfs import Fault, Keep, MachineStopped, SimFileSystem

from compaction import CompactionPolicy
from liftlog.errors import CorruptRange, DiskFull, OffsetOutOfRange, StorageError, SyncFailed
from liftlog.log import ActiveState, Log
from liftlog.log.manifest import QuarantinedRange
from liftlog.records import iter_batches

records = st.tuples(st.sampled_from([None, b"a", b"b", b"c", b"d"]), st.booleans())
groups = st.lists(st.lists(records, min_size=1, max_size=5), min_size=1, max_size=3)
feeds = st.lists(groups, max_size=4)
Group = list[list[tuple[bytes | None, bool]]]
keeps: st.SearchStrategy[Keep] = st.sampled_from(["none", "all", "last", "some", "some", "some"])
fractions = st.floats(0, 1, exclude_max=True)
POLICY = CompactionPolicy(min_dirty_ratio=0, tombstone_retention_ns=MINUTE_NS)


def readable(log: Log) -> Rows:
    """Every record that a reader gets who goes on behind what is lost."""
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
            offset = told.next_offset
            continue
        if piece is None:
            return found
        with piece:
            for batch in iter_batches(piece.pread()):
                found.update((o, r) for o, r in rows_of(batch).items() if o >= offset)
            assert offset < piece.next_offset <= log.high_watermark
            offset = piece.next_offset


def view(rows: Rows) -> dict[bytes, Row]:
    """What a compacted log is for: the newest value of each key."""
    newest = {one.key: one for _, one in sorted(rows.items()) if one.key is not None}
    return {key: one for key, one in newest.items() if not one.is_tombstone}


class LogMachine(RuleBasedStateMachine):
    """`rows` is what the log holds and may be read; `waiting` what was appended behind it."""

    log: Log

    def __init__(self) -> None:
        super().__init__()
        self.fs = SimFileSystem()
        self.rows: Rows = {}
        self.waiting: Rows = {}
        self.written: dict[int, list[Row]] = {}  # whatever may turn up at an offset
        self.damaged: Rows = {}  # was there, until it was found damaged
        self.job: BackgroundJob | None = None  # planned, and worked on if it has a result
        self.acked_early = False  # what waits was acked
        self.acked_end = 1  # nothing below it may be assigned again
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
        for offset, one in found.items():
            self.written.setdefault(offset, []).append(one)
        self.log.append(encoded)
        self.waiting.update(found)

    @rule(group=groups, tick=st.integers(0, 5))
    def append(self, group: Group, tick: int) -> None:
        self.now += tick * 1_000_000
        self._append(group)
        if self.acked_early:
            self.log.note_acked(self.log.log_end_offset)
            self.acked_end = self.log.log_end_offset

    def _feed(self, feed: list[Group]) -> None:
        """A sealed segment for each group, or there would seldom be any to work on."""
        for group in feed:
            self.append(group, 1)
            self.commit()
            self.log.roll()

    @rule()
    def commit(self) -> None:
        try:
            self.log.advance_high_watermark(self.log.sync())
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
        durable = self.log.durable_end_offset  # a roll may have synced part of what waited
        self.log.abandon_tail(keep_offsets=self.acked_early)
        self.waiting = {o: r for o, r in self.waiting.items() if o < durable}
        if self.acked_early:
            assert self.log.log_end_offset >= self.acked_end
            self._all_is_committed()

    @rule()
    def ack_before_the_sync(self) -> None:
        self.log.admit_early_acks()
        self.log.note_acked(self.log.log_end_offset)
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
        self.log.roll()

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
        self.log.remove_before(self.start, count)

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
        for rows in (self.rows, self.waiting, self.written, self.damaged):
            for offset in [offset for offset in rows if offset >= end]:
                del rows[offset]  # type: ignore[attr-defined]
        self.acked_end = end
        self.start = min(self.start, end)

    @rule()
    def checkpoint(self) -> None:
        self.recovery_point = self.log.checkpoint()

    @rule(number=st.integers(0, 99))
    def metadata(self, number: int) -> None:
        self.log.set_metadata({"n": number})

    # --- rewriting ---

    @precondition(lambda self: self.job is None)  # one at a time, as the daemon does it
    @rule(memory=st.sampled_from([1, 64, 1 << 20]), expired=st.booleans())
    def compact(self, memory: int, expired: bool) -> None:
        before, bound = dict(self.rows), self.log.high_watermark
        now = self.now + (2 * MINUTE_NS if expired else 0)
        result = compact_once(
            self.log, self.fs, policy=POLICY, now_ns=now, memory=memory, max_bytes=1000
        )
        self._compacted(readable(self.log), before)
        if result is not None and result.complete and not self.log.damaged_files:
            kept = expected(before, min(result.cleaned_below, bound), self.log.log_start_offset)
            gone = {o for o in kept if o not in self.rows}
            assert all(before[o].is_tombstone for o in gone)
            assert set(self.rows) <= set(kept) | {o for o in before if o < self.start}

    def _compacted(self, found: Rows, before: Rows) -> None:
        """Nothing changed, nothing came back, and the newest of each key is still there.

        A record may have given way to a newer one that was found damaged since.
        """
        start = self.log.log_start_offset
        before = {o: r for o, r in before.items() if o >= start}
        assert found.items() <= before.items()
        known = before | {o: r for o, r in self.damaged.items() if o >= start}
        newest = {r.key: o for o, r in sorted(known.items()) if r.key is not None}
        for offset in before.keys() - found.keys():
            one = before[offset]
            assert one.key is not None
            if newest[one.key] == offset:
                assert one.is_tombstone
                assert offset < self.log.tombstones_removed_below
                assert all(other.key != one.key for other in found.values())
        if not self.damaged:
            assert view(found) == view(before)
        self.rows = {o: r for o, r in self.rows.items() if o < start} | found

    @precondition(lambda self: self.job is None and self.log.segment_count > 1)
    @rule(where=fractions)
    def rebatch(self, where: float) -> None:
        self._rebatch(where)

    def _rebatch(self, where: float) -> None:
        number = int(where * (self.log.segment_count - 1))
        if self._may_rebatch(number):
            rebatch_file(self.log, self.fs, number)

    def _may_rebatch(self, number: int) -> bool:
        segment = self.log.segments[number]
        if segment.path.name in self.log.damaged_files or not segment.size_bytes:
            return False
        return segment.sealed and segment.next_offset <= self.log.high_watermark

    # --- rewriting in the background: anything may come between two steps ---

    @rule(
        kind=st.sampled_from(["compact", "compact", "rebatch"]),
        memory=st.sampled_from([1, 64, 1 << 20, 1 << 20]),
        expired=st.booleans(),
        where=fractions,
        feed=feeds,
        ending=st.sampled_from(["swap", "swap", "swap", "discard", "kill"]),
        kill_after=st.integers(0, 12),
    )
    def a_job_goes_on(
        self,
        kind: str,
        memory: int,
        expired: bool,
        where: float,
        feed: list[Group],
        ending: str,
        kill_after: int,
    ) -> None:
        """One rule, or it would be rare that a job that began also came to an end."""
        if self.job is None:
            self._feed(feed)
            self.job = self._begin_a_job(kind, memory, expired, where)
        elif self.job.result is None and ending == "kill":
            self.job.be_killed(self.log, self.fs, kill_after)
            self.job = None
        elif self.job.result is None:
            if not self.job.work(self.log, self.fs):
                self.job = None
        else:
            if ending == "swap":
                self._swap_in(self.job)
            else:
                self.job.discard(self.log)
            self.job = None

    def _begin_a_job(
        self, kind: str, memory: int, expired: bool, where: float
    ) -> BackgroundJob | None:
        if kind == "compact":
            now = self.now + (2 * MINUTE_NS if expired else 0)
            return BackgroundJob.compaction(
                self.log, policy=POLICY, now_ns=now, memory=memory, max_bytes=1000
            )
        number = int(where * (self.log.segment_count - 1))
        return BackgroundJob.rebatching(self.log, number) if self._may_rebatch(number) else None

    def _swap_in(self, job: BackgroundJob) -> None:
        before = dict(self.rows)
        if not job.swap_in(self.log, self.fs) and not job.swaps_made:
            start = self.log.log_start_offset
            assert readable(self.log) == {o: r for o, r in before.items() if o >= start}
        self._compacted(readable(self.log), before)
        assert job.is_compaction or self.rows == before

    @precondition(lambda self: self.log.segment_count > 1)
    @rule(where=fractions, batch=fractions, rot=st.booleans())
    def damage_is_found(self, where: float, batch: float, rot: bool) -> None:
        """As by the scrubber or a reader: one batch of a sealed segment."""
        segment = self.log.segments[int(where * (self.log.segment_count - 1))]
        raw = self.fs.read(segment.path)[: segment.size_bytes]
        if segment.path.name in self.log.damaged_files or not raw:
            return  # may be damaged already where a batch would have to be read
        batches = list(iter_batches(raw))
        one = batches[int(batch * len(batches))]
        header = one.header
        if header.next_offset > self.log.high_watermark:
            return
        position = sum(b.header.length for b in batches[: batches.index(one)])
        end = position + header.length
        self.log.quarantine(
            segment.path.name,
            [QuarantinedRange(
                header.base_offset, header.next_offset, segment.path.name, position, end, "rot"
            )],
        )  # fmt: skip
        if rot:
            hurt = bytearray(self.fs.read(segment.path))
            hurt[end - 1] ^= 1
            self.fs.replace(segment.path, bytes(hurt))
        for offset in [o for o in self.rows if header.base_offset <= o < header.next_offset]:
            self.damaged[offset] = self.rows.pop(offset)

    # --- stopping ---

    @rule()
    def clean_stop(self) -> None:
        self.commit()
        state = self.log.close()
        assert state is not None
        end, epoch = self.log.log_end_offset, self.log.leader_epoch
        self.fs = self.fs.kill()
        self.log, report = reopen(self.fs, boot=f"boot-{self.boots}", clean=state)
        assert report.clean
        self.job = None
        check_files(self.log)
        assert (self.log.log_end_offset, self.log.leader_epoch) == (end, epoch)

    @rule(keep=keeps, seed=st.integers(0, 2**16))
    def power_cut(self, keep: Keep, seed: int) -> None:
        self._start_again(self.fs.power_cut(keep, seed), reboot=True)

    @rule()
    def kill(self) -> None:
        before = self.rows | self.waiting
        self._start_again(self.fs.kill(), reboot=False)
        start = self.log.log_start_offset
        assert self.rows.items() >= {o: r for o, r in before.items() if o >= start}.items()

    @rule(keep=keeps, seed=st.integers(0, 2**16), steps=st.integers(0, 25))
    def power_cut_during_recovery(self, keep: Keep, seed: int, steps: int) -> None:
        image = self.fs.power_cut(keep, seed)
        image.stop_at = steps
        self.boots += 1
        try:
            reopen(image, boot=f"boot-{self.boots}", recovery_point=self.recovery_point)
        except MachineStopped:
            pass
        self._start_again(image.power_cut("some", seed + 1), reboot=True)

    @rule(
        what=st.sampled_from(
            ["compact", "rebatch", "swap", "roll", "truncate", "retention", "checkpoint"]
        ),
        steps=st.integers(0, 40),
        keep=keeps,
        seed=st.integers(0, 2**16),
        where=fractions,
        killed=st.booleans(),
    )
    def a_stop_in_the_middle(
        self, what: str, steps: int, keep: Keep, seed: int, where: float, killed: bool
    ) -> None:
        log = self.log
        if self.job is not None and what in ("compact", "rebatch"):
            what = "swap"
        if what == "truncate":
            self.commit()
        sealed = log.segment_count - 1
        high = log.high_watermark
        cut = log.segments[0].base_offset + int(where * (high - log.segments[0].base_offset + 1))
        calls: dict[str, Callable[[], Any]] = {
            "compact": lambda: compact_once(
                log, self.fs, policy=POLICY, now_ns=self.now + 2 * MINUTE_NS, max_bytes=1000
            ),
            "rebatch": lambda: self._rebatch(where),
            "swap": self._stopped_swap,
            "roll": log.roll,
            "truncate": lambda: log.truncate_suffix(cut),
            "retention": lambda: self.retention(where, where) if sealed else None,
            "checkpoint": log.checkpoint,
        }
        self.fs.stop_at = self.fs.operations + steps
        try:
            calls[what]()
        except MachineStopped:
            pass
        image = self.fs.kill() if killed else self.fs.power_cut(keep, seed)
        self._start_again(
            image,
            reboot=not killed,
            compacted=what in ("compact", "swap"),
            truncated=what == "truncate",
        )

    def _stopped_swap(self) -> None:
        job = self.job
        if job is not None and (job.result is not None or job.work(self.log, self.fs)):
            job.swap_in(self.log, self.fs)

    def _start_again(
        self,
        image: SimFileSystem,
        *,
        reboot: bool,
        compacted: bool = False,
        truncated: bool = False,
    ) -> None:
        self.boots += reboot
        before = self.log.leader_epoch
        self.fs = image
        self.log, report = reopen(
            image, boot=f"boot-{self.boots}", recovery_point=self.recovery_point
        )
        assert not report.clean
        assert self.log.leader_epoch > before
        self.job = None
        log, found = self.log, readable(self.log)
        check_files(log)
        if truncated and log.log_end_offset < self.acked_end:
            self._forget_from(log.log_end_offset)
        assert log.log_end_offset >= self.acked_end
        assert log.log_start_offset <= self.start
        committed = {o: r for o, r in self.rows.items() if o >= log.log_start_offset}
        tail = {o: r for o, r in found.items() if o not in committed}
        assert all(r in self.written.get(o, ()) for o, r in tail.items())
        assert all(o > max(committed, default=0) for o in tail), "something came back"
        kept = {o: r for o, r in found.items() if o in committed}
        if compacted:
            self._compacted(kept, committed)
        assert compacted or kept == committed
        # Whatever of the un-synced tail is there now was made durable, so it stays from here on.
        self.rows = dict(found)
        self.waiting.clear()
        self.acked_early = False
        self.acked_end = log.log_end_offset
        self.start = log.log_start_offset

    # --- what always holds ---

    @invariant()
    def reading_agrees(self) -> None:
        if not hasattr(self, "log"):
            return
        log = self.log
        start = log.log_start_offset
        assert readable(log) == {o: r for o, r in self.rows.items() if o >= start}
        assert start <= log.high_watermark <= log.log_end_offset
        assert log.log_end_offset >= self.acked_end
        if log.high_watermark < log.log_end_offset:
            assert log.read(log.high_watermark, 1) is None
        with pytest.raises(OffsetOutOfRange):
            log.read(log.log_end_offset + 1, 1)
        assert all(segment.size_bytes <= SMALL.segment_max_bytes for segment in log.segments)


FUZZ = os.environ.get("HYPOTHESIS_PROFILE") == "fuzz"
LogMachine.TestCase.settings = settings(
    max_examples=2000 if FUZZ else 150, stateful_step_count=60 if FUZZ else 30
)
TestLogMachine = LogMachine.TestCase
