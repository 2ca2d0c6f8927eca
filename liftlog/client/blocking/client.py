# Made from liftlog/client/aio/client.py by `make blocking`: edit that one.
"""The blocking client: reads streams, over a `SyncRouter` that manages the connections."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self, Unpack

from liftlog.client.blocking.batch_reader import SyncBatchReader, together
from liftlog.client.blocking.calls import SyncCalls
from liftlog.client.blocking.consumer import SyncConsumer
from liftlog.client.blocking.group import SyncGroupConsumer
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
from liftlog.protocol.groups import UNNAMED
from liftlog.protocol.messages import ANY_REPLICA
from liftlog.records.decode import Record

if TYPE_CHECKING:
    from liftlog.records.columns.positions import Batches


class SyncClient(SyncCalls):
    """Connection to a daemon or a cluster. Created by `connect_sync`.

    Not thread-safe: only one thread at a time may use it. An exception that a signal handler raises
    ends the call in progress, and leaves the client usable.

    After a lost connection the next call or read reconnects. Reads continue after the last batch
    that they returned. A call is repeated if repeating it is harmless.

    Methods raise the typed errors of `liftlog.errors`. Every call can raise:

    - RequestTimeout: no answer within `request_timeout` seconds.
    - ConnectionLost: no connection for `reconnect_for` seconds. If the error's `undecided` is true,
      the call may have taken effect.
    - Forbidden: the principal lacks the right.
    - StreamUnavailable: the storage of the stream failed.
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
        """Send one fetch request, and return its record batches, from `start` on. Most programs use
        `read` instead.

        - `start`: an offset, "earliest", "latest", or a `datetime` (the first record stamped then
          or later).
        - `max_bytes`, `max_records`: limits of the answer. It contains at least one whole batch,
          even if that batch is larger. None: the daemon's limit.
        - `min_bytes`: the daemon waits until it has at least this many bytes to return.
        - `max_wait_ms`: the longest wait of the daemon for `min_bytes`, in milliseconds. It then
          returns the available batches, possibly none. The call may take that much longer than
          `request_timeout`.
        - `incarnation`, `epoch`: incarnation and leader epoch of the stream, stored together with
          `start`. If the stream was deleted and created again, or has lost records at its end, the
          call raises an error instead of returning other records.
        - `filter` selects records, `columns` selects their columns. With a filter the daemon scans
          only a limited part of the stream, which may contain no match: fetch again at the answer's
          `next_offset`.

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
        """Read record batches from `start` to `until` (exclusive; None: forever), and verify their
        checksums.

        `ReadOptions` describes the options: `filter`, `columns`, and the handling of damaged
        records and of a position that can no longer be read. Raises InvalidArgument. The iteration
        raises the errors of `fetch`, and ConnectionLost after `reconnect_for` seconds without a
        connection.
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
        """Like `read_batches`, record by record. Raises the same errors."""
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
        """Read the records of `stream` from the checkpoint of the consumer `name` on, with
        at-least-once delivery.

        If the consumer has no checkpoint, it begins at `start`. It stores a checkpoint after
        `checkpoint_every` records (None: no limit by number) or `checkpoint_interval` seconds
        (None: no limit by time), on request, and at the end. `metadata` is stored with each
        checkpoint. With `exclusive` the iteration ends with CheckpointMoved if another process has
        stored a checkpoint under this name.

        `ReadOptions` describes the options; `on_reset` applies if the stream can no longer be read
        from the checkpoint. Raises InvalidArgument. The iteration raises the errors of `fetch`,
        `fetch_checkpoint` and `commit_checkpoint`.
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
        """Share `stream` with the other members of the group `name`. Each record is delivered to
        one member, at least once; records with the same key are delivered to the same member, in
        order.

        - `member`: unique name of this member. A process that restarts under the same name within
          `session` seconds gets its slots back, and no slot moves to another member. If a second
          process joins under the same name, the first one ends with GroupFenced. None: a random
          name, and `close` leaves the group.
        - `start`: position at which a new group begins.
        - `session`: a member without a heartbeat for this many seconds loses its slots.
        - `slots`: number of slots into which a new group divides the keys, 1 to 1,024 (default 64).
          At most this number of members can read at the same time.
        - `commit_every`, `commit_interval`: commit after this number of records, or this number of
          seconds.
        - `on_assigned` and `on_revoked` are called with the ids of the assigned and the revoked
          slots. A revoked slot is committed after `on_revoked`, unless the session has ended.

        `ReadOptions` describes the options; `filter`, `columns` and `replica` cannot be used here.
        Raises InvalidArgument. The iteration raises the errors of `fetch`, Forbidden, Conflict if
        the group has another number of slots, and LimitExceeded.
        """
        settings = GroupSettings(
            name,
            stream,
            f"{UNNAMED}{secrets.token_hex(8)}" if member is None else member,
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
    as with any iterator: start another read at your own position then, or let the handler only set
    a flag.
    """

    # Not a generator, which would end with the first exception that passes through it.

    def __init__(self, batches: SyncBatchReader) -> None:
        self._batches = batches
        self._arriving = together(batches)
        self._waiting: list[Batches] = []  # arrived; their records are not made yet
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
            # There is no call between the two assignments, so no exception of a signal handler can
            # separate them.
            self._records, self._waiting = made, rest

    def close(self) -> None:
        """Stop reading."""
        self._records, self._waiting = iter(()), []
        self._batches.close()
