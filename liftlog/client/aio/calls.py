"""Changing, holding and explaining streams: the requests, and the methods of both clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from liftlog.client.requests import Answer
from liftlog.errors import InvalidArgument
from liftlog.protocol.administration import (
    AcquireLease,
    DaemonAnswer,
    ExtentsAnswer,
    LeaseAnswer,
    LeasesAnswer,
    ListExtents,
    ListLeases,
    Metadata,
    PauseStream,
    ReleaseLease,
    RenewLease,
    ResumeStream,
    SetReadOnly,
    StreamExtent,
    StreamsFor,
    StreamUpdate,
    TruncateStream,
    Updated,
    UpdateStream,
)
from liftlog.protocol.described import DaemonInfo, LeaseInfo
from liftlog.protocol.messages import EARLIEST, Done, Message, StreamAnswer, StreamsAnswer
from liftlog.protocol.stream_info import StreamInfo

DEFAULT_TTL_SECONDS = 60.0
DEFAULT_STEP_BYTES = 4 * 1024 * 1024


def _update_request(
    name: str,
    settings: Mapping[str, Any] | None,
    more: Mapping[str, Any],
    *,
    dry_run: bool,
    allow_deletion: bool,
) -> UpdateStream:
    wanted = {**(settings or {}), **more}
    for key in wanted:
        if not isinstance(key, str):
            raise InvalidArgument(f"setting names are strings, not {key!r}")
    return UpdateStream(name, wanted, dry_run, allow_deletion)


def _truncate_request(name: str, offset: int, incarnation: str | None) -> TruncateStream:
    if not isinstance(offset, int) or offset < 0:
        raise InvalidArgument(f"{offset!r} is no offset")
    return TruncateStream(name, offset, incarnation)


def _milliseconds(seconds: float) -> int:
    if not 0 < seconds < 2**40:
        raise InvalidArgument(f"{seconds!r} is no number of seconds that a lease can last")
    return max(1, round(seconds * 1000))


def _renewal(
    stream: str,
    lease_id: str,
    seconds: float,
    low: int | None,
    finished: tuple[int, int] | None,
) -> RenewLease:
    part, parts = finished or (None, None)
    return RenewLease(stream, lease_id, _milliseconds(seconds), low, part, parts)


class AsyncAdministration:
    """The asyncio client's methods."""

    async def _call(self, message: Message, expected: type[Answer]) -> Answer:
        raise NotImplementedError

    async def update_stream(
        self,
        name: str,
        settings: Mapping[str, Any] | None = None,
        *,
        dry_run: bool = False,
        allow_deletion: bool = False,
        **more: Any,
    ) -> StreamUpdate:
        """Change settings of a stream: those that are named, with the keys of the YAML file, as a
        mapping or as keywords; others stay. They hold, durably, on return.

        With `dry_run` nothing changes; the answer says what would. Raises InvalidArgument for a
        bad value or a setting that cannot be changed, Conflict for a stream of the configuration
        file, or when the new limits would remove more than a tenth of the stream and
        `allow_deletion` does not say that this is wanted (`details["removal"]`).
        """
        request = _update_request(
            name, settings, more, dry_run=dry_run, allow_deletion=allow_deletion
        )
        return StreamUpdate.from_answer(await self._call(request, Updated))

    async def pause_stream(self, name: str) -> StreamInfo:
        """Have the stream refuse new messages, with a nack to whoever asks for an ack, until it is
        resumed, also after a restart. On return all that it received before is committed."""
        return (await self._call(PauseStream(name), StreamAnswer)).info

    async def resume_stream(self, name: str) -> StreamInfo:
        """The opposite of `pause_stream`."""
        return (await self._call(ResumeStream(name), StreamAnswer)).info

    async def set_read_only(self, name: str, read_only: bool = True) -> StreamInfo:
        """Like pausing, with a refusal that says that it is for good; or no more."""
        return (await self._call(SetReadOnly(name, read_only), StreamAnswer)).info

    async def truncate_prefix(
        self, name: str, offset: int, *, incarnation: str | None = None
    ) -> StreamInfo:
        """Make `offset` the log start: what lies below is gone for ever, durably on return.

        Raises OffsetOutOfRange above the high watermark, Conflict while a lease holds what would
        go, StaleIncarnation when the stream is not the one of `incarnation`.
        """
        request = _truncate_request(name, offset, incarnation)
        return (await self._call(request, StreamAnswer)).info

    async def acquire_lease(
        self,
        stream: str,
        start: int | str = EARLIEST,
        *,
        ttl: float = DEFAULT_TTL_SECONDS,
        holder: str = "",
        incarnation: str | None = None,
    ) -> LeaseInfo:
        """Hold the stream from `start` to its high watermark of now, for `ttl` seconds: what lies
        in [`low`, `high`) of the answer stays as it is. Durable on return.

        "earliest" is where retention wants the log to start, which is above the log start while
        another lease holds retention up.

        Renew it well before `ttl` has passed. It ends early only when the disk is full. Raises
        OffsetOutOfRange, InvalidArgument (at most an hour), LimitExceeded, StaleIncarnation.
        """
        request = AcquireLease(stream, start, _milliseconds(ttl), holder, incarnation)
        return (await self._call(request, LeaseAnswer)).info

    async def renew_lease(
        self,
        stream: str,
        lease_id: str,
        *,
        ttl: float = DEFAULT_TTL_SECONDS,
        low: int | None = None,
        finished: tuple[int, int] | None = None,
    ) -> LeaseInfo:
        """Let a lease last `ttl` seconds from now on; `low` is where to begin holding, once what is
        below has been read. Raises LeaseGone: then what it held may have changed.

        For a read that several clients share: `finished=(part, parts)` says that one of `parts`
        parts, counted from 0, has been read. The lease ends when each of them was named once.
        """
        request = _renewal(stream, lease_id, ttl, low, finished)
        return (await self._call(request, LeaseAnswer)).info

    async def release_lease(self, stream: str, lease_id: str) -> None:
        """Give a lease back; no error if it has ended."""
        await self._call(ReleaseLease(stream, lease_id), Done)

    async def list_leases(self, stream: str) -> list[LeaseInfo]:
        """The leases on a stream; their ids are shown to those who may administer it."""
        return (await self._call(ListLeases(stream), LeasesAnswer)).infos

    async def stream_extents(
        self, stream: str, start: int = 0, *, step_bytes: int = DEFAULT_STEP_BYTES
    ) -> list[StreamExtent]:
        """How the bytes of the stream lie over its offsets, from the segment of offset `start` to
        the high watermark: pieces of about `step_bytes`, larger ones where there would be more than
        4096. For readers that share a stream out by size. Sizes are as stored: compressed ones.

        Raises UnknownRequest from an older daemon.
        """
        request = ListExtents(stream, start, step_bytes)
        return (await self._call(request, ExtentsAnswer)).extents

    async def streams_for(self, subject: str) -> list[StreamInfo]:
        """The streams that record `subject`; for a pattern, those that record any part of it."""
        return (await self._call(StreamsFor(subject), StreamsAnswer)).infos

    async def metadata(self) -> DaemonInfo:
        """What the daemon says of itself."""
        return (await self._call(Metadata(), DaemonAnswer)).info


