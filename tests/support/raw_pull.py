"""A peer of the pull server that speaks frames by hand, so that it can also misspeak."""

from __future__ import annotations

import asyncio
import struct
from typing import Any, Self

import msgpack


def frame(message: Any) -> bytes:
    data: bytes = msgpack.packb(message)
    return struct.pack("<I", len(data)) + data


HELLO = {"k": "hello", "i": 1, "v": [1], "n": b"0123456789abcdef", "c": "raw"}
AUTH = {"k": "auth", "i": 2, "m": "anonymous"}


class RawPull:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, address: str, *, hello: bool = True) -> Self:
        if address.startswith("unix://"):
            peer = cls(*await asyncio.open_unix_connection(address.removeprefix("unix://")))
        else:
            host, port = address.removeprefix("tcp://").rsplit(":", 1)
            peer = cls(*await asyncio.open_connection(host, int(port)))
        if hello:
            peer.send(HELLO)
            assert (await peer.receive())["k"] == "challenge"
            peer.send(AUTH)
            assert (await peer.receive())["k"] == "welcome"
        return peer

    def send(self, message: Any) -> None:
        self.writer.write(frame(message))

    def send_bytes(self, data: bytes) -> None:
        self.writer.write(data)

    async def receive(self) -> dict[str, Any]:
        """The next frame's map; its body, if any, is put under "body"."""
        async with asyncio.timeout(10):
            (length,) = struct.unpack("<I", await self.reader.readexactly(4))
            message: dict[str, Any] = msgpack.unpackb(await self.reader.readexactly(length))
            if message.get("b"):
                message["body"] = await self.reader.readexactly(message["b"])
        return message

    async def closed(self) -> bytes:
        """Wait for the server to end the connection; what came before that."""
        async with asyncio.timeout(10):
            try:
                return await self.reader.read()
            except ConnectionResetError:
                return b""

    async def close(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except ConnectionError:
            pass

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
