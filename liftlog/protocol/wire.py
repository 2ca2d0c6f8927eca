"""Converts messages to msgpack maps and back, by the declarations of their fields.

A message class declares its `KIND` and, for each field, its short key on the wire and the values
that are allowed:

    class DeleteStream(Message):
        KIND: ClassVar[str] = "delete"
        stream: str = wire("s", text(128))

Keys that a class does not declare are ignored. A required key that is missing, or a value that has
the wrong type or is out of bounds, raises BadRequest, which names the key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple, Self, dataclass_transform

from liftlog.errors import BadRequest
from liftlog.names import MAX_NAME_CHARS

MAX_UINT = 2**63 - 1

KIND_KEY = "k"
ID_KEY = "i"

Check = Callable[[Any], bool]


class WireType(NamedTuple):
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

_REQUIRED: Any = object()


class WireField(NamedTuple):
    name: str
    key: str
    kind: WireType
    default: Any = _REQUIRED
    default_factory: Callable[[], Any] | None = None
    repr: bool = True
    """False if `repr` leaves the field out, because it is a secret."""

    @property
    def required(self) -> bool:
        return self.default is _REQUIRED and self.default_factory is None


def wire(key: str, kind: WireType, **field_options: Any) -> Any:
    """Declare a field of a message with its key on the wire. A field with a default may be absent
    or nil. Options: `default`, `default_factory` and `repr`."""
    return WireField("", key, kind, **field_options)


def wire_fields(cls: type[Message]) -> tuple[WireField, ...]:
    """Return the declared fields, in the order of the class."""
    return cls.FIELDS


_MAY_BE_EMPTY = frozenset({str, dict, list})


@dataclass_transform(frozen_default=True, field_specifiers=(wire,))
class _MessageClass(type):
    """Makes a class with slots of the fields that its body declares.

    For type checkers a message is a frozen dataclass. But `dataclass` compiles six methods for each
    class: for all messages, the compilation took half the time of importing the client.
    """

    def __new__(mcs, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> _MessageClass:
        declared = {key: value for key, value in body.items() if isinstance(value, WireField)}
        body = {key: value for key, value in body.items() if key not in declared}
        fields = tuple([field._replace(name=key) for key, field in declared.items()])
        body |= {"__slots__": (*declared,), "__match_args__": (*declared,), "FIELDS": fields}
        return super().__new__(mcs, name, bases, body | {"__init__": _first_call})


def _first_call(self: Message, *values: Any, **named: Any) -> None:
    """Compile the constructor of the message's class, and call it. A process makes messages of few
    classes, so no constructor is compiled at import."""
    cls: Any = type(self)
    cls.__init__ = _constructor(cls)
    cls.__init__(self, *values, **named)


def _constructor(cls: type[Message]) -> Callable[..., None]:
    names: dict[str, Any] = {"required": _REQUIRED}
    arguments, lines = [], []
    for field in cls.FIELDS:
        name = field.name
        names[f"set_{name}"] = getattr(cls, name).__set__
        names[f"default_{name}"] = field.default
        names[f"make_{name}"] = field.default_factory
        arguments.append(name if field.required else f"{name}=default_{name}")
        made = name
        if field.default_factory is not None:
            made = f"make_{name}() if {name} is required else {name}"
        lines.append(f"    set_{name}(self, {made})")
    header = f"def __init__({', '.join(['self', *arguments])}):"
    exec("\n".join([header, *(lines or ["    pass"])]), names)
    made_function: Callable[..., None] = names["__init__"]
    return made_function


class Message(metaclass=_MessageClass):
    """Base class of requests and answers. Messages cannot be changed; equal fields make equal
    messages. A class that is derived from a message inherits no fields."""

    FIELDS: ClassVar[tuple[WireField, ...]]
    KIND: ClassVar[str] = ""
    REPEATABLE: ClassVar[bool] = False
    """True if a request has the same effect when it is carried out twice. Such a request may be
    repeated if the connection was lost before the answer arrived."""

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a message cannot be changed: {name!r}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a message cannot be changed: {name!r}")

    def _values(self) -> tuple[Any, ...]:
        return tuple([getattr(self, field.name) for field in self.FIELDS])

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self._values() == other._values()

    def __hash__(self) -> int:
        return hash(self._values())

    def __reduce__(self) -> tuple[type[Self], tuple[Any, ...]]:
        return type(self), self._values()

    def __repr__(self) -> str:
        shown = [f"{one.name}={getattr(self, one.name)!r}" for one in self.FIELDS if one.repr]
        return f"{type(self).__qualname__}({', '.join(shown)})"

    def replaced(self, **changes: Any) -> Self:
        """Return a copy in which the named fields have other values."""
        present = {field.name: getattr(self, field.name) for field in self.FIELDS}
        return type(self)(**present | changes)

    @property
    def is_repeatable(self) -> bool:
        """True if the request may be sent again after a lost connection. The default is
        `REPEATABLE`. Subclasses override the property if the answer depends on fields."""
        return self.REPEATABLE

    def to_map(self, request_id: int) -> dict[str, Any]:
        """Return the map of this message's frame, without optional fields that are None or empty.

        Other default values are included, because another version of the peer may have other
        defaults.
        """
        encoded: dict[str, Any] = {KIND_KEY: self.KIND, ID_KEY: request_id}
        for field in self.FIELDS:
            value = getattr(self, field.name)
            if value is None or not (value or type(value) not in _MAY_BE_EMPTY or field.required):
                continue
            encoded[field.key] = value
        return encoded

    @classmethod
    def from_map(cls, received: Mapping[str, Any]) -> Self:
        """Create a message from a received map. Raises BadRequest, which names the first key that
        is missing or wrong."""
        values: dict[str, Any] = {}
        for field in cls.FIELDS:
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
