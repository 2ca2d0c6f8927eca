"""Numbers, sizes and times for people. `static/live.js` writes the first three the same way."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

from liftlog.records.json_form import show_time

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_SECOND_NS = 1_000_000_000


def count(number: float) -> str:
    """`1,234,567`."""
    return f"{math.floor(number + 0.5):,}"


def tenths(number: float) -> str:
    """One digit behind the point below 100. Halves go up, as JavaScript has it."""
    if number >= 99.95:
        return count(number)
    return f"{math.floor(number * 10 + 0.5) / 10:.1f}"


def size(size_bytes: float) -> str:
    """`1.5 MiB`."""
    number, unit = float(size_bytes), 0
    while number >= 1023.5 and unit < len(_UNITS) - 1:
        number, unit = number / 1024, unit + 1
    return f"{count(number) if unit == 0 else tenths(number)} {_UNITS[unit]}"


def rate(per_second: float) -> str:
    """`0` when there is nothing, so that a quiet stream looks quiet."""
    return "0" if per_second == 0 else tenths(per_second)


def percent(ratio: float) -> str:
    return f"{math.floor(ratio * 1000 + 0.5) / 10:g}%"


def moment(timestamp_ns: int) -> str:
    """`2026-01-02 03:04:05.678 UTC`; nothing for a stamp that is none."""
    if timestamp_ns <= 0:
        return "none"
    try:
        text = show_time(timestamp_ns)
    except OverflowError:
        return f"{timestamp_ns} ns"
    return f"{text[:10]} {text[11:23]} UTC"


def duration(seconds: float) -> str:
    """The two largest units: `3 d 4 h`, `5 min 6 s`, `0.8 s`."""
    if seconds < 10:
        return f"{math.floor(seconds * 10 + 0.5) / 10:g} s"
    rest, parts = int(seconds), []
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        amount, rest = divmod(rest, length)
        if amount:
            parts.append(f"{amount} {unit}")
    return " ".join(parts[:2])


def ago(timestamp_ns: int, now_ns: int) -> str:
    if timestamp_ns <= 0:
        return "never"
    seconds = (now_ns - timestamp_ns) / _SECOND_NS
    return "just now" if seconds < 1 else f"{duration(seconds)} ago"


def parse_moment(text: str) -> int | None:
    """ISO 8601 (UTC where it says nothing else), seconds since 1970, or a time ago (`15m`, `2h`,
    `3d`); ns since 1970, None for what is none of them."""
    text = text.strip()
    units = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
    try:
        if text[-1:] in units and text[:-1].isdecimal():
            ago = int(text[:-1]) * units[text[-1]]
            return _to_ns(datetime.now(UTC) - timedelta(seconds=ago))
        if text.isdecimal() and len(text) > 8:
            return int(text) * _SECOND_NS
        found = datetime.fromisoformat(text.removesuffix("UTC").strip())
        return _to_ns(found if found.tzinfo is not None else found.replace(tzinfo=UTC))
    except (ValueError, OverflowError):
        return None


def _to_ns(when: datetime) -> int:
    since = when - datetime(1970, 1, 1, tzinfo=UTC)
    return ((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds) * 1000
