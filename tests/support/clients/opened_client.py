"""A client of either kind, driven from the loop of a test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from liftlog.client import connect, connect_sync


async def until(condition: Callable[[], object]) -> None:
    """Give the loop its turns until it is so."""
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


class Opened:
    def __init__(self, client: Any) -> None:
        self.client = client
        self.blocking = not asyncio.iscoroutinefunction(client.ping)

    @classmethod
    async def to(cls, kind: str, address: str, **options: Any) -> Opened:
        """`kind` is sync or async."""
        if kind == "sync":
            return cls(await asyncio.to_thread(connect_sync, address, **options))
        return cls(await connect(address, **options))

    async def call(self, name: str, *args: Any, **options: Any) -> Any:
        return await self.of(self.client, name, *args, **options)

    async def of(self, owner: Any, name: str, *args: Any, **options: Any) -> Any:
        """A method of something that the client made."""
        method = getattr(owner, name)
        if self.blocking:
            return await asyncio.to_thread(method, *args, **options)
        return await method(*args, **options)

    async def offsets(
        self, stream: str, *args: Any, into: list[int] | None = None, **options: Any
    ) -> list[int]:
        """Those that a read gives, in its order; also put `into` as they come."""
        seen: list[int] = [] if into is None else into
        if self.blocking:

            def run() -> None:
                for batch in self.client.read_batches(stream, *args, **options):
                    seen.extend(batch.offsets())

            await asyncio.to_thread(run)
        else:
            async for batch in self.client.read_batches(stream, *args, **options):
                seen.extend(batch.offsets())
        return seen

    async def take(self, iterator: Any, count: int) -> list[Any]:
        """So many items, fewer at the end."""
        if not self.blocking:
            found = []
            for _ in range(count):
                item = await anext(iterator, None)
                if item is None:
                    break
                found.append(item)
            return found

        def run() -> list[Any]:
            items = (next(iterator, None) for _ in range(count))
            return [item for item in items if item is not None]

        return await asyncio.to_thread(run)

    async def close(self) -> None:
        await self.call("close")
