"""Defects of other systems that the state machine alone can show, each named by what it did.

The numbers are those of the public trackers. Wherever a `DeliveryWorld` is used, the model checks
every step, too.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.timing import is_cheap
from support.worlds.deliveries import SECOND, Lead, acks_of, records
from support.worlds.delivery_world import DeliveryWorld

from liftlog.deliveries.acks import AckKind, Verdict
from liftlog.deliveries.codec import apply_delta
from liftlog.deliveries.consumer import Consumer
from liftlog.deliveries.demand import PullRequest
from liftlog.deliveries.instructions import Advisory, AdvisoryKind, Deliver, Ending, Status
from liftlog.deliveries.records import Scan
from liftlog.deliveries.settings import AckPolicy, Settings
from liftlog.deliveries.snapshot import decode_snapshot, encode_snapshot
from liftlog.deliveries.state import ConsumerState


def world_with(count: int, settings: Settings | None = None) -> DeliveryWorld:
    """A world whose first messages are delivered."""
    world = DeliveryWorld(settings or Settings())
    world.publish([True] * count, 10)
    world.pull(1000, 0, False, 0, False)
    world.serve(count)
    world.end_turn()
    return world


def ack(
    world: DeliveryWorld, *offsets: int, kind: AckKind = AckKind.ACK, delay: int = 0, count: int = 0
) -> None:
    """Ack the newest delivery of each, and end the turn. `count` 0: the newest one's."""
    world.acknowledge(
        [
            (one, count or world.deliveries[one][0], world.stamps[one], kind, delay)
            for one in offsets
        ]
    )
    world.end_turn()


def serve(world: DeliveryWorld) -> list[int]:
    """Deliver what there is; return the offsets."""
    before = len(world.known)
    while world.serve(100):
        pass
    world.end_turn()
    return [one[0] for one in world.known[before:]]


def scan(start: int, end: int) -> Scan:
    return Scan(start, end, records(np.arange(start, end)), is_at_end=True)


def restarted(lead: Lead, settings: Settings | None = None) -> Lead:
    """Another leader that has read the deltas."""
    state = ConsumerState(settings or Settings(), 0)
    for delta in lead.deltas:
        apply_delta(state, delta)
    assert encode_snapshot(state) == encode_snapshot(lead.state)
    other = Lead()
    other.consumer = Consumer(state)
    other.now, other.deltas = lead.now, lead.deltas
    other.consumer.take_over(other.now)
    other.end_turn()
    return other


def test_records_that_max_age_removed_fill_max_ack_pending_for_ever() -> None:
    """nats-server#2083."""
    world = world_with(5, Settings(max_ack_pending=5))
    world.publish([True] * 3, 10)
    assert serve(world) == []
    world.move_start(5)
    assert serve(world) == [5, 6, 7]
    assert world.model.floor == 5


def test_deleted_records_stay_pending_or_in_the_queue_also_on_followers() -> None:
    """nats-server#7984, #8102, #2611, #7005."""
    world = world_with(6)
    world.remove([0, 2], noticed=True)
    assert world.consumer.figures(world.now).num_ack_pending == 4
    world.remove([3, 5], noticed=False)
    world.advance(31)
    assert serve(world) == [1, 4]
    assert world.follower.pending.total == 2
    ack(world, 1, 4)
    assert world.consumer.figures(world.now).floor_offset == 5


def test_the_purge_of_one_subject_clears_consumers_of_others() -> None:
    """nats-server#2607, #3838. The purge is noticed at a read of records that do not match."""
    world = DeliveryWorld(Settings())
    world.publish([True, False] * 5, 10)
    world.pull(3, 0, False, 0, False)
    assert serve(world) == [0, 2, 4]
    world.remove([1, 3, 5, 7, 9], noticed=True)
    assert world.consumer.figures(world.now).num_ack_pending == 3
    world.pull(9, 0, False, 0, False)
    assert serve(world) == [6, 8]


def test_the_ack_floor_passes_a_nak_or_stops_after_the_ack_of_a_redelivery() -> None:
    """nats-server#5727, #5008."""
    world = world_with(4)
    ack(world, 0, 2, 3)
    ack(world, 1, kind=AckKind.NAK)
    assert world.consumer.state.floor_offset == 1
    assert serve(world) == [1]
    assert world.consumer.state.floor_offset == 1
    ack(world, 1)
    figures = world.consumer.figures(world.now)
    assert (figures.floor_offset, figures.floor_sequence) == (3, 5)


