"""Durations and sizes as people write them: `250ms`, `1h30m`, `8MiB`, `1.5 GB`."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainSerializer, Strict, WithJsonSchema

_NS_PER_UNIT = {
    "ns": 1,
    "us": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
    "d": 86_400_000_000_000,
    "w": 604_800_000_000_000,
}
_BYTES_PER_UNIT = {
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_NUMBER = r"[0-9]{1,20}(?:\.[0-9]{1,9})?"
_DURATION_PART = re.compile(rf"({_NUMBER})(ns|us|ms|s|m|h|d|w)")
_DURATION = re.compile(rf"(?:{_NUMBER}(?:ns|us|ms|s|m|h|d|w))+")
_SIZE = re.compile(rf"({_NUMBER}) ?([A-Za-z]*)")
DURATION_PATTERN = rf"^\s*((?:{_NUMBER}(?:ns|us|µs|ms|s|m|h|d|w))+|{_NUMBER})\s*$"
SIZE_PATTERN = rf"^\s*{_NUMBER} ?([KkMmGgTt][Ii]?)?[Bb]?\s*$"
"""Pattern for the JSON schema. The parser also refuses text that does not match."""

# The sum of this and a time in nanoseconds since 1970 still fits 64 bits.
MAX_DURATION_SECONDS = 100 * 365.25 * 86_400
MAX_SIZE_BYTES = 2**62

AUTO = "auto"
DURATION_HELP = "a duration such as 250ms, 1s, 2m, 1h30m, 7d (a bare number is seconds)"
SIZE_HELP = "a size such as 4096, 64KiB, 8MiB, 1GB"


def parse_duration(value: object) -> float:
    """Parse a duration to seconds. Raises ValueError, which names the accepted forms."""
    seconds: float
    if isinstance(value, bool):
        raise ValueError(f"expected {DURATION_HELP}")
    if isinstance(value, (int, float)):
        # Compared before float(), because a long integer does not fit a float.
        if not 0 <= value <= MAX_DURATION_SECONDS:  # also false for NaN
            raise ValueError("expected a duration between 0 and 100 years")
        return float(value)
    if not isinstance(value, str):
        raise ValueError(f"expected {DURATION_HELP}")
    text = value.strip().replace("µs", "us")
    if re.fullmatch(_NUMBER, text):
        seconds = float(text)
    elif _DURATION.fullmatch(text):
        total_ns = sum(
            Decimal(number) * _NS_PER_UNIT[unit] for number, unit in _DURATION_PART.findall(text)
        )
        seconds = float(Decimal(total_ns) / 10**9)
    else:
        raise ValueError(f"expected {DURATION_HELP}")
    if seconds > MAX_DURATION_SECONDS:
        raise ValueError("expected a duration between 0 and 100 years")
    return seconds


def format_duration(seconds: float) -> str | float:
    """Return the shortest text that `parse_duration` converts back exactly; otherwise the number
    itself."""
    if seconds == 0:
        return "0s"
    total_ns = round(seconds * 10**9)
    for unit, in_ns in reversed(_NS_PER_UNIT.items()):
        if unit != "w" and total_ns % in_ns == 0:
            text = f"{total_ns // in_ns}{unit}"
            return text if parse_duration(text) == seconds else seconds
    return seconds


def parse_size(value: object) -> int:
    """Parse a size to bytes. Raises ValueError, which names the accepted forms."""
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise ValueError(f"expected {SIZE_HELP}")
    if isinstance(value, int):
        size = value
    else:
        found = _SIZE.fullmatch(value.strip())
        if found is None:
            raise ValueError(f"expected {SIZE_HELP}")
        number, unit = found.groups()
        if unit and unit.lower() not in _BYTES_PER_UNIT:
            raise ValueError(f"unknown unit {unit!r}: use B, KiB, MiB, GiB, TiB, kB, MB, GB, TB")
        exact = Decimal(number) * _BYTES_PER_UNIT[(unit or "b").lower()]
        if exact != math.floor(exact):
            raise ValueError("expected a whole number of bytes")
        size = int(exact)
    if not 0 <= size <= MAX_SIZE_BYTES:
        raise ValueError("expected a size between 0 and 4 EiB")
    return size


def format_size(size_bytes: int) -> str | int:
    """Format a size with the largest binary unit that divides it; a plain number if no unit divides
    it."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        in_bytes = _BYTES_PER_UNIT[unit.lower()]
        if size_bytes and size_bytes % in_bytes == 0:
            return f"{size_bytes // in_bytes}{unit}"
    return size_bytes


def _positive(what: str) -> Any:
    def check(value: float) -> float:
        if value <= 0:
            raise ValueError(f"expected a {what} greater than 0")
        return value

    return check


def _chain(*steps: Any) -> BeforeValidator:
    def run(value: object) -> object:
        for step in steps:
            value = step(value)
        return value

    return BeforeValidator(run)


def _parse_size_or_auto(value: object) -> int | None:
    if value is None or value == AUTO:
        return None
    try:
        size = parse_size(value)
    except ValueError as error:
        raise ValueError(f"{error}, or {AUTO}") from None
    if size == 0:
        raise ValueError(f"expected a size greater than 0, or {AUTO}")
    return size


def _format_size_or_auto(size_bytes: int | None) -> str | int:
    return AUTO if size_bytes is None else format_size(size_bytes)


_DURATION_SCHEMA = WithJsonSchema({"type": ["string", "number"], "format": "duration"})
_SIZE_SCHEMA = WithJsonSchema({"type": ["string", "integer"], "format": "size"})

Duration = Annotated[
    float,
    BeforeValidator(parse_duration),
    PlainSerializer(format_duration, when_used="json"),
    _DURATION_SCHEMA,
]
PositiveDuration = Annotated[
    float,
    _chain(parse_duration, _positive("duration")),
    PlainSerializer(format_duration, when_used="json"),
    _DURATION_SCHEMA,
]
Size = Annotated[
    int,
    _chain(parse_size, _positive("size")),
    PlainSerializer(format_size, when_used="json"),
    _SIZE_SCHEMA,
]
SizeOrAuto = Annotated[
    int | None,
    BeforeValidator(_parse_size_or_auto),
    PlainSerializer(_format_size_or_auto, when_used="json"),
    WithJsonSchema(
        {
            "anyOf": [
                {"const": AUTO},
                {"type": "null"},
                {"type": ["string", "integer"], "format": "size"},
            ]
        }
    ),
]
"""A size, or None for `auto`: the daemon chooses."""
Count = Annotated[int, Strict(), Field(ge=1, le=2**53)]
"""A whole number of at least 1. Up to 2^53 it is exact in JSON."""
Flag = Annotated[bool, Strict()]


def path_text(value: Any) -> Any:
    """Return the value; raise ValueError for text that cannot be a path."""
    if isinstance(value, str) and (not value or "\0" in value):
        raise ValueError("expected the path of a file or directory")
    return value
