"""What the pull server needs of the rest of the daemon."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from liftlog.errors import LiftlogError
from liftlog.protocol.administration import StreamUpdate
from liftlog.protocol.checkpoints import PAGE_CHECKPOINTS, Checkpoint
from liftlog.protocol.described import DaemonInfo, LeaseInfo
from liftlog.protocol.messages import StreamInfo


class LogSlice(Protocol):
    """Whole batches, contiguous in one file, which stays until `release()`."""

    @property
    def fd(self) -> int: ...
    @property
    def position(self) -> int: ...
    @property
    def length(self) -> int: ...
    @property
    def first_offset(self) -> int: ...
    @property
    def next_offset(self) -> int: ...
    @property
    def record_count(self) -> int: ...
    def pread(self) -> bytes:
        """The bytes; blocking. What the file does not give is zeros, and was quarantined."""
        ...

    def quarantine(self) -> None:
        """Verify what it holds and quarantine what of it is damaged. Blocking; raises
        StorageError, DiskFull."""
        ...

    def release(self) -> None: ...


class ReadableLog(Protocol):
    @property
    def log_start_offset(self) -> int: ...
    @property
    def high_watermark(self) -> int: ...
    @property
    def log_end_offset(self) -> int: ...
    @property
    def leader_epoch(self) -> int: ...
    @property
    def incarnation(self) -> str: ...
    def epoch_end(self, epoch: int) -> int:
        """The first offset behind that leader epoch; the log end for the newest one."""
        ...

    def read(self, offset: int, max_bytes: int, max_records: int | None = None) -> LogSlice | None:
        """Never past the high watermark; None when HW <= offset <= LEO."""
        ...

    def offset_for_timestamp(self, timestamp_ns: int, /) -> int:
        """May wait for the disk, so it is called in a thread."""
        ...

    def extents(self, first_offset: int, step_bytes: int, /) -> Sequence[tuple[int, int, int]]:
        """(first offset, next offset, bytes) of each piece. May wait for the disk, as above."""
        ...

    def is_quarantined(self, first_offset: int, next_offset: int) -> bool:
        """Whether all of these offsets are known to be damaged or lost."""
        ...

    def quarantine_damage(self, first_offset: int, next_offset: int) -> None:
        """Verify what is stored there and quarantine what is damaged. Blocking; raises
        StorageError, DiskFull."""
        ...


class ReadableStream(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def log(self) -> ReadableLog: ...

    def wait_high_watermark(self, offset: int) -> asyncio.Future[None]:
        """Done as soon as HW > offset, or the stream is deleted or closed; cancel to give up."""
        ...


class Leases(Protocol):
    """See `liftlog.server.streams.leases`."""

    async def acquire(
        self,
        name: str,
        start: int | str,
        *,
        ttl_ms: int,
        holder: str = "",
        principal: str = "",
        incarnation: str | None = None,
    ) -> LeaseInfo: ...
    async def renew(
        self,
        name: str,
        lease_id: str,
        *,
        ttl_ms: int,
        low: int | None = None,
        finished: tuple[int, int] | None = None,
    ) -> LeaseInfo: ...
    async def release(self, name: str, lease_id: str) -> None: ...
    def live(self, name: str) -> list[LeaseInfo]: ...


class Administration(Protocol):
    """See `liftlog.server.streams.administration`."""

    async def update_stream(
        self,
        name: str,
        settings: Mapping[str, object],
        *,
        dry_run: bool = False,
        allow_deletion: bool = False,
    ) -> StreamUpdate: ...
    async def pause(self, name: str) -> StreamInfo: ...
    async def resume(self, name: str) -> StreamInfo: ...
    async def set_read_only(self, name: str, on: bool) -> StreamInfo: ...
    async def truncate_prefix(
        self, name: str, offset: int, *, incarnation: str | None = None
    ) -> StreamInfo: ...
    @property
    def leases(self) -> Leases: ...
    def streams_for(self, subject: str) -> list[StreamInfo]: ...
    def daemon_info(self, may_read: Callable[[str], bool] = ...) -> DaemonInfo: ...


class Broker(Protocol):
    """The streams of the daemon. Errors are `LiftlogError`s."""

    @property
    def server_id(self) -> str: ...
    async def create_stream(self, name: str, settings: Mapping[str, object]) -> StreamInfo: ...
    async def describe_stream(self, name: str) -> StreamInfo: ...
    async def list_streams(self) -> list[StreamInfo]: ...
    async def delete_stream(self, name: str) -> None: ...
    async def compact_stream(self, name: str) -> StreamInfo:
        """Asks for a pass and does not wait for it."""
        ...

    def stream(self, name: str) -> ReadableStream: ...
    @property
    def checkpoints(self) -> Checkpoints:
        """Raises StreamUnavailable when there are none."""
        ...

    @property
    def administration(self) -> Administration: ...


class Checkpoints(Protocol):
    """Where consumers go on. Raises LiftlogErrors."""

    def commit(
        self,
        consumer: str,
        stream: str,
        offset: int,
        told: Callable[[LiftlogError | None], None],
        *,
        expected: int | None = None,
        metadata: str = "",
        incarnation: str | None = None,
        epoch: int | None = None,
        owner: str = "",
    ) -> None:
        """`told` hears later, on the loop, that it is durable or why it is not. It counts against
        the quota of the principal `owner`."""
        ...

    def delete(
        self,
        consumer: str,
        stream: str,
        told: Callable[[LiftlogError | None], None],
        *,
        expected: int | None = None,
    ) -> None: ...
    def fetch(self, consumer: str, stream: str, *, check: bool) -> Checkpoint | None: ...
    def page(
        self,
        may_read: Callable[[str], bool],
        *,
        consumer: str | None = None,
        stream: str | None = None,
        after: str | None = None,
        limit: int = PAGE_CHECKPOINTS,
    ) -> tuple[list[Checkpoint], str | None]:
        """Some, and where to go on; that may be one that `may_read` hides unless `limit` were
        found."""
        ...