def test_acked_messages_come_again_after_restarts() -> None:
    """nats-server#5419, #5482: also those that were acked twice."""
    world = world_with(6)
    ack(world, 1, 3, 3)
    ack(world, 3, 4)
    for _ in range(3):
        world.crash(written=True, new_snapshot=False)
        ack(world, 4)
        world.pull(100, 0, False, 0, False)
    world.advance(31)
    assert serve(world) == [0, 2, 5]


def test_a_new_leader_skips_redeliveries_after_an_ack_moved_the_floor() -> None:
    """nats-server#6566."""
    world = world_with(5)
    ack(world, 1, 2, kind=AckKind.NAK)
    world.serve(2)  # delivered again, but this turn is never written
    world.crash(written=False, new_snapshot=False)
    ack(world, 3, 4)
    world.pull(100, 0, False, 0, False)
    assert serve(world) == [1, 2]
    assert [world.deliveries[one][0] for one in (1, 2)] == [2, 2]


def test_exhausted_messages_come_back_after_a_restart() -> None:
    """nats-server#3361."""
    world = world_with(3, Settings(max_deliver=1))
    world.advance(31)
    assert list(world.consumer.state.exhausted) == [0, 1, 2]
    world.crash(written=True, new_snapshot=True)
    world.pull(9, 0, False, 0, False)
    world.advance(60)
    assert serve(world) == []
    assert list(world.consumer.state.exhausted) == [0, 1, 2]


def test_pending_above_max_ack_pending_after_a_leader_change_blocks() -> None:
    """nats-server#4427: redeliveries go on, and first deliveries when there is room."""
    world = world_with(6)
    world.update(replace(world.model.settings, max_ack_pending=3))
    world.crash(written=True, new_snapshot=True)
    world.publish([True], 10)
    world.pull(100, 0, False, 0, False)
    world.advance(31)
    assert serve(world) == [0, 1, 2, 3, 4, 5]
    ack(world, 0, 1, 2, 3)
    assert serve(world) == [6]


def test_a_lowered_max_deliver_loses_messages_without_an_advisory() -> None:
    """nats-server#7148, #8605: those in the queue, and those that fall due later."""
    lead = Lead()
    lead.deliver(4)
    lead.ack(np.array([0, 1]), kind=AckKind.NAK)
    lead.redeliver()
    lead.ack(np.array([0]), 2, AckKind.NAK)
    lead.sent.clear()
    lead.consumer.update(Settings(max_deliver=2), lead.now)
    lead.end_turn()
    lead.advance(31)
    told = [one for one in lead.sent if isinstance(one, Advisory)]
    assert [(one.kind, one.offsets.tolist(), one.counts.tolist()) for one in told] == [
        (AdvisoryKind.MAX_DELIVERIES, [0], [2]),
        (AdvisoryKind.MAX_DELIVERIES, [1], [2]),
    ]
    assert list(lead.state.exhausted) == [0, 1]
    assert lead.state.queue.all().tolist() == [2, 3]


def test_after_a_loss_of_the_logs_end_the_consumer_is_ahead_and_silent() -> None:
    """nats-server#5412, #7693, #8036: nor does its floor begin again."""
    world = world_with(8)
    ack(world, 0, 1, 2, 5, 6, 7)
    world.truncate(5)
    figures = world.consumer.figures(world.now)
    assert (figures.delivered_offset, figures.floor_offset, figures.num_ack_pending) == (4, 2, 2)
    world.publish([True] * 3, 10)
    world.pull(9, 0, False, 0, False)
    assert serve(world) == [5, 6, 7]
    ack(world, 3, 4, 5, 6, 7)
    assert world.consumer.figures(world.now).floor_offset == 7


def test_deliver_new_misses_messages_after_a_restart_before_the_first_delivery() -> None:
    """nats-server#3143: the policy is resolved at creation."""
    state = ConsumerState(Settings(), 1000)
    again = decode_snapshot(encode_snapshot(state))
    assert (again.next_offset, again.floor_offset, again.delivered_end) == (1000, 1000, 1000)


def test_naks_with_a_delay_fill_max_ack_pending() -> None:
    """nats-server#6093: by design; a delayed message is pending."""
    world = world_with(3, Settings(max_ack_pending=3))
    ack(world, 0, 1, 2, kind=AckKind.NAK, delay=40)
    world.publish([True], 10)
    assert serve(world) == []
    world.advance(39)
    assert serve(world) == []
    world.advance(1)
    assert serve(world) == [0, 1, 2]


