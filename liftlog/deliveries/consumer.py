"""The leader of a consumer: events come in, and each turn returns instructions and a delta.

A turn is any number of events, followed by `end_turn`. Events change the state at once. The daemon
must send nothing before the delta is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from liftlog.deliveries import changes
from liftlog.deliveries.acks import (
    AckKind,
    Acks,
    Bytes,
    Verdict,
    are_plain,
    judge,
    judge_plain,
    judge_rest,
)
from liftlog.deliveries.block import NEVER
from liftlog.deliveries.codec import encode_delta
from liftlog.deliveries.columns import NO_INTS, Bools, Index, Ints, repeated
from liftlog.deliveries.demand import PullRequest, Pulls, PushWindow, Share
from liftlog.deliveries.inboxes import UsedInboxes
from liftlog.deliveries.instructions import (
    Advisory,
    AdvisoryKind,
    Deliver,
    Ending,
    Instruction,
    Resumed,
    Status,
    Turn,
)
from liftlog.deliveries.pending import FEW
from liftlog.deliveries.records import Records, Scan, reply_sizes
from liftlog.deliveries.settings import (
    MAX_PENDING,
    MAX_WAIT_NS,
    AckPolicy,
    PriorityPolicy,
    Settings,
)
from liftlog.deliveries.state import ConsumerState
from liftlog.deliveries.statuses import TIMED_OUT, left_over

_MOST_BLOCKS = 32
"""Maximum number of blocks that one `tick` examines, which takes about 2 ms."""

_LAZY = changes.PullsChanged | changes.InboxUsed | changes.Advanced
_NO_PRIORITIES = PriorityPolicy.NONE
_EXPLICIT, _ALL, _NONE = AckPolicy  # bound here, as looking up a member takes a while


@dataclass(frozen=True, slots=True)
class Wants:
    """The records that the daemon has to read for waiting clients: the records in `again`, then up
    to `first` records from `start` on."""

    again: Ints
    """Offsets in the order of redelivery."""
    start: int
    first: int
    """Number of records to read for first deliveries; 0 if no record is needed now."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures for JetStream's INFO. The fields `delivered_*` describe the last delivered message,
    the fields `floor_*` the ack floor. If there is no such message, the offset is -1."""

    delivered_sequence: int
    delivered_offset: int
    floor_sequence: int
    floor_offset: int
    num_ack_pending: int
    num_redelivered: int
    num_waiting: int
    is_paused: bool


class Consumer:
    """Leads one consumer. `now_ns` is the time in ns since 1970 by a clock that does not jump while
    this object exists. For example, read the wall clock once, and add the time that has passed
    since then on a monotonic clock.
    """

    def __init__(self, state: ConsumerState) -> None:
        """Lead a consumer. Call `take_over` first unless the state is new."""
        self.state = state
        self._pulls = Pulls()
        self._inboxes = UsedInboxes()
        self._push = PushWindow()
        self._changes: list[changes.Change] = []
        self._instructions: list[Instruction] = []
        self._is_paused = False
        self._log_start = 0

    # --- demand ------------------------------------------------------------------

    def pull(self, request: PullRequest, num_pending: int, now_ns: int) -> None:
        """Accept or refuse a pull of a client. `num_pending` is the number of matching records from
        `next_offset` on."""
        available = num_pending + self.state.pending.queued
        self._inboxes.pulled(request, self.state.inboxes, now_ns)
        self._instructions += self._pulls.add(request, available, self.state.settings, now_ns)

    def drop_pulls(self, replies: Iterable[bytes]) -> None:
        """Drop the pulls with these reply subjects, because the subjects have no subscriber."""
        self._pulls.drop(replies)

    def prefer(self, reply: bytes) -> None:
        """Let the waiting pull with this reply get the next message."""
        self._pulls.prefer(reply)

    def nothing_to_deliver(self) -> None:
        """End the pulls that do not wait for messages. Called if no pull can take the next
        message."""
        self._instructions += self._pulls.end_of_data()

    @property
    def waiting(self) -> list[bytes]:
        """The replies of the waiting pulls, including pulls that arrived in this turn."""
        return self._pulls.replies

    def send(self, status: Status) -> None:
        """Send a status in this turn."""
        self._instructions.append(status)

    def end_pulls(self, why: Ending) -> None:
        """End all waiting pulls with a status."""
        self._instructions += self._pulls.end_all(why)

    def open_push(self, subject: bytes, messages: int, size_bytes: int) -> None:
        """Set the window of a push consumer, in messages and bytes. The last message of a window
        may exceed the number of bytes. A window of 0 messages is closed."""
        self._push = PushWindow(subject, messages, size_bytes)

    def wants(self, now_ns: int, most: int, room: int = MAX_PENDING) -> Wants:
        """Return the records to read for waiting clients, at most `most`. `room` is the number of
        further messages that may become pending under the daemon's limit for all consumers.
        """
        state = self.state
        demand = min(self._push.messages or self._pulls.wanted_in_turn(state.settings), most)
        if demand <= 0 or state.settings.is_paused(now_ns):
            return Wants(NO_INTS, state.next_offset, 0)
        again = state.queue.peek(demand)
        first = min(demand - len(again), self._room(room))
        return Wants(again, state.next_offset, max(first, 0))

    @property
    def needs_sizes(self) -> bool:
        """True if the next deliveries depend on the sizes of the records."""
        return self.state.settings.is_push or self._pulls.has_byte_limits

    # --- deliveries --------------------------------------------------------------

    def redeliver(self, asked: Ints, records: Records, num_pending: int, now_ns: int) -> None:
        """Deliver messages again. `asked` has the offsets of `wants().again` that could be read. If
        `records` has no record for such an offset, the message was removed, and is no longer
        pending."""
        found = self.state.pending.find(asked)
        asked = asked[found.is_queued]
        is_there, places = records.find(asked)
        if not is_there.all():
            self._do(changes.Done(np.sort(asked[~is_there])))
        offsets, counts = asked[is_there], found.counts[found.is_queued][is_there] + 1
        if not len(offsets) or self.state.settings.is_paused(now_ns):
            return
        pendings, held = np.full(len(offsets), num_pending), self.state.pending.total
        sizes = records.sizes[places]
        taken = self._share(
            offsets, counts, pendings, sizes, now_ns, lambda: repeated(held, len(counts))
        )
        if taken:
            self._do(changes.Redelivered(offsets[:taken], now_ns))

    def deliver(self, scan: Scan, num_pending: int, now_ns: int, room: int = MAX_PENDING) -> None:
        """Deliver records for the first time. `num_pending` is the number of matching records from
        `scan.start` on.

        Ignores a scan that begins above `next_offset` or ends below it. The caller must drop a scan
        if the log was truncated or the filters were changed after the scan.
        """
        state = self.state
        if scan.start > state.next_offset or scan.end < state.next_offset:
            return
        skipped, found = 0, scan.records.offsets
        if len(found) and found[0] < state.next_offset:
            skipped = int(np.searchsorted(found, state.next_offset))
        records = scan.records.after(skipped)
        offsets = records.offsets[: max(self._room(room), 0)]
        taken, count, held = 0, len(offsets), state.pending.total
        if count and not state.settings.is_paused(now_ns):
            last = num_pending - skipped - count
            pendings = np.arange(last + count - 1, last - 1, -1)
            if last < 0:
                pendings = np.maximum(pendings, 0)
            counts, sizes = repeated(1, len(offsets)), records.sizes[:count]
            taken = self._share(
                offsets, counts, pendings, sizes, now_ns, lambda: held + np.arange(count)
            )
            if taken:
                bounds = _bounds(records.stamps_ns[:taken])
                self._do(changes.Delivered(offsets[:taken], now_ns, *bounds))
        if taken == len(records.offsets):
            if scan.end > state.next_offset or scan.epoch != state.epoch:
                self._do(changes.Advanced(scan.end, scan.epoch))
            # If max_ack_pending is reached, JetStream does not check if there are more messages.
            is_full = self._room(room - taken) <= 0
            if scan.is_at_end and not state.pending.queued and not is_full:
                self._instructions += self._pulls.end_of_data()

    def deliver_to_nobody(self, offset: int, stamp_ns: int, now_ns: int) -> None:
        """Count the first delivery of a record that no waiting client can take. `offset` is at or
        above `next_offset`, and no wanted record is between them. `stamp_ns` is the timestamp of
        the record. Like any message without an ack, the record falls due after the ack wait."""
        self._do(changes.Delivered(np.array([offset], np.int64), now_ns, stamp_ns, stamp_ns))

    def redeliver_to_nobody(self, offset: int, now_ns: int) -> None:
        """Count one more delivery of a queued message that no waiting client can take."""
        self._do(changes.Redelivered(np.array([offset], np.int64), now_ns))

    # --- acks --------------------------------------------------------------------

    def acknowledge(self, acks: Acks, now_ns: int) -> Bytes:
        """Apply a chunk of acks, and return a `Verdict` for each."""
        state = self.state
        policy = state.settings.ack_policy
        if policy == _EXPLICIT and are_plain(acks):
            verdicts, done = judge_plain(acks, state.pending, state.next_offset)
            if len(done):
                self._do(changes.Done(done))
            return verdicts
        verdicts = np.full(len(acks), Verdict.IGNORED, np.uint8)
        if policy == _NONE:
            return verdicts
        parts, rest = acks.rounds()
        for part in parts:
            verdicts[part] = self._acknowledge(acks, part, now_ns)
        if len(rest):
            verdicts[rest] = judge_rest(acks, rest, state.pending, state.next_offset)
        return verdicts

    # --- time, log, settings -----------------------------------------------------

    def tick(self, now_ns: int) -> None:
        """Handle the timers: queue due messages, end expired pulls, send heartbeats, end a pause.
        If work is left for another call, `due_ns` then returns at most `now_ns`."""
        state = self.state
        offsets, counts = state.pending.take_due(now_ns, _MOST_BLOCKS)
        self._fall_due(offsets, counts)
        self._instructions += self._pulls.expire(now_ns)
        self._pulls.priorities.expire(now_ns)
        self._take_pins()
        last = state.next_offset - 1
        self._instructions += self._pulls.heartbeats(now_ns, state.sequence, last)
        was_paused, self._is_paused = self._is_paused, state.settings.is_paused(now_ns)
        if self._is_paused:
            self._instructions += self._pulls.end_of_data()
        elif was_paused:
            self._instructions.append(Resumed())

    def due_ns(self) -> int | None:
        """Return the time at which `tick` must be called next; None if never. The time can be too
        early, because a progress ack, for example, does not change this time."""
        times = [self.state.pending.due_ns()]
        event = self._pulls.next_event_ns()
        if event is not None:
            times.append(event)
        if self._is_paused:
            times.append(self.state.settings.pause_until_ns)
        earliest = min(times)
        return None if earliest == NEVER else earliest

    def log_started(self, offset: int) -> None:
        """Drop the messages below `offset`, which retention or a purge has removed."""
        if offset <= self._log_start:
            return
        self._log_start, state = offset, self.state
        if offset > state.floor_offset or offset > min(state.exhausted, default=offset):
            self._do(changes.LogStarted(offset))

    def records_gone(self, offsets: Ints) -> None:
        """Drop the messages at these offsets, because a read has found no records there."""
        found = self.state.pending.find(offsets)
        if found.is_pending.any():
            self._do(changes.Done(np.unique(offsets[found.is_pending])))

    def log_truncated(self, end: int) -> None:
        """Drop everything from `end` on, because the log was truncated there."""
        if end < self.state.next_offset:
            self._do(changes.LogTruncated(end))

    def update(self, settings: Settings, now_ns: int) -> None:
        """Adopt new settings, which the caller has checked. Raises ValueError if the new settings
        change the ack policy, or change from pull to push or back."""
        old = self.state.settings
        if (old.ack_policy, old.is_push) != (settings.ack_policy, settings.is_push):
            raise ValueError("ack policy and kind of demand of a consumer cannot change")
        if settings == old:
            return
        self._do(changes.Updated(settings))
        if settings.priority_policy is not old.priority_policy:
            self._pulls.policy_changed(settings.priority_policy)
        if settings.max_deliver > 0 and not 0 < old.max_deliver <= settings.max_deliver:
            self._exhaust(*self.state.pending.in_queue())
        self.tick(now_ns)

    def reset(self, state: ConsumerState) -> None:
        """Replace the state; changes since the last turn are lost, waiting pulls stay."""
        self.state = state
        self._changes.clear()
        self._pulls.store_again()
        self._inboxes.store_again()
        self._log_start = 0

    def take_over(self, now_ns: int) -> None:
        """Begin to lead after another leader, or after a restart. Ends waiting pulls with 408, and
        restarts the ack wait of each message that a worker may have. Delays of naks do not
        change."""
        for pull in self.state.pulls.values():
            self.send(left_over(pull.reply, TIMED_OUT, pull.left, pull.left_bytes))
        self._do(changes.TakenOver(now_ns))
        self._is_paused = self.state.settings.is_paused(now_ns)

    def figures(self, now_ns: int) -> Figures:
        """Return the figures of INFO. Like JetStream, also end the pulls that have expired."""
        self._instructions += self._pulls.expire(now_ns)
        state = self.state
        return Figures(
            state.sequence,
            state.delivered_end - 1,
            state.floor_sequence,
            state.floor_offset - 1,
            state.pending.total,
            state.num_redelivered,
            len(self._pulls),
            state.settings.is_paused(now_ns),
        )

    @property
    def pin(self) -> tuple[bytes, int]:
        """The id of the pinned client, empty if there is none, and the time of its pin in ns."""
        return self._pulls.priorities.pin, self._pulls.priorities.pinned_ns

    def unpin(self) -> None:
        """Remove the pin of the pinned client, as requested by an operator."""
        self._pulls.priorities.unpin("admin")
        self._take_pins()

    def end_turn(self) -> Turn:
        """Return the delta and the instructions of all events since the last turn."""
        pulls = self._pulls.take_changes(self.state.pulls)
        if pulls is not None:
            self._do(pulls)
        for inbox in self._inboxes.take_changes():
            self._do(inbox)
        is_lazy = all(isinstance(one, _LAZY) for one in self._changes)
        turn = Turn(tuple(self._instructions), encode_delta(self._changes), is_lazy)
        self._instructions.clear()
        self._changes.clear()
        return turn

    # --- inside ------------------------------------------------------------------

    def _do(self, change: changes.Change) -> None:
        self.state.apply(change)
        self._changes.append(change)

    def _room(self, room: int) -> int:
        """Return how many more messages may become pending."""
        settings = self.state.settings
        if settings.ack_policy == _NONE:
            return MAX_PENDING
        return min(settings.most_pending - self.state.pending.total, room)

    def _share(
        self,
        offsets: Ints,
        counts: Ints,
        pendings: Ints,
        sizes: Ints,
        now_ns: int,
        held: Callable[[], Ints],
    ) -> int:
        """Divide messages among the waiting clients, and return the number of messages that were
        assigned. `held` returns the number of pending messages at the delivery of each message."""
        state, settings = self.state, self.state.settings
        first = state.sequence + 1
        sequences = np.arange(first, first + len(offsets), dtype=np.int64)
        shares: list[Share]
        pin = b""
        if settings.is_push:
            shares, taken = self._push.share(sizes)
            statuses: list[Status] = []
        else:
            if self._pulls.has_byte_limits:
                prefix = settings.ack_prefix_bytes
                sizes = sizes + reply_sizes(prefix, counts, offsets, sequences, pendings)
            if settings.priority_policy == _NO_PRIORITIES:
                shares, taken, statuses = self._pulls.share(sizes, now_ns)
            else:
                shares, taken, statuses = self._pulls.share_by_priority(
                    sizes, pendings + 1, held(), settings, now_ns
                )
                self._take_pins()
                pin = self._pulls.priorities.pin
        for reply, index in shares:
            columns = offsets[index], sequences[index], counts[index], pendings[index]
            self._instructions.append(Deliver(reply, *columns, pin))
        self._instructions += statuses
        return taken

    def _take_pins(self) -> None:
        self._instructions += self._pulls.priorities.instructions
        self._pulls.priorities.instructions.clear()

    def _acknowledge(self, acks: Acks, part: Index, now_ns: int) -> Bytes:
        """Apply acks of different messages, and return their verdicts."""
        state = self.state
        offsets, kinds = acks.offsets[part], acks.kinds[part]
        found = state.pending.find(offsets, acks.stamps_ns[part])
        judged = judge(acks, part, found, state.next_offset)
        is_terminated = judged.ends & (kinds == AckKind.TERM)
        if is_terminated.any():
            reasons = tuple(acks.reasons.get(int(one), "") for one in part[is_terminated])
            self._advise(
                AdvisoryKind.TERMINATED,
                offsets,
                found.sequences,
                found.counts,
                is_terminated,
                reasons,
            )
        naks, progress = judged.naks, judged.progress
        if judged.ends.any():
            if state.settings.ack_policy == _ALL:
                end = int(offsets[judged.ends].max()) + 1
                self._do(changes.DoneBelow(end))
                is_done = (naks | progress) & (offsets < end)
                judged.verdicts[is_done] = Verdict.OUTDATED
                naks, progress = naks & ~is_done, progress & ~is_done
            else:
                self._do(changes.Done(np.sort(offsets[judged.ends])))
        if progress.any():
            self._do(changes.Progressed(np.sort(offsets[progress]), now_ns))
        if naks.any():
            self._advise(AdvisoryKind.NAK, offsets, found.sequences, found.counts, naks)
            delays = np.minimum(acks.delays_ns[part], MAX_WAIT_NS)
            later = naks & (delays > 0)
            if later.any():
                self._do(changes.Delayed(offsets[later], delays[later] + now_ns))
            at_once = naks & ~later & ~found.is_queued
            self._fall_due(offsets[at_once], found.counts[at_once])
        return judged.verdicts

    def _fall_due(self, offsets: Ints, counts: Ints) -> None:
        """Queue messages in this order, except those that have reached `max_deliver`."""
        is_last = self._exhaust(offsets, counts)
        if not is_last.all():
            self._do(changes.Queued(offsets[~is_last]))

    def _exhaust(self, offsets: Ints, counts: Ints, sequences: Ints | None = None) -> Bools:
        """Remove the messages that have reached `max_deliver`; return a mask that is True for
        them."""
        most = self.state.settings.max_deliver
        is_last = counts >= most if most > 0 else np.zeros(len(offsets), np.bool_)
        if is_last.any():
            if sequences is None:
                sequences = self.state.pending.find(offsets).sequences
            self._advise(AdvisoryKind.MAX_DELIVERIES, offsets, sequences, counts, is_last)
            self._do(changes.Exhausted(offsets[is_last]))
        return is_last

    def _advise(
        self,
        kind: AdvisoryKind,
        offsets: Ints,
        sequences: Ints,
        counts: Ints,
        which: Bools,
        reasons: tuple[str, ...] = (),
    ) -> None:
        columns = offsets[which], sequences[which], counts[which]
        self._instructions.append(Advisory(kind, *columns, reasons))


def _bounds(numbers: Ints) -> tuple[int, int]:
    """Return the lowest and the highest of some numbers."""
    if len(numbers) <= FEW:
        few = numbers.tolist()
        return min(few), max(few)
    return int(numbers.min()), int(numbers.max())
