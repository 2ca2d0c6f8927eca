"""The errors with which a leader refuses the requests of followers."""

from __future__ import annotations

from liftlog.cluster.followers import Kind
from liftlog.cluster.leading import Leader
from liftlog.errors import FencedEpoch, LiftlogError, NotLeader, UnknownEpoch


def refusal_of(kind: Kind, asked_epoch: int, leader: Leader) -> LiftlogError:
    """Return the error for a verdict that refuses a request of the epoch `asked_epoch`."""
    what = f"stream {leader.record.name} in epoch {leader.epoch}"
    if kind is Kind.FENCED_EPOCH:
        return FencedEpoch(f"{what}: the request is of epoch {asked_epoch}, or of an older start")
    if kind is Kind.UNKNOWN_EPOCH:
        return UnknownEpoch(f"{what}: the request is of epoch {asked_epoch}")
    return NotLeader(f"{leader.node} does not lead {what}")
