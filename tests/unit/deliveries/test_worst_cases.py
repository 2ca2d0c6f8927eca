"""Memory and time of the state in the worst orders of acks.

Limits of time are wide, as machines of CI are slow; `docs/adr/0052-consumers-with-acks.md` has
measured figures.
"""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from itertools import repeat
from typing import Any

import numpy as np
import pytest
from support.rounds import fewer, is_torture
from support.timing import is_cheap
from support.worlds.deliveries import NOW, SECOND, Ints, Lead, acks_of, records

from liftlog.deliveries import changes
from liftlog.deliveries.acks import MAX_ACKS, AckKind, Acks
from liftlog.deliveries.block import Block
from liftlog.deliveries.consumer import Consumer
from liftlog.deliveries.instructions import Deliver
from liftlog.deliveries.pull import NO_PRIORITY, Priority, PullRequest
from liftlog.deliveries.records import Scan
from liftlog.deliveries.settings import MAX_PENDING, PriorityPolicy, Settings
from liftlog.deliveries.snapshot import decode_snapshot, encode_snapshot
from liftlog.deliveries.state import ConsumerState
from liftlog.protocol.limits import ANSWER_BODY_BYTES
from liftlog.server.journal import Change, ConsumerKey, StateVersion
from liftlog.server.journal.transfer import Sent, decode_changes, encode_change

MANY = Settings(max_ack_pending=-1)
KEY = ConsumerKey("a1", "one")
_MB = 1_000_000


def with_pending(count: int, step: int = 1) -> ConsumerState:
    """A state with so many pending messages."""
    state = ConsumerState(MANY, 0)
    offsets = step * np.arange(count, dtype=np.int64)
    for at in range(0, count, 4096):
        some = offsets[at : at + 4096]
        stamps = NOW + int(some[0]), NOW + int(some[-1])
        state.apply(changes.Delivered(some, NOW, *stamps))
    return state


def pieces(offsets: Ints, size: int = 4096) -> Iterator[Ints]:
    return (offsets[at : at + size] for at in range(0, len(offsets), size))


@pytest.mark.parametrize("step", [1, 7], ids=["all match", "one in seven matches"])
def test_a_million_pending_every_second_acked_all_delivered_twice(step: int) -> None:
    """80 MB for a million; the short form has fewer messages, and 80 bytes for each."""
    count = MAX_PENDING if is_torture() else fewer(150_000)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        lead = Lead(MANY, step)
        while (room := count - lead.state.pending.total) > 1000:
            for some in pieces(lead.deliver(room, at_once=4096)[::2]):
                lead.ack(some)
        lead.deliver(room, at_once=4096)
        assert lead.state.pending.total == count
        lead.deltas.clear()
        lead.sent.clear()
        lead.advance(31)
        assert lead.state.pending.queued == count
        lead.pull(count)
        while len(again := lead.consumer.wants(lead.now, 4096).again):
            lead.consumer.redeliver(again, lead.records(again), 0, lead.now)
            lead.consumer.end_turn()
        memory, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert lead.state.pending.redelivered == lead.state.pending.total == count
    print(f"\n{(memory - before) / _MB:.1f} MB, at most {(peak - before) / _MB:.1f} MB")
    assert peak - before < 80 * count
    copy = decode_snapshot(encode_snapshot(lead.state))
    assert copy.pending.total == count


def test_the_largest_snapshot_travels_to_a_follower_in_one_answer() -> None:
    """Each message has another gap before it, another count, and another delay of its nak. A
    million of them need 18 MB at most."""
    count = MAX_PENDING if is_torture() else fewer(50_000)
    luck = np.random.default_rng(1)
    state = ConsumerState(MANY, 0)
    offsets = np.cumsum(luck.integers(1, 60_000, count)).astype(np.int64)
    for some in pieces(offsets):
        state.apply(changes.Delivered(some, NOW, NOW + int(some[0]), NOW + int(some[-1])))
    shuffled = luck.permutation(offsets)
    for number, some in enumerate(pieces(shuffled)):
        for _ in range(number % 5):
            state.apply(changes.Queued(some))
            state.apply(changes.Redelivered(some, NOW))
        state.apply(changes.Delayed(some, NOW + luck.integers(1, 2**50, len(some))))
    began = time.process_time()
    snapshot = encode_snapshot(state)
    print(f"\n{len(snapshot) / count:.1f} bytes a message, {time.process_time() - began:.2f} s")
    assert len(snapshot) <= 18 * count
    assert 18 * MAX_PENDING < ANSWER_BODY_BYTES / 8
    body = encode_change(Sent(Change.snapshot(KEY, StateVersion(1, 2), b"{}", snapshot)))
    [sent] = decode_changes(KEY.incarnation, 1, body)
    assert encode_snapshot(decode_snapshot(sent.change.state)) == snapshot


