"""Converts records and messages between Python, JSON and raw bytes. Pure: no request, no event
loop."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import quote_from_bytes, unquote_to_bytes

from liftlog.client.publishing.headers import Headers, HeaderText
from liftlog.errors import InvalidArgument
from liftlog.records.decode import Record
from liftlog.records.json_form import (
    BASE64,
    HEADERS_BASE64,
    Encoding,
    HeaderValues,
    exact_headers,
    group_headers,
    lines_of_json,
    record_object,
)
from liftlog.records.message_headers import KEY, MESSAGE_ID, TOMBSTONE, header_lines
from liftlog.server.http.failures import NotRepresentable
from liftlog.times import show_time

OFFSET = "Liftlog-Offset"
TIMESTAMP = "Liftlog-Timestamp"
SUBJECT = "Liftlog-Subject"
EXPECTED_LAST_OFFSET = "Liftlog-Expected-Last-Offset"
HEADER_PREFIX = "Liftlog-Header-"

MAX_HEAD_BYTES = 7 * 1024
"""Limit for the total size of the headers added to a raw answer, because most HTTP clients reject a
header line above 8 KiB."""

_PIECE = 500
"""Number of header lines handled at a time."""

_UNRESERVED = "!#$&'()*+,/:;=?@[]^`{|}~ \""  # these characters are sent unencoded, like letters
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_Item = TypeVar("_Item")
FIELDS = frozenset(
    {
        "subject", "key", "key_encoding", "value", "value_encoding", "headers", "message_id",
        "expected_last_offset", "headers_base64",
    }
)  # fmt: skip
"""Fields of a message in the body of a request."""


@dataclass(frozen=True, slots=True)
class PostedMessage:
    """A message to append. A `value` of None is a tombstone. If `subject` is None, the message is
    published on the stream's own subject."""

    value: bytes | None
    subject: str | None = None
    key: bytes | None = None
    headers: Headers = ()
    message_id: str | None = None
    expected_last_offset: int | None = None


# --- records out ---


def record_json(stream: str, record: Record, encoding: Encoding) -> Iterator[str]:
    """Yield the text of a JSON object in pieces. Each piece takes at most about a millisecond,
    regardless of the number of headers.

    Raises NotRepresentable with the encoding `utf-8`, for bytes that are not valid UTF-8.
    """
    try:
        fields = {"stream": stream, **record_object(record, encoding, headers={})}
        exact_headers(record.raw_headers, encoding, in_order=True)
    except UnicodeDecodeError:
        raise NotRepresentable(
            f"the record at offset {record.offset} is not UTF-8", hint="ask with encoding=base64"
        ) from None
    text = json.dumps(fields, ensure_ascii=False)
    yield text.removesuffix("}}")
    lines = header_lines(record.raw_headers)
    headers: HeaderValues = {}
    in_order = True
    for some in _pieces(lines):
        in_order = group_headers(headers, some) and in_order
        yield ""
    lead = ""
    for names in _pieces(list(headers)):
        yield lead + json.dumps({name: headers[name] for name in names}, ensure_ascii=False)[1:-1]
        lead = ", "
    exact = exact_headers(record.raw_headers, encoding, in_order=in_order)
    yield "}}" if exact is None else f'}}, "{HEADERS_BASE64}": "{exact}"}}'


def _pieces(whole: list[_Item]) -> Iterator[list[_Item]]:
    for start in range(0, len(whole), _PIECE):
        yield whole[start : start + _PIECE]


def record_head(record: Record, header_block: bytes) -> list[tuple[str, str]]:
    """Return the metadata of a record as HTTP headers; text is percent-encoded where necessary.

    Raises NotRepresentable if the metadata does not fit into headers.
    """
    if len(header_block) > MAX_HEAD_BYTES:  # checked first, because the parsing is slow
        raise _does_not_fit(record, "the metadata")
    found = [
        (OFFSET, str(record.offset)),
        (TIMESTAMP, show_time(record.timestamp_ns)),
        (SUBJECT, _quoted(record.subject.encode())),
    ]
    if record.key is not None:
        found.append((KEY, _quoted(record.key)))
    if record.value is None:
        found.append((TOMBSTONE, "true"))
    for name, value in header_lines(header_block):
        text = name.decode("latin-1")
        if not _TOKEN.fullmatch(text):
            raise _does_not_fit(record, f"the header name {name!r}")
        found.append((HEADER_PREFIX + text, _quoted(value)))
    if sum(len(name) + len(value) + 4 for name, value in found) > MAX_HEAD_BYTES:
        raise _does_not_fit(record, "the metadata")
    return found


def _does_not_fit(record: Record, what: str) -> NotRepresentable:
    return NotRepresentable(
        f"{what} of the record at offset {record.offset} does not fit into HTTP headers",
        hint="ask with format=json",
    )


def _quoted(raw: bytes) -> str:
    """Percent-encode every byte that would change in a header line, and `%`."""
    text = quote_from_bytes(raw, safe=_UNRESERVED)
    if text[:1] == " ":
        text = "%20" + text[1:]
    if text[-1:] == " ":
        text = text[:-1] + "%20"
    return text


def _unquoted(text: str) -> bytes:
    return unquote_to_bytes(text.encode("utf-8", "surrogateescape"))


# --- messages in ---


