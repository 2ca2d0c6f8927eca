"""Durations as Go programs write them, such as `1.5s` or `2h45m`. Pure.

The rules are those of Go's time.ParseDuration and Duration.String.
"""

from __future__ import annotations

import re
from decimal import Decimal

_UNITS_NS = {
    "ns": 1,
    "us": 1_000,
    "\u00b5s": 1_000,
    "\u03bcs": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}
_NUMBER = r"(?:[0-9]{1,19}(?:\.[0-9]{0,18})?|\.[0-9]{1,18})"
_PART = re.compile(rf"({_NUMBER})(ns|us|\u00b5s|\u03bcs|ms|s|m|h)")
_WHOLE = re.compile(rf"([+-]?)((?:{_PART.pattern})+)")
_MOST_NS = 2**63 - 1
_LONGEST = 64
_SECOND_NS = _UNITS_NS["s"]


def parse_duration(text: str) -> int:
    """Return the duration in ns. Raises ValueError."""
    if text in ("0", "+0", "-0"):
        return 0
    found = _WHOLE.fullmatch(text) if len(text) <= _LONGEST else None
    if found is None:
        raise ValueError("expected a duration like 1m30s")
    ns = sum(int(Decimal(number) * _UNITS_NS[unit]) for number, unit in _PART.findall(found[2]))
    if ns > _MOST_NS:
        raise ValueError("the duration is too long")
    return -ns if found[1] == "-" else ns


def duration_text(ns: int) -> str:
    """Return a duration of 0 ns or more as Go prints it."""
    if ns < _SECOND_NS:
        if not ns:
            return "0s"
        unit = "ns" if ns < 1_000 else "\u00b5s" if ns < 1_000_000 else "ms"
        return _decimal(ns, _UNITS_NS[unit]) + unit
    minutes, rest = divmod(ns, _UNITS_NS["m"])
    text = _decimal(rest, _SECOND_NS) + "s"
    if minutes:
        hours, minutes = divmod(minutes, 60)
        text = f"{hours}h{minutes}m{text}" if hours else f"{minutes}m{text}"
    return text


def _decimal(ns: int, unit_ns: int) -> str:
    whole, rest = divmod(ns, unit_ns)
    digits = len(str(unit_ns)) - 1
    return f"{whole}.{rest:0{digits}d}".rstrip("0") if rest else str(whole)
