"""Followers as their leader sees them: requests, the verdicts on requests, and the state of each
follower."""

from __future__ import annotations

import enum
import math
from collections.abc import Collection
from dataclasses import dataclass

from liftlog.cluster.epochs import NO_EPOCH
from liftlog.cluster.record import Mark


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """A follower's request for the records from `offset` on. All records below `offset` are durable
    in the follower's log."""

    node: str
    start: int
    epoch: int
    offset: int
    last_epoch: int
    """Epoch of the follower's last record; NO_EPOCH if its log is empty."""
    side_version: int = 0
    """Version of the side state that the follower has stored."""
    mark: Mark | None = None
    """Mark of the stream's record that the follower has stored durably; None if the follower's
    version of liftlog does not send a mark. The confirmations of such a follower count, too."""
    leader_mark: Mark | None = None
    """The version of the metadata record that this leader sent last, and the checksum of this
    version in the follower's history (0 if the history lacks the version); None if the node does
    not send this field."""
    is_full: bool = False
    """True if the follower's disk was too full for the last answer."""
    has_old_states: bool = False
    """True if the follower has states of consumers that may differ from this leader's."""


class Kind(enum.Enum):
    SEND = "send"
    """Answer now, with the records from the offset on."""
    PARK = "park"
    """The log has nothing new: keep the request until `written` or `untold` names the follower."""
    DIVERGING = "diverging"
    """Answer with `epoch` and `end`: the logs agree at most up to `end`."""
    FENCED_EPOCH = "fenced epoch"
    """The follower has an older epoch than the leader, or has restarted since it sent the
    request."""
    UNKNOWN_EPOCH = "unknown epoch"
    """The follower has a newer record than the leader. The leader's node then reads the record
    again."""
    NOT_LEADER = "not leader"
    """This leader has resigned, or the node has no copy."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer to a follower's request."""

    kind: Kind
    epoch: int = NO_EPOCH
    end: int = 0


SEND = Verdict(Kind.SEND)
PARK = Verdict(Kind.PARK)
FENCED_EPOCH = Verdict(Kind.FENCED_EPOCH)
UNKNOWN_EPOCH = Verdict(Kind.UNKNOWN_EPOCH)
NOT_LEADER = Verdict(Kind.NOT_LEADER)


@dataclass(slots=True)
class FollowerState:
    """The leader's view of one process run of a follower."""

    node: str
    start: int
    offset: int = -1
    """All records below this offset are durable at the follower; -1 before its first confirmation
    in this epoch."""
    side_version: int = 0
    mark: Mark | None = None
    leader_mark: Mark | None = None
    agrees: bool = True
    """True if the follower has received the in-sync set that acks wait for."""
    heard: float = -math.inf
    """Time of the follower's last request; -inf before the first."""
    caught_up: float = 0.0
    """Time at which the follower last had all records of the leader."""
    leader_end: int = 0
    """The leader's log end at the time of the follower's last request."""
    told: int = 0
    """High watermark in the last answer to the follower."""
    parked: bool = False
    lost: bool = False
    """True if the follower's connection has ended, and the follower has sent no request since."""
    is_full: bool = False
    """True if the follower had no disk space for the last answer. Only an operator can change that,
    so no ack waits for this follower."""
    has_old_states: bool = False


def confirmed_by(
    follower: FollowerState | None, end: int, known: int, *, now: float, heard: float, within: float
) -> int:
    """Return the end up to which this replica, and the replicas that were counted before it, have
    durable records. `end` is the result for the replicas before it.

    A replica that sent no request for `within` seconds does not count. `known` is the last known
    end of all replicas; it limits the result while the replica has sent no request since its
    restart. `heard` is the time of the replica's last request before the restart.
    """
    if follower is not None and now - follower.heard <= within:
        return min(end, max(follower.offset, 0))
    return min(end, known) if now - heard <= within else end


def is_majority(
    followers: Collection[FollowerState], replicas: Collection[str], since: float
) -> bool:
    """Return True if most `replicas`, including the leader, sent a request at `since` or later."""
    recent = [one for one in followers if one.node in replicas and one.heard >= since]
    return 2 * (len(recent) + 1) > len(replicas)