@pytest.mark.parametrize("kept", [2, 3, 50, 4096, 5000])
def test_a_pending_message_costs_at_most_64_bytes_in_any_order_of_acks(kept: int) -> None:
    """All but every `kept`-th message are acked in random order; the rest got single deadlines."""
    lead = Lead(MANY, step=3)
    lead.consumer = Consumer(with_pending(100_000, step=3))
    offsets = lead.state.pending.up_to(10**9)
    acked = np.delete(offsets, np.arange(0, len(offsets), kept))
    for some in pieces(np.random.default_rng(kept).permutation(acked)):
        lead.ack(some)
    left = offsets[::kept]
    assert lead.state.pending.total == len(left)
    for number, some in enumerate(pieces(left)):
        lead.now += number
        naks = acks_of(some[::2], kind=AckKind.NAK)
        lead.consumer.acknowledge(naks, lead.now)
        delays = acks_of(some[1::2], kind=AckKind.NAK, delay_ns=SECOND)
        lead.consumer.acknowledge(delays, lead.now)
    size = lead.state.pending.size_bytes() + lead.state.queue.size_bytes()
    objects = 1000 * len(lead.state.pending.blocks)
    assert size / len(left) <= 64
    assert (size + objects) / len(left) <= 64 or len(left) < 1000


