"""The asyncio client: its methods, over a `Session` that sees to the connection."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from types import TracebackType
from typing import Any, Self, Unpack

from liftlog.client.aio.calls import AsyncAdministration
from liftlog.client.aio.consumer import Consumer
from liftlog.client.aio.session import Session, Target
from liftlog.client.batch_reader import BatchReader
from liftlog.client.batches import FetchAnswer
from liftlog.client.checkpoints import AsyncCheckpoints
from liftlog.client.consuming import ConsumerSettings
from liftlog.client.credentials import NkeyFile, credentials_of
from liftlog.client.dialing import context_for
from liftlog.client.pass_watch import PassWatch
from liftlog.client.positions import Start, Until
from liftlog.client.progress import CHECKPOINT_EVERY, CHECKPOINT_INTERVAL_SECONDS
from liftlog.client.read_ahead import ReadAhead
from liftlog.client.read_options import ReadOptions
from liftlog.client.reconnecting import RECONNECT_FOR_SECONDS
from liftlog.client.record_reader import RecordReader
from liftlog.client.requests import (
    CONNECT_TIMEOUT_SECONDS,
    REQUEST_TIMEOUT_SECONDS,
    Answer,
    create_request,
    fetch_answer,
    fetch_request,
    result_of,
)
from liftlog.client.selecting import Column, Filter
from liftlog.client.target import DEFAULT_ADDRESS, Address
from liftlog.protocol.client_connection import Exchange
from liftlog.protocol.messages import (
    CompactStream,
    DeleteStream,
    DescribeStream,
    Done,
    ListStreams,
    Message,
    Ping,
    Pong,
    StreamAnswer,
    StreamInfo,
    StreamsAnswer,
    Welcome,
)
from liftlog.tls.contexts import ClientTls


class Client(AsyncAdministration, AsyncCheckpoints):
    """A daemon, as its callers see it. Made by `connect`.

    Belongs to one event loop and is not thread-safe; any number of its tasks may use it at the
    same time. Cancelling a call cancels the request and leaves the client usable.

    A lost connection is made anew by whoever needs it: reads go on behind the last batch that they
    handed out, calls that can do no harm twice are repeated. Methods raise the typed errors of
    `liftlog.errors`: RequestTimeout when no answer came in `request_timeout` seconds,
    ConnectionLost when there was no connection for `reconnect_for` seconds; its `undecided` says
    that the call may have taken effect.
    """

    def __init__(self, session: Session) -> None:
        self.address = session.target.address.text
        self.request_timeout = session.target.request_timeout
        self._session = session

    # --- the public methods; the sync client has the same ---

    @property
    def server(self) -> Welcome:
        """What the daemon said about itself and its limits, when last connected to."""
        return self._session.link.connection.welcome

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
        filter: Filter | None = None,
        columns: Sequence[Column] | None = None,
    ) -> FetchAnswer:
        """One fetch: whole batches from `start` on, or none after `max_wait_ms`; with `filter` or
        `columns`, what they select. It may then be none before the end: fetch on at `next_offset`.
        """
        request = fetch_request(
            stream,
            start,
            max_bytes=max_bytes,
            max_records=max_records,
            min_bytes=min_bytes,
            max_wait_ms=max_wait_ms,
            incarnation=incarnation,
            epoch=epoch,
            filter=filter,
            columns=columns,
        )
        exchange = await self._exchange(request, self.request_timeout + max_wait_ms / 1000)
        return fetch_answer(request, exchange)

    def read_batches(
        self,
        stream: str,
        start: Start = "earliest",
        until: Until = None,
        **options: Unpack[ReadOptions],
    ) -> BatchReader:
        """Record batches from `start` to `until` (exclusive; None: for ever), checked.

        `ReadOptions` describes the options: `filter`, `columns`, and what to do about damaged
        records and about a position that is gone.
        """
        ahead = ReadAhead(
            self._session,
            stream,
            start,
            until,
            **options,
        )
        return BatchReader(self._session, ahead)

    def read(
        self,
        stream: str,
        start: Start = "earliest",
        until: Until = None,
        **options: Unpack[ReadOptions],
    ) -> RecordReader:
        """Like `read_batches`, record by record."""
        return RecordReader(self.read_batches(stream, start, until, **options))

    def consumer(
        self,
        name: str,
        stream: str,
        *,
        start: Start = "earliest",
        until: Until = None,
        checkpoint_every: int | None = CHECKPOINT_EVERY,
        checkpoint_interval: float | None = CHECKPOINT_INTERVAL_SECONDS,
        exclusive: bool = True,
        metadata: str = "",
        **options: Unpack[ReadOptions],
    ) -> Consumer:
        """The records of `stream` from the checkpoint of the consumer `name` on, at least once.

        Without a checkpoint it begins at `start`. Checkpoints are stored after so many records
        (None: not by number) and seconds (None: not by time), when asked for, and at the end.
        With `exclusive` it ends with CheckpointMoved when something else has stored one under this
        name. `metadata` is stored with each. `ReadOptions` describes the options; `on_reset` says
        what to do when the stream cannot be read from the checkpoint any more.
        """
        settings = ConsumerSettings(
            name,
            stream,
            start,
            until,
            checkpoint_every,
            checkpoint_interval,
            exclusive,
            metadata,
            options,
        )
        return Consumer(self, settings)

    async def close(self) -> None:
        """Close the connection; whatever waits for it ends with ConnectionLost."""
        self._session.close("closed by this client")

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

    async def _call(self, message: Message, expected: type[Answer]) -> Answer:
        return result_of(await self._exchange(message, self.request_timeout), expected)

    async def _exchange(self, message: Message, timeout: float) -> Exchange:
        return await self._session.ask(message, timeout)


class Connecting:
    """What `connect` returns: await it for a client, or use it in `async with`."""

    def __init__(self, target: Target) -> None:
        self._target = target
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
        session = Session(self._target)
        await session.open()
        return Client(session)


def connect(
    address: str = DEFAULT_ADDRESS,
    *,
    token: str | None = None,
    nkey: NkeyFile | None = None,
    tls: ClientTls = None,
    connect_timeout: float = CONNECT_TIMEOUT_SECONDS,
    request_timeout: float = REQUEST_TIMEOUT_SECONDS,
    reconnect_for: float | None = RECONNECT_FOR_SECONDS,
) -> Connecting:
    """Connect to a daemon: `client = await connect(...)` or `async with connect(...) as client`.

    `token` is sent only if the daemon asks for one; without TLS everybody on the way can read it,
    which is a warning in the log unless the address is this machine's. `nkey` is a file with the
    seed of a user's nkey, alone or as `.creds`; it signs what the daemon asks for, and is never
    sent. `tls` is for an address `tls://host:port`: a file of CA certificates or an
    `ssl.SSLContext`, else the CAs of the system. Timeouts are in seconds. Raises
    ConnectionLost when the daemon cannot be reached, Unauthenticated, UnsupportedVersion.

    `reconnect_for` is how long reads, and calls within their `request_timeout`, try to connect
    again once the connection is lost: None for ever, 0 not at all.
    """
    where = Address.parse(address)
    context = context_for(where, tls)
    credentials = credentials_of(token, nkey, where)
    target = Target(where, credentials, context, connect_timeout, request_timeout, reconnect_for)
    return Connecting(target)
