"""The asyncio client. It owns its socket: no transport, no stream reader, no copies."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Generator
from functools import partial
from types import TracebackType
from typing import Any, Self

from liftlog.client.address import DEFAULT_ADDRESS, Address
from liftlog.client.batches import FetchAnswer
from liftlog.client.buffers import BufferPool
from liftlog.client.compaction import PassWatch
from liftlog.client.dialing import Channel, context_for, dial
from liftlog.client.positions import Start, Until
from liftlog.client.read_ahead import (
    DEFAULT_FETCH_BYTES,
    DEFAULT_READ_AHEAD_BYTES,
    OnCorrupt,
    ReadAhead,
)
from liftlog.client.requests import (
    CONNECT_TIMEOUT_SECONDS,
    RECEIVE_BYTES,
    REQUEST_TIMEOUT_SECONDS,
    SOFTWARE,
    Answer,
    create_request,
    fetch_request,
    lost,
    result_of,
    unreachable,
)
from liftlog.errors import LiftlogError, RequestTimeout
from liftlog.protocol.client_connection import ClientConnection, Exchange
from liftlog.protocol.messages import (
    NONCE_BYTES,
    CompactStream,
    DeleteStream,
    DescribeStream,
    Done,
    FetchHeader,
    ListStreams,
    Message,
    Ping,
    Pong,
    StreamAnswer,
    StreamInfo,
    StreamsAnswer,
    Welcome,
)
from liftlog.protocol.states import State
from liftlog.records.decode import Record, RecordBatch
from liftlog.tls.contexts import ClientTls


class Client:
    """One connection to a daemon. Made by `connect`.

    Belongs to one event loop and is not thread-safe; any number of its tasks may use it at the
    same time. Cancelling a call cancels the request and leaves the connection usable. Methods
    raise the typed errors of `liftlog.errors`: ConnectionLost when the connection is gone,
    RequestTimeout when no answer came in `request_timeout` seconds.
    """

    def __init__(self, sock: Channel, address: str, request_timeout: float) -> None:
        self.address = address
        self.request_timeout = request_timeout
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._fd = sock.fileno()
        self._connection = ClientConnection(
            nonce=secrets.token_bytes(NONCE_BYTES),
            software=SOFTWARE,
            allocate=BufferPool().allocate,
        )
        self._unsent = b""
        self._opening: asyncio.Future[None] | None = None
        self._error: LiftlogError | None = None
        self._loop.add_reader(self._fd, self._on_readable)

    # --- the public methods; the sync client has the same ---

    @property
    def server(self) -> Welcome:
        """What the daemon said about itself and its limits."""
        return self._connection.welcome

    async def ping(self) -> None:
        """Returns when the daemon has answered."""
        await self._call(Ping(), Pong)

    async def create_stream(
        self, name: str, subject: str | None = None, **settings: Any
    ) -> StreamInfo:
        """Create a stream; settings have the keys of the YAML file. Idempotent.

        Returns once NATS has confirmed the subscription. Raises Conflict, InvalidArgument.
        """
        return (await self._call(create_request(name, subject, settings), StreamAnswer)).info

    async def describe_stream(self, name: str) -> StreamInfo:
        """Raises StreamNotFound."""
        return (await self._call(DescribeStream(name), StreamAnswer)).info

    async def list_streams(self) -> list[StreamInfo]:
        """The streams that the principal may read."""
        return (await self._call(ListStreams(), StreamsAnswer)).infos

    async def delete_stream(self, name: str) -> None:
        """Delete the stream and its records. Raises StreamNotFound."""
        await self._call(DeleteStream(name), Done)

    async def compact_stream(self, name: str, *, wait: bool = False) -> StreamInfo:
        """Ask for a compaction pass now, whatever the dirty ratio; the active segment is rolled
        first. With `wait` it returns once the pass is over, however long that takes.

        Raises InvalidArgument when the stream has no compaction, and with `wait` StreamUnavailable
        when the pass failed.
        """
        info = (await self._call(CompactStream(name), StreamAnswer)).info
        watch = PassWatch(info)
        while wait and not watch.is_over(info):
            await asyncio.sleep(watch.seconds)
            info = await self.describe_stream(name)
        return info

    async def fetch(
        self,
        stream: str,
        start: Start = "earliest",
        *,
        max_bytes: int | None = None,
        max_records: int | None = None,
        min_bytes: int = 1,
        max_wait_ms: int = 0,
        incarnation: str | None = None,
        epoch: int | None = None,
    ) -> FetchAnswer:
        """One fetch: whole batches from `start` on, or none after `max_wait_ms`."""
        request = fetch_request(
            stream,
            start,
            max_bytes=max_bytes,
            max_records=max_records,
            min_bytes=min_bytes,
            max_wait_ms=max_wait_ms,
            incarnation=incarnation,
            epoch=epoch,
        )
        exchange = await self._exchange(request, self.request_timeout + max_wait_ms / 1000)
        return FetchAnswer(stream, result_of(exchange, FetchHeader), exchange.body)

    def read_batches(
        self,
        stream: str,
        start: Start = "earliest",
        until: Until = None,
        *,
        fetch_bytes: int = DEFAULT_FETCH_BYTES,
        read_ahead_bytes: int = DEFAULT_READ_AHEAD_BYTES,
        on_corrupt: OnCorrupt = "raise",
    ) -> BatchReader:
        """Record batches from `start` to `until` (exclusive; None: for ever), checked.

        Damaged records end it with CorruptRange, whose `first_offset` and `next_offset` say exactly
        which are gone; read on at `next_offset`. With `on_corrupt="skip"` a warning is logged and
        the read goes on behind them, with a callable that is called with the CorruptRange instead.
        """
        ahead = ReadAhead(
            self,
            stream,
            start,
            until,
            fetch_bytes=fetch_bytes,
            read_ahead_bytes=read_ahead_bytes,
            on_corrupt=on_corrupt,
        )
        return BatchReader(self, ahead)

    async def read(
        self, stream: str, start: Start = "earliest", until: Until = None, **options: Any
    ) -> AsyncIterator[Record]:
        """Like `read_batches`, record by record."""
        async for batch in self.read_batches(stream, start, until, **options):
            for record in batch.records():
                yield record

    async def close(self) -> None:
        """Close the connection; whatever waits for it ends with ConnectionLost."""
        self._lose("closed by this client")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    # --- requests ---

    @property
    def usable(self) -> bool:
        """False once the connection or its event loop is closed."""
        return self._error is None and not self._loop.is_closed()

    def request(self, message: Message, exchange: Exchange) -> None:
        """Send a request; `exchange` hears of the answer. For this package's own use."""
        if self._error is not None:
            raise self._error
        self._connection.request(message, exchange)
        self._flush()

    def give_up(self, exchange: Exchange) -> None:
        """Cancel a request that is under way. For this package's own use."""
        self._connection.give_up(exchange)
        self._flush()

    async def _call(self, message: Message, expected: type[Answer]) -> Answer:
        return result_of(await self._exchange(message, self.request_timeout), expected)

    async def _exchange(self, message: Message, timeout: float) -> Exchange:
        answered: asyncio.Future[None] = self._loop.create_future()
        exchange = Exchange(on_done=lambda _: _wake(answered))
        self.request(message, exchange)
        try:
            async with asyncio.timeout(timeout):
                await answered
        except TimeoutError:
            raise RequestTimeout(
                f"{self.address} has not answered {message.KIND!r} in {timeout:g} s"
            ) from None
        finally:
            if not exchange.done:
                self.give_up(exchange)
        return exchange

    # --- the socket ---

    async def open(self, token: str | None) -> None:
        """Hello and authentication. For `connect`."""
        connection = self._connection
        connection.greet()
        while connection.state is not State.READY:
            self._flush()
            if self._error is not None:
                raise self._error
            self._opening = self._loop.create_future()
            await self._opening
            if connection.state is State.CHALLENGED:
                connection.authenticate(token)

    def _on_readable(self) -> None:
        connection = self._connection
        budget = RECEIVE_BYTES
        try:
            while budget > 0 and self._error is None:
                room = connection.get_buffer()[:budget]
                received = self._sock.recv_into(room)
                if received == 0:
                    self._lose("the daemon closed it")
                    return
                connection.buffer_updated(received)
                if connection.receive() and self._opening is not None:
                    self._opening.set_result(None)
                    self._opening = None
                self._flush()
                if received < len(room):
                    return  # that was all; the loop calls again when there is more
                budget -= received
            if self._error is None and self._sock.has_input:
                # TLS has more of what was received already: the loop would not call for that.
                self._loop.call_soon(self._on_readable)
        except (BlockingIOError, InterruptedError):
            pass
        except (OSError, LiftlogError) as error:
            self._lose(error)

    def _flush(self) -> None:
        outgoing = self._connection.take_outgoing()
        if not outgoing or self._error is not None:
            return
        if self._unsent:
            self._unsent += outgoing
            return
        try:
            sent = self._sock.send(outgoing)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            self._lose(error)
            return
        if sent < len(outgoing):
            self._unsent = outgoing[sent:]
            self._loop.add_writer(self._fd, self._on_writable)

    def _on_writable(self) -> None:
        try:
            sent = self._sock.send(self._unsent)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._lose(error)
            return
        self._unsent = self._unsent[sent:]
        if not self._unsent:
            self._loop.remove_writer(self._fd)

    def _lose(self, reason: object) -> None:
        if self._error is not None:
            return
        self._error = lost(self.address, reason)
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        self._sock.close()
        if self._opening is not None and not self._opening.done():
            self._opening.set_exception(self._error)
        self._connection.close(self._error)


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class BatchReader:
    """Async iterator over record batches. Leaving the loop early cancels what is under way."""

    def __init__(self, client: Client, ahead: ReadAhead) -> None:
        self._client = client
        self._ahead = ahead

    @property
    def high_watermark(self) -> int | None:
        """The stream's, as of the newest answer; None before the first."""
        return self._ahead.high_watermark

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RecordBatch:
        ahead = self._ahead
        while True:
            batch = ahead.next_batch()
            if batch is not None:
                return batch
            if ahead.interruption is not None:
                raise ahead.interruption
            if ahead.finished:
                raise StopAsyncIteration
            ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            ahead.on_ready = partial(_wake, ready)
            try:
                await ready
            finally:
                ahead.on_ready = None

    async def aclose(self) -> None:
        """Stop reading."""
        self._ahead.stop()

    def __del__(self) -> None:
        # Nothing to await here: giving up only sends a frame, if the connection still lives.
        if self._client.usable:
            self._ahead.stop()


