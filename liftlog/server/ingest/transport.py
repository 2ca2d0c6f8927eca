"""nats-py's TCP transport with larger reads, and a reader that delivers data at once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import Any

from nats.aio.transport import TcpTransport
from nats.errors import ProtocolError

logger = logging.getLogger("liftlog.server.ingest")

READ_BYTES = 1024 * 1024
_FULL_READ = 64 * 1024
"""The event loop reads up to about 256 KB at once. A read of fewer bytes means that the socket is
empty."""
_JUST_NOW_SECONDS = 0.1

Feed = Callable[[bytes], bytes]
"""A function that takes the bytes of a read, and returns the bytes that it leaves to the read
loop."""


class DirectReader(asyncio.StreamReader):
    """A StreamReader that passes data to `feed` at once if the read loop is waiting for data.

    Messages then skip the reader's buffer, and do not wait until the task of the read loop is
    scheduled. This saves two copies of all data, and a tenth of the round trip of a single message.
    Bytes that `feed` returns pass through the buffer as usual. The same applies to all data while
    the read loop is busy.
    """

    def __init__(self, limit: int, feed: Feed | None) -> None:
        super().__init__(limit=limit)
        self._feed = feed
        self._loop_waits = False
        self._holds_data = False
        self.behind_bytes = 0
        """Number of bytes that were read since the socket was last empty. A large number means that
        NATS had to wait for the daemon."""
        self._was_emptied = True
        self._read_at = 0.0

    def feed_data(self, data: Any) -> None:
        size = len(data)
        self.behind_bytes = size if self._was_emptied else self.behind_bytes + size
        self._was_emptied = size < _FULL_READ
        self._read_at = time.monotonic()
        if self._feed is not None and self._loop_waits and not self._holds_data:
            try:
                data = self._feed(data)
            except Exception as error:  # noqa: BLE001  # the read loop reconnects
                # Do not use the parser again. It has lost its position in the input, and a payload
                # may look like a message.
                self._feed = None
                self.set_exception(ProtocolError())
                logger.warning("nats-input-not-parsed error=%r", error)
                return
            if not data:
                return
        self._holds_data = True
        super().feed_data(data)

    def feed_eof(self) -> None:
        self._judge_end()
        super().feed_eof()

    def set_exception(self, exc: Exception) -> None:
        self._judge_end()
        super().set_exception(exc)

    def _judge_end(self) -> None:
        if time.monotonic() - self._read_at > _JUST_NOW_SECONDS:
            self.behind_bytes = 0

    async def read(self, n: int = -1) -> bytes:
        self._loop_waits = True
        try:
            data = await super().read(n)
        finally:
            self._loop_waits = False
        self._holds_data = len(data) == n
        return data


class _DirectProtocol(asyncio.StreamReaderProtocol):
    """Passes arriving bytes directly to the reader."""

    def __init__(self, reader: DirectReader) -> None:
        super().__init__(reader)
        self.data_received = reader.feed_data  # type: ignore[method-assign]


class _TlsProtocol(_DirectProtocol):
    """The protocol of a connection that starts TLS later. asyncio's own protocol does not support
    this."""

    def eof_received(self) -> bool:
        super().eof_received()
        return False


class WideTransport(TcpTransport):
    """nats-py's TCP transport with reads of 1 MiB instead of 32 KiB, and a DirectReader."""

    def __init__(
        self,
        is_live: Callable[[], bool],
        feed: Feed | None = None,
    ) -> None:
        """`is_live` returns True while the client still uses this connection."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._is_live = is_live
        self._feed = feed
        self._out: asyncio.WriteTransport | None = None
        """Acks are written to asyncio's transport directly, because a publisher waits for them."""

    async def connect(self, uri: Any, buffer_size: int, connect_timeout: int) -> None:
        loop = asyncio.get_running_loop()
        reader = DirectReader(READ_BYTES, self._feed)
        protocol = _DirectProtocol(reader)
        async with asyncio.timeout(connect_timeout):
            transport, _ = await loop.create_connection(lambda: protocol, uri.hostname, uri.port)
        self._use(reader, transport, protocol)
        self._bare_io_reader, self._bare_io_writer = self._io_reader, self._io_writer

    async def connect_tls(
        self, uri: Any, ssl_context: Any, buffer_size: int, connect_timeout: int
    ) -> None:
        assert self._io_writer is not None, "connect comes first"
        loop = asyncio.get_running_loop()
        reader = DirectReader(READ_BYTES, self._feed)
        protocol = _TlsProtocol(reader)
        hostname = uri if isinstance(uri, str) else uri.hostname
        async with asyncio.timeout(connect_timeout):
            transport = await loop.start_tls(
                self._io_writer.transport, protocol, ssl_context, server_hostname=hostname
            )
        assert transport is not None
        reader.set_transport(transport)
        self._use(reader, transport, protocol)

    def _use(
        self,
        reader: DirectReader,
        transport: Any,
        protocol: asyncio.StreamReaderProtocol,
    ) -> None:
        self._io_reader = reader
        self._io_writer = asyncio.StreamWriter(
            transport, protocol, reader, asyncio.get_running_loop()
        )
        self._out = transport

    async def read(self, buffer_size: int) -> bytes:
        data: bytes = await super().read(READ_BYTES)
        # The read loop may read once more after the connection was abandoned. The parser may have
        # lost its position, so such data may begin inside a message.
        return data if self._is_live() else b""

    def __bool__(self) -> bool:
        return True  # otherwise nats-py would replace the transport

    def writelines(self, payload: list[bytes]) -> None:
        if self._io_writer is not None:
            super().writelines(payload)  # type: ignore[no-untyped-call]

    async def drain(self) -> None:
        if self._io_writer is not None:
            await super().drain()  # type: ignore[no-untyped-call]

    def unsent_bytes(self) -> int:
        return 0 if self._out is None else self._out.get_write_buffer_size()

    def behind_bytes(self) -> int:
        """Number of bytes read since the socket was last empty."""
        reader = self._io_reader
        return reader.behind_bytes if isinstance(reader, DirectReader) else 0

    async def unread(self) -> bytes:
        """Return data that had arrived and was not read when the connection failed."""
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(_JUST_NOW_SECONDS):
                if self._io_reader is not None:
                    return await self._io_reader.read(READ_BYTES)
        return b""

    def abort(self) -> None:
        """Close without waiting for unsent bytes."""
        if self._out is not None:
            self._out.abort()

    def send(self, data: bytes) -> bool:
        """Queue bytes for the server; False without a connection."""
        out = self._out
        if out is None or out.is_closing():
            return False
        out.write(data)
        return True
