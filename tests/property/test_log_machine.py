"""The log compared with a plain dict, during any order of operations, failures, stops and power
cuts."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Set
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule
from support.disks import simfs
from support.disks.background_job import BackgroundJob, check_files
from support.disks.logs import SMALL, reopen
from support.disks.simfs import Keep, MachineStopped, SimFileSystem
from support.rounds import fewer
from support.worlds.log_model import (
    POLICY,
    Group,
    LogModel,
    feeds,
    fractions,
    is_telling,
    offsets_on,
    readable,
    unproven_behind,
)
from support.worlds.rewriting import (
    MINUTE_NS,
    Rows,
    compact_once,
    expected,
    rebatch_file,
)

from liftlog.errors import OffsetOutOfRange
from liftlog.log.files import unreadable
from liftlog.log.files.manifest import QuarantinedRange
from liftlog.log.segment.segment import Segment
from liftlog.records import iter_batches

keeps: st.SearchStrategy[Keep] = st.sampled_from(["none", "all", "last", "some", "some", "some"])


@pytest.fixture(autouse=True, scope="module")
def small_pages() -> Iterator[None]:
    """Use small pages, so that a small segment has several."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unreadable, "PAGE_BYTES", 256)
        patch.setattr(simfs, "PAGE", 256)
        yield


