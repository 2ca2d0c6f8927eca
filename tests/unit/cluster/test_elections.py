"""When a node is suspected, and what a leader hands over in need."""

from __future__ import annotations

from liftlog.cluster import transitions as t
from liftlog.cluster.election import Elections, Lack, Yield
from liftlog.cluster.followers import FetchRequest
from liftlog.cluster.leading import Leader

RECORD = t.create("s", "i", {"min_isr": 2}, "abc", starts=dict.fromkeys("abc", 1))


def ask(leader: Leader, node: str, now: float) -> None:
    leader.fetched(FetchRequest(node, 1, 1, offset=4, last_epoch=1), now)


def test_a_leader_without_the_store_hands_over_only_while_acks_wait_for_a_change() -> None:
    """A follower that came back is waited for as before. To hand over then would end the acks, if
    the other one does not reach the store either: it does not hear who leads."""
    leader = Leader(
        RECORD, "a", ((1, 0),), log_end=4, durable_end=4, high_watermark=4, now=0.0, lag_max=10.0
    )
    elections = Elections("a", 1, now=0.0)
    elections.renewed(12.0, 0.0)
    for now in (0.0, 20.0):
        for peer in "bc":
            elections.heard(peer, now)
            ask(leader, peer, now)
    leader.lost("c")
    change = leader.propose(20.0)
    assert change is not None
    assert change.after.isr == ("a", "b")
    streams = [("s", leader)]
    assert leader.needs_change(20.0)
    asked = elections.yields(streams, 20.0, is_attached=True)
    assert asked == [Yield("c", ("s",), Lack.STORE)]
    ask(leader, "c", 21.0)
    assert not leader.needs_change(21.0)
    assert elections.yields(streams, 22.0, is_attached=True) == []
    assert leader.propose(22.0) == change, "it may yet be made"
    leader.lost("c")
    elections.heard("b", 24.0)
    assert elections.yields(streams, 24.0, is_attached=True) == [Yield("b", ("s",), Lack.STORE)]


def test_a_leader_hands_over_what_waits_for_its_disk_for_a_session() -> None:
    """Also what it leads by the record alone: it cannot begin to. Its peers are asked in turn, and
    none that is silent, or stops."""
    elections = Elections("a", 1, now=0.0)
    elections.renewed(100.0, 0.0)

    def asked(seconds: float, now: float) -> list[Yield]:
        for peer in "bc":
            elections.heard(peer, now)
        return elections.yields([], now, is_attached=True, stalled=[(RECORD, seconds)])

    assert asked(14.9, 20.0) == []
    [first] = asked(15.0, 21.0)
    assert asked(15.5, 21.5) == [], "it was asked a moment ago"
    [second] = asked(16.0, 22.0)
    assert {first.peer, second.peer} == {"b", "c"}
    assert {first.lack, second.lack} == {Lack.DISK}
    assert not first.detached, "a peer declines that could not ack either"
    elections.stopping = {"b"}
    for now in (23.0, 24.0):
        assert asked(17.0, now) == [Yield("c", ("s",), Lack.DISK)]


def test_a_node_whose_machine_says_that_its_process_has_ended_is_suspected_sooner() -> None:
    elections = Elections("a", 1, now=0.0)
    for node in "bc":
        elections.heard(node, 0.0)
        elections.lost(node, 0.1)
    elections.lost("b", 0.15, is_refused=True)
    assert [elections.suspects(node, 0.25) for node in "bc"] == [False, False]
    assert [elections.suspects(node, 0.35) for node in "bc"] == [True, False]
    assert [elections.suspects(node, 0.65) for node in "bc"] == [True, True]
    elections.heard("b", 0.7)
    elections.lost("b", 0.8)
    assert not elections.suspects("b", 1.2), "it was refused before it came back"
