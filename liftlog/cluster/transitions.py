"""Every change of a stream's record, as a function from the old record to the new one.

Each function returns the record to commit by compare-and-set, one version higher, or None if the
record already has the requested form. So a change whose outcome is unknown can simply be requested
again. A function raises Conflict if the record does not permit the change. The functions get no
times, sessions or logs: the caller decides beforehand whether a node is dead or has caught up.

Every record that these functions return obeys three rules. Because of them, no acked record is lost
when nodes fail:

- All members of `isr` hold everything that was acked, because the high watermark waits for each of
  them.
- While `isr` is smaller than `min_isr`, nothing is acked. Replicas that leave `isr` during this
  time go to `eligible`, because they also hold everything that was acked.
- Only members of `isr` or `eligible` are elected. Both sets become empty only if all their members
  started again with damaged disks; in this case `recover` elects a node and accepts a possible
  loss.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from liftlog.cluster.record import StreamMetadata, default_min_isr
from liftlog.errors import Conflict, InvalidArgument

_MAX_FORMER = 100


def create(
    name: str,
    incarnation: str,
    settings: Mapping[str, Any],
    replicas: Sequence[str],
    *,
    starts: Mapping[str, int],
    observers: Sequence[str] = (),
    leader_epoch: int = 1,
    log_start: int = 0,
    system: bool = False,
) -> StreamMetadata:
    """Return the first record of a stream. The first of `replicas` leads, and all of them are in
    sync.

    `starts` has the present start of each node. A stream that existed before its record continues
    at the `leader_epoch` of its manifest. Raises InvalidArgument if `min_isr` does not fit the
    number of `replicas`.
    """
    chosen = dict(settings)
    if chosen.get("min_isr") is None:
        # Stored explicitly, so that a reassignment to more replicas does not raise it.
        chosen["min_isr"] = default_min_isr(len(replicas))
    record = StreamMetadata(
        name=name,
        incarnation=incarnation,
        settings=chosen,
        replicas=tuple(replicas),
        observers=tuple(observers),
        leader=replicas[0] if replicas else None,
        leader_epoch=leader_epoch,
        isr=tuple(replicas),
        starts={node: starts[node] for node in (*replicas, *observers)},
        log_start=log_start,
        system=system,
    )
    if problem := record.problem():
        raise InvalidArgument(f"stream {name!r} cannot be created: {problem}")
    return record


def settle(record: StreamMetadata) -> StreamMetadata:
    """Empty `eligible` and `last_eligible` if the ISR can ack again, because from then on only
    members of the ISR are certain to have every acked record."""
    if record.can_commit and (record.eligible or record.last_eligible):
        return replace(record, eligible=(), last_eligible=())
    return record


# --- starts and deaths -----------------------------------------------------------


def register(
    record: StreamMetadata, node: str, start: int, *, clean: bool, closed: bool = False
) -> StreamMetadata | None:
    """Register the new start of `node`. The node does this before it fetches or serves the stream.

    `clean` is True if the log of the node has all records that the node ever confirmed; the node
    then stays in `isr` and `eligible`. Otherwise it leaves both sets until it has caught up. In
    both cases the node does not lead until it is elected again. A leader may be about to add the
    previous process run of the node to the ISR. The new version of the record makes this change
    fail.

    The only replica of a stream stays the leader if its log is `clean`. A new epoch begins unless
    the last stop `closed` the log. After a stop that closed the log, no client or node can have
    read a record beyond the end of the log.
    """
    if record.deleted or node not in record.members:
        return None
    registered = record.starts.get(node, 0)
    if start < registered:
        raise Conflict(
            f"node {node!r} registered stream {record.name!r} with start {registered} already, "
            f"and now with {start}",
            hint="two daemons run as the same node, or its data directory was set back",
        )
    if start == registered:
        return None
    after = replace(record, starts={**record.starts, node: start})
    if record.members == (node,) and clean and record.must_keep(node):
        epoch = record.leader_epoch + (not (closed and record.leader == node))
        after = replace(after, leader=node, leader_epoch=epoch, isr=(node,))
        after = replace(after, eligible=(), last_eligible=())
    elif not clean:
        after = _fenced(after, {node})
        if node in after.eligible:
            after = replace(
                after,
                eligible=_without(after.eligible, {node}),
                last_eligible=after.in_order({*after.last_eligible, node}),
            )
    elif record.leader == node:
        after = replace(after, leader=None)
    return _next(record, after)


def fence(record: StreamMetadata, nodes: Collection[str]) -> StreamMetadata | None:
    """Remove `nodes` from the ISR because they died or are stopping, so that no ack waits for
    them."""
    _check_exists(record)
    return _next(record, _fenced(record, nodes))


def resign(record: StreamMetadata, node: str) -> StreamMetadata | None:
    """Remove `node` as the leader, because it must not lead any longer."""
    return fence(record, {node}) if record.leader == node else None


def failover(record: StreamMetadata, dead: Collection[str], node: str) -> StreamMetadata | None:
    """Make `node` the leader, because the leader is among `dead` or there is none.

    Returns None if there is another leader, or if `node` may lack an acked record. A wrong `dead`
    does no harm: a leader that still runs can commit nothing more without the nodes that no longer
    follow it.
    """
    _check_exists(record)
    if node in dead:
        raise InvalidArgument(f"node {node!r} cannot lead if it is dead")
    after = _fenced(record, dead)
    if after.leader is not None:
        return None
    if node in after.isr:
        return _next(record, _led_by(after, node))
    if not after.isr and node in after.eligible:
        after = replace(after, isr=(node,), eligible=_without(after.eligible, {node}))
        return _next(record, _led_by(after, node))
    return None


def recover(
    record: StreamMetadata, node: str, *, lost: Collection[str] = ()
) -> StreamMetadata | None:
    """Make `node` the leader although its copy may lack acked records (unclean recovery).

    The recovery is permitted only if no known copy is complete: an operator declares each member of
    `isr` and `eligible` as lost by naming it in `lost`. Returns None if `node` leads already.
    """
    _check_exists(record)
    if record.leader == node:
        return None
    if node not in record.replicas:
        raise Conflict(f"node {node!r} has no replica of stream {record.name!r}")
    whole = _without(record.isr + record.eligible, lost)
    if whole:
        raise Conflict(
            f"stream {record.name!r} has complete replicas on {', '.join(whole)}",
            hint="start one of these nodes, or name them as lost",
        )
    after = replace(record, isr=(node,), eligible=(), last_eligible=())
    after = _led_by(after, node)
    return _next(record, replace(after, unclean_epoch=after.leader_epoch))


# --- changes by the leader ------------------------------------------------------


def shrink(record: StreamMetadata, node: str) -> StreamMetadata | None:
    """Remove `node` from the ISR: the leader no longer waits for it."""
    _check_led(record)
    if node == record.leader:
        raise Conflict(f"node {node!r} leads stream {record.name!r} and cannot leave its own ISR")
    return fence(record, {node})


def expand(record: StreamMetadata, node: str, start: int) -> StreamMetadata | None:
    """Add `node` to the ISR, because the leader found that it has caught up in the process run with
    the number `start`.

    If `node` is the last one that a reassignment adds, the reassignment completes. If the
    reassignment removes the leader's own replica, the leader must hand over first.
    """
    _check_led(record)
    if node not in record.replicas:
        raise Conflict(f"node {node!r} has no replica of stream {record.name!r} that could lead")
    if record.starts.get(node) != start:
        raise Conflict(
            f"node {node!r} caught up with start {start}, but registered stream {record.name!r} "
            f"with {record.starts.get(node)}"
        )
    if node in record.isr:
        return None
    after = replace(
        record,
        isr=record.in_order({*record.isr, node}),
        eligible=_without(record.eligible, {node}),
        last_eligible=_without(record.last_eligible, {node}),
    )
    return _next(record, _completed(after))


def discard(record: StreamMetadata, node: str) -> StreamMetadata | None:
    """Remove `node` from the ISR, so that it may drop its copy and fetch all of it again.

    Raises Conflict while the node leads, or while the other nodes alone could not ack: in both
    cases the copy may be needed. The record gets a new epoch, so that confirmations for the dropped
    copy do not count for the new copy.
    """
    _check_led(record)
    if node == record.leader:
        raise Conflict(f"node {node!r} leads stream {record.name!r} and cannot drop its copy")
    if node not in record.members:
        raise Conflict(f"node {node!r} has no replica of stream {record.name!r}")
    after = _fenced(record, {node})
    if not after.can_commit:
        raise Conflict(
            f"without node {node!r} stream {record.name!r} has {len(after.isr)} replicas in sync, "
            f"and min_isr is {record.min_isr}",
            hint="wait until more of them are in sync",
        )
    return _next(record, replace(after, leader_epoch=record.leader_epoch + 1))


def give_up(record: StreamMetadata, node: str) -> StreamMetadata | None:
    """Remove `node` from all sets, because it has acted on versions that are no predecessors of
    this record.

    The node then drops its copy. Returns None if the node has no replica. Raises Conflict if no
    other node could lead after the removal. The record gets a new epoch for the same reason as in
    `discard`.
    """
    _check_exists(record)
    if node not in record.members:
        return None
    after = _fenced(record, {node})
    if node in after.eligible:
        after = replace(
            after,
            eligible=_without(after.eligible, {node}),
            last_eligible=after.in_order({*after.last_eligible, node}),
        )
    if not after.isr and not after.eligible:
        raise Conflict(f"no other node than {node!r} could lead stream {record.name!r}")
    return _next(record, replace(after, leader_epoch=record.leader_epoch + 1))


def transfer(record: StreamMetadata, node: str) -> StreamMetadata | None:
    """Make `node`, a member of the ISR, the leader."""
    _check_led(record)
    if node == record.leader:
        return None
    if node not in record.isr:
        raise Conflict(
            f"node {node!r} is not in the ISR of stream {record.name!r}: {', '.join(record.isr)}",
            hint="wait until it has caught up",
        )
    return _next(record, _led_by(record, node))


def successor(record: StreamMetadata) -> str | None:
    """Return the node to which the leader must hand over, because the pending reassignment removes
    the leader's replica, and the handover is the last remaining step; None otherwise."""
    if record.leader is None or record.leader not in record.removing or not _can_complete(record):
        return None
    return record.in_order(_without(record.isr, record.removing))[0]


