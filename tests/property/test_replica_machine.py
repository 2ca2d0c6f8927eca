"""A leader's log and a follower's beside it, each on its own machine, over any order of appends,
fetches, rolls, cleaning, retention, kills, power cuts and changes of the leader.

The protocol around the logs is minimal: one leader, elected from the in-sync set, and requests that
are never lost. The tests are about the logs: each leader has all committed records, no offset has
two records, and below the high watermark both logs have the same state, whatever each of them has
cleaned.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.disks.logs import BASE_NS, create, flip, reopen
from support.disks.simfs import Fault, Keep, MachineStopped, SimFileSystem
from support.rounds import fewer
from support.worlds.log_model import POLICY, Group, groups, readable, view
from support.worlds.rewriting import MINUTE_NS, Rows, compact_once, encode_rows, rebatch_file, row

from liftlog.errors import CorruptBatch, CorruptRange, SyncFailed
from liftlog.log import ActiveState, Gap, LogConfig, RecoveryReport
from liftlog.log.files.manifest import epoch_before
from liftlog.server.commits.writing import compressed

FUZZ = os.environ.get("HYPOTHESIS_PROFILE") == "fuzz"
fractions = st.floats(0, 1, exclude_max=True)
keeps: st.SearchStrategy[Keep] = st.sampled_from(["none", "all", "last", "some", "some"])
CONFIGS = [
    LogConfig(segment_max_bytes=size, segment_max_age_ns=None, replicated=True)
    for size in (1200, 900)
]


@pytest.fixture(autouse=True, scope="module")
def quiet() -> Iterator[None]:
    logger = logging.getLogger("liftlog.log")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(level)


class Node:
    """One machine with its replica."""

    def __init__(self, config: LogConfig) -> None:
        self.config = config
        self.fs = SimFileSystem()
        self.log = create(self.fs, config=config, incarnation="i" * 32)
        self.boots = 1
        self.point: ActiveState | None = None

    def restart(self, image: SimFileSystem, *, reboot: bool) -> RecoveryReport:
        self.boots += reboot
        self.fs = image
        self.log, report = reopen(
            image, boot=f"boot-{self.boots}", recovery_point=self.point, config=self.config
        )
        return report


class ReplicaMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.nodes = [Node(config) for config in CONFIGS]
        self.leading = 0
        self.epoch = 0
        self.in_sync = True  # both are in the in-sync set; else the leader alone
        self.heard = 0  # what the follower has confirmed in this epoch
        self.committed: Rows = {}  # everything that ever was, at any time
        self.high = 1
        self.start = 1
        self.lost: set[int] = set()  # acked, and damaged on the leader
        self.now = BASE_NS
        self.serial = 0

    @property
    def leader(self) -> Node:
        return self.nodes[self.leading]

    @property
    def follower(self) -> Node:
        return self.nodes[1 - self.leading]

    # --- leading ---

    @initialize()
    def begin(self) -> None:
        self._elect(0)

    def _elect(self, number: int) -> None:
        log = self.nodes[number].log
        self.leading, self.heard = number, 0
        self.epoch += 1
        assert log.log_end_offset >= self.high, "the new leader lacks what was committed"
        log.writer.begin_epoch(self.epoch)
        log.sync()
        self._commit()

    def _commit(self) -> None:
        log = self.leader.log
        end = log.durable_end_offset
        if self.in_sync:
            end = min(end, self.heard)
        before = self.high
        log.commit_up_to(end)
        self.high = max(self.high, log.high_watermark)
        if self.high > before:
            found = readable(log)
            for offset in range(before, self.high):
                if offset in found:
                    assert self.committed.setdefault(offset, found[offset]) == found[offset]

    @rule(group=groups, tick=st.integers(0, 5), synced=st.booleans())
    def append(self, group: Group, tick: int, synced: bool) -> None:
        self.now += tick * 1_000_000
        batches = []
        for batch in group:
            made = []
            for key, delete in batch:
                self.serial += 1
                value = None if delete and key else b"%d." % self.serial + bytes(self.serial % 9)
                made.append(row(key, value, stamp=self.now))
            batches.append(made)
        encoded, _ = encode_rows(self.leader.log, batches)
        self.leader.log.append(compressed(encoded, ("none", "lz4")[self.serial % 2]))
        if synced:
            self.sync()

    @rule()
    def sync(self) -> None:
        self.leader.log.sync()
        self._commit()

    @rule(group=groups)
    def a_sync_of_the_leader_fails(self, group: Group) -> None:
        """The leader resigns, because followers may have the records that it gave up."""
        self.append(group, 0, synced=False)
        self.leader.fs.faults = [Fault("fsync", path=".log")]
        try:
            self.leader.log.sync()
        except SyncFailed:
            self.leader.log.writer.abandon_tail(keep_offsets=False)
        self.leader.fs.faults = []
        self._elect(1 - self.leading if self.in_sync else self.leading)

    @precondition(lambda self: self.in_sync)
    @rule()
    def the_leader_goes_on_alone(self) -> None:
        self.in_sync = False
        self._commit()

    @precondition(lambda self: self.in_sync)
    @rule()
    def the_follower_takes_over(self) -> None:
        self._elect(1 - self.leading)

    # --- following ---

    @rule(max_bytes=st.sampled_from([1, 300, 5000]), times=st.integers(1, 6))
    def fetch(self, max_bytes: int, times: int) -> None:
        for _ in range(times):
            self._fetch(max_bytes)

    def _fetch(self, max_bytes: int) -> None:
        leader, follower = self.leader.log, self.follower.log
        offset, last = follower.log_end_offset, follower.last_epoch
        if offset < max(
            leader.view.first_stored_offset, leader.view.manifest.tombstones_removed_below
        ):
            self._start_over(offset)
            return
        if last:
            epoch, end = leader.end_of_epoch(last)
            if epoch < last or end < offset:
                if epoch:
                    end = min(end, follower.end_of_epoch(epoch)[1])
                assert end < offset, "it would ask the same again"
                if end < follower.view.first_stored_offset:
                    self._start_over(end)
                else:
                    follower.truncate_suffix(end)
                return
        if offset > leader.log_end_offset:
            follower.truncate_suffix(leader.log_end_offset)
            return
        self.heard = offset
        bar = max(leader.high_watermark, dict(leader.view.manifest.epochs).get(self.epoch, offset))
        if not self.in_sync and offset >= bar:
            self.in_sync = True
        self._commit()
        high = leader.high_watermark
        try:
            found = leader.read_replica(offset, max_bytes)
        except CorruptRange as damage:
            told: CorruptRange | None = damage
        else:
            told = None
        if told is not None:
            leader.quarantine_damage(told.first_offset, told.next_offset)
            return
        if isinstance(found, Gap):
            epochs = [one for one in leader.view.manifest.epochs if one[1] < found.next_offset]
            epochs = [(one, max(first, offset)) for one, first in epochs]
            follower.writer.append_gap(
                found.next_offset, found.reason, is_loss=found.is_loss, epochs=tuple(epochs[-1:])
            )
        elif found is not None:
            with found:
                raw = found.pread()
                try:
                    follower.writer.append_raw(raw)
                except CorruptBatch:
                    leader.quarantine_damage(found.first_offset, found.next_offset)
                    return
            follower.sync()
        follower.commit_up_to(min(high, follower.log_end_offset))
        start = min(leader.log_start_offset, follower.high_watermark)
        if start > follower.log_start_offset:
            follower.structure.remove_before(start, 100, delete_below=start)

    def _start_over(self, offset: int) -> None:
        leader, follower = self.leader.log, self.follower.log
        if self.in_sync:
            assert offset >= leader.high_watermark, "it was in sync and lacks what was committed"
            self.in_sync = False
        first = leader.view.first_stored_offset
        follower.start_over(
            first,
            epoch_before=epoch_before(leader.view.manifest.epochs, first),
            tombstones_removed_below=leader.view.manifest.tombstones_removed_below,
        )

    # --- each for itself ---

    @rule(which=st.integers(0, 1))
    def roll(self, which: int) -> None:
        self.nodes[which].log.writer.roll()
        self._commit()

    @rule(which=st.integers(0, 1))
    def checkpoint(self, which: int) -> None:
        self.nodes[which].point = self.nodes[which].log.checkpoint()

    @rule(which=st.integers(0, 1), memory=st.sampled_from([1, 64, 1 << 20]), late=st.booleans())
    def compact(self, which: int, memory: int, late: bool) -> None:
        node = self.nodes[which]
        bound = node.log.high_watermark
        now = self.now
        if late and (node is self.follower or self.follower.log.log_end_offset >= bound):
            # Tombstones go only where all replicas that were heard of are past them.
            now += 2 * MINUTE_NS
        compact_once(node.log, node.fs, policy=POLICY, now_ns=now, memory=memory, max_bytes=1000)

    @rule(memory=st.sampled_from([1, 1 << 20]))
    def the_leader_forgets_the_follower(self, memory: int) -> None:
        """It received no request for days, so tombstones are removed that the follower never
        had."""
        if not self.in_sync:
            compact_once(
                self.leader.log, self.leader.fs, policy=POLICY, now_ns=self.now + 2 * MINUTE_NS,
                memory=memory, max_bytes=1000,
            )  # fmt: skip

    @rule(which=st.integers(0, 1), where=fractions)
    def rebatch(self, which: int, where: float) -> None:
        log = self.nodes[which].log
        number = int(where * log.segment_count)
        segment = log.segments[number]
        may = segment.sealed and segment.size_bytes and segment.next_offset <= log.high_watermark
        if may and segment.path.name not in log.view.damaged_files:
            rebatch_file(log, self.nodes[which].fs, number)

    @rule(
        feed=st.lists(groups, min_size=2, max_size=4),
        fetched=st.integers(0, 3),
        compacted=st.booleans(),
    )
    def the_follower_has_a_part_of_what_is_put_together(
        self, feed: list[Group], fetched: int, compacted: bool
    ) -> None:
        """Without this rule, the follower's end would rarely be inside of a batch of the leader."""
        self.in_sync = False
        for group in feed:
            self.append(group, 1, synced=True)
        for _ in range(fetched):
            self._fetch(1)
        self.roll(self.leading)
        if compacted:
            self.compact(self.leading, 1 << 20, late=False)
        else:
            for number in range(self.leader.log.segment_count - 1):
                self.rebatch(self.leading, (number + 0.5) / self.leader.log.segment_count)
        self._fetch(5000)

    @rule(where=fractions)
    def retention(self, where: float) -> None:
        log = self.leader.log
        start = log.log_start_offset
        start += int(where * (log.high_watermark - start + 1))
        self.start = max(self.start, start)
        log.structure.remove_before(start, 100)

    # --- stops ---

    @rule(which=st.integers(0, 1), keep=keeps, seed=st.integers(0, 2**16), killed=st.booleans())
    def a_machine_stops(self, which: int, keep: Keep, seed: int, killed: bool) -> None:
        node = self.nodes[which]
        image = node.fs.kill() if killed else node.fs.power_cut(keep, seed)
        self._started(which, image, reboot=not killed)

    @rule(which=st.integers(0, 1))
    def a_machine_stops_cleanly(self, which: int) -> None:
        node = self.nodes[which]
        state = node.log.close()
        assert state is not None
        high = node.log.high_watermark
        node.fs = node.fs.kill()
        node.log, report = reopen(
            node.fs, boot=f"boot-{node.boots}", clean=state, config=node.config
        )
        assert report.clean
        assert node.log.high_watermark == high
        if which == self.leading:
            self._elect(1 - which if self.in_sync else which)

    @rule(keep=keeps, seed=st.integers(0, 2**16))
    def all_machines_stop(self, keep: Keep, seed: int) -> None:
        """Any replica in sync may lead after that."""
        for node in self.nodes:
            report = node.restart(node.fs.power_cut(keep, seed), reboot=True)
            assert report.incomplete == ""
            seed += 1
        self._elect(seed % 2 if self.in_sync else self.leading)

    @rule(
        what=st.sampled_from(["fetch", "roll", "compact", "begin", "append"]),
        steps=st.integers(0, 30),
        keep=keeps,
        seed=st.integers(0, 2**16),
        killed=st.booleans(),
        group=groups,
    )
    def a_machine_stops_in_the_middle(
        self, what: str, steps: int, keep: Keep, seed: int, killed: bool, group: Group
    ) -> None:
        which = 1 - self.leading if what == "fetch" else self.leading
        node = self.nodes[which]
        node.fs.stop_at = node.fs.operations + steps
        try:
            if what == "fetch":
                self.fetch(5000, 3)
            elif what == "append":
                self.append(group, 1, synced=True)
            elif what == "begin":
                self._elect(which)
            elif what == "roll":
                self.roll(which)
            else:
                self.compact(which, 64, late=True)
        except MachineStopped:
            pass
        image = node.fs.kill() if killed else node.fs.power_cut(keep, seed)
        self._started(which, image, reboot=not killed)

    def _started(self, which: int, image: SimFileSystem, *, reboot: bool) -> None:
        report = self.nodes[which].restart(image, reboot=reboot)
        assert report.incomplete == ""
        assert not report.clean
        if which == self.leading:
            self._elect(1 - which if self.in_sync else which)

    # --- what always holds ---

    @invariant()
    def both_hold_what_was_committed(self) -> None:
        for node in self.nodes:
            log = node.log
            assert log.high_watermark <= log.log_end_offset
            assert log.high_watermark <= self.high
            if node is self.leader or self.in_sync:
                assert log.log_end_offset >= self.high
            start, high = log.log_start_offset, log.high_watermark
            assert start <= self.start
            found = readable(log)
            expected = {o: r for o, r in self.committed.items() if start <= o < high}
            assert found.items() <= expected.items()
            # Of a key that has a newer record further on, compaction may leave none below.
            newest = {r.key: o for o, r in sorted(self.committed.items())}
            here = {key for key, offset in newest.items() if offset < high}
            assert {k: r for k, r in view(found).items() if k in here} == {
                k: r for k, r in view(expected).items() if k in here
            }
            if high == self.high:
                assert view(found) == view(expected)
            for offset in expected.keys() - found.keys():
                assert expected[offset].key is not None, "only compaction takes records away"


