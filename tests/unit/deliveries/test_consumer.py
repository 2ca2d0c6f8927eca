"""The leader of a consumer: acks and their verdicts, waits, ends, leaders, settings."""

from __future__ import annotations

import numpy as np
import pytest
from support.worlds.deliveries import NOW, SECOND, Ints, Lead, acks_of, records

from liftlog.deliveries.acks import MAX_ACKS, AckKind, Acks, Verdict
from liftlog.deliveries.demand import PullRequest
from liftlog.deliveries.instructions import Advisory, AdvisoryKind, Deliver, Status
from liftlog.deliveries.records import Scan
from liftlog.deliveries.settings import MAX_WAIT_NS, AckPolicy, Settings

COUNTED, AGAIN, OUTDATED, IGNORED = (
    Verdict.COUNTED,
    Verdict.AGAIN,
    Verdict.OUTDATED,
    Verdict.IGNORED,
)
NAK = AckKind.NAK


def some(*offsets: int) -> Ints:
    return np.array(offsets, np.int64)


def due_seconds(lead: Lead) -> float | None:
    """`due_ns`, which may be early, once all deadlines have been computed again."""
    early = lead.consumer.due_ns()
    lead.state.pending.watch_all()
    due = lead.consumer.due_ns()
    if early is None or due is None:
        assert early is due
        return None
    assert early <= due
    return (due - NOW) / SECOND


def advisories(lead: Lead) -> list[tuple[AdvisoryKind, list[int], list[int]]]:
    return [
        (one.kind, one.offsets.tolist(), one.counts.tolist())
        for one in lead.sent
        if isinstance(one, Advisory)
    ]


def test_pull_ack_nak_expiry_redelivery() -> None:
    lead = Lead()
    lead.consumer.pull(PullRequest(b"r", batch=10, expires_ns=60 * SECOND), 4, NOW)
    wants = lead.consumer.wants(NOW, most=500)
    assert (wants.again.tolist(), wants.start, wants.first) == ([], 0, 10)
    found = records(np.arange(4))
    lead.consumer.deliver(Scan(0, 4, found, is_at_end=True), 4, NOW)
    (sent,) = lead.end_turn()
    assert isinstance(sent, Deliver)
    assert (sent.offsets.tolist(), sent.sequences.tolist()) == ([0, 1, 2, 3], [1, 2, 3, 4])
    assert (sent.counts.tolist(), sent.pendings.tolist()) == ([1, 1, 1, 1], [3, 2, 1, 0])

    assert lead.ack(some(0)) == [COUNTED]
    assert lead.ack(some(2), kind=NAK) == [COUNTED]
    lead.advance(5)
    assert lead.consumer.wants(lead.now, 500).again.tolist() == [2]
    lead.consumer.redeliver(some(2), records(some(2)), 0, lead.now)
    (sent,) = lead.end_turn()
    assert isinstance(sent, Deliver)
    assert (sent.sequences.tolist(), sent.counts.tolist()) == ([5], [2])
    assert due_seconds(lead) == 30
    lead.advance(25)
    assert lead.consumer.wants(lead.now, 500).again.tolist() == [1, 3]
    assert due_seconds(lead) == 35
    lead.advance(30)
    status = lead.sent[-1]
    assert isinstance(status, Status)
    assert status.block() == (
        b"NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: 5\r\nNats-Pending-Bytes: 0\r\n\r\n"
    )


# --- acks ------------------------------------------------------------------------


def test_an_ack_counts_for_any_delivery_but_a_nak_for_the_current_one() -> None:
    lead = Lead()
    lead.deliver(4)
    lead.ack(some(0, 1, 2, 3), kind=NAK)
    lead.redeliver()
    assert lead.ack(some(0), 1) == [COUNTED]
    assert lead.ack(some(1), 1, AckKind.TERM) == [COUNTED]
    assert lead.ack(some(2), 1, NAK) == [OUTDATED]
    assert lead.ack(some(2), 3, NAK) == [OUTDATED]
    assert lead.ack(some(3), 1, AckKind.PROGRESS) == [OUTDATED]
    assert lead.ack(some(2, 3), 2, NAK) == [COUNTED, COUNTED]


def test_what_is_done_is_confirmed_again_and_what_was_never_delivered_is_ignored() -> None:
    lead = Lead(step=3)
    offsets = lead.deliver(4)
    lead.ack(offsets[1:3])
    before = lead.deltas[-1]
    assert lead.ack(offsets[1:3]) == [AGAIN, AGAIN]
    assert lead.ack(offsets[1:3], kind=NAK) == [OUTDATED, OUTDATED]
    assert lead.ack(some(10, 11, 2**62, -1)) == [IGNORED] * 4
    assert lead.deltas[-1] is before, "and nothing is written"


