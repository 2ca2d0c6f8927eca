"""Detects that the metadata store has lost changes, and decides which record to restore.

A store can be lost, or restored from an older copy. A record in the store is then missing, or is
older than the record that nodes have acted on. A node that detects the loss does not lead, and
elects no leader, on the basis of the old record. The nodes then write a record into the store
again: the newest one that any of them still has, in a new epoch and without a leader.

If other nodes do not detect the loss, and continue from the older copy, the record has two
histories, and one history must be discarded. Two rules ensure that no acked message is lost in this
way:

- At least `min_isr` nodes confirm each ack, and all these nodes have the version of the record
  since which no node has left the in-sync set (`Leader`). So if fewer than `min_isr` nodes can have
  a version, nothing was acked on the basis of that version.
- A node that has a version acts only on that version and its successors. So a node that rejects the
  stored record does not switch to that record while it is being replaced.

Both rules need a `min_isr` above half of the replicas. With a lower `min_isr`, nodes that did not
confirm one message can ack another message. So every node that could have acked such a message must
answer first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from liftlog.cluster.election import LogEnd
from liftlog.cluster.record import StreamMetadata


@dataclass(frozen=True, slots=True)
class Known:
    """The state of a stream on one node: the newest record that the node has received, and the end
    of its copy. The end is None if the node has no copy that can be served."""

    record: StreamMetadata
    log: LogEnd | None = None


def is_regressed(known: StreamMetadata, stored: StreamMetadata | None) -> bool:
    """Return True if the store has lost `known`: it now holds `stored`, but once held `known`."""
    if stored is None:
        return not known.deleted  # the records of deleted streams are removed at last
    if stored.incarnation == known.incarnation:
        return not stored.follows(known)
    return stored.incarnation in known.former


def contradict(records: Iterable[StreamMetadata]) -> bool:
    """Return True if `records` belong to two histories of the record."""
    newest: StreamMetadata | None = None
    for record in records:
        if newest is None or not is_regressed(newest, record):
            newest = record
        elif is_regressed(record, newest):
            return True
    return False


def restored(
    stored: StreamMetadata | None, heard: Mapping[str, Known | None], unheard: Collection[str]
) -> StreamMetadata | None:
    """Return the record to store in place of `stored`.

    Returns None while storing a record could lose acked messages, or if no node has a newer record.
    `heard` maps each node that has answered to its state of the stream, or to None if it has no
    such stream; `unheard` are the other nodes of the cluster.
    """
    known = {node: one.record for node, one in heard.items() if one is not None}
    newer = [one for one in known.values() if is_regressed(one, stored)]
    for record in sorted(newer, key=lambda one: one.version, reverse=True):
        goes_on = (
            stored is None or record.incarnation != stored.incarnation or record.follows(stored)
        )
        # The other nodes may switch to the stored record, and ack messages on the basis of it.
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
    known: StreamMetadata,
    stored: StreamMetadata | None,
    heard: Mapping[str, Known | None],
    unheard: Collection[str],
) -> bool:
    """Return True if `node`, which has `known` and rejects `stored`, may switch to `stored`.

    The node may switch in two cases: an operator has decided this, or no message was or will be
    acked on the basis of the history that would be discarded. It is not sufficient that few nodes
    have that history now, because a leader sends its record to its followers. So it is also
    necessary that no other node can lead on the basis of that history. `heard` includes this node.
    """
    if stored is None or stored.deleted or stored.incarnation != known.incarnation:
        return False
    if not is_regressed(known, stored):
        return False  # the record was restored meanwhile
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
    stored: StreamMetadata | None, heard: Mapping[str, Known | None]
) -> StreamMetadata | None:
    """Like `restored`, but ignore nodes that did not answer, and drop their changes.

    If records contradict each other, the function prefers a record that follows every version that
    may have led to acks. Among such records it prefers the record that follows the records of most
    nodes. If `stored` follows the chosen record, the function returns `stored`. Nodes that have
    acted on another record must drop their record.
    """
    records = [one.record for one in heard.values() if one is not None]
    if not any(is_regressed(one, stored) for one in records):
        return None

    def rank(record: StreamMetadata) -> tuple[bool, int, int]:
        seen = sum(not is_regressed(one, record) for one in records)
        return _has_all_acked(record, records, 0), seen, record.version

    chosen = max(records, key=rank)
    if stored is not None and not is_regressed(chosen, stored):
        chosen = stored
    after = _again(chosen, stored, heard)
    return replace(after, decided=after.version)


def _has_all_acked(record: StreamMetadata, known: Collection[StreamMetadata], unsure: int) -> bool:
    """Return True if `record` follows every version that may have led to acks: a version that at
    least `min_isr` nodes may have. `unsure` nodes may have any version."""
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
    record: StreamMetadata, stored: StreamMetadata | None, heard: Mapping[str, Known | None]
) -> StreamMetadata:
    """Return the record with a higher version and epoch than any node has received, because nodes
    may have acted on the stored record (`stored`) in the meantime."""
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
