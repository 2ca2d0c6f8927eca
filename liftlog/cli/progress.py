"""How far long work is: a bar on stderr, if that is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Advance = Callable[[str, int], None]
"""What is worked on, and how many bytes were done just now."""


@contextmanager
def byte_progress(total_bytes: int) -> Iterator[Advance]:
    """`total_bytes` may turn out to be wrong: the bar then grows with what is done."""
    if not sys.stderr.isatty():
        yield lambda what, size: None
        return
    from rich.console import Console
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
        console=Console(stderr=True),
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
