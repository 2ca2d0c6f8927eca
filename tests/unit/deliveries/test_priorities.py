"""Priority groups; `tests/integration/test_deliveries_beside_jetstream.py` has a real server
beside them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.worlds.deliveries import NOW, SECOND, Lead, records

from liftlog.deliveries.instructions import Deliver, Pinned, Status, Unpinned
from liftlog.deliveries.pull import Priority, PullRequest
from liftlog.deliveries.records import Scan
from liftlog.deliveries.settings import PriorityPolicy, Settings


def lead_by(policy: PriorityPolicy, **settings: Any) -> Lead:
    return Lead(Settings(priority_policy=policy, priority_groups=("g",), **settings))


def pull(lead: Lead, reply: bytes, batch: int = 9, max_bytes: int = 0, **priority: Any) -> None:
    asked = Priority(**{"group": "g", **priority})
    request = PullRequest(reply, batch, max_bytes, priority=asked, new_pin=b"pin of " + reply)
    lead.consumer.pull(request, 0, lead.now)


def offer(lead: Lead, count: int, pending: int | None = None) -> list[Any]:
    """Deliver new messages; `pending` records match, with these. Returns what is sent."""
    start = lead.state.next_offset
    scan = Scan(start, start + count, records(np.arange(start, start + count)), is_at_end=False)
    lead.consumer.deliver(scan, count if pending is None else pending, lead.now)
    return lead.end_turn()


def shares(sent: list[Any]) -> dict[bytes, list[int]]:
    return {one.reply: one.offsets.tolist() for one in sent if isinstance(one, Deliver)}


@pytest.mark.parametrize(
    ("policy", "asked", "why"),
    [
        (PriorityPolicy.NONE, {"min_pending": 1}, "Not a Overflow Priority consumer"),
        (PriorityPolicy.NONE, {"pin": b"x"}, "Not a Pinned Client Priority consumer"),
        (PriorityPolicy.PRIORITIZED, {"level": 10}, "Priority must be between 0 and 9"),
        (PriorityPolicy.OVERFLOW, {"group": ""}, "Priority Group missing"),
        (PriorityPolicy.OVERFLOW, {"group": "h"}, "Invalid Priority Group"),
    ],
)
def test_a_request_that_does_not_fit(policy: PriorityPolicy, asked: Any, why: str) -> None:
    lead = lead_by(policy)
    pull(lead, b"r", **asked)
    (sent,) = lead.end_turn()
    assert isinstance(sent, Status)
    assert sent.words.decode() == f"400 Bad Request - {why}"
    assert lead.consumer.waiting == []


def test_overflow_needs_one_of_its_two_conditions() -> None:
    """nats-server#7794: not both."""
    lead = lead_by(PriorityPolicy.OVERFLOW)
    pull(lead, b"both", min_pending=50, min_ack_pending=5)
    assert offer(lead, 3) == []
    assert lead.state.next_offset == 0
    assert shares(offer(lead, 3, pending=51)) == {b"both": [0, 1]}
    assert shares(offer(lead, 3, pending=52)) == {b"both": [2, 3, 4]}
    assert shares(offer(lead, 1)) == {b"both": [5]}, "five are without an ack"
    pull(lead, b"none", batch=2)
    lead.ack(np.arange(6))
    assert shares(offer(lead, 3)) == {b"none": [6, 7]}


def test_a_lower_level_comes_first_and_pulls_of_one_level_take_turns() -> None:
    lead = lead_by(PriorityPolicy.PRIORITIZED)
    pull(lead, b"last", 9, level=5)
    pull(lead, b"a", 2, level=1)
    pull(lead, b"b", 3, level=1)
    assert shares(offer(lead, 7)) == {b"a": [0, 2], b"b": [1, 3, 4], b"last": [5, 6]}


def test_one_client_gets_all_until_it_pulls_no_more() -> None:
    lead = lead_by(PriorityPolicy.PINNED_CLIENT, pinned_ttl_ns=10 * SECOND)
    pull(lead, b"a", 2)
    pull(lead, b"b", 9)
    sent = offer(lead, 5)
    assert shares(sent) == {b"a": [0, 1]}
    assert [one.pin for one in sent if isinstance(one, Deliver | Pinned)] == [b"pin of a"] * 2
    lead.advance(9)
    pull(lead, b"c", 2, pin=b"pin of a")
    assert shares(offer(lead, 5)) == {b"c": [2, 3]}
    pull(lead, b"d", pin=b"other")
    assert [one.words for one in lead.end_turn()] == [b"423 Nats-Pin-Id mismatch"]
    lead.advance(9)
    assert shares(offer(lead, 5)) == {}
    assert lead.consumer.due_ns() == NOW + 19 * SECOND
    lead.advance(1)
    assert lead.sent[-1] == Unpinned("timeout")
    sent = offer(lead, 5)
    assert shares(sent) == {b"b": [4, 5, 6, 7, 8]}
    assert {one.pin for one in sent if isinstance(one, Deliver)} == {b"pin of b"}


def test_pulls_with_an_old_pin_end() -> None:
    lead = lead_by(PriorityPolicy.PINNED_CLIENT)
    pull(lead, b"a", 2)
    offer(lead, 1)
    pull(lead, b"a2", 3, pin=b"pin of a")
    lead.consumer.unpin()
    lead.consumer.unpin()
    assert lead.end_turn() == [Unpinned("admin")]
    sent = offer(lead, 2)
    assert shares(sent) == {}
    left = [(one.words, one.headers[0]) for one in sent]
    words, header = b"423 Nats-Wrong-Pin-Id", b"Nats-Pending-Messages"
    assert left == [(words, (header, 1)), (words, (header, 3))]
    assert lead.state.pulls == {}


def test_a_pull_whose_bytes_do_not_suffice_does_not_keep_the_pin() -> None:
    lead = lead_by(PriorityPolicy.PINNED_CLIENT)
    pull(lead, b"a", max_bytes=10)
    pull(lead, b"b")
    sent = offer(lead, 1)
    assert shares(sent) == {b"b": [0]}
    assert [one.pin for one in sent if isinstance(one, Deliver)] == [b"pin of b"]
