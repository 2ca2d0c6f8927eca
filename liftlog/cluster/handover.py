"""Moves the leadership of a stream to another node while messages keep arriving. No message is
lost, stored twice or refused.

The leader (`Giver`) and the node that takes over (`Taker`) are both subscribed for a short time:

    giver   --a--b--c--d|           unsubscribed; commits, reports, changes the record
    taker         b--c--d--e--f-->  held; drops b, c and d; stores e and f when it leads
                  ^ subscribed    ^ gets the report, and leads

NATS does not number messages, so the giver reports each message that it has received by a digest of
its content. For two equal messages the giver reports the same digest twice, and both messages are
stored. In a queue group each message reaches only one of the two nodes, so the giver reports
nothing.

Safety does not depend on this module: the taker has all acked messages, because it is in the ISR
(in-sync replicas) (`transitions.transfer`). A handover that fails is undone: the taker drops the
messages that it holds, the giver subscribes again, and a possible loss is reported.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Generic, TypeVar

from liftlog.cluster.record import StreamMetadata

DIGEST_BYTES = 8
KEY_BYTES = 16

SPREAD_SECONDS = 0.2
"""NATS servers pass a new subscription on to each other within this time, in seconds."""
PREPARE_SECONDS = 60.0
"""Time limit for the taker to read message ids. During this time the giver continues as before."""
HAND_OVER_SECONDS = 5.0
"""Time limit for all steps after PREPARE. A handover that takes longer is undone."""
HOLD_SECONDS = 2 * HAND_OVER_SECONDS
"""Time for which the taker holds messages. It is longer than the giver's time limit, so that the
taker never drops messages that it still needs."""
LATE_SECONDS = 1.0
"""Time after the change of the leader in which the taker may still receive copies of messages that
the giver reported."""
MAX_HELD_BYTES = 64 * 1024 * 1024
MAX_TOLD = 1_000_000
"""Maximum number of messages that a giver may receive between SUBSCRIBE and TELL. The limit exists
because the giver keeps their digests in memory."""


@dataclass(frozen=True, slots=True)
class Offer:
    """One handover. `key` identifies the handover, and makes its digests unforgeable."""

    stream: str
    incarnation: str
    epoch: int
    giver: str
    key: bytes
    is_attached: bool = True
    """True if the stream receives messages from NATS. Some system streams do not."""
    is_shared: bool = False
    """True if each message reaches only one of the two nodes, because they are in a queue group."""


class Step(enum.Enum):
    """The giver's next step. The caller reports its outcome with `done` or `failed`."""

    PREPARE = "prepare"
    """Let the taker read the message ids of the stored messages."""
    SUBSCRIBE = "subscribe"
    """Keep digests of all messages from now on; let the taker subscribe, and wait until NATS has
    confirmed the subscription."""
    SPREAD = "spread"
    """Wait until the taker's subscription has reached all NATS servers."""
    UNSUBSCRIBE = "unsubscribe"
    """Unsubscribe and wait until NATS has confirmed; all messages in flight have then arrived."""
    COMMIT = "commit"
    """Wait until all received messages are committed and answered."""
    TELL = "tell"
    """Report the received messages to the taker."""
    TRANSFER = "transfer"
    """Make the taker the leader in the stream's metadata."""
    OVER = "over"


_STEPS = (
    Step.PREPARE,
    Step.SUBSCRIBE,
    Step.SPREAD,
    Step.UNSUBSCRIBE,
    Step.COMMIT,
    Step.TELL,
    Step.TRANSFER,
    Step.OVER,
)
_OF_MESSAGES = frozenset((Step.SUBSCRIBE, Step.SPREAD, Step.UNSUBSCRIBE, Step.TELL))


@dataclass(frozen=True, slots=True)
class Undo:
    """The actions that restore the state before a failed handover."""

    drop: bool
    """True if the taker must unsubscribe and drop the messages that it holds."""
    subscribe: bool
    """True if the giver must subscribe again, unless it no longer leads."""
    loss: str
    """Reason why messages without a reply subject may be missing; empty if no message can be
    missing."""


