"""What is drawn: the segments of a stream as one bar, cut where the files are, and rates as a
curve. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

WIDTH = 1000
MAX_PARTS = 80
_MIN_WIDTH = 6.0
KINDS = ("compacted", "sealed", "active", "damaged")
"""The last of these that is among several is what they are shown as."""


def segment_parts(segments: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rectangles from left to right, each for one segment, or for several neighbours of one kind
    where there are too many. As wide as they are large, but wide enough to be seen."""
    groups = _grouped(segments)
    total = sum(group["size_bytes"] for group in groups) or 1
    room = WIDTH - _MIN_WIDTH * len(groups)
    parts, x = [], 0.0
    for group in groups:
        width = _MIN_WIDTH + room * group["size_bytes"] / total
        parts.append({**group, "x": round(x, 1), "width": round(width, 1)})
        x += width
    return parts


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


SPARK_WIDTH, SPARK_HEIGHT = 120.0, 28.0


def spark_points(history: Sequence[float], kept: int) -> str:
    """The `points` of a polyline: the newest at the right edge, the highest at the top."""
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
    """What lies below that line."""
    points = spark_points(history, kept)
    if not points:
        return ""
    left = points.partition(",")[0]
    return f"{left},{SPARK_HEIGHT:g} {points} {SPARK_WIDTH:g},{SPARK_HEIGHT:g}"
