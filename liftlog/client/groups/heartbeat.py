"""The part of a member's heartbeats that does not wait."""

from __future__ import annotations

from collections import deque
from typing import TypeAlias

from liftlog.errors import GroupFenced, LiftlogError
from liftlog.protocol.client_connection import Exchange
from liftlog.protocol.groups import AssignmentAnswer, BeatGroup

News: TypeAlias = deque[tuple[AssignmentAnswer | LiftlogError, int, float]]
"""Answers of the coordinator, each with the `joined` that its heartbeat contained and the time at
which the heartbeat was sent (monotonic seconds)."""

IDLE_SECONDS = 0.05
"""Pause between two checks of `beat` while it is None."""

_UNHEARD_SECONDS = 0.2
"""Pause, in seconds, after an answer with changes that the member has not handled yet. Without the
pause, the coordinator would repeat the answer at once."""


class Heartbeat:
    """Holds `beat`, the heartbeat to send next; None while the client is not a member."""

    def __init__(self, news: News) -> None:
        self.beat: BeatGroup | None = None
        self._news = news

    def _pause_after(self, beat: BeatGroup, exchange: Exchange, sent: float) -> float:
        """Append an assignment or a permanent error to the news, which the member reads. Returns
        the seconds until the next heartbeat."""
        if isinstance(exchange.answer, AssignmentAnswer):
            self._news.append((exchange.answer, beat.joined, sent))
            return 0.0 if exchange.answer.generation == beat.generation else _UNHEARD_SECONDS
        error = exchange.error
        if isinstance(error, GroupFenced) or (error is not None and not error.retriable):
            self._news.append((error, beat.joined, sent))
            if self.beat is beat:
                self.beat = None
        return _UNHEARD_SECONDS
