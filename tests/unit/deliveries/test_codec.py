"""Deltas and snapshots as bytes: small, exact, and harmless if they are wrong."""

from __future__ import annotations

import tracemalloc
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.worlds.deliveries import NOW, SECOND, Ints, Lead, records

from liftlog.deliveries import changes
from liftlog.deliveries.acks import AckKind
from liftlog.deliveries.codec import apply_delta, decode_delta, encode_delta
from liftlog.deliveries.columns import Rising
from liftlog.deliveries.demand import PullRequest
from liftlog.deliveries.records import Scan
from liftlog.deliveries.settings import (
    MAX_PENDING,
    MAX_WAIT_NS,
    AckPolicy,
    PriorityPolicy,
    Settings,
)
from liftlog.deliveries.snapshot import decode_snapshot, encode_snapshot
from liftlog.deliveries.state import MAX_EXHAUSTED, ConsumerState
from liftlog.deliveries.wire import Reader, Writer
from liftlog.errors import CorruptState, NewerFormat

INT64 = st.one_of(
    st.integers(-(2**63), 2**63 - 1), st.integers(-300, 300), st.integers(2**61 - 2, 2**61 + 2)
)


def column(*numbers: int) -> Ints:
    return np.array(numbers, np.int64)


EVERY_CHANGE = [
    changes.Delivered(column(3, 4, 9), NOW, NOW - 5, NOW + 7),
    changes.Redelivered(column(9, 3), NOW),
    changes.Advanced(77, 3),
    changes.Done(column(3)),
    changes.DoneBelow(9),
    changes.Exhausted(column(5)),
    changes.Queued(column(9, 3, 4)),
    changes.Delayed(column(9, 3), column(NOW + 5, NOW)),
    changes.Progressed(column(3), NOW),
    changes.LogStarted(3),
    changes.LogTruncated(3),
    changes.Updated(
        Settings(
            *(AckPolicy.ALL, SECOND, (1, MAX_WAIT_NS), 3, -1, 5, 6, 7, 8, NOW, True, 9),
            *(PriorityPolicy.OVERFLOW, ("one", "\N{GREEK SMALL LETTER MU}"), 10),
        )
    ),
    changes.TakenOver(NOW),
    changes.PullsChanged((changes.StoredPull(5, b"_INBOX.a", 3, 0, NOW),), (1, 4)),
    changes.InboxUsed(b"_INBOX.a", 500, 7, 251, NOW, SECOND),
]


def busy_state() -> Lead:
    """Messages in every phase, several blocks, exhausted ones, and waiting pulls."""
    lead = Lead(Settings(max_ack_pending=-1, max_deliver=2, backoff_ns=(5 * SECOND, 9 * SECOND)))
    lead.deliver(6000, at_once=1000)
    lead.ack(np.arange(0, 5000, 2))
    lead.ack(np.arange(5001, 5900, 3), kind=AckKind.NAK)
    lead.redeliver()
    lead.ack(np.arange(5001, 5100, 3), 2, AckKind.NAK)
    lead.step = 3
    lead.deliver(100)
    lead.advance(4)
    lead.ack(np.arange(1, 99, 2), kind=AckKind.PROGRESS)
    lead.advance(1)
    lead.pull(5, b"_INBOX.x")
    lead.consumer.pull(PullRequest(b"_INBOX.y", 5, heartbeat_ns=SECOND), 0, lead.now)
    lead.end_turn()
    return lead


def equal(one: object, other: object) -> bool:
    return repr(one) == repr(other)


@pytest.mark.parametrize("change", EVERY_CHANGE, ids=lambda one: type(one).__name__)
def test_every_change_comes_back(change: changes.Change) -> None:
    assert equal(decode_delta(encode_delta([change])), [change])


def test_no_change_is_forgotten_above() -> None:
    assert {type(one) for one in EVERY_CHANGE} == set(changes.Change.__args__)


def test_a_delta_of_a_turn_is_small() -> None:
    """500 deliveries and 500 acks, with a waiting pull."""
    lead = Lead()
    lead.deliver(500)
    lead.pull(10_000, b"_INBOX.abcdefghijklmnopqrstuv.1234")
    lead.end_turn()
    lead.consumer.deliver(Scan(500, 1000, records(np.arange(500, 1000)), False), 500, lead.now)
    lead.ack(np.arange(500))
    assert len(lead.deltas[-1]) < 60
    lead.ack(np.arange(500, 1000, 2))
    assert len(lead.deltas[-1]) < 15