class Giver:
    """The leader's side of one handover. Times are monotonic seconds."""

    def __init__(self, offer: Offer) -> None:
        self.offer = offer
        self.step = Step.OVER
        self.has_moved = False
        """True if the record shows that this epoch has ended."""
        self._deadline = 0.0
        self._digests = bytearray()

    def begin(self, now: float) -> Step:
        self._enter(Step.PREPARE, now)
        return self.step

    def done(self, now: float) -> Step:
        """Record that the present step has succeeded, and return the next one."""
        position = _STEPS.index(self.step) + 1
        while not self.offer.is_attached and _STEPS[position] in _OF_MESSAGES:
            position += 1
        self._enter(_STEPS[position], now)
        return self.step

    def _enter(self, step: Step, now: float) -> None:
        if step is Step.PREPARE:
            self._deadline = now + PREPARE_SECONDS
        elif self.step is Step.PREPARE:
            self._deadline = now + HAND_OVER_SECONDS
        self.step = step

    def seconds_left(self, now: float) -> float:
        """Return the time that is left for the present step, in seconds."""
        return max(0.0, self._deadline - now)

    @property
    def is_noting(self) -> bool:
        """True if `received` must be called for each message. The giver must record every message
        that the taker gets. The giver may begin a little too early, because additional messages do
        no harm."""
        return not self.offer.is_shared and self.step in (
            Step.SUBSCRIBE,
            Step.SPREAD,
            Step.UNSUBSCRIBE,
        )

    def received(self, digests: Sequence[bytes]) -> None:
        """Record messages that will be stored or refused on this node."""
        for one in digests:
            self._digests += one

    @property
    def is_full(self) -> bool:
        """True if more messages have arrived than the giver can record; the handover must then
        fail."""
        return len(self._digests) > MAX_TOLD * DIGEST_BYTES

    def told(self, max_count: int) -> list[bytes]:
        """Return the digests of the received messages, in pieces of at most `max_count`."""
        piece = max_count * DIGEST_BYTES
        told = bytes(self._digests)
        return [told[start : start + piece] for start in range(0, len(told), piece)]

    def failed(self, *, is_declined: bool = False, is_ending: bool = False) -> Undo:
        """End the handover, because the present step has failed or took too long. Return the steps
        that undo the handover.

        `is_declined` is True if the taker has done nothing for the handover. `is_ending` is True if
        the giver is about to stop.
        """
        at, self.step = _STEPS.index(self.step), Step.OVER
        if is_ending and _STEPS[at] is Step.TRANSFER:
            # The record may still change, now or a little later. If it does not, the taker will
            # probably be elected. It has received all digests, and drops held messages without a
            # request of the giver.
            return Undo(drop=False, subscribe=False, loss="")
        attached = self.offer.is_attached
        asked = attached and at >= _STEPS.index(Step.SUBSCRIBE) + is_declined
        stopped = attached and at >= _STEPS.index(Step.UNSUBSCRIBE)
        loss = ""
        if stopped:
            loss = "no node received messages for a moment"
        elif asked and self.offer.is_shared:
            loss = "another node received some messages and could not take over"
        return Undo(at <= _STEPS.index(Step.TRANSFER), stopped, loss)

    def saw(self, record: StreamMetadata) -> bool:
        """Return True if a newer record shows that this epoch has ended. The handover has then
        ended, too, and is not undone, because another node leads."""
        moved = (record.incarnation, record.leader_epoch) != (
            self.offer.incarnation,
            self.offer.epoch,
        ) or record.leader != self.offer.giver
        if moved:
            self.step, self.has_moved = Step.OVER, True
        return moved


T = TypeVar("T")


@dataclass(slots=True)
class _Held(Generic[T]):
    item: T
    digests: Sequence[bytes]
    rows: list[int]


