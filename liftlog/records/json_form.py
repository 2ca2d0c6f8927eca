"""A record as JSON: what `consume --output json`, `log dump` and the HTTP API show."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from liftlog.records.decode import Record

BASE64 = "base64"
Encoding = Literal["auto", "utf-8", "base64"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def record_object(record: Record, encoding: Encoding = "auto") -> dict[str, Any]:
    """`offset`, `timestamp`, `timestamp_ns`, `subject`, `key`, `value`, `headers`.

    With `auto`, bytes that are not UTF-8 are base64 and `key_encoding`, `value_encoding` say so;
    with `base64`, all are. With `utf-8` bytes that are no text raise UnicodeDecodeError.
    """
    fields: dict[str, Any] = {
        "offset": record.offset,
        "timestamp": show_time(record.timestamp_ns),
        "timestamp_ns": record.timestamp_ns,
        "subject": record.subject,
    }
    _put_bytes(fields, "key", record.key, encoding)
    _put_bytes(fields, "value", record.value, encoding)
    fields["headers"] = _headers(record)
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
    """A name that occurs more than once has a list of values."""
    headers = record.headers
    if not headers:
        return {}
    repeated = getattr(headers, "get_all", None)
    found: dict[str, Any] = {}
    for name, value in headers.items():
        values = repeated(name) if repeated is not None else [value]
        found[name] = values if len(values) > 1 else value
    return found


def show_time(timestamp_ns: int) -> str:
    """UTC with microseconds, as ISO 8601."""
    seconds, rest_ns = divmod(timestamp_ns, 1_000_000_000)
    return f"{_show_second(seconds)}.{rest_ns // 1000:06d}Z"


@lru_cache(maxsize=1024)
def _show_second(seconds: int) -> str:
    return (_EPOCH + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S")
