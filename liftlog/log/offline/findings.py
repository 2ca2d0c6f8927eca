"""What verify finds in a stream's files, and what repair does about it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

DAMAGE = "damage"
KNOWN = "known"
NOTE = "note"

MANIFEST = "manifest"
QUARANTINE = "quarantine"
TAIL = "tail"
RECOVERY = "recovery"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, or one step of a repair, and where.

    `kind` of what verify finds: damage; known (a daemon found and quarantined it before); note
    (harmless). `kind` of a step: manifest (written again), quarantine (a range that readers are
    told of), tail (bytes that are cut off), recovery (what recovery did besides).

    The offsets are [first_offset, next_offset), None where it is not about offsets.
    """

    kind: str
    text: str
    segment: str = ""
    position: int | None = None
    first_offset: int | None = None
    next_offset: int | None = None

    def to_object(self) -> dict[str, Any]:
        return asdict(self)
