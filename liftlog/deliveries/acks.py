"""Acks of workers: decides which acks of a chunk take effect. A chunk is stored as columns."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from liftlog.deliveries.block import Found
from liftlog.deliveries.columns import Bools, Index, Ints
from liftlog.deliveries.pending import FEW, PendingMessages

MAX_ACKS = 4096
"""Maximum number of acks in one call."""
MAX_ROUNDS = 8
"""Maximum number of acks of one message that are evaluated in one chunk."""

Bytes = NDArray[np.uint8]


class AckKind(IntEnum):
    ACK = 0
    NAK = 1
    """Requests another delivery of the message, now or after the delay."""
    PROGRESS = 2
    """Restarts the wait for the ack (`ack_wait`)."""
    TERM = 3
    """The worker rejects the message, which is then not delivered again."""


class Verdict(IntEnum):
    """The effect of an ack. If the sender asks for an answer, it gets the answer after the turn's
    delta is synced. An IGNORED ack gets no answer."""

    IGNORED = 0
    """The ack belongs to a message that was never delivered, or to an earlier stream of this
    name."""
    COUNTED = 1
    AGAIN = 2
    """An earlier ack has completed the message."""
    OUTDATED = 3
    """The ack belongs to an earlier delivery of a pending message, and has no effect."""


_NO_KINDS: Bytes = np.zeros(MAX_ACKS, np.uint8)
_NO_DELAYS: Ints = np.zeros(MAX_ACKS, np.int64)
_NO_KINDS.setflags(write=False)
_NO_DELAYS.setflags(write=False)

_ACK, _NAK, _PROGRESS, _TERM = [int(kind) for kind in AckKind]
_IGNORED, _COUNTED, _AGAIN, _OUTDATED = [int(verdict) for verdict in Verdict]


@dataclass(frozen=True, slots=True)
class Acks:
    """The fields of at most MAX_ACKS acks, from their reply subjects and bodies, in the order of
    arrival."""

    offsets: Ints
    counts: Ints
    """The delivery counts from the reply subjects."""
    stamps_ns: Ints
    kinds: Bytes
    delays_ns: Ints
    """Requested delays of naks; 0 for no delay, and for other acks."""
    reasons: dict[int, str] = field(default_factory=dict)
    """Reasons given with TERM acks, by the index of the ack in the chunk."""

    is_plain: bool = False
    """True if it is known that all acks are of the kind ACK."""

    @classmethod
    def plain(cls, offsets: Ints, counts: Ints, stamps_ns: Ints) -> Acks:
        """Return acks of the kind ACK."""
        count = len(offsets)
        kinds, delays_ns = _NO_KINDS[:count], _NO_DELAYS[:count]
        return cls(offsets, counts, stamps_ns, kinds, delays_ns, {}, is_plain=True)

    def __len__(self) -> int:
        return len(self.offsets)

    def rounds(self) -> tuple[list[Index], Index]:
        """Divide the chunk into parts that contain at most one ack of each message: the first part
        has the first ack of every message, the second part the second ack, and so on. Each part
        keeps the order of the chunk.

        At most the first MAX_ROUNDS acks of a message are divided in this way. Of its other acks,
        only the first ACK or TERM still has an effect, and is put into a last part. Also returns
        the acks that have no effect.
        """
        order = np.argsort(self.offsets, kind="stable")
        offsets = self.offsets[order]
        begins = np.flatnonzero(np.diff(offsets, prepend=offsets[:1] - 1))
        if len(begins) == len(order):
            return [np.arange(len(order))], order[:0]
        ranks = np.empty(len(order), np.intp)
        ranks[order] = np.arange(len(order)) - np.repeat(begins, np.diff(begins, append=len(order)))
        most = min(int(ranks.max()) + 1, MAX_ROUNDS)
        parts = [np.flatnonzero(ranks == rank) for rank in range(most)]
        rest = np.flatnonzero(ranks >= most)
        ends = rest[self.is_end[rest]]
        if len(ends):
            last = ends[np.unique(self.offsets[ends], return_index=True)[1]]
            parts.append(last)
            rest = np.setdiff1d(rest, last)
        return parts, rest

    @property
    def is_end(self) -> Bools:
        """A mask that is True for acks that complete their message."""
        return np.equal(self.kinds, _ACK) | np.equal(self.kinds, _TERM)


@dataclass(frozen=True, slots=True)
class Judged:
    """The verdicts for a part of the chunk, and masks of the acks that take effect."""

    ends: Bools
    naks: Bools
    progress: Bools
    verdicts: Bytes


def are_plain(acks: Acks) -> bool:
    """Return True if all acks are of the kind ACK."""
    return acks.is_plain or not acks.kinds.any()


def judge_plain(acks: Acks, pending: PendingMessages, next_offset: int) -> tuple[Bytes, Ints]:
    """Evaluate acks of the kind ACK; return the verdicts, and the offsets of the messages that they
    complete."""
    if len(acks) <= FEW:
        return _judge_each(acks, pending, next_offset)
    offsets = acks.offsets
    is_pending, is_foreign = pending.stand(offsets, acks.stamps_ns)
    is_known = (offsets >= 0) & (offsets < next_offset) & ~is_foreign
    live = np.flatnonzero(is_known & is_pending)
    done = offsets[live]
    if not (done[1:] > done[:-1]).all():  # most workers ack in offset order
        done, first = np.unique(done, return_index=True)
        live = live[first]
    verdicts = np.where(is_known, np.uint8(_AGAIN), np.uint8(_IGNORED))
    verdicts[live] = _COUNTED
    return verdicts, done


def _judge_each(acks: Acks, pending: PendingMessages, next_offset: int) -> tuple[Bytes, Ints]:
    done: set[int] = set()
    verdicts = []
    for offset, stamp_ns in zip(acks.offsets.tolist(), acks.stamps_ns.tolist(), strict=True):
        is_pending = pending.has(offset, stamp_ns) if 0 <= offset < next_offset else None
        if is_pending is None:
            verdicts.append(_IGNORED)
        elif is_pending and offset not in done:
            verdicts.append(_COUNTED)
            done.add(offset)
        else:
            verdicts.append(_AGAIN)
    return np.array(verdicts, np.uint8), np.array(sorted(done), np.int64)


def judge_rest(acks: Acks, rest: Index, pending: PendingMessages, next_offset: int) -> Bytes:
    """Return verdicts for acks without an effect. No verdict confirms a message that is still
    pending."""
    offsets = acks.offsets[rest]
    is_pending, is_foreign = pending.stand(offsets, acks.stamps_ns[rest])
    is_end = acks.is_end[rest]
    is_known = (offsets >= 0) & (offsets < next_offset) & ~is_foreign & ~(is_pending & is_end)
    return np.where(is_known, np.where(is_end, _AGAIN, _OUTDATED), _IGNORED).astype(np.uint8)


def judge(acks: Acks, part: Index, found: Found, next_offset: int) -> Judged:
    """Evaluate acks against the state of their messages, at most one ack per message."""
    offsets, kinds = acks.offsets[part], acks.kinds[part]
    is_end = acks.is_end[part]
    is_known = (offsets >= 0) & (offsets < next_offset) & ~found.is_foreign
    is_live = is_known & found.is_pending
    is_current = is_live & (acks.counts[part] == found.counts)
    naks = is_current & (kinds == _NAK)
    progress = is_current & (kinds == _PROGRESS) & ~found.is_delayed
    ends = is_live & is_end
    verdicts = np.full(len(part), _OUTDATED, np.uint8)
    verdicts[is_end & ~ends] = _AGAIN
    verdicts[ends | naks | progress] = _COUNTED
    verdicts[~is_known] = _IGNORED
    return Judged(ends, naks, progress, verdicts)
