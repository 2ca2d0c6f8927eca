"""What is wanted from NATS, and how it stands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from liftlog.stream.run import MessageRun

RunHandler = Callable[[MessageRun], None]


def _ignore(reason: str) -> None:
    pass


@dataclass(slots=True, eq=False)
class LinkSubscription:
    """One wanted subscription; it outlives connections."""

    subject: str
    queue_group: str | None
    handler: RunHandler
    on_gap: Callable[[str], None] = _ignore
    """Called with the reason when messages may have been missed."""
    is_acked: bool = False
    """Whether its messages are acked: then JetStream should not ack them as well."""
    jetstream_streams: list[str] = field(default_factory=list)
    """Those of JetStream's that get some of the same messages, when last looked at."""
    confirmed: bool = False
    """NATS delivers, for all that is known."""
    problem: str = ""
    """Why NATS refuses it."""
    was_confirmed: bool = False
    was_refused: bool = False
    """Since it was confirmed last."""

    def accepted(self) -> None:
        """NATS has confirmed it."""
        if self.was_refused:
            self.on_gap("NATS refused the subscription for a while")
        self.confirmed = self.was_confirmed = True
        self.problem, self.was_refused = "", False

    def refused(self, problem: str) -> None:
        """NATS does not deliver."""
        self.confirmed, self.was_refused = False, True
        self.problem = problem