def test_acks_of_one_message_in_a_chunk_count_in_their_order() -> None:
    lead = Lead()
    lead.deliver(3)
    kinds = [NAK, AckKind.ACK, AckKind.ACK, NAK, AckKind.PROGRESS, AckKind.TERM]
    offsets = some(0, 0, 1, 0, 2, 2)
    ones = np.ones(6, np.int64)
    acks = Acks(offsets, ones, NOW + offsets, np.array(kinds, np.uint8), 0 * ones, {5: "poison"})
    verdicts = lead.consumer.acknowledge(acks, NOW).tolist()
    assert verdicts == [COUNTED, COUNTED, COUNTED, OUTDATED, COUNTED, COUNTED]
    sent = [one for one in lead.end_turn() if isinstance(one, Advisory)]
    assert [(one.kind, one.offsets.tolist(), one.reasons) for one in sent] == [
        (AdvisoryKind.NAK, [0], ()),
        (AdvisoryKind.TERMINATED, [2], ("poison",)),
    ]
    assert lead.state.pending.total == 0


def test_naks_come_again_in_their_order_and_before_new_messages() -> None:
    lead = Lead(Settings(max_ack_pending=5))
    lead.deliver(5)
    lead.ack(some(3, 1), kind=NAK)
    lead.ack(some(4), kind=NAK)
    lead.advance(30)
    lead.pull(100)
    wants = lead.consumer.wants(lead.now, 100)
    assert wants.again.tolist() == [3, 1, 4, 0, 2]
    assert wants.first == 0, "max_ack_pending holds back first deliveries alone"


def test_a_delay_is_not_shortened_by_time_a_restart_or_a_sign_of_progress() -> None:
    lead = Lead(Settings(ack_wait_ns=2 * SECOND))
    lead.deliver(3)
    lead.consumer.acknowledge(acks_of(some(1), kind=NAK, delay_ns=60 * SECOND), NOW)
    assert lead.ack(some(1), kind=AckKind.PROGRESS) == [OUTDATED]
    lead.advance(2)
    assert lead.state.queue.all().tolist() == [0, 2]
    lead.redeliver()
    lead.advance(1)
    lead.consumer.take_over(lead.now)
    assert due_seconds(lead) == 5, "the whole wait for the others"
    lead.advance(56)
    assert lead.state.queue.all().tolist() == [0, 2]
    lead.advance(1)
    assert lead.state.queue.all().tolist() == [0, 2, 1]


def test_a_nak_with_a_delay_of_what_is_due_takes_it_back() -> None:
    lead = Lead()
    lead.deliver(2)
    lead.advance(30)
    lead.consumer.acknowledge(acks_of(some(0), kind=NAK, delay_ns=9 * SECOND), lead.now)
    assert lead.state.queue.all().tolist() == [1]
    lead.advance(9)
    assert lead.state.queue.all().tolist() == [1, 0]


def test_the_longest_delays() -> None:
    lead = Lead()
    lead.deliver(2)
    for delay in (2**63 - 1, -(2**63)):
        lead.consumer.acknowledge(acks_of(some(delay > 0), kind=NAK, delay_ns=delay), NOW)
    lead.end_turn()
    assert lead.state.queue.all().tolist() == [0]
    assert due_seconds(lead) == MAX_WAIT_NS / SECOND


def test_a_sign_of_progress_begins_the_wait_again() -> None:
    lead = Lead()
    lead.deliver(3)
    lead.advance(20)
    assert lead.ack(some(1), kind=AckKind.PROGRESS) == [COUNTED]
    lead.advance(10)
    assert lead.state.queue.all().tolist() == [0, 2]
    assert lead.ack(some(2), kind=AckKind.PROGRESS) == [COUNTED], "a late one takes it back"
    assert lead.state.queue.all().tolist() == [0]
    assert due_seconds(lead) == 50


def test_backoff_is_for_missing_acks() -> None:
    lead = Lead(Settings(backoff_ns=(SECOND, 5 * SECOND), max_deliver=4))
    lead.deliver(1)
    for wait in (1, 5, 5):
        assert due_seconds(lead) == (lead.now - NOW) / SECOND + wait
        lead.advance(wait)
        assert lead.redeliver().tolist() == [0]
    lead.advance(4)
    assert lead.state.pending.total == 1
    lead.advance(1)
    assert lead.state.pending.total == 0
    assert advisories(lead) == [(AdvisoryKind.MAX_DELIVERIES, [0], [4])]


