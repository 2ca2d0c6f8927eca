"""The checkpoints in memory: lookup by consumer and stream, and listing in that order."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from liftlog.server.checkpoints.layout import CheckpointKey, Stored

_MAX_SETTLED = 100_000


class CheckpointTable:
    """Not thread-safe. Contains durable checkpoints only, none that still wait for the disk.

    `losses` counts the ranges of `_offsets` lost to damage; which keys they contained is unknown.
    `settled` are the keys that were written after the last loss.
    """

    def __init__(
        self,
        entries: Mapping[CheckpointKey, Stored] | None = None,
        *,
        losses: int = 0,
        settled: Iterable[CheckpointKey] = (),
    ) -> None:
        self.losses = losses
        self._settled = set(settled)
        self._entries: dict[CheckpointKey, Stored] = dict(entries or {})
        self._order = sorted(self._entries)
        self._owned = Counter([one.owner for one in self._entries.values()])

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: CheckpointKey) -> Stored | None:
        return self._entries.get(key)

    def apply(self, changes: Mapping[CheckpointKey, Stored | None]) -> None:
        """Set new checkpoints; None deletes."""
        if self.losses:
            self._settled.update(changes)
            if len(self._settled) > len(self._entries) + _MAX_SETTLED:
                self._settled &= self._entries.keys()  # too many deleted keys
        for key, stored in changes.items():
            before = self._entries.get(key)
            if before is not None:
                self._disown(before.owner)
            if stored is not None:
                if before is None:
                    insort(self._order, key)
                self._entries[key] = stored
                self._owned[stored.owner] += 1
            elif before is not None:
                del self._entries[key]
                del self._order[bisect_left(self._order, key)]

    def owned_count(self, owner: str) -> int:
        return self._owned[owner]

    def _disown(self, owner: str) -> None:
        self._owned[owner] -= 1
        if not self._owned[owner]:
            del self._owned[owner]

    def is_uncertain(self, key: CheckpointKey) -> bool:
        """Whether damage may have cost a newer checkpoint of this key, or its deletion; for a key
        without a checkpoint, the only one."""
        return self.losses > 0 and key not in self._settled

    @property
    def uncertain_count(self) -> int:
        """How many of the existing checkpoints are uncertain."""
        return len(self._entries.keys() - self._settled) if self.losses else 0

    def items(self) -> list[tuple[CheckpointKey, Stored]]:
        return list(self._entries.items())

    def after(
        self, key: CheckpointKey | None, consumer: str | None
    ) -> Iterator[tuple[CheckpointKey, Stored]]:
        """Those after `key`, by consumer and stream; with `consumer`, only its own. The table must
        not change meanwhile."""
        start = 0 if key is None else bisect_right(self._order, key)
        if consumer is not None:
            start = max(start, bisect_left(self._order, (consumer, "")))
        for position in range(start, len(self._order)):
            found = self._order[position]
            if consumer is not None and found[0] != consumer:
                return
            yield found, self._entries[found]
