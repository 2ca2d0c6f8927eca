"""Simulates consumers with acks in `replica_world`: the journal of each node, and the exchange of
states between a leader and its followers.

They have their own scheduler and network, so they do not change runs without consumers. A state is
a tuple of changes, which the leader makes. A delivery is sent when its change is confirmed as
written, and an ack is confirmed when its change is confirmed as synced. These errors must never
occur:

- a confirmed ack is missing on a node that leads, or that could be elected
- a sent delivery is missing on such a node, unless the power failed since then
- a consumer exists although its deletion was confirmed
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from liftlog.cluster.consumer_states import (
    Changes,
    FollowerStates,
    LeaderStates,
    Position,
    Received,
)
from liftlog.cluster.followers import Kind

if TYPE_CHECKING:
    from support.worlds.replica_world import Node, World

States = dict[str, tuple[int, ...]]


class Change(NamedTuple):
    name: str
    number: int
    kind: str
    value: int
    state: tuple[int, ...] = ()


@dataclass
class Sent:
    """A request or an answer. An answer contains its `request`."""

    request: int
    epoch: int
    has: Position | None = None
    base: int = 0
    written: int = 0
    cursor: int = 0
    changes: list[Change] = field(default_factory=list)


class Frame(NamedTuple):
    source: str
    source_start: int
    target: str
    target_start: int
    sent: Sent


@dataclass
class Promises:
    """The changes that clients were told."""

    acked: dict[str, set[int]] = field(default_factory=dict)
    delivered: dict[str, set[int]] = field(default_factory=dict)
    excused: set[int] = field(default_factory=set)
    """Changes that a node had written and not synced when its power failed."""
    released: set[str] = field(default_factory=set)
    """Consumers whose deletion was requested."""
    deleted: set[str] = field(default_factory=set)

    def gives_up(self) -> None:
        """Drop the promises, because an operator has chosen a node that may lack confirmed
        changes."""
        self.acked, self.delivered, self.deleted = {}, {}, set()

    def problem(self, written: States, synced: States, *, leads: bool) -> str:
        """Return the promised changes that a node lacks although it leads or can be elected."""
        durable = written if leads else synced
        for what, promised, states in (
            ("acks", self.acked, durable),
            ("deliveries", self.delivered, written),
        ):
            for name, values in promised.items():
                missing = values.difference(states.get(name, ()))
                if what == "deliveries":
                    missing -= self.excused
                if missing:
                    return f"without the {what} {missing} of consumer {name}"
        if there := self.deleted & durable.keys():
            return f"with the deleted consumers {there}"
        return ""


class NodeConsumers:
    """The journal of a node, and its part in the exchange."""

    def __init__(self, node: Node, world: World) -> None:
        self.node, self.world = node, world
        self.states: list[States] = [{}]
        """The synced states, and the states after each write since then."""
        self.open = 0  # the request without an answer
        self.follower = FollowerStates()
        self.of: tuple[Any, ...] = ()  # the leader and epoch of `follower`
        self.last: tuple[int, int] | None = None  # base and number of the last write
        self.waiting: list[tuple[int, str, str, int]] = []  # not confirmed to clients yet

    @property
    def written(self) -> States:
        return self.states[-1]

    @property
    def synced(self) -> States:
        return self.states[0]

    def is_broken(self, rule: str) -> bool:
        return rule in self.world.rules.mutations

    # --- the journal ---

    def write(self, states: States) -> None:
        self.states.append(states)

    def sync(self) -> None:
        self.states = [self.states[-1]]
        if self.node.leader is not None:
            self.confirm()
        elif self.last is not None:
            self.follower.synced(*self.last)

    def cut_power(self) -> None:
        before, self.states = self.written, [self.world.luck.choice(self.states)]
        left = self.written
        for name, state in before.items():
            self.world.promises.excused.update(set(state).difference(left.get(name, ())))

    def lose(self) -> None:
        self.states = [{}]
        self.ended()

    def ended(self) -> None:
        """End the role or the process."""
        self.waiting.clear()
        self.open, self.of, self.last = 0, (), None

    # --- the leader ---

    def change(self) -> None:
        leader, random = self.node.leader, self.world.luck
        if leader is None or leader.resigned:
            return
        there = sorted(self.written)
        chance = random.random()
        if not there or (chance < 0.1 and len(there) < 4):
            self.world.changes_made += 1
            self.make(f"c{self.world.changes_made}", "snapshot")
        elif chance < 0.2:
            self.make(random.choice(there), "deleted")
        elif chance < 0.25:
            self.make(random.choice(there), "snapshot")
        else:
            self.make(random.choice(there), random.choice(("delivered", "acked")))

    def make(self, name: str, kind: str) -> None:
        leader, promises = self.node.leader, self.world.promises
        assert leader is not None
        self.world.changes_made += 1
        value, state = self.world.changes_made, self.written.get(name, ())
        states: LeaderStates[Change] = leader.states
        number = states.changed(name, is_deletion=kind == "deleted")
        written = {**self.written}
        if kind == "deleted":
            del written[name]
            # From now on the change is not promised, whatever its outcome is, even by an answer of
            # a former leader.
            promises.released.add(name)
            promises.acked.pop(name, None)
            promises.delivered.pop(name, None)
        else:
            written[name] = state = state if kind == "snapshot" else (*state, value)
        states.keep(Change(name, number, kind, value, state), 1)
        self.write(written)
        self.waiting.append((number, kind, name, value))
        if kind != "delivered":
            states.want_sync(number)
        leader.stir()
        self.confirm()

    def confirm(self) -> None:
        """Confirm to clients all confirmed changes."""
        leader = self.node.leader
        if leader is None or leader.resigned:
            return
        leader.confirm_states()
        states = leader.states
        left = []
        for one in self.waiting:
            number, kind, name, value = one
            if self.is_broken("consumers confirmed by the leader alone"):
                reached = True
            elif kind == "delivered":
                reached = number <= states.written
            else:
                reached = number <= states.synced and len(self.states) == 1
            if reached:
                self.tell(kind, name, value)
            else:
                left.append(one)
        self.waiting = left

    def tell(self, kind: str, name: str, value: int) -> None:
        promises = self.world.promises
        self.world.stats[f"consumers {kind}"] += 1
        gone = name in promises.released
        if kind == "deleted":
            promises.deleted.add(name)
        elif kind == "acked" and not gone:
            promises.acked.setdefault(name, set()).add(value)
        elif kind == "delivered" and not gone:
            promises.delivered.setdefault(name, set()).add(value)
        self.world.check_copies()

    def serve(self, node: str, start: int, sent: Sent) -> None:
        leader, random = self.node.leader, self.world.luck
        if leader is None:
            return
        verdict = leader.states_fetched(node, start, sent.epoch, sent.has, self.world.now)
        self.confirm()
        if verdict.kind is not Kind.SEND:
            return
        leader.states.asked_to_sync(node)
        plan = leader.states.plan(sent.has)
        if isinstance(plan, Changes):
            assert sent.has is not None
            changes = plan.changes[: random.randrange(1, 4)]
            written = changes[-1].number if changes else plan.number
            base, cursor = sent.has.base, written
        else:
            names = list(plan.numbers)[: random.randrange(1, 4)]
            written, cursor = plan.reached(len(names))
            changes = [
                Change(one, leader.states.number_of(one), "snapshot", 0, self.written[one])
                for one in names
            ]
            if written == plan.number:
                changes += [Change(one, at, "deleted", 0) for one, at in plan.deleted.items()]
            base = plan.base
        answer = Sent(sent.request, leader.epoch, None, base, written, cursor, changes)
        send(self.world, self.node.name, node, start, answer)

    # --- a follower ---

    def fetch(self) -> None:
        node = self.node
        if node.follower is None or node.record.leader in (None, node.name):
            return
        of = (node.start, node.record.leader, node.record.leader_epoch)
        if of != self.of:
            keeps = self.is_broken("consumers of another epoch count") and self.of
            self.of, self.open = of, 0
            if not keeps:
                self.follower, self.last = FollowerStates(), None
        self.world.changes_made += 1
        self.open = self.world.changes_made
        has = self.follower.position
        if has is not None and self.is_broken("consumers confirmed before the sync"):
            has = has._replace(synced=has.written)
        sent = Sent(self.open, node.record.leader_epoch, has)
        send(self.world, node.name, str(node.record.leader), 0, sent)

    def answered(self, sent: Sent) -> None:
        node = self.node
        now = (node.start, node.record.leader, node.record.leader_epoch)
        if node.follower is None or sent.request != self.open or now != self.of:
            return
        self.open = 0
        received = [
            Received(one.name, one.number, one.kind == "snapshot", one.kind == "deleted", False)
            for one in sent.changes
        ]
        wanted, gone = self.follower.answered(sent.base, sent.written, received, [*self.written])
        written = {**self.written}
        for index in wanted:
            one = sent.changes[index]
            if one.kind == "deleted":
                written.pop(one.name, None)
            elif one.kind == "snapshot":
                written[one.name] = one.state
            else:
                written[one.name] = (*written.get(one.name, ()), one.value)
        for name in gone:
            if not self.is_broken("consumers that the leader lacks are kept"):
                del written[name]
        self.write(written)
        self.follower.written(sent.written, sent.cursor)
        self.last = sent.base, sent.written


def act(world: World) -> None:
    """Run one random step of a random node or of the network."""
    luck = world.luck
    chance = luck.random()
    if chance < 0.5:
        deliver(world)
        return
    node = world.nodes[luck.choice(sorted(world.nodes))]
    if not node.up:
        return
    if chance < 0.6:
        node.consumers.change()
    elif chance < 0.85:
        node.consumers.fetch()
    else:
        node.consumers.sync()


def settle(world: World, node: Node) -> None:
    """Run the steps of a node in half a second, without lost frames."""
    node.consumers.fetch()
    frames = world.consumer_frames
    while frames:
        receive(world, frames.pop(0))
    node.consumers.sync()


def deliver(world: World) -> None:
    """Deliver a frame in time, late or twice, or lose it."""
    luck, frames = world.luck, world.consumer_frames
    if not frames:
        return
    index = luck.randrange(len(frames)) if luck.random() < world.faults.reordered else 0
    frame = frames[index]
    if luck.random() < 0.9:
        del frames[index]
    if luck.random() >= world.faults.lost_frames:
        receive(world, frame)


def receive(world: World, frame: Frame) -> None:
    target = world.nodes[frame.target]
    if not target.up:
        return
    if not frame.target_start:
        target.consumers.serve(frame.source, frame.source_start, frame.sent)
    elif frame.target_start == target.start:
        target.consumers.answered(frame.sent)


def send(world: World, source: str, target: str, start: int, sent: Sent) -> None:
    """Send a request if `start` is 0; otherwise send an answer for this start of the target."""
    frames = world.consumer_frames
    frames.append(Frame(source, world.nodes[source].start, target, start, sent))
    if len(frames) > 20:
        del frames[0]
