"""Handles the daemon's signals; docs/how-to/operate.md lists their effects."""

from __future__ import annotations

import asyncio
import faulthandler
import io
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

logger = logging.getLogger("liftlog.server")

_MAX_SHOWN_TASKS = 200
REPEATED_SECONDS = 1.0
"""If two SIGTERMs arrive within this time (in seconds), they count as one. When a whole group of
processes receives the signal, a wrapper process may forward it to the daemon a second time."""


class Signals:
    """Handles signals as long as the event loop exists. A signal that arrives before the daemon
    serves takes effect when the daemon serves."""

    def __init__(
        self,
        *,
        stop: Callable[[], None],
        hurry: Callable[[], None],
        reload: Callable[[], None],
        reopen_logs: Callable[[], None],
    ) -> None:
        self._stop = stop
        self._hurry = hurry
        self._stopping = False
        self._stopping_since = 0.0
        self._actions: Mapping[signal.Signals, Callable[[], None]] = {
            signal.SIGTERM: self._terminate,
            signal.SIGINT: self._interrupt,
            signal.SIGHUP: reload,
            signal.SIGUSR1: reopen_logs,
            signal.SIGQUIT: dump_tasks,
        }

    def watch(self) -> None:
        loop = asyncio.get_running_loop()
        for number in self._actions:
            loop.add_signal_handler(number, self._on_signal, number)
        try:
            # After a crash or a watchdog's SIGABRT these stacks are the only evidence.
            faulthandler.enable(all_threads=True)
            # This runs inside the signal handler, so it also shows a loop that hangs. With `chain`,
            # the loop also handles the signal if it still can.
            faulthandler.register(signal.SIGQUIT, all_threads=True, chain=True)
        except (io.UnsupportedOperation, RuntimeError, ValueError) as error:
            logger.warning("no-stack-dumps error=%s", error)  # stderr has no file descriptor

    def _on_signal(self, number: signal.Signals) -> None:
        logger.info("signal name=%s", number.name)
        self._actions[number]()

    def _begin_to_stop(self) -> None:
        self._stopping = True
        self._stopping_since = asyncio.get_running_loop().time()
        self._stop()

    def _terminate(self) -> None:
        if not self._stopping:
            self._begin_to_stop()
        elif asyncio.get_running_loop().time() - self._stopping_since >= REPEATED_SECONDS:
            logger.warning("stopping-sooner")
            self._hurry()

    def _interrupt(self) -> None:
        if self._stopping:
            # A second Ctrl-C exits at once. Acked messages are on disk, and the next start recovers
            # them.
            logger.warning("stopping-at-once")
            logging.shutdown()
            os._exit(128 + signal.SIGINT)
        self._begin_to_stop()


def dump_tasks() -> None:
    """Print to stderr, for each task of the event loop, the place where it waits. Called after the
    stacks of the threads were printed."""
    tasks = sorted(asyncio.all_tasks(), key=lambda task: task.get_name())
    lines = [f"Tasks of the event loop: {len(tasks)}"]
    for task in tasks[:_MAX_SHOWN_TASKS]:
        lines.append(f"\nTask {task.get_name()} (most recent call last):")
        lines += _awaits(task.get_coro())
    print("\n".join(lines), file=sys.stderr, flush=True)


def _awaits(awaited: Any) -> Iterator[str]:
    """Yield the chain of awaits of a task. The task object itself shows only the first await."""
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is None:
            return
        code = frame.f_code
        yield f'  File "{code.co_filename}", line {frame.f_lineno}, in {code.co_qualname}'
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
