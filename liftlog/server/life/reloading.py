"""Reloads files on SIGHUP. All files are checked before any of them takes effect. Invalid files are
ignored."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from liftlog.errors import LiftlogError
from liftlog.log.files.filesystem import private

logger = logging.getLogger("liftlog.server.reload")

OUTCOME_NAME = "reloaded.json"
"""File in the data directory with the outcome of the last reload. `liftlog reload` waits for it."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Part:
    name: str
    load: Callable[[], Any]
    swap: Callable[[Any], None]


@dataclass(slots=True)
class Reloads:
    """The parts of a daemon that can be reloaded. Belongs to the event loop."""

    succeeded: int = 0
    failed: int = 0
    last_succeeded: bool = True
    problems: dict[str, str] = field(default_factory=dict)
    """The errors of the parts that failed at the last reload. Such a part keeps its previous
    content."""
    restart_needed: list[str] = field(default_factory=list)
    """Settings that have changed since the start and take effect only after a restart."""
    _parts: list[_Part] = field(default_factory=list)
    _outcome_file: Path | None = None
    _wanted: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, name: str, load: Callable[[], T], swap: Callable[[T], None]) -> None:
        """Add a part. `load` runs in a thread. It reads and checks the files, and raises
        LiftlogError for invalid files. `swap` runs on the event loop with the result of `load`. It
        must not fail."""
        self._parts.append(_Part(name, load, swap))

    def tell_in(self, data_dir: Path) -> None:
        """Write the outcome of each reload to a file in `data_dir`. Removes the file of an earlier
        process first. Raises OSError."""
        path = data_dir / OUTCOME_NAME
        path.unlink(missing_ok=True)
        self._outcome_file = path

    def request(self) -> None:
        """Request a reload. Several requests during a reload lead to exactly one more reload."""
        self._wanted.set()

    async def serve_requests(self, before: Callable[[], None], after: Callable[[], None]) -> None:
        """Carry out requested reloads until cancelled. `before` and `after` are called around each
        reload."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            before()
            await self.run()
            after()

    async def run(self) -> bool:
        """Reload every part. Returns True if all parts were valid. An invalid part keeps its
        previous content, and all other parts are replaced. Clients do not wait for a reload."""
        began_ns = time.monotonic_ns()
        problems: dict[str, str] = {}
        loaded: list[tuple[_Part, Any]] = []
        for part in self._parts:
            try:
                loaded.append((part, await asyncio.to_thread(part.load)))
            except LiftlogError as error:
                problems[part.name] = str(error)
                logger.error("reload-refused part=%s error=%s", part.name, error)  # noqa: TRY400
            except Exception as error:  # a supervisor: a reload must not end the daemon
                problems[part.name] = f"internal error: {error!r}"
                logger.exception("reload-failed part=%s", part.name)
        # There is no await in between. So each request sees either the old content of all parts or
        # the new content of all parts.
        for part, value in loaded:
            part.swap(value)
        self.problems = problems
        self.last_succeeded = not problems
        if problems:
            self.failed += 1
        else:
            self.succeeded += 1
        logger.info(
            "reloaded parts=%s kept_old=%s",
            ",".join(part.name for part, _ in loaded),
            ",".join(problems),
        )
        if self._outcome_file is not None:
            outcome = {
                "pid": os.getpid(),
                "began_ns": began_ns,
                "reloaded": [part.name for part, _ in loaded],
                "problems": problems,
                "restart_needed": self.restart_needed,
            }
            await asyncio.to_thread(_write, self._outcome_file, json.dumps(outcome))
        return not problems

    def close(self) -> None:
        if self._outcome_file is not None:
            with contextlib.suppress(OSError):
                self._outcome_file.unlink()


def _write(path: Path, text: str) -> None:
    """Write the file without a sync, because it describes only the running process."""
    temporary = path.with_suffix(".tmp")
    try:
        with open(temporary, "w", opener=private) as file:
            file.write(text)
        temporary.replace(path)
    except OSError as error:
        logger.warning("reload-not-told file=%s error=%s", path, error)
