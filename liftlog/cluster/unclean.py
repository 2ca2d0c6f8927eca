"""Which copy leads when none is left that is known to have everything, and no operator is asked.

Only for clusters that have chosen it. What is acked and missing in that copy is given up.
"""

from __future__ import annotations

from collections.abc import Mapping

from liftlog.cluster.guard import Known
from liftlog.cluster.record import StreamRecord


def has_no_complete_copy(record: StreamRecord) -> bool:
    """Whether each copy may lack something that was acked: no election can end that."""
    return not record.deleted and not (record.isr or record.eligible)


def best_copy(record: StreamRecord, told: Mapping[str, Known | None]) -> str | None:
    """The node with the replica that gives up the least: the longest log of the newest epoch, of
    equal ones the first replica's.

    None while a complete copy may come back, and until every replica has told where its log ends
    and that it acts by this very record. So what one of them has cannot be overlooked. Where a
    disk is slow a log may still grow by what was decided before: ask twice.
    """
    if not has_no_complete_copy(record) or not record.last_eligible:
        return None
    ends = {}
    for node in record.replicas:
        known = told.get(node)
        if known is None or known.log is None or not tells_of(record, known):
            return None
        ends[node] = known.log
    return max(record.replicas, key=lambda node: ends[node])


def tells_of(record: StreamRecord, known: Known | None) -> bool:
    """Whether a node has told where its copy ends, and that it acts by this very record."""
    return known is not None and known.log is not None and known.record == record
