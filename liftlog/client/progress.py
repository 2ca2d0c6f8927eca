"""How far a consumer has come, and when to store that. Without any I/O, for both clients.

A record counts as processed when the next one is asked for. A checkpoint is the offset after the
last processed record, so a record that the consumer was working on when it ended is read again.

With `exclusive` every commit states which checkpoint it expects to be stored. A commit whose answer
was lost may have taken effect or not. Its offset is remembered: if the next commit is refused
because exactly that offset is stored, it has taken effect.
"""

from __future__ import annotations

from liftlog.errors import (
    CheckpointMoved,
    ConnectionLost,
    InvalidArgument,
    LiftlogError,
    RequestTimeout,
)
from liftlog.protocol.checkpoints import Checkpoint

CHECKPOINT_EVERY = 1000
CHECKPOINT_INTERVAL_SECONDS = 5.0

_MAX_TRIES = 5


class Progress:
    """A checkpoint is due after `every` records or `interval` seconds; None switches one off."""

    def __init__(self, every: int | None, interval: float | None, *, exclusive: bool) -> None:
        if every is not None and every < 1:
            raise InvalidArgument(f"checkpoint_every={every!r} is not a number of records")
        if interval is not None and interval <= 0:
            raise InvalidArgument(f"checkpoint_interval={interval!r} is not a time in seconds")
        self.position: int | None = None
        """Everything below counts as processed; None before anything does."""
        self.committed = 0
        """The stored offset, as far as is known; 0 if there is none."""
        self.incarnation: str | None = None
        self.epoch: int | None = None
        self._every = every
        self._interval = interval
        self._exclusive = exclusive
        self._uncounted = 0
        self._due_at: float | None = None
        self._undecided: set[int] = set()
        self._tries = 0
        self._lost = False

    def begin(self, stored: Checkpoint | None, now: float) -> None:
        """Begin with the stored checkpoint, which has offset 0 if there is none."""
        if stored is not None and stored.offset:
            self.committed = self.position = stored.offset
            self.incarnation, self.epoch = stored.incarnation, stored.epoch
        self._postpone(now)

    @property
    def expected(self) -> int | None:
        """The offset that a commit expects to be stored."""
        return self.committed if self._exclusive else None

    # --- what counts as processed ---

    def advance(self, position: int | None, count: int) -> None:
        """All records below `position` are processed, `count` more than before."""
        if position is not None:
            self.position = position
            self._uncounted += count

    def arrive(
        self, position: int | None, incarnation: str | None, epoch: int | None, count: int
    ) -> None:
        """The same for all records that the read has returned, with the stream that it reads."""
        self.advance(position, count)
        if position is not None:
            self.incarnation, self.epoch = incarnation, epoch

    def hear(self, incarnation: str | None, epoch: int | None) -> None:
        """The stream that the following records were read from. A checkpoint among them has to name
        this epoch: the previous one may have ended below them."""
        self.incarnation, self.epoch = incarnation, epoch

    def move(self, position: int, incarnation: str) -> None:
        """The read continues at another position."""
        self.position = position
        self.incarnation, self.epoch = incarnation, None

    # --- when to store it ---

    def is_due(self, now: float) -> bool:
        if self._every is not None and self._uncounted >= self._every:
            return self._is_new
        if self._due_at is None or now < self._due_at:
            return False
        if not self._is_new:
            self._postpone(now)
            return False
        return True

    def seconds_left(self, now: float) -> float | None:
        """How long to wait for records before asking `is_due` again."""
        return None if self._due_at is None else max(self._due_at - now, 0.0)

    @property
    def _is_new(self) -> bool:
        return self.position is not None and self.position != self.committed

    def _postpone(self, now: float) -> None:
        self._uncounted = 0
        self._due_at = None if self._interval is None else now + self._interval

    # --- storing it ---

    def start_commit(self, now: float) -> None:
        """Whether it succeeds or not, the next one is due a full interval from now."""
        self._postpone(now)
        self._tries = 0

    def next_commit(self) -> int | None:
        """The offset to commit; None if it is stored, or if another process has committed."""
        if self._lost or not self._is_new:
            return None
        self._tries += 1
        return self.position

    def confirmed(self, offset: int) -> None:
        """The commit is durable."""
        self.committed = offset
        self._undecided.clear()

    def in_doubt(self, offset: int) -> None:
        """The commit may have taken effect."""
        self._undecided.add(offset)

    def refused(self, offset: int, error: LiftlogError) -> bool:
        """Whether to ask for `next_commit` again instead of raising the error."""
        if isinstance(error, CheckpointMoved):
            stored = error.details.get("offset")
            if stored in self._undecided:
                self.confirmed(stored)
                return True
            self._lost = True
            return False
        lost = isinstance(error, ConnectionLost) and error.undecided
        if lost or isinstance(error, RequestTimeout):
            self.in_doubt(offset)
        return lost and self._tries < _MAX_TRIES
