"""Beats of a member of a group, sent while its caller works: by a task, or by a thread."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from contextlib import suppress
from typing import TypeAlias

from liftlog.client.aio.routing import Router
from liftlog.client.blocking.routing import SyncRouter
from liftlog.client.connecting.reconnecting import Backoff
from liftlog.client.connecting.target import Target
from liftlog.errors import ConnectionLost, GroupFenced, LiftlogError, RequestTimeout
from liftlog.protocol.client_connection import Exchange
from liftlog.protocol.groups import AssignmentAnswer, BeatGroup

News: TypeAlias = deque[tuple[AssignmentAnswer | LiftlogError, int, float]]
"""Answers, `joined` of their beats, and when these were sent (monotonic seconds)."""


class _Beats:
    """What both have. `beat` is what the member says now; None while it is no member."""

    def __init__(self, news: News) -> None:
        self.beat: BeatGroup | None = None
        self._news = news

    def _pause_after(self, beat: BeatGroup, exchange: Exchange | None, sent: float) -> float:
        """Pass on the answer. Returns for how long to say nothing: an answer that the member has
        not acted on would come again at once."""
        if exchange is None:
            return 0.2  # no connection, or no answer
        if isinstance(exchange.answer, AssignmentAnswer):
            self._news.append((exchange.answer, beat.joined, sent))
            return 0.0 if exchange.answer.generation == beat.generation else 0.2
        error = exchange.error
        if isinstance(error, GroupFenced) or (error is not None and not error.retriable):
            self._news.append((error, beat.joined, sent))
            if self.beat is beat:
                self.beat = None
        return 0.2


class Beating(_Beats):
    """In a task of the client's loop."""

    def __init__(self, session: Router, news: News, targets: list[Target]) -> None:
        super().__init__(news)
        self._session = session
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while True:
            beat, pause = self.beat, 0.05
            if beat is not None:
                sent = time.monotonic()
                exchange: Exchange | None = None
                with suppress(ConnectionLost, RequestTimeout):
                    timeout = self._session.target.request_timeout + beat.max_wait_ms / 1000
                    exchange = await self._session.ask(beat, timeout)
                pause = self._pause_after(beat, exchange, sent)
            await asyncio.sleep(pause)

    async def stop(self) -> None:
        self.beat = None
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None


class SyncBeating(_Beats):
    """In a thread with a connection of its own: the client's belongs to its caller."""

    def __init__(self, session: SyncRouter, news: News, targets: list[Target]) -> None:
        super().__init__(news)
        self._targets = targets
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="liftlog-beats", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        backoff = Backoff()
        while not self._ended.is_set():
            session = SyncRouter(self._targets)
            try:
                session.open()
                self._beat_over(session)
            except LiftlogError:
                self._ended.wait(backoff.next_pause())
            finally:
                session.close("it is not needed any more")

    def _beat_over(self, session: SyncRouter) -> None:
        while not self._ended.is_set():
            beat, pause = self.beat, 0.05
            if beat is not None:
                sent = time.monotonic()
                timeout = session.target.request_timeout + beat.max_wait_ms / 1000
                pause = self._pause_after(beat, session.ask(beat, timeout), sent)
            self._ended.wait(pause)

    def stop(self) -> None:
        self.beat = None
        self._ended.set()
        if self._thread is not None:
            self._thread.join(timeout=1.0)
            self._thread = None
