"""Progress bars on stderr for long work, shown if stderr is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from liftlog.cli.lib.output import make_console

Advance = Callable[[str, int], None]
"""A callback that receives the name of the current item, and the number of bytes done since the
last call."""


@contextmanager
def byte_progress(total_bytes: int) -> Iterator[Advance]:
    """Show the progress of work on bytes. If `total_bytes` is too low, the bar grows with the work
    done."""
    if not sys.stderr.isatty():
        yield lambda what, size: None
        return
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    progress = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=make_console(sys.stderr),
        transient=True,
    )
    with progress:
        task = progress.add_task("", total=total_bytes)
        done = 0

        def advance(what: str, size: int) -> None:
            nonlocal done
            done += size
            total = max(total_bytes, done)
            progress.update(task, description=what, completed=done, total=total)

        yield advance


@contextmanager
def count_progress(what: str) -> Iterator[Callable[[int, int | None], None]]:
    """Yield a function to call with the number of items done, and with the total if it is known."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    progress = Progress(
        TextColumn(what, markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=make_console(sys.stderr),
        transient=True,
    )
    with progress:
        task = progress.add_task("", total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


_PHASES = {
    "start": "starting Spark",
    "erase": "removing erased rows",
    "scan": "reading the stream",
    "merge": "merging keys",
    "optimize": "merging files",
}


class ProgressBar:
    """A progress bar; use it in `with`. `tell` may be called from any thread."""

    def __init__(self) -> None:
        self._progress: Any = None
        self._tasks: dict[str, Any] = {}
        if sys.stderr.isatty():
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.completed}/{task.total}"),
                TimeElapsedColumn(),
                console=make_console(sys.stderr),
                transient=True,
            )

    def tell(self, phase: str, done: int, total: int) -> None:
        if self._progress is None:
            return
        for name, task in self._tasks.items():
            if name != phase:
                self._progress.update(task, visible=False)
        if phase not in self._tasks:
            self._tasks[phase] = self._progress.add_task(_PHASES[phase], total=total or None)
        self._progress.update(self._tasks[phase], completed=done, total=total or None)

    def __enter__(self) -> Self:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._progress is not None:
            self._progress.stop()
