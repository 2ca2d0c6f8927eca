"""Acks of workers: a chunk of them in columns, and the verdict about each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from liftlog.deliveries.columns import Bools, Index, Ints
from liftlog.deliveries.pending import Found

MAX_ACKS = 4096
"""Most acks of one call."""

Bytes = NDArray[np.uint8]


class AckKind(IntEnum):
    ACK = 0
    NAK = 1
    """Deliver it again, now or after the delay."""
    PROGRESS = 2
    """The wait for the ack begins again."""
    TERM = 3
    """Done without success."""


class Verdict(IntEnum):
    """If the sender asks for an answer, it gets one after the turn's delta is synced, but not if
    the ack was IGNORED."""

    IGNORED = 0
    """For a message that was never delivered, or from another stream of this name."""
    COUNTED = 1
    AGAIN = 2
    """The message was done before."""
    OUTDATED = 3
    """Not for the current delivery of a pending message: no effect."""


@dataclass(frozen=True, slots=True)
class Acks:
    """At most MAX_ACKS acks in the order in which they came; the fields of their reply subjects."""

    offsets: Ints
    counts: Ints
    """The delivery count in the reply subject."""
    stamps_ns: Ints
    kinds: Bytes
    delays_ns: Ints
    """Those of naks; 0 for none."""
    reasons: dict[int, str] = field(default_factory=dict)
    """Reasons of terms, by their place in the chunk."""

    def __len__(self) -> int:
        return len(self.offsets)

    def rounds(self) -> Iterator[Index]:
        """Divide the chunk so that no part has two acks of one message, each part in order.

        The first acks of all messages come first, then the second ones, and so on.
        """
        left = np.arange(len(self))
        while len(left):
            _, first = np.unique(self.offsets[left], return_index=True)
            if len(first) == len(left):
                yield left
                return
            first.sort()
            yield left[first]
            left = np.delete(left, first)


@dataclass(frozen=True, slots=True)
class Judged:
    """Acks that count, as masks of a part of the chunk, and the verdicts."""

    ends: Bools
    naks: Bools
    progress: Bools
    verdicts: Bytes


def judge(acks: Acks, part: Index, found: Found, next_offset: int) -> Judged:
    """Judge acks by their messages, one ack per message."""
    offsets, kinds = acks.offsets[part], acks.kinds[part]
    is_end = (kinds == AckKind.ACK) | (kinds == AckKind.TERM)
    is_known = (offsets >= 0) & (offsets < next_offset) & ~found.is_foreign
    is_live = is_known & found.is_pending
    is_current = is_live & (acks.counts[part] == found.counts)
    naks = is_current & (kinds == AckKind.NAK)
    progress = is_current & (kinds == AckKind.PROGRESS) & ~found.is_delayed
    ends = is_live & is_end
    verdicts = np.full(len(part), Verdict.OUTDATED, np.uint8)
    verdicts[is_end & ~ends] = Verdict.AGAIN
    verdicts[ends | naks | progress] = Verdict.COUNTED
    verdicts[~is_known] = Verdict.IGNORED
    return Judged(ends, naks, progress, verdicts)
