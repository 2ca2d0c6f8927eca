"""What may be published, and the bytes that carry it."""

from __future__ import annotations

from typing import Any

import pytest

import envelope
from liftlog.client.publishing.message import OutgoingMessage, checked
from liftlog.errors import InvalidArgument


def make(subject: str = "orders.a", value: Any = b"v", **fields: Any) -> OutgoingMessage:
    given = {"key": None, "headers": {}, "message_id": None, "use_envelope": False} | fields
    return checked(subject, value, **given)


def test_headers_carry_key_tombstone_id_and_preconditions() -> None:
    assert make().to_wire("r") == (b"v", None)
    payload, headers = make(value="ü", key="kü", headers={"A": "b"}, message_id="m").to_wire(
        "r", stream="orders", last_sequence=0
    )
    assert payload == "ü".encode()
    assert headers == {
        "A": "b",
        "Nats-Msg-Id": "m",
        "Liftlog-Key": "kü",
        "Nats-Expected-Stream": "orders",
        "Nats-Expected-Last-Sequence": "0",
    }
    assert make(value=None, key=b"k").to_wire("r") == (
        b"",
        {"Liftlog-Key": "k", "Liftlog-Tombstone": "true"},
    )


def test_an_envelope_carries_the_same_and_the_ack_subject() -> None:
    message = make(
        value=None, key=b"\xff\r\n", headers={"A": "b"}, message_id="m", use_envelope=True
    )
    payload, headers = message.to_wire("_INBOX.r.1.1", stream="orders", last_sequence=4)
    assert headers is None
    opened = envelope.decode(payload)
    assert opened is not None
    assert (opened.value, opened.key, opened.message_id) == (None, b"\xff\r\n", "m")
    assert opened.ack_subject == "_INBOX.r.1.1"
    assert dict(opened.headers) == {"A": "b", "Nats-Expected-Stream": "orders"}
    assert opened.expected_last_offset == 4


@pytest.mark.parametrize("subject", ["", ".", "a..b", "a.", ".a", "a b", "a.*", ">", "a\r\nPUB x"])
def test_subjects(subject: str) -> None:
    with pytest.raises(InvalidArgument, match="is not a subject to publish on"):
        make(subject)


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
        {"headers": {"A": "x" * 70_000}, "use_envelope": True},
    ],
)
def test_what_would_not_arrive_as_it_is(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        make(**fields)
