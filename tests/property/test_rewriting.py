"""Compaction and re-batching in any order with everything else, beside plain dicts.

Whatever happens, a reader who applies all records of a key in order ends with the same value, or
with none, as one who had read everything that was ever written.
"""

from __future__ import annotations

import os

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.disks.background_job import BackgroundJob, check_files
from support.disks.logs import BASE_NS, reopen
from support.disks.simfs import MachineStopped, SimFileSystem
from support.rounds import fewer
from support.worlds.rewriting import (
    HEADER,
    MINUTE_NS,
    ROLL_ON_DEMAND,
    Row,
    Rows,
    add,
    check_entries,
    compact_fully,
    compact_once,
    keyed,
    rebatch_file,
    row,
    stored,
)

from compaction import CompactionPolicy
from liftlog.log import Log
from liftlog.log.rewrite import CompactResult

POLICY = CompactionPolicy(min_dirty_ratio=0, tombstone_retention_ns=8 * MINUTE_NS)

keys = st.sampled_from([None, b"", b"a", b"b\0", b"cc", b"d" * 30])
values = st.sampled_from([None, b"", b"1", b"22\0\0", b"\0" * 9, b"v" * 300 + b"\0" * 40])
subjects = st.sampled_from(["s.a", "s.b", "ü"])
messages = st.tuples(keys, values, subjects, st.integers(0, 3), st.booleans())
batches = st.lists(st.lists(messages, min_size=1, max_size=5), min_size=1, max_size=4)
memories = st.sampled_from([1, 400, 1 << 20])
sizes = st.sampled_from([600, 2000, 1 << 20])
fractions = st.floats(0, 1, exclude_max=True)
Batches = list[list[tuple[object, ...]]]
FUZZ = os.environ.get("HYPOTHESIS_PROFILE") == "fuzz"


