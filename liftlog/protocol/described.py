"""Values that travel as maps with attribute names for keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import NoneType
from typing import Any, Self, get_args, get_origin, get_type_hints


@dataclass(frozen=True, slots=True)
class Described:
    """Every field has a default. `from_wire` ignores keys that it does not know and fills in what
    is missing or of another type, so that old clients read new daemons and the other way round."""

    def to_wire(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _wire_types(type(self))}

    @classmethod
    def from_wire(cls, received: Mapping[str, Any]) -> Self:
        values: dict[str, Any] = {}
        for name, expected in _wire_types(cls).items():
            value = received.get(name)
            if type(value) is expected:
                values[name] = value
            elif expected is float and type(value) is int:
                values[name] = float(value)
        return cls(**values)


_known: dict[type, dict[str, type]] = {}


def _wire_types(cls: type[Described]) -> dict[str, type]:
    """What the value of each field is: of `int | None` an int, of `list[str]` a list."""
    types = _known.get(cls)
    if types is None:
        hints = get_type_hints(cls)
        types = _known[cls] = {name: _plain_type(hint) for name, hint in hints.items()}
    return types


def _plain_type(hint: Any) -> type:
    choices = get_args(hint)
    if NoneType in choices:
        (hint,) = [one for one in choices if one is not NoneType]
    plain: type = get_origin(hint) or hint
    return plain


@dataclass(frozen=True, slots=True)
class LeaseInfo(Described):
    """A lease on [low, high) of a stream: while it lives, its reader sees the stream as it was at
    `high`.

    `expires_ns` is by the daemon's clock; `remaining_ms` was left when this was said. `lease_id`
    is empty for those who may not give the lease back.
    """

    stream: str = ""
    incarnation: str = ""
    lease_id: str = ""
    low: int = 0
    high: int = 0
    holder: str = ""
    expires_ns: int = 0
    remaining_ms: int = 0


@dataclass(frozen=True, slots=True)
class Removal(Described):
    """What retention would remove at once: readers then begin at `log_start_offset`. At most
    `records` go, and `size_bytes` in `segments` files."""

    log_start_offset: int = 0
    records: int = 0
    segments: int = 0
    size_bytes: int = 0
    reasons: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class DaemonInfo(Described):
    """What a daemon says of itself. `nats` holds `connected` and `server_version`; `limits` are
    those of its connections; `features` are the kinds of request that it answers and what else a
    client may want to know before it asks. `stream_count` counts what the principal may read,
    failed streams too; `warnings` say in words what is wrong with these, by kind."""

    name: str = ""
    version: str = ""
    server_id: str = ""
    started_ns: int = 0
    uptime_seconds: float = 0.0
    nats: dict[str, Any] = field(default_factory=dict)
    limits: dict[str, Any] = field(default_factory=dict)
    stream_count: int = 0
    features: list[str] = field(default_factory=list)
    warnings: dict[str, Any] = field(default_factory=dict)
