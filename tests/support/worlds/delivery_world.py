"""Runs a consumer with acks, its model and a follower in parallel, on a log with holes.

Each step applies the same change to the consumer and to the model, and compares the messages that
both send. The end of a turn writes the delta, applies it to the follower, and checks that its state
equals the leader's state. A crash drops the turn, or the messages sent after it, and a new leader
begins from the snapshot and the deltas.
"""

from __future__ import annotations

import copy
from collections import Counter, defaultdict
from typing import Any

import numpy as np
from support.worlds.delivery_model import Model

from liftlog.deliveries.acks import AckKind, Acks, Verdict
from liftlog.deliveries.codec import apply_delta
from liftlog.deliveries.consumer import Consumer
from liftlog.deliveries.demand import PullRequest
from liftlog.deliveries.instructions import Advisory, Deliver, Resumed
from liftlog.deliveries.records import Records, Scan
from liftlog.deliveries.settings import AckPolicy, Settings
from liftlog.deliveries.snapshot import decode_snapshot, encode_snapshot
from liftlog.deliveries.state import ConsumerState

SECOND = 10**9
START = 1_700_000_000 * SECOND


class DeliveryWorld:
    def __init__(self, settings: Settings) -> None:
        self.now = START
        self.log: dict[int, tuple[int, int, bool]] = {}
        """Maps each offset to size, timestamp, and True if the record matches."""
        self.stamps: dict[int, int] = {}
        """Timestamps of all records, including removed ones."""
        self.log_start = self.log_end = 0
        self.model = Model(settings, 0)
        self.consumer = Consumer(ConsumerState(settings, 0))
        self.follower = ConsumerState(settings, 0)
        self.snapshot = encode_snapshot(self.follower)
        self.deltas: list[bytes] = []
        self.durable = copy.deepcopy(self.model)
        self.deliveries: dict[int, tuple[int, int]] = {}
        """Delivery count and time of the newest sent delivery of each offset."""
        self.known: list[tuple[int, int]] = []
        """Offsets and delivery counts that workers may ack, in the order of delivery."""
        self.confirmed: set[int] = set()
        """Offsets whose acks were confirmed."""
        self.delayed: dict[int, int] = {}
        """Offsets whose naks were confirmed, and the ends of their delays."""
        self.answers: list[tuple[int, AckKind, int]] = []
        """Acks that take effect when the turn is written."""
        self.pulls = 0
        self.stats: Counter[str] = Counter()

    # --- the log -----------------------------------------------------------------

    def publish(self, matching: list[bool], size: int) -> None:
        for is_matching in matching:
            self.log[self.log_end] = (size, self.now, is_matching)
            self.stamps[self.log_end] = self.now
            self.log_end += 1

    def remove(self, offsets: list[int], noticed: bool) -> None:
        """Remove records by compaction. A read may detect the removal."""
        gone = [one for one in offsets if self.log.pop(one, None)]
        if noticed and gone:
            self.consumer.records_gone(np.array(gone, np.int64))
            for offset in gone:
                if offset in self.model.messages:
                    self.model.done(offset)

    def move_start(self, start: int) -> None:
        self.log_start = max(self.log_start, min(start, self.log_end))
        self.log = {offset: one for offset, one in self.log.items() if offset >= self.log_start}
        self.consumer.log_started(self.log_start)
        self.model.log_started(self.log_start)

    def truncate(self, end: int) -> None:
        end = max(end, self.log_start)
        if end >= self.log_end:
            return
        self.log_end = end
        self.log = {offset: one for offset, one in self.log.items() if offset < end}
        self.consumer.log_truncated(end)
        self.model.log_truncated(end)
        self.end_turn()
        self.confirmed = {one for one in self.confirmed if one < end}
        self.known = [one for one in self.known if one[0] < end]
        for offset in [one for one in self.deliveries if one >= end]:
            del self.deliveries[offset]
            self.delayed.pop(offset, None)

    def matches(self) -> list[int]:
        """Return the offsets of matching records that are not yet delivered for the first time."""
        return [one for one, found in self.log.items() if found[2] and one >= self.model.next]

    # --- workers -----------------------------------------------------------------

    def pull(self, batch: int, max_bytes: int, no_wait: bool, expires: int, beat: bool) -> None:
        self.pulls += 1
        reply = b"r%d" % self.pulls
        heartbeat_ns = expires * SECOND // 2 if beat else 0
        request = PullRequest(reply, batch, max_bytes, no_wait, expires * SECOND, heartbeat_ns)
        self.consumer.pull(request, len(self.matches()), self.now)
        self.model.pull(request, len(self.matches()), self.now)

    def drop(self, number: int) -> None:
        if self.model.pulls:
            pull = self.model.pulls.pop(number % len(self.model.pulls))
            self.consumer.drop_pulls([pull.request.reply])

    def serve(self, most: int) -> int:
        """Read the records that the consumer wants, and return their number."""
        wants = self.consumer.wants(self.now, most)
        paused = self.now < self.model.settings.pause_until_ns
        demand = 0 if paused else min(sum(pull.left for pull in self.model.pulls), most)
        assert wants.again.tolist() == self.model.queue[:demand]
        assert wants.start == self.model.next
        first = max(min(demand - len(wants.again), self.model.room()), 0)
        assert wants.first == first
        pending = len(self.matches())
        if len(wants.again):
            there = sorted(one for one in wants.again.tolist() if one in self.log)
            self.consumer.redeliver(wants.again, self._records(there), pending, self.now)
            sizes = {one: self.log[one][0] for one in there}
            self.model.redeliver(wants.again.tolist(), sizes, pending, self.now)
        if first:
            found = self.matches()[:first]
            is_at_end = len(found) == pending
            end = self.log_end if is_at_end else found[-1] + 1
            scan = Scan(wants.start, end, self._records(found), is_at_end, epoch=1)
            self.consumer.deliver(scan, pending, self.now)
            rows = [(one, *self.log[one][:2]) for one in found]
            self.model.deliver(rows, end, is_at_end, pending, self.now)
            return len(found) + len(wants.again)
        return len(wants.again)

    def acknowledge(self, acks: list[tuple[int, int, int, AckKind, int]]) -> None:
        """Apply acks: tuples of offset, count, timestamp, kind and delay in s."""
        if self.model.settings.ack_policy == AckPolicy.ALL and len(acks) > 1:
            for ack in acks:
                self.acknowledge([ack])
            return
        columns = [np.array(column, np.int64) for column in zip(*acks, strict=True)]
        offsets, counts, stamps, kinds, delays = columns
        chunk = Acks(offsets, counts, stamps, kinds.astype(np.uint8), delays * SECOND)
        verdicts = [Verdict(one) for one in self.consumer.acknowledge(chunk, self.now).tolist()]
        order = [int(one) for part in chunk.rounds()[0] for one in part]
        for place in order:
            offset, count, stamp, kind, delay = acks[place]
            right = self.model.acknowledge(offset, count, stamp, kind, delay * SECOND, self.now)
            assert verdicts[place] in right, (acks[place], verdicts[place], right)
            self.stats[f"{verdicts[place].name} {kind.name}"] += 1
            if verdicts[place] == Verdict.COUNTED:
                self.delayed.pop(offset, None)
                self.answers.append((offset, kind, delay and self.now + delay * SECOND))

    # --- time and settings -------------------------------------------------------

    def advance(self, seconds: float) -> None:
        self.now += int(seconds * SECOND)
        self.tick()

    def tick(self) -> None:
        self.consumer.tick(self.now)
        self.model.tick(self.now)
        due = self.consumer.due_ns()
        assert due is None or due > self.now
        earliest = [
            self.model.due_at(message)
            for offset, message in self.model.messages.items()
            if offset not in self.model.queue
        ]
        assert due is None or due <= min(earliest, default=due)
        assert due is not None or not earliest

    def update(self, settings: Settings) -> None:
        self.consumer.update(settings, self.now)
        if settings != self.model.settings:
            self.model.update(settings, self.now)

    # --- turns -------------------------------------------------------------------

    def end_turn(self) -> None:
        """Write the delta, compare the states, and send all messages."""
        turn = self.consumer.end_turn()
        self.deltas.append(turn.delta)
        apply_delta(self.follower, turn.delta)
        state = encode_snapshot(self.consumer.state)
        assert encode_snapshot(self.follower) == state
        assert encode_snapshot(decode_snapshot(state)) == state
        self._compare_figures()
        self._compare_sent(turn.instructions)
        for offset, kind, until in self.answers:
            self.delayed.pop(offset, None)
            if kind in (AckKind.ACK, AckKind.TERM):
                self.confirmed.add(offset)
            elif kind == AckKind.NAK and until:
                self.delayed[offset] = until
        self.answers.clear()
        self.durable = copy.deepcopy(self.model)

    def crash(self, written: bool, new_snapshot: bool) -> None:
        """Stop before or after the delta is written. Then another leader begins."""
        if written:
            self.end_turn()
        else:
            self.model = copy.deepcopy(self.durable)
            self.answers.clear()
        if new_snapshot:
            self.snapshot, self.deltas = encode_snapshot(self.follower), []
        self.follower = decode_snapshot(self.snapshot)
        state = decode_snapshot(self.snapshot)
        for delta in self.deltas:
            apply_delta(state, delta)
            apply_delta(self.follower, delta)
        self.consumer = Consumer(state)
        self.consumer.take_over(self.now)
        self.model.take_over(self.model.pulls, self.now)
        # The log may have changed while there was no leader.
        self.consumer.log_started(self.log_start)
        self.model.log_started(self.log_start)
        self.end_turn()
        self.stats["crashes"] += 1

    def drain(self) -> None:
        """Let a perfect worker process all messages. Checks that no matching record was skipped,
        and that no message is left."""
        self.update(Settings(self.model.settings.ack_policy, max_waiting=512))
        wanted = {one for one, found in self.log.items() if found[2]}
        self.consumer.drop_pulls([pull.request.reply for pull in self.model.pulls])
        self.model.pulls.clear()
        for _ in range(200):
            self.advance(60)
            self.pull(1000, 0, False, 30, False)
            while self.serve(500):
                pass
            self.end_turn()
            held = list(self.model.messages.items())
            if held:
                self.acknowledge([(one, m.count, m.stamp_ns, AckKind.ACK, 0) for one, m in held])
                self.end_turn()
            if not self.model.messages and not self.matches():
                break
        assert not self.model.messages
        assert self.model.floor >= self.model.delivered_end
        missed = wanted - self.deliveries.keys()
        assert not missed, "matching records were skipped"

    # --- inside ------------------------------------------------------------------

    def _records(self, offsets: list[int]) -> Records:
        rows = [self.log[one] for one in offsets]
        return Records(
            np.array(offsets, np.int64),
            np.array([row[0] for row in rows], np.int64),
            np.array([row[1] for row in rows], np.int64),
        )

    def _compare_figures(self) -> None:
        figures, model = self.consumer.figures(self.now), self.model
        model.expire_pulls(self.now)
        assert (figures.delivered_sequence, figures.delivered_offset + 1) == (
            model.sequence,
            model.delivered_end,
        )
        assert (figures.floor_sequence, figures.floor_offset + 1) == (
            model.floor_sequence,
            model.floor,
        )
        assert figures.num_ack_pending == len(model.messages)
        again = sum(one.count > 1 for one in model.messages.values()) + len(model.exhausted)
        assert figures.num_redelivered == (0 if model.settings.max_deliver == 1 else again)
        assert figures.num_waiting == len(model.pulls)
        assert list(self.consumer.state.exhausted) == model.exhausted

    def _compare_sent(self, instructions: tuple[Any, ...]) -> None:
        sent: dict[bytes, list[Any]] = defaultdict(list)
        advisories = []
        for one in instructions:
            if isinstance(one, Deliver):
                columns = one.offsets, one.sequences, one.counts, one.pendings
                rows = zip(*[column.tolist() for column in columns], strict=True)
                sent[one.reply] += rows
            elif isinstance(one, Advisory):
                rows = zip(one.offsets.tolist(), one.counts.tolist(), strict=True)
                advisories += [(one.kind.value, *row) for row in rows]
            elif not isinstance(one, Resumed):
                sent[one.reply].append((one.words.decode(), *[n for _, n in one.headers]))
        assert sent == self.model.sent
        assert Counter(advisories) == Counter(self.model.advisories)
        self.model.sent.clear()
        self.model.advisories.clear()
        self._note(sent)

    def _note(self, sent: dict[bytes, list[Any]]) -> None:
        """Check the deliveries: counts grow by one, and no confirmed message is delivered again."""
        messages = [row for rows in sent.values() for row in rows if not isinstance(row[0], str)]
        for offset, _, count, _ in sorted(messages, key=lambda row: row[1]):
            before = self.deliveries.get(offset, (0, 0))[0]
            assert count == before + 1, f"delivery {count} of {offset} after {before}"
            assert offset not in self.confirmed, f"{offset} comes again after its ack"
            assert self.delayed.pop(offset, 0) <= self.now, f"the delay of {offset} ends early"
            self.deliveries[offset] = (count, self.now)
            self.known.append((offset, count))
            self.stats["again" if count > 1 else "first"] += 1
        for rows in sent.values():
            self.stats.update(row[0] for row in rows if isinstance(row[0], str))
