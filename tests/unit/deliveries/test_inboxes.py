"""Clients whose pulls were lost with the former leader: which of them get a status, and when."""

from __future__ import annotations

import pytest
from support.worlds.deliveries import NOW, SECOND, Lead

from liftlog.deliveries.changes import InboxUsed, client_of
from liftlog.deliveries.consumer import Consumer
from liftlog.deliveries.demand import PullRequest
from liftlog.deliveries.inboxes import SilentInboxes
from liftlog.deliveries.instructions import Status
from liftlog.deliveries.state import MAX_INBOXES

MS = 10**6
WINDOW = ((b"Nats-Pending-Messages", 500), (b"Nats-Pending-Bytes", 0))
FAST = InboxUsed(b"fast", 500, 0, 250, NOW, 2500 * MS)
"""A client with 100 messages a second."""
SLOW = InboxUsed(b"slow", 1, 0, 1, NOW, 20 * SECOND)
"""A client that takes 20 s for each message."""


def pull(lead: Lead, reply: bytes = b"a", batch: int = 5, beat: int = SECOND) -> None:
    request = PullRequest(reply, batch, heartbeat_ns=beat, max_bytes=batch * 100)
    lead.consumer.pull(request, 0, lead.now)
    lead.end_turn()


class Clients:
    """Clients after a takeover at `now`."""

    def __init__(self, *inboxes: InboxUsed) -> None:
        self.silent = SilentInboxes()
        self.silent.take_over({client_of(one.reply): one for one in inboxes})
        self.subscribers = {one.reply for one in inboxes}
        self.now = NOW
        self.acked_ns = 0
        self.held = 7
        """Messages that workers may be processing."""
        self.waiting = list[bytes]()
        """Reply subjects of the pulls that wait for messages."""
        self.look()

    def look(self) -> list[Status]:
        has_interest = self.subscribers.__contains__
        return self.silent.end(self.now, self.acked_ns, self.held, self.waiting, has_interest)

    def pull(self, reply: bytes, *, is_served: bool = True) -> None:
        self.silent.pulled(reply, self.now)
        self.subscribers.add(reply)
        self.waiting = [] if is_served else [reply]
        self.look()

    def wait(self, seconds: float) -> None:
        self.now += int(seconds * SECOND)

    def ended(self, seconds: float, *, acks_every: float = 0) -> list[tuple[float, bytes]]:
        """Look whenever it is due, and return the seconds and the replies of statuses."""
        until, found = self.now + int(seconds * SECOND), list[tuple[float, bytes]]()
        began, next_ack = self.now, self.now
        while True:
            times = [one for one in (self.silent.due_ns(), next_ack if acks_every else None) if one]
            at = min(times, default=until + 1)
            if at > until:
                self.now = until
                return found
            assert at >= self.now, "time does not run backwards"
            self.now = at
            if acks_every and at == next_ack:
                self.acked_ns, next_ack = at, at + int(acks_every * SECOND)
            statuses = self.look()
            assert statuses or acks_every, "a look that is due has an effect"
            found += [((at - began) / SECOND, one.reply) for one in statuses]


# --- the state ---


def test_only_inboxes_with_heartbeats_are_stored() -> None:
    lead = Lead()
    pull(lead, b"plain", beat=0)
    assert lead.state.inboxes == {}
    lead.consumer.pull(PullRequest(b"now", 5, no_wait=True, heartbeat_ns=1), 0, lead.now)
    lead.end_turn()
    assert lead.state.inboxes == {}
    pull(lead, b"beats")
    assert lead.state.inboxes == {b"beats": InboxUsed(b"beats", 5, 500, 5, NOW, 0)}


def test_the_first_pull_is_the_window_and_the_last_two_make_the_gap() -> None:
    lead = Lead()
    pull(lead, batch=5)
    lead.advance(2)
    pull(lead, batch=2)
    assert lead.state.inboxes[b"a"] == InboxUsed(b"a", 5, 500, 2, NOW + 2 * SECOND, 2 * SECOND)


