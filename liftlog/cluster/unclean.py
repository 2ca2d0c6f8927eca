"""Chooses the leader without an operator when no copy is known to have every acked record.

The module is used only in clusters whose configuration enables it. Acked records that are missing
in the chosen copy are lost.
"""

from __future__ import annotations

from collections.abc import Mapping

from liftlog.cluster.guard import Known
from liftlog.cluster.record import StreamMetadata


def has_no_complete_copy(record: StreamMetadata) -> bool:
    """Return True if every copy may lack something that was acked, so that no normal election is
    possible."""
    return not record.deleted and not (record.isr or record.eligible)


def best_copy(record: StreamMetadata, told: Mapping[str, Known | None]) -> str | None:
    """Return the replica whose election loses the fewest records: the replica with the longest log
    of the newest epoch. Among equal logs, return the first replica.

    Returns None while a complete copy may still return. Also returns None until every replica has
    reported the end of its log, and that it acts on exactly this record, so that no replica's
    records are overlooked. Call the function twice: on a slow disk, a log may still grow because of
    earlier decisions.
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
    """Return True if a node has reported the end of its copy, and acts on exactly this record."""
    return known is not None and known.log is not None and known.record == record
