"""Marks on offsets, compared with a set."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.rounds import examples

from liftlog.log.rewrite.compact import OffsetMarks


@settings(max_examples=examples(0.6))
@given(
    st.integers(0, 2**60),
    st.integers(0, 70),
    st.lists(st.lists(st.integers(0, 90), max_size=40), max_size=4),
)
def test_what_was_marked_is_marked(base: int, size: int, groups: list[list[int]]) -> None:
    marks = OffsetMarks(base, base + size)
    known: set[int] = set()
    for group in groups:
        marks.mark(np.array(group, np.int64) + base)
        known.update(group)
    everything = np.arange(base, base + size)
    assert marks.marked(everything).tolist() == [i in known for i in range(size)]
    assert marks.memory_used_bytes == (size + 7) // 8
