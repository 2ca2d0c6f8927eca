"""Durations as Go programs write them, such as `1.5s` or `2h45m`. Pure.

The rules are the same as in Go's time.ParseDuration.
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
