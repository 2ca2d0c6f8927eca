"""Searching a header block for a name must find what walking through its lines finds."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from liftlog.records.message_headers import first_value, header_lines

PIECES = st.sampled_from([b"\r\n", b"\r", b"\n", b":", b" ", b"\t", b"A", b"a", b"AB", b"NATS/1.0"])


@given(st.lists(PIECES, max_size=30).map(b"".join), st.sampled_from([b"A", b"AB", b"a", b"A "]))
def test_the_first_value(block: bytes, name: bytes) -> None:
    values = [value for found, value in header_lines(block) if found == name]
    assert first_value(block, name) == (values[0] if values else None)
