"""The changes of a consumer's state. A leader creates them; followers and restarted daemons apply
them.

A change describes an event, not the state after it; `ConsumerState.apply` has the same result
everywhere.
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
    """Lowest (`oldest_ns`) and highest (`newest_ns`) timestamp of the records."""


@dataclass(frozen=True, slots=True)
class Redelivered:
    """One more delivery of messages in the queue, with consecutive consumer sequences."""

    offsets: Ints
    now_ns: int


@dataclass(frozen=True, slots=True)
class Advanced:
    """All records below `next_offset` have been examined. `epoch` is the leader epoch of the record
    before `next_offset`."""

    next_offset: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Done:
    """These messages were acked or terminated, or their records were removed. The messages are in
    offset order."""

    offsets: Ints


@dataclass(frozen=True, slots=True)
class DoneBelow:
    """All messages below `end` are acked."""

    end: int


@dataclass(frozen=True, slots=True)
class Exhausted:
    """These messages have reached `max_deliver`, and are not delivered again."""

    offsets: Ints


@dataclass(frozen=True, slots=True)
class Queued:
    """These messages are due now, in this order."""

    offsets: Ints


@dataclass(frozen=True, slots=True)
class Delayed:
    """Each of these messages falls due at its own time."""

    offsets: Ints
    until_ns: Ints


@dataclass(frozen=True, slots=True)
class Progressed:
    """The wait for the acks of these messages starts again."""

    offsets: Ints
    now_ns: int


@dataclass(frozen=True, slots=True)
class LogStarted:
    """The log has no records below `offset`."""

    offset: int


@dataclass(frozen=True, slots=True)
class LogTruncated:
    """The log was truncated at `end`. New records may get the offsets from `end` on."""

    end: int


@dataclass(frozen=True, slots=True)
class Updated:
    settings: Settings


@dataclass(frozen=True, slots=True)
class TakenOver:
    """A new leader has begun, or the daemon has started."""

    now_ns: int


@dataclass(frozen=True, slots=True)
class StoredPull:
    """The fields of a waiting pull that the next leader needs. In a change, an empty reply means
    that the pull is already stored, and only its remaining counts have changed."""

    number: int
    reply: bytes
    left: int
    left_bytes: int
    expires_at_ns: int


@dataclass(frozen=True, slots=True)
class PullsChanged:
    """Pulls that are new or have received messages, and the numbers of the pulls that ended."""

    waiting: tuple[StoredPull, ...]
    ended: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class InboxUsed:
    """A client with heartbeats has pulled. The next leader needs the inbox if it never receives the
    client's next pull (see `inboxes`)."""

    reply: bytes
    window: int
    """Number of messages in the first pull of this client. The client requests at most this number
    at a time."""
    window_bytes: int
    """The limit of bytes in the first pull; 0 if the client sets no such limit."""
    batch: int
    """Number of messages in the newest pull."""
    pulled_ns: int
    gap_ns: int
    """Time between the two newest pulls that one leader has received; 0 if there was only one."""


def client_of(reply: bytes) -> bytes:
    """Return the part of a pull's reply subject that all pulls of its client share. The Java client
    appends a number to its inbox, another one for each pull."""
    head, _, last = reply.rpartition(b".")
    return head + b"." if last.isdigit() and b"." in head else reply


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
    | InboxUsed
)