class RewritingMachine(RuleBasedStateMachine):
    log: Log

    @initialize()
    def begin(self) -> None:
        self.fs = SimFileSystem()
        self.log = keyed(self.fs)
        self.rows: Rows = {}
        self.now = BASE_NS
        self.boots = 1
        self.whole_below = 0  # compacted in complete passes
        self.job: BackgroundJob | None = None  # planned, and worked on if it has a result

    @rule(batches=batches, then_roll=st.booleans())
    def append(self, batches: Batches, then_roll: bool) -> None:
        self.rows.update(add(self.log, [[self._row(*one) for one in b] for b in batches]))
        if then_roll:
            self.log.writer.roll()

    def _row(self, key: object, value: object, subject: object, tick: object, head: object) -> Row:
        assert isinstance(tick, int)
        self.now += 1000 * tick
        headers = HEADER % tick if head else b""
        return row(key, value, subject=subject, stamp=self.now, headers=headers)  # type: ignore[arg-type]

    @rule(minutes=st.integers(1, 6))
    def wait(self, minutes: int) -> None:
        self.now += minutes * MINUTE_NS

    @precondition(lambda self: self.job is None)  # one at a time, as the daemon does it
    @rule(memory=memories, size=sizes)
    def compact(self, memory: int, size: int) -> None:
        self.log.writer.roll()
        compact_fully(
            self.log, self.fs, policy=POLICY, now_ns=self.now, memory=memory, max_bytes=size
        )
        self.whole_below = self.log.view.manifest.cleaned_below
        self._each_key_once()

    def _each_key_once(self) -> None:
        found = [
            r.key for o, r in stored(self.log).items() if r.key is not None and o < self.whole_below
        ]
        assert len(found) == len(set(found)), "a key is there twice in what was compacted"

    @precondition(lambda self: self.job is None)
    @rule(memory=memories, size=sizes)
    def compact_some(self, memory: int, size: int) -> None:
        compact_once(
            self.log, self.fs, policy=POLICY, now_ns=self.now, memory=memory, max_bytes=size
        )

    @precondition(lambda self: self.job is None and self.log.segment_count > 1)
    @rule(data=st.data())
    def rebatch(self, data: st.DataObject) -> None:
        rebatch_file(self.log, self.fs, data.draw(st.integers(0, self.log.segment_count - 2)))

    # --- in the background: anything may come between two steps ---

    @rule(
        kind=st.sampled_from(["compact", "rebatch"]),
        memory=memories,
        size=sizes,
        where=fractions,
        batches=batches,
        ending=st.sampled_from(["swap", "swap", "swap", "discard", "kill"]),
        kill_after=st.integers(0, 12),
    )
    def a_job_goes_on(
        self,
        kind: str,
        memory: int,
        size: int,
        where: float,
        batches: Batches,
        ending: str,
        kill_after: int,
    ) -> None:
        """All steps are one rule, because otherwise few jobs would be completed."""
        if self.job is None:
            self.append(batches, then_roll=True)
            if kind == "compact":
                self.job = BackgroundJob.compaction(
                    self.log, policy=POLICY, now_ns=self.now, memory=memory, max_bytes=size
                )
            else:
                number = int(where * (self.log.segment_count - 1))
                self.job = BackgroundJob.rebatching(self.log, number)
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

    def _swap_in(self, job: BackgroundJob) -> None:
        before, end = stored(self.log), self.log.log_end_offset
        swapped = job.swap_in(self.log, self.fs)
        if not job.swaps_made:
            assert stored(self.log) == before
        if swapped and isinstance(job.result, CompactResult) and job.result.complete:
            self.whole_below = max(self.whole_below, job.result.cleaned_below)
        assert self.log.log_end_offset == end
        self._each_key_once()

    # --- what takes something away ---

    @rule(where=fractions)
    def truncate_suffix(self, where: float) -> None:
        """Truncate, mostly only a small part."""
        low, high = self.log.segments[0].base_offset, self.log.log_end_offset
        self.log.truncate_suffix(high - int((high - low + 1) * where**2))
        # What an earlier pass removed for the sake of what is cut off now, stays away.
        self.rows = stored(self.log)
        self.whole_below = min(self.whole_below, self.log.view.manifest.cleaned_below)
        self._each_key_once()

    @rule(where=fractions)
    def truncate_prefix(self, where: float) -> None:
        start, end = self.log.log_start_offset, self.log.high_watermark
        self.log.truncate_prefix(start + int((end - start + 1) * where**2))

    @rule(data=st.data())
    def retention(self, data: st.DataObject) -> None:
        number = data.draw(st.integers(0, self.log.segment_count - 1))
        low = max(self.log.segments[number].base_offset, self.log.log_start_offset)
        start = data.draw(st.integers(low, max(low, self.log.segments[number].next_offset)))
        self.log.structure.remove_before(start, number)

    @rule(after=st.integers(0, 40), keep=st.sampled_from(["none", "all", "some"]), size=sizes)
    def crash_while_compacting(self, after: int, keep: str, size: int) -> None:
        self.log.writer.roll()
        job = self.job
        self.fs.stop_at = self.fs.operations + after
        try:
            if job is None:
                compact_once(self.log, self.fs, policy=POLICY, now_ns=self.now, max_bytes=size)
            elif job.result is not None or job.work(self.log, self.fs):
                job.swap_in(self.log, self.fs)
        except MachineStopped:
            pass
        self.fs = self.fs.power_cut(keep, after)  # type: ignore[arg-type]
        self.boots += 1
        self.log, _ = reopen(self.fs, config=ROLL_ON_DEMAND, boot=f"boot-{self.boots}")
        self.job = None
        check_files(self.log)

    @invariant()
    def readers_end_with_the_same_values(self) -> None:
        start = self.log.log_start_offset
        left = stored(self.log)
        newest: dict[bytes, int] = {}
        for offset, one in self.rows.items():
            if one.key is not None:
                newest[one.key] = offset
        for offset, one in left.items():
            assert one == self.rows[offset], "a record changed"
        for offset, one in self.rows.items():
            if offset < start or offset in left:
                continue
            assert one.key is not None, f"the keyless record at {offset} is gone"
            if newest[one.key] == offset:
                assert one.is_tombstone, f"the newest record of {one.key!r} is gone"
                assert offset < self.log.view.manifest.tombstones_removed_below
                assert all(other.key != one.key for other in left.values()), "a value came back"
        assert self.log.log_end_offset > max(self.rows, default=0)
        check_entries(self.log, self.fs)


TestRewriting = RewritingMachine.TestCase
TestRewriting.settings = settings(
    max_examples=5000 if FUZZ else fewer(30), stateful_step_count=60 if FUZZ else 30, deadline=None
)