def json_object(body: bytes, known: Collection[str]) -> dict[str, Any]:
    """Parse a JSON object that may have only the known fields. Raises InvalidArgument."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        raise InvalidArgument("the body is not JSON in UTF-8") from None
    if not isinstance(found, dict):
        raise InvalidArgument("expected a JSON object")
    unknown = sorted(found.keys() - known)
    if unknown:
        raise InvalidArgument(
            f"unknown field {_shown(unknown[0])}", hint=f"known are {', '.join(sorted(known))}"
        )
    return found


def message_from_json(body: bytes) -> PostedMessage:
    """Parse a message in JSON. Raises InvalidArgument. The error's message names the wrong
    field."""
    found = json_object(body, FIELDS)
    if "value" not in found:
        raise InvalidArgument(
            "the field 'value' is missing", hint="null deletes a key (a tombstone)"
        )
    return PostedMessage(
        value=bytes_of(found, "value"),
        subject=_text_of(found, "subject"),
        key=bytes_of(found, "key"),
        headers=_headers_of(found),
        message_id=_text_of(found, "message_id"),
        expected_last_offset=_offset_of(found, "expected_last_offset"),
    )


def message_from_raw(headers: Mapping[str, str], body: bytes) -> PostedMessage:
    """Parse a raw message. The body is the value. The HTTP headers for all other fields are the
    same as in a raw answer."""
    tombstone = headers.get(TOMBSTONE, "false").lower()
    if tombstone not in ("true", "false"):
        raise InvalidArgument(f"{TOMBSTONE}: expected true or false")
    if tombstone == "true" and body:
        raise InvalidArgument("a tombstone has no value: the body must be empty")
    key, subject = headers.get(KEY), headers.get(SUBJECT)
    expected = headers.get(EXPECTED_LAST_OFFSET)
    if expected is not None and not (expected.isascii() and expected.isdecimal()):
        raise InvalidArgument(f"{EXPECTED_LAST_OFFSET}: expected a number")
    return PostedMessage(
        value=None if tombstone == "true" else body,
        subject=None if subject is None else _text(SUBJECT, subject),
        key=None if key is None else _unquoted(key),
        headers=_prefixed(headers),
        message_id=_checked_text(MESSAGE_ID, headers.get(MESSAGE_ID)),
        expected_last_offset=None if expected is None else _bounded(EXPECTED_LAST_OFFSET, expected),
    )


def _prefixed(headers: Mapping[str, str]) -> list[tuple[HeaderText, HeaderText]]:
    """Return the message's own headers in the order in which they were sent. A name can occur
    several times. Other code checks their text later."""
    found: list[tuple[HeaderText, HeaderText]] = []
    for name, value in headers.items():
        if name.lower().startswith(HEADER_PREFIX.lower()):
            raw = _unquoted(value)
            try:
                found.append((name[len(HEADER_PREFIX) :], raw.decode()))
            except UnicodeDecodeError:
                found.append((name[len(HEADER_PREFIX) :], raw))
    return found


def _text(name: str, value: str) -> str:
    try:
        return _unquoted(value).decode()
    except UnicodeDecodeError:
        raise InvalidArgument(f"{name[:80]}: not UTF-8") from None


def _text_of(found: dict[str, Any], name: str) -> str | None:
    value = found.get(name)
    if value is not None and not isinstance(value, str):
        raise InvalidArgument(f"{name!r}: expected a string")
    return _checked_text(name, value)


def _checked_text(name: str, value: str | None) -> str | None:
    """Raise InvalidArgument for half of a surrogate pair. JSON can express such a half, but UTF-8
    cannot encode it."""
    try:
        if value is not None:
            value.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(f"{name!r}: contains half of a surrogate pair") from None
    return value


def bytes_of(found: dict[str, Any], name: str) -> bytes | None:
    """Return the bytes of a field, whose encoding is in the field `<name>_encoding`. Raises
    InvalidArgument."""
    text = _text_of(found, name)
    encoding = found.get(f"{name}_encoding", "utf-8")
    if text is None:
        return None
    if encoding == BASE64:
        try:
            return base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            raise InvalidArgument(f"{name!r}: not base64") from None
    if encoding != "utf-8":
        raise InvalidArgument(f"'{name}_encoding': expected utf-8 or base64")
    return text.encode()


def _headers_of(found: dict[str, Any]) -> Headers:
    try:
        lines = lines_of_json(found)
    except UnicodeEncodeError:
        raise InvalidArgument("'headers': contains half of a surrogate pair") from None
    except ValueError as error:
        raise InvalidArgument(str(error)) from None
    if found.get(HEADERS_BASE64) is not None:
        return lines
    return [(name.decode(), value.decode()) for name, value in lines]  # checked later


def _offset_of(found: dict[str, Any], name: str) -> int | None:
    value = found.get(name)
    if value is None:
        return None
    if type(value) is not int or not 0 <= value < 2**63:
        raise InvalidArgument(f"{name!r}: expected a whole number from 0 to 2**63 - 1")
    return value


def _bounded(name: str, digits: str) -> int:
    if len(digits) > 19 or int(digits) >= 2**63:
        raise InvalidArgument(f"{name}: expected a number below 2**63")
    return int(digits)


def parse_offset(text: str) -> int:
    """Parse an offset from a path or a query. Raises InvalidArgument."""
    if not (text.isascii() and text.isdecimal()):
        shown = _shown(text)
        raise InvalidArgument(
            f"{shown} is not an offset", hint="expected a whole number, 0 or more"
        )
    return _bounded("offset", text)


def _shown(text: str) -> str:
    return ascii(text if len(text) <= 40 else text[:40] + "...")
