"""Where we plug into nats-py, and the check that it still has the shape we rely on.

nats-py delivers one Python callback per message and dies silently on some inputs, so messages
leave it earlier. Preferred: our parser in place of the client's. If the installed nats-py does not
fit, a Client subclass takes messages as raw bytes from `_process_msg`: slower, as safe.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
from collections.abc import Callable, Coroutine
from typing import Any

import nats.protocol.parser
from nats.aio.client import Client
from nats.aio.transport import TcpTransport
from nats.errors import ProtocolError
from nats.protocol.parser import Parser

from envelope import COOKIES
from liftlog.errors import ConfigError
from liftlog.server.ingest.batch_parser import BatchParser, MessageSink
from liftlog.stream.run import MessageRun

logger = logging.getLogger("liftlog.server.ingest")

READ_BYTES = 1024 * 1024
_SMALL_READ = 4096
Pressure = Callable[[], Coroutine[Any, Any, None]]
Trouble = Callable[[Exception], None]
"""Called with the error for which a connection is given up."""


Feed = Callable[[bytes], bytes]
"""Takes what was read and returns what it leaves to the read loop."""


class DirectReader(asyncio.StreamReader):
    """A StreamReader that hands data to `feed` at once while the read loop waits for some.

    Messages then do not pass through the reader's buffer, nor wait for the read loop's task to be
    scheduled: that is two copies of everything, and a tenth of a lone message's round trip. What
    `feed` leaves, and everything while the read loop is busy, goes the ordinary way.
    """

    def __init__(self, limit: int, feed: Feed | None) -> None:
        super().__init__(limit=limit)
        self._feed = feed
        self._loop_waits = False
        self._holds_data = False

    def feed_data(self, data: Any) -> None:
        if self._feed is not None and self._loop_waits and not self._holds_data:
            try:
                data = self._feed(data)
            except Exception as error:  # noqa: BLE001  # the read loop reconnects
                # Never again into the parser: it has lost its place in this connection, and a
                # payload may look like a message.
                self._feed = None
                self.set_exception(ProtocolError())
                logger.warning("nats-input-not-parsed error=%r", error)
                return
            if not data:
                return
        self._holds_data = True
        super().feed_data(data)

    async def read(self, n: int = -1) -> bytes:
        self._loop_waits = True
        try:
            data = await super().read(n)
        finally:
            self._loop_waits = False
        self._holds_data = len(data) == n
        return data


class WideTransport(TcpTransport):
    """nats-py's TCP transport with reads of 1 MiB instead of 32 KiB, and a DirectReader."""

    def __init__(
        self,
        is_live: Callable[[], bool],
        feed: Feed | None = None,
        on_connect: Callable[[], None] = lambda: None,
    ) -> None:
        """`is_live`: whether the client still counts on this connection."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._is_live = is_live
        self._feed = feed
        self._on_connect = on_connect

    async def connect(self, uri: Any, buffer_size: int, connect_timeout: int) -> None:
        # The last bytes of the old connection may have come after nats-py's own reset.
        self._on_connect()
        loop = asyncio.get_running_loop()
        reader = DirectReader(READ_BYTES, self._feed)
        protocol = asyncio.StreamReaderProtocol(reader)
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
        protocol = asyncio.StreamReaderProtocol(reader)
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

    async def read(self, buffer_size: int) -> bytes:
        data: bytes = await super().read(READ_BYTES)
        # nats-py resets the parser when it gives a connection up, and may still read from it once:
        # what comes then begins somewhere inside a message.
        return data if self._is_live() else b""

    def __bool__(self) -> bool:
        return True  # or the client would replace it by its own

    def writelines(self, payload: list[bytes]) -> None:
        if self._io_writer is not None:
            super().writelines(payload)  # type: ignore[no-untyped-call]

    async def drain(self) -> None:
        if self._io_writer is not None:
            await super().drain()  # type: ignore[no-untyped-call]

    def unsent_bytes(self) -> int:
        if self._io_writer is None:
            return 0
        return int(self._io_writer.transport.get_write_buffer_size())

    def abort(self) -> None:
        """Close without waiting for unsent bytes."""
        if self._io_writer is not None:
            self._io_writer.transport.abort()

    def send(self, data: bytes) -> bool:
        """Queue bytes for the server; False when there is no connection."""
        if self._io_writer is None or self._io_writer.is_closing():
            return False
        self._io_writer.write(data)
        return True


_STRICT_PATTERNS = {
    "MSG_RE": re.compile(rb"\AMSG ([^ \r\n]+) ([^ \r\n]+) (([^ \r\n]+) )?(\d+)\r\n"),
    "HMSG_RE": re.compile(rb"\AHMSG ([^ \r\n]+) ([^ \r\n]+) (([^ \r\n]+) )?(\d+) (\d+)\r\n"),
}


def separate_at_blanks_only() -> None:
    """Make nats-py's own parser read control lines as nats-server writes them.

    Its patterns take any whitespace for a separator, line ends too. A header block that begins
    with `12\r\n` then becomes the sizes of the message: whoever publishes it chooses where the
    next message begins, and so can forge one. Patterns of another shape are left alone.
    """
    for name, strict in _STRICT_PATTERNS.items():
        theirs = getattr(nats.protocol.parser, name, None)
        if isinstance(theirs, re.Pattern) and theirs.groups == strict.groups:
            setattr(nats.protocol.parser, name, strict)


def replace_done_pongs(client: Client) -> None:
    """A flush that timed out leaves a finished future behind, and nats-py's PONG handling would
    trip over it and end the read loop."""
    pongs = client._pongs
    if pongs and pongs[0].done():
        pongs[0] = asyncio.get_running_loop().create_future()


class WatchedClient(Client):
    """nats-py's client that says why it gives a connection up; nats-py itself keeps that secret
    when it means to reconnect."""

    def __init__(self, on_trouble: Trouble) -> None:
        super().__init__()
        self._liftlog_on_trouble = on_trouble

    async def _process_op_err(self, e: Exception) -> None:
        if not (self.is_closed or self.is_reconnecting):
            self._liftlog_on_trouble(e)
        await super()._process_op_err(e)


class RawClient(WatchedClient):
    """The fallback: nats-py's own parser, messages as raw bytes, no decoding that can fail."""

    def __init__(self, sink: MessageSink, pressure: Pressure, on_trouble: Trouble) -> None:
        super().__init__(on_trouble)
        self._liftlog_sink = sink
        self._liftlog_pressure = pressure
        self._liftlog_rows: dict[int, list[tuple[bytes, bytes, bytes, bytes]]] = {}
        self._liftlog_scheduled = False

    async def _process_msg(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes
    ) -> None:
        rows = self._liftlog_rows.setdefault(sid, [])
        rows.append((bytes(subject), bytes(reply or b""), data, headers or b""))
        if not self._liftlog_scheduled:
            self._liftlog_scheduled = True
            asyncio.get_running_loop().call_soon(self._liftlog_deliver)
            await self._liftlog_pressure()

    def _liftlog_deliver(self) -> None:
        self._liftlog_scheduled = False
        by_sid, self._liftlog_rows = self._liftlog_rows, {}
        for sid, rows in by_sid.items():
            subjects, replies, payloads, headers = zip(*rows, strict=True)
            has_cookie = any(payload.startswith(COOKIES) for payload in payloads)
            run = MessageRun(
                subjects,
                replies,
                payloads,
                headers if any(headers) else None,
                has_cookie=has_cookie,
            )
            self._liftlog_sink.deliver(sid, run)
        self._liftlog_sink.chunk_end()

    async def _process_pong(self) -> None:
        replace_done_pongs(self)
        await super()._process_pong()


