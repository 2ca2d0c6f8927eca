"""Changes of streams while they run, and leases on them.

This code runs on the event loop. Its calls of the log run in a writer thread, at a time when no
commit of the stream is in flight (`StreamHost.exclusively`). A change of a stream is durable before
it takes effect.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from acl.subjects import overlap_any, why_invalid
from compaction import RetentionDecision
from liftlog.errors import (
    Conflict,
    Forbidden,
    InvalidArgument,
    NatsRefused,
    ShuttingDown,
    StreamUnavailable,
)
from liftlog.protocol.administration import StreamUpdate
from liftlog.protocol.described import Removal, StreamInfo
from liftlog.server.commits.host import StreamHost
from liftlog.server.streams.catalog import Catalog
from liftlog.server.streams.hosted import HostedStreams
from liftlog.server.streams.leases import LeaseKeeping
from liftlog.server.streams.retention import (
    decide_retention,
    is_large,
    truncate_before,
)
from liftlog.server.streams.settings import (
    Difference,
    check_changeable,
    check_incarnation,
    differences,
    is_overridable,
    merged_settings,
)
from liftlog.settings import StreamSettings

logger = logging.getLogger("liftlog.server")

_DRAIN_SECONDS = 30.0
_CLEANING = ("compaction", "rebatch", "dedupe_window", "segment")
"""Settings on which the plan of a cleaning job depends. A change of such a setting cancels the
running job."""


class Administration:
    """Changes streams. Belongs to the event loop. Its methods raise LiftlogErrors. If a call is
    cancelled, its change has either taken effect completely or not at all when the call ends,
    unless the disk stalls."""

    def __init__(
        self,
        hosted: HostedStreams,
        catalog: Callable[[], Catalog],
        now_ns: Callable[[], int],
        ages_are_judged: Callable[[], bool],
    ) -> None:
        """`now_ns` is the clock from which the ages of records are computed."""
        self._hosted = hosted
        self._catalog = catalog
        self._now_ns = now_ns
        self.leases = LeaseKeeping(
            self.running,
            now_ns,
            hosted.reserve,
            copied=self._copied,
            clock_is_trusted=ages_are_judged,
        )
        self._locks: weakref.WeakKeyDictionary[StreamHost, asyncio.Lock] = (
            weakref.WeakKeyDictionary()
        )

    async def _copied(self, name: str) -> None:
        """Wait until the other nodes also have the stream's side state."""
        await self._catalog().side_confirmed(name)

    # --- settings ---

    async def update_stream(
        self,
        name: str,
        settings: Mapping[str, Any] | Callable[[StreamSettings], Mapping[str, Any]],
        *,
        dry_run: bool = False,
        allow_deletion: bool = False,
    ) -> StreamUpdate:
        """Change the given settings; other settings do not change. The change is durable and in
        effect on return. If the change depends on the current settings, pass a function that
        computes it from them. Then no other change can occur between the read and the change.

        Errors:

        - InvalidArgument: a value is bad, or a setting cannot be changed.
        - Conflict: the stream comes from the configuration file. Without `allow_deletion`, also if
          the new limits would remove more than a tenth of the stream.
        - NatsRefused: NATS refuses the subjects. Nothing is changed.
        - NatsUnavailable: NATS does not answer. The subjects are changed, and the subscription is
          made as soon as possible.

        With `dry_run`, nothing changes, but all errors except NatsUnavailable are raised.
        """
        host = self.changeable(name)
        async with self.lock_of(host):
            changes = settings(host.settings) if callable(settings) else settings
            wanted = merged_settings(host.settings, changes)
            found = differences(host.settings, wanted)
            check_changeable(name, found)
            self._check_origin(host, found)
            decision = None
            if any(path.startswith("retention.") for path, _, _ in found):
                decision = await self._decide(host, wanted)
            if decision is not None and not (allow_deletion or dry_run):
                _refuse_large_removal(host, decision)
            if found and not dry_run:
                before = host.settings
                await self._adopt(host, wanted, found)
                if wanted.subjects != before.subjects:
                    await self._attach(host, before)
            return StreamUpdate(
                info=self._hosted.describe(host),
                differences=[
                    {"setting": path, "existing": old, "requested": new} for path, old, new in found
                ],
                removal=None if decision is None else _removal(host, decision),
                dry_run=dry_run,
            )

    async def _attach(self, host: StreamHost, before: StreamSettings) -> None:
        """Wait until NATS has confirmed the changed subjects. If NATS refuses a subject, restore
        the settings `before`. Raises NatsRefused, NatsUnavailable."""
        try:
            await self._hosted.attachments.attach(host)
        except NatsRefused:
            await self._adopt(host, before, differences(host.settings, before))
            raise

    async def pause(self, name: str) -> StreamInfo:
        """Refuse new messages until `resume`, even after a restart. When the call returns, all
        messages that were received before the pause are committed and answered."""
        return await self._switch(name, "paused", on=True)

    async def resume(self, name: str) -> StreamInfo:
        return await self._switch(name, "paused", on=False)

    async def set_read_only(self, name: str, on: bool) -> StreamInfo:
        """Make a stream read-only or writable. The effect is like `pause` and `resume`, but the
        error for publishers states that the refusal is permanent."""
        return await self._switch(name, "read_only", on=on)

    async def _switch(self, name: str, switch: str, *, on: bool) -> StreamInfo:
        host = self.changeable(name)
        async with self.lock_of(host):
            wanted = host.settings.model_copy(update={switch: on})
            found = differences(host.settings, wanted)
            if found:
                await self._adopt(host, wanted, found)
        if on:
            await self._drained(host)
        return self._hosted.describe(host)

    async def _drained(self, host: StreamHost) -> None:
        try:
            async with asyncio.timeout(_DRAIN_SECONDS):
                await host.drained()
        except TimeoutError:
            raise StreamUnavailable(
                f"stream {host.name} takes no more messages, but those that it had received are "
                "not committed yet: its disk does not answer"
            ) from None

    async def _decide(self, host: StreamHost, wanted: StreamSettings) -> RetentionDecision | None:
        """Return the decision about the records that exceed the limits. The decision includes
        records that a lease or a jump of the clock keeps for now. They are deleted later, and the
        user will not be asked again."""
        now_ns = self._now_ns()
        return await asyncio.to_thread(
            decide_retention, host.log, wanted, now_ns, after_leases=True
        )

    def _check_origin(self, host: StreamHost, found: list[Difference]) -> None:
        if host.origin == "config" and not all(is_overridable(path) for path, _, _ in found):
            raise Conflict(
                f"stream {host.name} comes from the configuration file",
                hint="change the file and restart the daemon. Over the API you can override the "
                "retention of the stream, pause the stream, and make it read-only",
            )

    async def _adopt(
        self, host: StreamHost, wanted: StreamSettings, found: list[Difference]
    ) -> None:
        """Store the settings, then put them into effect.

        `store` and `adopt` run one after the other in one exclusive call. If `store` fails, neither
        the manifest nor the settings in memory change. After a successful `store`, `adopt` runs
        even if the caller is cancelled. If the daemon is killed between the two, the next start
        uses the new settings, and no client has received an error.
        """
        hosted, log = self._hosted, host.log
        overrides = _overridden(host, found) if host.origin == "config" else host.overrides

        def store() -> None:
            if wanted.durability != host.settings.durability:
                # Makes records durable that were acked before their sync, or are not synced yet.
                log.sync()
            log.structure.set_metadata(host.metadata(wanted, overrides))

        def adopt() -> None:
            host.adopt(wanted, overrides)
            hosted.streams_changed()
            logger.info(
                "stream-updated stream=%s %s",
                host.name,
                "; ".join(f"{path}: {old} -> {new}" for path, old, new in found),
            )

        await self._catalog().update(
            host, wanted, lambda: host.exclusively(store, adopt, reserve=hosted.reserve)
        )
        if hosted.compactor is not None and any(
            path.partition(".")[0] in _CLEANING for path, _, _ in found
        ):
            await hosted.compactor.interrupt(host)

    # --- records ---

    async def truncate_prefix(
        self, name: str, offset: int, *, incarnation: str | None = None
    ) -> StreamInfo:
        """Make `offset` the log start, durable on return. Does nothing if the log start is already
        at or above `offset`. Raises OffsetOutOfRange above the high watermark, Conflict while a
        lease holds records below `offset`, StaleIncarnation."""
        host = self.changeable(name)
        check_incarnation(name, host.log.incarnation, incarnation)
        before = host.log.log_start_offset

        def truncate() -> int:
            now_ns = self._now_ns()
            # A compaction pass reads the old files. It would start again each time its files are
            # deleted.
            files = not host.rewriting
            return truncate_before(host.log, offset, host.settings, now_ns, delete_files=files)

        freed = await self._catalog().truncate(
            host, offset, lambda: host.exclusively(truncate, reserve=self._hosted.reserve)
        )
        if host.log.log_start_offset > before:
            logger.info(
                "stream-truncated stream=%s log_start=%d freed_bytes=%d",
                name,
                host.log.log_start_offset,
                freed,
            )
        return self._hosted.describe(host)

    # --- questions ---

    def streams_for(self, subject: str) -> list[StreamInfo]:
        """Return the streams that record `subject`. For a pattern, return the streams that record
        any matching subject."""
        problem = why_invalid(subject)
        if problem is not None:
            raise InvalidArgument(f"{subject[:200]!r} is not a NATS subject: {problem}")
        hosts = sorted(self._hosted.hosts.values(), key=lambda host: host.name)
        return [
            self._hosted.describe(host)
            for host in hosts
            if not host.name.startswith("_") and overlap_any(host.settings.subjects, (subject,))
        ]

    # --- parts ---

    def running(self, name: str) -> StreamHost:
        """Return a stream that this node leads. Raises ShuttingDown, NotLeader, NotReady,
        StreamNotFound, StreamUnavailable."""
        if self._hosted.closing:
            raise ShuttingDown("the daemon is stopping")
        self._catalog().check_leads(name)
        return self._hosted.stream(name)

    def changeable(self, name: str) -> StreamHost:
        """Return a stream that this node may change. Raises ShuttingDown, NotLeader, NotReady,
        StreamNotFound, StreamUnavailable, Forbidden for a stream of the daemon itself."""
        host = self.running(name)
        if name.startswith("_"):
            raise Forbidden(
                f"stream {name} belongs to the daemon", hint="system streams cannot be changed"
            )
        return host

    def lock_of(self, host: StreamHost) -> asyncio.Lock:
        """Return the lock that must be held while the settings of a stream change. Changes run one
        at a time, and each change is based on the result of the previous one."""
        return self._locks.setdefault(host, asyncio.Lock())


def _overridden(host: StreamHost, found: list[Difference]) -> dict[str, list[Any]]:
    """Return the overrides of the configuration file (see `Overrides`) after this change."""
    overrides = dict(host.overrides)
    for path, old, new in found:
        in_file = overrides.get(path, [old])[0]
        overrides[path] = [in_file, new]
    return {path: pair for path, pair in overrides.items() if pair[0] != pair[1]}


def _removal(host: StreamHost, decision: RetentionDecision) -> Removal:
    log = host.log
    gone = log.segments[: decision.delete_segments]
    return Removal(
        log_start_offset=decision.log_start_offset,
        records=max(0, decision.log_start_offset - log.log_start_offset),
        segments=len(gone),
        size_bytes=sum(segment.size_bytes for segment in gone),
        reasons=list(decision.reasons),
    )


def _refuse_large_removal(host: StreamHost, decision: RetentionDecision) -> None:
    if is_large(host.log, decision):
        removal = _removal(host, decision)
        raise Conflict(
            f"that would remove up to {removal.records:,} records of stream {host.name} at once, "
            "more than a tenth of it",
            hint="check the deletion with a dry run, then allow it",
            removal=removal.to_wire(),
        )
