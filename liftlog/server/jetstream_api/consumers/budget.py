"""What all consumers share: a bound on a resource that one of them cannot use up. Pure."""

from __future__ import annotations


class Budget:
    """`total` for all; a part that takes no more than `share` always gets it, so there may be
    `total` and a `share` for each part at most."""

    def __init__(self, total: int, share: int) -> None:
        self._total, self._share = total, share
        self.used = 0

    def part(self) -> Part:
        return Part(self)

    def fits(self, used: int, amount: int) -> bool:
        return amount <= self._share or self.used - used + amount <= self._total


class Part:
    """Of one consumer or search. `close` it."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self.amount = 0

    def resize(self, amount: int) -> bool:
        """Take so much in all, more or less than now; False, and nothing changed, if it is more
        than there is."""
        if amount > self.amount and not self._budget.fits(self.amount, amount):
            return False
        self._budget.used += amount - self.amount
        self.amount = amount
        return True

    def close(self) -> None:
        self.resize(0)
