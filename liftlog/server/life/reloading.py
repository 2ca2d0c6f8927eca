"""What is read again on SIGHUP: validated first, swapped after, the old kept when it is bad."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from liftlog.errors import LiftlogError

logger = logging.getLogger("liftlog.server.reload")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Part:
    name: str
    load: Callable[[], Any]
    swap: Callable[[Any], None]


@dataclass(slots=True)
class Reloads:
    """The parts of a daemon that can be read again. Belongs to the event loop."""

    succeeded: int = 0
    failed: int = 0
    last_succeeded: bool = True
    problems: dict[str, str] = field(default_factory=dict)
    """By part, what was wrong at the last reload: what holds there is older than the file."""
    restart_needed: list[str] = field(default_factory=list)
    """Settings that were changed since the start and cannot be reloaded."""
    _parts: list[_Part] = field(default_factory=list)
    _wanted: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, name: str, load: Callable[[], T], swap: Callable[[T], None]) -> None:
        """`load` reads and checks the files, in a thread, and raises LiftlogError for bad ones;
        `swap` gets what it returned, on the event loop, and must not fail."""
        self._parts.append(_Part(name, load, swap))

    def request(self) -> None:
        """Reload soon. Requests while one is under way lead to one more behind it."""
        self._wanted.set()

    async def serve_requests(self, before: Callable[[], None], after: Callable[[], None]) -> None:
        """Until it is cancelled; the callbacks are told when a reload begins, and when it has
        ended with the daemon still serving."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            before()
            await self.run()
            after()

    async def run(self) -> bool:
        """Read every part again; whether all of them were good. A bad one keeps what it had, and
        the others are swapped all the same. Nothing that is served meanwhile waits for this."""
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
        # No await in between: whoever is served next finds all of it swapped.
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
        return not problems
