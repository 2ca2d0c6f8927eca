"""How far a consumer has come, and when that is to be stored. Without any I/O, for both clients.

A record counts as processed when the one behind it is asked for. A checkpoint is the offset behind
the last processed record, so what a consumer had in hand when it ended is read again.

With `exclusive` every commit states what it takes for stored. A commit whose answer was lost may
have taken effect or not; the offset is kept in mind, and should the next commit be refused because
exactly this one is stored, it did.
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
    """`every` records or `interval` seconds, whichever is first; None: not by that."""

    def __init__(self, every: int | None, interval: float | None, *, exclusive: bool) -> None:
        if every is not None and every < 1:
            raise InvalidArgument(f"checkpoint_every={every!r} is not a number of records")
        if interval is not None and interval <= 0:
            raise InvalidArgument(f"checkpoint_interval={interval!r} is not a time in seconds")
        self.position: int | None = None
        """Everything below counts as processed; None before anything does."""
        self.committed = 0
        """What is stored, as far as is known; 0: nothing."""
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
        """With what the daemon has stored; at offset 0 there is none."""
        if stored is not None and stored.offset:
            self.committed = self.position = stored.offset
            self.incarnation, self.epoch = stored.incarnation, stored.epoch
        self._postpone(now)

    @property
    def expected(self) -> int | None:
        """What a commit states to be stored."""
        return self.committed if self._exclusive else None

    # --- what counts as processed ---

    def advance(self, position: int | None, count: int) -> None:
        """Everything below `position` is processed, `count` records more than before."""
        if position is not None:
            self.position = position
            self._uncounted += count

    def arrive(
        self, position: int | None, incarnation: str | None, epoch: int | None, count: int
    ) -> None:
        """The same for all that the read has handed out, with the stream that it reads."""
        self.advance(position, count)
        if position is not None:
            self.incarnation, self.epoch = incarnation, epoch

    def hear(self, incarnation: str | None, epoch: int | None) -> None:
        """The stream that the records handed out from now on were read from. A checkpoint among
        them has to name this epoch: the one before may have ended below them."""
        self.incarnation, self.epoch = incarnation, epoch

    def move(self, position: int, incarnation: str) -> None:
        """The read goes on elsewhere."""
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
        """How long to wait for records before `is_due` is to be asked again."""
        return None if self._due_at is None else max(self._due_at - now, 0.0)

    @property
    def _is_new(self) -> bool:
        return self.position is not None and self.position != self.committed

    def _postpone(self, now: float) -> None:
        self._uncounted = 0
        self._due_at = None if self._interval is None else now + self._interval

    # --- storing it ---

    def start_commit(self, now: float) -> None:
        """Whatever comes of it, the next one is due a full interval from now."""
        self._postpone(now)
        self._tries = 0

    def next_commit(self) -> int | None:
        """The offset to commit; None when it is stored, or not ours to store any more."""
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
        """Whether to ask for `next_commit` again, rather than to raise the error."""
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
