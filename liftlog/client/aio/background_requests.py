"""Sends requests and opens connections for a member of a group in the background, so that no record
waits for them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

from liftlog.client.aio.background import Background, BackgroundRouter
from liftlog.client.aio.routing import Router
from liftlog.client.groups.group_settings import Answered
from liftlog.client.requests import result_of
from liftlog.errors import LiftlogError
from liftlog.protocol.messages import Message


class BackgroundRequests:
    """Sends requests one after the other, and stops at the first one that fails. Only one such
    sequence runs at a time."""

    def __init__(self, session: Router) -> None:
        self._router = BackgroundRouter(session)
        self._background: Background[list[Answered]] | None = None

    @property
    def busy(self) -> bool:
        return self._background is not None and not self._background.done

    def begin(self, messages: Sequence[Message]) -> None:
        self._background = Background("liftlog-requests")
        self._background.start(partial(self._run, messages))

    async def _run(self, messages: Sequence[Message]) -> list[Answered]:
        answered: list[Answered] = []
        for message in messages:
            sent = time.monotonic()
            try:
                router = await self._router.opened()
                exchange = await router.ask(message, router.target.request_timeout)
                answered.append(Answered(message, result_of(exchange, Message), sent))
            except LiftlogError as error:
                answered.append(Answered(message, error, sent))
                break
        return answered

    async def answered(self) -> list[Answered]:
        """Wait for the end of the sequence, and return the answers. If a request failed, its error
        is the last answer, because no request was sent after it. If this call is cancelled, the
        sequence continues."""
        assert self._background is not None
        return await self._background.result()

    async def stop(self) -> None:
        if self._background is not None:
            await self._background.stop(None)
            self._background = None
        self._router.close()


class ConnectionOpener:
    """Opens connections in the background, one at a time."""

    def __init__(self, session: Router) -> None:
        self._session = session
        self._background: Background[Router] | None = None

    async def take(self) -> Router | None:
        """Return the new connection if it is open. Otherwise return None and open a connection in
        the background. Raises the errors of `Router.another`."""
        if self._background is None:
            background: Background[Router] = Background("liftlog-connection")
            background.start(self._session.another)
            self._background = background
        if not self._background.done:
            return None
        opened, self._background = self._background, None
        return await opened.result()

    async def stop(self) -> None:
        """Stop opening. A connection that was not taken is closed together with the client's
        connections."""
        if self._background is not None:
            await self._background.stop(0)
            self._background = None