class Connecting:
    """What `connect` returns: await it for a client, or use it in `async with`."""

    def __init__(
        self,
        address: str,
        token: str | None,
        tls: ClientTls,
        connect_timeout: float,
        request_timeout: float,
    ) -> None:
        self._address = Address.parse(address)
        self._context = context_for(self._address, tls)
        self._token = token
        self._connect_timeout = connect_timeout
        self._request_timeout = request_timeout
        self._client: Client | None = None

    def __await__(self) -> Generator[Any, Any, Client]:
        return self._connect().__await__()

    async def __aenter__(self) -> Client:
        self._client = await self._connect()
        return self._client

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._client is not None:
            await self._client.close()

    async def _connect(self) -> Client:
        text, seconds = self._address.text, self._connect_timeout
        try:
            async with asyncio.timeout(seconds):
                sock = await dial(self._address, self._context)
                client = Client(sock, text, self._request_timeout)
                try:
                    await client.open(self._token)
                except BaseException:
                    await client.close()
                    raise
                return client
        except TimeoutError:
            raise unreachable(text, f"no answer in {seconds:g} s") from None
        except OSError as error:
            raise unreachable(text, error.strerror or error) from error


def connect(
    address: str = DEFAULT_ADDRESS,
    *,
    token: str | None = None,
    tls: ClientTls = None,
    connect_timeout: float = CONNECT_TIMEOUT_SECONDS,
    request_timeout: float = REQUEST_TIMEOUT_SECONDS,
) -> Connecting:
    """Connect to a daemon: `client = await connect(...)` or `async with connect(...) as client`.

    `token` is sent only if the daemon asks for one. `tls` is for an address `tls://host:port`: a
    file of CA certificates or an `ssl.SSLContext`, else the CAs of the system. Timeouts are in
    seconds. Raises ConnectionLost when the daemon cannot be reached, Unauthenticated,
    UnsupportedVersion.
    """
    return Connecting(address, token, tls, connect_timeout, request_timeout)
