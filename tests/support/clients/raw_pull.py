"""Peers of the pull server that build their frames themselves, so that they can also send invalid
frames."""

from __future__ import annotations

import asyncio
import socket
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
        """Return the map of the next frame. A body is added under the key "body"."""
        async with asyncio.timeout(10):
            (length,) = struct.unpack("<I", await self.reader.readexactly(4))
            message: dict[str, Any] = msgpack.unpackb(await self.reader.readexactly(length))
            if message.get("b"):
                message["body"] = await self.reader.readexactly(message["b"])
        return message

    async def closed(self) -> bytes:
        """Wait until the server closes the connection. Returns the bytes that arrived before."""
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


class BlockingPull:
    """The same without an event loop, for a port of this machine. Reads and drops bodies."""

    def __init__(self, port: int, *, greet: bool = True, token: str | None = None) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=20)
        if greet:
            self.send(frame(HELLO))
            assert self.receive()["k"] == "challenge"
            self.send(frame(AUTH if token is None else {**AUTH, "m": "token", "t": token}))
            assert self.receive()["k"] == "welcome"

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def receive(self) -> dict[str, Any]:
        """Return the next answer. Raises ConnectionError at the end."""
        (length,) = struct.unpack("<I", self._exactly(4))
        answer: dict[str, Any] = msgpack.unpackb(self._exactly(length), strict_map_key=False)
        self._exactly(answer.get("b") or 0)
        return answer

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            part = self.sock.recv(count - len(data))
            if not part:
                raise ConnectionError("closed")
            data += part
        return data

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()