class LogMachine(LogModel):
    """Adds rewriting, stops and power cuts to the rules of the model, and checks the invariants."""

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
        if result is not None and result.complete and not self.log.view.damaged_files:
            # An erased record still supersedes the older ones, until its bytes are gone.
            end, start = min(result.cleaned_below, bound), self.log.log_start_offset
            kept = expected(before | self.erased, end, start).keys() - self.erased.keys()
            gone = {o for o in kept if o not in self.rows}
            assert all(before[o].is_tombstone for o in gone)
            most = expected(before, end, start)
            assert set(self.rows) <= set(most) | {o for o in before if o < self.start}

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
        if segment.path.name in self.log.view.damaged_files or not segment.size_bytes:
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
        """All steps are one rule, because otherwise few jobs would be completed."""
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
        """Damage is found in one batch of a sealed segment, as by the scrubber or a reader."""
        segment = self.log.segments[int(where * (self.log.segment_count - 1))]
        raw = self.fs.read(segment.path)[: segment.size_bytes]
        if segment.path.name in self.log.view.damaged_files or not raw:
            return  # may be damaged already where a batch would have to be read
        batches = list(iter_batches(raw))
        one = batches[int(batch * len(batches))]
        header = one.header
        if header.next_offset > self.log.high_watermark:
            return
        position = sum(b.header.length for b in batches[: batches.index(one)])
        end = position + header.length
        self.log.structure.quarantine(
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

    @rule(where=fractions, page=fractions)
    def a_page_is_lost(self, where: float, page: float) -> None:
        """A page on the disk becomes unreadable. Its next reader detects this."""
        log = self.log
        number = int(where * log.segment_count)
        segment = log.segments[number]
        size = segment.size_bytes
        if not segment.sealed:
            size = log.active_state().position // simfs.PAGE * simfs.PAGE  # the rest is in memory
        if not size or segment.path.name in log.view.damaged_files:
            return
        raw = self.fs.read(segment.path)[: segment.size_bytes]
        position = int(page * size)
        if is_telling(raw, simfs.page_at(position)):
            self._lose(offsets_on(raw, self.fs.lose_page(segment.path, position)))
            self._scrub_hidden(segment)

    def _scrub_hidden(self, segment: Segment) -> None:
        """Scrub below the log start, which readers do not read."""
        if segment.base_offset < self.log.log_start_offset:
            self.log.quarantine_damage(segment.base_offset, segment.next_offset)

    def _lose(self, offsets: set[int]) -> None:
        for offset in offsets & self.rows.keys():
            self.damaged[offset] = self.rows.pop(offset)
        for offset in offsets & self.waiting.keys():  # a roll may have sealed and synced them
            del self.waiting[offset]

    # --- stopping ---

    @rule(
        keep=keeps,
        seed=st.integers(0, 2**16),
        killed=st.booleans(),
        pages=st.lists(fractions, min_size=1, max_size=2),
        where=fractions,
    )
    def pages_are_lost_with_the_power(
        self, keep: Keep, seed: int, killed: bool, pages: list[float], where: float
    ) -> None:
        """Pages are lost above the recovery point, too, and together with torn writes."""
        image = self.fs.power_cut("all" if killed else keep, seed)
        log, files = self.log, [path for path in image.files() if path.suffix == ".log"]
        active = log.segments[-1].path
        path = active if where < 0.7 and active in files else files[int(where * len(files))]
        raw = image.read(path)
        lost: set[int] = set()
        unproven: set[int] = set()
        listed = {segment.path for segment in log.segments}
        if raw and path in listed and path.name not in log.view.damaged_files:
            for position in (int(page * len(raw)) for page in pages):
                if is_telling(raw, simfs.page_at(position)):
                    page = image.lose_page(path, position)
                    lost |= offsets_on(raw, page)
                    unproven |= unproven_behind(raw, page)
        self._lose(lost)
        self._start_again(image, reboot=not killed, lost=lost, unproven=unproven)
        self._scrub_hidden(self.log.segments[0])

    @rule()
    def clean_stop(self) -> None:
        self.commit()
        active = self.log.segments[-1].path
        state = self.log.close()
        if state is None:  # the end of the file lies on a page that cannot be read, so not cut
            assert self.fs.is_bad(active)
            self._start_again(self.fs.kill(), reboot=False)
            return
        end, epoch = self.log.log_end_offset, self.log.leader_epoch
        self.fs = self.fs.kill()
        self.log, report = reopen(self.fs, boot=f"boot-{self.boots}", clean=state)
        assert report.clean
        self._settle_erasure(readable(self.log))
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
        kept = {o: r for o, r in before.items() if o >= start and o not in self.erased}
        assert self.rows.items() >= kept.items()

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
            ["compact", "rebatch", "swap", "roll", "truncate", "retention", "checkpoint", "erase"]
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
            "roll": log.writer.roll,
            "truncate": lambda: log.truncate_suffix(cut),
            "retention": lambda: self.retention(where, where) if sealed else None,
            "checkpoint": log.checkpoint,
            "erase": lambda: self._erase(self._chosen(where, 5, 1)),
        }
        if what == "erase":
            self.in_doubt.append(set(self._chosen(where, 5, 1)) & self.rows.keys())
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
        lost: Set[int] = frozenset(),
        unproven: Set[int] = frozenset(),
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
        self._lose({o for o in unproven - found.keys() if log.is_quarantined(o, o + 1)})
        self._settle_erasure(found)
        assert not found.keys() & self.erased.keys(), "an erased record is shown again"
        committed = {o: r for o, r in self.rows.items() if o >= log.log_start_offset}
        tail = {o: r for o, r in found.items() if o not in committed}
        assert all(r in self.written.get(o, ()) for o, r in tail.items())
        assert all(o > max(committed, default=0) for o in tail), "something came back"
        assert all(log.is_quarantined(o, o + 1) for o in lost if o in self.damaged)
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

    def _settle_erasure(self, found: Rows) -> None:
        """Check that a failed or interrupted erasure has hidden all of its records or none."""
        start = self.log.log_start_offset
        for some in self.in_doubt:
            doubtful = {o for o in some & self.rows.keys() if o >= start}
            if doubtful and not doubtful & found.keys():
                for offset in doubtful:
                    self.erased[offset] = self.rows.pop(offset)
        self.in_doubt.clear()

    # --- what always holds ---

    @invariant()
    def reading_agrees(self) -> None:
        if not hasattr(self, "log"):
            return
        log = self.log
        start = log.log_start_offset
        assert readable(log) == {o: r for o, r in self.rows.items() if o >= start}
        erased = log.view.erased
        assert (erased is None) == (not log.view.manifest.erased)
        if erased is not None and not self.damaged:
            high = log.high_watermark
            hidden = set(erased.offsets_in(start, high).tolist())
            assert hidden <= self.erased.keys()
        assert start <= log.high_watermark <= log.log_end_offset
        assert log.log_end_offset >= self.acked_end
        if log.high_watermark < log.log_end_offset:
            assert log.read(log.high_watermark, 1) is None
        with pytest.raises(OffsetOutOfRange):
            log.read(log.log_end_offset + 1, 1)
        assert all(segment.size_bytes <= SMALL.segment_max_bytes for segment in log.segments)


FUZZ = os.environ.get("HYPOTHESIS_PROFILE") == "fuzz"
LogMachine.TestCase.settings = settings(
    max_examples=2000 if FUZZ else fewer(50), stateful_step_count=60 if FUZZ else 30
)
TestLogMachine = LogMachine.TestCase