def parser_seam_problem() -> str | None:
    """Why the batch parser does not fit this nats-py, or None when it does."""
    client = Client()
    checks = (
        (isinstance(getattr(client, "_ps", None), Parser), "Client._ps is not a Parser"),
        (isinstance(getattr(client, "_pongs", None), list), "Client._pongs is not a list"),
        (hasattr(client, "_transport"), "Client has no _transport"),
        (callable(getattr(Parser, "reset", None)), "Parser has no reset"),
        (_parameters(Parser.parse) == ["self", "data"], "Parser.parse takes other arguments"),
        (_parameters(TcpTransport.read) == ["self", "buffer_size"], "Transport.read changed"),
        (
            _parameters(TcpTransport.connect) == ["self", "uri", "buffer_size", "connect_timeout"],
            "Transport.connect changed",
        ),
        (
            inspect.iscoroutinefunction(getattr(Parser, "parse", None)),
            "Parser.parse is not a coroutine function",
        ),
    )
    return next((problem for fits, problem in checks if not fits), None)


def client_seam_problem() -> str | None:
    """Why not even raw messages can be taken from this nats-py, or None when they can."""
    client = Client()
    for name in ("_pongs", "_transport", "_reading_task", "_reconnection_task", "force_reconnect"):
        if not hasattr(client, name):
            return f"Client has no {name}"
    expected = ["self", "sid", "subject", "reply", "data", "headers"]
    if _parameters(getattr(Client, "_process_msg", None)) != expected:
        return "Client._process_msg takes other arguments"
    if not inspect.iscoroutinefunction(getattr(Client, "_process_pong", None)):
        return "Client._process_pong is not a coroutine function"
    return None


def _parameters(function: Any) -> list[str]:
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return []


def choose_seam(wanted: str) -> str:
    """`parser` or `client`. Raises ConfigError when the installed nats-py offers neither."""
    common = client_seam_problem()
    problem = parser_seam_problem() if wanted in ("auto", "parser") else "not wanted"
    hint = "install a release of nats-py that liftlog's dependencies allow"
    if common is not None:
        raise ConfigError(f"this nats-py cannot be used: {common}", hint=hint)
    if problem is None:
        return "parser"
    if wanted == "parser":
        raise ConfigError(f"nats.seam is `parser`, but {problem}", hint=hint)
    if wanted == "auto":
        logger.warning("nats-seam-fallback seam=client reason=%s", problem)
    return "client"


def make_client(
    seam: str,
    sink: MessageSink,
    pressure: Pressure,
    is_pressed: Callable[[], bool],
    on_trouble: Trouble,
) -> WatchedClient:
    """A nats-py client whose messages go to `sink`. Not yet connected.

    `pressure` is awaited after each chunk that passes through the read loop; while `is_pressed`,
    all of them do.
    """
    if seam == "client":
        separate_at_blanks_only()
        client: WatchedClient = RawClient(sink, pressure, on_trouble)
        client._transport = WideTransport(lambda: client.is_connected)
        return client
    client = WatchedClient(on_trouble)
    parser = BatchParser(
        client._ps,
        sink,
        before_pong=lambda: replace_done_pongs(client),
        pressure=pressure,
    )
    client._ps = parser  # type: ignore[assignment]

    def feed(data: bytes) -> bytes:
        # Little at a time fills nothing up: then the question is spared.
        if not client.is_connected or (len(data) > _SMALL_READ and is_pressed()):
            return data
        return parser.feed(data)

    client._transport = WideTransport(lambda: client.is_connected, feed, parser.reset)
    return client
