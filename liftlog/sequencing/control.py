"""Parses the requests in the headers of a message. `records.message_headers` defines their
names."""

from __future__ import annotations

import re
from typing import NamedTuple

from liftlog.records import message_headers
from liftlog.records.message_headers import first_value
from liftlog.sequencing.refusals import (
    BAD_TOMBSTONE,
    MESSAGE_ID_TOO_LONG,
    ROLLUP,
    UNSUPPORTED_FAMILIES,
    UNSUPPORTED_HEADERS,
    RefusalReason,
)

MESSAGE_ID = message_headers.MESSAGE_ID.encode()
CORRELATION_ID = message_headers.CORRELATION_ID.encode()
_EXPECTED_STREAM = message_headers.EXPECTED_STREAM.encode()
_EXPECTED_LAST_SEQUENCE = message_headers.EXPECTED_LAST_SEQUENCE.encode()
_EXPECTED_LAST_MESSAGE_ID = message_headers.EXPECTED_LAST_MESSAGE_ID.encode()
_EXPECTED_SUBJECT_SEQUENCE = message_headers.EXPECTED_SUBJECT_SEQUENCE.encode()
_EXPECTED_SUBJECT = message_headers.EXPECTED_SUBJECT.encode()
_ROLLUP = message_headers.ROLLUP.encode()
_KEY = message_headers.KEY.encode()
_TOMBSTONE = message_headers.TOMBSTONE.encode()

MAX_MESSAGE_ID_BYTES = 255
"""Maximum length of a message id, the same as in an envelope. JetStream has no limit, but liftlog
stores and repeats the id."""

ROLLUP_SUBJECT, ROLLUP_ALL = b"sub", b"all"
"""The values of the header of a roll-up."""

_BOOLEANS = {b"true": True, b"false": False}
_UNSUPPORTED = re.compile(
    rb"\r\n(%b):"
    % b"|".join(
        [re.escape(name) for name in UNSUPPORTED_HEADERS]
        + [re.escape(prefix) + rb"[^:\r\n]*" for prefix, _ in UNSUPPORTED_FAMILIES]
    )
)


class Control(NamedTuple):
    """Requests in the headers of one message.

    `expected_last_sequence` and `expected_subject_sequence` are -1, which no sequence matches, if
    the header exists but is not a number. `expected_subject` is the subject that
    `expected_subject_sequence` refers to, b"" for the subject of the message;
    `names_subject_sequence` is true if one of the headers for these two fields exists, even if the
    header is empty. `refusal` is set if the headers request something that liftlog does not
    support. If `judges_id` is false, the id does not make the message a duplicate. The id is then
    only stored, as in a rebuild of the dedupe state from the log.
    """

    message_id: bytes = b""
    expected_stream: bytes = b""
    expected_last_sequence: int | None = None
    expected_last_message_id: bytes = b""
    key: bytes | None = None
    tombstone: bool = False
    refusal: RefusalReason | None = None
    judges_id: bool = True
    expected_subject_sequence: int | None = None
    expected_subject: bytes = b""
    names_subject_sequence: bool = False
    rollup: bytes = b""
    """The records that the message replaces: `sub` for the records of its subject, `all` for all
    records of the stream."""


NO_CONTROL = Control()


def may_control(block: bytes) -> bool:
    """Return False if `parse_control` would certainly find no request in this block. The test is
    fast, and suffices for most messages. Names are case-sensitive, as in nats-server."""
    return b"Nats-" in block or b"Liftlog-" in block


def parse_control(block: bytes, *, own_only: bool = False) -> Control:
    """Parse the headers of a message. Uses the first header of each name, as nats-server does.

    With `own_only` the headers of JetStream are ignored, because they are meant for another
    receiver. Searches for each name and does not walk through the lines, because the publisher
    chooses their number.
    """
    key: bytes | None = None
    tombstone: bool | None = False
    if b"\r\nLiftlog-" in block:
        key = first_value(block, _KEY)
        wish = first_value(block, _TOMBSTONE)
        tombstone = False if wish is None else _BOOLEANS.get(wish.lower())
    refusal = BAD_TOMBSTONE if tombstone is None else None
    if b"\r\nNats-" not in block:
        return Control(b"", b"", None, b"", key, bool(tombstone), refusal, not own_only)
    message_id = first_value(block, MESSAGE_ID) or b""
    if own_only:
        return Control(message_id, b"", None, b"", key, bool(tombstone), refusal, judges_id=False)
    expected_stream = expected_last_message_id = b""
    expected_last_sequence = subject_sequence = subject = None
    names_subject_sequence = False
    if b"\r\nNats-Expected-" in block:
        expected_stream = first_value(block, _EXPECTED_STREAM) or b""
        expected_last_sequence = _sequence(first_value(block, _EXPECTED_LAST_SEQUENCE))
        expected_last_message_id = first_value(block, _EXPECTED_LAST_MESSAGE_ID) or b""
        if b"\r\nNats-Expected-Last-Subject-" in block:
            subject_sequence = first_value(block, _EXPECTED_SUBJECT_SEQUENCE)
            subject = first_value(block, _EXPECTED_SUBJECT)
            names_subject_sequence = not (subject_sequence is None and subject is None)
    rollup = first_value(block, _ROLLUP) if b"\r\nNats-Rollup" in block else None
    unsupported = _UNSUPPORTED.search(block)
    if unsupported is not None:
        refusal = _why_unsupported(unsupported[1])
    elif len(message_id) > MAX_MESSAGE_ID_BYTES:
        refusal = MESSAGE_ID_TOO_LONG
    elif rollup:  # an empty header has no effect, as in nats-server
        refusal = ROLLUP  # but some streams accept it
    return Control(
        message_id,
        expected_stream,
        expected_last_sequence,
        expected_last_message_id,
        key,
        bool(tombstone),
        refusal,
        expected_subject_sequence=_sequence(subject_sequence),
        expected_subject=subject or b"",
        names_subject_sequence=names_subject_sequence,
        rollup=(rollup or b"").lower(),
    )


def _why_unsupported(name: bytes) -> RefusalReason:
    exact = UNSUPPORTED_HEADERS.get(name)
    if exact is not None:
        return exact
    return next(family for prefix, family in UNSUPPORTED_FAMILIES if name.startswith(prefix))


def _sequence(raw: bytes | None) -> int | None:
    if not raw:
        return None
    return int(raw) if raw.isdigit() and len(raw) <= 20 else -1
