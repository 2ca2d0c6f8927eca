"""The changes of a stream's consumers that the followers have not confirmed. No I/O."""

from __future__ import annotations

from collections import deque

MAX_ENTRIES = 4096
"""Maximum number of entries in memory. While too few replicas are in sync, nothing is confirmed,
but changes continue (for example, pulls expire). So without a limit the memory would fill."""


class Unconfirmed:
    """Maps positions in the journal to numbers in the leader's epoch. Positions and numbers only
    increase.

    An entry stands for the changes from its position up to the position of the next entry. These
    changes count as confirmed when the number of the newest change is confirmed. If there are too
    many entries, neighbours are merged. So a change may count as confirmed some time after its
    confirmation, but never before it.
    """

    def __init__(self) -> None:
        # The newest number and the first position of each entry.
        self._entries: deque[tuple[int, int]] = deque()

    def __bool__(self) -> bool:
        return bool(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, number: int, position: int) -> None:
        """Add a change that is newer than all others."""
        self._entries.append((number, position))
        if len(self._entries) > MAX_ENTRIES:
            self._merge()

    def _merge(self) -> None:
        """Merge the entries in pairs. If their number is odd, the last entry stays."""
        entries = [*self._entries]
        merged = [
            (newer[0], older[1]) for older, newer in zip(entries[::2], entries[1::2], strict=False)
        ]
        self._entries = deque(merged + entries[2 * len(merged) :])

    def confirm(self, number: int) -> None:
        """Drop the changes up to a number of the leader's epoch, because they are now confirmed."""
        entries = self._entries
        while entries and entries[0][0] <= number:
            entries.popleft()

    def is_confirmed(self, position: int) -> bool:
        """Return True if all changes up to a position in the journal are confirmed."""
        return not self._entries or self._entries[0][1] > position

    def number_at(self, position: int) -> int:
        """Return a number whose confirmation confirms all changes up to a position in the journal;
        0 if they are already confirmed."""
        for number, first in reversed(self._entries):
            if first <= position:
                return number
        return 0

    def renumber(self, number: int) -> None:
        """Give all changes the number `number`, because another epoch has begun."""
        if self._entries:
            self._entries = deque([(number, self._entries[0][1])])
