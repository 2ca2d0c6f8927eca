"""The blocking client: the same methods over a session that blocks. No threads."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Self, Unpack

from liftlog.client.address import DEFAULT_ADDRESS, Address
from liftlog.client.administration import SyncAdministration
from liftlog.client.batch_reader import SyncBatchReader
from liftlog.client.batches import FetchAnswer
from liftlog.client.checkpoints import SyncCheckpoints
from liftlog.client.compaction import PassWatch
from liftlog.client.consuming import ConsumerSettings
from liftlog.client.dialing import context_for
from liftlog.client.positions import Start, Until
from liftlog.client.progress import CHECKPOINT_EVERY, CHECKPOINT_INTERVAL_SECONDS
from liftlog.client.read_ahead import ReadAhead
from liftlog.client.read_options import ReadOptions
from liftlog.client.reconnecting import RECONNECT_FOR_SECONDS
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
from liftlog.client.session import Target
from liftlog.client.sync_consumer import SyncConsumer
from liftlog.client.sync_session import SyncSession
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
from liftlog.records.decode import Record
from liftlog.tls.contexts import ClientTls


class SyncClient(SyncAdministration, SyncCheckpoints):
    """A daemon, as its callers see it, blocking. Made by `connect_sync`.

    Not thread-safe: one thread at a time. Connects again, and raises errors, as the async client.
    """

    def __init__(self, session: SyncSession) -> None:
        self.address = session.target.address.text
        self.request_timeout = session.target.request_timeout
        self._session = session

    # --- the public methods; the async client has the same ---

    @property
    def server(self) -> Welcome:
        """What the daemon said about itself and its limits, when last connected to."""
        return self._session.link.connection.welcome

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
        exchange = self._exchange(request, self.request_timeout + max_wait_ms / 1000)
        return fetch_answer(request, exchange)

    def read_batches(
        self,
        stream: str,
        start: Start = "earliest",
        until: Until = None,
        **options: Unpack[ReadOptions],
    ) -> SyncBatchReader:
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
        return SyncBatchReader(self._session, ahead)

    def read(
        self,
        stream: str,
        start: Start = "earliest",
        until: Until = None,
        **options: Unpack[ReadOptions],
    ) -> Iterator[Record]:
        """Like `read_batches`, record by record."""
        for batch in self.read_batches(stream, start, until, **options):
            yield from batch.records()

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
        return SyncConsumer(self, settings)

    def close(self) -> None:
        """Close the connection."""
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
    tls: ClientTls = None,
    connect_timeout: float = CONNECT_TIMEOUT_SECONDS,
    request_timeout: float = REQUEST_TIMEOUT_SECONDS,
    reconnect_for: float | None = RECONNECT_FOR_SECONDS,
) -> SyncClient:
    """Connect to a daemon, blocking; usable in `with`. Arguments and errors as for `connect`."""
    where = Address.parse(address)
    context = context_for(where, tls)
    target = Target(where, token, context, connect_timeout, request_timeout, reconnect_for)
    return SyncClient(SyncSession(target))
