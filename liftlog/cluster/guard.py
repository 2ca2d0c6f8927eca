"""When the metadata store has forgotten what it said before, and what to put back.

A store can be lost, or restored from an older copy. Then a record in it is older than what nodes
have acted on since, or it is missing. Whoever notices neither leads nor elects by that record, and
the newest record that the nodes still know is stored again, in a new epoch and without a leader.

What has to be ruled out is that a node which is not heard knows a newer record, by which messages
were acked that the newest heard one does not tell of:

- If everyone who could lead by the newest heard record is heard, no one else has led after it.
- Otherwise, if fewer nodes are unknown than an ISR that acks has, every such ISR has a member among
  the others, which has all that was acked. The longest of their logs has it too: so it alone is
  left in sync.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
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


def newest(heard: Collection[Known]) -> StreamRecord | None:
    """The newest of the records, of several streams of the name that of the last one. None if there
    is none, or if the store was set back in between and two nodes have each seen what came of one
    version: which of them was acked in is not known."""
    found: StreamRecord | None = None
    for record in (one.record for one in heard):
        if found is None or not is_regressed(found, record):
            found = record
        elif is_regressed(record, found):
            return None
    return found


def restored(
    stored: StreamRecord | None, heard: Mapping[str, Known | None], unheard: Collection[str]
) -> StreamRecord | None:
    """The record to store in the place of `stored`; None while that would risk what was acked, or
    nothing newer is known.

    `heard` has each node that has answered, None for one that knows no such stream; `unheard` are
    the other nodes of the cluster.
    """
    known = {node: one for node, one in heard.items() if one is not None}
    record = newest(known.values())
    if record is None or not is_regressed(record, stored):
        return None
    could_lead = {*record.isr, *record.eligible} or {*record.last_eligible}
    if record.deleted or could_lead <= heard.keys():
        return _again(record, stored, known)
    trusted = [node for node in (*record.isr, *record.eligible) if node in heard]
    unknown = {*unheard, *record.members} - {*trusted}
    logs = {node: log for node in trusted if (log := _log_of(known.get(node), record)) is not None}
    if len(unknown) >= record.min_isr or len(logs) < len(trusted) or not logs:
        return None
    longest = max(record.in_order(logs), key=lambda node: logs[node])
    again = _again(record, stored, known)
    return replace(again, isr=(longest,), eligible=(), last_eligible=())


def restored_by_operator(
    stored: StreamRecord | None, heard: Mapping[str, Known | None]
) -> StreamRecord | None:
    """The same, without regard to nodes that are not heard: what only they know is given up. Of
    records that contradict each other the one that most nodes have seen is taken."""
    known = {node: one for node, one in heard.items() if one is not None}
    records = [one.record for one in known.values()]
    regressed = [one for one in records if is_regressed(one, stored)]
    if not regressed:
        return None

    def rank(record: StreamRecord) -> tuple[int, int]:
        return sum(not is_regressed(one, record) for one in records), record.version

    # Without a trail: also the nodes that have seen another record of that version believe it.
    return replace(_again(max(regressed, key=rank), stored, known), trail=())


def _again(
    record: StreamRecord, stored: StreamRecord | None, known: Mapping[str, Known]
) -> StreamRecord:
    """With a version and an epoch above all that anyone has seen: meanwhile nodes may have acted on
    `stored`."""
    same = [one for one in known.values() if one.record.incarnation == record.incarnation]
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


def _log_of(one: Known | None, record: StreamRecord) -> LogEnd | None:
    return one.log if one is not None and one.record.incarnation == record.incarnation else None