class Taker(Generic[T]):
    """The side of the node that takes over, which is in the ISR. Times are monotonic seconds.

    `T` is a batch of messages with one digest per message.
    """

    def __init__(self, offer: Offer, max_held_bytes: int = MAX_HELD_BYTES) -> None:
        self.offer = offer
        self._max_held_bytes = max_held_bytes
        self.problem = ""
        """Reason why this node cannot take over; empty if it can."""
        self.is_relied_on = False
        """True once the giver may stop receiving messages. A node that is stopping first completes
        the handover if this attribute is True, and declines the handover otherwise."""
        self._since: float | None = None
        self._held: list[_Held[T]] = []
        self._held_bytes = 0
        self._told: Counter[bytes] | None = None
        self._end = 0
        self._leads_since: float | None = None

    def subscribes(self) -> None:
        """Record that the giver has asked this node to subscribe."""
        self.is_relied_on = True

    def subscribed(self, now: float) -> None:
        """Record that NATS has confirmed the subscription."""
        self._since = now

    def wants_digests(self, now: float) -> bool:
        """Return True if `arrived` needs the digests of the messages that arrive now."""
        if self._leads_since is None:
            return not self.offer.is_shared
        return bool(self._told) and now - self._leads_since <= LATE_SECONDS

    @property
    def leads(self) -> bool:
        return self._leads_since is not None

    def broken(self, problem: str) -> None:
        """Mark the handover as failed, because messages since the subscription may be missing, or
        too many messages are held."""
        if not self.leads:
            self.problem = self.problem or problem
            self._held.clear()
            self._held_bytes = 0

    def arrived(
        self, item: T, count: int, digests: Sequence[bytes], size_bytes: int, now: float
    ) -> Sequence[int]:
        """Record the arrival of `count` messages, and return the rows to store now. All other rows
        are held, or are copies of messages that the giver has stored."""
        if self._leads_since is not None:
            return self._without_copies(digests) if self.wants_digests(now) else range(count)
        if self.problem:
            return ()
        self._held_bytes += size_bytes
        rows = self._without_copies(digests) if self._told else list(range(count))
        self._held.append(_Held(item, digests, rows))
        if self._held_bytes > self._max_held_bytes:
            self.broken("too many messages arrived to keep them all")
        return ()

    def told(self, key: bytes, end: int, pieces: Iterable[bytes], now: float) -> None:
        """Record the giver's report of the messages that it has received since this node
        subscribed.

        The giver's log ends at `end`, and all its records are committed. Sets `problem` if this
        node cannot take over.
        """
        if key != self.offer.key:
            self.broken("this is another handover")
        elif self._is_late(now):
            self.broken("it took too long")
        elif self.offer.is_attached and self._since is None:
            self.broken("it has not subscribed")
        if self.problem:
            return
        self._end = end
        self._told = Counter(
            piece[start : start + DIGEST_BYTES]
            for piece in pieces
            for start in range(0, len(piece), DIGEST_BYTES)
        )
        for held in self._held:
            if held.digests:
                held.rows = self._without_copies(held.digests)

    def is_needed(self, now: float) -> bool:
        """Return True if this node may still become the leader. A stopping node waits for the
        outcome of the handover, because it may be the only node that receives the messages of the
        stream."""
        return self.is_relied_on and not self.problem and not self._is_late(now)

    def is_over(self, now: float) -> bool:
        """Return True if the handover has failed or has lasted too long, so that nothing is left to
        do."""
        return not self.leads and (bool(self.problem) or self._is_late(now))

    def take(self, log_end: int, now: float) -> list[tuple[T, Sequence[int]]] | None:
        """Record that this node leads, with a log that ends at `log_end`, and end the handover.

        Returns the held messages, with the rows to store, in the order of their arrival. Returns
        None if this node cannot determine which of the held messages are already stored, because
        the giver reported nothing, or stored more messages after its report.
        """
        if self._told is None:
            self.broken("the old leader has not reported what it received")
        elif log_end != self._end:
            self.broken("the old leader stored more records after its report")
        elif self._is_late(now):
            self.broken("it took too long")
        if self.problem:
            return None
        self._leads_since = now
        held, self._held = self._held, []
        return [(one.item, one.rows) for one in held if one.rows]

    def _is_late(self, now: float) -> bool:
        return self._since is not None and now - self._since > HOLD_SECONDS

    def _without_copies(self, digests: Sequence[bytes]) -> list[int]:
        told = self._told
        if not told:
            return list(range(len(digests)))
        rows = []
        for row, digest in enumerate(digests):
            left = told.get(digest, 0)
            if not left:
                rows.append(row)
            elif left == 1:
                del told[digest]
            else:
                told[digest] = left - 1
        return rows


def digests_of(
    key: bytes,
    subjects: Sequence[bytes],
    replies: Sequence[bytes],
    headers: Sequence[bytes],
    payloads: Sequence[bytes],
) -> list[bytes]:
    """Return one digest for each message; equal messages have equal digests."""
    found = []
    for subject, reply, block, payload in zip(subjects, replies, headers, payloads, strict=True):
        lengths = b"%d %d %d " % (len(subject), len(reply), len(block))
        whole = b"".join((lengths, subject, reply, block, payload))
        found.append(blake2b(whole, key=key, digest_size=DIGEST_BYTES).digest())
    return found
