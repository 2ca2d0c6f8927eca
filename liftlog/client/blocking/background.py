"""Runs work in the background of its caller: in a thread, over a connection of its own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from liftlog.client.blocking.routing import SyncRouter
from liftlog.errors import LiftlogError

logger = logging.getLogger("liftlog.client")

Result = TypeVar("Result")


class Background(Generic[Result]):
    """Runs one piece of work in a thread."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None
        self._ending = threading.Event()
        self._results: list[Result] = []
        self._error: BaseException | None = None
        self._is_told = False

    def start(self, work: Callable[[], Result]) -> None:
        """Raises RuntimeError if the system has no thread left; it can be called again."""
        thread = threading.Thread(target=self._run, args=(work,), name=self._name, daemon=True)
        thread.start()
        self._thread = thread

    def _run(self, work: Callable[[], Result]) -> None:
        try:
            self._results.append(work())
        except BaseException as error:  # noqa: BLE001 - told by `result` or `stop`
            self._error = error

    @property
    def started(self) -> bool:
        return self._thread is not None

    @property
    def done(self) -> bool:
        return self._thread is not None and not self._thread.is_alive()

    @property
    def ending(self) -> bool:
        """True if the work has to end, because `stop` was called."""
        return self._ending.is_set()

    def pause(self, seconds: float) -> None:
        """For the work itself: wait for `seconds`, or until `stop` is called."""
        self._ending.wait(seconds)

    def result(self) -> Result:
        """Wait for the end of the work. Raises the error that ended it."""
        assert self._thread is not None
        self._thread.join()
        if self._error is not None:
            self._is_told = True
            raise self._error
        return self._results[0]

    def stop(self, patience: float | None) -> None:
        """Request the end of the work, and wait for it for `patience` seconds (None: without a
        limit): a thread cannot be cancelled. Logs a defect that was not raised to a caller."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join(patience)
        if self._error is not None and not (self._is_told or isinstance(self._error, LiftlogError)):
            logger.error("background-failed name=%s", self._name, exc_info=self._error)


class BackgroundRouter:
    """A connection for work in a thread: the client's connection belongs to its caller."""

    def __init__(self, session: SyncRouter) -> None:
        self._targets = session.targets
        self._own: SyncRouter | None = None

    def opened(self) -> SyncRouter:
        """Open the connection first if necessary. Raises the errors of `SyncRouter.open`."""
        if self._own is None:
            own = SyncRouter(self._targets)
            own.open()
            self._own = own
        return self._own

    def close(self) -> None:
        """Close the connection; the next `opened` opens another one."""
        if self._own is not None:
            self._own.close("it is not needed any more")
            self._own = None
