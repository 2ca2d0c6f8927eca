"""Plugs into nats-py, and checks that the installed version fits.

nats-py calls Python code once per message, and fails silently on some inputs. So the daemon takes
messages from nats-py at an earlier stage. Preferably, it replaces the client's parser by the batch
parser. If the installed nats-py does not permit this, a Client subclass takes raw bytes from
`_process_msg`. This is slower, but equally safe.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import nats.protocol.parser
from nats.aio.client import Client
from nats.aio.transport import TcpTransport
from nats.protocol.parser import Parser

from envelope import COOKIES
from liftlog.errors import ConfigError
from liftlog.sequencing.run import MessageRun
from liftlog.server.ingest.batch_parser import BatchParser, MessageSink
from liftlog.server.ingest.endings import error_words
from liftlog.server.ingest.transport import Feed, WideTransport

if TYPE_CHECKING:
    from liftlog.server.ingest.websocket import WebSocketTransport

logger = logging.getLogger("liftlog.server.ingest")

_WEBSOCKET_SCHEMES = ("ws", "wss")
_SMALL_READ = 4096
Pressure = Callable[[], Coroutine[Any, Any, None]]

_STRICT_PATTERNS = {
    "MSG_RE": re.compile(rb"\AMSG ([^ \r\n]+) ([^ \r\n]+) (([^ \r\n]+) )?(\d+)\r\n"),
    "HMSG_RE": re.compile(rb"\AHMSG ([^ \r\n]+) ([^ \r\n]+) (([^ \r\n]+) )?(\d+) (\d+)\r\n"),
}


def separate_at_blanks_only() -> None:
    """Make nats-py's own parser split control lines as nats-server writes them.

    Its patterns accept any whitespace as separator, even line ends. The parser would mistake a
    header block that begins with `12\n` for the sizes of the message. A publisher could then choose
    where the next message begins, and forge a message. Patterns that do not have the expected shape
    are not changed.
    """
    for name, strict in _STRICT_PATTERNS.items():
        theirs = getattr(nats.protocol.parser, name, None)
        if isinstance(theirs, re.Pattern) and theirs.groups == strict.groups:
            setattr(nats.protocol.parser, name, strict)


def replace_done_pongs(client: Client) -> None:
    """Replace the finished future of a flush that timed out. Otherwise nats-py's handling of PONG
    would raise an error and end the read loop."""
    pongs = client._pongs
    if pongs and pongs[0].done():
        pongs[0] = asyncio.get_running_loop().create_future()


class Owner(Protocol):
    """The owner of the client. It handles the events of the connection. Its methods must not
    raise."""

    def on_error_words(self, words: str) -> None:
        """Handle an `-ERR` that NATS has sent."""

    def on_trouble(self, error: Exception) -> None:
        """Handle an error after which the connection cannot continue."""

    def on_info(self, info: Mapping[str, Any]) -> None:
        """Handle an INFO that NATS has sent after the first INFO."""


class SingleClient(Client):
    """nats-py's client for one connection to one server. It reports to its owner, and neither
    reconnects nor closes by itself."""

    def __init__(self, owner: Owner) -> None:
        super().__init__()
        self._liftlog_owner = owner

    async def _select_next_server(self) -> None:
        # nats-py's own method would retry forever without reporting a reason.
        server = self._server_pool[0]
        await self._connect_to_server(server)
        self._current_server = server

    async def _process_err(self, err_msg: str) -> None:
        self._liftlog_owner.on_error_words(err_msg.strip("'"))

    async def _process_op_err(self, e: Exception) -> None:
        self._liftlog_owner.on_trouble(e)

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        await super()._process_info(info, initial_connection)
        if not initial_connection:
            self._liftlog_owner.on_info(info)


class RawClient(SingleClient):
    """The slower way. Uses nats-py's own parser, and takes messages as raw bytes, without decoding
    that can fail."""

    def __init__(
        self,
        sink: MessageSink,
        pressure: Pressure,
        owner: Owner,
        joined_runs: Mapping[bytes, bytes],
    ) -> None:
        super().__init__(owner)
        self._liftlog_joined = joined_runs
        self._liftlog_sink = sink
        self._liftlog_pressure = pressure
        self._liftlog_rows: dict[int, list[tuple[bytes, bytes, bytes, bytes]]] = {}
        self._liftlog_scheduled = False

    async def _process_msg(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes
    ) -> None:
        run = int(self._liftlog_joined.get(b"%d" % sid, sid))
        rows = self._liftlog_rows.setdefault(run, [])
        rows.append((bytes(subject), bytes(reply or b""), data, headers or b""))
        if not self._liftlog_scheduled:
            self._liftlog_scheduled = True
            asyncio.get_running_loop().call_soon(self._liftlog_deliver)
            await self._liftlog_pressure()

    def _liftlog_deliver(self) -> None:
        self._liftlog_scheduled = False
        by_run, self._liftlog_rows = self._liftlog_rows, {}
        for number, rows in by_run.items():
            subjects, replies, payloads, headers = zip(*rows, strict=True)
            has_cookie = any(payload.startswith(COOKIES) for payload in payloads)
            run = MessageRun(
                subjects,
                replies,
                payloads,
                headers if any(headers) else None,
                has_cookie=has_cookie,
            )
            self._liftlog_sink.deliver(number, run)
        self._liftlog_sink.chunk_end()

    async def _process_pong(self) -> None:
        replace_done_pongs(self)
        await super()._process_pong()


def parser_seam_problem() -> str | None:
    """Return the reason why the batch parser does not fit the installed nats-py; None if it
    fits."""
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
_CLIENT_ATTRIBUTES = (
    "_pongs",
    "_transport",
    "_reading_task",
    "_server_pool",
    "_server_info",
    "_current_server",
    "_status",
)
_CLIENT_METHODS = {
    "_process_msg": ["self", "sid", "subject", "reply", "data", "headers"],
    "_process_pong": ["self"],
    "_process_err": ["self", "err_msg"],
    "_process_op_err": ["self", "e"],
    "_process_info": ["self", "info", "initial_connection"],
    "_select_next_server": ["self"],
    "_connect_to_server": ["self", "s"],
}


def client_seam_problem() -> str | None:
    """Return the reason why the daemon cannot take raw messages from the installed nats-py; None if
    it can. Raw messages need the same transport and error handling of this package as the batch
    parser."""
    client = Client()
    for name in _CLIENT_ATTRIBUTES:
        if not hasattr(client, name):
            return f"Client has no {name}"
    for name, expected in _CLIENT_METHODS.items():
        method = getattr(Client, name, None)
        if _parameters(method) != expected:
            return f"Client.{name} takes other arguments"
        if not inspect.iscoroutinefunction(method):
            return f"Client.{name} is not a coroutine function"
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
    """Return `parser` or `client`. Raises ConfigError if the installed nats-py supports neither."""
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
    scheme: str,
    sink: MessageSink,
    pressure: Pressure,
    is_pressed: Callable[[], bool],
    owner: Owner,
    tls_name: str = "",
    joined_runs: Mapping[bytes, bytes] = {},
) -> tuple[SingleClient, WideTransport | WebSocketTransport]:
    """Return a nats-py client that is not connected yet, and its transport. Its messages go to
    `sink`.

    `pressure` is awaited after each chunk that passes through the read loop; while `is_pressed`
    returns True, all chunks pass through it. `scheme` is the scheme of the server's URL. `tls_name`
    is the name to expect in the server's certificate, if it differs from the host in the URL.
    `joined_runs` is passed to `BatchParser`, and may change.
    """
    if seam == "client":
        separate_at_blanks_only()
        client: SingleClient = RawClient(sink, pressure, owner, joined_runs)
        return client, _give_transport(client, scheme, tls_name, None)
    client = SingleClient(owner)

    def take_error(line: bytes) -> bool:
        words = error_words(line)
        if words is None:
            return False
        owner.on_error_words(words)
        return True

    parser = BatchParser(
        client._ps,
        sink,
        before_pong=lambda: replace_done_pongs(client),
        pressure=pressure,
        on_error=take_error,
        joined_runs=joined_runs,
    )
    client._ps = parser  # type: ignore[assignment]

    def feed(data: bytes) -> bytes:
        # Small reads cannot overload the daemon, so they skip the check.
        if not client.is_connected or (len(data) > _SMALL_READ and is_pressed()):
            return data
        return parser.feed(data)

    return client, _give_transport(client, scheme, tls_name, feed)


def _give_transport(
    client: Client, scheme: str, tls_name: str, feed: Feed | None
) -> WideTransport | WebSocketTransport:
    def is_live() -> bool:
        return client.is_connected

    transport: WideTransport | WebSocketTransport
    if scheme in _WEBSOCKET_SCHEMES:
        from liftlog.server.ingest.websocket import WebSocketTransport

        transport = WebSocketTransport(is_live, tls_name)
    else:
        transport = WideTransport(is_live, feed)
    client._transport = transport
    return transport
