"""The leader of a consumer: the main path of a pull consumer with explicit acks."""

from __future__ import annotations

import numpy as np

from liftlog.deliveries.acks import AckKind, Acks, Verdict
from liftlog.deliveries.consumer import Consumer
from liftlog.deliveries.demand import PullRequest
from liftlog.deliveries.instructions import Deliver, Status
from liftlog.deliveries.records import Records, Scan
from liftlog.deliveries.settings import Settings
from liftlog.deliveries.state import ConsumerState

S = 10**9
NOW = 1_700_000_000 * S


def records(offsets: list[int]) -> Records:
    column = np.array(offsets, np.int64)
    return Records(column, np.full(len(offsets), 100), NOW + column)


def acks(*found: tuple[int, int, AckKind], delay_ns: int = 0) -> Acks:
    offsets = np.array([one[0] for one in found], np.int64)
    return Acks(
        offsets,
        np.array([one[1] for one in found], np.int64),
        NOW + offsets,
        np.array([one[2] for one in found], np.uint8),
        np.full(len(found), delay_ns),
    )


def test_pull_ack_nak_expiry_redelivery() -> None:
    consumer = Consumer(ConsumerState(Settings(), 0))
    consumer.pull(PullRequest(b"r", batch=10, expires_ns=60 * S), 4, NOW)
    wants = consumer.wants(NOW, most=500)
    assert (list(wants.again), wants.start, wants.first) == ([], 0, 10)
    consumer.deliver(Scan(0, 4, records([0, 1, 2, 3]), is_at_end=True), 4, NOW)
    (sent,) = consumer.end_turn().instructions
    assert isinstance(sent, Deliver)
    assert list(sent.offsets) == [0, 1, 2, 3]
    assert list(sent.pendings) == [3, 2, 1, 0]

    verdicts = consumer.acknowledge(acks((0, 1, AckKind.ACK), (2, 1, AckKind.NAK)), NOW)
    assert list(verdicts) == [Verdict.COUNTED] * 2
    assert list(consumer.wants(NOW, 500).again) == [2]
    consumer.redeliver(np.array([2]), records([2]), 0, NOW + 5 * S)
    assert consumer.state.floor_offset == 1
    assert consumer.due_ns() == NOW + 30 * S
    consumer.tick(NOW + 30 * S)
    assert list(consumer.wants(NOW + 30 * S, 500).again) == [1, 3]
    consumer.tick(NOW + 60 * S)
    status = consumer.end_turn().instructions[-1]
    assert isinstance(status, Status)
    assert status.block() == (
        b"NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: 5\r\nNats-Pending-Bytes: 0\r\n\r\n"
    )
