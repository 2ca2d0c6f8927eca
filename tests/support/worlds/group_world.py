"""One consumer group in simulated time: a growing stream, members that join, leave, hang and die, a
network that loses and delays frames, and a coordinator that starts again from the durable state.

`liftlog.groups` and `liftlog.client.groups.group_member` decide. `_check_returned` and
`_check_stored` check every step; `check_settled` checks the end, after all faults.
"""

from __future__ import annotations

import heapq
import itertools
import random
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from liftlog.client.groups.group_member import GroupMember, Lane
from liftlog.errors import GroupFenced, LiftlogError, StorageError
from liftlog.groups.coordinator import Coordinator, Flight
from liftlog.groups.requests import Asked, Assignment, Beat, Commit, Join, Leave
from liftlog.groups.state import GroupState, decode_value, encode_value

KEY = ("g", "s")
SESSION = 10.0
PATIENCE = 2.0
"""A member repeats a request that got no answer within this time."""


class Violation(AssertionError):
    """A rule of consumer groups is broken."""


@dataclass
class Faults:
    """The number of times that each fault occurs in a thousand steps of a tenth of a second."""

    starts: float = 12
    stops: float = 6
    """A member leaves the group regularly."""
    kills: float = 6
    takeovers: float = 2
    """Another process starts under the name of a member that may still run."""
    hangs: float = 8
    restarts: float = 6
    """The coordinator is killed, and another one starts."""
    lost: float = 0.05
    """Share of the frames that are lost."""
    late: float = 0.05
    """Share of the requests that also arrive a second time, later."""
    failing_stores: float = 0.03
    slow: float = 0.02
    """Share of the records whose processing takes up to twice the session."""
    delayed: float = 0.05
    """Share of the requests that take up to 3 s to arrive."""


@dataclass(eq=False)
class Process:
    """A client. `member` is its own view of its membership."""

    name: str
    member: GroupMember
    token: str
    hung_until: float = 0.0
    dead: bool = False
    leaving: bool = False
    superseded: int = 0
    """True if another process has joined under the name of this member."""
    asks: dict[str, float] = field(default_factory=dict)
    """For each kind, the time until which the client waits for the answer to its newest request."""
    busy_until: float = 0.0
    in_hand: tuple[int, int] | None = None
    """Slot and offset of the record that the client processes."""
    inbox: list[Callable[[], None]] = field(default_factory=list)