def test_one_stuck_message_below_many_acked_ones_keeps_nothing_else() -> None:
    lead = Lead(MANY)
    stuck = lead.deliver(1)
    total = 10_000_000 if is_torture() else fewer(200_000)
    for _ in range(total // 4096):
        lead.ack(lead.deliver(4096, at_once=4096))
    assert lead.state.pending.total == 1
    assert lead.state.floor_offset == 0
    assert len(lead.state.pending.blocks) <= 2
    assert lead.state.pending.size_bytes() < 20_000
    assert len(encode_snapshot(lead.state)) < 400
    assert lead.ack(stuck) == [1]
    assert lead.state.floor_offset == lead.state.next_offset


def test_blocks_that_are_done_are_freed_before_their_deadline() -> None:
    lead = Lead(MANY)
    for _ in range(5):
        lead.ack(lead.deliver(4096, at_once=500))
    gc.collect()
    before = sum(isinstance(one, Block) for one in gc.get_objects())
    kept = lead.deliver(20 * 4096, at_once=500)
    for some in pieces(kept):
        lead.ack(some)
    del kept
    gc.collect()
    assert sum(isinstance(one, Block) for one in gc.get_objects()) <= before
    assert lead.consumer.due_ns() is None


def test_acks_cost_little_beside_a_million_pending() -> None:
    consumer = Consumer(with_pending(MAX_PENDING))
    chance = np.random.default_rng(5)
    scattered = iter(pieces(chance.permutation(MAX_PENDING), 500))
    assert is_cheap(lambda: consumer.acknowledge(acks_of(next(scattered)), NOW), 0.1)
    in_order = iter(pieces(np.arange(MAX_PENDING), 500))
    assert is_cheap(lambda: consumer.acknowledge(acks_of(next(in_order)), NOW), 0.01)
    assert is_cheap(lambda: consumer.acknowledge(acks_of(next(in_order)[:1]), NOW), 0.002)


def test_a_storm_of_naks_and_signs_of_progress() -> None:
    """Every ack of a full chunk, also of one message, costs the others little."""
    consumer = Consumer(with_pending(MAX_PENDING))
    chance = np.random.default_rng(5)

    def storm(most: int) -> None:
        offsets = chance.integers(0, most, MAX_ACKS)
        kinds = chance.choice([AckKind.NAK, AckKind.PROGRESS], MAX_ACKS).astype(np.uint8)
        delays = chance.choice([0, SECOND], MAX_ACKS)
        ones = np.ones(MAX_ACKS, np.int64)
        consumer.acknowledge(Acks(offsets, ones, NOW + offsets, kinds, delays), NOW)
        consumer.end_turn()

    for most in (MAX_PENDING, 4096, 50, 1):
        assert is_cheap(lambda most=most: storm(most), 0.25), most
    assert consumer.state.pending.total == MAX_PENDING


def test_the_queue_forgets_entries_that_no_longer_count() -> None:
    """A worker that takes every nak back does not make the queue grow."""
    lead = Lead(MANY)
    offsets = lead.deliver(1000)
    for _ in range(50):
        lead.ack(offsets, kind=AckKind.NAK)
        lead.ack(offsets, kind=AckKind.PROGRESS)
    assert lead.state.queue.size_bytes() == 0
    lead.ack(offsets[:10], kind=AckKind.NAK)
    for _ in range(50):
        lead.ack(offsets[10:], kind=AckKind.NAK)
        lead.ack(offsets[10:], kind=AckKind.PROGRESS)
    assert lead.state.queue.size_bytes() < 8 * 6000
    assert lead.state.queue.all().tolist() == offsets[:10].tolist()


def test_a_tick_looks_into_few_blocks_and_leaves_the_rest_for_the_next() -> None:
    consumer = Consumer(with_pending(MAX_PENDING))
    later = NOW + 31 * SECOND
    assert is_cheap(lambda: consumer.tick(later), 0.05)
    ticks = 0
    while (due := consumer.due_ns()) is not None and due <= later:
        consumer.tick(later)
        ticks += 1
    assert ticks > 1
    assert consumer.state.queue.all().tolist() == list(range(MAX_PENDING))


@pytest.mark.parametrize(
    "what", ["log start", "max_deliver", "new leader", "truncation", "snapshot"]
)
def test_rare_events_with_a_million_pending(what: str) -> None:
    state = with_pending(MAX_PENDING, step=2)
    if what == "max_deliver":
        state.apply(changes.Queued(state.pending.up_to(2**60)))
    data = encode_snapshot(state)

    def seconds() -> float:
        consumer = Consumer(decode_snapshot(data))
        began = time.thread_time()
        {
            "log start": lambda: consumer.log_started(2 * MAX_PENDING),
            "max_deliver": lambda: consumer.update(replace(MANY, max_deliver=1), NOW),
            "new leader": lambda: consumer.take_over(NOW),
            "truncation": lambda: consumer.log_truncated(5),
            "snapshot": lambda: encode_snapshot(consumer.state),
        }[what]()
        return time.thread_time() - began

    assert any(seconds() < 0.25 for _ in range(5))


def test_an_idle_consumer_is_small() -> None:
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        idle = [Consumer(ConsumerState(Settings(), 0)) for _ in range(200)]
        each = (tracemalloc.get_traced_memory()[0] - before) / len(idle)
    finally:
        tracemalloc.stop()
    assert each < 6000
    assert all(consumer.due_ns() is None for consumer in idle)


CROWD = 512
"""As many pulls of one consumer as may wait."""


def crowded(
    batch: int, policy: PriorityPolicy = PriorityPolicy.NONE, **asked: Iterator[Any]
) -> Lead:
    """A consumer that has as many waiting pulls as it may have."""
    groups = () if policy is PriorityPolicy.NONE else ("g",)
    settings = Settings(
        max_ack_pending=-1,
        max_waiting=CROWD,
        priority_policy=policy,
        priority_groups=groups,
        pinned_ttl_ns=60 * SECOND,
    )
    lead = Lead(settings)
    for number in range(CROWD):
        priority = (
            Priority(groups[0], **{key: next(one) for key, one in asked.items()})
            if groups
            else NO_PRIORITY
        )
        lead.consumer.pull(
            PullRequest(
                b"r%d" % number, batch, expires_ns=60 * SECOND, priority=priority, new_pin=b"pin"
            ),
            0,
            lead.now,
        )
    lead.end_turn()
    return lead


def turn(lead: Lead) -> int:
    """Deliver as many messages as the consumer wants in one turn, and return their number."""
    wants = lead.consumer.wants(lead.now, 500)
    before = lead.state.next_offset
    offsets = np.arange(before, before + wants.first, dtype=np.int64)
    scan = Scan(before, before + wants.first, records(offsets), False)
    lead.consumer.deliver(scan, 100_000, lead.now)
    lead.end_turn()
    return lead.state.next_offset - before


@pytest.mark.parametrize("batch", [1, 2, 100])
def test_a_turn_with_many_waiting_pulls(batch: int) -> None:
    leads = iter([crowded(batch) for _ in range(6)])
    assert is_cheap(lambda: turn(next(leads)), 0.02)
    assert turn(next(leads)) == 500


@pytest.mark.parametrize("policy", [*PriorityPolicy][1:])
def test_a_turn_with_many_waiting_pulls_of_a_priority_group(policy: PriorityPolicy) -> None:
    """The pull that gets all messages is in the worst place: last, or before all others."""
    asked: dict[PriorityPolicy, dict[str, Any]] = {
        PriorityPolicy.OVERFLOW: {"min_pending": [*repeat(10**6, CROWD - 1), 0]},
        PriorityPolicy.PINNED_CLIENT: {},
        PriorityPolicy.PRIORITIZED: {"level": [*repeat(9, CROWD - 1), 0]},
    }
    leads = iter(
        [crowded(1000, policy, **{k: iter(v) for k, v in asked[policy].items()}) for _ in range(6)]
    )
    assert is_cheap(lambda: turn(next(leads)), 0.015)
    lead, got = next(leads), 0
    while got < 500:
        got += (now := turn(lead))
        assert now > 0
    served = {one.reply for one in lead.sent if isinstance(one, Deliver)}
    assert len(served) == 1, "the other pulls have no claim"


def test_pulls_beside_many_waiting_ones() -> None:
    lead = crowded(100)
    requests = [PullRequest(b"x%d" % n, 1, no_wait=True, expires_ns=SECOND) for n in range(500)]

    def pull() -> None:
        for one in requests:
            lead.consumer.pull(one, 100_000, lead.now)
        lead.end_turn()

    assert is_cheap(pull, 0.006)


def test_pulls_for_fewer_bytes_than_a_message_has() -> None:
    """Each ends without a message."""
    lead = crowded(10)

    def with_bytes() -> None:
        for number in range(CROWD - len(lead.consumer.waiting)):
            request = PullRequest(b"b%d" % number, 10, max_bytes=1, expires_ns=SECOND)
            lead.consumer.pull(request, 0, lead.now)
        turn(lead)

    lead.consumer.drop_pulls(list(lead.consumer.waiting))
    assert is_cheap(with_bytes, 0.015)
