"""The acks that NATS refuses, because the daemon has no permission to publish to their subject."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

from liftlog.server.ingest.endings import Rejection

logger = logging.getLogger("liftlog.server.nats")

_TOLD_AGAIN_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class RefusedAck:
    """The most recent ack that NATS refused."""

    subject: str
    text: str
    at: float
    """Time of the refusal by the monotonic clock."""


class RefusedAcks:
    """Records the acks that NATS refuses. `last` is the most recent refused ack; None before the
    first refused ack."""

    def __init__(self) -> None:
        self.last: RefusedAck | None = None
        self._told_at = -_TOLD_AGAIN_SECONDS

    def add(self, rejection: Rejection) -> None:
        """Note a refusal. Logs at most one refusal per minute: publishers choose the subjects, so
        they could cause any number of lines."""
        now = time.monotonic()
        self.last = RefusedAck(rejection.subject, rejection.text, now)
        if now - self._told_at >= _TOLD_AGAIN_SECONDS:
            self._told_at = now
            logger.warning(
                "nats-ack-refused subject=%s reason=%s", rejection.subject, rejection.text
            )

    def log_at_once(self) -> None:
        """Log the next refusal, even if the last refusal was logged less than a minute ago."""
        self._told_at = -_TOLD_AGAIN_SECONDS
