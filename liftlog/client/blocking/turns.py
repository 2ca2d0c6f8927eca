"""The twin of `aio.turns`. A client belongs to one thread at a time, so no call waits here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class Turns:
    """Lets the caller into a block without a wait."""

    @contextmanager
    def turn(self, deadline: float | None) -> Iterator[None]:
        """Enter the block at once. The code in the block must check the deadline itself."""
        yield

    def end(self) -> None:
        """Does nothing: no call waits."""
