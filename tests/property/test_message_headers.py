"""A search for a name in a header block finds the same as a walk through its lines, and the headers
by name equal the decoded lines."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from liftlog.records.message_headers import MessageHeaders, first_value, header_lines

PIECES = st.sampled_from([b"\r\n", b"\r", b"\n", b":", b" ", b"\t", b"A", b"a", b"AB", b"NATS/1.0"])


@given(st.lists(PIECES, max_size=30).map(b"".join), st.sampled_from([b"A", b"AB", b"a", b"A "]))
def test_the_first_value(block: bytes, name: bytes) -> None:
    values = [value for found, value in header_lines(block) if found == name]
    assert first_value(block, name) == (values[0] if values else None)


BYTES = st.sampled_from(
    [b"\xff", b"\xe2", b"\xe2\x82", b"\xe2\x82\xac", b"\xf0\x9f\x98", b"\xc3\xa4", b"\x82"]
)
NAMES = [
    "A",
    "a",
    "AB",
    "ab",
    "A:",
    ":",
    "",
    "A\r\nA",
    "\r\n",
    "A ",
    "NATS/1.0",
    "\ufffd",
    "\u20ac",
    "\ud800",
]


@given(st.lists(PIECES | BYTES, max_size=30).map(b"".join), st.sampled_from(NAMES))
def test_the_headers_by_name(block: bytes, name: str) -> None:
    lines: dict[str, str] = {}
    for found, value in header_lines(block):
        lines.setdefault(found.decode("utf-8", "replace"), value.decode("utf-8", "replace"))
    same_but_case = [value for found, value in lines.items() if found.lower() == name.lower()]
    wanted = lines.get(name, same_but_case[0] if same_but_case else None)
    for is_parsed in (False, True):
        headers = MessageHeaders(block)
        if is_parsed:
            assert list(headers.items()) == list(lines.items())
        assert headers.get(name) == wanted
        assert headers.get(name, "other") == ("other" if wanted is None else wanted)
        assert (name in headers) == (wanted is not None)
