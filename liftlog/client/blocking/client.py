"""The blocking client: the same methods over a session that blocks. No threads."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self, Unpack

from liftlog.client.aio.calls import SyncAdministration
from liftlog.client.aio.session import Target
from liftlog.client.batch_reader import SyncBatchReader
from liftlog.client.batches import FetchAnswer
from liftlog.client.blocking.consumer import SyncConsumer
from liftlog.client.blocking.session import SyncSession
from liftlog.client.checkpoints import SyncCheckpoints
from liftlog.client.consuming import ConsumerSettings
from liftlog.client.credentials import NkeyFile, credentials_of
from liftlog.client.dialing import context_for
from liftlog.client.pass_watch import PassWatch
from liftlog.client.positions import Start, Until
from liftlog.client.progress import CHECKPOINT_EVERY, CHECKPOINT_INTERVAL_SECONDS
from liftlog.client.read_ahead import ReadAhead
from liftlog.client.read_options import ReadOptions
from liftlog.client.reconnecting import RECONNECT_FOR_SECONDS
from liftlog.client.record_reader import SyncRecordReader
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


class SyncClient(SyncAdministration, SyncCheckpoints):
    """A daemon, as its callers see it, blocking: the methods of `Client`. Made by `connect_sync`.

    Not thread-safe: one thread at a time. Connects again, and raises errors, as the async client.
    """

    def __init__(self, session: SyncSession) -> None:
        self.address = session.target.address.text
        self.request_timeout = session.target.request_timeout
        self._session = session

    # --- the public methods; the async client has the same ---

    @property
    def server(self) -> Welcome:
        """As `Client.server`."""
        return self._session.link.connection.welcome

    def ping(self) -> None:
        """As `Client.ping`."""
        self._call(Ping(), Pong)

    def create_stream(self, name: str, subject: str | None = None, **settings: Any) -> StreamInfo:
        """As `Client.create_stream`."""
        return self._call(create_request(name, subject, settings), StreamAnswer).info

    def describe_stream(self, name: str) -> StreamInfo:
        """As `Client.describe_stream`."""
        return self._call(DescribeStream(name), StreamAnswer).info

    def list_streams(self) -> list[StreamInfo]:
        """As `Client.list_streams`."""
        return self._call(ListStreams(), StreamsAnswer).infos

    def delete_stream(self, name: str) -> None:
        """As `Client.delete_stream`."""
        self._call(DeleteStream(name), Done)

    def compact_stream(self, name: str, *, wait: bool = False) -> StreamInfo:
        """As `Client.compact_stream`."""
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
        filter: Filter | None = None,
        columns: Sequence[Column] | None = None,
    ) -> FetchAnswer:
        """As `Client.fetch`."""
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
        exchange = self._exchange(request, self.request_timeout + max_wait_ms / 1000)
        return fetch_answer(request, exchange)

    def read_batches(
        self,
        stream: str,
        start: Start = "earliest",
        until: Until = None,
        **options: Unpack[ReadOptions],
    ) -> SyncBatchReader:
        """As `Client.read_batches`."""
        ahead = ReadAhead(
            self._session,
            stream,
            start,
            until,
            **options,
        )
        return SyncBatchReader(self._session, ahead)

    def read(
        self,
        stream: str,
        start: Start = "earliest",
        until: Until = None,
        **options: Unpack[ReadOptions],
    ) -> SyncRecordReader:
        """As `Client.read`."""
        return SyncRecordReader(self.read_batches(stream, start, until, **options))

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
    ) -> SyncConsumer:
        """As `Client.consumer`."""
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
        return SyncConsumer(self, settings)

    def close(self) -> None:
        """As `Client.close`."""
        self._session.close("closed by this client")

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

    def _call(self, message: Message, expected: type[Answer]) -> Answer:
        return result_of(self._exchange(message, self.request_timeout), expected)

    def _exchange(self, message: Message, timeout: float) -> Exchange:
        return self._session.ask(message, timeout)


def connect_sync(
    address: str = DEFAULT_ADDRESS,
    *,
    token: str | None = None,
    nkey: NkeyFile | None = None,
    tls: ClientTls = None,
    connect_timeout: float = CONNECT_TIMEOUT_SECONDS,
    request_timeout: float = REQUEST_TIMEOUT_SECONDS,
    reconnect_for: float | None = RECONNECT_FOR_SECONDS,
) -> SyncClient:
    """Connect to a daemon, blocking; usable in `with`. Arguments and errors as for `connect`."""
    where = Address.parse(address)
    context = context_for(where, tls)
    credentials = credentials_of(token, nkey, where)
    target = Target(where, credentials, context, connect_timeout, request_timeout, reconnect_for)
    return SyncClient(SyncSession(target))
