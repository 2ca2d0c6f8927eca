"""Connections between the nats-servers of a cluster that can be interrupted in one or both
directions."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from itertools import permutations

_PIECE_BYTES = 65536


class NatsLinks:
    """`ports[i, j]` is the port at which server i reaches server j. Data and new connections on an
    interrupted link wait, as in TCP."""

    def __init__(self, size: int) -> None:
        self._pairs = list(permutations(range(size), 2))
        self.ports: dict[tuple[int, int], int] = {}
        self._targets: list[int] = []
        self._open = {pair: asyncio.Event() for pair in self._pairs}
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        for pair in self._pairs:
            server = await asyncio.start_server(partial(self._accept, pair), "127.0.0.1", 0)
            self._servers.append(server)
            self.ports[pair] = server.sockets[0].getsockname()[1]
        self.heal()

    def connect(self, targets: list[int]) -> None:
        """Set the ports at which the servers accept routes."""
        self._targets = targets

    async def close(self) -> None:
        for server in self._servers:
            server.close()
        self.heal()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def heal(self) -> None:
        for event in self._open.values():
            event.set()

    def isolate(self, number: int, *, hears: bool = False, is_heard: bool = False) -> None:
        """Isolate a server. With `hears` it still receives data, and with `is_heard` others still
        receive its data."""
        for sender, receiver in self._pairs:
            if (sender == number and not is_heard) or (receiver == number and not hears):
                self._open[sender, receiver].clear()

    def separate(self, one: int, other: int) -> None:
        """Interrupt the link between two servers. Both still reach the other servers."""
        self._open[one, other].clear()
        self._open[other, one].clear()

    def _accept(
        self, pair: tuple[int, int], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(pair, reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(
        self, pair: tuple[int, int], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        one, other = pair
        ends = [writer]
        try:
            await self._open[pair].wait()
            port = self._targets[other]
            there, upstream = await asyncio.open_connection("127.0.0.1", port)
            ends.append(upstream)
            pumps = [
                asyncio.ensure_future(self._pump(pair, reader, upstream)),
                asyncio.ensure_future(self._pump((other, one), there, writer)),
            ]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
        except OSError:
            pass
        finally:
            for end in ends:
                end.transport.abort()

    async def _pump(
        self, pair: tuple[int, int], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_PIECE_BYTES):
                await self._open[pair].wait()
                writer.write(data)
                await writer.drain()
