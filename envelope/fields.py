"""The fields of an envelope, and checks of their values.

Every check returns the problem as text, or None. `encode` raises the problem as a ValueError.
`decode` treats data with any problem as a plain message.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

from .format import (
    MAX_ACK_SUBJECT_BYTES,
    MAX_HEADER_NAME_BYTES,
    MAX_HEADER_VALUE_BYTES,
    MAX_HEADERS,
    MAX_ID_BYTES,
    MAX_KEY_BYTES,
    MAX_OFFSET,
)

AckPolicy = Literal["none", "leader", "all"]
ACK_POLICIES: Final[tuple[AckPolicy, ...]] = ("none", "leader", "all")

NO_HEADERS: Mapping[str, str] = MappingProxyType({})

# Printable ASCII without blanks and colons, as in NATS (its ADR-4).
_HEADER_NAME = re.compile(r"[!-9;-~]+")
# One line: no control characters, no Unicode line separators, and no blank at either end, because
# parsers remove it and the value would not come back unchanged.
_HEADER_VALUE = re.compile(
    r"(?:[^\x00-\x20\x7f-\x9f\u2028\u2029\ud800-\udfff]"
    r"(?:[^\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]*"
    r"[^\x00-\x20\x7f-\x9f\u2028\u2029\ud800-\udfff])?)?"
)
# Tokens of printable ASCII without blanks, wildcards and dots, joined by dots. NATS itself would
# execute an ack that is sent below `$` ($JS.API.STREAM.PURGE.X) as a command. liftlog would do the
# same below `liftlog.`.
_ACK_SUBJECT = re.compile(r"(?!\$|liftlog\.)[!-)+\-,/-=?-~]+(?:\.[!-)+\-,/-=?-~]+)*")


class Envelope(NamedTuple):
    """The content of an envelope. If `value` is None, the envelope is a tombstone and has a key.

    It is a tuple, because each message needs an envelope, and the creation of a frozen dataclass
    takes eight times as long.
    """

    value: bytes | None
    key: bytes | None = None
    headers: Mapping[str, str] = NO_HEADERS
    ack_subject: str | None = None
    correlation_id: str | None = None
    ack_policy: AckPolicy | None = None
    message_id: str | None = None
    expected_last_offset: int | None = None

    @property
    def is_tombstone(self) -> bool:
        return self.value is None


def wrong_key(key: bytes) -> str | None:
    return f"a key longer than {MAX_KEY_BYTES} bytes" if len(key) > MAX_KEY_BYTES else None


def wrong_headers(headers: Mapping[str, str]) -> str | None:
    if len(headers) > MAX_HEADERS:
        return f"more than {MAX_HEADERS} headers"
    for name, value in headers.items():
        if type(name) is not str or type(value) is not str:
            return "a header that is not text"
        if len(name) > MAX_HEADER_NAME_BYTES or _HEADER_NAME.fullmatch(name) is None:
            return f"the header name {name[:64]!r} is not printable ASCII without blanks and colons"
        if not _is_line(value, MAX_HEADER_VALUE_BYTES):
            return f"the value of header {name!r} does not fit one header line"
    return None


def is_header(name: str, value: str) -> bool:
    """Return True if one line of a NATS header block can carry this header, regardless of its
    length."""
    return _HEADER_NAME.fullmatch(name) is not None and _is_line(value, len(value) * 4)


def wrong_ack_subject(subject: object) -> str | None:
    if (
        type(subject) is str
        and len(subject) <= MAX_ACK_SUBJECT_BYTES
        and _ACK_SUBJECT.fullmatch(subject) is not None
    ):
        return None
    return (
        f"the ack subject must be a literal NATS subject of at most {MAX_ACK_SUBJECT_BYTES} "
        "printable ASCII characters and not begin with '$' or 'liftlog.'"
    )


def wrong_id(value: object) -> str | None:
    if type(value) is str and value:
        if len(value) <= MAX_ID_BYTES and value.isalnum() and value.isascii():
            return None  # the common case
        if _is_line(value, MAX_ID_BYTES):
            return None
    return f"an id must be text that fits one header line, 1 to {MAX_ID_BYTES} bytes"


def wrong_ack_policy(policy: object) -> str | None:
    if type(policy) is str and policy in ACK_POLICIES:
        return None
    return "the ack policy must be none, leader or all"


def wrong_offset(offset: object) -> str | None:
    # type() and not isinstance(), because True is an int.
    if type(offset) is int and 0 <= offset <= MAX_OFFSET:
        return None
    return "the expected last offset must be a whole number from 0 to 2^63 - 1"


def _is_line(text: str, max_bytes: int) -> bool:
    if len(text) > max_bytes:
        return False
    if text.isascii():
        if text.isprintable():  # the common case, without the regular expression
            return text[:1] != " " and text[-1:] != " "
        return _HEADER_VALUE.fullmatch(text) is not None
    return _HEADER_VALUE.fullmatch(text) is not None and len(text.encode()) <= max_bytes
