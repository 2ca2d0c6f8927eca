"""The part of a consumer's state that a new leader needs. Only changes (`changes`) modify it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from liftlog.deliveries import changes
from liftlog.deliveries.columns import Bools, Ints
from liftlog.deliveries.pending import PendingMessages
from liftlog.deliveries.queue import RedeliveryQueue
from liftlog.deliveries.settings import MAX_PENDING, MAX_WAITING, AckPolicy, Settings
from liftlog.errors import CorruptState

_NONE = AckPolicy.NONE

MAX_EXHAUSTED = 1000
"""Number of exhausted offsets that the state keeps; older offsets are dropped."""
MAX_INBOXES = 16
"""Number of inboxes that the state keeps. The inboxes that were used last are kept."""


class ConsumerState:
    """The state of one consumer. Only `apply` changes it. After a CorruptState the object is
    unusable.

    All records below `next_offset` have been examined. `sequence` is the number of deliveries so
    far, which is the consumer sequence of the newest delivery. `delivered_end` is the offset after
    the last first delivery. `floor_offset` and `floor_sequence` are the ack floor: all messages
    below `floor_offset` are done, and so are all messages with a first delivery up to
    `floor_sequence`.
    """

    def __init__(self, settings: Settings, next_offset: int) -> None:
        """Create the state of a new consumer that starts at `next_offset`."""
        self.settings = settings
        self.next_offset = next_offset
        self.sequence = 0
        self.delivered_end = next_offset
        self.floor_offset = next_offset
        self.floor_sequence = 0
        self.epoch = 0
        """Leader epoch of the record before `next_offset`; 0 if unknown."""
        self.pending = PendingMessages(settings.waits_ns)
        self.queue = RedeliveryQueue(self._is_queued)
        self.exhausted: deque[int] = deque(maxlen=MAX_EXHAUSTED)
        self.pulls: dict[int, changes.StoredPull] = {}
        self.inboxes: dict[bytes, changes.InboxUsed] = {}
        """Inboxes of clients with heartbeats, by `client_of`, in the order of their newest
        pulls."""
        self.delivered_ns = 0
        """Time of the newest delivery that was applied to this object; 0 if there was none.
        Snapshots do not contain it."""

    def apply(self, change: changes.Change) -> None:
        """Apply one change. Raises CorruptState if it does not fit the state."""
        _METHODS[type(change)](self, change)
        if not self.pending.queued:
            self.queue.clear()  # of stale entries

    @property
    def num_redelivered(self) -> int:
        """Number of messages that were delivered more than once, including exhausted ones."""
        if self.settings.max_deliver == 1:
            return 0
        return self.pending.redelivered + len(self.exhausted)

    # --- deliveries --------------------------------------------------------------

    def _deliver(self, change: changes.Delivered) -> None:
        offsets = change.offsets
        first, last = int(offsets[0]), int(offsets[-1])
        if first < self.next_offset:
            raise CorruptState(f"a first delivery of {first} after {self.next_offset}")
        if self.settings.ack_policy == _NONE:
            self.floor_offset, self.floor_sequence = last + 1, self.sequence + len(offsets)
        else:
            if self.pending.total + len(offsets) > MAX_PENDING:
                raise CorruptState(f"more than {MAX_PENDING} pending messages")
            stamps = change.oldest_ns, change.newest_ns
            self.pending.add(offsets, self.sequence + 1, change.now_ns, stamps)
        self.sequence += len(offsets)
        self.next_offset = self.delivered_end = last + 1
        self.delivered_ns = change.now_ns

    def _redeliver(self, change: changes.Redelivered) -> None:
        self.pending.deliver_again(change.offsets, change.now_ns)
        self.sequence += len(change.offsets)
        self.delivered_ns = change.now_ns

    def _advance(self, change: changes.Advanced) -> None:
        if change.next_offset < self.next_offset:
            raise CorruptState(f"next offset {change.next_offset} after {self.next_offset}")
        self.next_offset = change.next_offset
        self.epoch = change.epoch

    # --- ends --------------------------------------------------------------------

    def _finish(self, change: changes.Done) -> None:
        self.pending.remove(change.offsets)
        self._raise_floor()

    def _finish_below(self, change: changes.DoneBelow) -> None:
        self.pending.remove_below(change.end)
        self._raise_floor()
        self.floor_offset = max(self.floor_offset, min(change.end, self.delivered_end))

    def _exhaust(self, change: changes.Exhausted) -> None:
        self.pending.remove(change.offsets)
        self.exhausted.extend(change.offsets[-MAX_EXHAUSTED:].tolist())
        self._raise_floor()

    def _start_log(self, change: changes.LogStarted) -> None:
        start = change.offset
        self.pending.remove_below(start)
        self.next_offset = max(self.next_offset, start)
        self.delivered_end = max(self.delivered_end, start)
        self._raise_floor()
        self.floor_offset = max(self.floor_offset, start)
        self._keep_exhausted(lambda offset: offset >= start)

    def _truncate(self, change: changes.LogTruncated) -> None:
        end = change.end
        self.pending.remove_from(end)
        self.next_offset = min(self.next_offset, end)
        self.delivered_end = min(self.delivered_end, end)
        self._raise_floor()
        self.floor_offset = min(self.floor_offset, end)
        self._keep_exhausted(lambda offset: offset < end)

    def _raise_floor(self) -> None:
        """Advance the ack floor after pending messages were removed."""
        first = self.pending.first()
        if first is None:
            self.floor_offset = max(self.floor_offset, self.delivered_end)
            self.floor_sequence = self.sequence
        elif first[1] - 1 > self.floor_sequence:
            self.floor_offset, self.floor_sequence = first[0], first[1] - 1

    def _keep_exhausted(self, is_kept: Callable[[int], bool]) -> None:
        kept = [offset for offset in self.exhausted if is_kept(offset)]
        if len(kept) < len(self.exhausted):
            self.exhausted.clear()
            self.exhausted.extend(kept)

    # --- waits -------------------------------------------------------------------

    def _queue(self, change: changes.Queued) -> None:
        self.pending.queue(change.offsets, self.queue.push(change.offsets))
        if self.queue.is_bloated(self.pending.queued):
            offsets = self.queue.all()
            self.queue.clear()
            self.pending.queue(offsets, self.queue.push(offsets))

    def _delay(self, change: changes.Delayed) -> None:
        self.pending.delay(change.offsets, change.until_ns)

    def _progress(self, change: changes.Progressed) -> None:
        self.pending.hold(change.offsets, change.now_ns)

    # --- settings and leaders ----------------------------------------------------

    def _update(self, change: changes.Updated) -> None:
        self.settings = change.settings
        self.pending.set_waits(change.settings.waits_ns)

    def _take_over(self, change: changes.TakenOver) -> None:
        self.pending.hold_all(change.now_ns)
        self.pulls.clear()

    def _change_pulls(self, change: changes.PullsChanged) -> None:
        for number in change.ended:
            self.pulls.pop(number, None)
        for pull in change.waiting:
            if pull.reply:
                self.pulls[pull.number] = pull
            elif pull.number in self.pulls:
                known = self.pulls[pull.number]
                less = replace(known, left=pull.left, left_bytes=pull.left_bytes)
                self.pulls[pull.number] = less
            else:
                raise CorruptState(f"the pull {pull.number} does not wait")
        if len(self.pulls) > MAX_WAITING:
            raise CorruptState(f"more than {MAX_WAITING} waiting pulls")

    def _use_inbox(self, change: changes.InboxUsed) -> None:
        client = changes.client_of(change.reply)
        self.inboxes.pop(client, None)
        self.inboxes[client] = change
        if len(self.inboxes) > MAX_INBOXES:
            del self.inboxes[next(iter(self.inboxes))]

    def _is_queued(self, offsets: Ints, tickets: Ints) -> Bools:
        found = self.pending.find(offsets)
        return found.is_queued & np.equal(found.tickets, tickets)


_METHODS: dict[type[Any], Callable[[ConsumerState, Any], None]] = {
    changes.Delivered: ConsumerState._deliver,
    changes.Redelivered: ConsumerState._redeliver,
    changes.Advanced: ConsumerState._advance,
    changes.Done: ConsumerState._finish,
    changes.DoneBelow: ConsumerState._finish_below,
    changes.Exhausted: ConsumerState._exhaust,
    changes.Queued: ConsumerState._queue,
    changes.Delayed: ConsumerState._delay,
    changes.Progressed: ConsumerState._progress,
    changes.LogStarted: ConsumerState._start_log,
    changes.LogTruncated: ConsumerState._truncate,
    changes.Updated: ConsumerState._update,
    changes.TakenOver: ConsumerState._take_over,
    changes.PullsChanged: ConsumerState._change_pulls,
    changes.InboxUsed: ConsumerState._use_inbox,
}
