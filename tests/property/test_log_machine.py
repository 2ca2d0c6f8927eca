"""The log beside a plain list, through any order of operations, stops and power cuts."""

from __future__ import annotations

import os

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.logs import BASE_NS, Promises, append, check, create, read_all, reopen
from support.simfs import Fault, MachineStopped, SimFileSystem

from liftlog.errors import DiskFull, OffsetOutOfRange, StorageError, SyncFailed
from liftlog.log import ActiveState, Log

sizes = st.lists(st.integers(1, 6), min_size=1, max_size=3)
keeps = st.sampled_from(["none", "all", "some", "some", "some"])


class LogMachine(RuleBasedStateMachine):
    """`rows` holds what is in the log, acked or not; `promises` what was acked."""

    log: Log

    def __init__(self) -> None:
        super().__init__()
        self.fs = SimFileSystem()
        self.promises = Promises()
        self.waiting: dict[int, bytes] = {}  # appended, not synced
        self.rows: dict[int, bytes] = {}  # committed
        self.recovery_point: ActiveState | None = None
        self.boots = 1
        self.now = BASE_NS

    @initialize()
    def begin(self) -> None:
        self.log = create(self.fs, boot="boot-1")

    # --- writing ---

    @rule(group=sizes, tick=st.integers(0, 5))
    def append(self, group: list[int], tick: int) -> None:
        self.now += tick * 1_000_000
        try:
            self.waiting.update(append(self.log, self.promises, *group, stamp=self.now))
        except SyncFailed:
            self._abandon()

    @rule()
    def commit(self) -> None:
        try:
            self.log.advance_high_watermark(self.log.sync())
        except SyncFailed:
            self._abandon()
            return
        self.promises.acked.update(self.waiting)
        self.rows.update(self.waiting)
        self.waiting.clear()

    def _abandon(self) -> None:
        self.fs.faults = []
        self.log.abandon_tail(keep_offsets=False)
        # A roll may have synced before: what is below the high watermark or in the file counts.
        self.waiting = {o: v for o, v in self.waiting.items() if o < self.log.log_end_offset}

    @rule(group=sizes, short=st.integers(0, 300), full=st.booleans())
    def append_fails(self, group: list[int], short: int, full: bool) -> None:
        end = self.log.log_end_offset
        self.fs.faults = [Fault("write", path=".log", short=short)]
        self.fs.faults.append(Fault("write", path=".log", error=28 if full else 5))
        try:
            self.waiting.update(append(self.log, self.promises, *group, stamp=self.now))
        except (StorageError, DiskFull):
            assert self.log.log_end_offset == end
        self.fs.faults = []

    @rule(group=sizes)
    def sync_fails(self, group: list[int]) -> None:
        self.append(group, 0)
        self.fs.faults = [Fault("fsync", path=".log")]
        self.commit()
        self.fs.faults = []

    # --- structure ---

    @precondition(lambda self: self.log.segment_count > 1)
    @rule(data=st.data())
    def retention(self, data: st.DataObject) -> None:
        segments = self.log.segments
        count = data.draw(st.integers(0, len(segments) - 1))
        low = segments[count].base_offset
        if low > self.log.high_watermark:
            return
        high = min(segments[count].next_offset, self.log.high_watermark)
        start = data.draw(st.integers(low, max(low, high)))
        self.promises.start = max(self.promises.start, start)
        self.log.remove_before(start, count)

    @rule()
    def checkpoint(self) -> None:
        self.recovery_point = self.log.checkpoint()

    @rule(number=st.integers(0, 99))
    def metadata(self, number: int) -> None:
        self.log.set_metadata({"n": number})

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
        assert (self.log.log_end_offset, self.log.leader_epoch) == (end, epoch)

    @rule(keep=keeps, seed=st.integers(0, 2**16))
    def power_cut(self, keep: str, seed: int) -> None:
        self._start_again(self.fs.power_cut(keep, seed), reboot=True)  # type: ignore[arg-type]

    @rule()
    def kill(self) -> None:
        self._start_again(self.fs.kill(), reboot=False)
        assert read_all(self.log).items() >= self.waiting_readable().items()

    @rule(keep=keeps, seed=st.integers(0, 2**16), steps=st.integers(0, 15))
    def power_cut_during_recovery(self, keep: str, seed: int, steps: int) -> None:
        image = self.fs.power_cut(keep, seed)  # type: ignore[arg-type]
        image.stop_at = steps
        self.boots += 1
        try:
            reopen(image, boot=f"boot-{self.boots}", recovery_point=self.recovery_point)
        except MachineStopped:
            pass
        self._start_again(image.power_cut("some", seed + 1), reboot=True)

    def waiting_readable(self) -> dict[int, bytes]:
        return {o: v for o, v in self.rows.items() if o >= self.log.log_start_offset}

    def _start_again(self, image: SimFileSystem, *, reboot: bool) -> None:
        self.boots += reboot
        before = self.log.leader_epoch
        self.fs = image
        self.log, report = reopen(
            image, boot=f"boot-{self.boots}", recovery_point=self.recovery_point
        )
        assert not report.clean
        assert self.log.leader_epoch > before
        found = check(self.log, self.promises)
        # Whatever of the un-synced tail is there now was made durable, so it stays from here on.
        self.rows = dict(found)
        self.promises.acked.update(found)
        self.waiting.clear()

    # --- what always holds ---

    @invariant()
    def reading_agrees(self) -> None:
        if not hasattr(self, "log"):
            return
        log = self.log
        start = log.log_start_offset
        expected = {offset: value for offset, value in self.rows.items() if offset >= start}
        assert read_all(log) == expected
        assert log.log_start_offset <= log.high_watermark <= log.log_end_offset
        if log.high_watermark < log.log_end_offset:
            assert log.read(log.high_watermark, 1) is None
        try:
            log.read(log.log_end_offset + 1, 1)
        except OffsetOutOfRange:
            return
        raise AssertionError("an offset past the end was answered")


LogMachine.TestCase.settings = settings(
    max_examples=2000 if os.environ.get("HYPOTHESIS_PROFILE") == "fuzz" else 250,
    stateful_step_count=60 if os.environ.get("HYPOTHESIS_PROFILE") == "fuzz" else 30,
)
TestLogMachine = LogMachine.TestCase
