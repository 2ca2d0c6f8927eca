"""Converts records to JSON, for `consume --output json`, `log dump` and the HTTP API."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from liftlog.records.message_headers import HeaderLine, header_lines
from liftlog.times import show_time

if TYPE_CHECKING:
    from liftlog.records.decode import Record

BASE64 = "base64"
HEADERS_BASE64 = "headers_base64"
"""Field with the verbatim header block in base64, for headers that JSON cannot represent."""
Encoding = Literal["auto", "utf-8", "base64"]
HeaderValues = dict[str, str | list[str]]


def record_object(
    record: Record, encoding: Encoding = "auto", headers: HeaderValues | None = None
) -> dict[str, Any]:
    """Return a record as a JSON object: `offset`, `timestamp`, `timestamp_ns`, `subject`, `key`,
    `value`, `headers`.

    With `auto`, bytes that are not UTF-8 become base64, and `key_encoding` or `value_encoding` is
    set; with `base64`, all bytes become base64. With `utf-8`, bytes that are not UTF-8 raise
    UnicodeDecodeError. The field `headers_base64` is added if the field `headers` cannot represent
    every line exactly. The argument `headers` replaces the headers of the record, for callers that
    limit the number of parsed headers.
    """
    fields: dict[str, Any] = {
        "offset": record.offset,
        "timestamp": show_time(record.timestamp_ns),
        "timestamp_ns": record.timestamp_ns,
        "subject": record.subject,
    }
    _put_bytes(fields, "key", record.key, encoding)
    _put_bytes(fields, "value", record.value, encoding)
    if headers is not None:
        fields["headers"] = headers
        return fields
    found: HeaderValues = {}
    in_order = group_headers(found, header_lines(record.raw_headers))
    fields["headers"] = found
    exact = exact_headers(record.raw_headers, encoding, in_order=in_order)
    if exact is not None:
        fields[HEADERS_BASE64] = exact
    return fields


def _put_bytes(fields: dict[str, Any], name: str, raw: bytes | None, encoding: Encoding) -> None:
    if raw is None:
        fields[name] = None
        return
    if encoding != "base64":
        try:
            fields[name] = raw.decode()
            return
        except UnicodeDecodeError:
            if encoding == "utf-8":
                raise
    fields[name] = base64.b64encode(raw).decode()
    fields[f"{name}_encoding"] = BASE64


def group_headers(found: HeaderValues, lines: Iterable[HeaderLine]) -> bool:
    """Add header lines to `found`; a name that occurs more than once gets a list of values.

    Names that differ in case are different names, as in NATS. Bytes that are not UTF-8 become
    U+FFFD. Returns True if `found` keeps the order of these lines.
    """
    in_order = True
    last = next(reversed(found), None)
    for name_bytes, value_bytes in lines:
        name, value = name_bytes.decode("utf-8", "replace"), value_bytes.decode("utf-8", "replace")
        known = found.get(name)
        if known is None:
            found[name] = value
            last = name
            continue
        in_order = in_order and name == last
        if isinstance(known, list):
            known.append(value)
        else:
            found[name] = [known, value]
    return in_order


def exact_headers(block: bytes, encoding: Encoding, *, in_order: bool) -> str | None:
    """Return the header block in base64 if the JSON field `headers` cannot represent every line
    exactly, or if the encoding is `base64`; otherwise None. With `utf-8`, raises UnicodeDecodeError
    instead."""
    if not block:
        return None
    is_exact = in_order and encoding != "base64"
    try:
        block.decode()
    except UnicodeDecodeError:
        if encoding == "utf-8":
            raise
        is_exact = False
    return None if is_exact else base64.b64encode(block).decode()


def lines_of_json(fields: Mapping[str, Any]) -> list[HeaderLine]:
    """Return the header lines of a JSON record, as the inverse of `record_object`. Raises
    ValueError for invalid `headers` or `headers_base64`."""
    exact = fields.get(HEADERS_BASE64)
    if exact is not None:
        try:
            return header_lines(base64.b64decode(exact, validate=True))
        except (binascii.Error, TypeError, ValueError):
            raise ValueError(f"{HEADERS_BASE64!r}: not base64") from None
    given = fields.get("headers")
    if given is None:
        return []
    problem = ValueError("'headers': expected an object of strings, or of lists of strings")
    if not isinstance(given, dict):
        raise problem
    found = []
    for name, value in given.items():
        for one in value if isinstance(value, list) else [value]:
            if not isinstance(one, str):
                raise problem
            found.append((name.encode(), one.encode()))
    return found
