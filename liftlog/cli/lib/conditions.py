"""Converts the conditions of a daemon to the form that commands show."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from liftlog.client import DaemonInfo

UNREADY = "unready"
_LABELS = {UNREADY: "problem", "error": "problem"}
_OLDER = "see the daemon's log: this daemon is older and names no next step"


@dataclass(frozen=True, slots=True)
class Shown:
    """A condition as text. `text` begins with the condition's subject, if it has one."""

    name: str
    severity: str
    text: str
    next_step: str

    @property
    def label(self) -> str:
        return f"{_LABELS.get(self.severity, 'warning')}: {self.name}"

    @property
    def words(self) -> str:
        return f"{self.text}\n-> {self.next_step}"


def shown(conditions: Iterable[Any]) -> list[Shown]:
    """Read the conditions of an answer, in which keys may be missing."""
    found = []
    for one in conditions:
        if isinstance(one, Mapping):
            subject, text = str(one.get("subject", "")), str(one.get("text", ""))
            found.append(
                Shown(
                    str(one.get("name", "?")),
                    str(one.get("severity", "warning")),
                    f"{subject}: {text}" if subject else text,
                    str(one.get("next_step", "")),
                )
            )
    return found


def conditions_of(info: DaemonInfo) -> list[Shown]:
    """Return the conditions of a daemon. If a daemon is too old to report conditions, its NATS
    state and its warnings are converted to conditions."""
    if info.conditions:
        return shown(info.conditions)
    found = []
    connected = bool(info.nats.get("connected"))
    problem = str(info.nats.get("problem") or ("" if connected else "not connected to NATS"))
    if problem:
        found.append(Shown("streams" if connected else "nats", UNREADY, problem, _OLDER))
    return found + [
        Shown(name, "warning", str(text), _OLDER) for name, text in info.warnings.items()
    ]
