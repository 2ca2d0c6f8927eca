"""Limits the number of rounds by time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator


class Rounds:
    """Runs `most` rounds of each figure. Figures that begin after the time limit get one round, so
    that a loaded machine measures all figures, but less often."""

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
