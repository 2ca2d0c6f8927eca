"""The blocking client: the same methods, the same protocol core, its own socket, no threads."""

from __future__ import annotations

import secrets
import select
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

from liftlog.client.address import DEFAULT_ADDRESS, Address
from liftlog.client.batches import FetchAnswer
from liftlog.client.buffers import BufferPool
from liftlog.client.compaction import PassWatch
from liftlog.client.dialing import Channel, context_for, dial_sync
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


class SyncClient:
    """One connection to a daemon, blocking. Made by `connect_sync`.

    Not thread-safe: one thread at a time. Methods raise the same errors as the async client's.
    """

    def __init__(self, sock: Channel, address: str, request_timeout: float) -> None:
        self.address = address
        self.request_timeout = request_timeout
        self._sock = sock
        self._readable = select.poll()
        self._readable.register(sock, select.POLLIN)
        self._either = select.poll()
        self._either.register(sock, select.POLLIN | select.POLLOUT)
        self._unsent = b""
        self._connection = ClientConnection(
            nonce=secrets.token_bytes(NONCE_BYTES),
            software=SOFTWARE,
            allocate=BufferPool().allocate,
        )
        self._mid_step = False
        self._error: LiftlogError | None = None

    # --- the public methods; the async client has the same ---

    @property
    def server(self) -> Welcome:
        """What the daemon said about itself and its limits."""
        return self._connection.welcome

    def ping(self) -> None:
        """Returns when the daemon has answered."""
        self._call(Ping(), Pong)

    def create_stream(self, name: str, subject: str | None = None, **settings: Any) -> StreamInfo:
        """Create a stream; settings have the keys of the YAML file. Idempotent.

        Returns once NATS has confirmed the subscription. Raises Conflict, InvalidArgument.
        """
        return self._call(create_request(name, subject, settings), StreamAnswer).info

    def describe_stream(self, name: str) -> StreamInfo:
        """Raises StreamNotFound."""
        return self._call(DescribeStream(name), StreamAnswer).info

    def list_streams(self) -> list[StreamInfo]:
        """The streams that the principal may read."""
        return self._call(ListStreams(), StreamsAnswer).infos

    def delete_stream(self, name: str) -> None:
        """Delete the stream and its records. Raises StreamNotFound."""
        self._call(DeleteStream(name), Done)

    def compact_stream(self, name: str, *, wait: bool = False) -> StreamInfo:
        """Ask for a compaction pass now, whatever the dirty ratio; the active segment is rolled
        first. With `wait` it returns once the pass is over, however long that takes.

        Raises InvalidArgument when the stream has no compaction, and with `wait` StreamUnavailable
        when the pass failed.
        """
        info = self._call(CompactStream(name), StreamAnswer).info
        watch = PassWatch(info)
        while wait and not watch.is_over(info):
            time.sleep(watch.seconds)
            info = self.describe_stream(name)
        return info

    def fetch(
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
        exchange = self._exchange(request, self.request_timeout + max_wait_ms / 1000)
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
    ) -> Iterator[RecordBatch]:
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
        return self._read_batches(ahead)

    def read(
        self, stream: str, start: Start = "earliest", until: Until = None, **options: Any
    ) -> Iterator[Record]:
        """Like `read_batches`, record by record."""
        for batch in self.read_batches(stream, start, until, **options):
            yield from batch.records()

    def close(self) -> None:
        """Close the connection."""
        self._lose("closed by this client")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # --- requests ---

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

    def _read_batches(self, ahead: ReadAhead) -> Iterator[RecordBatch]:
        try:
            while True:
                batch = ahead.next_batch()
                if batch is not None:
                    yield batch
                    del batch  # its buffer is free for the next answer
                elif ahead.interruption is not None:
                    raise ahead.interruption
                elif ahead.finished:
                    return
                else:
                    self._step(None)
        finally:
            ahead.stop()

    def _call(self, message: Message, expected: type[Answer]) -> Answer:
        return result_of(self._exchange(message, self.request_timeout), expected)

    def _exchange(self, message: Message, timeout: float) -> Exchange:
        exchange = Exchange()
        deadline = time.monotonic() + timeout
        self.request(message, exchange)
        try:
            while not exchange.done:
                if not self._step(deadline):
                    raise RequestTimeout(
                        f"{self.address} has not answered {message.KIND!r} in {timeout:g} s"
                    )
        finally:
            if not exchange.done:
                self.give_up(exchange)
        return exchange

    # --- the socket ---

    def open(self, token: str | None, deadline: float) -> None:
        """Hello and authentication. For `connect_sync`."""
        connection = self._connection
        connection.greet()
        self._flush()
        while connection.state is not State.READY:
            if not self._step(deadline):
                raise TimeoutError
            if connection.state is State.CHALLENGED:
                connection.authenticate(token)
                self._flush()

    def _step(self, deadline: float | None) -> bool:
        """Receive once and handle it; False when nothing came before `deadline`."""
        if self._error is not None:
            raise self._error
        if self._mid_step:
            self._lose("a call on it was interrupted halfway")
            raise self._error or AssertionError
        connection = self._connection
        try:
            view = connection.get_buffer()[:RECEIVE_BYTES]
            received = self._receive(view, deadline)
            if received < 0:
                return False
            if received == 0:
                self._lose("the daemon closed it")
                return True
            connection.buffer_updated(received)
            connection.receive()
            self._mid_step = False
            self._flush()
        except (OSError, LiftlogError) as error:
            self._lose(error)
        return True

    def _receive(self, view: memoryview, deadline: float | None) -> int:
        """Bytes received, or -1 when none came before `deadline`."""
        while True:
            # An exception raised by a signal handler between here and the end of the step would
            # lose bytes; the flag tells the next call, which then ends the connection.
            self._mid_step = True
            try:
                return self._sock.recv_into(view)
            except BlockingIOError:
                self._mid_step = False
            # While a request is half sent the daemon may be waiting for us to take answers, so
            # neither direction may wait for the other.
            came = (self._either if self._unsent else self._readable).poll(_milliseconds(deadline))
            if self._unsent:
                self._flush()
            if not came and deadline is not None and time.monotonic() >= deadline:
                return -1

    def _flush(self) -> None:
        """Send what the socket takes now; the rest leaves with the next steps."""
        outgoing = self._unsent + self._connection.take_outgoing()
        self._unsent = b""
        if not outgoing or self._error is not None:
            return
        try:
            sent = self._sock.send(outgoing)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self._lose(error)
            return
        self._unsent = outgoing[sent:]

    def _lose(self, reason: object) -> None:
        if self._error is None:
            self._error = lost(self.address, reason)
            self._sock.close()
            self._connection.close(self._error)


def _milliseconds(deadline: float | None) -> float | None:
    return None if deadline is None else max(deadline - time.monotonic(), 0) * 1000


def connect_sync(
    address: str = DEFAULT_ADDRESS,
    *,
    token: str | None = None,
    tls: ClientTls = None,
    connect_timeout: float = CONNECT_TIMEOUT_SECONDS,
    request_timeout: float = REQUEST_TIMEOUT_SECONDS,
) -> SyncClient:
    """Connect to a daemon, blocking; usable in `with`. Arguments and errors as for `connect`."""
    where = Address.parse(address)
    context = context_for(where, tls)
    deadline = time.monotonic() + connect_timeout
    try:
        client = SyncClient(dial_sync(where, context, deadline), address, request_timeout)
        try:
            client.open(token, deadline)
        except BaseException:
            client.close()
            raise
        return client
    except TimeoutError:
        raise unreachable(address, f"no answer in {connect_timeout:g} s") from None
    except OSError as error:
        raise unreachable(address, error.strerror or error) from error
