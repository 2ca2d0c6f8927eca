"""The twin of `aio.turns`. A client belongs to one thread at a time, so nobody waits here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class Turns:
    """Every turn is the caller's."""

    @contextmanager
    def turn(self, deadline: float | None) -> Iterator[None]:
        """Those who wait in the block look at the deadline themselves."""
        yield

    def end(self) -> None:
        """Nobody waits."""