def complete(record: StreamMetadata) -> StreamMetadata | None:
    """End the pending reassignment; None while it cannot end. Called by the leader."""
    _check_led(record)
    return _next(record, _completed(record))


# --- changes by an operator -----------------------------------------------------


def reassign(record: StreamMetadata, target: Sequence[str]) -> StreamMetadata | None:
    """Move the stream to the replicas `target`; the first one is preferred as leader.

    New replicas are added at once, and the replicas outside `target` leave when all new replicas
    are in sync. The record holds the whole state of the move, so that any later leader can continue
    it. Returns None if the replicas are as requested already.
    """
    _check_exists(record)
    wanted = tuple(target)
    if len({*wanted}) < len(wanted):
        raise InvalidArgument(
            f"stream {record.name!r} cannot move: {', '.join(wanted)} names a node twice"
        )
    if wanted == record.target:
        return None
    if record.adding or record.removing:
        raise Conflict(
            f"stream {record.name!r} is being moved to {', '.join(record.target)}",
            hint="wait until that is complete, or cancel it",
        )
    removing = _without(record.replicas, wanted)
    adding = _without(wanted, record.replicas)
    after = replace(
        record,
        settings=_for_replicas(record.settings, len(wanted)),
        replicas=wanted + removing,
        adding=adding,
        removing=removing,
        observers=_without(record.observers, wanted),
        # An earlier copy on this node does not count until the node has registered it again.
        starts={
            node: one if node in record.members or node not in adding else 0
            for node, one in record.starts.items()
        },
    )
    # The sets are kept in the order of the replicas, which has changed.
    after = _ordered(after)
    if problem := after.problem():
        raise InvalidArgument(f"stream {record.name!r} cannot move: {problem}")
    return _next(record, _completed(after))


