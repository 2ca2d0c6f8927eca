"""NATS over a WebSocket, with the interface of nats-py's transports.

nats-py's own transport keeps written data until `drain` is awaited, treats a frame as a line, and
cannot connect twice. The code that writes acks does not await, so in this module a task sends them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable
from typing import Any

import aiohttp
from nats.aio.transport import Transport
from yarl import URL

logger = logging.getLogger("liftlog.server.ingest")

_FRAME_BYTES = 1024 * 1024
_CLOSE_SECONDS = 1.0


class WebSocketTransport(Transport):
    """A transport for one connection."""

    def __init__(self, is_live: Callable[[], bool], tls_name: str = "") -> None:
        """`is_live` returns True while the client still uses this connection. `tls_name` is the
        name to expect in the server's certificate; if `tls_name` is empty, the host in the URL is
        expected."""
        self._is_live = is_live
        self._tls_name = tls_name
        self._session: aiohttp.ClientSession | None = None
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._received = b""
        self._written: list[bytes] = []
        self._unsent_bytes = 0
        self._sender: asyncio.Task[None] | None = None
        self._closer: asyncio.Task[None] | None = None

    async def connect(self, uri: Any, buffer_size: int, connect_timeout: int) -> None:
        await self._open(uri, None, connect_timeout)

    async def connect_tls(
        self, uri: Any, ssl_context: ssl.SSLContext, buffer_size: int, connect_timeout: int
    ) -> None:
        # nats-py calls this method when the server requires TLS. The WebSocket already has TLS.
        if self._socket is None:
            await self._open(uri, ssl_context, connect_timeout)

    async def _open(self, uri: Any, context: ssl.SSLContext | None, timeout: float) -> None:
        # The login is sent in NATS's CONNECT, not in HTTP.
        url = URL(uri.geturl()).with_user(None)
        self._session = aiohttp.ClientSession()
        async with asyncio.timeout(timeout):
            try:
                self._socket = await self._session.ws_connect(
                    url,
                    ssl=context if context is not None else True,
                    server_hostname=self._tls_name or None,
                    max_msg_size=0,
                    timeout=aiohttp.ClientWSTimeout(ws_close=_CLOSE_SECONDS),
                )
            except aiohttp.ClientError as error:
                raise ConnectionError(f"no WebSocket at {url}: {error}") from error

    # --- reading ---

    async def read(self, buffer_size: int) -> bytes:
        if not self._received:
            self._received = await self._frame()
        data, self._received = self._received, b""
        return data if self._is_live() else b""

    async def readline(self) -> bytes:
        while b"\n" not in self._received:
            more = await self._frame()
            if not more:
                break
            self._received += more
        line, newline, self._received = self._received.partition(b"\n")
        return line + newline

    async def _frame(self) -> bytes:
        """Return the next frame; empty at the end."""
        assert self._socket is not None, "connect comes first"
        message = await self._socket.receive()
        if message.type is aiohttp.WSMsgType.BINARY:
            data: bytes = message.data
            return data
        if message.type is aiohttp.WSMsgType.ERROR:
            raise ConnectionError(f"the WebSocket broke: {message.data!r}")
        if not self._socket.closed:  # text frames, which NATS does not send
            raise ConnectionError(f"unexpected WebSocket frame: {message.type.name}")
        return b""

    def at_eof(self) -> bool:
        return not self._received and (self._socket is None or self._socket.closed)

    async def unread(self) -> bytes:
        """Return data that had arrived and was not read when the connection failed."""
        data, self._received = self._received, b""
        return data

    def behind_bytes(self) -> int:
        """Return 0, because the number is unknown for a WebSocket."""
        return 0

    # --- writing ---

    def send(self, data: bytes) -> bool:
        """Queue bytes for the server; False without a connection."""
        if self._socket is None or self._socket.closed:
            return False
        self._written.append(data)
        self._unsent_bytes += len(data)
        if self._sender is None or self._sender.done():
            self._sender = asyncio.get_running_loop().create_task(self._send_written())
        return True

    def write(self, payload: bytes) -> None:
        self.send(payload)

    def writelines(self, payload: list[bytes]) -> None:
        self.send(b"".join(payload))

    async def _send_written(self) -> None:
        socket = self._socket
        assert socket is not None
        try:
            while self._written:
                data, self._written = b"".join(self._written), []
                for start in range(0, len(data), _FRAME_BYTES):
                    await socket.send_bytes(data[start : start + _FRAME_BYTES])
                self._unsent_bytes -= len(data)
        except (OSError, aiohttp.ClientError) as error:
            # The read loop detects the end of the socket.
            logger.warning("nats-websocket-not-written error=%r", error)
            self.abort()

    async def drain(self) -> None:
        if self._sender is not None and not self._sender.done():
            await asyncio.shield(self._sender)

    def unsent_bytes(self) -> int:
        return self._unsent_bytes

    # --- the end ---

    def close(self) -> None:
        if self._closer is None:
            self._closer = asyncio.get_running_loop().create_task(self._close())

    async def _close(self) -> None:
        if self._sender is not None:
            self._sender.cancel()
            await asyncio.gather(self._sender, return_exceptions=True)
        with contextlib.suppress(OSError, aiohttp.ClientError, TimeoutError):
            if self._socket is not None:
                await self._socket.close()
        if self._session is not None:
            await self._session.close()

    async def wait_closed(self) -> None:
        if self._closer is not None:
            await asyncio.shield(self._closer)

    def abort(self) -> None:
        """Close without waiting for unsent bytes."""
        connection = None if self._socket is None else self._socket._conn
        if connection is not None and connection.transport is not None:
            connection.transport.abort()
        self.close()

    def __bool__(self) -> bool:
        return True  # otherwise nats-py would replace the transport
