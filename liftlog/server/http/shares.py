"""Limits the number of requests in progress, in total and per caller."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Hashable, Iterator

from liftlog.errors import LimitExceeded


class Shares:
    """Admits a request if fewer than `total` requests are in progress, or if its caller has fewer
    than `share` requests in progress. So the number of requests can exceed `total` by at most
    `share` for each caller. Belongs to one event loop."""

    def __init__(self, total: int, share: int) -> None:
        self._total, self._share = total, share
        self._under_way: Counter[Hashable] = Counter()

    def __len__(self) -> int:
        """Number of callers with a request in progress."""
        return len(self._under_way)

    @contextlib.contextmanager
    def one(self, caller: Hashable) -> Iterator[None]:
        """Count a request until the context ends. Raises LimitExceeded."""
        own = self._under_way[caller]
        if own >= self._share and self._under_way.total() >= self._total:
            raise LimitExceeded(
                f"you have {own} unanswered requests of this kind, and all callers together "
                f"{self._total}",
                hint="try again when some have been answered",
            )
        self._under_way[caller] = own + 1
        try:
            yield
        finally:
            self._under_way[caller] -= 1
            if not self._under_way[caller]:
                del self._under_way[caller]
