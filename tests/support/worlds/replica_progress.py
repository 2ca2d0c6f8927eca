"""Checks that acks continue in a `World` without faults, except that some nodes cannot reach the
metadata store.

The lines between nodes work, and stopped nodes start if they reach the store. A node without the
store changes no record, and receives records only from the leader. A published message must be
acked within `PATIENCE` steps if one of these conditions is true:

- a leader exists, and the nodes for which it waits can follow it: they know its epoch, or reach the
  store
- a leader reaches the store, and `min_isr` replicas can follow it, so that the others leave the ISR
- `min_isr` replicas reach the store, and one of them can be elected: there is no leader, the leader
  has stopped, or it hands over because it waits for a change that it cannot make

If no condition is true, all nodes reach the store again, and acks must continue, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from support.worlds.replica_consumers import settle

from liftlog.cluster import transitions as t
from liftlog.cluster.leading import Leader
from liftlog.cluster.record import Change

if TYPE_CHECKING:
    from support.worlds.replica_world import Node, World

PATIENCE = 240
"""Number of steps of half a second: six times as long as a leader waits for a lagging follower."""


LEADS = "the leader reaches the store"
WAITS = "the leader waits for those that follow"
ELECTS = "another one can be elected"
MENDED = "all reach the store again"
"""Reason why acks must continue."""


def go_on(world: World) -> tuple[str, bool]:
    """Run all due steps until a newly published message is acked. Returns the reason why acks must
    continue, and True if one has arrived."""
    for node in world.nodes.values():
        world.propose(node)
    world.apply_all()
    for node in world.nodes.values():
        world.start(node)
    why = promised(world)
    if why is None:
        world.cut_off.clear()
        why = MENDED
        for node in world.nodes.values():
            world.start(node)
    known, value = len(world.committed), world.value
    for step in range(PATIENCE):
        world.now += 0.5
        for node in world.nodes.values():
            _act(world, node, step)
        if any(entry is not None and entry[1] > value for entry in world.committed[known:]):
            return why, True
    return why, False


def promised(world: World) -> str | None:
    """Return the reason why acks must continue although some nodes cannot reach the store; None if
    they need not continue."""
    record = world.record
    reaching = {name for name in _running(world) if name not in world.cut_off}
    node = world.nodes[record.leader] if record.leader is not None else None
    if node is not None and node.name in reaching:
        following = {name for name in record.replicas if _follows(world, name, reaching)}
        if node.resigned_epoch < record.leader_epoch and len(following) >= record.min_isr:
            return LEADS
    leader = node.leader if node is not None and node.up else None
    if node is not None and leader is not None and _leads(world, leader):
        waits_for = {*leader.record.isr, *(leader.pending.after.isr if leader.pending else ())}
        hands_over = node.name not in reaching and leader.needs_change(world.now)
        follow = all(_follows(world, name, reaching) for name in waits_for)
        if leader.can_commit and follow and not hands_over:
            return WAITS
    elif node is not None and node.up and node.name not in reaching:
        return None  # it was elected or has resigned, and it or the others do not know this
    rest = [name for name in record.isr if node is None or name != node.name]
    standing = rest or record.eligible
    if leader is not None and len(rest) < record.min_isr:
        return None
    if len(reaching & set(record.replicas)) >= record.min_isr and reaching & set(standing):
        return ELECTS
    return None


def _running(world: World) -> set[str]:
    return {name for name, node in world.nodes.items() if node.up}


def _leads(world: World, leader: Leader) -> bool:
    return not leader.resigned and leader.epoch == world.record.leader_epoch


def _follows(world: World, name: str, reaching: set[str]) -> bool:
    """Return True if a node can know that the leader leads, or is the leader itself."""
    node, epoch = world.nodes[name], world.record.leader_epoch
    return name in reaching or (node.up and node.record.leader_epoch == epoch)


def _act(world: World, node: Node, step: int) -> None:
    """Run the steps of a node in half a second."""
    world.deliver_all()
    if not node.up:
        return
    if node.name not in world.cut_off:
        world.sessions.add(node.name)
        node.adopt(world.record)
        if node.leader is None and node.follower is None:
            node.take_role()
        world.resign(node)
        _elect(world, node)
    if node.leader is not None:
        node.publish(1, 0)
        world.propose(node)
        world.tell_untold(node)
    node.sync()
    settle(world, node)
    if step % 4 == 0:
        node.retry()
    world.apply_all()


def _elect(world: World, node: Node) -> None:
    """Elect a leader as `Elections` would decide if all nodes receive each other's data. A stopped
    leader is replaced. A leader hands over if it waits for a change and does not reach the store.
    It asks the nodes in sync according to its record, and the answer contains the new leader."""
    record = node.record
    if record != world.record or record.deleted or record.leader == node.name:
        return
    leads = None if record.leader is None else world.nodes[record.leader]
    asks = leads is not None and leads.up
    if leads is not None and asks and not _asks(world, leads, node):
        return
    after = t.failover(record, set() if leads is None else {leads.name}, node.name)
    if after is None or (asks and not (after.can_commit and node.name in record.isr)):
        return
    world.submit(node, Change(record, after), "failover")
    if leads is not None and asks:
        world.apply_all()
        if world.record == after:
            leads.learn(after)


def _asks(world: World, leads: Node, node: Node) -> bool:
    """Return True if a leader hands over and may hand over to this node."""
    leader = leads.leader if leads.name in world.cut_off else None
    if leader is None or not leader.needs_change(world.now):
        return False
    return not leader.resigned and node.name in leader.record.isr
