"""The message headers that steer storing, as JetStream names them, and our two own."""

from __future__ import annotations

from typing import NamedTuple

from liftlog.records.message_headers import header_lines
from liftlog.stream.refusals import (
    BAD_TOMBSTONE,
    UNSUPPORTED_FAMILIES,
    UNSUPPORTED_HEADERS,
    Refusal,
)

MESSAGE_ID = b"Nats-Msg-Id"
EXPECTED_STREAM = b"Nats-Expected-Stream"
EXPECTED_LAST_SEQUENCE = b"Nats-Expected-Last-Sequence"
EXPECTED_LAST_MESSAGE_ID = b"Nats-Expected-Last-Msg-Id"
KEY = b"Liftlog-Key"
TOMBSTONE = b"Liftlog-Tombstone"
CORRELATION_ID = b"Liftlog-Correlation-Id"

_BOOLEANS = {b"true": True, b"false": False}


class Control(NamedTuple):
    """What the headers of one message ask for. `expected_last_sequence` is -1 when the header is
    there but is no number: no sequence can meet it."""

    message_id: bytes = b""
    expected_stream: bytes = b""
    expected_last_sequence: int | None = None
    expected_last_message_id: bytes = b""
    key: bytes | None = None
    tombstone: bool = False


NO_CONTROL = Control()


def may_control(block: bytes) -> bool:
    """Cheap test that lets most messages skip `parse_control`. Names are case-sensitive, as in
    nats-server."""
    return b"Nats-" in block or b"Liftlog-" in block


def parse_control(block: bytes) -> Control | Refusal:
    """The first header of each name counts, as in nats-server."""
    found: dict[bytes, bytes] = {}
    for name, value in header_lines(block):
        refusal = UNSUPPORTED_HEADERS.get(name)
        if refusal is None and name.startswith(b"Nats-"):
            for prefix, family in UNSUPPORTED_FAMILIES:
                if name.startswith(prefix):
                    refusal = family
        if refusal is not None:
            return refusal
        found.setdefault(name, value)
    tombstone = _BOOLEANS.get(found.get(TOMBSTONE, b"false").lower())
    if tombstone is None:
        return BAD_TOMBSTONE
    return Control(
        message_id=found.get(MESSAGE_ID, b""),
        expected_stream=found.get(EXPECTED_STREAM, b""),
        expected_last_sequence=_sequence(found.get(EXPECTED_LAST_SEQUENCE)),
        expected_last_message_id=found.get(EXPECTED_LAST_MESSAGE_ID, b""),
        key=found.get(KEY),
        tombstone=tombstone,
    )


def _sequence(raw: bytes | None) -> int | None:
    if not raw:
        return None
    return int(raw) if raw.isdigit() and len(raw) <= 20 else -1