def cancel(record: StreamMetadata) -> StreamMetadata | None:
    """Cancel the pending reassignment and return to the previous replicas; None if no reassignment
    is pending.

    Raises Conflict while the earlier replicas alone could not ack, because the copies of the new
    replicas may be needed.
    """
    _check_exists(record)
    if not record.adding and not record.removing:
        return None
    before = _without(record.replicas, record.adding)
    stay = _without(record.isr, record.adding)
    needed = {*record.isr, *record.eligible, *record.last_eligible}.intersection(record.adding)
    if needed and len(stay) < record.min_isr:
        raise Conflict(
            f"stream {record.name!r} needs its new replicas: {', '.join(record.in_order(needed))}",
            hint="wait until more of the old ones are in sync",
        )
    if record.min_isr > len(before):
        raise Conflict(
            f"stream {record.name!r} had {len(before)} replicas, and min_isr is {record.min_isr}",
            hint="lower min_isr first",
        )
    return _next(record, _moved(record, before))


def update(record: StreamMetadata, settings: Mapping[str, Any]) -> StreamMetadata | None:
    """Replace the settings. Raises InvalidArgument if `min_isr` does not fit the replicas."""
    _check_exists(record)
    chosen = dict(settings)
    if chosen.get("min_isr") is None:
        chosen["min_isr"] = record.min_isr
    if chosen == record.settings:
        return None
    after = replace(record, settings=chosen)
    if problem := after.problem():
        raise InvalidArgument(f"stream {record.name!r} cannot be changed: {problem}")
    return _next(record, _completed(after))


