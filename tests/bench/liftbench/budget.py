"""How many rounds there is time for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator


class Rounds:
    """`most` rounds of each figure, and one of those that begin when the time is over: a loaded
    machine then measures everything, but less often."""

    def __init__(
        self, most: int, seconds: float, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.most = most
        self._clock = clock
        self._until = clock() + seconds

    @property
    def seconds_left(self) -> float:
        return max(0.0, self._until - self._clock())

    def __iter__(self) -> Iterator[int]:
        for number in range(self.most):
            if number and not self.seconds_left:
                return
            yield number
