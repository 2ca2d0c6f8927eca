"""Converts objects to the shape that the command line requests: some of their fields, CSV, a
template.

A path is written as in jq, but the rest of jq's language is not supported: `name`,
`.settings.retention.max_age`, `value.items[0].sku`. A path can also lead into text that contains
JSON, so `value.customer` reads a field of a record's value.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from liftlog.errors import InvalidArgument

_STEP = re.compile(r"\.?([^.\[\]{}\s|]+)|\[(-?\d+)\]")
_HOLE = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
_ESCAPES = {"\\n": "\n", "\\t": "\t", "\\\\": "\\"}
_PATH_HELP = "for example name, settings.retention.max_age, value.items[0].sku"


class Path(NamedTuple):
    """A path to a field. `name` is the text that was typed, without the leading dot."""

    name: str
    steps: tuple[str | int, ...]

    def find(self, value: Any) -> Any:
        """Return the value at the path; None if there is none."""
        for step in self.steps:
            if isinstance(value, str):
                value = _entered(value)
            if isinstance(step, str) and isinstance(value, dict):
                value = value.get(step)
            elif isinstance(step, int) and isinstance(value, list):
                value = value[step] if -len(value) <= step < len(value) else None
            else:
                return None
        return value


def _entered(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def parse_path(text: str) -> Path:
    """Parse a path. Raises InvalidArgument."""
    word = text.strip()
    steps: list[str | int] = []
    at = 0
    while at < len(word):
        found = _STEP.match(word, at)
        if found is None:
            break
        steps.append(found[1] if found[2] is None else int(found[2]))
        at = found.end()
    if at < len(word) or not steps:
        raise InvalidArgument(f"{word!r} is not the path of a field", hint=_PATH_HELP)
    return Path(word.removeprefix("."), tuple(steps))


def parse_fields(text: str) -> list[Path]:
    """Parse paths that are separated by commas. Raises InvalidArgument."""
    return [parse_path(word) for word in text.split(",")]


def text_of(value: Any) -> str:
    """Convert a value to the text of a cell: text stays unchanged, null becomes empty, maps and
    lists become JSON."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def reduced(values: Sequence[Any], fields: Sequence[Path]) -> list[dict[str, Any]]:
    """Return each object with only the chosen fields, named as they were typed."""
    return [{path.name: path.find(value) for path in fields} for value in values]


def rows(values: Sequence[Any], fields: Sequence[Path]) -> list[list[str]]:
    return [[text_of(path.find(value)) for path in fields] for value in values]


def columns_of(values: Sequence[Any]) -> list[Path]:
    """Return the fields of all these objects, in the order in which they first occur."""
    names = dict.fromkeys(name for value in values for name in value)
    return [Path(name, (name,)) for name in names]


def csv_text(found: Sequence[Sequence[str]]) -> str:
    """Return rows as CSV (RFC 4180), with a line feed at the end of each."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(found)
    return text.getvalue()


def parse_template(text: str) -> Callable[[Any], str]:
    """Return a function from an object to its line. `{{.path}}` stands for a field; backslash n, t
    and backslash are escapes. Raises InvalidArgument."""
    parts: list[str | Path] = []
    at = 0
    for hole in _HOLE.finditer(text):
        parts += [_unescaped(text[at : hole.start()]), parse_path(hole[1])]
        at = hole.end()
    parts.append(_unescaped(text[at:]))
    if not any(isinstance(part, Path) for part in parts):
        raise InvalidArgument(
            f"the template {text!r} names no field", hint="write {{.name}} for the field name"
        )

    def line_of(value: Any) -> str:
        return "".join(
            part if isinstance(part, str) else text_of(part.find(value)) for part in parts
        )

    return line_of


def _unescaped(text: str) -> str:
    return re.sub(r"\\[nt\\]", lambda found: _ESCAPES[found[0]], text)
