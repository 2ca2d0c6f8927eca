"""When the metadata store has forgotten what it said before, and what to put back.

A store can be lost, or restored from an older copy. Then a record in it is older than what nodes
have acted on since, or it is missing. Whoever notices neither leads nor elects by that record, and
the newest record that the nodes still know is stored again, in a new epoch and without a leader.

If nodes that do not notice go on from the older copy, the record has two histories, and one of them
has to be given up. Nothing that was acked may be lost with it:

- What is acked is confirmed by at least `min_isr` nodes, and all of them know the version of the
  record since which no one has left the in-sync set (`Leader`). So a version that fewer nodes may
  know is one by which nothing was acked.
- Whoever knows a version acts only by those that come from it. So who stands aside from what is
  stored now does not go over to it while it is replaced.

All of that takes a `min_isr` above half of the replicas: else those that know nothing of an ack are
enough to give another one. With a lower one, every node that could have given it has to be heard.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from liftlog.cluster.election import LogEnd
from liftlog.cluster.record import StreamRecord


@dataclass(frozen=True, slots=True)
class Known:
    """What one node knows of a stream: the newest record that it has seen, and where its copy ends,
    None when it has none that can be served."""

    record: StreamRecord
    log: LogEnd | None = None


def is_regressed(known: StreamRecord, stored: StreamRecord | None) -> bool:
    """Whether the store, which holds `stored` now, held `known` before and has forgotten it."""
    if stored is None:
        return not known.deleted  # the records of deleted streams are removed in the end
    if stored.incarnation == known.incarnation:
        return not stored.follows(known)
    return stored.incarnation in known.former


def contradict(records: Iterable[StreamRecord]) -> bool:
    """Whether some of these were stored in two histories of the record."""
    newest: StreamRecord | None = None
    for record in records:
        if newest is None or not is_regressed(newest, record):
            newest = record
        elif is_regressed(record, newest):
            return True
    return False


def restored(
    stored: StreamRecord | None, heard: Mapping[str, Known | None], unheard: Collection[str]
) -> StreamRecord | None:
    """The record to store in the place of `stored`; None while that would risk what was acked, or
    nothing newer is known.

    `heard` has each node that has answered, None for one that knows no such stream; `unheard` are
    the other nodes of the cluster.
    """
    known = {node: one.record for node, one in heard.items() if one is not None}
    newer = [one for one in known.values() if is_regressed(one, stored)]
    for record in sorted(newer, key=lambda one: one.version, reverse=True):
        goes_on = (
            stored is None or record.incarnation != stored.incarnation or record.follows(stored)
        )
        # The others may go over to what is stored, and ack by that.
        fixed = [one for one in known.values() if goes_on or is_regressed(one, stored)]
        unsure = len({*unheard, *record.members} - known.keys()) + len(known) - len(fixed)
        heard_all = {node for node, one in known.items() if not is_regressed(one, record)}
        could_lead = {*record.isr, *record.eligible} or {*record.last_eligible}
        if (
            record.deleted
            or (goes_on and could_lead <= heard_all)
            or _has_all_acked(record, fixed, unsure)
        ):
            return _again(record, stored, heard)
    return None


def is_given_up(
    node: str,
    known: StreamRecord,
    stored: StreamRecord | None,
    heard: Mapping[str, Known | None],
    unheard: Collection[str],
) -> bool:
    """Whether `node`, which knows `known` and stands aside from `stored`, may go over to that: an
    operator has decided it, or nothing was acked by what would be given up, nor will be. `heard`
    has this node, too.

    A leader tells its followers what it knows. So it is not enough that few know it now: there may
    be no other node that leads by it."""
    if stored is None or stored.deleted or stored.incarnation != known.incarnation:
        return False
    if not is_regressed(known, stored):
        return False  # it was restored meanwhile
    if known.version < stored.decided:
        return True
    others = {node: one.record for node, one in heard.items() if one is not None}
    if {*unheard, *known.members, *stored.members} - others.keys():
        return False
    first = min(one for one in known.marks if not stored.may_come_from(one))
    knowing = {name: one for name, one in others.items() if one.may_come_from(first)}
    if any(name != node and one.leader == name for name, one in knowing.items()):
        return False
    return len(knowing) < min(known.min_isr, stored.min_isr)


def restored_by_operator(
    stored: StreamRecord | None, heard: Mapping[str, Known | None]
) -> StreamRecord | None:
    """The same as `restored`, without regard to nodes that are not heard: what only they know is
    given up. Of records that contradict each other it is one that has come from all that most nodes
    know, if there is one, and that most nodes have seen: it may be `stored`, and then nodes that
    have acted by another one are told to give that up."""
    records = [one.record for one in heard.values() if one is not None]
    if not any(is_regressed(one, stored) for one in records):
        return None

    def rank(record: StreamRecord) -> tuple[bool, int, int]:
        seen = sum(not is_regressed(one, record) for one in records)
        return _has_all_acked(record, records, 0), seen, record.version

    chosen = max(records, key=rank)
    if stored is not None and not is_regressed(chosen, stored):
        chosen = stored
    after = _again(chosen, stored, heard)
    return replace(after, decided=after.version)


def _has_all_acked(record: StreamRecord, known: Collection[StreamRecord], unsure: int) -> bool:
    """Whether `record` has come from every version that `min_isr` nodes may know: by no other one
    something was acked. `unsure` nodes may know anything."""
    same = [one for one in known if one.incarnation == record.incarnation]
    wanted = min((one.min_isr for one in same), default=0) - unsure
    if wanted <= 0:
        return False
    return all(
        record.may_come_from(mark) or sum(one.may_come_from(mark) for one in same) < wanted
        for one in same
        for mark in one.marks
    )


def _again(
    record: StreamRecord, stored: StreamRecord | None, heard: Mapping[str, Known | None]
) -> StreamRecord:
    """With a version and an epoch above all that anyone has seen: meanwhile nodes may have acted on
    `stored`."""
    known = [one for one in heard.values() if one is not None]
    same = [one for one in known if one.record.incarnation == record.incarnation]
    seen = [one.record for one in same]
    if stored is not None and stored.incarnation == record.incarnation:
        seen.append(stored)
    epochs = [one.leader_epoch for one in seen]
    epochs += [one.log.last_epoch for one in same if one.log is not None]
    return replace(
        record,
        leader=None,
        leader_epoch=max(epochs) + 1,
        version=max(one.version for one in seen) + 1,
        trail=record.next_trail(),
    )
