"""A client of either kind, used from the event loop of a test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Self

from support.clients.aio import steps
from support.clients.blocking import steps as blocking_steps

from liftlog.client import connect, connect_sync


async def until(condition: Callable[[], object]) -> None:
    """Let the event loop run until the condition is true."""
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


def router_of(owner: Any) -> Any:
    """Return the router of a client of either kind, or of a group member that it made."""
    return owner._session


class Opened:
    def __init__(self, client: Any) -> None:
        self.client = client
        self.blocking = not asyncio.iscoroutinefunction(client.ping)

    @classmethod
    async def to(cls, kind: str, address: str, **options: Any) -> Self:
        """Connect. `kind` is sync or async."""
        if kind == "sync":
            return cls(await asyncio.to_thread(connect_sync, address, **options))
        return cls(await connect(address, **options))

    async def call(self, name: str, *args: Any, **options: Any) -> Any:
        return await self.of(self.client, name, *args, **options)

    async def of(self, owner: Any, name: str, *args: Any, **options: Any) -> Any:
        """Return a method of an object that the client made."""
        method = getattr(owner, name)
        if self.blocking:
            return await asyncio.to_thread(method, *args, **options)
        return await method(*args, **options)

    async def step(self, name: str, *args: Any, **options: Any) -> Any:
        """Return a function of `aio.steps`, or its counterpart for the blocking client."""
        if self.blocking:
            return await asyncio.to_thread(getattr(blocking_steps, name), *args, **options)
        return await getattr(steps, name)(*args, **options)

    async def offsets(
        self, stream: str, *args: Any, into: list[int] | None = None, **options: Any
    ) -> list[int]:
        """Return the offsets that a read returns, in order. Also appends them to `into` as they
        arrive."""
        seen: list[int] = [] if into is None else into
        await self.step("offsets", self.client, seen, stream, *args, **options)
        return seen

    async def take(self, iterator: Any, count: int | None = None) -> list[Any]:
        """Return `count` items, or fewer at the end; all items if `count` is None."""
        return list(await self.step("take", iterator, count))

    async def close(self) -> None:
        await self.call("close")
