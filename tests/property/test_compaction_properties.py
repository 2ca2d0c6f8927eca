"""Key map, plan and keep mask against plain dicts and lists."""

from __future__ import annotations

from copy import deepcopy
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
)
from numpy.typing import NDArray
from support.rounds import fewer
from support.worlds.compaction_model import (
    CompactedLog,
    Row,
    column,
    empty_log,
    is_tombstone,
    table_of,
)

from compaction import CompactionPolicy
from compaction.keymap import KeyMap
from compaction.keys import HashWords, KeyedHash, Words


def all_collide(words: Words) -> NDArray[np.uint64]:
    return np.zeros(len(words), np.uint64)


def many_collide(words: Words) -> NDArray[np.uint64]:
    return (words.sum(axis=1, dtype=np.uint64) % np.uint64(5)) * np.uint64(0x4000_0000_0000_0001)


hashes: st.SearchStrategy[HashWords] = st.sampled_from(
    [KeyedHash(b"test"), all_collide, many_collide]
)
keys = st.none() | st.binary(max_size=3) | st.text("ab\0", max_size=9).map(str.encode)


@given(
    st.lists(st.lists(keys, max_size=60), max_size=6),
    hashes,
    st.integers(1, 3000),
    st.binary(max_size=2),
)
def test_key_map_is_a_dict_for_as_long_as_memory_lasts(
    calls: list[list[bytes | None]], hash_words: HashWords, memory: int, noise: bytes
) -> None:
    key_map = KeyMap(memory, hash_words=hash_words)
    model: dict[bytes, int] = {}
    superseded: set[int] = set()
    added: set[int] = set()
    offset = 3
    for call in calls:
        taken = key_map.add(
            column(call, noise=noise),
            np.arange(offset, offset + len(call)),
            lambda offsets: superseded.update(offsets.tolist()),
        )
        assert 0 <= taken <= len(call)
        for i, key in enumerate(call[:taken]):
            if key is not None:
                model[key] = offset + i
                added.add(offset + i)
        assert superseded == added - set(model.values())
        if taken < len(call):
            stopped = call[taken]
            assert stopped is not None
            assert stopped not in model, "a key that is known needs no memory"
            assert model, "an empty map takes one"
            # Growing may waste a sixteenth, and the minimum size of a table.
            assert key_map.memory_used_bytes + 40 + len(stopped) >= memory * 0.5
        offset += len(call)
        assert len(key_map) == len(model)
        assert key_map.memory_used_bytes <= memory or len(model) == 1
        asked = [key for one in calls for key in one]
        expected = [-1 if key is None else model.get(key, -1) for key in asked]
        assert key_map.newest(column(asked, noise=noise)).tolist() == expected
        if taken < len(call):
            break


@given(
    st.lists(st.tuples(keys, st.none() | st.just(b"v")), min_size=1, max_size=80),
    st.integers(1, 20),
    st.integers(1, 1000),
)
def test_several_passes_with_little_memory_are_one_pass(
    records: list[tuple[bytes | None, bytes | None]], per_segment: int, memory: int
) -> None:
    log = empty_log(CompactionPolicy(min_dirty_ratio=0.0, tombstone_retention_ns=1000))
    for first in range(0, len(records), per_segment):
        log.append(records[first : first + per_segment], now=first)
        log.roll()
    before = table_of(log.rows)
    at_once = deepcopy(log)
    plan = at_once.plan(500)
    assert plan is not None
    assert at_once.run_pass(plan, KeyMap(1 << 20))
    passes = 0
    while (plan := log.plan(500)) is not None:
        log.run_pass(plan, KeyMap(memory))
        passes += 1
        assert passes <= len(records), "every pass gets ahead"
    assert log.rows == at_once.rows
    assert log.cleaned_below == at_once.cleaned_below == log.end
    assert table_of(log.rows) == before
    newest = {row.key: row for row in log.rows if row.key is not None}
    keyed = [row for row in log.rows if row.key is not None]
    assert keyed == sorted(newest.values()), "one record for each key, in order"


RETENTION = 100
FEW_KEYS = st.sampled_from([None, b"a", b"b", b"dd"])


