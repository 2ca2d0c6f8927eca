"""The bytes of a record of the journal."""

from __future__ import annotations

import pytest

from liftlog.errors import CorruptBatch, NewerFormat
from liftlog.server.journal.records import (
    Chaining,
    Change,
    ConsumerKey,
    StateVersion,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)

KEY = ConsumerKey("0123abcd", "worker $1é")
CHAINING = Chaining(2**40, 17, is_uncertain=True)
VERSION = StateVersion(2**32 - 1, 2**63)


@pytest.mark.parametrize(
    "change",
    [
        Change.snapshot(KEY, VERSION, b"settings", b"state"),
        Change.updated(KEY, VERSION, b"settings"),
        Change.delta(KEY, VERSION, b"\0" * 1000),
        Change.deleted(KEY),
        Change.stream_deleted("0123abcd"),
    ],
)
def test_a_change_comes_back(change: Change) -> None:
    key = decode_key(encode_key(change.key))
    assert decode_value(key, encode_value(change, CHAINING)) == (change, CHAINING)


def test_the_bytes() -> None:
    """As docs/reference/storage-format.md has them."""
    change = Change.snapshot(ConsumerKey("a1", "one"), StateVersion(3, 4), b"SS", b"state")
    assert encode_key(change.key) == b"a1/one"
    assert (
        encode_value(change, Chaining(5, 6, is_uncertain=True))
        == bytes.fromhex("01 01 0100 02000000 03000000 06000000 0400000000000000 0500000000000000")
        + b"SSstate"
    )


@pytest.mark.parametrize("raw", [b"", b"/one", b"a1", b"\xff/one"])
def test_a_key_that_is_none(raw: bytes) -> None:
    with pytest.raises(CorruptBatch):
        decode_key(raw)


def test_values_that_are_none() -> None:
    value = encode_value(Change.updated(KEY, VERSION, b"settings"), CHAINING)
    for raw in (b"", value[:31], b"\1\0" + value[2:], value[:-1]):
        with pytest.raises(CorruptBatch):
            decode_value(KEY, raw)
    with pytest.raises(NewerFormat, match="version 2"):
        decode_value(KEY, b"\2" + value[1:])
