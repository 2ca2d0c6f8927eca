"""The fields of a request, which is a JSON object. Pure."""

from __future__ import annotations

import json
from typing import Any

from liftlog.server.jetstream_api.answers import bad_request, invalid_json, is_utf8

MAX_REQUEST_BYTES = 256 * 1024


def read_object(payload: bytes) -> dict[str, Any]:
    if not payload.strip():
        return {}
    if len(payload) > MAX_REQUEST_BYTES:
        raise bad_request(f"the request is larger than {MAX_REQUEST_BYTES} bytes")
    try:
        content = json.loads(payload, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise invalid_json(str(error)[:200]) from None
    if content is None:  # Go parses null as an empty object, and async-nats sends null
        return {}
    if not isinstance(content, dict):
        raise invalid_json("expected an object")
    return content


def _no_constant(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


def whole(body: dict[str, Any], name: str, *, least: int = 0, most: int = 2**63) -> int:
    """Return a whole number from `least` to below `most`; 0 if the field is missing. Raises
    JetStreamError."""
    value = body.get(name)
    if value is None:
        return 0
    if type(value) is not int or not least <= value < most:
        raise invalid_json(f"{name}: expected a whole number")
    return value


def text(body: dict[str, Any], name: str) -> str:
    """Return a text, empty if the field is missing. Raises JetStreamError unless UTF-8 can encode
    it."""
    value = body.get(name)
    if value is None:
        return ""
    if not isinstance(value, str) or not is_utf8(value):
        raise invalid_json(f"{name}: expected text")
    return value


def flag(body: dict[str, Any], name: str) -> bool:
    value = body.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise invalid_json(f"{name}: expected true or false")
    return value
