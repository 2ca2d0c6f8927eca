"""Indented JSON or msgpack with marks where a browser can fold it and colours it. Pure."""

from __future__ import annotations

import re
from typing import NamedTuple

_TOKEN = re.compile(
    r"""(?P<name>"(?:[^"\\]|\\.)*"(?=:\ ))
    |(?P<string>b?"(?:[^"\\]|\\.)*")
    |(?P<number>-?\b\d[\d.eE+-]*\b)
    |(?P<word>\b(?:true|false|null|NaN|Infinity)\b)""",
    re.VERBOSE,
)
_MAX_COLOURED = 2000
"""Characters of a line; a longer one has a long text in it, not many small things."""

Part = tuple[str, str]


class Line(NamedTuple):
    """`folds` is 1 where a block begins with this line, -1 where one ends with it, else 0. `parts`
    are kinds (empty for signs and blanks) with their texts."""

    folds: int
    parts: list[Part]


def folded(text: str) -> list[Line]:
    """The lines of what `outline` wrote. Blocks that were cut off are closed by lines without
    parts, so that every block has its end."""
    lines: list[Line] = []
    depth = 0
    for text_line in text.split("\n"):
        bare = text_line.strip()
        folds = 0
        if bare[-1:] in ("{", "["):
            folds = 1
        elif bare[:1] in ("}", "]") and depth:
            folds = -1
        depth += folds
        lines.append(Line(folds, _coloured(text_line + "\n")))
    return lines + [Line(-1, [])] * depth


def _coloured(line: str) -> list[Part]:
    if len(line) > _MAX_COLOURED:
        return [("", line)]
    parts: list[Part] = []
    position = 0
    for token in _TOKEN.finditer(line):
        if token.start() > position:
            parts.append(("", line[position : token.start()]))
        parts.append((token.lastgroup or "", token[0]))
        position = token.end()
    if position < len(line):
        parts.append(("", line[position:]))
    return parts
