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
        # Thread.join takes a thread for stopped if a signal handler raises in it (CPython 3.11).
        self._ended = threading.Event()
        self._results: list[Result] = []
        self._error: BaseException | None = None
        self._is_told = False

    def start(self, work: Callable[[], Result]) -> None:
        """Run `work` in a new thread. Raises RuntimeError if the system has no thread left; the
        caller can call this again."""
        thread = threading.Thread(target=self._run, args=(work,), name=self._name, daemon=True)
        thread.start()
        self._thread = thread

    def _run(self, work: Callable[[], Result]) -> None:
        try:
            self._results.append(work())
        except BaseException as error:  # noqa: BLE001 - told by `result` or `stop`
            self._error = error
        finally:
            self._ended.set()

    @property
    def started(self) -> bool:
        return self._thread is not None

    @property
    def done(self) -> bool:
        return self._ended.is_set()

    @property
    def ending(self) -> bool:
        """True once `stop` was called: the work has to end."""
        return self._ending.is_set()

    def pause(self, seconds: float) -> None:
        """Wait for `seconds`, or until `stop` is called. Only the work itself calls this."""
        self._ending.wait(seconds)

    def result(self) -> Result:
        """Wait until the work ends, and return its result. Raises the error that ended the work."""
        assert self._thread is not None
        self._ended.wait()
        if self._error is not None:
            self._is_told = True
            raise self._error
        return self._results[0]

    def stop(self, patience: float | None) -> None:
        """Request the end of the work, and wait at most `patience` seconds for the end (None:
        without a limit). A thread cannot be cancelled, so the work may run longer. Logs an
        unexpected exception of the work that `result` has not raised to a caller."""
        self._ending.set()
        if self._thread is not None:
            self._ended.wait(patience)
        if self._error is not None and not (self._is_told or isinstance(self._error, LiftlogError)):
            logger.error("background-failed name=%s", self._name, exc_info=self._error)


class BackgroundRouter:
    """Provides a connection for work in a thread: the client's own connection belongs to the thread
    of its caller."""

    def __init__(self, session: SyncRouter) -> None:
        self._targets = session.targets
        self._own: SyncRouter | None = None

    def opened(self) -> SyncRouter:
        """Return the connection; open it first if necessary. Raises the errors of
        `SyncRouter.open`."""
        if self._own is None:
            own = SyncRouter(self._targets)
            own.open()
            self._own = own
        return self._own

    def close(self) -> None:
        """Close the connection. The next call of `opened` opens another one."""
        if self._own is not None:
            self._own.close("it is not needed any more")
            self._own = None
