"""Simulates a few nodes with one replicated stream, under a random scheduler.

The rules are the production modules of `liftlog.cluster`. This module simulates the frames in
flight, the metadata store with its history, compare-and-sets that are applied now, later or never,
and disks (`replica_disks`): lists, or real logs. `World.run` makes one random step after the other
on a random node. It raises Violation for these errors:

- an acked record is missing on a node that leads or could be elected
- an offset below the high watermark of any node has two records
- a follower confirms records that its disk does not have
- a leader that reports itself as ready shows fewer records than were acked before
- a granted lease is missing on a node that leads or could be elected
- a confirmed ack or a delivery of a consumer is missing in the same way (`replica_consumers`)
- a copy is dropped because of tombstones that its leader should have kept for it
- acks do not continue although the only fault is that some nodes cannot reach the metadata store

`committed` is the highest high watermark that any leader has reached, so it includes all acked
records.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from support.worlds.replica_consumers import Frame as ConsumerFrame
from support.worlds.replica_consumers import NodeConsumers, Promises, act
from support.worlds.replica_disks import Body, Disk, Entry, ListDisk, is_tombstone, key_of
from support.worlds.replica_progress import go_on

from liftlog.cluster import side_state
from liftlog.cluster import transitions as t
from liftlog.cluster.election import LogEnd
from liftlog.cluster.epochs import between, last_epoch
from liftlog.cluster.followers import FetchRequest, Kind
from liftlog.cluster.following import (
    Answer,
    Append,
    Effect,
    Fail,
    Fetch,
    Follower,
    Gap,
    Resync,
    Truncate,
)
from liftlog.cluster.guard import (
    Known,
    is_given_up,
    is_regressed,
    restored,
    restored_by_operator,
)
from liftlog.cluster.leading import Leader
from liftlog.cluster.record import Change, Follow, Lead, Leave, Register, StreamMetadata, role_of
from liftlog.errors import Conflict, InvalidArgument

FORGET_AFTER = 30.0
"""Seconds after which tombstones no longer wait for a replica."""


class Violation(AssertionError):
    """An error that replication promises never to make."""


@dataclass
class Faults:
    """Weights of the faults; 0 switches a fault off. The weights of ordinary steps are in the
    code."""

    elections: float = 1.0
    crashes: float = 1.0
    power_cuts: float = 1.0
    blackouts: float = 1.0
    lost_disks: float = 1.0
    failing_syncs: float = 1.0
    lost_frames: float = 0.06
    late_copies: float = 1.0
    reordered: float = 0.4
    unknown_outcomes: float = 0.25
    planned: float = 1.0
    moves: float = 0.0
    """Reassignments, and changes of min_isr."""
    cancels: float = 1.0
    """Cancellations of reassignments."""
    set_backs: float = 0.0
    """The metadata store is restored from an older copy."""
    discards: float = 0.0
    """A follower drops its copy, because it is damaged at a place where no other node can repair
    it."""
    store_cuts: float = 0.0
    """A node cannot reach the metadata store for a long time, while the lines between nodes work.
    Now and then there is no other fault, and acks must continue if this is promised
    (`replica_progress`)."""
    consumers: float = 1.0
    """Probability that a step of consumers with acks follows a step; 0 switches them off."""
    beyond_promises: bool = False
    """More disks are lost than acks have to survive, and an operator elects one of the remaining
    nodes."""


@dataclass(frozen=True)
class Rules:
    """The rules. A mutation replaces one of them."""

    leader: type[Leader] = Leader
    follower: type[Follower] = Follower
    mutations: frozenset[str] = frozenset()
    """Rules of the shell that are switched off in `Node` and `World`."""


@dataclass(frozen=True)
class Side:
    """The side state of a node. It is replaced as a whole, by a rename."""

    version: int = side_state.EMPTY
    leases: frozenset[int] = frozenset()
    tombstone_bound: int = 0


@dataclass
class Frame:
    """A request or an answer. A connection ends with each of its processes. So an answer never
    reaches another process run of the follower, but a request may be read after its sender died."""

    source: str
    target: str
    target_start: int
    request: FetchRequest | None = None
    answer: Answer | None = None
    body: Body = None
    side: Side | None = None
    record: StreamMetadata | None = None


@dataclass
class Cas:
    """A compare-and-set that may be applied at any time from now on."""

    node: str
    start: int
    expected: StreamMetadata
    record: StreamMetadata
    what: str


class Node:
    """A process and its disk."""

    def __init__(self, name: str, world: World) -> None:
        self.name = name
        self.world = world
        self.disk = world.new_disk()
        self.side = Side()
        self.consumers = NodeConsumers(self, world)
        self.lost_data = False  # synced records were lost since the last registration
        self.drops_copy = False  # noted on the disk before the record shows it
        self.born = 1  # the start that began with the present disk
        # The process.
        self.start = 1
        self.up = True
        self.record: StreamMetadata = world.record
        self.resigned_epoch = 0
        self.leader: Leader | None = None
        self.follower: Follower | None = None
        self.body: Body = None
        self.told_side: Side | None = None  # came with the body
        self.new_side: Side | None = None  # written, but not durable yet
        self.granting: dict[int, int] = {}  # requested leases, with the versions that contain them
        self.parked: dict[str, FetchRequest] = {}
        self.shown = 0  # the checked part of this process's high watermark
        self.known = self.disk.high_watermark  # the last high watermark of an ended role

    # --- roles -------------------------------------------------------------------

    def adopt(self, record: StreamMetadata) -> None:
        """Act on a record if it is newer than the record that this process acts on."""
        if record.version <= self.record.version or self.stands_aside():
            return
        if is_regressed(self.record, record) and "R10" not in self.world.rules.mutations:
            return  # a late notice of a record from a set-back store, which was restored since then
        self.record = record
        self.take_role()

    def learn(self, record: StreamMetadata) -> None:
        """Learn a record from the leader, whether the store has it or not."""
        if record.version > self.record.version and not is_regressed(self.record, record):
            self.world.stats["told"] += 1
            self.record = record
            self.take_role()

    def stands_aside(self) -> bool:
        """Return True if the store has lost the record of this node. The node then neither leads
        nor is elected on the basis of the stored record. The barrier read happens at once here."""
        stored = self.world.record
        if self.name in self.world.cut_off or not is_regressed(self.record, stored):
            return False
        if "R10" in self.world.rules.mutations:
            self.record = stored
            self.take_role()
        elif self.leader is not None and not self.leader.resigned:
            self.leader.resign()
            self.resigned_epoch = self.leader.epoch
            self.step_down()
            self.take_role()
        return True

    def confirmed_by(self, record: StreamMetadata) -> bool:
        """Return True if the disk has all that this node had confirmed at the time of `record`."""
        return record.starts.get(self.name, 0) >= self.born

    @property
    def known_of(self) -> Known:
        """The state that the node reports to others when the store has lost changes."""
        end = len(self.disk.log)
        has_copy = self.record.concerns(self.name)
        log = LogEnd(last_epoch(self.disk.epochs, end), end) if has_copy else None
        return Known(self.record, log)

    def take_role(self) -> None:
        """Take the role that the record assigns."""
        role = role_of(self.record, self.name, self.start, resigned_epoch=self.resigned_epoch)
        if isinstance(role, Lead):
            if self.leader is not None and self.leader.epoch == role.epoch:
                self.leader.adopt(self.record)
                for name in self.leader.disagreeing(self.world.now):
                    self.answer(self.parked.pop(name))
                self.world.see(self)
            else:
                self.lead()
            self.world.check_leader(self)
            return
        if self.leader is not None:
            self.step_down()
        if isinstance(role, Register):
            self.world.register(self)
        elif isinstance(role, Leave):
            self.follower = None
            gone = t.removed(self.record, self.name)
            if gone is not None:
                self.world.submit(self, Change(self.record, gone), "left")
            self.drop_copy()
        elif self.follower is None:
            self.shown = self.known
            self.follower = self.world.rules.follower(
                self.record,
                self.name,
                self.disk.epochs,
                log_end=len(self.disk.log),
                high_watermark=self.known,
                side_version=self.side.version,
                tombstones_removed_below=self.disk.tombstones_removed_below,
            )
            self.perform(self.follower.resumed())
        elif "R3" in self.world.rules.mutations and isinstance(role, Follow):
            if role.epoch != self.follower.record.leader_epoch and not self.follower.working:
                self.cut(self.follower.high_watermark)
                self.follower.failed(len(self.disk.log), self.disk.epochs)
            self.perform(self.follower.assigned(self.record))
        else:
            self.perform(self.follower.assigned(self.record))

    def drop_given_up(self) -> None:
        """Drop records of epochs that also exist in another history, because they could be mistaken
        for records of that history."""
        self.drops_copy = False
        if "R10 kept" not in self.world.rules.mutations:
            self.drop_copy()

    def drop_copy(self) -> None:
        """Drop the copy. A new copy begins empty."""
        self.disk = self.world.new_disk()
        self.world.begins_again(self)
        self.side, self.new_side = Side(), None
        self.consumers.lose()
        self.known = self.shown = self.disk.high_watermark

    def lead(self) -> None:
        """Begin the epoch of the record, after the running append has ended."""
        if self.follower is not None:
            if self.follower.working is not None:
                self.finish_work()
            self.known = self.follower.high_watermark
        elif self.leader is not None:
            self.known = self.leader.high_watermark
        self.follower = None
        self.granting.clear()  # another leader may have been in between
        disk = self.disk
        disk.sync()
        self.world.stats["terms"] += 1
        self.side = replace(self.side, version=self._side_begin(self.side.version))
        self.leader = self.world.rules.leader(
            self.record,
            self.name,
            disk.epochs,
            log_end=len(disk.log),
            durable_end=disk.synced,
            high_watermark=self.known,
            now=self.world.now,
            lag_max=20.0,
            side_version=self.side.version,
            consumers=sorted(self.consumers.written),
        )
        self.consumers.ended()
        disk.begin_epoch(self.leader.epoch)
        if disk.epochs != self.leader.epochs:
            raise Violation(f"the log has the epochs {disk.epochs}, {self.leader.epochs} expected")
        self.parked.clear()
        # After an unclean recovery, its high watermark may be higher than that of the elected node.
        self.shown = min(self.leader.high_watermark, len(self.world.committed))
        self.world.check_leader(self)
        self.world.see(self)

    def step_down(self) -> None:
        """Stop leading. Written records that are not committed stay in the log and get no
        answer."""
        assert self.leader is not None
        self.known = self.leader.high_watermark
        self.leader = None
        self.parked.clear()
        self.granting.clear()
        self.consumers.ended()
        self.disk.sync()

    # --- side state --------------------------------------------------------------

    def _side_begin(self, version: int) -> int:
        if "side versions" in self.world.rules.mutations:
            return version
        return side_state.begin(self.record.leader_epoch, version)

    def change_side(self, leases: frozenset[int], tombstone_bound: int) -> None:
        """Change the side state. The change of a leader is durable at once here."""
        assert self.leader is not None
        version = side_state.following(self.leader.epoch, self.side.version)
        if "side versions" in self.world.rules.mutations:
            version = self.side.version + 1
        self.side = Side(version, leases, tombstone_bound)
        for name in self.leader.side_changed(version, self.world.now):
            self.answer(self.parked.pop(name))

    def grant(self) -> None:
        """Request a lease for a reader. It is granted when the nodes in sync have it."""
        if self.leader is not None and not self.leader.resigned:
            self.world.value += 1
            lease = self.world.value
            self.change_side(self.side.leases | {lease}, self.side.tombstone_bound)
            self.granting[lease] = self.side.version
            self.world.see(self)

    def release(self, lease: int) -> None:
        if self.leader is not None and lease in self.side.leases:
            # From now on the lease is not promised, whatever its outcome is, even by an answer of a
            # former leader.
            self.world.granted.discard(lease)
            self.world.released.add(lease)
            self.change_side(self.side.leases - {lease}, self.side.tombstone_bound)

    def set_tombstone_bound(self) -> None:
        """Let all replicas drop the tombstones that all of them have."""
        if self.leader is None:
            return
        known = self.side.tombstone_bound
        bound = self.leader.confirmed_by_all(self.world.now, FORGET_AFTER, known)
        if bound != known:
            self.change_side(self.side.leases, bound)

    # --- work --------------------------------------------------------------------

    def publish(self, count: int, holes: int) -> None:
        """Append records, after skipped offsets. Followers may get them before the sync."""
        leader = self.leader
        if leader is None or leader.resigned:
            return
        if holes:
            self.disk.skip(holes)
        first = self.world.value + 1
        self.world.value += count
        self.disk.append([(leader.epoch, value) for value in range(first, first + count)])
        for name in leader.written(len(self.disk.log), self.world.now):
            self.answer(self.parked.pop(name))

    def sync(self) -> None:
        """Make the written data durable."""
        if self.leader is not None:
            self.disk.sync()
            self.leader.local(self.disk.synced)
            self.world.see(self)
        elif self.follower is not None and self.follower.working is not None:
            self.finish_work()

    def finish_work(self) -> None:
        assert self.follower is not None
        self.disk.sync()
        self.perform(self._stored(self.follower))
        self.world.see(self)

    def _stored(self, follower: Follower) -> Effect | None:
        version = None
        if isinstance(follower.working, Append) and self.new_side is not None:
            version = self.new_side.version
            if "side state" not in self.world.rules.mutations:
                self.side, self.new_side = self.new_side, None
        return follower.stored(len(self.disk.log), self.disk.epochs, version)

    def failing_sync(self) -> None:
        """Let a sync fail. The log gives up the records that it could not sync."""
        disk = self.disk
        if disk.synced == len(disk.log):
            return
        self.world.stats["failed syncs"] += 1
        disk.fail_to_sync()
        if self.leader is not None:
            if "R12" in self.world.rules.mutations:
                self.leader.log_end = len(disk.log)
            else:
                self.leader.resign()
                self.resigned_epoch = self.leader.epoch
                self.step_down()
                self.take_role()
        elif self.follower is not None:
            self.new_side = None
            self.follower.failed(len(disk.log), disk.epochs)

    def retry(self) -> None:
        """Send the follower's next request, because the last one has waited long enough, or the
        pause is over."""
        if self.follower is not None:
            self.follower.lost()
            self.perform(self.follower.resumed())

    def perform(self, effect: Effect | None) -> None:
        """Perform an effect of the follower. The written data become durable in a later step."""
        follower, disk = self.follower, self.disk
        if effect is None or follower is None:
            return
        if isinstance(effect, Fetch):
            if effect.offset > disk.synced:
                raise Violation(
                    f"{self.name} confirms offset {effect.offset}, and {disk.synced} is durable"
                )
            request = FetchRequest(
                self.name,
                self.start,
                effect.epoch,
                effect.offset,
                effect.last_epoch,
                effect.side_version,
                effect.mark,
                effect.leader_mark,
                has_old_states=not self.consumers.follower.is_complete
                and bool(self.consumers.written),
            )
            self.world.send(Frame(self.name, effect.leader, 0, request=request))
        elif isinstance(effect, Append):
            if self.new_side is not None:
                self.side = self.new_side  # only with the mutation: it is written later
            self.new_side = self.told_side
            if self.body:
                disk.add(self.body)
            if "R13" in self.world.rules.mutations:
                self.perform(self._stored(follower))
        elif isinstance(effect, Truncate):
            self.world.stats["truncations"] += 1
            self.cut(effect.end, below_high_watermark=effect.below_high_watermark)
        elif isinstance(effect, Gap):
            self.world.stats["gaps"] += 1
            disk.gap(effect.next_offset, effect.epochs)
        elif isinstance(effect, Resync):
            self.world.stats["resyncs"] += 1
            self.world.check_resync(self, effect)
            disk.start_over(effect.offset, effect.tombstones_removed_below)
            self.shown = len(disk.log)
        else:
            assert isinstance(effect, Fail)
            raise Violation(f"{self.name} fails: {effect.reason}")

    def cut(self, end: int, *, below_high_watermark: bool = False) -> None:
        self.disk.cut(end, below_high_watermark=below_high_watermark)
        self.shown = min(self.shown, len(self.disk.log))

    # --- frames ------------------------------------------------------------------

    def receive(self, frame: Frame) -> None:
        if frame.request is not None:
            self.serve(frame.request)
        elif self.follower is not None and self.start == frame.target_start:
            assert frame.answer is not None
            if self.follower.working is None:
                self.body, self.told_side = frame.body, frame.side
            first = self.disk.first
            self.perform(self.follower.answered(frame.answer, first_stored=first))
            self.world.see(self)
            if frame.record is not None:
                self.learn(frame.record)

    def serve(self, request: FetchRequest) -> None:
        if self.leader is None:
            return
        verdict = self.leader.fetched(request, self.world.now)
        self.world.stats[verdict.kind.value] += 1
        is_heard = verdict.kind in (Kind.SEND, Kind.PARK)
        if is_heard and self.world.record.leads(self.name, self.start):
            # Compaction may still run below the bound, which does not consider a late replica.
            below = max(self.disk.tombstones_removed_below, self.side.tombstone_bound)
            self.world.hear(request, self.leader, below)
        if verdict.kind is Kind.PARK:
            self.parked[request.node] = request
        elif verdict.kind is Kind.SEND:
            self.answer(request)
        elif verdict.kind is Kind.DIVERGING:
            self.answer(request, diverging=(verdict.epoch, verdict.end))
        self.world.see(self)

    def answer(self, request: FetchRequest, *, diverging: tuple[int, int] | None = None) -> None:
        leader, offset = self.leader, request.offset
        assert leader is not None
        body, end = (None, offset)
        if diverging is None:
            body, end = self.disk.read(offset, self.world.random.randrange(1, 5))
        side = self.side if request.side_version != self.side.version else None
        gap = Gap(end, between(leader.epochs, offset, end)) if end > offset else None
        is_told = leader.tells_record(request.mark, request.leader_mark)
        answer = Answer(
            leader.epoch,
            offset,
            request.last_epoch,
            leader.record.version,
            high_watermark=leader.high_watermark,
            first_stored=self.disk.first,
            tombstones_removed_below=self.disk.tombstones_removed_below,
            diverging=diverging,
            gap=gap,
            has_content=bool(body) or side is not None,
            side_version=None if side is None else side.version,
            brings_record=is_told,
            checksum=leader.record.checksum,
        )
        self.world.send(
            Frame(
                self.name,
                request.node,
                request.start,
                answer=answer,
                body=body,
                side=side,
                record=leader.record if is_told else None,
            )
        )


class World:
    """Makes `steps` random steps from `seed`. The same arguments give the same run."""

    def __init__(
        self,
        seed: int,
        *,
        replicas: int = 3,
        min_isr: int = 2,
        spares: int = 0,
        faults: Faults | None = None,
        rules: Rules | None = None,
        new_disk: Callable[[], Disk] = ListDisk,
        compacted: bool = False,
    ) -> None:
        self.compacted = compacted
        self.new_disk = new_disk
        self.random = random.Random(seed)
        self.faults = faults or Faults()
        self.rules = rules or Rules()
        self.now = 0.0
        self.value = 0
        self.stats: Counter[str] = Counter()
        self.trace: deque[str] = deque(maxlen=80)
        self.committed: list[Entry] = []
        self.luck = random.Random(seed + 1)
        self.changes_made = 0
        self.consumer_frames: list[ConsumerFrame] = []
        self.promises = Promises()
        self.granted: set[int] = set()  # granted leases that were not released
        self.released: set[int] = set()
        self.heard: dict[str, float] = {}  # times of the newest confirmations of nodes
        self.copying: set[str] = set()  # began with an empty disk and have not caught up since
        self.deleted_below = 0  # by retention of any node; compaction may drop records there
        self.unknown_below = 0  # after an unclean recovery: deleted by the elected node
        self.frames: list[Frame] = []
        self.delivered: deque[Frame] = deque(maxlen=self.random.choice((5, 20, 200)))
        self.cas: list[Cas] = []
        names = tuple("abcdefg"[:replicas])
        self.history: list[StreamMetadata] = [
            t.create("s", "i", {"min_isr": min_isr}, names, starts=dict.fromkeys(names, 1))
        ]
        self.kept = list(self.history)  # copies of the store for later restores
        self.sessions = set(names)
        self.cut_off: set[str] = set()  # nodes that cannot reach the store
        self.incomplete: set[str] = set()  # lost a disk and have not caught up since
        names += tuple("hijk"[:spares])
        self.sessions |= set(names)
        self.survives = min_isr - 1
        self.nodes = {name: Node(name, self) for name in names}
        first = self.nodes["a"].disk.log
        self.committed += first  # offsets below the first
        self._names = list(names)
        self._actions, self._weights = self._plan()
        for node in self.nodes.values():
            node.take_role()

    @property
    def record(self) -> StreamMetadata:
        """The newest record in the store."""
        return self.history[-1]

    def _plan(self) -> tuple[list[Callable[[Node], None]], list[float]]:
        """Return the steps and their weights. Each run has another mixture, so that rare
        combinations occur in some runs."""
        faults, choose = self.faults, self.random.choice
        flaky = choose((0.3, 0.6, 1.0, 2.0))
        table: list[tuple[Callable[[Node], None], float]] = [
            (self._publish, 16),
            (self._deliver, 40),
            (self._deliver_again, choose((1, 5)) * faults.late_copies),
            (self._sync, 16 * choose((0.4, 1, 2))),
            (self._retry, 3),
            (self.tell_untold, 2),
            (self._notice, 9 * choose((0.3, 1, 2))),
            (self.propose, 5),
            (self._disconnect, 1.5 * flaky),
            (self._apply_cas, 6),
            (self._session_ends, 1 * flaky * faults.elections),
            (self._session_begins, 6 * faults.elections),
            (self._fail_over, 6 * flaky * faults.elections),
            (self.resign, 2),
            (self._transfer, 0.3 * faults.planned),
            (self._crash, 0.5 * flaky * faults.crashes),
            (self.start, choose((2, 6))),
            (self._cut_power, 0.5 * flaky * faults.power_cuts),
            (self._blackout, 0.15 * faults.blackouts),
            (self._lose_disk, 0.5 * flaky * faults.lost_disks),
            (self._failing_sync, 0.3 * faults.failing_syncs),
            (self._retain, 0.5),
            (self._tidy, 1),
            (self._grant, 0.7),
            (self._release, 0.5),
            (self._stop, 0.2 * faults.crashes),
            (self._leave, 0.3 * faults.planned),
            (self._move, 1.0 * faults.moves),
            (self._hand_over, 6.0 * faults.moves),
            (self._cancel, 0.2 * faults.cancels * faults.moves),
            (self._update, 0.3 * faults.moves),
            (self._recover, 2.0 * faults.beyond_promises),
            (self._set_back, 0.15 * faults.set_backs),
            (self._guard, 6.0 * faults.set_backs),
            (self._decide, 0.1 * faults.set_backs),
            (self._discard, 1.0 * faults.discards),
            (self._cut_store, 0.5 * faults.store_cuts),
            (self._mend_store, 0.4 * faults.store_cuts),
            (self._must_go_on, 0.3 * faults.store_cuts),
        ]
        return [one for one, weight in table if weight], [weight for _, weight in table if weight]

    def run(self, steps: int) -> None:
        choices, names = self.random.choices, self._names
        actions = choices(self._actions, self._weights, k=steps)
        for action, name in zip(actions, choices(names, k=steps), strict=True):
            self.now += 0.5
            action(self.nodes[name])
            if self.luck.random() < self.faults.consumers:
                act(self)
                act(self)

    # --- what must hold ----------------------------------------------------------

    def see(self, node: Node) -> None:
        """Compare the records that a node's high watermark covers since the last check with the
        committed records."""
        leader = node.leader
        role = leader or node.follower
        if role is None:
            return
        end = role.high_watermark
        if end > node.shown:
            self._see_committed(node, end, leads=leader is not None)
            node.shown = end
            node.disk.commit(end)
        if leader is not None:
            now = self.record
            leads = (now.leader, now.leader_epoch) == (node.name, leader.epoch)
            for lease, version in list(node.granting.items()):
                if version <= leader.side_confirmed:
                    del node.granting[lease]
                    if lease in node.side.leases and lease not in self.released:
                        self.stats["leases"] += 1
                        self.granted.add(lease)
                        self.check_copies()
            leads = leads and not self._is_set_back()
            if leads and leader.is_ready and end < len(self.committed):
                raise Violation(f"{node.name} is ready at {end}, {len(self.committed)} was shown")

    def _see_committed(self, node: Node, end: int, *, leads: bool) -> None:
        log = node.disk.log
        if end > len(log):
            raise Violation(f"{node.name} has high watermark {end} and log end {len(log)}")
        if not leads and node.record.leader_epoch < self.record.unclean_epoch:
            return  # given up by an unclean recovery; this node has not received it yet
        known = min(end, len(self.committed))
        first = max(node.shown, node.disk.log_start, self.unknown_below)
        if not self._agrees(log, first, known):
            raise Violation(
                f"{node.name} has {log[first:known]} from offset {first} on, committed was "
                f"{self.committed[first:known]}"
            )
        if end > known:
            if not leads and not any(log[known:end]):
                return  # in a gap after a start: readers get no record
            if not leads:
                raise Violation(f"{node.name} follows with high watermark {end} above {known}")
            self.committed += log[known:end]
            self.stats["committed"] += end - known
            self.check_copies()

    def check_leader(self, node: Node) -> None:
        """Check leader completeness for the leader according to the newest record."""
        if self.record.leads(node.name, node.start) and not self._is_set_back():
            self._check_copy(node, "leads")

    def hear(self, request: FetchRequest, leader: Leader, removed_below: int) -> None:
        """Note a request. Records that a replica copies from the beginning may be compacted until
        the bound has moved back."""
        name, end = request.node, request.offset
        node = self.nodes[name]
        if node.lost_data or request.start < node.born or end > len(node.disk.log):
            return  # a late copy of a request from before it lost or dropped its copy
        if end >= leader.high_watermark:
            self.copying.discard(name)
        if end >= removed_below and name not in self.copying:
            self.heard[name] = self.now

    def begins_again(self, node: Node) -> None:
        self.heard.pop(node.name, None)
        self.copying.add(node.name)

    def check_resync(self, node: Node, effect: Resync) -> None:
        """Check that a copy is not dropped because of tombstones that were removed while its leader
        received its requests."""
        heard, end = self.heard.get(node.name), len(node.disk.log)
        self.begins_again(node)
        if heard is None or end >= effect.tombstones_removed_below:
            return
        if self.now - heard < FORGET_AFTER:
            raise Violation(
                f"{node.name} drops its log of end {end}, was heard {self.now - heard} s ago, and "
                f"tombstones are gone below {effect.tombstones_removed_below}"
            )

    def check_copies(self) -> None:
        """Check that all nodes that may be elected durably have the committed records."""
        if self._is_set_back():
            return
        for name in self.record.isr + self.record.eligible:
            node = self.nodes[name]
            aside = bool(self.faults.set_backs) and is_regressed(node.record, self.record)
            if not node.lost_data and node.confirmed_by(self.record) and not aside:
                self._check_copy(node, "can be elected")

    def _is_set_back(self) -> bool:
        """Return True if enough nodes have another record that it may have led to acks. Until these
        nodes have restored their record, the stored record does not determine who may be
        elected."""
        if not self.faults.set_backs:
            return False
        aside = sum(is_regressed(node.record, self.record) for node in self.nodes.values())
        return aside >= self.record.min_isr

    def _check_copy(self, node: Node, why: str) -> None:
        disk, end = node.disk, len(self.committed)
        first = max(disk.log_start, self.unknown_below)
        if disk.synced < end or not self._agrees(disk.log, first, end):
            raise Violation(
                f"{node.name} {why} with {disk.log[first:]}, synced to {disk.synced}; committed "
                f"from {first}: {self.committed[first:]}"
            )
        if missing := self.granted - node.side.leases:
            raise Violation(f"{node.name} {why} without the leases {missing}")
        consumers = node.consumers
        leads = node.leader is not None
        if lack := self.promises.problem(consumers.written, consumers.synced, leads=leads):
            raise Violation(f"{node.name} {why} {lack}")

    def _agrees(self, log: list[Entry], first: int, end: int) -> bool:
        """Return True if a log has the committed records. A compacted log may lack a record if a
        newer record of its key is committed, and a tombstone if no older record of its key is
        left."""
        committed = self.committed
        if log[first:end] == committed[first:end]:
            return True
        if not self.compacted:
            return False
        first = max(first, self.deleted_below)
        newest = {key_of(one[1]): at for at, one in enumerate(committed) if one is not None}
        oldest: dict[int, int] = {}
        for at in range(first, end):
            mine, one = log[at], committed[at]
            if mine is not None:
                oldest.setdefault(key_of(mine[1]), at)
            if mine == one:
                continue
            if mine is not None or one is None:
                return False
            key = key_of(one[1])
            if newest[key] == at and (not is_tombstone(one[1]) or oldest.get(key, at) < at):
                return False
        return True

    # --- network -----------------------------------------------------------------

    def send(self, frame: Frame) -> None:
        self.frames.append(frame)
        if len(self.frames) > 40:
            del self.frames[0]

    def _deliver(self, _: Node) -> None:
        for _ in range(self.random.randrange(1, 4)):
            if self.frames:
                self._deliver_one()

    def deliver_all(self) -> None:
        """Deliver all frames, but not the answers to them."""
        frames, self.frames = self.frames, []
        for frame in frames:
            self._receive(frame)

    def _deliver_one(self) -> None:
        late = self.random.random() < self.faults.reordered
        index = self.random.randrange(len(self.frames)) if late else 0
        frame = self.frames[index]
        del self.frames[index]
        self.delivered.append(frame)
        if self.random.random() >= self.faults.lost_frames:
            self._receive(frame)

    def _receive(self, frame: Frame) -> None:
        target = self.nodes[frame.target]
        if target.up:
            target.receive(frame)

    def _deliver_again(self, _: Node) -> None:
        """Deliver a late copy of a frame, or a lost one. Often it belongs to an earlier process run
        or epoch, which fencing must detect."""
        frames: Sequence[Frame] = self.delivered
        if self.random.random() < 0.5:
            frames = [frame for frame in frames if self._is_outdated(frame)]
        if frames:
            self._receive(self.random.choice(frames))

    def _is_outdated(self, frame: Frame) -> bool:
        asked = frame.request
        return asked is not None and (
            asked.start < self.nodes[asked.node].start or asked.epoch < self.record.leader_epoch
        )

    # --- ordinary work -----------------------------------------------------------

    def _publish(self, node: Node) -> None:
        if node.up:
            node.publish(self.random.randrange(1, 3), self.random.random() < 0.05)

    def _sync(self, node: Node) -> None:
        if node.up:
            node.sync()

    def _retry(self, node: Node) -> None:
        if node.up:
            node.retry()

    def tell_untold(self, node: Node) -> None:
        if node.up and node.leader is not None:
            for name in node.leader.untold(self.now):
                node.answer(node.parked.pop(name))

    def _retain(self, node: Node) -> None:
        """Delete records below the high watermark, and drop the epochs that ended there."""
        role = node.leader or node.follower
        if node.up and role is not None:
            first = self.random.randrange(role.high_watermark + 1)
            node.disk.retain(first // 3 if self.compacted else first)
            self.deleted_below = max(self.deleted_below, node.disk.log_start)

    def _tidy(self, node: Node) -> None:
        if node.up:
            node.disk.tidy(self.random, node.side.tombstone_bound)
            node.set_tombstone_bound()

    def _grant(self, node: Node) -> None:
        if node.up:
            node.grant()

    def _release(self, node: Node) -> None:
        if node.up and node.side.leases:
            node.release(self.random.choice(sorted(node.side.leases)))

    # --- records -----------------------------------------------------------------

    def _notice(self, node: Node) -> None:
        """Let a node receive a record, not always the newest one."""
        if node.name in self.cut_off:
            return
        newer = [one for one in self.history[-4:] if one.version > node.record.version]
        if node.up and node.stands_aside():
            self.stats["stood aside"] += 1
        elif node.up and newer:
            node.adopt(self.random.choice(newer))

    def propose(self, node: Node) -> None:
        if node.up and node.leader is not None:
            leader = node.leader
            was_settled, leader.is_settled = leader.is_settled, False
            change = leader.propose(self.now)
            assert change is None or not was_settled, "what is settled needs no look"
            if change is not None:
                self.submit(node, change, "isr")

    def submit(self, node: Node, change: Change, what: str) -> None:
        if node.name in self.cut_off:
            return
        self.cas.append(Cas(node.name, node.start, change.before, change.after, what))
        if len(self.cas) > 6:
            del self.cas[0]  # never applied

    def _apply_cas(self, _: Node) -> None:
        if self.cas:
            cas = self.cas.pop(self.random.randrange(len(self.cas)))
            self._apply(cas, self.faults.unknown_outcomes)

    def apply_all(self) -> None:
        while self.cas:
            self._apply(self.cas.pop(0), 0.0)

    def _apply(self, cas: Cas, unknown_outcomes: float) -> None:
        node = self.nodes[cas.node]
        applied = cas.expected == self.record
        if applied:
            self.put(cas.record, cas.what)
        known = node.up and node.start == cas.start and node.name not in self.cut_off
        if known and self.random.random() >= unknown_outcomes:
            if applied:
                node.adopt(cas.record)
        elif known:
            self.stats["unknown outcomes"] += 1
            leader = node.leader
            if "R5" in self.rules.mutations and leader is not None and leader.pending is not None:
                # The mutation: a change without a known outcome counts as failed, and the ISR does
                # not change.
                leader.pending = None
                leader._see(leader.record)

    def put(self, record: StreamMetadata, what: str) -> None:
        self.stats[what] += 1
        self.history.append(record)
        del self.history[:-8]
        self.kept = [*self.kept[-20:], record]
        self.incomplete -= set(record.isr)
        self.survives = min(self.survives, record.min_isr - 1)
        self.check_copies()

    def _session_ends(self, node: Node) -> None:
        self.sessions.discard(node.name)

    def _session_begins(self, node: Node) -> None:
        if node.up and node.name not in self.cut_off:
            self.sessions.add(node.name)

    def _fail_over(self, node: Node) -> None:
        """Elect a leader according to the node's record, which may be old, while the leader may
        still run."""
        if node.up and node.name in self.sessions and not node.record.deleted:
            dead = set(self.nodes) - self.sessions
            after = t.failover(node.record, dead, node.name)
            if after is not None:
                self.submit(node, Change(node.record, after), "failover")

    def resign(self, node: Node) -> None:
        if node.up and node.resigned_epoch == node.record.leader_epoch:
            after = t.resign(node.record, node.name)
            if after is not None:
                self.submit(node, Change(node.record, after), "resign")

    def _transfer(self, node: Node) -> None:
        if node.up and node.leader is not None and node.leader.pending is None:
            to = self.random.choice(node.record.isr)
            after = t.transfer(node.record, to)
            if after is not None:
                self.submit(node, Change(node.record, after), "transfer")

    def _leave(self, node: Node) -> None:
        """Stop as planned: no other node waits for this node."""
        if node.up and node.leader is None:
            after = t.fence(node.record, {node.name})
            if after is not None:
                self.submit(node, Change(node.record, after), "leave")

    # --- faults ------------------------------------------------------------------

    def _disconnect(self, node: Node) -> None:
        if node.up and node.leader is not None:
            node.leader.lost(self.random.choice(self._names))
        elif node.up and node.follower is not None:
            node.follower.lost()

    def _failing_sync(self, node: Node) -> None:
        if node.up:
            node.failing_sync()

    def _stop(self, node: Node) -> None:
        """Stop like a daemon: all data are synced, and the stop is marked as clean."""
        if node.up:
            self.stats["stops"] += 1
            role = node.leader or node.follower
            node.disk.close(role.high_watermark if role else node.known)
            self._end(node)

    def _crash(self, node: Node) -> None:
        """Kill the process. Its written data stay in the page cache."""
        if node.up:
            self.stats["crashes"] += 1
            role = node.leader or node.follower
            node.disk.kill(role.high_watermark if role else node.known, self.random)
            self._end(node)

    def _end(self, node: Node) -> None:
        if self.random.random() < 0.5:
            self.sessions.discard(node.name)
        if node.new_side is not None and "side state" not in self.rules.mutations:
            node.side = self.random.choice((node.side, node.new_side))
        node.new_side = None
        node.granting.clear()
        node.consumers.ended()
        node.up = False
        node.leader = node.follower = None
        node.parked.clear()

    def _cut_power(self, node: Node) -> None:
        """Cut the power. Unsynced data may be lost, of a running or a dead process."""
        self._crash(node)
        self.stats["lost tails"] += node.disk.synced < len(node.disk.log)
        node.disk.cut_power(self.random)
        node.consumers.cut_power()

    def _blackout(self, _: Node) -> None:
        self.stats["blackouts"] += 1
        for node in self.nodes.values():
            self._cut_power(node)

    def _lose_disk(self, node: Node) -> None:
        """Restore an older state of the disk, or replace it. At most as many disks are lost at a
        time as acks must survive."""
        incomplete = self.incomplete | {node.name}
        if node.up:
            return
        if len(incomplete) > self.survives and not self.faults.beyond_promises:
            return
        self.stats["lost disks"] += 1
        self.incomplete = incomplete
        node.lost_data = True
        node.record = self.kept[0]
        node.disk.lose(self.random)
        node.side = Side()
        node.consumers.lose()
        self.begins_again(node)

    def start(self, node: Node) -> None:
        """Register, by a change without a change of another node in between, and then take the
        role."""
        if node.up or node.name in self.cut_off:
            return
        node.up = True
        node.start += 1
        node.born = node.start if node.lost_data else node.born
        node.resigned_epoch = 0
        node.disk.recover()
        node.known = node.disk.high_watermark
        self.sessions.add(node.name)
        if is_regressed(node.record, self.record) and "R10" not in self.rules.mutations:
            return
        node.record = self.record
        if role_of(node.record, node.name, node.start) == Register():
            self.register(node)
        else:
            node.take_role()

    def register(self, node: Node) -> None:
        if node.name in self.cut_off:
            return
        if is_regressed(node.record, self.record) and "R10" not in self.rules.mutations:
            return
        clean = node.confirmed_by(self.record) and not node.drops_copy
        clean = clean or "R8" in self.rules.mutations
        record = t.register(self.record, node.name, node.start, clean=clean)
        node.lost_data = False
        if record is not None:
            self.put(record, "register" if clean else "register unclean")
        node.record = self.record
        if node.drops_copy:
            node.drop_given_up()
        if role_of(node.record, node.name, node.start) != Register():
            node.take_role()

    def _discard(self, node: Node) -> None:
        """Drop the copy when the node has left the in-sync set, and knows that."""
        record = node.record
        if not node.up or node.follower is None or record != self.record or record.deleted:
            return
        if node.name in self.cut_off:
            return
        change = t.shrink if "R15" in self.rules.mutations else t.discard
        try:
            after = change(record, node.name)
        except Conflict:
            self.stats["kept"] += 1
            return
        if after is not None:
            self.put(after, "discard")
        if self.random.random() < self.faults.unknown_outcomes:
            return
        node.follower = None
        node.drop_copy()
        if after is not None:
            node.adopt(after)

    def _cut_store(self, node: Node) -> None:
        self.stats["store cut off"] += node.name not in self.cut_off
        self.cut_off.add(node.name)

    def _mend_store(self, node: Node) -> None:
        self.cut_off.discard(node.name)

    def _must_go_on(self, _: Node) -> None:
        """Check that acks continue. The store loses no changes meanwhile."""
        if not self._is_set_back() and not any(
            is_regressed(node.record, self.record) for node in self.nodes.values()
        ):
            cut_off = sorted(self.cut_off)
            why, goes_on = go_on(self)
            if not goes_on:
                raise Violation(f"nothing is acked although {why}, without the store: {cut_off}")
            self.stats[why] += 1

    def _set_back(self, _: Node) -> None:
        """Let the store lose the newest changes."""
        if len(self.kept) > 1 and not is_regressed(self.kept[-1], self.record):
            self.stats["set backs"] += 1
            self.history = [self.random.choice(self.kept[:-1])]
            self.cas.clear()

    def _guard(self, node: Node) -> None:
        """Ask the other nodes for their records, and let the newest one be stored again."""
        if not node.up or node.name in self.cut_off:
            return
        if not is_regressed(node.record, self.record):
            return
        heard: dict[str, Known | None] = {
            name: one.known_of
            for name, one in self.nodes.items()
            if one is node or (one.up and self.random.random() < 0.8)
        }
        unheard = self.nodes.keys() - heard.keys()
        after = restored(self.record, heard, unheard)
        gives_up = is_given_up(node.name, node.record, self.record, heard, unheard)
        if after is not None:
            self.submit(node, Change(self.record, after), "restored")
        elif gives_up or "R10 given up" in self.rules.mutations:
            self._give_up(node)

    def _give_up(self, node: Node) -> None:
        """Switch the node to another history. It leaves the sets of that history, notes this on its
        disk, and then drops its copy. After a stop in between, it drops the copy when it
        registers."""
        with suppress(Conflict):
            after = t.give_up(self.record, node.name)
            node.drops_copy = True
            node.leader = node.follower = None
            if after is not None:
                self.put(after, "gave up")
            if self.random.random() < self.faults.unknown_outcomes:
                self._crash(node)
                return
            node.record = self.record
            if self.random.random() < 0.2:
                self._crash(node)
                return
            node.drop_given_up()
            node.take_role()

    def _decide(self, node: Node) -> None:
        """Let an operator decide, when all nodes run and have contradicting records."""
        if not all(one.up for one in self.nodes.values()):
            return
        heard = {name: one.known_of for name, one in self.nodes.items()}
        after = restored_by_operator(self.record, heard)
        if after is not None:
            self.submit(node, Change(self.record, after), "decided")

    # --- operators ---------------------------------------------------------------

    def _change(self, node: Node, what: str, change: Callable[[StreamMetadata], Any]) -> None:
        """Request a change from any node, which decides according to its own record."""
        if not node.up:
            return
        try:
            after = change(node.record)
        except (Conflict, InvalidArgument):
            self.stats["refused"] += 1
            return
        if after is not None:
            self.submit(node, Change(node.record, after), what)

    def _move(self, node: Node) -> None:
        size = self.random.choice((2, 3, 3, 4))
        target = self.random.sample(self._names, min(size, len(self._names) - 1))
        self._change(node, "move", lambda record: t.reassign(record, target))

    def _hand_over(self, node: Node) -> None:
        """Let the leader hand over, as the last node that a move removes."""
        if node.up and node.leader is not None and node.leader.pending is None:
            to = t.successor(node.leader.record)
            if to is not None:
                after = t.transfer(node.leader.record, to)
                assert after is not None
                self.submit(node, Change(node.leader.record, after), "handed over")

    def _cancel(self, node: Node) -> None:
        self._change(node, "cancel", t.cancel)

    def _update(self, node: Node) -> None:
        settings = {"min_isr": self.random.choice((1, 2, 2, 3))}
        self._change(node, "update", lambda record: t.update(record, settings))

    def _recover(self, node: Node) -> None:
        """Elect this node as it is, because no copy is known to be complete."""
        record = self.record
        if record.isr or record.eligible or not node.up or node.record != record:
            return
        if node.name in self.cut_off:
            return
        after = t.recover(record, node.name) if node.name in record.replicas else None
        if after is not None:
            # Like `lead`: the record may show this node that more is committed.
            if node.follower is not None and node.follower.working is not None:
                node.finish_work()
            log, known = node.disk.log, self.committed
            end = min(node.disk.log_start, len(log), len(known))
            while end < min(len(log), len(known)) and log[end] == known[end]:
                end += 1
            self.stats["given up"] += len(known) - end
            # Records that an earlier recovery gave up may be committed according to this node.
            role = node.leader or node.follower
            own = role.high_watermark if role else node.known
            self.committed = known[:end] + log[end:own]
            if len(known) < node.disk.log_start:
                # The node has deleted its information about these offsets.
                self.unknown_below = max(self.unknown_below, node.disk.log_start)
            self.incomplete.clear()
            self.heard.clear()
            self.granted &= node.side.leases
            self.promises.gives_up()
            self.put(after, "recover")
            node.adopt(after)
