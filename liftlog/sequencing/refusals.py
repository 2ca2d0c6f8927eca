"""The reasons why a message is not stored, with JetStream's error codes.

Source: nats-server's server/errors.json (2.15). Clients react to `err_code`, so a refusal uses the
code with the closest meaning, also for a feature that JetStream supports and liftlog does not.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from liftlog.records.message_headers import (
    EXPECTED_SUBJECT,
    EXPECTED_SUBJECT_SEQUENCE,
    MESSAGE_ID,
    TOMBSTONE,
)


class RefusalReason(NamedTuple):
    """A reason to refuse a message. `reason` is the label of the metric; the nack contains the
    other fields."""

    reason: str
    code: int
    err_code: int
    description: str


MAX_SHOWN_BYTES = 255
"""Maximum size, in bytes, of a text from a publisher in an answer or a log line; longer text is
cut."""

TOO_LARGE = RefusalReason("too_large", 400, 10054, "message size exceeds maximum allowed")
WRONG_STREAM = RefusalReason("wrong_stream", 400, 10060, "expected stream does not match")
OVERLOADED = RefusalReason("overloaded", 429, 10167, "too many requests")
STORE_FAILED = RefusalReason("store_failed", 503, 10077, "the message could not be stored")
DISK_FULL = RefusalReason("disk_full", 503, 10077, "no space left on the disk of the log")
FULL_OF_MESSAGES = RefusalReason("full", 503, 10077, "maximum messages exceeded")
FULL_OF_SUBJECT = RefusalReason("full", 503, 10077, "maximum messages per subject exceeded")
FULL_OF_BYTES = RefusalReason("full", 503, 10077, "maximum bytes exceeded")
MOVING = RefusalReason("moving", 503, 10008, "the stream moves to another node")
NOT_LEADING = RefusalReason("not_leading", 503, 10008, "another node is to lead this stream")
NOT_ENOUGH_REPLICAS = RefusalReason(
    "not_enough_replicas", 503, 10008, "too few copies of the stream are in sync"
)
SHUTTING_DOWN = RefusalReason("shutting_down", 503, 10077, "the log is shutting down")
PAUSED = RefusalReason("paused", 503, 10077, "the stream is paused")
READ_ONLY = RefusalReason("read_only", 400, 10109, "the stream is read-only")
TOMBSTONE_WITHOUT_KEY = RefusalReason("bad_tombstone", 400, 10003, "a tombstone needs a key")
BAD_TOMBSTONE = RefusalReason("bad_tombstone", 400, 10003, f"{TOMBSTONE} must be true or false")
HEADERS_TOO_LARGE = RefusalReason(
    "headers_too_large", 400, 10097, "header size exceeds maximum allowed of 64k"
)
TOO_MANY_HEADERS = RefusalReason(
    "headers_too_large", 400, 10097, "more than 1000 header lines with an envelope"
)
MESSAGE_ID_TOO_LONG = RefusalReason(
    "bad_message_id", 400, 10003, f"the {MESSAGE_ID} is longer than 255 bytes"
)
FAST_BATCHES = RefusalReason("unsupported_batch", 400, 10205, "batch publish is disabled")
BAD_ENVELOPE = RefusalReason(
    "bad_envelope", 400, 10003, "a field of the envelope does not fit a NATS header"
)

_SCHEDULES = RefusalReason("unsupported_header", 400, 10188, "message schedules is disabled")
_BATCHES = RefusalReason("unsupported_header", 400, 10174, "atomic publish is disabled")

ROLLUP = RefusalReason("unsupported_header", 500, 10111, "rollup not permitted")
"""A stream that allows roll-ups accepts them."""
SUBJECT_SEQUENCES_ARE_OFF = RefusalReason(
    # The code is 10003, because a client that gets the code of a wrong sequence reads again and
    # retries.
    "unsupported_header",
    400,
    10003,
    f"{EXPECTED_SUBJECT_SEQUENCE} needs the setting subject_sequences of the stream",
)
EXPECTED_SUBJECT_WITH_WILDCARDS = RefusalReason(
    "unsupported_header",
    400,
    10003,
    f"{EXPECTED_SUBJECT} with wildcards is not supported",
)
EXPECTED_SUBJECT_WITHOUT_SEQUENCE = RefusalReason(
    "missing_sequence",
    400,
    10193,
    "missing sequence for expected last sequence per subject",
)
LAST_SEQUENCE_UNKNOWN = RefusalReason(
    "last_sequence_unknown",
    503,
    10163,
    "the last sequence of this subject is not known: the log is being scanned, or has more "
    "subjects than subject_sequences.max_subjects of the stream",
)

UNSUPPORTED_HEADERS: dict[bytes, RefusalReason] = {
    b"Nats-TTL": RefusalReason("unsupported_header", 400, 10166, "per-message TTL is disabled"),
    b"Nats-Incr": RefusalReason("unsupported_header", 400, 10168, "message counters is disabled"),
    b"Nats-Required-Api-Level": RefusalReason(
        "unsupported_header", 412, 10185, "JetStream minimum api level required"
    ),
}
UNSUPPORTED_FAMILIES: tuple[tuple[bytes, RefusalReason], ...] = (
    (b"Nats-Schedule", _SCHEDULES),
    (b"Nats-Batch-", _BATCHES),
)


def invalid_rollup(value: bytes) -> RefusalReason:
    text = f"rollup value invalid: {json.dumps(shown(value))}"
    return RefusalReason("unsupported_header", 500, 10111, text)


def wrong_last_sequence(last: int) -> RefusalReason:
    return RefusalReason("wrong_last_sequence", 400, 10071, f"wrong last sequence: {last}")


def wrong_last_message_id(last: bytes) -> RefusalReason:
    """Return the refusal for a wrong expected id. `last` may be long, because older versions stored
    ids of any length."""
    return RefusalReason("wrong_last_msg_id", 400, 10070, f"wrong last msg ID: {shown(last)}")


def shown(raw: bytes) -> str:
    """Return bytes from a publisher as text of limited length."""
    text = raw[:MAX_SHOWN_BYTES].decode("utf-8", "replace")
    return text if len(raw) <= MAX_SHOWN_BYTES else text + "..."


def to_json(document: dict[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def refusal_body(stream: str, refusal: RefusalReason, correlation_id: str | None = None) -> bytes:
    """Return the JSON of a nack, in the format of a JetStream publish error."""
    document: dict[str, Any] = {
        "error": {
            "code": refusal.code,
            "err_code": refusal.err_code,
            "description": refusal.description,
        },
        "stream": stream,
        "seq": 0,
    }
    if correlation_id is not None:
        document["correlation_id"] = correlation_id
    return to_json(document)
