"""The catalog of a daemon without a cluster: it leads every stream that it has.

The directories and manifests are authoritative; the metadata records are derived from them (ADR
39).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar

from liftlog.errors import (
    Conflict,
    LiftlogError,
    NatsRefused,
    ShuttingDown,
    StreamNotFound,
    StreamUnavailable,
)
from liftlog.protocol.described import StreamInfo
from liftlog.protocol.replication import ClusterInfo
from liftlog.server.commits.host import SYSTEM, StreamHost
from liftlog.server.metadata.records import StreamRecords
from liftlog.server.streams.hosted import HostedStreams
from liftlog.server.streams.making import CREATED_AT_ONCE, StreamMaker
from liftlog.server.streams.settings import check_same, save_metadata
from liftlog.settings import Settings, StreamSettings

logger = logging.getLogger("liftlog.server")

_T = TypeVar("_T")


class OwnCatalog:
    """A `Catalog` of the streams of this daemon alone. Belongs to the event loop."""

    in_cluster = False
    recorded: Mapping[str, StreamSettings] = {}

    newer: Mapping[str, str] = {}

    def __init__(
        self,
        hosted: HostedStreams,
        maker: StreamMaker,
        records: StreamRecords,
        settings: Settings,
    ) -> None:
        self.hosted = hosted
        self._maker = maker
        self._records = records
        self._settings = settings
        self._changes: set[asyncio.Task[Any]] = set()
        self._turns = asyncio.Semaphore(CREATED_AT_ONCE)

    # --- from the start to the end ---

    async def open(self, *, assume_yes: bool, is_stopping: Callable[[], bool]) -> None:
        await self._maker.open_all(assume_yes=assume_yes, is_stopping=is_stopping)

    async def stop(self, hurry: asyncio.Event, seconds: float) -> None:
        """Wait for the creations and deletions that have begun. No other node could lead the
        streams."""
        if not self._changes:
            return
        changed = asyncio.ensure_future(asyncio.wait(self._changes))
        hurrying = asyncio.ensure_future(hurry.wait())
        try:
            first = asyncio.FIRST_COMPLETED
            await asyncio.wait((changed, hurrying), timeout=seconds, return_when=first)
        finally:  # when the wait is cancelled, the creations and deletions continue
            changed.cancel()
            hurrying.cancel()

    async def leave(self) -> None:
        """Do nothing, because no other node waits for this daemon."""

    # --- the streams ---

    def names(self) -> Iterable[str]:
        return ()

    def knows(self, name: str) -> bool:
        return name in self.hosted.hosts

    def describe_elsewhere(self, name: str) -> StreamInfo | None:
        return None

    async def look_for(self, name: str) -> None:
        """Do nothing, because a daemon without a cluster has all existing streams."""

    async def look_again(self, name: str) -> None:
        """Do nothing, because only this daemon deletes its streams."""

    def was_deleted(self, name: str) -> bool:
        return False

    def reaches(self, node: str) -> bool:
        return False

    def addresses(self) -> list[str]:
        return []

    def describe_cluster(self, may_read: Callable[[str], bool]) -> ClusterInfo:
        return ClusterInfo()

    # --- the nodes that answer ---

    def leads(self, name: str) -> bool:
        return True

    def leads_elsewhere(self, name: str) -> bool:
        return False

    def may_answer(self, name: str) -> bool:
        return True

    def answerer(self, name: str) -> str | None:
        return None

    def other_leaders(self) -> Mapping[str, str]:
        return {}

    def not_leader(self, name: str) -> LiftlogError:
        return StreamNotFound(f"there is no stream {name!r}")

    def no_checkpoints(self) -> LiftlogError:
        return StreamUnavailable(
            "there are no checkpoints: the stream _offsets could not be opened",
            hint="the daemon's log has the cause",
        )

    def check_leads(self, name: str) -> None:
        """Do nothing, because this daemon leads all streams."""

    def begins_to_lead(self, name: str) -> bool:
        return False

    def check_end_is_known(self, name: str) -> None:
        """Do nothing, because no other leader exists from which clients could have read more."""

    def may_read_copy(self, name: str, replica: str) -> bool:
        return False

    def check_incarnation(self, name: str, present: str, wanted: str) -> None:
        """Do nothing, because there is no other incarnation."""

    def check_epoch(self, name: str, epoch: int) -> None:
        """Do nothing, because there is no other epoch."""

    # --- ages ---

    def may_judge_ages(self) -> bool:
        return True

    async def first_since(self, name: str, time_ns: int) -> tuple[str, int] | None:
        return None

    # --- changes ---

    async def open_system(self, name: str, settings: StreamSettings) -> StreamHost:
        """Open a stream that the daemon writes itself; see `Broker.open_system_stream`."""
        hosted = self.hosted
        if name in hosted.broken:
            raise StreamUnavailable(f"stream {name} could not be opened: {hosted.broken[name]}")
        host = hosted.hosts.get(name)
        if host is None:
            host = await self._maker.create(name, settings, origin=SYSTEM)
            # There are few such streams, and consumers must not lose their positions unnoticed.
            await self._records.flush()
        elif host.settings != settings:
            await host.run_exclusive(lambda: None, then=partial(host.adopt, settings))
            await save_metadata(host)
            await self._records.changed(host.log)
        hosted.streams_changed()
        return host

    async def create(self, name: str, settings: StreamSettings) -> StreamHost:
        return await self._complete(self._create(name, settings), f"create-{name}")

    async def _complete(self, change: Coroutine[Any, Any, _T], name: str) -> _T:
        """Complete a change even if the caller is cancelled, because the change's thread also
        continues."""
        task = asyncio.create_task(change, name=name)
        self._changes.add(task)
        task.add_done_callback(self._completed)
        return await asyncio.shield(task)

    def _completed(self, task: asyncio.Task[Any]) -> None:
        self._changes.discard(task)
        if not task.cancelled():
            # The caller may have been cancelled, so that nobody reads the exception.
            task.exception()

    async def _create(self, name: str, settings: StreamSettings) -> StreamHost:
        hosted = self.hosted
        async with hosted.names.held(name), self._turns:
            # Checked only now, because a stop does not wait for creations that have not begun.
            hosted.check_creatable(name)
            host = hosted.hosts.get(name)
            is_new = host is None
            if host is not None:
                check_same(name, host.origin, host.settings, settings)
            else:
                host = await self._maker.create(name, settings, origin="api")
                hosted.stream_added(host)
                hosted.attachments.want(host)
        try:
            await hosted.attachments.attach(host)
        except NatsRefused:
            if is_new:
                await self._undo_creation(host)
            raise
        return host

    async def _undo_creation(self, host: StreamHost) -> None:
        """Remove a stream for which NATS refuses the subscription. The creator of the stream gets
        this refusal as its error. Without the removal, the daemon would repeat the subscription
        forever."""
        hosted = self.hosted
        async with hosted.changes, hosted.names.held(host.name):
            if hosted.hosts.get(host.name) is not host or hosted.closing:
                return
            await hosted.attachments.detach(host)
            if host.sequencer.next_offset > host.settings.initial_offset:
                # NATS allows some of the stream's subjects, and messages on these may already have
                # been acked.
                hosted.attachments.want(host)
                logger.warning("stream-kept stream=%s cause=nats-refused-a-part", host.name)
                return
            await hosted.remove(host.name, host)
            logger.info("stream-not-created stream=%s cause=nats-refused", host.name)

    async def update(
        self, host: StreamHost, settings: StreamSettings, apply: Callable[[], Awaitable[object]]
    ) -> None:
        await apply()
        await self._records.changed(host.log)

    async def truncate(
        self, host: StreamHost, offset: int, apply: Callable[[], Awaitable[int]]
    ) -> int:
        before = host.log.log_start_offset
        freed = await apply()
        if host.log.log_start_offset > before:
            await self._records.truncated(host.log, offset)
        return freed

    async def side_confirmed(self, name: str) -> None:
        """Return at once, because the leases are already stored here."""

    async def delete(self, name: str) -> None:
        """End the stream first, then remove its metadata record and its files.

        The call also deletes a stream that could not be opened. If its files cannot be removed, the
        stream is shown as failed and can be deleted again.
        """
        await self._complete(self._delete(name), f"delete-{name}")

    async def _delete(self, name: str) -> None:
        async with self.hosted.changes, self.hosted.names.held(name):
            if self.hosted.closing:
                raise ShuttingDown("the daemon is stopping")
            host = None if name in self.hosted.broken else self.hosted.find(name)
            self.check_deletable(name)
            await self.hosted.remove(name, host)
            if host is not None:
                self.hosted.consumers_deleted(host)
        logger.info("stream-deleted stream=%s", name)

    def check_deletable(self, name: str) -> None:
        """Raise Conflict for a stream that the next start would create again."""
        if name in self._settings.streams and name not in self._maker.lost:
            raise Conflict(
                f"stream {name} comes from the configuration file",
                hint="remove it there and restart the daemon, then delete it",
            )
