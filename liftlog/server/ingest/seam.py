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
from nats.protocol.parser import Parser

from envelope import COOKIES
from liftlog.errors import ConfigError
from liftlog.server.ingest.batch_parser import BatchParser, MessageSink
from liftlog.server.ingest.transport import WideTransport
from liftlog.stream.run import MessageRun

logger = logging.getLogger("liftlog.server.ingest")

_SMALL_READ = 4096
Pressure = Callable[[], Coroutine[Any, Any, None]]
Trouble = Callable[[Exception], None]
"""Called with the error for which a connection is given up."""

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

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        await super()._process_info(info, initial_connection)
        # A server may change its mind later; nats-py looks at the first INFO only.
        limit = info.get("max_payload")
        if isinstance(limit, int):
            self._max_payload = limit

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
        (callable(getattr(Parser, "reset", None)), "Parser has no reset"),
        (_parameters(Parser.parse) == ["self", "data"], "Parser.parse takes other arguments"),
        (
            inspect.iscoroutinefunction(getattr(Parser, "parse", None)),
            "Parser.parse is not a coroutine function",
        ),
    )
    return next((problem for fits, problem in checks if not fits), None)


_TRANSPORT_PARAMETERS = {
    "connect": ["self", "uri", "buffer_size", "connect_timeout"],
    "connect_tls": ["self", "uri", "ssl_context", "buffer_size", "connect_timeout"],
    "read": ["self", "buffer_size"],
}


def client_seam_problem() -> str | None:
    """Why not even raw messages can be taken from this nats-py, or None when they can. The
    transport is ours with either seam."""
    client = Client()
    for name in ("_pongs", "_transport", "_reading_task", "_reconnection_task", "force_reconnect"):
        if not hasattr(client, name):
            return f"Client has no {name}"
    expected = ["self", "sid", "subject", "reply", "data", "headers"]
    if _parameters(getattr(Client, "_process_msg", None)) != expected:
        return "Client._process_msg takes other arguments"
    if not inspect.iscoroutinefunction(getattr(Client, "_process_pong", None)):
        return "Client._process_pong is not a coroutine function"
    for name, expected in _TRANSPORT_PARAMETERS.items():
        if _parameters(getattr(TcpTransport, name, None)) != expected:
            return f"TcpTransport.{name} takes other arguments"
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
