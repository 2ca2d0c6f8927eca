"""Values of anybody as text for a page: nothing raises, nothing is endless, nothing hides."""

from __future__ import annotations

import json

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.timing import is_cheap

from liftlog.server.web import content
from liftlog.server.web.content import VIEWS, preview, show
from liftlog.server.web.outline import MAX_DEPTH, MAX_LINES


@pytest.mark.parametrize(
    ("raw", "view", "text"),
    [
        (b"hello", "text", "hello"),
        (b'{"a":1}', "json", '{\n  "a": 1\n}'),
        (b"[1,2]", "json", "[\n  1,\n  2\n]"),
        (b"{broken", "text", "{broken"),
        (msgpack.packb({"a": b"\xff"}), "msgpack", '{\n  "a": b"ff"\n}'),
        (b"\x00\x01\x02", "hex", "00000000  00 01 02                                          ···"),
        (b"", "text", ""),
    ],
)
def test_what_it_is_taken_for(raw: bytes, view: str, text: str) -> None:
    found = show(raw)
    assert found[:2] == (view, text)


def test_what_somebody_asks_for_and_it_is_not() -> None:
    assert show(b"hello", "json") == ("text", "hello", "this is not JSON")
    assert show(b"\xc1", "msgpack").view == "hex"
    assert show(b"7", "msgpack").text == "55"
    assert show(None, "hex").view == preview(None).view == "tombstone"


def test_msgpack_that_is_hardly_json() -> None:
    twice = b"\x82\xa1a\x01\xa1a\x02"
    assert show(twice, "msgpack").text == '{\n  "a": 1,\n  "a": 2\n}'
    assert show(msgpack.packb({1: [True, None]}), "msgpack").text.startswith("{\n  1: [")
    assert show(msgpack.packb(msgpack.ExtType(5, b"ab")), "msgpack").text == 'ext(5, b"6162")'
    assert "timestamp(1.000000002)" in show(
        msgpack.packb([msgpack.Timestamp(1, 2)]), "msgpack"
    ).text  # fmt: skip


def test_bytes_inside_msgpack_are_text_only_if_they_are() -> None:
    raw = msgpack.packb([b"\x02Z\x13]", "grün", b"\xff"])
    assert show(raw).text == '[\n  b"025a135d",\n  "grün",\n  b"ff"\n]'


def test_what_hides_is_seen() -> None:
    """Controls of terminals, and those that turn the direction of writing."""
    shown = show("a\x1b[31m\u202eb\x00".encode(), "text").text
    assert shown == "a\u241b[31m\ufffdb\u2400"


def test_a_character_that_the_look_cuts() -> None:
    raw = b"x" * (content.LOOKED_AT_BYTES - 1) + "é".encode() * 100
    assert show(raw).view == "text"
    assert show(b"x" * 10 + "é".encode()[:1]).view == "hex"


def test_what_is_too_deep_says_so() -> None:
    for view, opening, closing in (("json", b"[", b"]"), ("msgpack", b"\x91", b"")):
        deepest = opening * MAX_DEPTH + b"1" + closing * MAX_DEPTH
        assert show(deepest, view).view == view
        found = show(opening + deepest + closing, view)
        assert (found.view, found.problem[:25]) != (view, "")
        assert found.problem.startswith(f"nested deeper than {MAX_DEPTH} levels")


def test_a_long_outline_stops_and_says_so() -> None:
    raw = msgpack.packb(list(range(20_000)))
    found = show(raw, "msgpack")
    assert found.view == "msgpack"
    assert found.text.startswith("[\n  0,\n  1,\n")
    assert found.text.count("\n") == MAX_LINES
    assert found.problem == f"the first {len(found.text):,} characters"
    assert preview(raw, "msgpack").text.startswith("[ 0, 1, 2, ")
    assert preview(raw, "msgpack").problem == ""


def test_what_is_too_long_says_so() -> None:
    long = show(b"x" * 100_000)
    assert len(long.text) == content.MAX_SHOWN_BYTES
    assert long.problem == "the first 65,536 of 100,000 bytes"
    assert show(b"\x00" * 100_000).problem == "the first 16,384 of 100,000 bytes"
    big = json.dumps(["x" * 70_000]).encode()
    assert show(big, "json").problem.startswith("larger than 64 KiB")
    assert len(preview(b"y" * 10_000).text) < 300
    assert len(preview(b"\x00" * 10_000).text) < 300


@pytest.mark.parametrize(
    "raw",
    [b"[" * 60_000, b"[" * 30_000 + b"]" * 30_000, b'{"a":' * 10_000, b"\x91" * 60_000,
     b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff\x01", b"1" * 60_000, b"\xc7\xff\x01",
     b'"' + b"\\u202e" * 9000 + b'"', b"[" + b"1e999," * 9000 + b"1]", b"\x81\x90\x01",
     b"\xd7\xff" + b"\xff" * 8, b"NaN", b"\xca\x7f\x80\x00\x00",
     b"\x91" * 60 + b"\xdc\xfd\xe8" + b"\x01" * 65_000, b"\x91" * 500 + b"\x01" * 60_000,
     b"\xdc\xff\xff" * 20_000, b"\xdc\xfd\xe8" + b"\x80" * 65_000,
     b"\xdc\xfd\xe8" + b"\xc0" * 65_000,
     b"\xdf\x00\x00\x7f\x00" + b"\x01\x90" * 0x7F00, b"\xc5\xff\x00" + b"\xff" * 0xFF00,
     b"[" * 60 + b"1," * 32_000 + b"1" + b"]" * 60, b"[" + b'"\xc2\x9b",' * 13_000 + b"1]",
     b"[" + b"{}," * 21_000 + b"1]", "\u202e\x9b\x1b[2J".encode() * 8000],
)  # fmt: skip
@pytest.mark.parametrize("view", VIEWS)
def test_bombs_cost_little(raw: bytes, view: str) -> None:
    assert len(show(raw, view).text) <= content.MAX_CHARS
    assert len(preview(raw, view).text) <= content.PREVIEW_CHARS + 2
    assert is_cheap(lambda: show(raw, view), 0.1)
    assert is_cheap(lambda: preview(raw, view), 0.02)


@given(st.binary(max_size=300), st.sampled_from(VIEWS))
def test_any_bytes(raw: bytes, view: str) -> None:
    found = show(raw, view)
    assert found.view in ("text", "json", "hex", "msgpack")
    assert content.visible(found.text) == found.text
    preview(raw, view)


@given(st.binary(max_size=50))
def test_a_key_finds_itself(raw: bytes) -> None:
    from liftlog.server.web.browsing import parse_key

    text = content.as_key(raw)
    assert text is not None
    if not text.startswith("base64:"):
        assert parse_key(text) == raw
