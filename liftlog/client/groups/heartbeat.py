"""The part of a member's heartbeats that does not wait."""

from __future__ import annotations

from collections import deque
from typing import TypeAlias

from liftlog.errors import GroupFenced, LiftlogError
from liftlog.protocol.client_connection import Exchange
from liftlog.protocol.groups import AssignmentAnswer, BeatGroup

News: TypeAlias = deque[tuple[AssignmentAnswer | LiftlogError, int, float]]
"""Answers, `joined` of their heartbeats, and the times at which these were sent (monotonic
seconds)."""

IDLE_SECONDS = 0.05
"""Pause between two checks of `beat` while there is none."""

_UNHEARD_SECONDS = 0.2
"""Pause after an answer that the member has not handled yet: the same answer would come again at
once."""


class Heartbeat:
    """`beat` is the heartbeat that the member sends now; None while it is not a member."""

    def __init__(self, news: News) -> None:
        self.beat: BeatGroup | None = None
        self._news = news

    def _pause_after(self, beat: BeatGroup, exchange: Exchange, sent: float) -> float:
        """Pass on the answer. Returns the seconds until the next heartbeat."""
        if isinstance(exchange.answer, AssignmentAnswer):
            self._news.append((exchange.answer, beat.joined, sent))
            return 0.0 if exchange.answer.generation == beat.generation else _UNHEARD_SECONDS
        error = exchange.error
        if isinstance(error, GroupFenced) or (error is not None and not error.retriable):
            self._news.append((error, beat.joined, sent))
            if self.beat is beat:
                self.beat = None
        return _UNHEARD_SECONDS
