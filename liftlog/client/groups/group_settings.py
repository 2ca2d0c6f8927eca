"""The settings of a group's consumer, and the form in which both clients pass answers to their
common part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from liftlog.client.reading.read_options import ReadOptions, Start
from liftlog.errors import InvalidArgument, LiftlogError
from liftlog.protocol.groups import MAX_SLOTS

if TYPE_CHECKING:
    from liftlog.protocol.messages import Message

SESSION_SECONDS = 10.0
COMMIT_EVERY = 10_000
COMMIT_INTERVAL_SECONDS = 1.0
LOOK_SECONDS = 0.1
"""Interval, in seconds, at which a member without records checks for news of its group."""
POLL_MS = 1000
"""While a fetch finds no records of the member's slots, the daemon reports at this interval, in
milliseconds, how far it has searched the stream."""

SlotsCallback = Callable[[Sequence[int]], None]


class Answered(NamedTuple):
    """The answer to a message, and the time at which the message was sent (monotonic seconds)."""

    message: Message
    answer: Message | LiftlogError
    sent: float


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """The arguments of `Client.group`."""

    group: str
    stream: str
    member: str
    is_static: bool
    start: Start
    session: float
    slot_count: int | None
    every: int | None
    interval: float | None
    on_assigned: SlotsCallback | None
    on_revoked: SlotsCallback | None
    options: ReadOptions = field(default_factory=ReadOptions)

    def check(self) -> None:
        """Check the values. Raises InvalidArgument."""
        if not 0.2 <= self.session <= 3600:
            raise InvalidArgument(f"session={self.session!r} is not 0.2 to 3600 seconds")
        if self.slot_count is not None and not 1 <= self.slot_count <= MAX_SLOTS:
            raise InvalidArgument(f"slots={self.slot_count!r} is not 1 to {MAX_SLOTS}")
        if self.every is not None and self.every < 1:
            raise InvalidArgument(f"commit_every={self.every!r} is not a number of records")
        if self.interval is not None and self.interval <= 0:
            raise InvalidArgument(f"commit_interval={self.interval!r} is not a time in seconds")
        for name in ("filter", "columns", "replica"):
            if self.options.get(name) is not None:
                raise InvalidArgument(f"a group reads whole records of the leader: no {name!r}")