def test_acks_wait_while_many_pending_messages_are_checked() -> None:
    """nats-server#2898: a call looks into few blocks."""
    lead = Lead(Settings(max_ack_pending=-1))
    lead.deliver(200_000, at_once=4096)
    lead.now += 31 * SECOND
    assert is_cheap(lambda: lead.consumer.tick(lead.now), 0.05)
    assert lead.ack(np.array([5, 150_000])) == [Verdict.COUNTED] * 2


def test_a_new_deliver_subject_gets_the_first_message_twice_or_out_of_order() -> None:
    """nats-server#1619, #1694."""
    lead = Lead(Settings(is_push=True, max_ack_pending=4))
    for subject, count in ((b"one", 3), (b"two", 5)):
        lead.consumer.open_push(subject, 100, 10**6)
        room = lead.consumer.wants(lead.now, 100).first
        lead.deliver(min(count, room))
    lead.advance(31)
    lead.redeliver()
    assert lead.deliveries() == [(0, 1), (1, 1), (2, 1), (3, 1), (0, 2), (1, 2), (2, 2), (3, 2)]
    replies = [one.reply for one in lead.sent if isinstance(one, Deliver)]
    assert replies == [b"one", b"two", b"two"]


def test_an_update_with_the_same_settings_deletes_what_naks_delay() -> None:
    """nats-server#5526: it changes nothing at all."""
    world = world_with(2)
    ack(world, 0, kind=AckKind.NAK, delay=5)
    before = encode_snapshot(world.consumer.state)
    world.consumer.update(Settings(), world.now)
    assert world.consumer.end_turn().delta == b""
    assert encode_snapshot(world.consumer.state) == before


def test_a_refused_update_destroys_the_consumer() -> None:
    """nats-server#8491, #8123."""
    world = world_with(2)
    before = encode_snapshot(world.consumer.state)
    for wrong in (Settings(AckPolicy.NONE), Settings(is_push=True)):
        with pytest.raises(ValueError, match="cannot change"):
            world.consumer.update(wrong, world.now)
    assert encode_snapshot(world.consumer.state) == before


def test_clients_stay_silent_after_a_leader_change() -> None:
    """nats.go#2063, nats.java#1272, nats-server#4736, #5679: each waiting pull ends with 408 and
    what is left of it, on which every client pulls again."""
    lead = Lead()
    lead.pull(10, b"a")
    lead.consumer.pull(PullRequest(b"b", 5, max_bytes=9000, expires_ns=SECOND), 0, lead.now)
    lead.end_turn()
    state = ConsumerState(Settings(), 0)
    for delta in lead.deltas:
        apply_delta(state, delta)
    consumer = Consumer(state)
    consumer.take_over(lead.now)
    statuses = consumer.end_turn().instructions
    assert [(one.reply, one.words, [n for _, n in one.headers]) for one in statuses] == [
        (b"a", b"408 Request Timeout", [10, 0]),
        (b"b", b"408 Request Timeout", [5, 9000]),
    ]
    consumer.take_over(lead.now)
    assert consumer.end_turn().instructions == (), "and each of them once"


def test_statuses_of_older_pulls_reach_a_later_fetch() -> None:
    """nats.py#241: a pull gets one status at most, and none after it has ended."""
    lead = Lead()
    for reply in (b"a", b"b"):
        request = PullRequest(reply, 1, expires_ns=5 * SECOND)
        lead.consumer.pull(request, 9, lead.now)
    lead.pull(1, b"c")
    lead.consumer.deliver(scan(0, 1), 1, lead.now)
    lead.advance(10)
    lead.consumer.end_pulls(Ending.CONSUMER_DELETED)
    lead.end_turn()
    got = [one.reply for one in lead.sent if isinstance(one, Status)]
    assert sorted(got) == [b"b", b"c"]


def test_a_failed_write_of_the_state_counts_a_delivery() -> None:
    """KAFKA-19476."""
    world = world_with(2, Settings(max_deliver=2))
    world.advance(31)
    world.end_turn()
    for _ in range(3):
        world.serve(2)
        world.crash(written=False, new_snapshot=False)
        world.pull(9, 0, False, 0, False)
    assert serve(world) == [0, 1]
    assert [world.deliveries[one][0] for one in (0, 1)] == [2, 2]


