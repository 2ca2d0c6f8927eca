"""The pending messages of a consumer, in blocks."""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Iterator

import numpy as np

from liftlog.deliveries.block import BLOCK_SIZE, MAX_COUNT, MERGED_SIZE, NEVER, Block, Found, Phase
from liftlog.deliveries.columns import NO_INTS, Bools, Index, Ints, Rising
from liftlog.errors import CorruptState

FEW = 24
"""Up to this number of messages, a Python loop is faster than numpy."""

Group = tuple[Block, Index, Index]
"""A block, the indices of some offsets in a list of offsets to look up, and the indices of the same
offsets in the block."""


class PendingMessages:
    """Blocks in offset order. Methods that change messages raise CorruptState if one of the
    messages is not pending."""

    def __init__(self, waits_ns: tuple[int, ...]) -> None:
        self.blocks: list[Block] = []
        self.total = 0
        self.redelivered = 0
        """Pending messages with more than one delivery."""
        self.queued = 0
        """Pending messages in the queue of redeliveries."""
        self._starts: Ints | None = None
        self._begins: list[int] | None = None
        self._heap: list[tuple[int, int, int]] = []
        """Deadline, base and number of each entry of a block. An entry whose number is not in
        `_watched` is stale."""
        self._watched: dict[int, Block] = {}
        """The blocks by the numbers of their entries. Removed blocks are not here, so their entries
        in the heap are stale."""
        self._entries = 0
        self._waits = np.array(waits_ns, np.int64)
        self._shortest_wait_ns = min(waits_ns)

    # --- look-up -----------------------------------------------------------------

    def first(self) -> tuple[int, int] | None:
        """Return offset and first consumer sequence of the lowest pending message."""
        if not self.blocks:
            return None
        block = self.blocks[0]
        place = block.first_pending()
        return block.offsets.one(place), block.sequences.one(place)

    def find(self, offsets: Ints, stamps_ns: Ints | None = None) -> Found:
        size = len(offsets)
        found = Found(
            np.zeros(size, np.bool_),
            np.zeros(size, np.int64),
            np.zeros(size, np.int64),
            np.zeros(size, np.int64),
            np.zeros(size, np.int64),
            np.zeros(size, np.bool_),
        )
        numbers = self._numbers(offsets)
        if self._is_scattered(numbers):
            self._find_each(offsets, numbers, stamps_ns, found)
            return found
        for block, where, places in self._groups(offsets, numbers):
            if stamps_ns is not None:
                stamps = stamps_ns[where]
                found.is_foreign[where] = (stamps < block.oldest_ns) | (stamps > block.newest_ns)
            if block.is_pending is not None:
                is_pending = block.is_pending[places]
                where, places = where[is_pending], places[is_pending]
            found.is_pending[where] = True
            found.counts[where] = block.counts.at(places)
            found.sequences[where] = block.sequences.at(places)
            found.phases[where] = block.phases.at(places)
            found.tickets[where] = block.times.at(places)
        return found

    def offsets(self) -> Ints:
        """Return the offsets of all pending messages."""
        return self._joined([block.offsets.at(block.places()) for block in self.blocks])

    def has(self, offset: int, stamp_ns: int) -> bool | None:
        """Return True if the message is pending, and False if it is not. Return None if a block
        contains the offset of the message with another timestamp."""
        number = bisect_right(self._bases(), offset) - 1
        block = self.blocks[number] if number >= 0 else None
        place = -1 if block is None else block.offsets.place(offset)
        if block is None or place < 0:
            return False
        if not block.oldest_ns <= stamp_ns <= block.newest_ns:
            return None
        return block.is_pending is None or bool(block.is_pending[place])

    def stamps_of(self, offsets: Ints) -> Ints:
        """Return for each offset the timestamp that identifies its message. Used for acks that
        contain no timestamp, but certainly belong to this consumer."""
        if not self.blocks:
            return np.zeros(len(offsets), np.int64)
        oldest = np.array([block.oldest_ns for block in self.blocks], np.int64)
        return oldest[np.maximum(self._numbers(offsets), 0)]

    def stand(self, offsets: Ints, stamps_ns: Ints) -> tuple[Bools, Bools]:
        """Return `is_pending` and `is_foreign` of `find`."""
        run = self._run(offsets)
        if run is not None:
            block, index = run
            bits = block.is_pending
            is_pending = np.ones(len(offsets), np.bool_) if bits is None else bits[index]
            return is_pending, (stamps_ns < block.oldest_ns) | (stamps_ns > block.newest_ns)
        is_pending = np.zeros(len(offsets), np.bool_)
        is_foreign = np.zeros(len(offsets), np.bool_)
        numbers = self._numbers(offsets)
        if self._is_scattered(numbers):
            pairs = zip(offsets.tolist(), stamps_ns.tolist(), strict=True)
            found = [self.has(offset, stamp_ns) for offset, stamp_ns in pairs]
            for place, one in enumerate(found):
                is_pending[place], is_foreign[place] = one is True, one is None
            return is_pending, is_foreign
        for block, where, places in self._groups(offsets, numbers):
            stamps = stamps_ns[where]
            is_foreign[where] = (stamps < block.oldest_ns) | (stamps > block.newest_ns)
            is_pending[where] = block.is_pending is None or block.is_pending[places]
        return is_pending, is_foreign

    def up_to(self, end: int) -> Ints:
        """Return the offsets of the pending messages below `end`."""
        parts = []
        for block in self.blocks:
            if block.offsets.base >= end:
                break
            found = block.offsets.at(block.places())
            parts.append(found[: int(np.searchsorted(found, end))])
        return self._joined(parts)

    def in_queue(self) -> tuple[Ints, Ints, Ints]:
        """Return offsets, delivery counts and first consumer sequences of the messages in the
        queue, in offset order."""
        offsets, counts, sequences = [], [], []
        for block in self.blocks:
            if block.phases.same not in (Phase.OUT, Phase.DELAYED):
                places = block.places()
                places = places[block.phases.at(places) == Phase.QUEUED]
                offsets.append(block.offsets.at(places))
                counts.append(block.counts.at(places))
                sequences.append(block.sequences.at(places))
        return self._joined(offsets), self._joined(counts), self._joined(sequences)

    # --- changes -----------------------------------------------------------------

    def add(self, offsets: Ints, sequence: int, now_ns: int, stamps: tuple[int, int]) -> None:
        """Add first deliveries above all others, with consecutive consumer sequences."""
        last = self.blocks[-1] if self.blocks else None
        if last is not None and last.continues(offsets, sequence):
            last.append_run(len(offsets), now_ns, stamps)
            self._watch(last, now_ns + self._shortest_wait_ns)
            self.total += len(offsets)
            return
        sequences = np.arange(sequence, sequence + len(offsets), dtype=np.int64)
        at = 0
        while at < len(offsets):
            block = self.blocks[-1] if self.blocks else None
            room = BLOCK_SIZE - block.size if block is not None else 0
            if block is not None and room > 0:
                end = min(at + room, int(np.searchsorted(offsets, block.offsets.limit)))
                end = min(end, at + block.sequences.limit - int(sequences[at]))
                if end > at:
                    block.append(offsets[at:end], sequences[at:end], now_ns, stamps)
                    self._watch(block, now_ns + self._shortest_wait_ns)
                    at = end
                    continue
            end = min(at + BLOCK_SIZE, int(np.searchsorted(offsets, int(offsets[at]) + 2**32)))
            new = Block(Rising(offsets[at:end]), Rising(sequences[at:end]), *stamps)
            new.times.fill(now_ns)
            self.blocks.append(new)
            self._moved()
            self._watch(new, now_ns + self._shortest_wait_ns)
            at = end
        self.total += len(offsets)

    def remove(self, offsets: Ints) -> None:
        """Remove messages that are done."""
        if len(offsets) <= FEW:
            bases = self._bases()
            each = [bisect_right(bases, offset) - 1 for offset in offsets.tolist()]
            touched = self._remove_each(offsets.tolist(), each)
        elif (run := self._run(offsets)) is not None:
            block, index = run
            if block.is_pending is not None and not block.is_pending[index].all():
                raise CorruptState(
                    f"not all messages from {offsets[0]} to {offsets[-1]} are pending"
                )
            self._forget(block, index)
            block.remove(index)
            touched = [block.offsets.base]
        elif self._is_scattered(numbers := self._numbers(offsets)):
            touched = self._remove_each(offsets.tolist(), numbers.tolist())
        else:
            touched = []
            for block, _, places in self._pending_groups(offsets, numbers):
                self._forget(block, places)
                block.remove(places)
                touched.append(block.offsets.base)
        for base in reversed(touched):
            self._tidy(bisect_right(self._bases(), base) - 1)

    def remove_below(self, end: int) -> None:
        self.remove(self.up_to(end))

    def remove_from(self, end: int) -> None:
        """Remove the messages from `end` on from the blocks, because new records may get these
        offsets."""
        while self.blocks and self.blocks[-1].offsets.last >= end:
            block = self.blocks.pop()
            self._moved()
            places = block.places()
            kept = places[block.offsets.at(places) < end]
            self._forget(block, places[len(kept) :])
            new = block.taken(kept) if len(kept) else None
            self._unwatch(block)
            if new is not None:
                self.blocks.append(new)
                self._watch(new, new.earliest_ns)

    def queue(self, offsets: Ints, ticket: int) -> None:
        """Put messages into the queue of redeliveries with consecutive tickets."""
        for block, where, places in self._pending_groups(offsets):
            self.queued += len(places) - self._count_queued(block, places)
            block.phases.put(places, Phase.QUEUED, block.size)
            block.times.put(places, where + ticket, block.size)

    def delay(self, offsets: Ints, until_ns: Ints) -> None:
        """Set the time at which each message falls due."""
        for block, where, places in self._pending_groups(offsets):
            self.queued -= self._count_queued(block, places)
            block.phases.put(places, Phase.DELAYED, block.size)
            block.times.put(places, until_ns[where], block.size)
            self._watch(block, int(until_ns[where].min()))

    def hold(self, offsets: Ints, now_ns: int) -> None:
        """Restart the wait for the acks of these messages."""
        for block, _, places in self._pending_groups(offsets):
            self.queued -= self._count_queued(block, places)
            block.phases.put(places, Phase.OUT, block.size)
            block.times.put(places, now_ns, block.size)
            self._watch(block, now_ns + self._shortest_wait_ns)

    def deliver_again(self, offsets: Ints, now_ns: int) -> None:
        """Count one more delivery of each message."""
        for block, _, places in self._pending_groups(offsets):
            counts = block.counts.at(places)
            self.redelivered += int((counts == 1).sum())
            same = block.counts.same
            more = np.minimum(counts + 1, MAX_COUNT) if same is None else min(same + 1, MAX_COUNT)
            block.counts.put(places, more, block.size)
        self.hold(offsets, now_ns)

    def hold_all(self, now_ns: int) -> None:
        """Restart the wait for the ack of every message that a worker has."""
        for block in self.blocks:
            if block.phases.same == Phase.OUT:
                block.times.fill(now_ns)
            else:
                places = block.places()
                places = places[block.phases.at(places) == Phase.OUT]
                block.times.put(places, now_ns, block.size)
        self.watch_all()

    def restore(self, blocks: list[Block]) -> None:
        """Set the blocks to the blocks of a snapshot."""
        self.blocks = blocks
        self._moved()
        for block in blocks:
            places = block.places()
            self.total += block.pending
            self.queued += self._count_queued(block, places)
            self.redelivered += int((block.counts.at(places) > 1).sum())
        self.watch_all()

    # --- deadlines ---------------------------------------------------------------

    def set_waits(self, waits_ns: tuple[int, ...]) -> None:
        self._waits = np.array(waits_ns, np.int64)
        self._shortest_wait_ns = min(waits_ns)
        self.watch_all()

    def watch_all(self) -> None:
        """Compute all deadlines again."""
        self._heap.clear()
        self._watched.clear()
        for block in self.blocks:
            block.watched_ns = block.earliest_ns = NEVER
            self._watch(block, int(block.deadlines(block.places(), self._waits).min()))

    def due_ns(self) -> int:
        """Return a time before which no message falls due; NEVER if no message will."""
        while self._heap and self._heap[0][2] not in self._watched:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else NEVER

    def take_due(self, now_ns: int, most_blocks: int) -> tuple[Ints, Ints]:
        """Return offsets and delivery counts of messages that are due, in offset order.

        The caller must then queue or remove each of these messages. Examines at most `most_blocks`
        blocks.
        """
        found: list[tuple[Ints, Ints]] = []
        for _ in range(most_blocks):
            if self.due_ns() > now_ns:
                break
            block = self._watched.pop(heapq.heappop(self._heap)[2])
            places = block.places()
            deadlines = block.deadlines(places, self._waits)
            is_due = deadlines <= now_ns
            block.watched_ns = block.earliest_ns = NEVER
            later = deadlines[~is_due]
            if len(later):
                self._watch(block, int(later.min()))
            places = places[is_due]
            if len(places):
                found.append((block.offsets.at(places), block.counts.at(places)))
        found.sort(key=lambda part: int(part[0][0]))
        return self._joined([part[0] for part in found]), self._joined([part[1] for part in found])

    def size_bytes(self) -> int:
        """Return the bytes that the arrays occupy."""
        return sum(block.size_bytes() for block in self.blocks)

    # --- inside ------------------------------------------------------------------

    def _numbers(self, offsets: Ints) -> Index:
        """Return the number of the block that may have each offset; -1 for none."""
        if self._starts is None:
            self._starts = np.array(self._bases(), np.int64)
        return np.searchsorted(self._starts, offsets, side="right") - 1

    def _bases(self) -> list[int]:
        """Return the first offset of each block."""
        if self._begins is None:
            self._begins = [block.offsets.base for block in self.blocks]
        return self._begins

    def _moved(self) -> None:
        """Drop the cached block starts, because blocks were added, removed or moved."""
        self._starts = self._begins = None

    def _run(self, offsets: Ints) -> tuple[Block, Index] | None:
        """Return the block that contains these contiguous offsets, and the place of each offset in
        the block. Returns None in the cases of `places_of_run`, and if no block contains them."""
        number = bisect_right(self._bases(), int(offsets[0])) - 1 if len(offsets) else -1
        index = self.blocks[number].places_of_run(offsets) if number >= 0 else None
        return None if index is None else (self.blocks[number], index)

    @staticmethod
    def _is_scattered(numbers: Index) -> bool:
        """Return True if a loop over the offsets is faster than a loop over the blocks."""
        changes = int(np.count_nonzero(numbers[1:] != numbers[:-1])) + 1
        if 4 * changes <= len(numbers):
            return False
        return changes == 1 or 4 * len(np.unique(numbers)) > len(numbers)

    def _find_each(
        self, offsets: Ints, numbers: Index, stamps_ns: Ints | None, found: Found
    ) -> None:
        stamps = None if stamps_ns is None else stamps_ns.tolist()
        for at, (offset, number) in enumerate(zip(offsets.tolist(), numbers.tolist(), strict=True)):
            block = self.blocks[number] if number >= 0 else None
            place = -1 if block is None else block.offsets.place(offset)
            if block is None or place < 0:
                continue
            if stamps is not None:
                found.is_foreign[at] = not block.oldest_ns <= stamps[at] <= block.newest_ns
            if block.is_pending is None or block.is_pending[place]:
                found.is_pending[at] = True
                found.counts[at] = block.counts.one(place)
                found.sequences[at] = block.sequences.one(place)
                found.phases[at] = block.phases.one(place)
                found.tickets[at] = block.times.one(place)

    def _remove_each(self, offsets: list[int], numbers: list[int]) -> list[int]:
        """Remove messages, and return the first offsets of the blocks that had them, in order."""
        for offset, number in zip(offsets, numbers, strict=True):
            block = self.blocks[number] if number >= 0 else None
            place = -1 if block is None else block.offsets.place(offset)
            if block is None or place < 0 or not block.remove_one(place):
                raise CorruptState(f"the message {offset} is not pending")
            self.total -= 1
            self.queued -= block.phases.one(place) == Phase.QUEUED
            self.redelivered -= block.counts.one(place) > 1
        return [self.blocks[number].offsets.base for number in sorted(set(numbers))]

    def _groups(self, offsets: Ints, numbers: Index) -> Iterator[Group]:
        """Yield the blocks that have some of the offsets, in order."""
        if not self.blocks or not len(offsets):
            return
        first = int(numbers[0])
        if bool((numbers == first).all()):
            parts = [(first, np.arange(len(offsets)))]
        else:
            steps = np.diff(numbers)
            order = np.arange(len(numbers))
            if bool((steps < 0).any()):
                order = np.argsort(numbers, kind="stable")
                steps = np.diff(numbers[order])
            cuts = np.flatnonzero(steps) + 1
            parts = [(int(numbers[part[0]]), part) for part in np.split(order, cuts)]
        for number, where in parts:
            if number >= 0:
                block = self.blocks[number]
                places, is_here = block.offsets.find(offsets[where])
                if is_here.all():
                    yield block, where, places
                elif is_here.any():
                    yield block, where[is_here], places[is_here]

    def _pending_groups(self, offsets: Ints, numbers: Index | None = None) -> list[Group]:
        """Return the result of `_groups`. Raises CorruptState unless all offsets are pending."""
        numbers = self._numbers(offsets) if numbers is None else numbers
        groups = list(self._groups(offsets, numbers))
        count = 0
        for block, _, places in groups:
            is_pending = block.is_pending is None or bool(block.is_pending[places].all())
            count += len(places) if is_pending else 0
        if count != len(offsets):
            raise CorruptState(f"{len(offsets) - count} of {len(offsets)} messages are not pending")
        return groups

    def _count_queued(self, block: Block, places: Index) -> int:
        phase = block.phases.same
        if phase is not None:
            return len(places) if phase == Phase.QUEUED else 0
        return int((block.phases.at(places) == Phase.QUEUED).sum())

    def _forget(self, block: Block, places: Index) -> None:
        self.total -= len(places)
        self.queued -= self._count_queued(block, places)
        if block.counts.same != 1:
            self.redelivered -= int((block.counts.at(places) > 1).sum())

    def _tidy(self, number: int) -> None:
        """Drop, rewrite or merge a block that has lost messages."""
        block = self.blocks[number]
        if block.pending * 2 >= block.size:
            return
        self._moved()
        self._unwatch(block)
        if not block.pending:
            del self.blocks[number]
            return
        new = block.taken(block.places())
        self.blocks[number] = new
        if number + 1 < len(self.blocks):
            self._merge(number)
        if number > 0:
            self._merge(number - 1)
        for one in self.blocks[max(number - 1, 0) : number + 1]:
            self._watch(one, one.earliest_ns)

    def _merge(self, number: int) -> None:
        """Merge a block with the next block if both are small."""
        first, second = self.blocks[number : number + 2]
        is_near = first.offsets.fits(second.offsets.last) and first.sequences.fits(
            second.sequences.last
        )
        if is_near and first.size + second.size <= MERGED_SIZE:
            first.join(second)
            self._unwatch(first)
            self._unwatch(second)
            del self.blocks[number + 1]

    def _watch(self, block: Block, time_ns: int) -> None:
        """Note that a message of the block may fall due at this time."""
        block.earliest_ns = min(block.earliest_ns, time_ns)
        if block.earliest_ns < block.watched_ns:
            self._unwatch(block)
            block.watched_ns = block.earliest_ns
            self._entries += 1
            block.entry = self._entries
            self._watched[block.entry] = block
            heapq.heappush(self._heap, (block.watched_ns, block.offsets.base, block.entry))
            if len(self._heap) > 2 * len(self.blocks) + 64:
                self._heap = [one for one in self._heap if one[2] in self._watched]
                heapq.heapify(self._heap)

    def _unwatch(self, block: Block) -> None:
        self._watched.pop(block.entry, None)
        block.watched_ns = NEVER

    @staticmethod
    def _joined(parts: list[Ints]) -> Ints:
        return np.concatenate(parts) if parts else NO_INTS