def test_the_last_delivery_ends_with_one_advisory_also_by_a_nak() -> None:
    lead = Lead(Settings(max_deliver=1))
    lead.deliver(3)
    assert lead.ack(some(1), kind=NAK) == [COUNTED]
    assert list(lead.state.exhausted) == [1]
    lead.advance(30)
    lead.advance(30)
    exhausted = [one for one in advisories(lead) if one[0] == AdvisoryKind.MAX_DELIVERIES]
    assert [one[1:] for one in exhausted] == [([1], [1]), ([0, 2], [1, 1])]
    figures = lead.consumer.figures(lead.now)
    assert (figures.num_ack_pending, figures.num_redelivered) == (0, 0)
    assert (figures.floor_offset, figures.floor_sequence) == (2, 3)
    assert lead.ack(some(0)) == [AGAIN]


def test_policy_all() -> None:
    lead = Lead(Settings(AckPolicy.ALL))
    lead.deliver(10)
    lead.ack(some(2), kind=NAK)
    assert lead.ack(some(4, 3)) == [COUNTED, COUNTED]
    assert lead.state.pending.up_to(100).tolist() == [5, 6, 7, 8, 9]
    assert lead.ack(some(1)) == [AGAIN]
    acks = acks_of(some(5, 7, 6))
    acks.kinds[:] = NAK, AckKind.ACK, AckKind.PROGRESS
    assert lead.consumer.acknowledge(acks, NOW).tolist() == [OUTDATED, COUNTED, OUTDATED]
    lead.end_turn()
    assert advisories(lead) == [(AdvisoryKind.NAK, [2], [1])]
    figures = lead.consumer.figures(NOW)
    assert (figures.floor_offset, figures.floor_sequence, figures.num_ack_pending) == (7, 8, 2)
    assert lead.ack(some(20)) == [IGNORED]


def test_policy_none() -> None:
    lead = Lead(Settings(AckPolicy.NONE, max_ack_pending=2))
    lead.deliver(10)
    assert lead.ack(some(4)) == [IGNORED]
    figures = lead.consumer.figures(NOW)
    assert (figures.floor_offset, figures.floor_sequence, figures.num_ack_pending) == (9, 10, 0)
    assert lead.consumer.due_ns() is None


# --- limits ----------------------------------------------------------------------


def test_room_of_the_consumer_and_of_the_daemon() -> None:
    lead = Lead(Settings(max_ack_pending=10))
    lead.deliver(4)
    lead.pull(100)
    assert lead.consumer.wants(NOW, 500).first == 6
    assert lead.consumer.wants(NOW, 500, room=2).first == 2
    assert lead.consumer.wants(NOW, 500, room=-5).first == 0
    found = records(np.arange(4, 9))
    lead.consumer.deliver(Scan(4, 9, found, is_at_end=False), 5, NOW, room=2)
    lead.end_turn()
    assert (lead.state.pending.total, lead.state.next_offset) == (6, 6)
    lead.consumer.deliver(Scan(4, 20, records(np.arange(4, 20)), is_at_end=False), 16, NOW)
    assert (lead.state.pending.total, lead.state.next_offset) == (10, 10)


def test_a_chunk_of_the_largest_size() -> None:
    lead = Lead(Settings(max_ack_pending=-1))
    offsets = lead.deliver(MAX_ACKS)
    assert set(lead.ack(offsets[::-1])) == {COUNTED}
    assert lead.state.floor_offset == lead.state.next_offset == MAX_ACKS


# --- leaders, log, settings ------------------------------------------------------


def test_a_new_leader_gives_the_whole_wait_but_what_is_due_stays_due() -> None:
    lead = Lead()
    lead.deliver(3)
    lead.ack(some(1), kind=NAK)
    lead.advance(29)
    lead.consumer.take_over(lead.now)
    assert due_seconds(lead) == 59
    lead.pull(9)
    assert lead.consumer.wants(lead.now, 9).again.tolist() == [1]


def test_lazy_turns_only_say_which_pulls_wait_and_what_was_skipped() -> None:
    lead = Lead()
    lead.pull(5)
    turn = lead.consumer.end_turn()
    assert turn.is_lazy
    assert turn.delta
    lead.consumer.deliver(Scan(0, 50, records(some()), is_at_end=True), 0, NOW)
    assert lead.consumer.end_turn().is_lazy
    lead.consumer.deliver(Scan(50, 51, records(some(50)), is_at_end=True), 1, NOW)
    assert not lead.consumer.end_turn().is_lazy
    assert lead.consumer.end_turn().delta == b""


def test_a_shorter_ack_wait_counts_for_what_is_pending() -> None:
    lead = Lead()
    lead.deliver(2)
    lead.advance(10)
    lead.consumer.update(Settings(ack_wait_ns=5 * SECOND), lead.now)
    assert lead.state.queue.all().tolist() == [0, 1]


