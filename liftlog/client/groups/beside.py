"""What a member of a group does beside its iteration, so that no record waits for it: by a task, or
by a thread with a connection of its own."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from typing import NamedTuple

from liftlog.client.aio.routing import Router
from liftlog.client.blocking.routing import SyncRouter
from liftlog.client.connecting.target import Target
from liftlog.client.requests import result_of
from liftlog.errors import LiftlogError
from liftlog.protocol.messages import Message

OPENING_SECONDS = 0.005
"""While a connection is opened, and nothing else comes, it is looked for so often."""


class Heard(NamedTuple):
    """The answer to a message, and when that was sent (monotonic seconds)."""

    message: Message
    answer: Message | LiftlogError
    sent: float


class Speaking:
    """Asks messages one after the other, until one is refused. One such sequence at a time."""

    def __init__(self, session: Router, targets: list[Target]) -> None:
        self._session = session
        self._task: asyncio.Task[list[Heard]] | None = None

    @property
    def busy(self) -> bool:
        return self._task is not None and not self._task.done()

    def begin(self, messages: Sequence[Message]) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(messages))

    async def _run(self, messages: Sequence[Message]) -> list[Heard]:
        heard: list[Heard] = []
        for message in messages:
            sent = time.monotonic()
            try:
                timeout = self._session.target.request_timeout
                answer = result_of(await self._session.ask(message, timeout), Message)
            except LiftlogError as error:
                return [*heard, Heard(message, error, sent)]
            heard.append(Heard(message, answer, sent))
        return heard

    async def heard(self) -> list[Heard]:
        """Wait for all answers, or up to the one that is an error. When this is cancelled, it goes
        on."""
        assert self._task is not None
        await asyncio.wait([self._task])
        return self._task.result()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None


class SyncSpeaking:
    """In a thread: the client's connection belongs to its caller."""

    def __init__(self, session: SyncRouter, targets: list[Target]) -> None:
        self._targets = targets
        self._session: SyncRouter | None = None
        self._thread: threading.Thread | None = None
        self._heard: list[Heard] = []
        self._failed: BaseException | None = None

    @property
    def busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def begin(self, messages: Sequence[Message]) -> None:
        self._heard, self._failed = [], None
        self._thread = threading.Thread(
            target=self._run, args=(messages,), name="liftlog-commits", daemon=True
        )
        self._thread.start()

    def _run(self, messages: Sequence[Message]) -> None:
        for message in messages:
            sent = time.monotonic()
            try:
                if self._session is None:
                    session = SyncRouter(self._targets)
                    session.open()
                    self._session = session
                timeout = self._session.target.request_timeout
                answer = result_of(self._session.ask(message, timeout), Message)
            except LiftlogError as error:
                self._heard.append(Heard(message, error, sent))
                return
            except BaseException as error:  # noqa: BLE001 - raised by `heard`, not lost in a thread
                self._failed = error
                return
            self._heard.append(Heard(message, answer, sent))

    def heard(self) -> list[Heard]:
        """Wait for all answers, or up to the one that is an error. Raises what was none."""
        assert self._thread is not None
        self._thread.join()
        if self._failed is not None:
            raise self._failed
        return self._heard

    def stop(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._session is not None:
            self._session.close("closed by this client")
            self._session = None


class Opening:
    """Opens connections for lanes."""

    def __init__(self, session: Router) -> None:
        self._session = session
        self._task: asyncio.Task[Router] | None = None

    def take(self) -> Router | None:
        """A new one, once it is open; until then None. Raises what `Router.another` raises."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._session.another())
        if not self._task.done():
            return None
        task, self._task = self._task, None
        return task.result()

    async def stop(self) -> None:
        """One that was not taken ends with the client's."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None


class SyncOpening:
    """In a thread."""

    def __init__(self, session: SyncRouter) -> None:
        self._session = session
        self._thread: threading.Thread | None = None
        self._opened: SyncRouter | BaseException | None = None

    def take(self) -> SyncRouter | None:
        """A new one, once it is open; until then None. Raises what `SyncRouter.another` raises."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="liftlog-opens", daemon=True)
            thread.start()
            self._thread = thread
        if self._opened is None:
            return None
        opened, self._opened, self._thread = self._opened, None, None
        if isinstance(opened, BaseException):
            raise opened
        return opened

    def _run(self) -> None:
        try:
            self._opened = self._session.another()
        except BaseException as error:  # noqa: BLE001 - handed over: else `take` would wait forever
            self._opened = error

    def stop(self) -> None:
        """One that was not taken ends with the client's."""
