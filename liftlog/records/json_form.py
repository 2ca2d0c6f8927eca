"""A record as JSON: what `consume --output json`, `log dump` and the HTTP API show."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from liftlog.records.message_headers import header_lines

if TYPE_CHECKING:
    from liftlog.records.decode import Record

BASE64 = "base64"
Encoding = Literal["auto", "utf-8", "base64"]
HeaderValues = dict[str, str | list[str]]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def record_object(
    record: Record, encoding: Encoding = "auto", headers: HeaderValues | None = None
) -> dict[str, Any]:
    """`offset`, `timestamp`, `timestamp_ns`, `subject`, `key`, `value`, `headers`.

    With `auto`, bytes that are not UTF-8 become base64, and `key_encoding` or `value_encoding` is
    set; with `base64`, all bytes do. With `utf-8`, bytes that are not UTF-8 raise
    UnicodeDecodeError. `headers` replaces those of the record, for callers that limit how many are
    parsed.
    """
    fields: dict[str, Any] = {
        "offset": record.offset,
        "timestamp": show_time(record.timestamp_ns),
        "timestamp_ns": record.timestamp_ns,
        "subject": record.subject,
    }
    _put_bytes(fields, "key", record.key, encoding)
    _put_bytes(fields, "value", record.value, encoding)
    fields["headers"] = _headers(record) if headers is None else headers
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


def _headers(record: Record) -> dict[str, Any]:
    found: HeaderValues = {}
    group_headers(found, header_lines(record.raw_headers))
    return found


def group_headers(found: HeaderValues, lines: Iterable[tuple[bytes, bytes]]) -> None:
    """Add header lines to `found`: a name that occurs more than once gets a list of values.

    Names that differ in case are different names, as they are for NATS.
    """
    for name_bytes, value_bytes in lines:
        name, value = name_bytes.decode("utf-8", "replace"), value_bytes.decode("utf-8", "replace")
        known = found.get(name)
        if known is None:
            found[name] = value
        elif isinstance(known, list):
            known.append(value)
        else:
            found[name] = [known, value]


def show_time(timestamp_ns: int) -> str:
    """UTC with microseconds, as ISO 8601."""
    seconds, rest_ns = divmod(timestamp_ns, 1_000_000_000)
    return f"{_show_second(seconds)}.{rest_ns // 1000:06d}Z"


@lru_cache(maxsize=1024)
def _show_second(seconds: int) -> str:
    return (_EPOCH + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S")
