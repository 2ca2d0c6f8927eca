"""What the web page needs of the rest of the daemon. Errors are LiftlogErrors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from liftlog.protocol.described import DaemonInfo, LeaseInfo
from liftlog.protocol.messages import StreamInfo
from liftlog.server.http.access import Doorkeeper
from liftlog.server.pull.fair_threads import Turns
from liftlog.server.pull.seams import Checkpoints, ReadableLog


class ShownSegment(Protocol):
    """See `liftlog.log.segment.Segment`."""

    base_offset: int
    next_offset: int
    generation: int
    size_bytes: int
    record_count: int
    max_timestamp_ns: int
    sealed: bool
    path: Path


class ShownLog(ReadableLog, Protocol):
    @property
    def segments(self) -> Sequence[ShownSegment]: ...
    @property
    def cleaned_below(self) -> int: ...
    @property
    def damaged_files(self) -> frozenset[str]: ...


class ShownStream(Protocol):
    @property
    def log(self) -> ShownLog: ...


class Leases(Protocol):
    def live(self, name: str) -> list[LeaseInfo]: ...


class Administration(Protocol):
    async def pause(self, name: str) -> StreamInfo: ...
    async def resume(self, name: str) -> StreamInfo: ...
    @property
    def leases(self) -> Leases: ...
    def daemon_info(self, may_read: Callable[[str], bool] = ...) -> DaemonInfo: ...


class ShownBroker(Protocol):
    def stream_names(self) -> list[str]:
        """In order, without the system's own."""
        ...

    async def describe_stream(self, name: str) -> StreamInfo: ...
    async def compact_stream(self, name: str) -> StreamInfo: ...
    def compaction_history(self, name: str) -> list[dict[str, Any]]:
        """Of the passes since the start the newest, newest first."""
        ...

    def stream(self, name: str) -> ShownStream: ...
    @property
    def checkpoints(self) -> Checkpoints:
        """Raises StreamUnavailable when there are none."""
        ...

    @property
    def administration(self) -> Administration: ...


class Door(Doorkeeper, Protocol):
    """The pull server: its gate, and its thread for scans, in which they take turns."""

    @property
    def scanners(self) -> Turns: ...
