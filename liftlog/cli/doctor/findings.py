"""What a check says."""

from __future__ import annotations

from dataclasses import dataclass

OK = "ok"
WARNING = "warning"
FAILED = "failed"
SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Checkup:
    """`advice` is there for what is not ok."""

    check: str
    status: str
    detail: str
    advice: str = ""

    def to_object(self) -> dict[str, str]:
        return {name: getattr(self, name) for name in self.__slots__}
