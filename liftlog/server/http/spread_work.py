"""Work on what others sent, on the event loop, a small piece at a time.

Such work belongs neither into one long call, which would delay every ack, nor into a thread, where
pure Python takes the interpreter from the commits for as long as it runs. Its pieces are bounded
where they are made; here they are spread over the turns of the loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

_TURN_SECONDS = 0.002

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Turns:
    """Shared by all requests of a port, so that many of them cost a turn no more than one.

    Belongs to one event loop.
    """

    def __init__(self) -> None:
        self._one_at_a_time = asyncio.Lock()
        self._turn_began = 0.0

    async def take(
        self, piece: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result:
        """Run `piece`, then let the others run if this turn of the loop has taken long."""
        async with self._one_at_a_time:
            result = piece(*args, **kwargs)
            if time.perf_counter() - self._turn_began > _TURN_SECONDS:
                await asyncio.sleep(0)
                self._turn_began = time.perf_counter()
            return result