class GroupWorld:
    def __init__(
        self,
        seed: int,
        *,
        slots: int = 12,
        faults: Faults | None = None,
        coordinator: type[Coordinator] = Coordinator,
        member: type[GroupMember] = GroupMember,
        process: type[Shell] | None = None,
    ) -> None:
        self.random = random.Random(seed)
        self.now = 1000.0
        self.slots = slots
        self.faults = Faults() if faults is None else faults
        self.stats: Counter[str] = Counter()
        self.state: GroupState | None = None
        """The durable state of the group."""
        self._make, self._make_member = coordinator, member
        self._shell = (process or Shell)(self)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self.numbers = itertools.count()
        self.records: list[list[int]] = [[] for _ in range(slots)]
        """The offsets of the records of each slot."""
        self.log: list[int] = []
        """The slot of each record; offsets begin at 1."""
        self.processes: list[Process] = []
        self._returned = [0] * slots
        """For each slot, the end of the records that were returned to any caller."""
        self._processed = [0] * slots
        """For each slot, the number of records that were processed together with all earlier
        records."""
        self._doubtful = [False] * slots
        """Slots that have lost an owner, so that its uncommitted records are returned again."""
        self._last: dict[tuple[int, int], int] = {}
        """Maps (slot, since) to the last offset that was returned in this tenure."""
        self.moves = self.moves_allowed = 0
        self.calm = False
        self.flying: Flight | None = None
        self.epoch = 0
        """Epoch of the coordinator. Answers of earlier coordinators are lost."""
        self.start_coordinator()

    # --- time and network ---------------------------------------------------------------

    def at(self, delay: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + delay, next(self.numbers), do))

    def chance(self, part: float) -> bool:
        return not self.calm and self.random.random() < part

    def delay(self) -> float:
        slow = self.chance(self.faults.delayed)
        return self.random.uniform(0.0, 3.0 if slow else 0.05)

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now += 0.1
            self._break_something()
            self._publish()
            while self._events and self._events[0][0] <= self.now:
                heapq.heappop(self._events)[2]()
            self._drive_coordinator()
            for process in list(self.processes):
                if not process.dead and process.hung_until <= self.now:
                    inbox, process.inbox = process.inbox, []
                    for do in inbox:
                        do()
                    if not process.dead:
                        self._shell.step(process)

    def _break_something(self) -> None:
        faults = self.faults
        alive = [one for one in self.processes if not one.dead]
        if self.chance(faults.starts / 1000) and len(alive) < 6:
            self.start()
        for process in alive:
            if self.chance(faults.kills / 1000 / len(alive)):
                self.kill(process)
            elif self.chance(faults.hangs / 1000 / len(alive)):
                self.stats["hangs"] += 1
                process.hung_until = self.now + self.random.uniform(0.5, 2 * SESSION)
            elif self.chance(faults.stops / 1000 / len(alive)):
                process.leaving = True
            elif self.chance(faults.takeovers / 1000 / len(alive)):
                self.stats["takeovers"] += 1
                self.start(process.name)
        if self.chance(faults.restarts / 1000):
            self.start_coordinator()

    def _publish(self) -> None:
        if self.calm:
            return
        for _ in range(self.random.choice((0, 0, 1, 3))):
            slot = self.random.randrange(self.slots)
            self.log.append(slot)
            self.records[slot].append(len(self.log))

    # --- processes ----------------------------------------------------------------------

    def start(self, name: str | None = None) -> Process:
        self.stats["starts"] += 1
        number = next(self.numbers)
        process = Process(name or f"m{number}", self._make_member(SESSION), f"t{number}")
        self.processes.append(process)
        return process

    def kill(self, process: Process) -> None:
        self.stats["kills"] += 1
        self.doubt(process.member.owned)
        self.end(process)

    def end(self, process: Process) -> None:
        process.dead = True
        self.processes.remove(process)

    def doubt(self, slots: list[int]) -> None:
        for slot in slots:
            self._doubtful[slot] = True

    def send(
        self,
        process: Process,
        asked: Asked,
        told: Callable[[Assignment | None, LiftlogError | None, float], None],
    ) -> None:
        """Send a request. `told` is called in the process with the time of sending, or never."""
        sent, epoch = self.now, self.epoch

        def answer(assignment: Assignment | None, error: LiftlogError | None) -> None:
            if epoch == self.epoch and not self.chance(self.faults.lost):
                back = self.random.uniform(0.0, 0.05)
                arrive = lambda: told(assignment, error, sent)  # noqa: E731
                self.at(back, lambda: process.inbox.append(arrive))

        def arrive() -> None:
            if epoch == self.epoch:
                self.coordinator.ask(asked, answer, self.now)

        if not self.chance(self.faults.lost):
            self.at(self.delay(), arrive)
        if self.chance(self.faults.late):
            self.stats["late copies"] += 1
            again = self.random.uniform(0, SESSION)
            self.at(again, lambda: self.coordinator.ask(asked, lambda *_: None, self.now))

    # --- the coordinator ----------------------------------------------------------------

    def start_coordinator(self) -> None:
        self.stats["coordinators"] += 1
        if self.flying is not None:
            if self.random.random() < 0.5:  # it was written, and nobody got the answer
                self._store(self.flying)
            self.flying = None
        self.epoch += 1
        state = self.state
        self.coordinator = self._make({} if state is None else {KEY: state}, self.now)

    def _drive_coordinator(self) -> None:
        coordinator = self.coordinator
        if self.flying is not None or not coordinator.wants_flight(self.now):
            return
        flight = self.flying = coordinator.begin(self.now)
        epoch = self.epoch

        def land() -> None:
            if epoch != self.epoch:
                return
            error = None
            if flight.drafts and self.chance(self.faults.failing_stores):
                self.stats["failed stores"] += 1
                error = StorageError("no space")
            else:
                self._store(flight)
            self.flying = None
            coordinator.landed(flight, error, self.now)

        self.at(self.random.uniform(0.0, 0.3), land) if flight.drafts else land()

    def _store(self, flight: Flight) -> None:
        draft = flight.drafts.get(KEY)
        before = self.state
        self._check_commits(flight, before)
        if draft is not None:
            self._check_stored(before, draft)
            self.state = decode_value(encode_value(draft))
            self._note_owners(before, draft)

    def _note_owners(self, before: GroupState | None, after: GroupState) -> None:
        """Note the lost members: their sessions have ended, or other processes have their names."""
        for process in self.processes:
            member = after.members.get(process.name)
            joined = process.member.joined
            if joined and (member is None or member.joined != joined):
                self.doubt(process.member.owned)
                if member is not None and member.joined > joined:
                    process.superseded = joined
        for name, member in ({} if before is None else before.members).items():
            if after.members.get(name) != member:
                self.stats["ended"] += 1

    # --- what must hold -----------------------------------------------------------------

    def _check_commits(self, flight: Flight, before: GroupState | None) -> None:
        for asked, _, error in flight.verdicts:
            if isinstance(asked, Commit) and error is None:
                self.stats["commits"] += 1
                for slot in asked.offsets:
                    if (
                        before is None
                        or before.owners[slot] != asked.member
                        or before.members[asked.member].joined != asked.joined
                        or before.since[slot] > asked.generation
                    ):
                        raise Violation(f"{asked.member} has committed slot {slot} of another")
            elif isinstance(error, GroupFenced):
                self.stats["fenced"] += 1

    def _check_stored(self, before: GroupState | None, after: GroupState) -> None:
        for slot, offset in enumerate(after.offsets):
            old = 0 if before is None else before.offsets[slot]
            if offset < old:
                raise Violation(f"slot {slot} went back from {old} to {offset}")
            done = self._processed[slot]
            if bisect_left(self.records[slot], offset) > done:
                raise Violation(f"slot {slot} is committed up to {offset}, not all is processed")
        if before is None:
            self.moves_allowed += self.slots
            return
        for name, member in after.members.items():
            if member != before.members.get(name):
                self.stats["joins"] += 1
                self.moves_allowed += self.slots // len(after.members) + 1
        for slot in range(self.slots):
            owner, next_owner = before.owners[slot], after.owners[slot]
            if not owner or after.members.get(owner) != before.members[owner]:
                continue
            # A slot that was released and is assigned again at once also has a new tenure.
            again = owner == next_owner and after.since[slot] != before.since[slot]
            if again and any(slot in one.member.owned for one in self._of(owner)):
                raise Violation(f"slot {slot} stays, and yet is interrupted")
            self.moves += owner != next_owner
        if self.moves > self.moves_allowed:
            raise Violation("slots move that need not")

    def _of(self, name: str) -> list[Process]:
        return [one for one in self.processes if one.name == name and not one.superseded]

    def returned(self, process: Process, slot: int, offset: int) -> None:
        """Note that the process gets a record."""
        self.stats["records"] += 1
        state = self.state
        assert state is not None
        member = state.members.get(process.name)
        owns = member is not None and state.owners[slot] == process.name
        joined = process.member.joined
        if process.superseded == joined or (
            member is not None and member.token != process.token and member.joined > joined
        ):
            return  # another process has its name; its commits are fenced
        if not owns or member is None or member.joined != joined:
            raise Violation(f"{process.name} reads slot {slot} of {state.owners[slot] or 'no one'}")
        if offset < state.offsets[slot]:
            raise Violation(f"{offset} of slot {slot} comes again, {state.offsets[slot]} is stored")
        tenure = slot, state.since[slot]
        records = self.records[slot]
        place = bisect_left(records, offset)
        first = bisect_left(records, state.offsets[slot])
        expected = self._last.get(tenure, first - 1) + 1
        if place != expected and tenure in self._last:
            raise Violation(f"slot {slot}: record {place} follows {expected - 1} in one tenure")
        if place > self._returned[slot]:
            raise Violation(f"slot {slot}: records {self._returned[slot]} to {place} are skipped")
        if place < self._returned[slot]:
            if not self._doubtful[slot]:
                raise Violation(f"slot {slot}: record {place} comes again, no owner was lost")
            self.stats["again"] += 1
        else:
            self._doubtful[slot] = False
        self._last[tenure] = place
        self._returned[slot] = max(self._returned[slot], place + 1)

    def processed(self, process: Process, slot: int, offset: int) -> None:
        place = bisect_left(self.records[slot], offset)
        if place == self._processed[slot]:
            self._processed[slot] += 1

    def check_settled(self) -> None:
        """Check the end, after all faults: all slots are assigned in equal shares, and all records
        are read and committed."""
        self.calm = True
        for process in self.processes:
            process.hung_until = 0.0
            process.leaving = False
        for _ in range(12):
            # A member ends if it is told that another process has its name. That process may have
            # ended before.
            if not any(not one.superseded for one in self.processes):
                self.start()
            self.run(SESSION / 2)
            wrong = self._why_not_settled()
            if wrong is None:
                return
        raise Violation(wrong)

    def _why_not_settled(self) -> str | None:
        state, alive = self.state, self.processes
        if state is None or set(state.members) != {one.name for one in alive}:
            return f"the members are {state and set(state.members)}"
        counts = sorted(len(one.member.slots) for one in alive)
        if sum(counts) != self.slots or counts[-1] - counts[0] > 1:
            return f"shares of {counts}"
        for slot, offset in enumerate(state.offsets):
            if any(record >= offset for record in self.records[slot][-1:]):
                return f"slot {slot} stopped at {offset}"
        return None