@given(st.lists(INT64, max_size=30))
def test_any_column_comes_back(numbers: list[int]) -> None:
    writer = Writer(1)
    writer.column(column(*numbers))
    reader = Reader(writer.done(), 100)
    assert reader.byte() == 1
    assert reader.column().tolist() == numbers
    assert reader.is_at_end


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=9))
def test_any_number_comes_back(numbers: list[int]) -> None:
    writer = Writer(1)
    for number in numbers:
        writer.signed(number)
        writer.number(abs(number))
    reader = Reader(writer.done(), 0)
    reader.byte()
    assert [(reader.signed(), reader.number(2**63)) for _ in numbers] == [
        (number, abs(number)) for number in numbers
    ]


@pytest.mark.parametrize("step", [1, 2, 200, 60_000, 2**31])
def test_a_column_takes_the_least_width(step: int) -> None:
    numbers = np.cumsum(np.array([5, step, step, 1, step], np.int64))
    writer = Writer(1)
    writer.column(numbers)
    widths = {1: 1, 2: 1, 200: 1, 60_000: 2, 2**31: 4}
    assert len(writer.done()) <= 1 + 1 + 1 + 1 + 4 * widths[step]


def test_the_snapshot_of_a_busy_state_comes_back() -> None:
    lead = busy_state()
    data = encode_snapshot(lead.state)
    state = decode_snapshot(data)
    assert encode_snapshot(state) == data
    assert state.pulls.keys() == lead.state.pulls.keys()
    assert state.inboxes == lead.state.inboxes != {}
    for name in ("total", "queued", "redelivered"):
        assert getattr(state.pending, name) == getattr(lead.state.pending, name) > 0, name
    assert list(state.exhausted) == list(lead.state.exhausted) != []
    assert state.queue.all().tolist() == lead.state.queue.all().tolist() != []
    assert state.pending.due_ns() == lead.state.pending.due_ns()


def test_a_snapshot_without_inboxes_is_read() -> None:
    """As versions before the inboxes wrote it."""
    lead = Lead()
    lead.deliver(3)
    data = encode_snapshot(lead.state)
    assert data.endswith(b"\0"), "no inboxes"
    state = decode_snapshot(b"\1" + data[1:-1])
    assert state.inboxes == {}
    assert encode_snapshot(state) == data


@pytest.mark.parametrize(
    "inbox",
    [
        changes.InboxUsed(b"", 1, 0, 1, NOW, 0),
        changes.InboxUsed(b"_INBOX.a", 1, 0, 0, NOW, 0),
        changes.InboxUsed(b"x" * 4097, 1, 0, 1, NOW, 0),
    ],
    ids=["no reply", "no pull", "long"],
)
def test_an_impossible_inbox_is_refused(inbox: changes.InboxUsed) -> None:
    with pytest.raises(CorruptState):
        decode_delta(encode_delta([inbox]))


def test_the_deltas_alone_make_the_same_state() -> None:
    lead = busy_state()
    first = Settings(max_ack_pending=-1, max_deliver=2, backoff_ns=(5 * SECOND, 9 * SECOND))
    state = ConsumerState(first, 0)
    for delta in lead.deltas:
        apply_delta(state, delta)
    assert encode_snapshot(state) == encode_snapshot(lead.state)


def test_unknown_versions_and_changes_are_refused() -> None:
    snapshot, delta = encode_snapshot(busy_state().state), encode_delta(EVERY_CHANGE[:1])
    for version in (3, 200):
        with pytest.raises(NewerFormat):
            decode_snapshot(bytes((version,)) + snapshot[1:])
    for version in (2, 200):
        with pytest.raises(NewerFormat):
            decode_delta(bytes((version,)) + delta[1:])
    with pytest.raises(NewerFormat):
        decode_delta(bytes((1, len(EVERY_CHANGE))))
    for data in (b"\0" + snapshot[1:], b""):
        with pytest.raises(CorruptState):
            decode_snapshot(data)
    with pytest.raises(CorruptState):
        decode_delta(b"\0" + delta[1:])


def test_bytes_cut_anywhere_are_refused() -> None:
    lead = Lead(Settings(max_deliver=1))
    lead.deliver(20)
    lead.ack(column(3, 4), kind=AckKind.NAK)
    snapshot = encode_snapshot(lead.state)
    for end in range(len(snapshot)):
        with pytest.raises(CorruptState):
            decode_snapshot(snapshot[:end])
    with pytest.raises(CorruptState):
        decode_snapshot(snapshot + b"\0")


