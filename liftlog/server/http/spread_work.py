"""Long work on the event loop, done in small pieces over many turns of the loop.

Formatting what others sent belongs neither in one long call, which would delay every ack, nor in a
thread, where pure Python takes the interpreter from the commits for as long as it runs. The callers
bound the pieces; this module spreads them over the turns of the loop. Requests are served in the
order in which they ask: unlike `pull.fairness` it knows no principals.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

_TURN_SECONDS = 0.002

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class SpreadWork:
    """Belongs to one event loop. All requests of a port share one, so that together they take no
    more of a turn than one alone."""

    def __init__(self) -> None:
        self._one_at_a_time = asyncio.Lock()
        self._turn_began = 0.0

    async def run(
        self, piece: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result:
        """Run `piece`; end this turn of the loop if it has taken long."""
        async with self._one_at_a_time:
            result = piece(*args, **kwargs)
            if time.perf_counter() - self._turn_began > _TURN_SECONDS:
                await asyncio.sleep(0)
                self._turn_began = time.perf_counter()
            return result
