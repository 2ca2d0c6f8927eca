"""Computes the picture of the topology: filters at the left, streams in the middle, readers at the
right, and lines for the paths of messages. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

BOX = 30
"""Height of a box."""
_STEP, _GAP = 36, 14
_LEFT, _MIDDLE, _RIGHT = (0, 340), (440, 740), (840, 1140)
"""Horizontal bounds of the columns."""
WIDTH = _RIGHT[1]
_CHARACTER = 7.9
"""Width of a letter of the monospaced font, in the units of the picture."""


class Box(NamedTuple):
    """A box of the picture. `text` is shortened to fit into the box; `one` is the object that the
    box shows."""

    x: int
    y: float
    width: int
    text: str
    one: dict[str, Any]


class Line(NamedTuple):
    """A line of the picture. `path` is the attribute `d` of an SVG path. `is_open` is True if
    messages cannot take this path at present."""

    path: str
    is_open: bool


class Picture(NamedTuple):
    width: int
    height: int
    filters: list[Box]
    streams: list[Box]
    readers: list[Box]
    lines: list[Line]


def drawn(rows: Sequence[dict[str, Any]]) -> Picture:
    """Compute the picture. Each of `rows` describes a stream by its `filters`, `queue_group`,
    `records`, `readers` and `more`. Neighbouring streams with the same filters and queue group
    share the boxes of these filters."""
    picture = Picture(WIDTH, 0, [], [], [], [])
    y, shared = 0, 0.0
    previous: tuple[Any, Any] | None = None
    for row in rows:
        lines = max(1, len(row["readers"]) + bool(row["more"]), len(row["filters"]))
        center = y + (_STEP * lines - (_STEP - BOX)) / 2
        stream = _box(_MIDDLE, center, row["name"], row, 9)
        picture.streams.append(stream)
        here = (row["filters"], row["queue_group"])
        if here != previous:
            shared, previous = center, here
            _put_filters(picture, row, center)
        for at in _tops(shared, len(row["filters"])):
            path = _curve(_LEFT[1], at + BOX / 2, _MIDDLE[0], center)
            picture.lines.append(Line(path, not row["records"]))
        _put_readers(picture, row, center)
        y += _STEP * lines + _GAP
    return picture._replace(height=max(y - _GAP, 0))


def _put_filters(picture: Picture, row: dict[str, Any], center: float) -> None:
    for text, top in zip(row["filters"], _tops(center, len(row["filters"])), strict=True):
        one = {"text": text, "queue_group": row["queue_group"]}
        group = f" [{row['queue_group']}]" if row["queue_group"] else ""
        picture.filters.append(_box(_LEFT, top + BOX / 2, text + group, one, 2))


def _put_readers(picture: Picture, row: dict[str, Any], center: float) -> None:
    ones = list(row["readers"])
    if row["more"]:
        ones.append({"kind": "more", "stream": row["name"], "name": f"{row['more']} more"})
    for one, top in zip(ones, _tops(center, len(ones)), strict=True):
        at = top + BOX / 2
        picture.readers.append(_box(_RIGHT, at, _named(one), one, 14))
        path = _curve(_MIDDLE[1], center, _RIGHT[0], at)
        picture.lines.append(Line(path, bool(one.get("problem"))))


def _named(reader: dict[str, Any]) -> str:
    """Return the label of a reader. It distinguishes a consumer from a group of the same name."""
    return f"{reader['name']} (group)" if reader["kind"] == "group" else str(reader["name"])


def _tops(center: float, count: int) -> list[float]:
    first = center - (_STEP * count - (_STEP - BOX)) / 2
    return [first + _STEP * number for number in range(count)]


def _box(
    column: tuple[int, int], center: float, text: str, one: dict[str, Any], reserved: int
) -> Box:
    """Return a box whose text is shortened to fit. `reserved` is the number of letters that the
    template adds to the text."""
    width = column[1] - column[0]
    room = int(width / _CHARACTER) - reserved
    if len(text) > room:
        text = text[: room - 1] + "…"
    return Box(column[0], center - BOX / 2, width, text, one)


def _curve(left: int, from_y: float, right: int, to_y: float) -> str:
    middle = (left + right) // 2
    return f"M{left} {from_y:g}C{middle} {from_y:g} {middle} {to_y:g} {right} {to_y:g}"
