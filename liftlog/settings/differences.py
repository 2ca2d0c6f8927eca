"""Which settings differ between two configurations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .daemon import Settings
from .keys import KeyPath, dotted


def differing_keys(old: Settings, new: Settings) -> list[str]:
    """In the order of the file: `nats.servers`, `streams.orders.retention.max_age`, and only
    `streams.orders` when it is in one of them alone. Never a value: some are secret."""
    before, after = old.model_dump(by_alias=True), new.model_dump(by_alias=True)
    return [dotted(path) for path in _differing(before, after, ())]


def _differing(old: Any, new: Any, at: KeyPath) -> Iterator[KeyPath]:
    if not (isinstance(old, dict) and isinstance(new, dict)):
        if old != new:
            yield at
        return
    for key in old | new:
        if key in old and key in new:
            yield from _differing(old[key], new[key], (*at, key))
        else:
            yield (*at, key)
