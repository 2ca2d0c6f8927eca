"""Checks record by record that the demo keeps its promise. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from liftlog.records.decode import Record

_MOST_NAMED = 10


class Expected(NamedTuple):
    """A message that must be found, at this offset, as it was published."""

    offset: int
    subject: str
    value: bytes | None
    key: bytes | None = None
    headers: Mapping[str, str] | None = None


def find_problems(expected: Iterable[Expected], records: Sequence[Record]) -> list[str]:
    """What is missing or different, in words; empty if everything is there."""
    found = {record.offset: record for record in records}
    problems = []
    for one in expected:
        record = found.get(one.offset)
        if record is None:
            problems.append(f"offset {one.offset} ({_shown(one.value)}) is missing")
            continue
        for name in ("subject", "value", "key"):
            wanted, got = getattr(one, name), getattr(record, name)
            if wanted != got:
                problems.append(f"offset {one.offset} has the {name} {got!r}, not {wanted!r}")
        for name, text in (one.headers or {}).items():
            if record.headers.get(name) != text:
                got = record.headers.get(name)
                problems.append(f"offset {one.offset} has the header {name}: {got}, not {text}")
    return problems


def find_repeats(values: Iterable[bytes], records: Sequence[Record]) -> list[str]:
    """One text for each of `values` that was not stored exactly once."""
    counts = Counter(record.value for record in records)
    problems = []
    for value in values:
        count = counts[value]
        if count != 1:
            problems.append(f"{_shown(value)} was stored {count} times, not once")
    return problems


def find_disorder(records: Sequence[Record]) -> list[str]:
    """Where offsets do not ascend by one: nothing here was compacted or expired."""
    offsets = [record.offset for record in records]
    return [
        f"offset {after} follows {before}"
        for before, after in pairwise(offsets)
        if after != before + 1
    ]


def summarise(problems: Sequence[str]) -> list[str]:
    """The first few, and how many more there are."""
    shown = list(problems[:_MOST_NAMED])
    if len(problems) > _MOST_NAMED:
        shown.append(f"... and {len(problems) - _MOST_NAMED} more")
    return shown


def _shown(value: bytes | None) -> str:
    return "a tombstone" if value is None else repr(value[:60].decode("utf-8", "replace"))
