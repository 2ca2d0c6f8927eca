"""Messages that may be published, and their bytes."""

from __future__ import annotations

from typing import Any

import pytest

import envelope
from liftlog.client.publishing.headers import lines_of
from liftlog.client.publishing.message import OutgoingMessage, checked
from liftlog.errors import InvalidArgument
from liftlog.records.message_headers import MessageHeaders, build_block, header_lines


def make(subject: str = "orders.a", value: Any = b"v", **fields: Any) -> OutgoingMessage:
    given = {"key": None, "message_id": None, "use_envelope": False} | fields
    return checked(subject, value, headers=lines_of(given.pop("headers", None)), **given)


def lines(block: bytes) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in header_lines(block)}


def test_headers_carry_key_tombstone_id_and_preconditions() -> None:
    assert make().to_wire("r") == (b"v", b"")
    payload, block = make(value="ü", key="kü", headers={"A": "b"}, message_id="m").to_wire(
        "r", stream="orders", last_sequence=0
    )
    assert payload == "ü".encode()
    assert lines(block) == {
        "A": "b",
        "Nats-Msg-Id": "m",
        "Liftlog-Key": "kü",
        "Nats-Expected-Stream": "orders",
        "Nats-Expected-Last-Sequence": "0",
    }
    payload, block = make(value=None, key=b"k").to_wire("r")
    assert (payload, lines(block)) == (b"", {"Liftlog-Key": "k", "Liftlog-Tombstone": "true"})


def test_an_envelope_carries_the_same_and_the_ack_subject() -> None:
    message = make(
        value=None, key=b"\xff\r\n", headers={"A": "b"}, message_id="m", use_envelope=True
    )
    payload, block = message.to_wire("_INBOX.r.1.1", stream="orders", last_sequence=4)
    assert block == b""
    opened = envelope.decode(payload)
    assert opened is not None
    assert (opened.value, opened.key, opened.message_id) == (None, b"\xff\r\n", "m")
    assert opened.ack_subject == "_INBOX.r.1.1"
    assert dict(opened.headers) == {"A": "b", "Nats-Expected-Stream": "orders"}
    assert opened.expected_last_offset == 4


@pytest.mark.parametrize(
    "subject", ["", ".", "a..b", "a.", ".a", "a b", "a.*", "*.a", ">", "a\r\nPUB x", "a.\ud800"]
)
def test_subjects(subject: str) -> None:
    with pytest.raises(InvalidArgument, match="is not a subject to publish on"):
        make(subject)


@pytest.mark.parametrize(
    "subject", ["a", "a.b", "a*", "a.*b", "<b>x", "a.>b", "**", "ü.日", "a.\udcff"]
)
def test_subjects_that_nats_takes_literally(subject: str) -> None:
    assert make(subject).subject == subject


@pytest.mark.parametrize(
    "fields",
    [
        {"headers": {"": "x"}},
        {"headers": {"A B": "x"}},
        {"headers": {"A:": "x"}},
        {"headers": {"A": "x\r\nB: y"}},
        {"headers": {"A": " x"}},
        {"headers": {"A": "x\u2003"}, "use_envelope": True},
        {"headers": {"A": "\udcff"}},
        {"message_id": ""},
        {"message_id": " m"},
        {"message_id": "m\n"},
        {"message_id": "\udcff"},
        {"key": b"\xff"},
        {"key": "k "},
        {"key": "\udcff"},
        {"value": "\udcff"},
        {"key": b"k\rk"},
        {"value": None},
        {"value": None, "use_envelope": True},
        {"headers": {"A": 1}},
        {"headers": {"A": ["x", None]}},
        {"headers": {"A": b"x "}},
        {"headers": {b"A": b"x\r\nB: y"}},
        {"headers": [("A", b"\tx")]},
        {"headers": [("A", "x", "y")]},
        {"headers": ["A: x"]},
    ],
)
def test_what_would_not_arrive_as_it_is(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        make(**fields)


HOSTILE = [
    (b"A", b"1"),
    (b"B", b""),
    (b"A", b"2"),
    (b"a", b"\xff\xfe"),
    (b"na me", b"x\ny\rz"),
    ("n\xe4me".encode(), b"Nats-Msg-Id: no"),
]


@pytest.mark.parametrize("use_envelope", [False, True])
def test_every_line_is_sent_in_its_order(use_envelope: bool) -> None:
    """Also with an envelope, which could not hold these lines."""
    for given in (HOSTILE, MessageHeaders(build_block(HOSTILE))):
        payload, block = make(headers=given, key="k", use_envelope=use_envelope).to_wire("r")
        found = header_lines(block)
        assert found[: len(HOSTILE)] == HOSTILE
        assert found[len(HOSTILE) :] == ([] if use_envelope else [(b"Liftlog-Key", b"k")])
        assert (envelope.decode(payload) is not None) is use_envelope


def test_a_name_may_have_a_list_of_values() -> None:
    given = {"A": ["1", b"\xff"], "B": "x", "C": []}
    assert lines_of(given) == [(b"A", b"1"), (b"A", b"\xff"), (b"B", b"x")]
    assert header_lines(make(headers=given).to_wire("r")[1]) == lines_of(given)


def test_what_the_publisher_sets_takes_the_place_of_the_same_header() -> None:
    given = [("Liftlog-Key", "old"), ("A", "b"), ("Nats-Msg-Id", "old"), ("Liftlog-Key", "older")]
    _, block = make(headers=given, key="new", message_id="m").to_wire("r")
    assert header_lines(block) == [(b"A", b"b"), (b"Nats-Msg-Id", b"m"), (b"Liftlog-Key", b"new")]


@pytest.mark.parametrize("headers", [{"A": "x" * 70_000}, {f"H{n}": "x" for n in range(65)}])
def test_headers_beyond_the_bounds_of_an_envelope_stay_headers(headers: dict[str, str]) -> None:
    payload, block = make(headers=headers, use_envelope=True).to_wire("r")
    opened = envelope.decode(payload)
    assert opened is not None
    assert not opened.headers
    assert lines(block) == headers