def test_an_inbox_is_stored_at_most_once_a_second() -> None:
    lead = Lead()
    for _ in range(2):  # the second one is stored, as there was no gap before
        pull(lead)
        lead.advance(0.01)
    before = lead.state.inboxes[b"a"]
    assert before.gap_ns == 10 * MS
    for _ in range(90):
        pull(lead, batch=3)
        lead.advance(0.01)
    assert lead.state.inboxes[b"a"] is before
    lead.advance(0.2)
    pull(lead, batch=3)
    after = lead.state.inboxes[b"a"]
    assert (after.batch, after.gap_ns) == (3, 210 * MS), "of the pulls, not of the stored ones"


def test_the_time_without_a_leader_is_no_gap() -> None:
    lead = Lead()
    pull(lead)
    lead.consumer = Consumer(lead.state)
    lead.consumer.take_over(lead.now)
    lead.advance(30)
    pull(lead, batch=2)
    assert lead.state.inboxes[b"a"] == InboxUsed(b"a", 5, 500, 5, NOW + 30 * SECOND, 0)
    lead.advance(2)
    pull(lead, batch=2)
    assert lead.state.inboxes[b"a"] == InboxUsed(b"a", 5, 500, 2, NOW + 32 * SECOND, 2 * SECOND)
    lead.consumer = Consumer(lead.state)
    lead.advance(30)
    pull(lead, batch=4)
    assert lead.state.inboxes[b"a"] == InboxUsed(b"a", 5, 500, 2, NOW + 62 * SECOND, 2 * SECOND)


def test_a_client_that_numbers_its_pulls_is_one_client() -> None:
    """The Java client. The status goes to the newest reply subject."""
    lead = Lead()
    for number in range(5):
        pull(lead, b"_INBOX.java.%d" % number, batch=5 - number)
        lead.advance(2)
    (inbox,) = lead.state.inboxes.values()
    assert (inbox.reply, inbox.window, inbox.batch) == (b"_INBOX.java.4", 5, 1)
    clients = Clients(inbox)
    clients.wait(1)
    clients.pull(b"_INBOX.java.5")
    assert clients.ended(60) == []


@pytest.mark.parametrize("replies", [(b"_INBOX.1", b"_INBOX.2"), (b"_INBOX.a.x", b"_INBOX.a.y")])
def test_other_inboxes_with_the_same_beginning_are_other_clients(
    replies: tuple[bytes, ...],
) -> None:
    lead = Lead()
    for reply in replies:
        pull(lead, reply)
    assert [one.reply for one in lead.state.inboxes.values()] == [*replies]


def test_a_pull_that_is_served_at_once_is_stored_too() -> None:
    lead = Lead()
    lead.consumer.pull(PullRequest(b"a", 5, heartbeat_ns=SECOND), 5, lead.now)
    lead.deliver(5)
    assert b"a" in lead.state.inboxes


def test_the_state_keeps_the_inboxes_that_were_used_last() -> None:
    lead = Lead()
    for number in range(3 * MAX_INBOXES):
        pull(lead, b"once%d" % number)
        lead.advance(1)
        pull(lead, b"always")
    assert len(lead.state.inboxes) == MAX_INBOXES
    assert b"always" in lead.state.inboxes
    assert lead.state.inboxes[b"always"].window == 5
    assert b"once0" not in lead.state.inboxes


def test_many_inboxes_in_one_turn_do_not_make_a_large_delta() -> None:
    lead = Lead()
    for number in range(400):
        request = PullRequest(b"once%d" % number, 5, heartbeat_ns=SECOND)
        lead.consumer.pull(request, 0, lead.now)
    lead.end_turn()
    assert [*lead.state.inboxes] == [b"once%d" % one for one in range(400 - MAX_INBOXES, 400)]


def test_a_consumer_that_begins_again_keeps_the_inboxes() -> None:
    lead = Lead()
    pull(lead)
    lead.consumer.reset(Lead().state)
    lead.end_turn()
    assert b"a" in lead.state.inboxes


# --- after a takeover ---


def test_an_idle_client_gets_three_statuses() -> None:
    clients = Clients(FAST)
    assert clients.ended(60) == [(0.75, b"fast"), (2.25, b"fast"), (5.25, b"fast")]
    assert clients.silent.due_ns() is None
    assert len(clients.silent) == 0


def test_the_status_ends_all_that_the_client_may_expect() -> None:
    clients = Clients(FAST)
    clients.now += SECOND
    (status,) = clients.look()
    assert (status.reply, status.words) == (b"fast", b"408 Request Timeout")
    assert status.headers == WINDOW