class Compaction(RuleBasedStateMachine):
    """A stream that is written, compacted, cut at its start, damaged and read under leases."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000
        self.log: CompactedLog = empty_log(
            CompactionPolicy(min_dirty_ratio=0.3, tombstone_retention_ns=RETENTION)
        )
        self.written: list[Row] = []
        self.kept_since: dict[int, int] = {}  # offset of a tombstone -> first pass that kept it
        self.clean_since: dict[int, int] = {}  # offset of a tombstone -> its segment was clean
        self.reader: tuple[int, int, dict[bytes, bytes]] | None = None  # next, end, table
        self.reader_expects: dict[bytes, bytes] = {}
        self.was_damaged = False

    @rule(records=st.lists(st.tuples(FEW_KEYS, st.none() | st.just(b"v")), min_size=1, max_size=5))
    def write(self, records: list[tuple[bytes | None, bytes | None]]) -> None:
        first = self.log.end
        numbered = [
            (key, None if value is None else b"%d" % (first + i))
            for i, (key, value) in enumerate(records)
        ]
        self.log.append(numbered, self.now)
        self.written += [
            Row(first + i, key, value, self.now) for i, (key, value) in enumerate(numbered)
        ]

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule(time=st.sampled_from([1, 13, 60, 150]))
    def wait(self, time: int) -> None:
        self.now += time

    @rule(memory=st.sampled_from([1, 200, 1 << 20]), on_demand=st.booleans())
    def compact(self, memory: int, on_demand: bool) -> None:
        if on_demand:
            self.log.roll()
        low = high = None
        if self.reader is not None:
            low, high = self.reader[:2]
        plan = self.log.plan(self.now, bound=high, on_demand=on_demand, lease=low)
        if plan is None:
            return
        before = {row.offset for row in self.log.rows if is_tombstone(row)}
        assert plan.dirty_end <= (high or self.log.end)
        self.log.run_pass(plan, KeyMap(memory))
        after = {row.offset for row in self.log.rows if is_tombstone(row)}
        superseded = self._superseded()
        for offset in before - after - superseded:
            kept_since = self.kept_since.get(offset)
            assert kept_since is not None, "no pass removes a tombstone that it first saw"
            assert self.now - kept_since >= RETENTION
            assert offset < self.log.tombstones_removed_below
        for offset in after:
            if offset < self.log.cleaned_below:
                self.kept_since.setdefault(offset, self.now)
        self._check_that_tombstones_go()

    def _check_that_tombstones_go(self) -> None:
        """Check that tombstones are removed not before their time, but soon after it."""
        for piece in self.log.pieces:
            for row in piece.rows:
                if not is_tombstone(row) or row.offset < self.log.log_start:
                    continue
                if piece.next_offset > self.log.cleaned_below:
                    self.clean_since.pop(row.offset, None)
                    continue
                since = self.clean_since.setdefault(row.offset, self.now)
                if self.reader is None and not self.was_damaged:
                    assert self.now - since < RETENTION * 9 / 8 + 1

    def _superseded(self) -> set[int]:
        newest = {row.key: row.offset for row in self.written if row.key is not None}
        return {row.offset for row in self.written if row.key and newest[row.key] > row.offset}

    @rule(data=st.data())
    def drop_the_oldest(self, data: st.DataObject) -> None:
        """Apply retention. Only readers behind it lose records, and they get an error."""
        start = self.log.log_start
        highest = self.reader[0] if self.reader is not None else self.log.end
        self.log.log_start = data.draw(st.integers(start, min(start + 3, highest)))
        while len(self.log.pieces) > 1 and self.log.pieces[0].next_offset <= self.log.log_start:
            self.log.pieces.pop(0)
        self.log.cleaned_below = max(self.log.cleaned_below, self.log.log_start)

    @precondition(lambda self: len(self.log.pieces) > 1)
    @rule(data=st.data())
    def damage(self, data: st.DataObject) -> None:
        self.was_damaged = True
        sealed = [piece.base_offset for piece in self.log.pieces if piece.sealed]
        self.log.quarantined.add(data.draw(st.sampled_from(sealed)))

    @precondition(lambda self: self.reader is None)
    @rule()
    def begin_to_read(self) -> None:
        self.reader = (self.log.log_start, self.log.end, {})
        self.reader_expects = table_of(self.log.rows)

    @precondition(lambda self: self.reader is not None)
    @rule(count=st.integers(1, 5))
    def read_on(self, count: int) -> None:
        """Read under a lease [next, end), while all other operations continue."""
        assert self.reader is not None
        position, end, table = self.reader
        rows = [row for row in self.log.rows if position <= row.offset < end]
        for row in rows[:count]:
            if row.key is not None and row.value is None:
                table.pop(row.key, None)
            elif row.key is not None and row.value is not None:
                table[row.key] = row.value
        if len(rows) > count:
            self.reader = (rows[count].offset, end, table)
            return
        assert table == self.reader_expects, "what a reader saw is the stream as of its end"
        self.reader = None

    @invariant()
    def nothing_is_lost(self) -> None:
        start = self.log.log_start
        assert table_of(self.log.rows).items() <= table_of(self.written).items()
        visible = [row for row in self.written if row.offset >= start]
        expected = table_of(visible)
        assert table_of(self.log.rows) == expected
        assert [row for row in self.log.rows if row.key is None] == [
            row for row in visible if row.key is None
        ]
        assert set(self.log.rows) <= set(visible)

    @invariant()
    def segments_tile(self) -> None:
        pieces = self.log.pieces
        for piece, following in pairwise(pieces):
            assert piece.next_offset == following.base_offset
        for piece in pieces:
            assert all(piece.base_offset <= row.offset < piece.next_offset for row in piece.rows)

    def teardown(self) -> None:
        """At the end, after enough time, one record is left for each key, and no tombstone."""
        self.log.quarantined.clear()
        self.log.roll()
        for _ in range(3):
            for _ in range(2):
                plan = self.log.plan(self.now, on_demand=True)
                if plan is not None:
                    self.log.run_pass(plan, KeyMap(1 << 20))
            assert self.log.plan(self.now, on_demand=True) is None, "a pass leaves nothing to do"
            self.now += 2 * RETENTION
        keyed = [row for row in self.log.rows if row.key is not None]
        assert self.was_damaged or len(keyed) == len({row.key for row in keyed})
        assert not any(is_tombstone(row) for row in self.log.rows) or self.was_damaged


TestCompaction = Compaction.TestCase
if settings.get_current_profile_name() != "fuzz":
    TestCompaction.settings = settings(
        max_examples=fewer(25), stateful_step_count=40, deadline=None
    )
