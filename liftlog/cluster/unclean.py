"""Chooses the leader when no copy is known to have everything, and no operator is asked.

Only for clusters that have chosen this. Acked records that are missing in the chosen copy are lost.
"""

from __future__ import annotations

from collections.abc import Mapping

from liftlog.cluster.guard import Known
from liftlog.cluster.record import StreamMetadata


def has_no_complete_copy(record: StreamMetadata) -> bool:
    """Return True if every copy may lack something that was acked: no election can end that."""
    return not record.deleted and not (record.isr or record.eligible)


def best_copy(record: StreamMetadata, told: Mapping[str, Known | None]) -> str | None:
    """Return the replica that loses the least: the longest log of the newest epoch, and among equal
    logs the first replica.

    Returns None while a complete copy may come back, and until every replica has reported where its
    log ends and that it acts by this very record. So no replica's records are overlooked. On a slow
    disk a log may still grow by earlier decisions: ask twice.
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


def tells_of(record: StreamMetadata, known: Known | None) -> bool:
    """Return True if a node has reported the end of its copy, and that it acts by this very
    record."""
    return known is not None and known.log is not None and known.record == record