class DamagedReplicaMachine(ReplicaMachine):
    """Damages sealed segments of the leader. Its lost records are a gap in all copies."""

    @rule(where=fractions, place=fractions)
    def rot(self, where: float, place: float) -> None:
        log = self.leader.log
        segment = log.segments[int(where * log.segment_count)]
        if not segment.sealed or not segment.size_bytes:
            return
        if segment.path.name in log.view.damaged_files:
            return
        flip(self.leader.fs, segment.path, int(place * segment.size_bytes))
        log.quarantine_damage(segment.base_offset, segment.next_offset)
        for bad in log.view.manifest.quarantined:
            self.lost |= set(range(bad.first_offset, bad.next_offset))

    @invariant()
    def both_hold_what_was_committed(self) -> None:
        for node in self.nodes:
            log = node.log
            start, high = log.log_start_offset, log.high_watermark
            assert high <= min(log.log_end_offset, self.high)
            found = readable(log)
            # What was damaged before it was committed is known from the follower alone.
            for offset in found.keys() & self.lost:
                self.committed.setdefault(offset, found[offset])
            expected = {o: r for o, r in self.committed.items() if start <= o < high}
            assert found.items() <= expected.items()
            for offset in expected.keys() - found.keys():
                gone = expected[offset].key is not None or offset in self.lost
                assert gone, "only compaction and rot take records away"
            for bad in log.view.manifest.quarantined:
                assert set(range(bad.first_offset, bad.next_offset)) <= self.lost


budget = settings(
    max_examples=1500 if FUZZ else fewer(30), stateful_step_count=80 if FUZZ else 40, deadline=None
)
ReplicaMachine.TestCase.settings = budget
DamagedReplicaMachine.TestCase.settings = budget
TestReplicaMachine = ReplicaMachine.TestCase
TestDamagedReplicaMachine = DamagedReplicaMachine.TestCase
