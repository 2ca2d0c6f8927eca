"""Instructions to the daemon: messages to send when the delta of their turn is written."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum

from liftlog.deliveries.columns import Ints


@dataclass(frozen=True, slots=True)
class Deliver:
    """Send messages to a waiting pull, or to the deliver subject.

    Each column has one entry per message, in the order of sending. The reply subject of a delivery
    contains count, offset, sequence, the record's timestamp, and pending.
    """

    reply: bytes
    offsets: Ints
    sequences: Ints
    """Consumer sequence of this delivery."""
    counts: Ints
    """Number of deliveries of the message, including this one."""
    pendings: Ints
    """Number of matching records that are still to be delivered for the first time."""
    pin: bytes = b""
    """Id of the pinned client, which is sent in the header `Nats-Pin-Id`. If it is empty, there is
    no header."""


@dataclass(frozen=True, slots=True)
class Status:
    """Send a status without a payload: `408 Request Timeout` and the like."""

    reply: bytes
    words: bytes
    headers: tuple[tuple[bytes, int], ...] = ()

    def block(self) -> bytes:
        """Return the status as the headers of a NATS message."""
        lines = [b"%b: %d\r\n" % header for header in self.headers]
        return b"NATS/1.0 %b\r\n%b\r\n" % (self.words, b"".join(lines))


class AdvisoryKind(Enum):
    MAX_DELIVERIES = "max_deliver"
    TERMINATED = "terminated"
    NAK = "nak"


@dataclass(frozen=True, slots=True)
class Advisory:
    """One advisory per entry. `sequences` are the consumer sequences of the first deliveries."""

    kind: AdvisoryKind
    offsets: Ints
    sequences: Ints
    counts: Ints
    reasons: tuple[str, ...] = ()
    """Reasons of terms; empty for the other kinds."""


@dataclass(frozen=True, slots=True)
class Resumed:
    """Send the advisory that a pause has ended."""


@dataclass(frozen=True, slots=True)
class Pinned:
    """Send the advisory that the consumer is pinned to a client."""

    pin: bytes


@dataclass(frozen=True, slots=True)
class Unpinned:
    """Send the advisory that the consumer is no longer pinned. The reason is one of JetStream's:
    `timeout`, `admin`."""

    reason: str


Instruction = Deliver | Status | Advisory | Resumed | Pinned | Unpinned


class Ending(IntEnum):
    """The reason for which all waiting pulls end."""

    TAKEN_OVER = 0
    CONSUMER_DELETED = 1
    LEADERSHIP_CHANGE = 2
    SERVER_SHUTDOWN = 3


@dataclass(frozen=True, slots=True)
class Turn:
    """The outcome of the events since the last turn. The daemon writes the delta first, and then
    carries out the instructions in order. `is_lazy` is true if the delta only changes waiting
    pulls: the daemon may then delay the delta, and write it immediately before the next one.
    """

    instructions: tuple[Instruction, ...]
    delta: bytes
    is_lazy: bool
