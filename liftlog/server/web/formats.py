"""Formats numbers, sizes and times as text for people, and computes simple drawings. Pure.

`static/live.js` formats numbers, sizes and rates in the same way.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from liftlog.times import show_time

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_SECOND_NS = 1_000_000_000


def count(number: float) -> str:
    """Format a number with separators, like `1,234,567`."""
    return f"{math.floor(number + 0.5):,}"


def tenths(number: float) -> str:
    """Format a number, with one decimal if it is below 100. Halves are rounded up, as in
    JavaScript."""
    if number >= 99.95:
        return count(number)
    return f"{math.floor(number * 10 + 0.5) / 10:.1f}"


def size(size_bytes: float) -> str:
    """Format a size in bytes, like `1.5 MiB`."""
    number, unit = float(size_bytes), 0
    while number >= 1023.5 and unit < len(_UNITS) - 1:
        number, unit = number / 1024, unit + 1
    return f"{count(number) if unit == 0 else tenths(number)} {_UNITS[unit]}"


def rate(per_second: float) -> str:
    """Format a rate per second. Zero is `0`, not `0.0`, so that an idle stream is easy to see."""
    return "0" if per_second == 0 else tenths(per_second)


def percent(ratio: float) -> str:
    return f"{math.floor(ratio * 1000 + 0.5) / 10:g}%"


def moment(timestamp_ns: int) -> str:
    """Format a time in ns since 1970, like `2026-01-02 03:04:05.678 UTC`. The result is `none` if
    the time is 0 or less."""
    if timestamp_ns <= 0:
        return "none"
    try:
        text = show_time(timestamp_ns)
    except OverflowError:
        return f"{timestamp_ns} ns"
    return f"{text[:10]} {text[11:23]} UTC"


def duration(seconds: float) -> str:
    """Format a duration with its two largest units, like `3 d 4 h`, `5 min 6 s` or `0.8 s`."""
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
    """Parse a time and return it in ns since 1970; return None for any other text.

    Accepts these forms:

    - ISO 8601, in UTC unless it names another zone; `today` or `yesterday` may replace the date
    - seconds since 1970
    - a time before now (`15m`, `2h`, `3d`)
    """
    text = text.strip()
    for word, days in (("today", 0), ("yesterday", 1)):
        if text.startswith(word):
            date = datetime.now(UTC).date() - timedelta(days=days)
            text = f"{date}{text.removeprefix(word)}"
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


# --- drawings ---

SPARK_WIDTH, SPARK_HEIGHT = 120.0, 28.0
WIDTH = 1000
MAX_PARTS = 80
_MIN_WIDTH, _MIN_MARK = 6.0, 3.0
_MARK = 8.0
"""Width of the mark that shows a consumer's position."""
KINDS = ("compacted", "sealed", "active", "damaged")
"""Kinds of segments. If a part of the bar contains several kinds, it is drawn as the kind that
comes last in this order."""


def segment_parts(segments: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Compute a bar that shows the segments of a stream as rectangles from left to right.

    Each rectangle shows one segment, or several neighbours if there are too many segments. The
    width of a rectangle shows its size, but a minimum keeps each rectangle visible.
    """
    groups = _grouped(segments)
    total = sum(group["size_bytes"] for group in groups) or 1
    room = WIDTH - _MIN_WIDTH * len(groups)
    parts, x = [], 0.0
    for group in groups:
        width = _MIN_WIDTH + room * group["size_bytes"] / total
        parts.append({**group, "x": round(x, 1), "width": round(width, 1)})
        x += width
    return parts


def damage_marks(
    parts: Sequence[dict[str, Any]], damaged: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Compute marks for damaged ranges of offsets in the bar of `segment_parts`. A minimum width
    keeps each mark visible."""
    marks = []
    for bad in damaged:
        for part in parts:
            low = max(bad["first_offset"], part["base_offset"])
            high = min(bad["next_offset"], part["next_offset"])
            if low >= high:
                continue
            per_offset = part["width"] / (part["next_offset"] - part["base_offset"])
            width = max(_MIN_MARK, per_offset * (high - low))
            x = part["x"] + per_offset * (low - part["base_offset"])
            x = min(x, part["x"] + part["width"] - width)
            mark = {"first_offset": low, "next_offset": high}
            marks.append({**mark, "x": round(x, 1), "width": round(width, 1)})
    return marks


def places(parts: Sequence[dict[str, Any]], offsets: Sequence[int | None]) -> list[float | None]:
    """Return the x coordinates of these offsets in the bar of `segment_parts`; None for an offset
    of None."""
    borders = [part["base_offset"] for part in parts]
    found: list[float | None] = []
    for offset in offsets:
        if offset is None or not parts:
            found.append(None)
            continue
        part = parts[max(0, bisect_right(borders, offset) - 1)]
        length = part["next_offset"] - part["base_offset"]
        inside = (offset - part["base_offset"]) / length if length else 1.0
        place = part["x"] + part["width"] * min(max(inside, 0.0), 1.0)
        found.append(round(min(place, WIDTH - _MARK), 1))
    return found


def _grouped(segments: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    per_group = max(1, -(-len(segments) // MAX_PARTS))
    groups = []
    for start in range(0, len(segments), per_group):
        some = segments[start : start + per_group]
        groups.append(
            {
                "kind": max((one["kind"] for one in some), key=KINDS.index),
                "count": len(some),
                "base_offset": some[0]["base_offset"],
                "next_offset": some[-1]["next_offset"],
                "size_bytes": sum(one["size_bytes"] for one in some),
            }
        )
    return groups


def spark_points(history: Sequence[float], kept: int) -> str:
    """Return rates as the `points` of a polyline: the newest rate is at the right edge, the highest
    at the top."""
    if not history:
        return ""
    top = max(history) or 1.0
    step = SPARK_WIDTH / (kept - 1)
    left = SPARK_WIDTH - step * (len(history) - 1)
    height = SPARK_HEIGHT - 2
    return " ".join(
        f"{left + step * i:.1f},{1 + height * (1 - one / top):.1f}" for i, one in enumerate(history)
    )


def spark_area(history: Sequence[float], kept: int) -> str:
    """Return the area below the line of `spark_points`, as the `points` of a polygon."""
    points = spark_points(history, kept)
    if not points:
        return ""
    left = points.partition(",")[0]
    return f"{left},{SPARK_HEIGHT:g} {points} {SPARK_WIDTH:g},{SPARK_HEIGHT:g}"
