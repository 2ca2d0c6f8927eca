"""The asyncio client: reads streams, over a `Router` that manages the connections."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self, Unpack

from liftlog.client.aio.batch_reader import BatchReader, together
from liftlog.client.aio.calls import Calls
from liftlog.client.aio.consumer import Consumer
from liftlog.client.aio.group import GroupConsumer
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


class Client(Calls):
    """A daemon, as its callers see it. Made by `connect`.

    Belongs to one event loop and is not thread-safe; any number of its tasks may use it at the
    same time. Cancelling a call cancels the request and leaves the client usable.

    A lost connection is made again by the next call or read that needs it: reads continue after the
    last batch that they returned, and calls are repeated where doing them twice does no harm.

    Methods raise the typed errors of `liftlog.errors`. Every call may raise RequestTimeout when no
    answer came in `request_timeout` seconds, ConnectionLost when there was no connection for
    `reconnect_for` seconds (its `undecided` says that the call may have taken effect), Forbidden,
    and StreamUnavailable when the storage of the stream failed.
    """

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
        """One fetch of the protocol: record batches from `start` on. Most programs want `read`.

        - `start`: an offset, "earliest", "latest", or a `datetime` (the first record stamped then
          or later).
        - `max_bytes`, `max_records`: where to end the answer. At least one whole batch comes,
          however large. None: the daemon's limit.
        - `min_bytes`: with less than that to read, the daemon waits for more.
        - `max_wait_ms`: how long it waits, in milliseconds; it then answers with what there is,
          even with no batch. The call may take that much longer than `request_timeout`.
        - `incarnation`, `epoch`: those of the stream when `start` was stored; a stream that was
          deleted and created again, or has lost its end, is an error instead of other records.
        - `filter`: which records to send; `columns`: what of each record. The daemon then scans a
          bounded part of the stream, and may find nothing before the end: fetch again at
          `next_offset` of the answer.

        Raises StreamNotFound, OffsetOutOfRange (below the log start or beyond the log end),
        StaleIncarnation, Diverged, InvalidArgument, and UnsupportedVersion from a daemon that is
        too old for `filter` and `columns`. Damaged records raise CorruptRange from `batches()` of
        the answer.
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
        return fetch_answer(request, await self._session.ask(request, seconds))

    def read_batches(
        self,
        stream: str,
        start: Start = "earliest",
        until: Until = None,
        **options: Unpack[ReadOptions],
    ) -> BatchReader:
        """Record batches from `start` to `until` (exclusive; None: forever), with their checksums
        verified.

        `ReadOptions` describes the options: `filter`, `columns`, and what to do about damaged
        records and about a position that is gone. Raises InvalidArgument. The iteration raises what
        `fetch` raises, and ConnectionLost after `reconnect_for` seconds without a connection.
        """
        replica = ANY_REPLICA if options.get("prefer") == "nearest" else options.get("replica")
        route = self._session.route(stream, replica)
        return BatchReader(route, ReadAhead(route, stream, start, until, **options))

    def read(
        self,
        stream: str,
        start: Start = "earliest",
        until: Until = None,
        **options: Unpack[ReadOptions],
    ) -> RecordReader:
        """Like `read_batches`, record by record. Raises the same errors."""
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
        """Read the records of `stream` from the checkpoint of the consumer `name` on, at least
        once.

        Without a checkpoint it begins at `start`. A checkpoint is stored after `checkpoint_every`
        records (None: not by number) or `checkpoint_interval` seconds (None: not by time), on
        request, and at the end. `metadata` is stored with each. With `exclusive` the iteration ends
        with CheckpointMoved if another process has stored a checkpoint under this name.

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
        return Consumer(self, self.read_batches, settings)

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
    ) -> GroupConsumer:
        """Share `stream` with the other members of the group `name`: each record goes to one of
        them, at least once, and records of one key go to the same one, in order.

        - `member`: a name of its own for this member. A process that restarts under its name within
          `session` seconds gets its slots back, and nothing moves. Two processes of one name fence
          each other: the older one ends with GroupFenced. None: a random name, and `close` leaves
          the group.
        - `start`: where a new group begins.
        - `session`: a member without a heartbeat for this many seconds loses its slots.
        - `slots`: the number of parts of the keys in a new group, 1 to 1,024 (64). No group has
          more members that read.
        - `commit_every`, `commit_interval`: commit after this many records, or seconds.
        - `on_assigned`, `on_revoked` are called with the numbers of slots that it gains and loses.
          A slot that it loses is committed after `on_revoked`, unless the session has ended.

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
        return GroupConsumer(self._session, settings)

    async def close(self) -> None:
        """Close the connection. Calls and reads that wait for it raise ConnectionLost."""
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


class RecordReader:
    """Async iterator over records. Leaving the loop early cancels the requests under way.

    `anext` may be cancelled and called again, and called again after it raised ConnectionLost.
    """

    # Not a generator, which would end with the first exception that passes through it.

    def __init__(self, batches: BatchReader) -> None:
        self._batches = batches
        self._arriving = together(batches)
        self._waiting: list[Batches] = []  # arrived; their records are not made yet
        self._records: Iterator[Record] = iter(())

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record:
        while True:
            for record in self._records:
                return record
            if not self._waiting:
                self._waiting = [await anext(self._arriving)]
            records, rest = take_records(self._waiting)
            made = iter(records)
            # There is no call between the two assignments, so no exception of a signal handler can
            # separate them.
            self._records, self._waiting = made, rest

    async def aclose(self) -> None:
        """Stop reading."""
        self._records, self._waiting = iter(()), []
        await self._batches.aclose()
