"""The checkpoints in memory: look-up by consumer and stream, and listing in their order."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Mapping

from liftlog.server.checkpoints.layout import CheckpointKey, Stored


class CheckpointTable:
    """Not thread-safe. Holds what is durable, never what still waits for the disk."""

    def __init__(self, entries: Mapping[CheckpointKey, Stored] | None = None) -> None:
        self._entries: dict[CheckpointKey, Stored] = dict(entries or {})
        self._order = sorted(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: CheckpointKey) -> Stored | None:
        return self._entries.get(key)

    def apply(self, changes: Mapping[CheckpointKey, Stored | None]) -> None:
        """Set what is new; None forgets."""
        for key, stored in changes.items():
            if stored is not None:
                if key not in self._entries:
                    insort(self._order, key)
                self._entries[key] = stored
            elif self._entries.pop(key, None) is not None:
                del self._order[bisect_left(self._order, key)]

    def items(self) -> list[tuple[CheckpointKey, Stored]]:
        return list(self._entries.items())

    def after(
        self, key: CheckpointKey | None, consumer: str | None
    ) -> Iterator[tuple[CheckpointKey, Stored]]:
        """Those behind `key`, by consumer and stream; with `consumer` only its own. The table must
        not change meanwhile."""
        start = 0 if key is None else bisect_right(self._order, key)
        if consumer is not None:
            start = max(start, bisect_left(self._order, (consumer, "")))
        for position in range(start, len(self._order)):
            found = self._order[position]
            if consumer is not None and found[0] != consumer:
                return
            yield found, self._entries[found]