def truncate(record: StreamMetadata, log_start: int) -> StreamMetadata | None:
    """Delete the offsets below `log_start` on every replica, also after a change of leader."""
    _check_exists(record)
    return _next(record, replace(record, log_start=max(record.log_start, log_start)))


def delete(record: StreamMetadata) -> StreamMetadata | None:
    """Mark the stream as deleted. Its record stays until every node has had time to read it."""
    if record.deleted:
        return None
    return _next(
        record,
        replace(record, deleted=True, leader=None, leader_epoch=record.leader_epoch + 1),
    )


def in_place_of(record: StreamMetadata, deleted: StreamMetadata) -> StreamMetadata:
    """Return the first record of a new stream with the name of a `deleted` one.

    From this record, a node that was down learns which copy to remove. If the store is later
    restored to a state with the deleted stream, a node that has read this record detects the loss.
    """
    former = (*deleted.former, deleted.incarnation)
    return replace(record, former=former[-_MAX_FORMER:])


def continued(record: StreamMetadata, copy: StreamMetadata) -> StreamMetadata | None:
    """Continue a stream with a copy that was restored from a backup.

    Call this function if the stream was deleted, or if no other node has a replica of it. `copy` is
    the record that a new stream would get. Returns None if the stream was already continued with
    this copy. The result is the next version of the same record, in a later epoch. So readers that
    were ahead of the backup get an error, and nodes remove copies from before a deletion.
    """
    if not record.deleted and record.leader_epoch == copy.leader_epoch:
        return None
    return _after(
        record,
        replace(
            copy,
            leader_epoch=max(copy.leader_epoch, record.leader_epoch + 1),
            starts={**record.starts, **copy.starts},
            former=record.former,
            unknown=record.unknown,
            decided=record.decided,
        ),
    )


