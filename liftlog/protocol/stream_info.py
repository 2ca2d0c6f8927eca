"""What `describe` and `list` say about a stream."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """A stream as the daemon sees it at one moment. Sizes in bytes, offsets as in the log."""

    # `to_wire` and `from_wire` use the attribute names as keys. `from_wire` ignores keys it does
    # not know and fills in what is missing, so that old clients read new daemons and the other way
    # round.

    name: str
    subject: str
    queue_group: str | None = None
    state: str = "unknown"
    origin: str = "api"
    incarnation: str = ""
    log_start_offset: int = 0
    high_watermark: int = 0
    log_end_offset: int = 0
    size_bytes: int = 0
    segment_count: int = 0
    leader_epoch: int = 0
    acks: str = ""
    durability: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    possible_losses: list[dict[str, Any]] = field(default_factory=list)
    quarantined: list[dict[str, Any]] = field(default_factory=list)
    compaction: dict[str, Any] = field(default_factory=dict)
    readable_subjects: list[str] = field(default_factory=list)
    """When not empty: who asked gets only the records on these. Told by `describe` alone."""

    def to_wire(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name, _ in _FIELDS}

    @classmethod
    def from_wire(cls, received: Mapping[str, Any]) -> Self:
        values: dict[str, Any] = {"name": "", "subject": ""}
        for name, expected in _FIELDS:
            value = received.get(name)
            if isinstance(value, expected) and not isinstance(value, bool):
                values[name] = value
        return cls(**values)


_TYPES: dict[str, type] = {"str": str, "str | None": str, "int": int}


def _field_types() -> tuple[tuple[str, type], ...]:
    found = []
    for declared in dataclasses.fields(StreamInfo):
        annotation = str(declared.type)
        container = dict if annotation.startswith("dict") else list
        found.append((declared.name, _TYPES.get(annotation, container)))
    return tuple(found)


_FIELDS = _field_types()
