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
    there but is no number: no sequence can meet it. `refusal` is set when they ask for something
    that we do not do. `judges_id` is false for an id that is only remembered, as a rebuild of the
    dedupe state from the log would remember it."""

    message_id: bytes = b""
    expected_stream: bytes = b""
    expected_last_sequence: int | None = None
    expected_last_message_id: bytes = b""
    key: bytes | None = None
    tombstone: bool = False
    refusal: Refusal | None = None
    judges_id: bool = True


NO_CONTROL = Control()


def may_control(block: bytes) -> bool:
    """Cheap test that lets most messages skip `parse_control`. Names are case-sensitive, as in
    nats-server."""
    return b"Nats-" in block or b"Liftlog-" in block


def parse_control(block: bytes, *, own_only: bool = False) -> Control:
    """The first header of each name counts, as in nats-server.

    With `own_only` the headers of JetStream are meant for somebody else and ask nothing of us.
    """
    found: dict[bytes, bytes] = {}
    refusal: Refusal | None = None
    for name, value in header_lines(block):
        if name not in found:
            found[name] = value
            if not own_only and refusal is None and name.startswith(b"Nats-"):
                refusal = _why_unsupported(name)
    tombstone = _BOOLEANS.get(found.get(TOMBSTONE, b"false").lower())
    if tombstone is None:
        refusal = refusal or BAD_TOMBSTONE
    control = Control(
        message_id=found.get(MESSAGE_ID, b""),
        key=found.get(KEY),
        tombstone=bool(tombstone),
        refusal=refusal,
        judges_id=not own_only,
    )
    if own_only:
        return control
    return control._replace(
        expected_stream=found.get(EXPECTED_STREAM, b""),
        expected_last_sequence=_sequence(found.get(EXPECTED_LAST_SEQUENCE)),
        expected_last_message_id=found.get(EXPECTED_LAST_MESSAGE_ID, b""),
    )


def _why_unsupported(name: bytes) -> Refusal | None:
    exact = UNSUPPORTED_HEADERS.get(name)
    if exact is not None:
        return exact
    return next(
        (family for prefix, family in UNSUPPORTED_FAMILIES if name.startswith(prefix)), None
    )


def _sequence(raw: bytes | None) -> int | None:
    if not raw:
        return None
    return int(raw) if raw.isdigit() and len(raw) <= 20 else -1
