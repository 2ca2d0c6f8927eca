"""Selects fields of JSON values as columns of a table, and compares two values line by line.
Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any, NamedTuple

from liftlog.errors import InvalidArgument
from liftlog.server.web.conditions import Path, found_at, parse_path
from liftlog.server.web.content import MAX_SHOWN_BYTES, visible

MAX_FIELDS = 12
MAX_CELL_CHARS = 200
MAX_LINES = 500
"""Maximum number of lines of each compared value, because the time for a comparison grows with the
product of the numbers of lines."""
_MAX_ITEMS = 20
_AROUND = 3
"""Number of equal lines shown before and after a change."""


@dataclass(frozen=True, slots=True)
class Fields:
    names: list[str]
    paths: list[Path]

    @classmethod
    def parse(cls, text: str) -> Fields:
        """Parse a list of paths such as `customer.id, items[*].sku`. Raises InvalidArgument."""
        names = list(dict.fromkeys(filter(None, map(str.strip, _parts(text)))))
        if not names:
            raise InvalidArgument("expected fields such as customer.id, items[0].sku")
        if len(names) > MAX_FIELDS:
            raise InvalidArgument(f"expected at most {MAX_FIELDS} fields")
        return cls(names, [parse_path(name) for name in names])

    def of(self, raw: bytes | None) -> list[str | None]:
        """Return a text for each field; None for a field that the value does not have."""
        nothing: list[str | None] = [None] * len(self.names)
        if not raw or len(raw) > MAX_SHOWN_BYTES:
            return nothing
        try:
            value = json.loads(raw)
        except (ValueError, RecursionError):
            return nothing
        return [_cell(value, path) for path in self.paths]


def _parts(text: str) -> Iterator[str]:
    """Split at commas that are not in quotes."""
    start, is_quoted = 0, False
    for at, letter in enumerate(text):
        if letter == '"' and text[at - 1 : at] != "\\":
            is_quoted = not is_quoted
        elif letter == "," and not is_quoted:
            yield text[start:at]
            start = at + 1
    yield text[start:]


def _cell(value: Any, path: Path) -> str | None:
    found: list[str] = []
    for one in found_at(value, path):
        if len(found) == _MAX_ITEMS:
            found.append("…")
            break
        found.append(one if isinstance(one, str) else json.dumps(one, ensure_ascii=False))
    if not found:
        return None
    text = visible(" ".join(", ".join(found).split()))
    return text if len(text) <= MAX_CELL_CHARS else text[:MAX_CELL_CHARS] + " …"


class Pair(NamedTuple):
    """One line of a comparison. `kind` is `same`, `changed` or `skipped`. A `skipped` line stands
    for `left_out` equal lines that are not shown. If a line exists on one side only, the text of
    the other side is None."""

    kind: str
    left: str | None
    right: str | None
    left_out: int = 0


def compared(left: str, right: str) -> list[Pair]:
    """Return the lines of two texts side by side. Only the first MAX_LINES lines of each text are
    compared."""
    old, new = left.split("\n")[:MAX_LINES], right.split("\n")[:MAX_LINES]
    pairs: list[Pair] = []
    for kind, old_from, old_to, new_from, new_to in _steps(old, new):
        if kind == "equal":
            is_first, is_last = old_from == 0, old_to == len(old) and new_to == len(new)
            pairs += _equal(old[old_from:old_to], is_first=is_first, is_last=is_last)
        else:
            pairs += _changed(old[old_from:old_to], new[new_from:new_to])
    return pairs


def _steps(old: Sequence[str], new: Sequence[str]) -> Iterator[tuple[str, int, int, int, int]]:
    """Return the opcodes of SequenceMatcher. If two texts are long and different, frequent lines
    are ignored (`autojunk`), because an exact comparison could take a second."""
    shorter = min(len(old), len(new))
    head = next((at for at in range(shorter) if old[at] != new[at]), shorter)
    rest = shorter - head
    tail = next((at for at in range(rest) if old[-1 - at] != new[-1 - at]), rest)
    old_end, new_end = len(old) - tail, len(new) - tail
    if head:
        yield "equal", 0, head, 0, head
    matcher = SequenceMatcher(None, old[head:old_end], new[head:new_end], autojunk=True)
    for kind, *places in matcher.get_opcodes():
        a, b, c, d = (head + place for place in places)
        yield kind, a, b, c, d
    if tail:
        yield "equal", old_end, len(old), new_end, len(new)


def _equal(lines: Sequence[str], *, is_first: bool, is_last: bool) -> Iterator[Pair]:
    """Yield a block of equal lines. Lines that are far from any change are replaced by one
    `skipped` line."""
    before = 0 if is_first else _AROUND
    after = 0 if is_last else _AROUND
    skipped = len(lines) - before - after
    for at, line in enumerate(lines):
        if skipped > 1 and before <= at < before + skipped:
            if at == before:
                yield Pair("skipped", None, None, skipped)
            continue
        yield Pair("same", line, line)


def _changed(old: Sequence[str], new: Sequence[str]) -> Iterator[Pair]:
    for at in range(max(len(old), len(new))):
        left = old[at] if at < len(old) else None
        right = new[at] if at < len(new) else None
        yield Pair("changed", left, right)
