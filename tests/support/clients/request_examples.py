"""A request of each kind of the pull protocol, made from its declaration."""

from __future__ import annotations

from typing import Any

from liftlog.protocol.messages import Message
from liftlog.protocol.wire import wire_fields

SECRET = "secret-stream"
_VALUES: dict[str, Any] = {
    "str": SECRET, "uint": 1, "int": 1, "bool": True, "map": {"subject": "a.b"}, "bin": b"0" * 16,
    "uint or str": 1, "array of uint": [1], "array of str": [SECRET],
}  # fmt: skip


def example_of(kind: type[Message]) -> dict[str, Any]:
    """Return a request with all required fields, and with a stream if it can name one."""
    request: dict[str, Any] = {"k": kind.KIND, "i": 7}
    for field in wire_fields(kind):
        if field.required or field.name in ("start", "stream"):
            request[field.key] = _VALUES[field.kind.label]
    return request
