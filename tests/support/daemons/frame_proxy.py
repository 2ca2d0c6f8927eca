"""Proxies between the nodes of a cluster that disturb answers in ways that a network should not:
they delay answers, cut them in the middle, send them twice or in another order, and replay old
ones.

A replayed answer gets the id of the open request, so that its receiver treats it as the answer. The
receiver must detect, by the fields that the answer repeats from its request, that it belongs to
another request. The right answer follows, when the request counts as answered. (Only the id shows
the stream of an answer, so answers of other streams are not replayed.)
"""

from __future__ import annotations

import asyncio
import random
import struct
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgpack

_KEPT_ANSWERS = 300
_LONGEST_DELAY_SECONDS = 0.05
FAULTS = ("delayed", "cut", "doubled", "reordered", "replayed")


class Frame(NamedTuple):
    message: dict[str, Any]
    body: bytes

    def encoded(self) -> bytes:
        data: bytes = msgpack.packb(self.message)
        return struct.pack("<I", len(data)) + data + self.body


class FrameProxy:
    """A proxy in front of one node. `target` is the address of the node; None refuses connections.
    While `is_bad` is true, about every tenth answer to a follower gets one of FAULTS, counted in
    `done`."""

    def __init__(self, seed: int) -> None:
        self.target: str | None = None
        self.is_bad = False
        self.done: Counter[str] = Counter()
        self.address = ""
        self._random = random.Random(seed)
        self._old: dict[str, deque[Frame]] = defaultdict(lambda: deque(maxlen=_KEPT_ANSWERS))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one connection until its end."""
        ends = [writer]
        try:
            if self.target is not None:
                where = urlsplit(self.target)
                from_node, to_node = await asyncio.open_connection(where.hostname, where.port)
                ends.append(to_node)
                streams: dict[int, str] = {}
                async with asyncio.TaskGroup() as both:
                    both.create_task(self._pass_on(reader, to_node, streams))
                    both.create_task(self._spoil(from_node, writer, streams))
        except* (OSError, EOFError):
            pass
        finally:
            for end in ends:
                end.transport.abort()

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, streams: dict[int, str]
    ) -> None:
        while True:
            frame = await _read(reader)
            if frame.message["k"] == "replicate":
                streams[frame.message["i"]] = frame.message["s"]
            writer.write(frame.encoded())
            await writer.drain()

    async def _spoil(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, streams: dict[int, str]
    ) -> None:
        while True:
            frames = [await _read(reader)]
            stream = streams.pop(frames[0].message["i"], "")
            if stream:
                self._old[stream].append(frames[0])
            fault = self._fault() if stream else ""
            if fault == "reordered":
                frames.append(await _read(reader))
                frames.reverse()
            elif fault == "doubled":
                frames *= 2
            elif fault == "replayed":
                old = self._random.choice(self._old[stream])
                frames.insert(0, Frame({**old.message, "i": frames[0].message["i"]}, old.body))
            elif fault == "delayed":
                await asyncio.sleep(self._random.random() * _LONGEST_DELAY_SECONDS)
            elif fault == "cut":
                raw = frames[0].encoded()
                writer.write(raw[: self._random.randrange(len(raw))])
                await writer.drain()
                raise EOFError
            for frame in frames:
                writer.write(frame.encoded())
            await writer.drain()

    def _fault(self) -> str:
        if not self.is_bad or self._random.random() > 0.1:
            return ""
        fault = self._random.choice(FAULTS)
        self.done[fault] += 1
        return fault


async def _read(reader: asyncio.StreamReader) -> Frame:
    (length,) = struct.unpack("<I", await reader.readexactly(4))
    message = msgpack.unpackb(await reader.readexactly(length))
    return Frame(message, await reader.readexactly(message.get("b") or 0))


@asynccontextmanager
async def frame_proxies(count: int, seed: int) -> AsyncIterator[list[FrameProxy]]:
    """Start proxies. Each listens at its `address`."""
    proxies = [FrameProxy(seed + number) for number in range(count)]
    tasks: set[asyncio.Task[None]] = set()
    servers = []
    for proxy in proxies:

        def accept(
            reader: asyncio.StreamReader, writer: asyncio.StreamWriter, proxy: FrameProxy = proxy
        ) -> None:
            task = asyncio.get_running_loop().create_task(proxy.serve(reader, writer))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        proxy.address = f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        servers.append(server)
    try:
        yield proxies
    finally:
        for server in servers:
            server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
