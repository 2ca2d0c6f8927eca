"""Converts dataclasses to msgpack maps and back, by the declarations of their fields.

A message class declares its `KIND` and, for each field, its short key on the wire and the values
that are allowed:

    @dataclass(frozen=True, slots=True)
    class Ping(Message): ...

    stream: str = wire("s", text(128))

Keys that a class does not declare are ignored. A required key that is missing, or a value that has
the wrong type or is out of bounds, raises BadRequest, which names the key.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

from liftlog.errors import BadRequest
from liftlog.names import MAX_NAME_CHARS

MAX_UINT = 2**63 - 1

KIND_KEY = "k"
ID_KEY = "i"

Check = Callable[[Any], bool]


@dataclasses.dataclass(frozen=True, slots=True)
class WireType:
    """The values that a key may have: a predicate, and its name in the documentation."""

    label: str
    accepts: Check
    max_uint: int = -1
    max_chars: int = -1
    """Limits that replace a call of `accepts`: integers from 0 to `max_uint`, text of up to
    `max_chars`. Most fields have one of these types."""


def uint(maximum: int = MAX_UINT) -> WireType:
    return WireType("uint", lambda value: type(value) is int and 0 <= value <= maximum, maximum)


def text(max_chars: int) -> WireType:
    return WireType(
        "str", lambda value: type(value) is str and len(value) <= max_chars, max_chars=max_chars
    )


def raw(min_bytes: int, max_bytes: int) -> WireType:
    return WireType(
        "bin", lambda value: type(value) is bytes and min_bytes <= len(value) <= max_bytes
    )


def one_of(*types: WireType) -> WireType:
    return WireType(
        " or ".join(one.label for one in types), lambda value: any(t.accepts(value) for t in types)
    )


def array_of(entry: WireType, max_entries: int) -> WireType:
    return WireType(
        f"array of {entry.label}",
        lambda value: (
            type(value) is list
            and len(value) <= max_entries
            and all(entry.accepts(one) for one in value)
        ),
    )


BOOL = WireType("bool", lambda value: type(value) is bool)
MAP = WireType("map", lambda value: type(value) is dict)
NAME = text(4 * MAX_NAME_CHARS)  # `names` applies the exact rule, with a better message
LABEL = text(256)

_WIRE = "wire"


def wire(key: str, kind: WireType, **field_options: Any) -> Any:
    """Declare a field of a dataclass, with the field's key on the wire. A field with a default may
    be absent or nil."""
    return dataclasses.field(metadata={_WIRE: (key, kind)}, **field_options)


@dataclasses.dataclass(frozen=True, slots=True)
class WireField:
    name: str
    key: str
    kind: WireType
    required: bool


_MAY_BE_EMPTY = frozenset({str, dict, list})

_known: dict[Any, tuple[WireField, ...]] = {}


def wire_fields(cls: type[Any]) -> tuple[WireField, ...]:
    """Return the declared fields, in the order of the class."""
    fields = _known.get(cls)
    if fields is None:
        fields = _known[cls] = tuple(map(_wire_field, dataclasses.fields(cls)))
    return fields


def _wire_field(field: dataclasses.Field[Any]) -> WireField:
    key, kind = field.metadata[_WIRE]
    has_default = field.default is not dataclasses.MISSING
    has_factory = field.default_factory is not dataclasses.MISSING
    return WireField(field.name, key, kind, not (has_default or has_factory))


@dataclasses.dataclass(frozen=True, slots=True)
class Message:
    """Base class of requests and answers."""

    KIND: ClassVar[str] = ""
    REPEATABLE: ClassVar[bool] = False
    """True if a request has the same effect when it is carried out twice. Such a request may be
    repeated if the connection was lost before the answer arrived."""

    @property
    def is_repeatable(self) -> bool:
        """True if the request may be sent again after a lost connection. By default this is
        `REPEATABLE`. Subclasses override the property if the answer depends on fields."""
        return self.REPEATABLE

    def to_map(self, request_id: int) -> dict[str, Any]:
        """Return the map of this message's frame, without optional fields that are None or empty.

        Other default values are included, because another version of the peer may have other
        defaults.
        """
        encoded: dict[str, Any] = {KIND_KEY: self.KIND, ID_KEY: request_id}
        for field in _known.get(type(self)) or wire_fields(type(self)):
            value = getattr(self, field.name)
            if value is None or not (value or field.required or type(value) not in _MAY_BE_EMPTY):
                continue
            encoded[field.key] = value
        return encoded

    @classmethod
    def from_map(cls, received: Mapping[str, Any]) -> Self:
        """Create a message from a received map. Raises BadRequest, which names the first key that
        is missing or wrong."""
        values: dict[str, Any] = {}
        for field in _known.get(cls) or wire_fields(cls):
            value = received.get(field.key)
            if value is None:
                if field.required:
                    raise BadRequest(f"{cls.KIND}: the key {field.key!r} ({field.name}) is missing")
                continue
            kind = field.kind
            is_usual = (type(value) is int and 0 <= value <= kind.max_uint) or (
                type(value) is str and len(value) <= kind.max_chars
            )
            if not (is_usual or kind.accepts(value)):
                raise BadRequest(
                    f"{cls.KIND}: the key {field.key!r} ({field.name}) must be a "
                    f"{kind.label} within its bounds"
                )
            values[field.name] = value
        return cls(**values)
