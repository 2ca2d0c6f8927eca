"""Records and messages <-> JSON and raw bytes."""

from __future__ import annotations

import base64
import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from liftlog.client.publishing.headers import lines_of
from liftlog.errors import InvalidArgument
from liftlog.records.decode import Record
from liftlog.records.json_form import Encoding, record_object
from liftlog.records.message_headers import build_block, header_lines
from liftlog.server.http import bodies
from liftlog.server.http.failures import NotRepresentable

small = st.binary(max_size=60)
names = st.text("abcXYZ-", min_size=1, max_size=8)
values = st.text("aé %\t~", max_size=20).map(lambda text: text.strip().encode()) | st.just(b"\xff")


def made(value: bytes | None, key: bytes | None, subject: str, block: bytes) -> Record:
    return Record(7, 1_767_225_600_123_456_000, subject, key, value, block)


@given(
    small,
    st.none() | small,
    st.text(min_size=1, max_size=20),
    st.lists(st.tuples(names, values), max_size=6),
)
def test_a_raw_answer_sent_back_is_the_same_message(
    value: bytes, key: bytes | None, subject: str, headers: list[tuple[str, bytes]]
) -> None:
    block = build_block([(name.encode(), text) for name, text in headers])
    head = bodies.record_head(made(value, key, subject, block), block)
    for name, text in head:
        assert (name + text).isascii()
        assert text == text.strip()
        assert (name + text).isprintable() or "\t" in text
    message = bodies.message_from_raw(CIMultiDict(head), value)
    assert (message.value, message.key, message.subject) == (value, key, subject)
    assert lines_of(message.headers) == header_lines(block)


def shown_as_json(record: Record, encoding: Encoding = "auto") -> Any:
    return json.loads("".join(bodies.record_json("s", record, encoding)))


many_lines = st.lists(st.tuples(small, small), max_size=40).map(lambda some: some * 30)


@given(small, st.none() | small, many_lines)
def test_a_json_answer_is_whole_however_many_pieces_it_has(
    value: bytes, key: bytes | None, lines: list[tuple[bytes, bytes]]
) -> None:
    block = b"NATS/1.0\r\n" + b"".join(b"%b: %b\r\n" % line for line in lines) + b"\r\n"
    record = made(value, key, "a", block)
    text = "".join(bodies.record_json("s", record, "auto"))
    assert text == json.dumps({"stream": "s", **record_object(record)}, ensure_ascii=False)


@given(small, st.none() | small, st.text(max_size=20))
def test_a_json_answer_sent_back_is_the_same_message(
    value: bytes, key: bytes | None, subject: str
) -> None:
    shown = shown_as_json(made(value, key, subject, b""))
    known = {
        name: shown[name]
        for name in shown
        if name in ("value", "value_encoding", "key", "key_encoding", "subject")
    }
    message = bodies.message_from_json(json.dumps(known).encode())
    assert (message.value, message.key, message.subject) == (value, key, subject)


def test_the_encoding_that_was_asked_for() -> None:
    record = made(b"text", b"\xff", "a", b"")
    always = shown_as_json(record, "base64")
    assert base64.b64decode(always["value"]) == b"text"
    assert always["value_encoding"] == always["key_encoding"] == "base64"
    with pytest.raises(NotRepresentable):
        shown_as_json(record, "utf-8")


@pytest.mark.parametrize("block", [b"NATS/1.0\r\na b: c\r\n\r\n", b"NATS/1.0\r\n\xff: c\r\n\r\n"])
def test_header_names_that_http_lacks(block: bytes) -> None:
    with pytest.raises(NotRepresentable):
        bodies.record_head(made(b"", None, "a", block), block)


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=10,
)
fields = st.sampled_from(sorted(bodies.FIELDS))


@given(st.dictionaries(fields, json_values, max_size=8))
def test_no_document_raises_anything_else(document: dict[str, Any]) -> None:
    try:
        message = bodies.message_from_json(json.dumps(document).encode())
    except InvalidArgument:
        return
    assert message.value is None or isinstance(message.value, bytes)
    for text in (message.subject, message.message_id):
        assert text is None or text.encode() is not None
    with suppress(InvalidArgument):
        lines_of(message.headers)


@given(st.binary(max_size=100))
def test_no_bytes_raise_anything_else(body: bytes) -> None:
    with pytest.raises(InvalidArgument):
        bodies.message_from_json(b"\x00" + body)


@given(st.dictionaries(st.text(max_size=10).map(lambda n: bodies.HEADER_PREFIX + n)
       | st.sampled_from([bodies.KEY, bodies.SUBJECT, bodies.TOMBSTONE, bodies.MESSAGE_ID,
                          bodies.EXPECTED_LAST_OFFSET]),
       st.binary(max_size=20).map(lambda b: b.decode("utf-8", "surrogateescape")), max_size=5),
       small)  # fmt: skip
def test_no_head_raises_anything_else(head: dict[str, str], body: bytes) -> None:
    try:
        bodies.message_from_raw(CIMultiDict(head), body)
    except InvalidArgument:
        pass


def test_a_header_that_stands_there_twice() -> None:
    head = CIMultiDict([("Liftlog-Header-A", "1"), ("Liftlog-Header-A", "%FF")])
    message = bodies.message_from_raw(head, b"")
    assert lines_of(message.headers) == [(b"A", b"1"), (b"A", b"\xff")]


@pytest.mark.parametrize(
    "lines",
    [
        [(b"A", b"1"), (b"A", b"2")],
        [(b"A", b"1"), (b"a", b"2"), (b"A", b"3")],
        [(b"A", b"\xff"), (b"B", b"")],
    ],
)
def test_headers_of_a_json_answer_sent_back_are_the_same(lines: list[tuple[bytes, bytes]]) -> None:
    shown = shown_as_json(made(b"", None, "a", build_block(lines)))
    known = {name: shown[name] for name in shown if name in bodies.FIELDS}
    message = bodies.message_from_json(json.dumps(known).encode())
    assert lines_of(message.headers) == lines