def test_records_that_cannot_be_read_now_stay_in_the_queue() -> None:
    lead = Lead()
    lead.deliver(4)
    lead.ack(some(0, 1, 2, 3), kind=NAK)
    lead.pull(9)
    asked = lead.consumer.wants(NOW, 9).again
    assert asked.tolist() == [0, 1, 2, 3]
    lead.consumer.redeliver(some(0, 3), records(some(3)), 0, NOW)
    lead.end_turn()
    assert lead.state.queue.all().tolist() == [1, 2]
    assert lead.state.pending.up_to(9).tolist() == [1, 2, 3], "the record 0 is gone"


def test_messages_that_were_acked_while_they_were_read_are_not_delivered() -> None:
    lead = Lead()
    lead.deliver(3)
    lead.ack(some(0, 1, 2), kind=NAK)
    lead.pull(9)
    asked = lead.consumer.wants(NOW, 9).again
    lead.ack(some(1))
    lead.sent.clear()
    lead.consumer.redeliver(asked, records(asked), 0, NOW)
    lead.end_turn()
    assert lead.deliveries() == [(0, 2), (2, 2)]


def test_the_log_start_passes_exhausted_messages() -> None:
    lead = Lead(Settings(max_deliver=1))
    lead.deliver(4)
    lead.advance(30)
    lead.consumer.log_started(2)
    assert list(lead.state.exhausted) == [2, 3]
    lead.consumer.log_started(10)
    figures = lead.consumer.figures(lead.now)
    assert (figures.delivered_offset, figures.floor_offset, lead.state.next_offset) == (9, 9, 10)
    assert list(lead.state.exhausted) == []


# --- push ------------------------------------------------------------------------


def test_a_push_consumer_delivers_within_its_window() -> None:
    lead = Lead(Settings(is_push=True))
    assert lead.consumer.wants(NOW, 500).first == 0
    lead.consumer.open_push(b"deliver.here", 5, 250)
    assert lead.consumer.wants(NOW, 500).first == 5
    found = records(np.arange(10))
    lead.consumer.deliver(Scan(0, 10, found, is_at_end=True), 10, NOW)
    (sent,) = lead.end_turn()
    assert isinstance(sent, Deliver)
    assert (sent.reply, sent.offsets.tolist()) == (b"deliver.here", [0, 1, 2])
    assert lead.consumer.wants(NOW, 500).first == 0
    lead.consumer.open_push(b"deliver.here", 2, 1000)
    lead.consumer.deliver(Scan(3, 10, records(np.arange(3, 10)), is_at_end=True), 7, NOW)
    assert lead.state.next_offset == 5
    lead.consumer.open_push(b"deliver.here", 9, 0)
    assert lead.consumer.wants(NOW, 500).first == 0


@pytest.mark.parametrize("seed", range(3))
def test_many_blocks_in_any_order_of_acks(seed: int) -> None:
    chance = np.random.default_rng(seed)
    lead = Lead(Settings(max_ack_pending=-1), step=seed + 1)
    offsets = lead.deliver(20_000, at_once=3000)
    acked = chance.permutation(offsets)[: 20_000 * (seed + 1) // 4]
    for at in range(0, len(acked), 900):
        assert set(lead.ack(acked[at : at + 900])) == {COUNTED}
    left = np.setdiff1d(offsets, acked)
    assert lead.state.pending.up_to(10**9).tolist() == left.tolist()
    lead.advance(30)
    assert lead.redeliver(700).tolist() == left.tolist()
    assert set(lead.ack(left, 2)) == {COUNTED}
    assert lead.state.pending.blocks == []
    assert lead.state.queue.size_bytes() == 0


def test_more_acks_of_one_message_than_are_judged_one_by_one() -> None:
    """An ACK among them counts; nothing is confirmed that did not count."""
    lead = Lead()
    lead.deliver(3)
    offsets = some(*[0] * 40, *[1] * 40, *[2] * 40, *[9] * 40)
    kinds = np.full(160, AckKind.PROGRESS, np.uint8)
    kinds[[30, 35, 75]] = AckKind.ACK
    ones = np.ones(160, np.int64)
    stamps = NOW + offsets
    stamps[75] -= SECOND
    kinds[77] = AckKind.ACK
    verdicts = lead.consumer.acknowledge(Acks(offsets, ones, stamps, kinds, 0 * ones), NOW)
    assert verdicts[:8].tolist() == [COUNTED] * 8
    assert (verdicts[30], verdicts[35]) == (COUNTED, AGAIN)
    assert (verdicts[75], verdicts[77]) == (IGNORED, IGNORED)
    assert set(verdicts[np.r_[8:30, 31:35, 36:40]].tolist()) == {OUTDATED}
    assert set(verdicts[120:].tolist()) == {IGNORED}
    assert lead.state.pending.up_to(9).tolist() == [1, 2]
    assert lead.consumer.acknowledge(acks_of(some()), NOW).tolist() == []
