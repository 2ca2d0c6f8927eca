# Made from liftlog/client/aio/heartbeats.py by `make blocking`: edit that one.
"""Heartbeats of a member of a group, sent while its caller works."""

from __future__ import annotations

import time

from liftlog.client.blocking.background import Background, BackgroundRouter
from liftlog.client.blocking.routing import SyncRouter
from liftlog.client.connecting.reconnecting import Backoff
from liftlog.client.groups.heartbeat import IDLE_SECONDS, Heartbeat, News
from liftlog.errors import LiftlogError

_LONGEST_PAUSE_SECONDS = 1.0
_STOP_SECONDS = 1.0


class SyncHeartbeats(Heartbeat):
    """Sends `beat` repeatedly in the background, each time as soon as the previous heartbeat is
    answered."""

    def __init__(self, session: SyncRouter, news: News) -> None:
        super().__init__(news)
        self._router = BackgroundRouter(session)
        self._background: Background[None] = Background("liftlog-heartbeats")

    def start(self) -> None:
        """Start sending. Does nothing after the first call."""
        if not self._background.started:
            self._background.start(self._run)

    def _run(self) -> None:
        backoff = Backoff()
        try:
            while not self._background.ending:
                pause = IDLE_SECONDS
                if self.beat is not None:
                    try:
                        pause = self._send(self._router.opened())
                        backoff.reset()
                    except LiftlogError:  # no connection, or no answer
                        self._router.close()
                        pause = min(backoff.next_pause(), _LONGEST_PAUSE_SECONDS)
                self._background.pause(pause)
        finally:
            self._router.close()

    def _send(self, router: SyncRouter) -> float:
        """Send the current `beat`, which may have changed while the connection was being opened.
        Returns the seconds until the next heartbeat."""
        beat = self.beat
        if beat is None:
            return IDLE_SECONDS
        sent = time.monotonic()
        timeout = router.target.request_timeout + beat.max_wait_ms / 1000
        return self._pause_after(beat, router.ask(beat, timeout), sent)

    def stop(self) -> None:
        """Send no more heartbeats."""
        self.beat = None
        self._background.stop(_STOP_SECONDS)
