"""Erasures over HTTP: converts the body of a request, and the answers, to and from JSON."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from liftlog.errors import InvalidArgument
from liftlog.protocol.administration import (
    MAX_REQUESTED_RANGES,
    Erased,
    EraseRecords,
    ErasuresAnswer,
)
from liftlog.server.http.bodies import bytes_of, json_object
from liftlog.times import show_time

FIELDS = frozenset(
    {
        "offsets",
        "subjects",
        "keys",
        "keys_encoding",
        "headers",
        "since",
        "until",
        "reason",
        "dry_run",
        "now",
        "incarnation",
    }
)
_MOST = 1024


def erasure_from_json(stream: str, body: bytes) -> EraseRecords:
    """Parse the body of a request. Raises InvalidArgument, whose message names the wrong field."""
    found = json_object(body, FIELDS)
    keys = _texts(found, "keys")
    encoding = found.get("keys_encoding", "utf-8")
    return EraseRecords(
        stream,
        _borders(found),
        _text(found, "reason") or "",
        _flag(found, "dry_run"),
        _text(found, "incarnation"),
        _texts(found, "subjects"),
        None
        if keys is None
        else [bytes_of({"key": key, "key_encoding": encoding}, "key") or b"" for key in keys],
        _texts(found, "headers"),
        _time(found, "since"),
        _time(found, "until"),
        _flag(found, "now"),
    )


def _borders(found: dict[str, Any]) -> list[int]:
    """Return the borders of the ranges. An offset stands for itself, a pair for a range with both
    its ends."""
    borders: list[int] = []
    for one in _list(found, "offsets", MAX_REQUESTED_RANGES) or ():
        pair = one if isinstance(one, list) and len(one) == 2 else [one, one]
        if not all(type(at) is int and 0 <= at < 2**63 - 1 for at in pair) or pair[0] > pair[1]:
            raise InvalidArgument("'offsets': expected offsets, or pairs [first, last]")
        borders += (pair[0], pair[1] + 1)
    return borders


def _list(found: dict[str, Any], name: str, most: int) -> list[Any] | None:
    value = found.get(name)
    if value is not None and not (isinstance(value, list) and len(value) <= most):
        raise InvalidArgument(f"{name!r}: expected a list with at most {most} entries")
    return value


def _texts(found: dict[str, Any], name: str) -> list[str] | None:
    values = _list(found, name, {"subjects": 64, "headers": 16}.get(name, _MOST))
    return None if values is None else [_checked(name, one) for one in values]


def _text(found: dict[str, Any], name: str) -> str | None:
    value = found.get(name)
    return None if value is None else _checked(name, value)


def _checked(name: str, value: object) -> str:
    if not isinstance(value, str) or len(value) > 4096:
        raise InvalidArgument(f"{name!r}: expected text of at most 4096 characters")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(f"{name!r}: contains half of a surrogate pair") from None
    return value


def _flag(found: dict[str, Any], name: str) -> bool:
    value = found.get(name, False)
    if not isinstance(value, bool):
        raise InvalidArgument(f"{name!r}: expected true or false")
    return value


def _time(found: dict[str, Any], name: str) -> int | None:
    text = _text(found, name)
    if text is None:
        return None
    try:
        time = datetime.fromisoformat(text)
        if time.tzinfo is None:
            raise ValueError
        since = time.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    except (ValueError, OverflowError):
        raise InvalidArgument(
            f"{name!r}: expected a time with its zone, such as 2026-01-31T12:00:00Z"
        ) from None
    return max(0, (since.days * 86_400 + since.seconds) * 10**9 + since.microseconds * 1000)


def erased_json(stream: str, answer: Erased) -> dict[str, Any]:
    return {
        "stream": stream,
        "erasure": answer.erasure_id or None,
        "dry_run": answer.dry_run,
        "records": answer.count,
        "first_offset": answer.first_offset,
        "last_offset": answer.last_offset,
        "ranges": answer.range_count,
        "end_offset": answer.end_offset,
        "subjects": answer.subjects,
        "unreadable": [[first, end - 1] for first, end in answer.unreadable_ranges],
    }


def erasures_json(stream: str, answer: ErasuresAnswer) -> dict[str, Any]:
    shown = [
        {
            "erasure": one.erasure_id,
            "time": show_time(one.time_ns),
            "principal": one.principal,
            "reason": one.reason,
            "records": one.count,
            "left": one.left,
            "left_bytes": one.left_bytes,
            "is_removing": one.is_removing,
            "reasons": one.reasons,
        }
        for one in answer.infos
    ]
    return {"stream": stream, "total": answer.total, "erasures": shown}
