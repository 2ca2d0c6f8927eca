"""Calls that change a log while nothing else writes to it, for those who wait for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from liftlog.errors import DiskFull
from liftlog.server.commits.host import StreamHost
from liftlog.server.vitals.disk_reserve import DiskReserve

_STALL_SECONDS = 10.0

_T = TypeVar("_T")


async def exclusively(
    host: StreamHost,
    call: Callable[[], _T],
    then: Callable[[], None] | None = None,
    *,
    reserve: DiskReserve | None = None,
) -> _T:
    """`call` as the writer of the moment, and `then` on the event loop if it succeeds.

    On a full disk it is tried once more in the room of the `reserve`: pass it where the call makes
    room, or helps to. A call that is cancelled has ended when this raises, unless the disk stalls.
    """
    try:
        return await _finished(host, call, then)
    except DiskFull:
        if reserve is None:
            raise
    async with reserve.lent():
        return await _finished(host, call, then)


async def _finished(
    host: StreamHost, call: Callable[[], _T], then: Callable[[], None] | None
) -> _T:
    outcome: list[_T] = []
    future = host.run_exclusive(lambda: outcome.append(call()), then)
    try:
        await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.wait({future}, timeout=_STALL_SECONDS)
        if future.done() and not future.cancelled():
            future.exception()  # nobody is left to be told
        raise
    return outcome[0]