def test_a_client_that_pulls_gets_no_status() -> None:
    clients = Clients(SLOW)
    clients.wait(0.75)
    clients.pull(b"other")
    assert len(clients.silent) == 1
    clients.pull(b"slow")
    assert len(clients.silent) == 0
    assert clients.ended(600) == []


def test_the_answer_to_a_status_does_not_show_that_no_pull_was_lost() -> None:
    """The Java client answers each 408 with a pull, even if the pulls that it still counts prevent
    the next pull."""
    clients = Clients(InboxUsed(b"_INBOX.java.4", 500, 0, 250, NOW, 2500 * MS))
    clients.wait(0.2)
    clients.pull(b"_INBOX.java.5")
    assert clients.ended(0.6) == [(0.55, b"_INBOX.java.5")]
    clients.pull(b"_INBOX.java.6")
    assert len(clients.silent) == 1, "the answer to the second status"
    clients.wait(1.0)
    clients.pull(b"_INBOX.java.7")
    assert clients.ended(60) == []


def test_a_client_whose_pull_waits_is_not_idle() -> None:
    clients = Clients(FAST)
    clients.wait(0.2)
    clients.pull(b"fast", is_served=False)
    assert clients.silent.due_ns() is None
    clients.wait(20)
    clients.look()
    clients.waiting = []
    clients.look()
    assert clients.ended(1) == [(0.75, b"fast")], "after the pull got its last message"


def test_a_client_with_slow_messages_is_left_alone_while_it_may_have_one() -> None:
    clients = Clients(SLOW)
    assert clients.ended(59) == [], "its own heartbeats are faster"
    clients = Clients(SLOW)
    clients.held = 0
    clients.look()
    assert clients.ended(1) == [(0.75, b"slow")]


def test_a_client_of_which_only_one_pull_is_known_waits_for_some_seconds() -> None:
    clients = Clients(InboxUsed(b"new", 5, 0, 5, NOW, 0))
    assert clients.ended(4) == [(3, b"new")]
    clients = Clients(InboxUsed(b"new", 5, 0, 5, NOW, 0))
    clients.acked_ns = NOW + SECOND
    clients.look()
    assert clients.ended(5) == [(4, b"new")]


def test_acks_show_that_a_client_is_busy_but_not_for_ever() -> None:
    """Other clients of the consumer can send them."""
    clients = Clients(FAST)
    assert clients.ended(30, acks_every=0.1)[0] == (7.5, b"fast")


def test_a_client_that_has_sent_acks_is_idle_after_the_last_of_them() -> None:
    clients = Clients(FAST)
    clients.acked_ns = NOW + 300 * MS
    clients.look()
    assert clients.ended(1.5) == [(1.05, b"fast")]


@pytest.mark.parametrize("gap", [10 * MS, 2500 * MS, 12 * SECOND])
def test_clients_with_rarer_pulls_wait_longer(gap: int) -> None:
    clients = Clients(InboxUsed(b"a", 500, 0, 250, NOW, gap))
    assert clients.ended(30)[0] == (max(0.75, gap / 4 / SECOND), b"a")


def test_an_inbox_without_a_subscriber_is_forgotten() -> None:
    clients = Clients(FAST, SLOW)
    clients.subscribers.discard(b"fast")
    clients.now += SECOND
    assert clients.look() == []
    assert len(clients.silent) == 1
    clients.subscribers.add(b"fast")
    assert clients.ended(30) == []


def test_the_time_without_nats_does_not_count() -> None:
    clients = Clients(FAST)
    clients.now += 10 * SECOND
    clients.silent.begin_again()
    assert clients.silent.due_ns() is None, "nothing to do without NATS"
    clients.now += 10 * SECOND
    assert clients.look() == []
    assert clients.ended(1) == [(0.75, b"fast")]


def test_an_inbox_is_another_client_than_its_numbered_replies() -> None:
    """Otherwise a client that may pull could take the place of another client's inbox."""
    assert client_of(b"_INBOX.a.1") == client_of(b"_INBOX.a.2")
    assert client_of(b"_INBOX.a") != client_of(b"_INBOX.a.7")
