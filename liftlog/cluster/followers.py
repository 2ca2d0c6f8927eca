"""A leader's view of its followers: their requests, the verdicts on these, and the state of each
follower."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from liftlog.cluster.epochs import NO_EPOCH
from liftlog.cluster.record import Mark


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """A follower's request for the records from `offset` on. Everything below `offset` is durable
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
    """Mark of the record that the follower has stored durably. None from a node whose version does
    not send it; its confirmations count nevertheless."""
    leader_mark: Mark | None = None
    """Version of this leader's record that the leader sent last, and the checksum of that version
    in the follower's history of the record; 0 if there is none. None from a node that does not send
    it."""
    is_full: bool = False
    """True if the follower's disk was too full for the last answer."""


class Kind(enum.Enum):
    SEND = "send"
    """Answer now, with the records from the offset on."""
    PARK = "park"
    """The log has nothing new: keep the request until `written` or `untold` names the follower."""
    DIVERGING = "diverging"
    """Answer with `epoch` and `end`: the logs agree at most up to there."""
    FENCED_EPOCH = "fenced epoch"
    """The follower is behind the record: it has an older epoch, or has started again since."""
    UNKNOWN_EPOCH = "unknown epoch"
    """The leader is behind the record, which its node then reads again."""
    NOT_LEADER = "not leader"
    """This leader has resigned, or the node has no copy."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer to a follower's request."""

    kind: Kind
    epoch: int = NO_EPOCH
    end: int = 0


@dataclass(slots=True)
class FollowerState:
    """The leader's view of one process run of a follower."""

    node: str
    start: int
    offset: int = -1
    """Everything below is durable at the follower; -1 before it has confirmed anything in this
    epoch."""
    side_version: int = 0
    mark: Mark | None = None
    leader_mark: Mark | None = None
    agrees: bool = True
    """True if the follower has received the in-sync set by which acks are given."""
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
    """True if the follower's connection is gone and it has sent no request since."""
    is_full: bool = False
    """True if the follower had no space for the last answer. Only its operator can change that, so
    no ack waits for it."""
