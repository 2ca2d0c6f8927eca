"""A block: up to 4,096 first deliveries in offset order, with the state of each message."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from liftlog.deliveries.columns import Bools, Index, Ints, Rising, Values, is_run

BLOCK_SIZE = 4096
MERGED_SIZE = 2048
"""Two adjacent blocks are merged if they have at most this many messages together."""

MAX_COUNT = 2**32 - 1
"""Maximum delivery count; a message that is delivered more often keeps this count."""
NEVER = 2**63 - 1


class Phase:
    """The state of a pending message. The phase defines the content of the block's column `times`,
    as described below.

    The class is no Enum, because looking up an Enum member would take longer than the code that
    uses the member.
    """

    OUT: Final = 0
    """A worker has the message. The column has the time of the latest delivery or progress ack."""
    DELAYED: Final = 1
    """A worker has returned the message with a delay. The column has the time at which the message
    falls due."""
    QUEUED: Final = 2
    """The message is due. The column has the message's ticket in the queue of redeliveries instead
    of a time."""


@dataclass(frozen=True, slots=True)
class Found:
    """The state of each offset of a list, as columns."""

    is_pending: Bools
    counts: Ints
    """Number of deliveries so far; 0 if the message is not pending."""
    sequences: Ints
    """Consumer sequence of the first delivery; 0 if the message is not pending."""
    phases: Ints
    tickets: Ints
    """Ticket in the queue of redeliveries, for messages that are in it."""
    is_foreign: Bools
    """True if a block contains the offset (pending or not), but with another timestamp."""

    @property
    def is_queued(self) -> Bools:
        return self.is_pending & np.equal(self.phases, Phase.QUEUED)

    @property
    def is_delayed(self) -> Bools:
        return self.is_pending & np.equal(self.phases, Phase.DELAYED)


class Block:
    """The first deliveries of one block, with one column per property. `is_pending` is a mask of
    the pending messages; None while all messages are pending."""

    __slots__ = (
        "counts",
        "earliest_ns",
        "entry",
        "is_pending",
        "newest_ns",
        "offsets",
        "oldest_ns",
        "pending",
        "phases",
        "sequences",
        "times",
        "watched_ns",
    )

    def __init__(self, offsets: Rising, sequences: Rising, oldest_ns: int, newest_ns: int) -> None:
        self.offsets = offsets
        self.sequences = sequences
        """Consumer sequences of the first deliveries."""
        self.oldest_ns = oldest_ns
        self.newest_ns = newest_ns
        """Lowest (`oldest_ns`) and highest (`newest_ns`) timestamp of the records."""
        self.is_pending: Bools | None = None
        self.pending = offsets.count
        self.counts = Values(np.uint32, 1)
        self.phases = Values(np.uint8, Phase.OUT)
        self.times = Values(np.int64, 0)
        self.earliest_ns = NEVER
        """No pending message falls due before this time."""
        self.watched_ns = NEVER
        """Time of the block's entry in the heap of deadlines."""
        self.entry = 0
        """Number of the block's entry in the heap of deadlines."""

    @property
    def size(self) -> int:
        return self.offsets.count

    def places(self) -> Index:
        """Return the places of the pending messages."""
        if self.is_pending is None:
            return np.arange(self.size)
        return np.flatnonzero(self.is_pending)

    def first_pending(self) -> int:
        """Return the place of the first pending message."""
        return 0 if self.is_pending is None else int(self.is_pending.argmax())

    def remove(self, index: Index) -> None:
        """Mark messages as done. All must be pending, and no index may occur twice."""
        if self.is_pending is None:
            self.is_pending = np.ones(self.size, np.bool_)
        self.is_pending[index] = False
        self.pending -= len(index)

    def remove_one(self, place: int) -> bool:
        """Mark a message as done. Returns False if it is not pending."""
        if self.is_pending is None:
            self.is_pending = np.ones(self.size, np.bool_)
        if not self.is_pending[place]:
            return False
        self.is_pending[place] = False
        self.pending -= 1
        return True

    def append(self, offsets: Ints, sequences: Ints, now_ns: int, stamps: tuple[int, int]) -> None:
        size, count = self.size, len(offsets)
        self.offsets.append(offsets)
        self.sequences.append(sequences)
        self._append(size, count, now_ns, stamps)

    def continues(self, offsets: Ints, sequence: int) -> bool:
        """Return True if the block has room for these first deliveries, and they continue its
        offsets and consumer sequences without a gap."""
        count = len(offsets)
        return (
            self.size + count <= BLOCK_SIZE
            and self.offsets.continues(int(offsets[0]))
            and self.sequences.continues(sequence)
            and is_run(offsets)
        )

    def places_of_run(self, offsets: Ints) -> Index | None:
        """Return the places of contiguous offsets. Returns None for other offsets, and if the block
        has gaps or lacks some of the offsets. Contiguous offsets are the usual case, because most
        workers ack the messages of a pull in order."""
        count, place = len(offsets), int(offsets[0]) - self.offsets.base
        is_here = self.offsets.is_contiguous and 0 <= place <= self.size - count
        if not is_here or int(offsets[-1]) - int(offsets[0]) != count - 1:
            return None
        return np.arange(place, place + count) if (offsets[1:] > offsets[:-1]).all() else None

    def append_run(self, count: int, now_ns: int, stamps: tuple[int, int]) -> None:
        """Add first deliveries that continue the block (`continues`)."""
        size = self.size
        self.offsets.count += count
        self.sequences.count += count
        self._append(size, count, now_ns, stamps)

    def _append(self, size: int, count: int, now_ns: int, stamps: tuple[int, int]) -> None:
        self.counts.append(size, 1, count)
        self.phases.append(size, Phase.OUT, count)
        self.times.append(size, now_ns, count)
        if self.is_pending is not None:
            self.is_pending = np.concatenate((self.is_pending, np.ones(count, np.bool_)))
        self.pending += count
        self.oldest_ns = min(self.oldest_ns, stamps[0])
        self.newest_ns = max(self.newest_ns, stamps[1])

    def taken(self, index: Index) -> Block:
        """Return a block of the messages at the places `index`. The places ascend, and all messages
        at these places are pending."""
        found = Block(
            self.offsets.take(index), self.sequences.take(index), self.oldest_ns, self.newest_ns
        )
        found.counts = self.counts.take(index)
        found.phases = self.phases.take(index)
        found.times = self.times.take(index)
        found.earliest_ns = self.earliest_ns
        return found

    def join(self, other: Block) -> None:
        """Add the messages of the next block."""
        sizes = self.size, other.size
        if self.is_pending is not None or other.is_pending is not None:
            self.is_pending = np.concatenate((self._bits(), other._bits()))
        self.counts = self.counts.joined(sizes[0], other.counts, sizes[1])
        self.phases = self.phases.joined(sizes[0], other.phases, sizes[1])
        self.times = self.times.joined(sizes[0], other.times, sizes[1])
        self.offsets.append(other.offsets.all())
        self.sequences.append(other.sequences.all())
        self.pending += other.pending
        self.oldest_ns = min(self.oldest_ns, other.oldest_ns)
        self.newest_ns = max(self.newest_ns, other.newest_ns)
        self.earliest_ns = min(self.earliest_ns, other.earliest_ns)

    def deadlines(self, places: Index, waits_ns: Ints) -> Ints:
        """Return the time at which each of these messages falls due; NEVER for messages in the
        queue. `waits_ns` contains the wait after the first delivery, after the second, and so on;
        the last wait applies to all later deliveries.
        """
        same = self.counts.same
        if same is not None:
            waits = np.full(len(places), waits_ns[min(same, len(waits_ns)) - 1])
        else:
            waits = waits_ns[np.minimum(self.counts.at(places), len(waits_ns)) - 1]
        times = self.times.at(places)
        phase = self.phases.same
        if phase is not None:
            if phase == Phase.QUEUED:
                return np.full(len(places), NEVER)
            return times + waits if phase == Phase.OUT else times
        phases = self.phases.at(places)
        times = np.where(phases == Phase.OUT, times + waits, times)
        return np.where(phases == Phase.QUEUED, NEVER, times)

    def size_bytes(self) -> int:
        """Return the bytes that the arrays occupy."""
        columns = (self.offsets, self.sequences, self.counts, self.phases, self.times)
        bits = 0 if self.is_pending is None else self.is_pending.nbytes
        return bits + sum(one.size_bytes() for one in columns)

    def _bits(self) -> Bools:
        return np.ones(self.size, np.bool_) if self.is_pending is None else self.is_pending
