"""Messages that pass by while their stream moves to another node, or to this one."""

from __future__ import annotations

from liftlog.cluster.handover import LATE_SECONDS, Giver, Offer, Step, Taker, digests_of
from liftlog.sequencing import MessageRun
from liftlog.server.ingest.relay import Relay

KEY = b"k" * 16
OFFER = Offer("s", "i", 7, "a", KEY)


class Passing:
    def __init__(self, *, is_taking: bool = False) -> None:
        self.now = 100.0
        self.stored: list[bytes] = []
        self.relay = Relay(lambda: self.now, None if is_taking else self.deliver)
        if is_taking:
            self.taker = self.relay.taker = Taker[MessageRun](OFFER)
            self.taker.subscribed(self.now)

    def deliver(self, run: MessageRun) -> None:
        self.stored += run.payloads

    def receive(self, *payloads: bytes) -> None:
        self.relay.receive(run_of(*payloads))


def run_of(*payloads: bytes) -> MessageRun:
    subjects = [b"s." + one for one in payloads]
    return MessageRun(subjects, [b""] * len(payloads), payloads)


def digests(*payloads: bytes) -> bytes:
    run = run_of(*payloads)
    blank = [b""] * len(payloads)
    return b"".join(digests_of(KEY, run.subjects, blank, blank, payloads))


def test_a_giver_stores_what_it_notes() -> None:
    passing = Passing()
    giver = passing.relay.giver = Giver(OFFER)
    giver.begin(100.0)
    passing.receive(b"1")
    assert giver.done(100.0) is Step.SUBSCRIBE
    passing.receive(b"2", b"3")
    assert passing.stored == [b"1", b"2", b"3"]
    assert b"".join(giver.told(10)) == digests(b"2", b"3")


def test_a_taker_stores_what_the_giver_did_not_in_the_order_of_arrival() -> None:
    passing = Passing(is_taking=True)
    passing.receive(b"1", b"2", b"3")
    passing.receive(b"4")
    passing.taker.told(KEY, 9, [digests(b"0", b"1", b"3", b"6")], passing.now)
    passing.receive(b"5")
    assert passing.stored == []
    assert passing.relay.take(9, passing.deliver)
    assert passing.stored == [b"2", b"4", b"5"]
    passing.receive(b"6", b"7")
    assert passing.stored[3:] == [b"7"], "a copy that came late"
    passing.now += LATE_SECONDS + 0.1
    passing.receive(b"6")
    assert passing.relay.taker is None
    passing.receive(b"0")
    assert passing.stored[4:] == [b"6", b"0"]


def test_what_cannot_be_used_is_neither_stored_nor_refused() -> None:
    passing = Passing(is_taking=True)
    passing.receive(b"1")
    assert not passing.relay.take(9, passing.deliver)
    passing.receive(b"2")
    assert passing.stored == []
    assert not Relay(lambda: 0.0).take(9, passing.deliver)