@given(st.integers(0, 2**32))
def test_wrong_bytes_raise_typed_errors_and_nothing_else(seed: int) -> None:
    """Bytes that happen to be valid make a state that can be used, and encoded again."""
    chance = Random(seed)
    data = bytearray(chance.choice(HOSTILE))
    for _ in range(chance.randint(1, 4)):
        data[chance.randrange(len(data))] = chance.choice([0, 1, 0x7F, 0xFF, chance.randrange(256)])
    is_snapshot = chance.random() < 0.5
    try:
        if is_snapshot:
            state = decode_snapshot(bytes(data))
        else:
            state = decode_snapshot(SNAPSHOT)
            apply_delta(state, bytes(data))
    except (CorruptState, NewerFormat):
        return
    use(state)


def use(state: ConsumerState) -> None:
    again = decode_snapshot(encode_snapshot(state))
    assert encode_snapshot(again) == encode_snapshot(state)
    lead = Lead()
    lead.consumer.state = state
    lead.consumer.take_over(lead.now)
    lead.advance(10)
    lead.ack(state.pending.up_to(2**62)[:50])
    assert state.pending.total >= 0


SNAPSHOT = encode_snapshot(busy_state().state)
HOSTILE = [SNAPSHOT, *busy_state().deltas, *[encode_delta([one]) for one in EVERY_CHANGE]]


def even(first: int, step: int, count: int) -> bytes:
    writer = Writer(1)
    writer.number(count)
    writer.number(0)
    writer.signed(first)
    writer.signed(step)
    return writer.done()[1:]


def test_few_bytes_do_not_take_much_memory() -> None:
    """Columns of equal distances are short however many numbers they have."""
    now = bytes(9 * [0xFF])[:8] + b"\x3f"
    many = b"\1" + b"".join(
        b"\0" + even(at * 2 * 10**6, 2, 10**6) + now + b"\0\0" for at in range(50)
    )
    state = ConsumerState(Settings(max_ack_pending=-1), 0)
    tracemalloc.start()
    try:
        for data in (many, b"\1\3" + even(0, 1, 2**40), b"\1\x0d\0" + even(0, 1, 10**6)):
            with pytest.raises(CorruptState):
                apply_delta(state, data)
        assert tracemalloc.get_traced_memory()[1] < 120_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "change",
    [
        changes.Delivered(column(4), NOW, NOW, NOW),
        changes.Done(column(4)),
        changes.Done(column(10, 11)),
        changes.Redelivered(column(10), NOW),
        changes.Queued(column(99)),
        changes.Advanced(9, 0),
    ],
    ids=lambda one: type(one).__name__,
)
def test_a_change_that_does_not_fit_is_refused(change: changes.Change) -> None:
    lead = Lead()
    lead.deliver(10)
    lead.ack(column(4))
    with pytest.raises(CorruptState):
        apply_delta(lead.state, encode_delta([change]))


def test_a_delta_that_names_a_message_twice_is_refused() -> None:
    lead = Lead()
    lead.deliver(10)
    with pytest.raises(CorruptState):
        apply_delta(lead.state, encode_delta([changes.Done(column(3, 3))]))
    with pytest.raises(CorruptState):
        apply_delta(lead.state, encode_delta([changes.Queued(column(5, 1, 5))]))


def test_only_the_newest_exhausted_offsets_are_kept() -> None:
    lead = Lead(Settings(max_deliver=1, max_ack_pending=-1))
    offsets = lead.deliver(MAX_EXHAUSTED + 50)
    lead.advance(31)
    assert list(lead.state.exhausted) == offsets[50:].tolist()
    assert list(decode_snapshot(encode_snapshot(lead.state)).exhausted) == offsets[50:].tolist()


def test_offsets_that_are_far_apart_are_stored() -> None:
    lead = Lead(step=2**31 + 1)
    offsets = lead.deliver(20, at_once=7)
    assert decode_snapshot(encode_snapshot(lead.state)).pending.up_to(2**62).tolist() == (
        offsets.tolist()
    )
    assert lead.ack(offsets[::3]) == [1] * 7
    with pytest.raises(ValueError, match="far apart"):
        Rising(column(0, 2**40))


def test_settings_out_of_bounds() -> None:
    for wrong in ({"ack_wait_ns": 0}, {"backoff_ns": (-1,)}, {"ack_wait_ns": MAX_WAIT_NS + 1}):
        with pytest.raises(ValueError, match=r"waits for acks: expected 1 to \d+ ns"):
            Settings(**wrong)
    with pytest.raises(ValueError, match="at most 1000 waits"):
        Settings(backoff_ns=(1,) * 1001)
    assert Settings(max_ack_pending=-1).most_pending == MAX_PENDING
