"""Folding changes no character, and every block that begins has an end."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from liftlog.server.web.outline import folded, outline_json

values: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(values, st.integers(1, 400))
def test_whatever_the_value_and_wherever_it_is_cut(value: Any, max_chars: int) -> None:
    text = outline_json(json.dumps(value).encode(), max_chars=max_chars).text
    lines = folded(text)
    assert "".join(part for line in lines for _, part in line.parts) == text + "\n"
    depth = 0
    for line in lines:
        depth += line.folds
        assert depth >= 0
    assert depth == 0


def test_colours() -> None:
    lines = folded('{\n  "a{": "b",\n  "n": [\n    -1.5e3,\n    null\n  ]\n}')
    assert [line.folds for line in lines] == [1, 0, 1, 0, 0, -1, -1]
    assert lines[1].parts == [("", "  "), ("name", '"a{"'), ("", ": "), ("string", '"b"'),
                              ("", ",\n")]  # fmt: skip
    assert ("number", "-1.5e3") in lines[3].parts
    assert ("word", "null") in lines[4].parts
