"""Who waits for records that the daemon itself writes into a stream."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from liftlog.errors import DiskFull, LiftlogError, ShuttingDown, StreamUnavailable
from liftlog.stream.refusals import SHUTTING_DOWN, Refusal

Told = Callable[[LiftlogError | None], None]


class OwnRecords:
    """In the order of their offsets. Belongs to the event loop."""

    def __init__(self, stream: str) -> None:
        self._stream = stream
        self._waiting: deque[tuple[int, Told]] = deque()

    def wait(self, next_offset: int, told: Told) -> None:
        """`told` hears when everything below `next_offset` is committed, or that it is not."""
        self._waiting.append((next_offset, told))

    def committed(self, next_offset: int) -> None:
        waiting = self._waiting
        while waiting and waiting[0][0] <= next_offset:
            waiting.popleft()[1](None)

    def failed(self, error: Exception | str) -> None:
        """A group failed: everything that was numbered since the last commit is taken back."""
        told, self._waiting = self._waiting, deque()
        for _, one in told:
            one(self._told_about(error))

    def refused(self, refusal: Refusal, told: Told) -> None:
        """The stream takes nothing now."""
        if refusal is SHUTTING_DOWN:
            told(ShuttingDown("the daemon is stopping"))
        else:
            told(self._told_about(refusal.description))

    def _told_about(self, error: Exception | str) -> LiftlogError:
        if isinstance(error, DiskFull):
            return error
        return StreamUnavailable(f"stream {self._stream} could not store it: {error}")
