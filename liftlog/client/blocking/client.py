# Made from liftlog/client/aio/client.py by `make blocking`: edit that one.
"""The blocking client: reads streams over connections that a `SyncRouter` manages."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self, Unpack

from liftlog.client.blocking.batch_reader import SyncBatchReader, together
from liftlog.client.blocking.calls import SyncCalls
from liftlog.client.blocking.consumer import SyncConsumer
from liftlog.client.blocking.group import SyncGroupConsumer
from liftlog.client.blocking.worker import SyncWorker
from liftlog.client.groups.group_settings import (
    COMMIT_EVERY,
    COMMIT_INTERVAL_SECONDS,
    SESSION_SECONDS,
    GroupSettings,
    SlotsCallback,
)
from liftlog.client.reading.batches import FetchAnswer, take_records
from liftlog.client.reading.consuming import (
    CHECKPOINT_EVERY,
    CHECKPOINT_INTERVAL_SECONDS,
    ConsumerSettings,
)
from liftlog.client.reading.read_ahead import ReadAhead
from liftlog.client.reading.read_options import Column, Filter, ReadOptions, Start, Until
from liftlog.client.requests import fetch_answer, fetch_request
from liftlog.client.working.settings import BATCH, ConsumerOptions, WorkerSettings
from liftlog.protocol.groups import UNNAMED
from liftlog.protocol.messages import ANY_REPLICA
from liftlog.records.decode import Record

if TYPE_CHECKING:
    from liftlog.records.columns.positions import Batches


class SyncClient(SyncCalls):
    """Connection to a daemon or a cluster. Created by `connect_sync`.

    A client is not thread-safe: only one thread at a time may use it. An exception that a signal
    handler raises ends the call in progress. The client stays usable.

    After a lost connection, the next call or read reconnects. A read continues after the last batch
    that it returned. If the answer to a call was lost, the client repeats the call if it is safe to
    execute the call twice.

    Methods raise the typed errors of `liftlog.errors`. Every call can raise:

    - RequestTimeout: no answer within `request_timeout` seconds.
    - ConnectionLost: no connection for `reconnect_for` seconds. It is also raised if the connection
      was lost before the answer arrived, and the call cannot be repeated. In this case the error's
      `undecided` is true: the call may have taken effect.
    - Forbidden: the principal does not have the right to make the call.
    - StreamUnavailable: the stream's storage has failed.
    """

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
        """Send one fetch request, and return the record batches of its answer. The batches begin at
        `start`. Most programs use `read` instead.

        - `start`: an offset, "earliest", "latest", or a `datetime` (the first record with this
          timestamp or a later timestamp).
        - `max_bytes`, `max_records`: limits of the answer. The answer contains the whole first
          batch, even if this batch is larger. By default the daemon's limits apply.
        - `min_bytes`: the daemon waits until the answer has at least this many bytes.
        - `max_wait_ms`: the longest time that the daemon waits for `min_bytes`, in milliseconds.
          After this time it returns the available batches, possibly none. This wait does not count
          towards `request_timeout`.
        - `incarnation`, `epoch`: the stream's incarnation and leader epoch, which the application
          has stored together with the offset `start`. With them the call detects that the stream
          was deleted and created again, or has lost records at its end. In these cases the call
          raises StaleIncarnation or Diverged.
        - `filter` selects records, `columns` selects their columns. With a filter the daemon scans
          only a limited part of the stream for each request. So the answer may contain no record
          although later records match. In this case continue at the answer's `next_offset`.

        Raises StreamNotFound, OffsetOutOfRange (below the log start or beyond the log end),
        StaleIncarnation, Diverged, InvalidArgument, and UnsupportedVersion if the daemon is too old
        for `filter` and `columns`. If records are damaged, `batches()` of the answer raises
        CorruptRange.
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
        seconds = self.request_timeout + max_wait_ms / 1000
        return fetch_answer(request, self._session.ask(request, seconds))

    def read_batches(
        self,
        stream: str,
        start: Start = "earliest",
        until: Until = None,
        **options: Unpack[ReadOptions],
    ) -> SyncBatchReader:
        """Return an iterator over the record batches from `start` to `until` (exclusive). If
        `until` is None, the iterator never ends. It verifies the checksums of the batches.

        `ReadOptions` describes the `options`: for example `filter`, `columns`, and options for
        damaged records and for a start that can no longer be read. Raises InvalidArgument. The
        iteration raises the errors of `fetch`, and ConnectionLost after `reconnect_for` seconds
        without a connection.
        """
        replica = ANY_REPLICA if options.get("prefer") == "nearest" else options.get("replica")
        route = self._session.route(stream, replica)
        return SyncBatchReader(route, ReadAhead(route, stream, start, until, **options))

    def read(
        self,
        stream: str,
        start: Start = "earliest",
        until: Until = None,
        **options: Unpack[ReadOptions],
    ) -> SyncRecordReader:
        """Like `read_batches`, but the iterator returns single records. Raises the same errors."""
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
        """Return an iterator over the records of `stream` that begins at the checkpoint of the
        consumer `name`, with at-least-once delivery.

        If the consumer has no checkpoint, it begins at `start`. The consumer stores a checkpoint
        after `checkpoint_every` records or `checkpoint_interval` seconds, in each call of
        `checkpoint`, and at the end. None disables one of these two limits. The daemon stores
        `metadata` with each checkpoint. With `exclusive`, the iteration raises CheckpointMoved if
        another process has stored a checkpoint with this name.

        `ReadOptions` describes the `options`. `on_reset` also applies if the stream can no longer
        be read from the checkpoint. Raises InvalidArgument. The iteration raises the errors of
        `fetch`, `fetch_checkpoint` and `commit_checkpoint`.
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
        return SyncConsumer(self, self.read_batches, settings)

    def group(
        self,
        name: str,
        stream: str,
        *,
        member: str | None = None,
        start: Start = "earliest",
        session: float = SESSION_SECONDS,
        slots: int | None = None,
        commit_every: int | None = COMMIT_EVERY,
        commit_interval: float | None = COMMIT_INTERVAL_SECONDS,
        on_assigned: SlotsCallback | None = None,
        on_revoked: SlotsCallback | None = None,
        **options: Unpack[ReadOptions],
    ) -> SyncGroupConsumer:
        """Return an iterator over this member's part of `stream`. The members of the group `name`
        divide the stream. Each record is delivered to one member, at least once. Records with the
        same key are delivered to the same member, in order.

        - `member`: unique name of this member. If a process restarts with the same name within
          `session` seconds, it receives the same slots, and no slot moves to another member. If a
          second process joins with the same name, the first process ends with GroupFenced. By
          default the member has a random name, and leaves the group on `close`.
        - `start`: position at which the group begins to read if it does not exist yet.
        - `session`: a member without a heartbeat for this many seconds loses its slots.
        - `slots`: number of slots into which a new group divides the keys, 1 to 1,024 (default 64).
          At most this number of members can read at the same time.
        - `commit_every`, `commit_interval`: the member commits after this number of records, or
          this number of seconds. None disables a limit.
        - `on_assigned` and `on_revoked` are called with the ids of the assigned and the revoked
          slots. After `on_revoked` has returned, the member commits the revoked slots, unless its
          session has ended.

        `ReadOptions` describes the `options`. The options `filter`, `columns` and `replica` are not
        allowed here. Raises InvalidArgument. The iteration raises the errors of `fetch`, Forbidden,
        Conflict if the group has another number of slots than `slots`, and LimitExceeded.
        """
        settings = GroupSettings(
            name,
            stream,
            f"{UNNAMED}{os.urandom(8).hex()}" if member is None else member,
            member is not None,
            start,
            session,
            slots,
            commit_every,
            commit_interval,
            on_assigned,
            on_revoked,
            options,
        )
        return SyncGroupConsumer(self._session, settings)

    def worker(
        self,
        stream: str,
        consumer: str,
        *,
        batch: int = BATCH,
        max_bytes: int | None = None,
        prefetch: bool = True,
        create: bool = True,
        **options: Unpack[ConsumerOptions],
    ) -> SyncWorker:
        """Return an iterator over batches of messages of a consumer with acks. All workers of a
        consumer share its messages, including workers over NATS. If no worker acks a message in
        time, the message is delivered again.

        - `batch`, `max_bytes`: largest number of messages, and approximate number of bytes, that
          are delivered together.
        - `prefetch`: request the next batch while the caller processes a batch. The messages of
          both batches count as delivered, so the ack wait has begun for all of them.
        - `create`: create the consumer, with the settings in `options`, if it does not exist; see
          `create_consumer`. With False, a missing consumer is an error.

        Raises InvalidArgument. The iteration raises ConsumerNotFound when the consumer is deleted,
        and Conflict if the consumer exists with other settings than `options`.
        """
        settings = WorkerSettings(stream, consumer, batch, max_bytes, prefetch, create, options)
        return SyncWorker(self._session, settings)

    def close(self) -> None:
        """Close the connection. Calls and reads in progress raise ConnectionLost."""
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


class SyncRecordReader:
    """Iterator over records. Leaving the loop early cancels pending requests.

    `next` can be called again after a ConnectionLost, and after an exception that a signal handler
    raised in it. If such an exception arrives while a record is being returned, the record is lost,
    as with any iterator. Then start another read at your own position, or let the handler only set
    a flag.
    """

    # Not a generator, which would end with the first exception that passes through it.

    def __init__(self, batches: SyncBatchReader) -> None:
        self._batches = batches
        self._arriving = together(batches)
        self._waiting: list[Batches] = []  # arrived, not yet converted
        self._records: Iterator[Record] = iter(())

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Record:
        while True:
            for record in self._records:
                return record
            if not self._waiting:
                self._waiting = [next(self._arriving)]
            records, rest = take_records(self._waiting)
            made = iter(records)
            # Nothing is called between the two assignments, so an exception that a signal handler
            # raises cannot separate them.
            self._records, self._waiting = made, rest

    def close(self) -> None:
        """Stop reading."""
        self._records, self._waiting = iter(()), []
        self._batches.close()
