"""Any sequence of changes of a record keeps its invariants, and elects no node without the data.

The model knows how much each node's disk surely has. `ack` appends to every member of the ISR, as a
leader may do; everything else is a transition in any order, permitted or not.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
from hypothesis import given
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from liftlog.cluster import transitions as t
from liftlog.cluster.record import StreamMetadata
from liftlog.errors import Conflict, CorruptMetadata, InvalidArgument, UnsupportedFormat

NODES = "abcdef"
ONE = st.sampled_from(NODES)
SOME = st.sets(ONE, max_size=3)
TARGETS = st.lists(ONE, unique=True, max_size=4)


class RecordChanges(RuleBasedStateMachine):
    record: StreamMetadata
    present: dict[str, int]
    acked: int
    stored: dict[str, int]

    @initialize(replicas=st.integers(1, 5), smallest=st.integers(1, 3))
    def create(self, replicas: int, smallest: int) -> None:
        self.present = dict.fromkeys(NODES, 1)
        self.acked, self.stored = 0, dict.fromkeys(NODES, 0)
        self.record = t.create(
            "s",
            "i",
            {"min_isr": min(smallest, replicas)},
            NODES[:replicas],
            starts=self.present,
            observers="f",
        )

    def change(self, function: Any, *args: Any, **options: Any) -> bool:
        """Return True if the transition changed the record."""
        before = self.record
        with suppress(Conflict, InvalidArgument):
            after = function(before, *args, **options)
            if after is not None:
                same = replace(before, version=after.version, trail=after.trail)
                assert after != same, "changed nothing"
                assert after.follows(before)
                assert not before.follows(after)
                assert after.version == before.version + 1
                assert after.leader_epoch >= before.leader_epoch
                if after.leader not in (before.leader, None):
                    assert after.leader_epoch == before.leader_epoch + 1
                assert StreamMetadata.from_json(after.to_json()) == after
                assert function(after, *args, **options) is None, "repeating it changes more"
                self.record = after
                return True
        return False

    @rule(count=st.integers(1, 3))
    def ack(self, count: int) -> None:
        if self.record.leader is not None and self.record.can_commit:
            self.acked += count
            self.stored.update(dict.fromkeys(self.record.isr, self.acked))

    @rule(node=ONE, clean=st.booleans(), lost=st.integers(0, 3))
    def start(self, node: str, clean: bool, lost: int) -> None:
        self.present[node] += 1
        if not clean:
            self.stored[node] = max(self.stored[node] - lost, 0)
        sole = self.record.members == (node,)
        self.change(t.register, node, self.present[node], clean=clean)
        if sole and not clean:
            self.acked = min(self.acked, self.stored[node])

    @rule(node=ONE)
    def remove(self, node: str) -> None:
        record = self.record
        has_copy = node in record.starts and (record.deleted or node not in record.members)
        assert self.change(t.removed, node) == has_copy

    @rule(node=ONE)
    def register_again(self, node: str) -> None:
        self.change(t.register, node, self.present[node], clean=True)

    @rule(nodes=SOME)
    def fence(self, nodes: set[str]) -> None:
        self.change(t.fence, nodes)

    @rule(node=ONE)
    def resign(self, node: str) -> None:
        self.change(t.resign, node)

    @rule(dead=SOME, node=ONE)
    def failover(self, dead: set[str], node: str) -> None:
        self.change(t.failover, dead, node)

    @rule(node=ONE, lost=SOME)
    def recover(self, node: str, lost: set[str]) -> None:
        if self.change(t.recover, node, lost=lost):
            self.acked = min(self.acked, self.stored[node])
            self.stored = {name: min(end, self.acked) for name, end in self.stored.items()}

    @rule(node=ONE)
    def shrink(self, node: str) -> None:
        self.change(t.shrink, node)

    @rule(node=ONE, start=st.none() | st.integers(1, 5))
    def expand(self, node: str, start: int | None) -> None:
        stored, self.stored[node] = self.stored[node], self.acked  # as if it had caught up
        if not self.change(t.expand, node, self.present[node] if start is None else start):
            self.stored[node] = stored

    @rule(node=ONE)
    def discard(self, node: str) -> None:
        """Check that no other node needs a copy that may be dropped."""
        with suppress(Conflict):
            after = t.discard(self.record, node)
            assert after is not None
            assert after.can_commit
            assert not after.must_keep(node)
            assert after.leader == self.record.leader
            assert after.leader_epoch > self.record.leader_epoch
            self.record, self.stored[node] = after, 0

    @rule(node=ONE)
    def transfer(self, node: str) -> None:
        self.change(t.transfer, node)

    @rule(replicas=TARGETS)
    def reassign(self, replicas: list[str]) -> None:
        self.change(t.reassign, replicas)

    @rule()
    def complete(self) -> None:
        self.change(t.complete)

    @rule()
    def hand_over_to_one_that_stays(self) -> None:
        to = t.successor(self.record)
        if to is not None:
            assert self.change(t.transfer, to)
            assert self.change(t.complete)
            assert not self.record.adding + self.record.removing

    @rule()
    def cancel(self) -> None:
        self.change(t.cancel)

    @rule(smallest=st.none() | st.integers(0, 4))
    def update(self, smallest: int | None) -> None:
        self.change(t.update, {"min_isr": smallest})

    @rule(offset=st.integers(0, 9))
    def truncate(self, offset: int) -> None:
        self.change(t.truncate, offset)

    @invariant()
    def the_record_does_not_contradict_itself(self) -> None:
        assert self.record.problem() == ""
        if self.record.can_commit:
            assert not self.record.eligible
            assert not self.record.last_eligible

    @invariant()
    def all_that_can_be_elected_have_what_was_acked(self) -> None:
        for node in self.record.isr + self.record.eligible:
            assert self.stored[node] == self.acked, node

    @invariant()
    def there_is_always_a_way_on(self) -> None:
        one = self.record
        assert one.isr or one.eligible or one.last_eligible


TestRecordChanges = RecordChanges.TestCase


ORIGINAL = json.loads(
    t.create("s", "i", {"min_isr": 2}, "abc", starts=dict.fromkeys("abc", 1)).to_json()
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 4) | st.sampled_from(["", "a", "b", "z"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.just("a"), inner),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(list(ORIGINAL)), VALUES, min_size=1, max_size=3))
def test_a_record_with_any_values_is_read_or_refused(changes: dict[str, Any]) -> None:
    data = json.dumps({**ORIGINAL, **changes}).encode()
    with suppress(CorruptMetadata, UnsupportedFormat):
        assert StreamMetadata.from_json(data).problem() == ""
