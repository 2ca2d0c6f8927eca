"""Waiting pulls: JetStream's words, and which pull gets which message.

The words and headers are those of nats-server 2.15 (`server/consumer.go`); clients compare them.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.worlds.deliveries import NOW, SECOND, Lead, records
from support.worlds.delivery_model import Model

from liftlog.deliveries.demand import PullRequest, Pulls
from liftlog.deliveries.instructions import Deliver, Ending, Status
from liftlog.deliveries.records import Scan
from liftlog.deliveries.settings import Settings
from liftlog.deliveries.statuses import go_duration

END = b"\r\n\r\n"


def with_left(words: bytes, messages: int, size: int) -> bytes:
    lines = b"\r\nNats-Pending-Messages: %d\r\nNats-Pending-Bytes: %d" % (messages, size)
    return b"NATS/1.0 " + words + lines + END


def plain(words: bytes) -> bytes:
    return b"NATS/1.0 " + words + b"\r\n" + b"\r\n"


def pull(
    lead: Lead,
    batch: int = 1,
    reply: bytes = b"r",
    pending: int = 0,
    max_bytes: int = 0,
    no_wait: bool = False,
    expires: int = 0,
    heartbeat: int = 0,
) -> None:
    request = PullRequest(reply, batch, max_bytes, no_wait, expires * SECOND, heartbeat * SECOND)
    lead.consumer.pull(request, pending, lead.now)


def offer(lead: Lead, count: int, is_at_end: bool = True) -> None:
    start = lead.state.next_offset
    found = records(np.arange(start, start + count))
    lead.consumer.deliver(Scan(start, start + count, found, is_at_end), count, lead.now)


def blocks(lead: Lead) -> list[bytes]:
    """The statuses of this turn."""
    return [one.block() for one in lead.end_turn() if isinstance(one, Status)]


def shares(lead: Lead) -> dict[bytes, list[int]]:
    return {one.reply: one.offsets.tolist() for one in lead.end_turn() if isinstance(one, Deliver)}


def test_pulls_of_one_client_get_messages_in_order() -> None:
    """The client cannot see which of its pulls a message belongs to."""
    lead = Lead()
    for batch in (3, 4, 5):
        pull(lead, batch, expires=2, heartbeat=1)
    offer(lead, 5, is_at_end=False)
    (deliver,) = [one for one in lead.end_turn() if isinstance(one, Deliver)]
    assert deliver.offsets.tolist() == [0, 1, 2, 3, 4]
    assert [one.left for one in lead.state.pulls.values()] == [2, 5]
    lead.advance(0.5)
    offer(lead, 1, is_at_end=False)
    lead.sent.clear()
    lead.advance(0.7)
    assert lead.sent == [], "the heartbeat is due 1 s after the last message"
    lead.advance(0.9)
    left = [with_left(b"408 Request Timeout", number, 0) for number in (1, 5)]
    found = [one.block() for one in lead.sent if isinstance(one, Status)]
    assert [one for one in found if b"408" in one] == left


def test_pulls_of_several_clients_get_messages_in_turn() -> None:
    lead = Lead()
    for reply in (b"a", b"b", b"a"):
        pull(lead, 3, reply)
    offer(lead, 6)
    delivers = [one for one in lead.end_turn() if isinstance(one, Deliver)]
    found = [(one.reply, one.offsets.tolist()) for one in delivers]
    assert found == [(b"a", [0, 3]), (b"b", [1, 4]), (b"a", [2, 5])]


def test_a_request_above_a_limit_is_refused() -> None:
    limits = {"max_request_batch": 10, "max_request_expires_ns": 90 * SECOND}
    lead = Lead(Settings(max_request_bytes=500, **limits))
    pull(lead, 11)
    pull(lead, 10, expires=91)
    pull(lead, 10, max_bytes=501, expires=90)
    assert blocks(lead) == [
        plain(b"409 Exceeded MaxRequestBatch of 10"),
        plain(b"409 Exceeded MaxRequestExpires of 1m30s"),
        plain(b"409 Exceeded MaxRequestMaxBytes of 500"),
    ]
    pull(lead, 10, max_bytes=500, expires=90)
    assert lead.consumer.figures(lead.now).num_waiting == 1


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (1, "1ns"),
        (1_500, "1.5\N{MICRO SIGN}s"),
        (2_000_000, "2ms"),
        (1_500_000_000, "1.5s"),
        (60_000_000_000, "1m0s"),
        (3_600_000_000_000, "1h0m0s"),
        (90_061_000_000_001, "25h1m1.000000001s"),
    ],
)
def test_durations_as_go_prints_them(ns: int, text: str) -> None:
    assert go_duration(ns) == text


def test_a_push_consumer_takes_no_pulls() -> None:
    lead = Lead(Settings(is_push=True))
    pull(lead, 1)
    assert blocks(lead) == [plain(b"409 Consumer is push based")]


def test_too_many_waiting_pulls_are_refused_but_silently_with_a_heartbeat() -> None:
    lead = Lead(Settings(max_waiting=2))
    pull(lead, reply=b"a", expires=1)
    pull(lead, reply=b"b", expires=60)
    pull(lead, reply=b"c")
    pull(lead, reply=b"d", expires=60, heartbeat=30)
    assert [one.reply for one in lead.end_turn() if isinstance(one, Status)] == [b"c"]
    lead.now += SECOND
    pull(lead, reply=b"e")  # the first one has expired
    assert blocks(lead) == [with_left(b"408 Request Timeout", 1, 0)]
    assert lead.consumer.figures(lead.now).num_waiting == 2


def test_no_wait_ends_at_once_without_messages_and_without_headers() -> None:
    lead = Lead()
    pull(lead, 5, no_wait=True)
    assert blocks(lead) == [plain(b"404 No Messages")]
    pull(lead, 5, no_wait=True, pending=3)
    offer(lead, 3)
    sent = lead.end_turn()
    assert [type(one) for one in sent] == [Deliver, Status]
    assert sent[1].block() == plain(b"404 No Messages")


def test_no_wait_with_an_expiry_waits_for_its_first_messages() -> None:
    lead = Lead()
    pull(lead, 5, no_wait=True, expires=5)
    offer(lead, 0)
    assert blocks(lead) == []
    offer(lead, 2)
    assert blocks(lead) == [plain(b"404 No Messages")]
    pull(lead, 5, no_wait=True, expires=5)
    offer(lead, 0)
    lead.advance(5)
    assert lead.sent[-1].block() == with_left(b"408 Request Timeout", 5, 0)


def test_no_wait_behind_pulls_that_want_more_than_there_is() -> None:
    lead = Lead()
    pull(lead, 10, reply=b"a")
    pull(lead, 5, reply=b"b", no_wait=True, pending=9)
    assert blocks(lead) == [plain(b"408 Requests Pending")]
    pull(lead, 5, reply=b"b", no_wait=True, pending=10)
    assert blocks(lead) == []


def test_no_wait_does_not_end_while_only_max_ack_pending_holds_it() -> None:
    lead = Lead(Settings(max_ack_pending=2))
    pull(lead, 5, no_wait=True, pending=4)
    offer(lead, 4)
    assert [type(one) for one in lead.end_turn()] == [Deliver]
    assert lead.consumer.wants(lead.now, 100).first == 0
    lead.advance(1)
    assert lead.consumer.figures(lead.now).num_waiting == 1
    assert lead.ack(np.array([0, 1])) == [1, 1]
    offer(lead, 2)
    assert [type(one) for one in lead.end_turn()] == [Deliver]
    assert lead.ack(np.array([2])) == [1]
    assert lead.consumer.wants(lead.now, 100).first == 1
    offer(lead, 0)
    assert blocks(lead) == [plain(b"404 No Messages")]


def test_max_bytes_counts_subject_reply_headers_and_payload() -> None:
    """The reply subject of the ack is `$JS.ACK.s.c.1.<offset>.<sequence>.<stamp>.<pending>`."""
    lead = Lead(Settings(ack_prefix_bytes=len("$JS.ACK.s.c.")))
    size = 100 + len(f"$JS.ACK.s.c.1.0.1.{NOW}.3")
    pull(lead, 10, max_bytes=2 * size + 1)
    offer(lead, 4)
    sent = lead.end_turn()
    assert sent[0].offsets.tolist() == [0, 1]
    assert sent[1].block() == with_left(b"409 Message Size Exceeds MaxBytes", 8, 1)
    pull(lead, 10, max_bytes=2 * size)
    offer(lead, 4)
    sent = lead.end_turn()
    assert sent[0].offsets.tolist() == [2, 3]
    assert len(sent) == 1, "used up to the byte: the pull ends without a status"
    pull(lead, 10, max_bytes=size - 1)
    offer(lead, 1)
    words = b"409 Message Size Exceeds MaxBytes"
    assert blocks(lead) == [with_left(words, 10, size - 1)]


def test_a_full_batch_with_bytes_left_ends_with_a_status() -> None:
    lead = Lead()
    pull(lead, 2, max_bytes=1000)
    offer(lead, 2)
    sent = lead.end_turn()
    left = 1000 - 2 * (100 + 27)  # 19 digits of a stamp, 4 of other numbers, 4 dots; no prefix
    assert sent[1].block() == with_left(b"409 Batch Completed", 0, left)


def test_a_message_too_large_for_one_pull_goes_to_the_next() -> None:
    lead = Lead()
    pull(lead, 5, b"a", max_bytes=50)
    pull(lead, 5, b"b")
    offer(lead, 1)
    sent = lead.end_turn()
    assert (sent[0].reply, sent[1].reply) == (b"b", b"a")


def test_pulls_take_turns() -> None:
    lead = Lead()
    for reply, batch in ((b"a", 5), (b"b", 2), (b"c", 9)):
        pull(lead, batch, reply)
    offer(lead, 8)
    assert shares(lead) == {b"a": [0, 3, 6], b"b": [1, 4], b"c": [2, 5, 7]}
    offer(lead, 2)
    assert shares(lead) == {b"a": [8], b"c": [9]}


def test_heartbeats_have_the_newest_sequences_and_begin_again_with_a_message() -> None:
    lead = Lead()
    pull(lead, 5, expires=30, heartbeat=10)
    lead.advance(8)
    offer(lead, 2)
    lead.end_turn()
    lead.advance(2)
    assert not [one for one in lead.sent if isinstance(one, Status)]
    assert lead.consumer.due_ns() == NOW + 18 * SECOND
    lead.advance(8)
    beat = b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 2\r\nNats-Last-Stream: 1" + END
    assert lead.sent[-1].block() == beat
    lead.advance(12)
    assert lead.sent[-1].block() == with_left(b"408 Request Timeout", 3, 0)


@pytest.mark.parametrize(
    ("why", "expected"),
    [
        (Ending.CONSUMER_DELETED, plain(b"409 Consumer Deleted")),
        (Ending.LEADERSHIP_CHANGE, plain(b"409 Leadership Change")),
        (Ending.SERVER_SHUTDOWN, with_left(b"409 Server Shutdown", 4, 700)),
    ],
)
def test_the_end_of_all_pulls(why: Ending, expected: bytes) -> None:
    lead = Lead()
    pull(lead, 4, max_bytes=700)
    lead.consumer.end_pulls(why)
    assert blocks(lead) == [expected]
    assert lead.consumer.figures(lead.now).num_waiting == 0


def test_a_pull_whose_reply_has_no_subscriber_is_dropped_without_a_word() -> None:
    lead = Lead()
    pull(lead, 4, b"a")
    pull(lead, 4, b"b")
    assert lead.consumer.waiting == [b"a", b"b"]
    lead.consumer.drop_pulls([b"a"])
    assert lead.end_turn() == []
    offer(lead, 1)
    assert shares(lead) == {b"b": [0]}


def test_a_paused_consumer_delivers_nothing_and_ends_pulls_that_do_not_wait() -> None:
    lead = Lead(Settings(pause_until_ns=NOW + 60 * SECOND))
    lead.consumer.tick(lead.now)
    pull(lead, 4, b"a", no_wait=True, pending=4)
    pull(lead, 4, b"b", expires=90)
    assert lead.consumer.wants(lead.now, 100).first == 0
    offer(lead, 4)
    lead.consumer.tick(lead.now)
    assert blocks(lead) == [plain(b"404 No Messages")]
    assert lead.consumer.due_ns() == NOW + 60 * SECOND
    lead.advance(60)
    assert type(lead.sent[-1]).__name__ == "Resumed"
    assert lead.consumer.wants(lead.now, 100).first == 4


REQUESTS = st.lists(
    st.tuples(st.integers(1, 9), st.sampled_from([0, 0, 1, 40, 200, 500])), min_size=1, max_size=9
)


@given(REQUESTS, st.lists(st.integers(0, 90), max_size=60))
def test_messages_are_shared_as_one_at_a_time(
    requests: list[tuple[int, int]], sizes: list[int]
) -> None:
    settings = Settings()
    pulls, model = Pulls(), Model(settings, 0)
    for number, (batch, max_bytes) in enumerate(requests):
        request = PullRequest(b"%d" % number, batch, max_bytes)
        pulls.add(request, 0, settings, NOW)
        model.pull(request, 0, NOW)
    found, taken, statuses = pulls.share(np.array(sizes, np.int64), NOW)
    shares = model.share(sizes, NOW)
    assert {reply: index.tolist() for reply, index in found} == shares
    assert taken == sum(map(len, shares.values()))
    ends = [(one.reply, one.words.decode(), *[n for _, n in one.headers]) for one in statuses]
    assert sorted(ends) == sorted(
        (reply, *row) for reply, rows in model.sent.items() for row in rows
    )