class Shell:
    """Does the work of the client around a `GroupMember`, in steps."""

    def __init__(self, world: GroupWorld) -> None:
        self.world = world

    def step(self, process: Process) -> None:
        member, world = process.member, self.world
        if member.joined == 0:
            process.in_hand = None
            if process.leaving:
                world.end(process)
            else:
                session_ms = int(SESSION * 1000)
                join = Join(KEY, process.name, process.token, session_ms, world.slots)
                self._ask(process, "join", join)
            return
        self._work(process)
        if member.uncommitted() and world.random.random() < (0.1, 0.6)[process.leaving]:
            self._commit(process)
        if member.owned != member.slots:
            self._give_up(process)
        if process.leaving and not process.in_hand and not member.uncommitted():
            self._leave(process)
        else:
            self._beat(process)

    def _work(self, process: Process) -> None:
        member, world = process.member, self.world
        for _ in range(50 if world.calm else 4):
            if process.busy_until > world.now:
                return
            if process.in_hand is not None:
                world.processed(process, *process.in_hand)
                process.in_hand = None
                member.processed()
            if process.leaving or not member.may_return(world.now):
                return
            if len(member.lanes) > 1:
                one, other = world.random.sample(member.lanes, 2)
                world.stats["merges"] += member.merge(one, other)
            behind = [lane for lane in member.lanes if lane.done <= len(world.log)]
            if not behind:
                return
            self._read(process, world.random.choice(behind))

    def _read(self, process: Process, lane: Lane) -> None:
        world, member = self.world, process.member
        for offset in range(max(lane.done, 1), len(world.log) + 1):
            slot = world.log[offset - 1]
            if lane.returns(slot, offset):
                member.passed(lane, offset)
                member.hand_out(lane, (slot,), offset + 1)
                world.returned(process, slot, offset)
                process.in_hand = slot, offset
                slow = world.chance(world.faults.slow)
                if not world.calm:
                    process.busy_until = world.now + world.random.uniform(0, 20 if slow else 0.2)
                return
        member.passed(lane, len(world.log) + 1)

    # --- requests ---

    def _commit(self, process: Process) -> None:
        member = process.member
        joined, offsets = member.joined, member.uncommitted()
        commit = Commit(KEY, process.name, joined, member.generation, offsets, "i", 1)
        self._ask(process, "commit", commit)

    def _give_up(self, process: Process) -> None:
        """Release slots: commit them, and then leave them out of a heartbeat."""
        if process.member.give_up():
            self.world.stats["revoked"] += 1
            process.asks.pop("beat", None)  # the heartbeat in flight contains these slots
            self._beat(process)
        elif process.member.uncommitted():
            self._commit(process)

    def _beat(self, process: Process) -> None:
        member = process.member
        owned = frozenset(member.owned)
        beat = Beat(KEY, process.name, member.joined, member.generation, owned, SESSION / 3)
        self._ask(process, "beat", beat, SESSION / 3 + PATIENCE)

    def _leave(self, process: Process) -> None:
        self.world.stats["leaves"] += 1
        leave = Leave(KEY, process.name, process.member.joined)
        self.world.send(process, leave, lambda *_: None)
        self.world.end(process)

    def _ask(self, process: Process, kind: str, asked: Asked, patience: float = PATIENCE) -> None:
        """Send a request. Only one request of a kind is open at a time, until its answer or a
        timeout."""
        world, member = self.world, process.member
        if process.asks.get(kind, 0.0) > world.now:
            return
        until = process.asks[kind] = world.now + patience
        joined = member.joined

        def told(assignment: Assignment | None, error: LiftlogError | None, sent: float) -> None:
            if process.asks.get(kind) == until:
                del process.asks[kind]
            if member.joined != joined:
                return  # it has joined again in the meantime
            if isinstance(error, GroupFenced):
                self._fenced(process, error)
            elif isinstance(asked, Commit) and error is None:
                member.committed(joined, dict(asked.offsets), sent)
            elif assignment is not None:
                member.told(assignment.joined, assignment.generation, assignment.slots, sent)

        world.send(process, asked, told)

    def _fenced(self, process: Process, error: GroupFenced) -> None:
        self.world.stats["lost"] += 1
        self.world.doubt(process.member.lost())
        process.token = f"t{next(self.world.numbers)}"
        process.superseded = 0
        if error.details.get("replaced") and not process.dead:
            self.world.end(process)
