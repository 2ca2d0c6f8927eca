"""Reads batches from a daemon's pull socket."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from envelope.format import MAX_KEY_BYTES
from liftlog.client import Filter, LeaseInfo, SyncClient, connect_sync
from liftlog.client.blocking.batch_reader import together
from liftlog.client.connecting.reconnecting import Backoff, may_pass
from liftlog.client.connecting.target import RECONNECT_FOR_SECONDS
from liftlog.errors import (
    CorruptRange,
    DiskFull,
    InvalidArgument,
    LiftlogError,
    LimitExceeded,
    OffsetOutOfRange,
    StreamNotFound,
    UnknownRequest,
)
from liftlog.log.read.measuring import Extent
from liftlog.records.columns.positions import Batches
from liftlog.spark.leases import HOLDER, TaskLease
from liftlog.spark.options import EARLIEST, ScanOptions
from liftlog.spark.transport import (
    CompactionMark,
    Losses,
    ScanRange,
    StreamState,
    compacted_meanwhile,
    is_compacted,
)

logger = logging.getLogger("liftlog.spark")

PLANNING_SECONDS = 10.0
"""Time limit, in seconds, for the first connection during planning, because the address may be
wrong."""

READING_SECONDS = RECONNECT_FOR_SECONDS
"""Time, in seconds, for which a task waits for an unreachable daemon. Planning waits for the same
time, but only if it was connected before."""

_LEARN_EVERY_SECONDS = 60.0
"""Interval at which a running query requests the list of the cluster's nodes."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class DaemonTransport:
    """A `Transport` over one connection to a daemon. If the daemon has an ACL, the reader needs the
    permission `read` on the stream."""

    def __init__(self, options: ScanOptions, *, patience_seconds: float = PLANNING_SECONDS) -> None:
        self._options = options
        self._stream = options.stream
        self._lease: LeaseInfo | None = None  # until `held` passes it to the tasks
        self._share: TaskLease | None = None  # the lease of the task that reads
        self._learn_at = 0.0
        self._compacted = False
        self._cleaned_below = 0
        self._tombstones_removed_below = 0
        # With a filter the daemon has to decode, select and encode records; without a filter it
        # sends the stored bytes. So the daemon filters only if this saves much (one key), or if the
        # options say that the network is the bottleneck. The tasks apply `subject` in any case.
        wanted = Filter(
            subject=options.subject if options.filter_in_daemon else None,
            key=_sendable(options.narrowing.key),
        )
        self._filter = wanted if wanted != Filter() else None
        self._client = connect(options, patience_seconds=patience_seconds)

    def state(self) -> StreamState:
        if time.monotonic() >= self._learn_at:
            self._client.metadata()
            self._learn_at = time.monotonic() + _LEARN_EVERY_SECONDS
        try:
            info = self._client.describe_stream(self._stream)
        except StreamNotFound as error:
            raise StreamNotFound(
                f"{self._client.address} has no stream {self._stream!r} that you may read"
            ) from error
        self._compacted = is_compacted(info.settings)
        self._cleaned_below = info.compaction.get("cleaned_below", 0)
        self._tombstones_removed_below = info.compaction.get("tombstones_removed_below", 0)
        whole = Extent(info.log_start_offset, info.log_end_offset, info.size_bytes)
        return StreamState(
            stream=self._stream,
            identity=info.incarnation,
            leader_epoch=info.leader_epoch,
            log_start_offset=info.log_start_offset,
            end_offset=info.high_watermark,
            extents=(whole,) if whole.next_offset > whole.first_offset else (),
            servers=tuple(self._client.addresses),
        )

    def offset_at(self, timestamp_ns: int) -> int:
        when = _EPOCH + timedelta(microseconds=-(-timestamp_ns // 1000))
        return self._client.fetch(self._stream, when, max_bytes=1).header.offset

    def check_history(self, offset: int, leader_epoch: int) -> None:
        try:
            self._client.fetch(self._stream, offset, max_bytes=1, epoch=leader_epoch)
        except (CorruptRange, OffsetOutOfRange):
            pass  # the tasks that read these records report the damage

    def hold(self, state: StreamState, first_offset: int | None) -> StreamState:
        try:
            self._lease = self._client.acquire_lease(
                self._stream,
                EARLIEST if first_offset is None else first_offset,
                ttl=self._options.lease_seconds,
                holder=HOLDER,
                incarnation=state.identity,
            )
        except (DiskFull, LimitExceeded) as error:
            if self._compacted:
                raise
            # No lease: the read fails with an error if retention removes its records meanwhile.
            logger.warning("read-without-lease stream=%s error=%s", self._stream, error)
            return state
        # Compaction removes a record if a newer one below the end of the lease supersedes it. So
        # the read has to include the records up to that end.
        end = self._lease.high
        extents = state.extents
        if extents and extents[-1].next_offset < end:
            extents = (*extents[:-1], extents[-1]._replace(next_offset=end))
        start = max(state.log_start_offset, self._lease.low if first_offset is None else 0)
        return replace(state, log_start_offset=start, end_offset=end, extents=extents)

    def measure(
        self, state: StreamState, first_offset: int, end_offset: int, step_bytes: int
    ) -> StreamState:
        if first_offset >= end_offset:
            return state
        return measured(self._client, state, first_offset, step_bytes)

    def held(self, planned: list[ScanRange]) -> list[ScanRange]:
        cleaned_below = None if self._compacted else self._cleaned_below
        planned = [replace(one, cleaned_below=cleaned_below) for one in planned]
        if self._lease is None or not planned:
            return planned
        lease, self._lease = self._lease, None
        mark = CompactionMark(lease.high, self._tombstones_removed_below)
        return [
            replace(
                one,
                lease_id=lease.lease_id,
                part=(number, len(planned)),
                mark=mark if self._compacted else None,
            )
            for number, one in enumerate(planned)
        ]

    def batches(self, wanted: ScanRange, losses: Losses) -> Iterator[Batches]:
        batches = self._batches(wanted, losses)
        if wanted.cleaned_below is not None:
            batches = self._without_compaction(batches, wanted.cleaned_below)
        if wanted.lease_id is None:
            return batches

        def may_go_on() -> bool:
            if wanted.mark is None:  # retention may remove records; the daemon reports that
                return wanted.cleaned_below is not None
            return wanted.mark.still_holds(self._client.describe_stream(self._stream).compaction)

        self._share = TaskLease(
            self._client,
            partial(connect, self._options),
            self._stream,
            wanted.lease_id,
            self._options.lease_seconds,
            part=wanted.part,
            may_go_on=may_go_on,
        )
        return self._share.over(batches)

    def _without_compaction(
        self, batches: Iterator[Batches], cleaned_below: int
    ) -> Iterator[Batches]:
        """Yield `batches` unchanged. After the last batch, raises SegmentsChanged if compaction was
        switched on during the read."""
        yield from batches
        found = self._client.describe_stream(self._stream).compaction
        if found.get("state", "off") != "off" or found.get("cleaned_below", 0) > cleaned_below:
            raise compacted_meanwhile(self._stream)

    def _batches(self, wanted: ScanRange, losses: Losses) -> Iterator[Batches]:
        reached = wanted.first_offset
        while reached < wanted.end_offset:
            reader = self._client.read_batches(
                self._stream,
                reached,
                wanted.end_offset,
                incarnation=wanted.identity,
                epoch=wanted.leader_epoch,
                filter=self._filter,
                on_corrupt=losses.damaged,
            )
            try:
                yield from together(reader)
                return
            except OffsetOutOfRange as error:
                reached = reader.position or reached
                start = error.details.get("log_start_offset", 0)
                if not isinstance(start, int) or start <= reached:
                    raise
                losses.removed(reached, min(start, wanted.end_offset))
                reached = start

    def close(self, *, stopped: bool = True) -> None:
        """Close the connection and end the part of the lease. `stopped` is false after a failure:
        Spark will read the part again."""
        lease, self._lease = self._lease, None
        share, self._share = self._share, None
        try:
            if lease is not None:  # no task uses the lease
                self._client.release_lease(self._stream, lease.lease_id)
            if share is not None:
                share.end(stopped=stopped)
        except LiftlogError as error:
            logger.warning("lease-not-released stream=%s error=%s", self._stream, error)
        finally:
            self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(stopped=kind in (None, GeneratorExit))


def connect(options: ScanOptions, *, patience_seconds: float = PLANNING_SECONDS) -> SyncClient:
    """Connect to the daemon with the login of the options. While the daemon cannot be reached, for
    example during a restart, retry for `patience_seconds`. Raises LiftlogError."""
    deadline = time.monotonic() + patience_seconds
    backoff = Backoff()
    while True:
        try:
            return connect_sync(
                options.server,
                token=read_token(options.token_file),
                nkey=options.nkey_file,
                tls=options.tls_ca_file,
                request_timeout=READING_SECONDS,
            )
        except LiftlogError as error:
            pause = backoff.next_pause()
            if not may_pass(error) or time.monotonic() + pause >= deadline:
                raise
            logger.warning("connecting-again address=%s reason=%s", options.server, error)
            time.sleep(pause)


def measured(
    client: SyncClient, state: StreamState, first_offset: int, step_bytes: int
) -> StreamState:
    """Return `state` with the extents that the daemon reports from `first_offset` on."""
    try:
        found = client.stream_extents(state.stream, first_offset, step_bytes=step_bytes)
    except UnknownRequest:  # an older daemon: `state` only has the total size
        return state
    return replace(state, extents=tuple([Extent(*one) for one in found]))


def read_token(path: str | None) -> str | None:
    """Return the token in the file; None if the options name no file. Raises InvalidArgument."""
    if path is None:
        return None
    try:
        token = Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise InvalidArgument(
            f"tokenFile={path!r} cannot be read: {reason}",
            hint="the driver's host and every executor need this file",
        ) from error
    if not token:
        raise InvalidArgument(f"tokenFile={path!r} is empty")
    return token


def _sendable(key: bytes | None) -> bytes | None:
    """Return the key to send in a filter. Returns None if the key is longer than the longest
    possible key of a record: the daemon would refuse it, and Spark itself finds that no record
    matches."""
    return key if key is None or len(key) <= MAX_KEY_BYTES else None