class SyncAdministration:
    """The blocking client's methods."""

    def _call(self, message: Message, expected: type[Answer]) -> Answer:
        raise NotImplementedError

    def update_stream(
        self,
        name: str,
        settings: Mapping[str, Any] | None = None,
        *,
        dry_run: bool = False,
        allow_deletion: bool = False,
        **more: Any,
    ) -> StreamUpdate:
        """As `Client.update_stream`."""
        request = _update_request(
            name, settings, more, dry_run=dry_run, allow_deletion=allow_deletion
        )
        return StreamUpdate.from_answer(self._call(request, Updated))

    def pause_stream(self, name: str) -> StreamInfo:
        """As `Client.pause_stream`."""
        return self._call(PauseStream(name), StreamAnswer).info

    def resume_stream(self, name: str) -> StreamInfo:
        """As `Client.resume_stream`."""
        return self._call(ResumeStream(name), StreamAnswer).info

    def set_read_only(self, name: str, read_only: bool = True) -> StreamInfo:
        """As `Client.set_read_only`."""
        return self._call(SetReadOnly(name, read_only), StreamAnswer).info

    def truncate_prefix(
        self, name: str, offset: int, *, incarnation: str | None = None
    ) -> StreamInfo:
        """As `Client.truncate_prefix`."""
        request = _truncate_request(name, offset, incarnation)
        return self._call(request, StreamAnswer).info

    def acquire_lease(
        self,
        stream: str,
        start: int | str = EARLIEST,
        *,
        ttl: float = DEFAULT_TTL_SECONDS,
        holder: str = "",
        incarnation: str | None = None,
    ) -> LeaseInfo:
        """As `Client.acquire_lease`."""
        request = AcquireLease(stream, start, _milliseconds(ttl), holder, incarnation)
        return self._call(request, LeaseAnswer).info

    def renew_lease(
        self,
        stream: str,
        lease_id: str,
        *,
        ttl: float = DEFAULT_TTL_SECONDS,
        low: int | None = None,
        finished: tuple[int, int] | None = None,
    ) -> LeaseInfo:
        """As `Client.renew_lease`."""
        request = _renewal(stream, lease_id, ttl, low, finished)
        return self._call(request, LeaseAnswer).info

    def release_lease(self, stream: str, lease_id: str) -> None:
        """As `Client.release_lease`."""
        self._call(ReleaseLease(stream, lease_id), Done)

    def list_leases(self, stream: str) -> list[LeaseInfo]:
        """As `Client.list_leases`."""
        return self._call(ListLeases(stream), LeasesAnswer).infos

    def stream_extents(
        self, stream: str, start: int = 0, *, step_bytes: int = DEFAULT_STEP_BYTES
    ) -> list[StreamExtent]:
        """As `Client.stream_extents`."""
        return self._call(ListExtents(stream, start, step_bytes), ExtentsAnswer).extents

    def streams_for(self, subject: str) -> list[StreamInfo]:
        """As `Client.streams_for`."""
        return self._call(StreamsFor(subject), StreamsAnswer).infos

    def metadata(self) -> DaemonInfo:
        """As `Client.metadata`."""
        return self._call(Metadata(), DaemonAnswer).info
