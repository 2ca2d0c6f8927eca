"""A limit on a resource that all consumers share. No single consumer can exhaust the resource. No
I/O."""

from __future__ import annotations

from typing import NamedTuple


class Budget:
    """A limit of `total` for all parts together. Each part can always use its `share`, even if the
    total is then exceeded. So all parts together can use up to `total` plus one `share` for each
    part."""

    def __init__(self, total: int, share: int) -> None:
        self._total, self._share = total, share
        self.used = 0

    def part(self) -> Part:
        return Part(self)

    def fits(self, used: int, amount: int) -> bool:
        return amount <= self._share or self.used - used + amount <= self._total


class Part:
    """The part of a budget that one consumer or one search uses. The owner must `close` it."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self.amount = 0

    def resize(self, amount: int) -> bool:
        """Change the part to `amount`. Returns False, and changes nothing, if the budget does not
        allow it."""
        if amount > self.amount and not self._budget.fits(self.amount, amount):
            return False
        self._budget.used += amount - self.amount
        self.amount = amount
        return True

    def close(self) -> None:
        self.resize(0)


class Budgets(NamedTuple):
    """The limits that all cursors share. `noted` limits the number of offsets that searches for the
    newest records store, at some 200 bytes each. `chosen` limits the number of offsets that wait to
    be delivered, at 8 bytes each."""

    noted: Budget
    chosen: Budget