def removed(record: StreamMetadata, node: str) -> StreamMetadata | None:
    """Remove the start of `node`, which no longer has a copy: the stream was deleted or has moved,
    or the node will not return.

    When the record of a deleted stream has no starts left, no copy is left, and the record can be
    removed.
    """
    has_copy = node in record.starts and (record.deleted or node not in record.members)
    if not has_copy:
        return None
    starts = {name: start for name, start in record.starts.items() if name != node}
    return _after(record, replace(record, starts=starts))


# --- parts -------------------------------------------------------------------------


def _next(before: StreamMetadata, after: StreamMetadata) -> StreamMetadata | None:
    """Return `after` as the version that follows `before`; None if both are the same."""
    after = settle(after)
    return None if after == before else _after(before, after)


def _after(before: StreamMetadata, after: StreamMetadata) -> StreamMetadata:
    return replace(after, version=before.version + 1, trail=before.next_trail())


def _fenced(record: StreamMetadata, nodes: Collection[str]) -> StreamMetadata:
    gone = [node for node in record.isr if node in nodes]
    after = replace(
        record,
        isr=_without(record.isr, nodes),
        leader=None if record.leader in nodes else record.leader,
    )
    if gone and not after.can_commit:
        after = replace(after, eligible=record.in_order({*record.eligible, *gone}))
    return after


def _led_by(record: StreamMetadata, node: str) -> StreamMetadata:
    return replace(record, leader=node, leader_epoch=record.leader_epoch + 1)


def _completed(record: StreamMetadata) -> StreamMetadata:
    """Complete the pending reassignment if all nodes that it adds are in sync and the remaining
    nodes can ack."""
    if not record.adding and not record.removing:
        return record
    if record.leader in record.removing or not _can_complete(record):
        return record
    return _moved(record, record.target)


def _can_complete(record: StreamMetadata) -> bool:
    stay = _without(record.isr, record.removing)
    return set(record.adding) <= set(stay) and len(stay) >= record.min_isr


def _moved(record: StreamMetadata, replicas: tuple[str, ...]) -> StreamMetadata:
    """Keep only `replicas`. If the leader leaves, the first replica that is in sync becomes the
    leader.

    Nodes that leave keep their entry in `starts` until they have removed their copies.
    """
    leaving = _without(record.replicas, replicas)
    isr = _without(record.isr, leaving)
    leader = record.leader
    if leader in leaving:
        leader = isr[0] if isr else None
    return replace(
        record,
        replicas=replicas,
        isr=isr,
        eligible=_without(record.eligible, leaving),
        last_eligible=_without(record.last_eligible, leaving),
        settings=_for_replicas(record.settings, len(replicas)),
        adding=(),
        removing=(),
        leader=leader,
        leader_epoch=record.leader_epoch + 1,
    )


def _for_replicas(settings: Mapping[str, Any], count: int) -> Mapping[str, Any]:
    """Return `settings`. If they contain a number of replicas, it is changed to `count`."""
    return {**settings, "replicas": count} if "replicas" in settings else settings


def _ordered(record: StreamMetadata) -> StreamMetadata:
    return replace(
        record,
        isr=record.in_order(record.isr),
        eligible=record.in_order(record.eligible),
        last_eligible=record.in_order(record.last_eligible),
    )


def _without(nodes: tuple[str, ...], others: Collection[str]) -> tuple[str, ...]:
    return tuple(node for node in nodes if node not in others)


def _check_exists(record: StreamMetadata) -> None:
    if record.deleted:
        raise Conflict(f"stream {record.name!r} was deleted")


def _check_led(record: StreamMetadata) -> None:
    _check_exists(record)
    if record.leader is None:
        raise Conflict(f"stream {record.name!r} has no leader")
