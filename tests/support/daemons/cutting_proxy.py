"""A proxy in front of a pull server that closes or freezes connections when a test requests it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit


class CuttingProxy:
    """For each of the following connections, `budgets` has the number of bytes of answers after
    which the connection is closed. Connections after the end of the list have no limit. `target`
    can be changed; None refuses connections. The proxy forwards at most `piece_bytes` at once, and
    pauses for `pause_seconds` between two pieces."""

    def __init__(self, target: str | None) -> None:
        self.target = target
        self.budgets: deque[int] = deque()
        self.connection_count = 0
        self.piece_bytes = 65536
        self.pause_seconds = 0.0
        self.address = ""
        self._open: set[asyncio.StreamWriter] = set()
        self._frozen: set[asyncio.StreamWriter] = set()
        self.tasks: set[asyncio.Task[None]] = set()

    def cut(self) -> None:
        """Close every connection now."""
        for writer in list(self._open):
            writer.transport.abort()

    def freeze(self) -> None:
        """Stop forwarding on all existing connections, and keep them open."""
        self._frozen |= self._open

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connection_count += 1
        budget = self.budgets.popleft() if self.budgets else None
        if self.target is None:
            writer.transport.abort()
            return
        where = urlsplit(self.target)
        try:
            upstream_reader, upstream = await asyncio.open_connection(where.hostname, where.port)
        except OSError:
            writer.transport.abort()
            return
        ends = {writer, upstream}
        self._open |= ends
        try:
            forth = asyncio.create_task(self._pump(reader, upstream, None))
            self.tasks.add(forth)
            forth.add_done_callback(self.tasks.discard)
            await self._pump(upstream_reader, writer, budget)
            forth.cancel()
        finally:
            for end in ends:
                end.transport.abort()
            self._open -= ends

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, budget: int | None
    ) -> None:
        try:
            while budget is None or budget > 0:
                most = self.piece_bytes
                data = await reader.read(most if budget is None else min(budget, most))
                if not data:
                    break
                if writer in self._frozen:
                    await asyncio.Event().wait()
                writer.write(data)
                await writer.drain()
                # The receiver gets each piece separately.
                await asyncio.sleep(self.pause_seconds)
                budget = None if budget is None else budget - len(data)
        except OSError:
            pass
        if writer.can_write_eof() and not writer.is_closing():
            writer.write_eof()


@asynccontextmanager
async def cutting_proxy(target: str | None, port: int = 0) -> AsyncIterator[CuttingProxy]:
    proxy = CuttingProxy(target)
    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(proxy.serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", port)
    proxy.address = f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        server.close()
        pending = tasks | proxy.tasks
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        proxy.cut()
