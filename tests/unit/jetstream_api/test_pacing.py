"""Rate limits, replays at the original speed, and samples of acks."""

from __future__ import annotations

import numpy as np
import pytest

from liftlog.deliveries.acks import AckKind, Acks
from liftlog.deliveries.pending import PendingMessages
from liftlog.server.jetstream_api.consumers.rows import Row
from liftlog.server.jetstream_api.workers.acks import WorkerAcks
from liftlog.server.jetstream_api.workers.pacing import ByteRate, Replay
from liftlog.server.jetstream_api.workers.sampling import sampled

SECOND = 10**9
NOW = 1_000 * SECOND


def test_no_more_bytes_than_the_rate_go() -> None:
    rate = ByteRate(80_000)  # 10,000 bytes a second, of which 1,000 at once
    now, sent = NOW, 0
    while now < NOW + 10 * SECOND:
        if rate.room(now) <= 0:
            assert now < rate.due_ns() <= now + SECOND
            now = rate.due_ns()
            assert rate.room(now) > 0
            continue
        rate.spend(700, now)
        sent += 700
    assert 95_000 < sent < 105_000


def test_a_message_above_the_rate_goes_alone() -> None:
    rate = ByteRate(8)
    assert rate.room(NOW) > 0
    rate.spend(10, NOW)
    assert rate.room(NOW + SECOND) == 0
    assert NOW + 9 * SECOND < rate.due_ns() <= NOW + 11 * SECOND


def row(stamp_ns: int) -> Row:
    return Row(stamp_ns // SECOND, stamp_ns, b"a", b"", b"x")


def test_records_go_with_their_pauses() -> None:
    rows = [row(one * SECOND) for one in (1, 1, 3, 4)]
    replay = Replay()
    assert replay.ready(rows, NOW) == 2
    replay.delivered(rows[1].timestamp_ns, NOW)
    assert replay.ready(rows[2:], NOW + SECOND) == 0
    assert replay.due_ns(rows[2]) == NOW + 2 * SECOND
    assert replay.ready(rows[2:], NOW + 2 * SECOND) == 1
    replay.delivered(rows[2].timestamp_ns, NOW + 5 * SECOND)
    assert replay.due_ns(rows[3]) == NOW + 6 * SECOND, "a slow reader is not hurried"
    replay.is_over = True
    assert replay.ready(rows, NOW) == 4


def pending() -> PendingMessages:
    found = PendingMessages((30 * SECOND,))
    found.add(np.arange(10, 20), 1, NOW, (SECOND, SECOND))
    return found


def acks(offsets: list[int], kinds: list[AckKind]) -> WorkerAcks:
    count = len(offsets)
    columns = Acks(
        np.array(offsets, np.int64),
        np.ones(count, np.int64),
        np.full(count, SECOND),
        np.array(kinds, np.uint8),
        np.zeros(count, np.int64),
        {},
    )
    return WorkerAcks("c", columns, np.arange(100, 100 + count), ())


def test_only_acks_of_pending_messages_are_sampled() -> None:
    kinds = [AckKind.ACK, AckKind.TERM, AckKind.ACK, AckKind.NAK, AckKind.ACK]
    arrived = acks([10, 11, 50, 12, 13], kinds)
    found = sampled(arrived, pending(), 100, NOW + SECOND)
    assert [tuple(one) for one in found] == [(100, 10, SECOND, 1), (104, 13, SECOND, 1)]
    assert sampled(arrived, pending(), 0, NOW) == []


def test_a_part_of_the_acks_is_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    percents = iter([10.0, 60.0] * 5)
    monkeypatch.setattr("random.uniform", lambda low, high: next(percents))
    arrived = acks(list(range(10, 20)), [AckKind.ACK] * 10)
    found = sampled(arrived, pending(), 50, NOW)
    assert [one.offset for one in found] == [10, 12, 14, 16, 18]
