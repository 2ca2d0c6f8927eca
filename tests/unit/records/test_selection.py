"""Which records a selection takes, against the plain reading of each condition."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from acl.subjects import is_valid_pattern, matches
from liftlog.errors import InvalidArgument
from liftlog.records.columns.batch_columns import decode_columns, encode_columns
from liftlog.records.columns.column_set import Columns
from liftlog.records.columns.selection import parse_selection
from liftlog.records.decode import RecordBatch, decode_batch
from liftlog.records.encode import encode_batch
from liftlog.records.message_headers import header_lines

STAMP = 1_700_000_000_000_000_000


def batch(
    values: list[bytes | None],
    *,
    subjects: list[bytes] | None = None,
    keys: list[bytes | None] | None = None,
    headers: list[bytes] | None = None,
) -> RecordBatch:
    count = len(values)
    return decode_batch(
        encode_batch(
            base_offset=11,
            leader_epoch=3,
            commit_group=1,
            stamps=[(STAMP + 1000 * i, 1) for i in range(count)],
            subjects=subjects or [b"a"] * count,
            values=values,
            keys=keys,
            headers=headers,
            has_tombstones=None in values,
        )
    )


def again(records: Columns) -> RecordBatch:
    """Through the bytes that are sent."""
    encoded = encode_columns(
        records, base_offset=11, last_offset=10_000, leader_epoch=3, commit_group=1
    )
    return decode_batch(encoded)


def block(*lines: bytes) -> bytes:
    return b"NATS/1.0\r\n" + b"".join(line + b"\r\n" for line in lines) + b"\r\n"


# --- subjects ---

tokens = st.sampled_from(["a", "b", "é", "\\x2a", "a+"])
subject_names = st.lists(tokens, min_size=1, max_size=4).map(".".join)
subject_patterns = (
    st.lists(tokens | st.just("*"), min_size=0, max_size=4)
    .flatmap(lambda some: st.sampled_from([some, [*some, ">"]]))
    .map(".".join)
    .filter(is_valid_pattern)
)


@given(
    names=st.lists(subject_names | st.sampled_from(["a..b", ".", "a."]), min_size=1, max_size=12),
    wanted=st.lists(subject_patterns, min_size=1, max_size=3),
)
def test_subjects_match_as_nats_would(names: list[str], wanted: list[str]) -> None:
    one = batch([b"v"] * len(names), subjects=[name.encode() for name in names])
    found = again(parse_selection(subjects=wanted).of(decode_columns(one)))
    expected = [name for name in names if any(matches(pattern, name) for pattern in wanted)]
    assert found.subjects() == expected


def test_a_subject_that_is_not_utf_8_is_matched_as_it_is_shown() -> None:
    one = batch([b"1", b"2"], subjects=[b"a.\xff", b"a.b"])
    found = again(parse_selection(subjects=["a.\\xff"]).of(decode_columns(one)))
    assert found.values() == [b"1"]
    assert found.escaped_subjects() == {"a.\\xff"}


# --- keys ---

some_keys = st.sampled_from([b"", b"\0", b"a", b"a\0", b"\0a", b"ab", b"b" * 40]) | st.binary(
    max_size=3
)


@given(
    keys=st.lists(st.none() | some_keys, min_size=1, max_size=20),
    wanted=st.lists(some_keys, min_size=1, max_size=4),
)
def test_keys_are_compared_byte_by_byte(keys: list[bytes | None], wanted: list[bytes]) -> None:
    one = batch([b"%d" % i for i in range(len(keys))], keys=keys)
    found = again(parse_selection(keys=wanted).of(decode_columns(one)))
    assert found.keys() == [key for key in keys if key in wanted and key is not None]


def test_no_keys_no_match() -> None:
    assert not len(parse_selection(keys=[b""]).of(decode_columns(batch([b"v"]))))


# --- headers ---

pieces = st.sampled_from(
    [b"A", b"a", b"AB", b":", b" ", b"\t", b"\r\n", b"\r", b"\n", b"x", b"xy", b"NATS/1.0", b""]
)
blocks = (
    st.lists(pieces, max_size=12).map(b"".join)
    | st.just(b"")
    | st.lists(
        st.sampled_from([b"A: x", b"a:x ", b"AB:x", b"A:", b"A: \t", b"A:xy", b": x", b"A"]),
        max_size=3,
    ).map(lambda lines: block(*lines))
)


def plainly_matches(raw: bytes, name: bytes, value: bytes | None) -> bool:
    return any(
        found.lower() == name.lower() and value in (None, given)
        for found, given in header_lines(raw)
    )


@given(
    headers=st.lists(blocks, min_size=1, max_size=10),
    name=st.sampled_from(["A", "a", "Ab", "x", "NATS/1.0"]),
    value=st.sampled_from([None, "", "x", " x ", "xy", "X", "x\r", "A"]),
)
@example([b"NATS/1.0\r\n", b"A: x\r\n\r\n"], "A", None)
@example([b"NATS/1.0\r\nA: x\r", b"\nB"], "A", "x")
@example([b"NATS/1.0\r\nA: x", b"y\r\n"], "A", "xy")
def test_headers_match_as_their_lines_do(
    headers: list[bytes], name: str, value: str | None
) -> None:
    one = batch([b"%d" % i for i in range(len(headers))], headers=headers)
    asked = name if value is None else f"{name}={value}"
    found = again(parse_selection(headers=[asked]).of(decode_columns(one)))
    wanted = None if value is None else value.strip(" \t").encode()
    assert found.headers() == [
        raw for raw in headers if plainly_matches(raw, name.encode(), wanted)
    ]


def test_of_several_headers_all_must_be_there() -> None:
    one = batch(
        [b"1", b"2", b"3"],
        headers=[block(b"A: 1", b"B: 2"), block(b"A: 1"), block(b"b: 2", b"a: 1", b"a: 9")],
    )
    found = again(parse_selection(headers=["A=1", "B"]).of(decode_columns(one)))
    assert found.values() == [b"1", b"3"]


def test_all_conditions_must_hold() -> None:
    one = batch(
        [b"1", b"2", b"3", b"4"],
        subjects=[b"a", b"b", b"a", b"a"],
        keys=[b"k", b"k", b"j", b"k"],
        headers=[block(b"H: 1")] * 3 + [b""],
    )
    found = again(
        parse_selection(subjects=["a"], keys=[b"k"], headers=["h"]).of(decode_columns(one))
    )
    assert list(found.offsets()) == [11]
    assert len(parse_selection(subjects=["nothing"], keys=[b"k"]).of(decode_columns(one))) == 0


# --- columns ---


def test_columns_left_out_hold_nothing_and_tombstones_stay_tombstones() -> None:
    one = batch(
        [b"v", None], subjects=[b"a", b"b"], keys=[b"k", b"l"], headers=[block(b"H: 1")] * 2
    )
    records = decode_columns(one)
    bare = again(parse_selection(columns=["offset"]).of(records))
    assert list(bare.offsets()) == [11, 12]
    assert bare.values() == [b"", None]
    assert bare.keys() == [None, None]
    assert bare.subjects() == ["", ""]
    assert bare.headers() == [b"", b""]
    assert bare.timestamps_ns() == [0, 0]
    keyed = again(parse_selection(columns=["key", "timestamp"]).of(records))
    assert keyed.keys() == [b"k", b"l"]
    assert keyed.timestamps_ns() == [STAMP, STAMP + 1000]
    rest = again(parse_selection(columns=["subject", "headers", "value"]).of(records))
    assert (rest.subjects(), rest.values()) == (["a", "b"], [b"v", None])
    assert rest.headers() == [block(b"H: 1")] * 2


def test_a_condition_may_be_on_a_column_that_is_left_out() -> None:
    one = batch([b"1", b"2"], subjects=[b"a", b"b"], keys=[b"k", b"l"])
    found = again(parse_selection(subjects=["b"], columns=["value"]).of(decode_columns(one)))
    assert (found.values(), found.subjects()) == ([b"2"], [""])


@pytest.mark.parametrize(
    "asked",
    [
        {"subjects": []},
        {"subjects": ["a..b"]},
        {"subjects": ["a b"]},
        {"keys": []},
        {"headers": []},
        {"headers": [""]},
        {"headers": ["=x"]},
        {"headers": ["a b=x"]},
        {"headers": ["a:b"]},
        {"headers": ["a=x\r\ny"]},
        {"columns": []},
        {"columns": ["offsets"]},
    ],
)
def test_what_selects_nothing_sensible_is_refused(asked: dict[str, list[str]]) -> None:
    with pytest.raises(InvalidArgument):
        parse_selection(**asked)  # type: ignore[arg-type]  # keys among them
