"""The bytes of a checkpoint: what the page says, and nothing else is understood."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftlog.errors import CorruptBatch
from liftlog.server.checkpoints.checkpoint import (
    Stored,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)

PAGE = (Path(__file__).parents[3] / "docs/reference/checkpoints.md").read_text()
GOOD = {"v": 1, "offset": 42, "epoch": 1, "incarnation": "ab", "time_ns": 5}

NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}", fullmatch=True)


def test_the_example_of_the_page() -> None:
    found = re.search(r'^\{"v":1.*\}$', PAGE, re.M)
    assert found
    stored = Stored(42, 1, "0f1e2d3c4b5a69788796a5b4c3d2e1f0", 1_700_000_000_000_000_000)
    assert encode_value(stored).decode() == found[0]
    assert decode_value(found[0].encode()) == stored
    assert "`billing/orders`" in PAGE
    assert encode_key(("billing", "orders")) == b"billing/orders"


@given(NAMES, NAMES | st.just("_offsets"))
def test_keys_come_back(consumer: str, stream: str) -> None:
    assert decode_key(encode_key((consumer, stream))) == (consumer, stream)


@given(
    st.builds(
        Stored,
        st.integers(1, 2**63 - 1),
        st.integers(0, 2**32 - 1),
        st.text(),
        st.integers(0, 2**63 - 1),
        st.text(),
        st.text(),
    )
)
def test_values_come_back(stored: Stored) -> None:
    raw = encode_value(stored)
    assert raw.isascii()
    assert decode_value(raw) == stored


@pytest.mark.parametrize(
    "raw",
    [None, b"", b"a", b"a/b/c", b"/b", b"a/", b"_a/b", b"a/.", b"a/b\n", b"\xff/b", "ä/b".encode()],
)
def test_what_is_no_key(raw: bytes | None) -> None:
    with pytest.raises(CorruptBatch):
        decode_key(raw)


@pytest.mark.parametrize(
    "change",
    [
        {"v": 2},
        {"v": None},
        {"offset": 0},
        {"offset": -1},
        {"offset": 2**63},
        {"offset": 1.0},
        {"offset": True},
        {"offset": "1"},
        {"epoch": 2**32},
        {"incarnation": 5},
        {"time_ns": None},
        {"metadata": 1},
    ],
)
def test_what_is_no_value(change: dict[str, object]) -> None:
    assert decode_value(json.dumps(GOOD).encode()).offset == 42
    with pytest.raises(CorruptBatch):
        decode_value(json.dumps(GOOD | change).encode())


@pytest.mark.parametrize("raw", [b"", b"42", b"[]", b"{", b"\xff", b"[" * 100_000, b'{"v":1}'])
def test_what_is_not_even_an_object(raw: bytes) -> None:
    with pytest.raises(CorruptBatch):
        decode_value(raw)


def test_unknown_keys_are_ignored() -> None:
    assert decode_value(json.dumps(GOOD | {"colour": "red"}).encode()).offset == 42
