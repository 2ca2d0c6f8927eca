"""The changes of a consumer's state. A leader makes them, followers and restarts repeat them.

A change names what happened, not how the state looks afterwards; `ConsumerState.apply` has the same
result everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass

from liftlog.deliveries.columns import Ints
from liftlog.deliveries.settings import Settings


@dataclass(frozen=True, slots=True)
class Delivered:
    """First deliveries of `offsets`, with consecutive consumer sequences."""

    offsets: Ints
    now_ns: int
    oldest_ns: int
    newest_ns: int
    """Bounds of the stamps."""


@dataclass(frozen=True, slots=True)
class Redelivered:
    """One more delivery of messages in the queue, with consecutive consumer sequences."""

    offsets: Ints
    now_ns: int


@dataclass(frozen=True, slots=True)
class Advanced:
    """Everything below `next_offset` has been examined. `epoch` is the leader epoch of the record
    before it."""

    next_offset: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Done:
    """Acked, terminated or gone; in offset order."""

    offsets: Ints


@dataclass(frozen=True, slots=True)
class DoneBelow:
    """All messages below `end` are acked."""

    end: int


@dataclass(frozen=True, slots=True)
class Exhausted:
    """Not delivered again because of `max_deliver`."""

    offsets: Ints


@dataclass(frozen=True, slots=True)
class Queued:
    """Due now, in this order."""

    offsets: Ints


@dataclass(frozen=True, slots=True)
class Delayed:
    """Each falls due at its own time."""

    offsets: Ints
    until_ns: Ints


@dataclass(frozen=True, slots=True)
class Progressed:
    """The wait for acks begins again."""

    offsets: Ints
    now_ns: int


@dataclass(frozen=True, slots=True)
class LogStarted:
    """The log has no records below `offset`."""

    offset: int


@dataclass(frozen=True, slots=True)
class LogTruncated:
    """The log has no records from `end` on; others may get these offsets."""

    end: int


@dataclass(frozen=True, slots=True)
class Updated:
    settings: Settings


@dataclass(frozen=True, slots=True)
class TakenOver:
    """A leader began, or the daemon started."""

    now_ns: int


@dataclass(frozen=True, slots=True)
class StoredPull:
    """A waiting pull, as far as the next leader needs it. In a change, one without a reply is known
    already, and only has less left."""

    number: int
    reply: bytes
    left: int
    left_bytes: int
    expires_at_ns: int


@dataclass(frozen=True, slots=True)
class PullsChanged:
    """Pulls that wait or have less left, and the numbers of those that ended."""

    waiting: tuple[StoredPull, ...]
    ended: tuple[int, ...]


Change = (
    Delivered
    | Redelivered
    | Advanced
    | Done
    | DoneBelow
    | Exhausted
    | Queued
    | Delayed
    | Progressed
    | LogStarted
    | LogTruncated
    | Updated
    | TakenOver
    | PullsChanged
)
