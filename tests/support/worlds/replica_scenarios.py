"""Operations of a daemon on the log of one replica, in a form that can be stopped before each step.

A scenario updates `world.model`: the records written at each offset and epoch, and the confirmed
ones. While the end is truncated or the log starts over, `world.other` is valid if that change is
made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from support.disks.logs import BASE_NS, DIRECTORY, SMALL, environment
from support.disks.simfs import Fault, SimFileSystem
from support.worlds import crash_scenarios
from support.worlds.crash_scenarios import CLEAN, POINTS, new_disk, store_state

from liftlog.errors import SyncFailed
from liftlog.log import EncodedBatch, Log, RecoveryReport
from liftlog.log.read.reading import Gap
from liftlog.records import encode_batch, iter_batches

REPLICA = replace(SMALL, replicated=True)
INCARNATION = "a" * 32


@dataclass
class Model:
    """The content of one history of the log, including the possible content during a step."""

    rows: dict[int, tuple[int, bytes]] = field(default_factory=dict)  # offset: epoch, value
    gaps: dict[int, tuple[int, bool, int]] = field(default_factory=dict)
    """Maps the first offset to the next offset, True for a loss, and the epoch."""
    start: int = 1
    end: int = 1  # of what was written
    confirmed: int = 1  # end of the records for which a sync has returned
    committed: int = 1

    def cut(self, offset: int) -> Model:
        return Model(
            {at: row for at, row in self.rows.items() if at < offset},
            {at: gap for at, gap in self.gaps.items() if at < offset},
            self.start,
            offset,
            min(self.confirmed, offset),
            min(self.committed, offset),
        )

    def check(self, log: Log) -> None:
        assert log.view.manifest.incomplete == ""
        end = log.log_end_offset
        assert self.confirmed <= end <= self.end, "confirmed records are gone"
        assert log.view.first_stored_offset == self.start
        assert log.durable_end_offset == end
        assert log.high_watermark <= max(self.committed, self.start)
        stored = dict(batches_of(log))
        assert stored == {at: row for at, row in self.rows.items() if at < end}
        found = {
            bad.first_offset: (bad.next_offset, bad.is_loss)
            for bad in log.view.manifest.quarantined
        }
        gaps = {at: gap for at, gap in self.gaps.items() if at < end}
        assert found == {at: gap[:2] for at, gap in gaps.items()}
        assert all(gap[0] <= end for gap in gaps.values())
        epochs = {at: epoch for at, (epoch, _) in stored.items()}
        epochs |= {at: epoch for at, (_, _, epoch) in gaps.items()}
        for offset, epoch in epochs.items():
            known = [one for one, first in log.view.manifest.epochs if first <= offset]
            assert known[-1] == epoch, "the epochs do not say what the batches say"
        assert log.last_epoch == max(epochs.values(), default=0)
        begun = log.view.manifest.epochs
        assert all(first < end for _, first in begun) or begun == ((1, 1),)


def batches_of(log: Log) -> Iterator[tuple[int, tuple[int, bytes]]]:
    """Yield every written record, with the epoch of its batch."""
    offset = log.view.first_stored_offset
    while (found := log.read_replica(offset, 400)) is not None:
        if isinstance(found, Gap):
            offset = found.next_offset
            continue
        with found:
            for batch in iter_batches(found.pread()):
                epoch = batch.header.leader_epoch
                for one in batch.trim(offset):
                    assert one.value is not None
                    yield one.offset, (epoch, one.value)
            offset = found.next_offset


class ReplicaWorld:
    """One machine, its replica, and the records that the replica has confirmed."""

    def __init__(self) -> None:
        self.fs = new_disk()
        self.model = Model()
        self.other: Model | None = None
        self.serial = 0
        self.log: Log

    def create(self) -> None:
        self.log = Log.create(
            DIRECTORY, environment(self.fs), REPLICA, incarnation=INCARNATION, boot_id="boot-1"
        )

    def check(self, log: Log) -> None:
        if self.other is not None:
            try:
                self.other.check(log)
            except AssertionError:
                pass  # in this case the change was not made
            else:
                return
        self.model.check(log)

    # --- steps ---

    def batch(self, epoch: int, size: int, base: int | None = None) -> EncodedBatch:
        base = self.model.end if base is None else base
        values = []
        for offset in range(base, base + size):
            self.serial += 1
            values.append(b"%d." % self.serial + bytes(self.serial % 9))
            if offset >= self.model.end:
                self.model.rows[offset] = (epoch, values[-1])
        self.model.end = max(self.model.end, base + size)
        raw = encode_batch(
            base_offset=base, leader_epoch=epoch, commit_group=self.log.writer.commit_group,
            stamps=[(BASE_NS, size)], subjects=[b"orders.new"] * size, values=values,
        )  # fmt: skip
        return EncodedBatch(raw, base, base + size, size, BASE_NS, BASE_NS)

    def fetched(self, epoch: int, *sizes: int, base: int | None = None) -> None:
        """Append the batches of one answer as a follower; then sync and confirm them."""
        raw = b""
        for size in sizes:
            raw += bytes(self.batch(epoch, size, base).data)
            base = None
        self.log.writer.append_raw(raw)
        self.sync()

    def led(self, *sizes: int) -> None:
        """Append as the leader of the newest epoch."""
        self.log.append([self.batch(self.log.leader_epoch, size) for size in sizes])

    def sync(self) -> None:
        self.model.confirmed = max(self.log.sync(), self.model.confirmed)

    def commit(self, offset: int) -> None:
        self.model.committed = max(self.model.committed, min(offset, self.model.end))
        self.log.commit_up_to(offset)

    def truncate(self, offset: int) -> None:
        """Truncate the log at a batch boundary."""
        self.other = self.model.cut(offset)
        assert self.log.truncate_suffix(offset) == offset
        self.model, self.other = self.other, None

    def gap(self, size: int, epoch: int, *, is_loss: bool) -> None:
        end = self.model.end
        self.model.gaps[end] = (end + size, is_loss, epoch)
        self.model.end = end + size
        self.log.writer.append_gap(end + size, "rot", is_loss=is_loss, epochs=((epoch, end),))
        self.model.confirmed = end + size

    def start_over(self, offset: int) -> None:
        self.other = Model(start=offset, end=offset, confirmed=offset, committed=offset)
        self.log.start_over(offset)
        self.model, self.other = self.other, None

    def checkpoint(self) -> None:
        store_state(self.fs, POINTS.name, self.log.checkpoint())

    def stop_and_start(self) -> None:
        state = self.log.close()
        assert state is not None
        store_state(self.fs, CLEAN.name, state)
        committed = self.log.high_watermark
        self.log, report = start(self.fs, "boot-1")
        assert report.clean
        assert self.log.high_watermark == committed


def start(fs: SimFileSystem, boot: str) -> tuple[Log, RecoveryReport]:
    return crash_scenarios.start(fs, boot, REPLICA)


# --- scenarios ---

ReplicaScenario = Callable[[ReplicaWorld], None]


def follows_and_rolls(world: ReplicaWorld) -> None:
    world.create()
    for number in range(8):
        world.fetched(1 + number // 3, 2, 1 + number % 3)
        world.commit(world.model.end - 3)
        if number == 4:
            world.checkpoint()


def straddling_batches(world: ReplicaWorld) -> None:
    world.create()
    for _ in range(4):
        world.fetched(1, 3)
        world.fetched(1, 5, 1, base=world.model.end - 2)


def leads_with_several_appends_to_commit(world: ReplicaWorld) -> None:
    world.create()
    for epoch in (1, 3, 4):
        world.log.writer.begin_epoch(epoch)
        for _ in range(4):
            world.led(2, 1)
            world.sync()
        world.commit(world.model.end - 5)
        world.led(3)
    world.sync()
    world.commit(world.model.end)


def a_leader_whose_sync_fails(world: ReplicaWorld) -> None:
    world.create()
    for epoch in (2, 5):
        world.log.writer.begin_epoch(epoch)
        world.led(2)
        world.sync()
        world.led(4)
        world.fs.faults = [Fault("fsync", path=".log")]
        try:
            world.sync()
        except SyncFailed:
            world.fs.faults = []
        # No record of it was confirmed. After a stop it may still exist, or exist again.
        world.other = world.model.cut(world.model.confirmed)
        world.log.writer.abandon_tail(keep_offsets=False)
        world.model, world.other = world.other, None
        world.fetched(epoch + 1, 2)
        world.commit(world.model.end)


def diverges_and_is_cut(world: ReplicaWorld) -> None:
    world.create()
    for _ in range(4):
        world.fetched(1, 2, 1)
    world.commit(7)
    world.log.writer.begin_epoch(2)
    for _ in range(3):
        world.led(2)
        world.sync()
    world.checkpoint()
    world.truncate(15)
    world.truncate(13)
    world.fetched(3, 3, 2)
    world.commit(13)
    world.checkpoint()
    world.truncate(13)
    world.fetched(4, 1)
    world.fetched(4, 3)


def gaps(world: ReplicaWorld) -> None:
    world.create()
    world.gap(3, 1, is_loss=True)
    world.fetched(1, 2)
    world.gap(10, 1, is_loss=False)
    world.gap(4, 2, is_loss=True)
    world.commit(10)
    world.fetched(2, 2, 1)
    world.gap(7, 2, is_loss=True)
    world.checkpoint()
    world.truncate(world.model.end - 7)
    world.fetched(2, 3)
    world.gap(5, 3, is_loss=False)
    world.fetched(3, 1)


def starts_over(world: ReplicaWorld) -> None:
    world.create()
    for offset in (1, 30, 5):
        for _ in range(4):
            world.fetched(2, 3)
        world.commit(world.model.end - 2)
        world.checkpoint()
        world.start_over(offset)
    world.fetched(3, 2, 2)


def stops_and_starts(world: ReplicaWorld) -> None:
    world.create()
    for epoch in (1, 2):
        world.fetched(epoch, 2, 1)
        world.commit(world.model.end - 1)
        world.stop_and_start()
        world.fetched(epoch, 3)
        world.log.writer.roll()
        world.commit(world.model.end)
        world.stop_and_start()


SCENARIOS: list[ReplicaScenario] = [
    follows_and_rolls,
    straddling_batches,
    leads_with_several_appends_to_commit,
    a_leader_whose_sync_fails,
    diverges_and_is_cut,
    gaps,
    starts_over,
    stops_and_starts,
]
