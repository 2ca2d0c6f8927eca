"""Handles Ctrl-C during calls of Spark. The calls run in threads of their own, and the main thread
only waits.

Separate threads are necessary for four reasons. A call into the JVM cannot be interrupted. If
PySpark is interrupted while its JVM starts, the JVM cannot report its port, and runs forever
without a parent. If an exception ends a call, py4j logs tracebacks. And PySpark's own handler of
SIGINT, which PySpark sets only in the main thread, makes a second call during the first.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

T = TypeVar("T")

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LOOK_SECONDS = 0.05
_LONGEST_START_SECONDS = 60.0
"""Maximum time, in seconds, for which a signal is held back while the JVM starts."""
_CANCEL_SECONDS = 0.5
_CANCELS = 20


class _Call(Generic[T]):
    """Runs a call in a daemon thread, which does not keep the process alive."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._results: list[T] = []
        self._error: BaseException | None = None
        self.is_over = threading.Event()

    def begin(self) -> None:
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            self._results.append(self._call())
        except BaseException as error:  # noqa: BLE001  # `result` raises it in the waiting thread
            self._error = error
        finally:
            self.is_over.set()

    def result(self) -> T:
        if self._error is not None:
            raise self._error
        return self._results[0]


def start_jvm(create: Callable[[], T], is_connected: Callable[[], bool]) -> T:
    """Run `create`, which starts a JVM, and return its result. Signals that arrive before
    `is_connected` returns True are handled only afterwards: once PySpark is connected, the JVM ends
    with this process.

    Only signals that have a handler in Python are held back. Raises the errors of `create` and of
    the handlers.
    """
    if not _is_main_thread():
        return create()
    with _held_back() as arrived:
        call = _Call(create)
        call.begin()
        latest = float("inf")
        while not call.is_over.wait(_LOOK_SECONDS):
            if not arrived:
                continue
            latest = min(latest, time.monotonic() + _LONGEST_START_SECONDS)
            if is_connected() or time.monotonic() > latest:
                break
    for number in arrived[:1]:
        signal.raise_signal(number)
    call.is_over.wait()  # the handler has raised no exception
    return call.result()


def run_cancellable(call: Callable[[], T], cancel: Callable[[], None]) -> T:
    """Run `call` and return its result. If an exception, such as KeyboardInterrupt, interrupts the
    wait, `cancel` is called so that `call` ends. The exception is raised when `call` has ended, or
    after ten seconds."""
    if not _is_main_thread():
        return call()
    made = _Call(call)
    try:
        made.begin()
        made.is_over.wait()
    except BaseException:
        for _ in range(_CANCELS):  # repeated, because the job may begin only after the first call
            _Call(cancel).begin()
            if made.is_over.wait(_CANCEL_SECONDS):
                break
        raise
    return made.result()


@contextmanager
def _held_back() -> Iterator[list[int]]:
    """Hold back signals in the block. Yields the list of signals that have arrived and are not
    handled yet."""
    arrived: list[int] = []
    handlers: dict[signal.Signals, Any] = {number: signal.getsignal(number) for number in _SIGNALS}
    held = {number: handler for number, handler in handlers.items() if callable(handler)}
    for number in held:
        signal.signal(number, lambda number, frame: arrived.append(number))
    try:
        yield arrived
    finally:
        for number, handler in held.items():
            signal.signal(number, handler)


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
