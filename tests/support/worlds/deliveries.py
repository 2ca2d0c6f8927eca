"""A consumer with acks on a log without holes, for tests with many messages."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from liftlog.deliveries.acks import AckKind, Acks
from liftlog.deliveries.consumer import Consumer
from liftlog.deliveries.demand import PullRequest
from liftlog.deliveries.instructions import Deliver, Instruction
from liftlog.deliveries.records import Records, Scan
from liftlog.deliveries.settings import Settings
from liftlog.deliveries.state import ConsumerState

SECOND = 10**9
NOW = 1_700_000_000 * SECOND

Ints = NDArray[np.int64]


def records(offsets: Ints) -> Records:
    """Return records of 100 bytes with different timestamps."""
    return Records(offsets, np.full(len(offsets), 100), NOW + offsets)


def acks_of(offsets: Ints, count: int = 1, kind: AckKind = AckKind.ACK, delay_ns: int = 0) -> Acks:
    size = len(offsets)
    kinds = np.full(size, kind, np.uint8)
    return Acks(offsets, np.full(size, count), NOW + offsets, kinds, np.full(size, delay_ns))


class Lead:
    """A leader and its deltas. `step` is the distance between offsets that match its filter."""

    def __init__(self, settings: Settings | None = None, step: int = 1) -> None:
        self.consumer = Consumer(ConsumerState(settings or Settings(), 0))
        self.step = step
        self.now = NOW
        self.deltas: list[bytes] = []
        self.sent: list[Instruction] = []

    @property
    def state(self) -> ConsumerState:
        return self.consumer.state

    def pull(self, batch: int, reply: bytes = b"r") -> None:
        self.consumer.pull(PullRequest(reply, batch), batch, self.now)

    def deliver(self, count: int, at_once: int = 500) -> Ints:
        """Deliver `count` new messages, and return their offsets."""
        self.pull(count)
        first = -(-self.state.next_offset // self.step) * self.step
        offsets = first + self.step * np.arange(count, dtype=np.int64)
        for at in range(0, count, at_once):
            some = offsets[at : at + at_once]
            scan = Scan(self.state.next_offset, int(some[-1]) + 1, records(some), False)
            self.consumer.deliver(scan, count, self.now)
            self.end_turn()
        return offsets

    def ack(self, offsets: Ints, count: int = 1, kind: AckKind = AckKind.ACK) -> list[int]:
        verdicts = self.consumer.acknowledge(acks_of(offsets, count, kind), self.now)
        self.end_turn()
        return verdicts.tolist()

    def redeliver(self, at_once: int = 500) -> Ints:
        """Deliver all due messages again, and return their offsets in order."""
        self.pull(self.state.pending.queued)
        found = [np.empty(0, np.int64)]
        while len(again := self.consumer.wants(self.now, at_once).again):
            self.consumer.redeliver(again, self.records(again), 0, self.now)
            self.end_turn()
            found.append(again)
        return np.concatenate(found)

    @staticmethod
    def records(offsets: Ints) -> Records:
        return records(np.sort(offsets))

    def advance(self, seconds: float) -> None:
        self.now += int(seconds * SECOND)
        while (due := self.consumer.due_ns()) is not None and due <= self.now:
            self.consumer.tick(self.now)
            self.end_turn()

    def end_turn(self) -> list[Instruction]:
        turn = self.consumer.end_turn()
        if turn.delta:
            self.deltas.append(turn.delta)
        self.sent += turn.instructions
        return list(turn.instructions)

    def deliveries(self) -> list[tuple[int, int]]:
        """Return offset and delivery count of every delivery that was sent."""
        return [
            row
            for one in self.sent
            if isinstance(one, Deliver)
            for row in zip(one.offsets.tolist(), one.counts.tolist(), strict=True)
        ]