def test_one_answer_has_an_offset_twice() -> None:
    """KAFKA-19789."""
    world = world_with(3)
    ack(world, 1, 1, 0, 1, kind=AckKind.NAK)
    world.advance(31)
    assert serve(world) == [1, 0, 2]


def test_the_log_start_moves_under_delivered_messages() -> None:
    """KAFKA-20034, AKCORE-149."""
    world = world_with(6)
    ack(world, 2, kind=AckKind.NAK)
    world.move_start(4)
    ack(world, 1, 2, 4)
    world.advance(31)
    assert serve(world) == [5]
    assert world.consumer.figures(world.now).floor_offset == 4


@pytest.mark.parametrize("new_snapshot", [False, True])
def test_more_than_10000_ranges_of_acks_are_forgotten_by_a_crash(new_snapshot: bool) -> None:
    """pulsar#25540, #150, #4849."""
    settings = Settings(max_ack_pending=-1)
    lead = Lead(settings)
    offsets = lead.deliver(30_000, at_once=4096)
    for at in range(0, len(offsets), 4096):
        lead.ack(offsets[at : at + 4096 : 2])
    if new_snapshot:
        other = Lead()
        other.consumer = Consumer(decode_snapshot(encode_snapshot(lead.state)))
        other.consumer.take_over(other.now)
    else:
        other = restarted(lead, settings)
    other.advance(31)
    assert other.redeliver(4096).tolist() == offsets[1::2].tolist()


def test_a_nak_after_the_timeout_makes_counts_jump() -> None:
    """pulsar#6451: the consumer does not stop either."""
    world = world_with(2)
    world.advance(31)
    ack(world, 0, kind=AckKind.NAK)
    assert serve(world) == [0, 1]
    ack(world, 0, count=1, kind=AckKind.NAK)
    assert serve(world) == []
    ack(world, 0, kind=AckKind.NAK)
    assert serve(world) == [0]
    assert world.deliveries[0][0] == 3


def test_a_cleared_backlog_comes_again_and_the_number_of_pending_is_negative() -> None:
    """pulsar#5377, #759, #23805."""
    world = world_with(6)
    ack(world, 0, 3, kind=AckKind.NAK)
    world.move_start(6)
    ack(world, 0, 1, 2, 3, 4, 5)
    world.advance(31)
    assert serve(world) == []
    state = world.consumer.state
    assert (state.pending.total, state.pending.queued, state.num_redelivered) == (0, 0, 0)


def test_a_filtered_consumer_skips_matching_messages() -> None:
    """nats-server#6076, #6932: scans overlap, begin too late, or end within a batch."""
    world = DeliveryWorld(Settings(max_ack_pending=4))
    world.publish([False, True, True, False, False, True] * 5, 10)
    world.pull(1000, 0, False, 0, False)
    stale = world.consumer.wants(world.now, 100)
    assert serve(world) == [1, 2, 5, 7]
    lead = Lead()
    lead.deliver(5)
    lead.consumer.deliver(scan(stale.start, 12), 12, lead.now)  # read before those left
    lead.consumer.deliver(scan(9, 12), 3, lead.now)  # begins too late
    lead.pull(100)
    lead.consumer.deliver(scan(0, 12), 12, lead.now)
    lead.consumer.deliver(scan(0, 12), 12, lead.now)
    lead.end_turn()
    assert [offset for offset, _ in lead.deliveries()] == list(range(12))
    world.drain()


def test_pending_counts_are_never_negative_or_above_the_number_of_records() -> None:
    """nats-server#5608, #5655: a count that is too low for a moment."""
    lead = Lead()
    lead.pull(5)
    lead.consumer.deliver(scan(0, 5), 3, lead.now)
    (sent,) = lead.end_turn()
    assert isinstance(sent, Deliver)
    assert sent.pendings.tolist() == [2, 1, 0, 0, 0]


def test_an_ack_of_a_deleted_stream_acks_the_message_of_a_new_one() -> None:
    """JetStream compares the sequence alone."""
    lead = Lead()
    offsets = lead.deliver(3)
    acks = acks_of(offsets)
    acks.stamps_ns[:] -= 86_400 * SECOND
    verdicts = lead.consumer.acknowledge(acks, lead.now)
    assert verdicts.tolist() == [Verdict.IGNORED] * 3
    assert lead.state.pending.total == 3
