"""Leases: ranges of a stream that retention keeps for a reader, for a limited time.

Leases are granted and renewed in exclusive calls, and retention also runs in exclusive calls. So
the records of a lease still exist when it is granted. In a replicated stream, a change of leases is
answered when the in-sync replicas have it, so a lease survives the loss of the leader.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from liftlog.errors import InvalidArgument, LimitExceeded
from liftlog.log.files.leases import Lease
from liftlog.protocol.described import LeaseInfo
from liftlog.protocol.messages import EARLIEST
from liftlog.server.commits.host import StreamHost
from liftlog.server.streams.retention import decide_retention, grant_lease
from liftlog.server.streams.settings import check_incarnation
from liftlog.server.vitals.disk import DiskReserve

_MS_NS = 1_000_000
_MAX_PARTS = 1_000_000
_SILENT_SECONDS = 15.0
"""A reader that reports nothing for this time (in seconds) may have ended. Spark's readers report
every 5 seconds."""
_STOPPED_SECONDS = 5.0
"""If all readers under a lease have stopped early, further readers begin within this time (in
seconds) or never. The reason is that Spark's `limit` and `show` read further parts only if they
need more records."""


@dataclass(slots=True)
class _Parts:
    """The reports of the readers that share a lease, by the number of their part of the read."""

    running: set[int] = field(default_factory=set)
    finished: set[int] = field(default_factory=set)
    has_stopped: bool = False
    """True if a reader stopped before the end of its part. Other parts may then never begin."""
    reported_at: float = 0.0

    def seems_left(self, now: float) -> bool:
        """Return True if no reader seems to use the lease any more."""
        silent = now - self.reported_at
        if self.running:
            return silent > _SILENT_SECONDS
        return self.has_stopped and silent > _STOPPED_SECONDS


class LeaseKeeping:
    """Grants, renews and ends leases. Belongs to the event loop.

    `stream` returns a running stream or raises an error. `now_ns` returns the time that ages are
    measured with, and `clock_is_trusted` returns True if retention by time is applied. `copied`
    waits until the in-sync replicas have the current leases of a stream. If the disk is full, new
    leases are refused, but existing leases can be released.
    """

    def __init__(
        self,
        stream: Callable[[str], StreamHost],
        now_ns: Callable[[], int],
        reserve: DiskReserve,
        *,
        copied: Callable[[str], Awaitable[None]],
        clock_is_trusted: Callable[[], bool] = lambda: True,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = stream
        self._now_ns = now_ns
        self._reserve = reserve
        self._copied = copied
        self._clock_is_trusted = clock_is_trusted
        self._monotonic = monotonic
        # The reports for each live lease that several readers share. They are not stored. So after
        # a restart of the daemon, such a lease ends only when it expires.
        self._parts: WeakKeyDictionary[StreamHost, dict[str, _Parts]] = WeakKeyDictionary()

    async def acquire(
        self,
        name: str,
        start: int | str,
        *,
        ttl_ms: int,
        holder: str = "",
        principal: str = "",
        incarnation: str | None = None,
        for_export: bool = False,
    ) -> LeaseInfo:
        """Grant a lease from `start` to the high watermark; durable on return.

        "earliest" is the offset at which the log would start without leases. Other leases may keep
        the log start below this offset. If each new lease began at the log start, a series of
        readers would keep the log start there forever.

        Raises OffsetOutOfRange, InvalidArgument, LimitExceeded, StaleIncarnation. Also raises
        NotLeader or NotEnoughReplicas: the lease may then exist until it expires, but no client has
        received it.
        """
        host = self._stream(name)
        check_incarnation(name, host.log.incarnation, incarnation)
        if isinstance(start, str) and start != EARLIEST:
            raise InvalidArgument(f"a lease begins at an offset or {EARLIEST!r}, not at {start!r}")
        wanted = await self._wanted_start(host) if isinstance(start, str) else start

        def grant() -> Lease:
            low = max(wanted, host.log.log_start_offset) if isinstance(start, str) else wanted
            return grant_lease(
                host.log,
                low,
                duration_ns=ttl_ms * _MS_NS,
                now_ns=self._now_ns(),
                holder=holder,
                principal=principal,
                for_export=for_export,
            )

        try:
            granted = await host.exclusively(grant)
        except LimitExceeded:
            if not await self._end_those_left(host):
                raise
            granted = await host.exclusively(grant)
        await self._copied(name)
        return self._info(host, granted)

    async def _end_those_left(self, host: StreamHost) -> bool:
        """Release the leases whose readers seem to have ended. Returns True if there were such
        leases. Called only if no further lease can be granted, because a reader that was only slow
        then gets LeaseGone."""
        now = self._monotonic()
        left = [name for name, parts in self._parts.get(host, {}).items() if parts.seems_left(now)]
        for lease_id in left:
            await self.release(host.name, lease_id)
            self._parts[host].pop(lease_id, None)
        return bool(left)

    async def renew(
        self,
        name: str,
        lease_id: str,
        *,
        ttl_ms: int,
        low: int | None = None,
        finished: tuple[int, int] | None = None,
        begun: int | None = None,
        stopped: bool = False,
    ) -> LeaseInfo:
        """Renew a lease, and note the reader's report.

        `finished` is the pair (part, number of parts) of a read that several readers share. When
        every part is finished, the lease is released. `begun` is a part whose reader begins.
        `stopped` means that the reader of the finished part needed no more records, so other parts
        may never begin. Raises LeaseGone, InvalidArgument, NotLeader, NotEnoughReplicas.
        """
        if finished is not None and not 0 <= finished[0] < finished[1] <= _MAX_PARTS:
            raise InvalidArgument(
                f"there is no part {finished[0]} of {finished[1]}: parts count from 0, and a read "
                f"has at most {_MAX_PARTS}"
            )
        if begun is not None and begun >= _MAX_PARTS:
            raise InvalidArgument(f"a read has at most {_MAX_PARTS} parts, from 0; this is {begun}")
        host = self._stream(name)
        parts = None
        if finished is not None or begun is not None:
            parts = self._reported(host, lease_id, finished, begun, stopped=stopped)
        elif (known := self._parts.get(host, {}).get(lease_id)) is not None:
            known.reported_at = self._monotonic()
        # An exclusive call, because retention must not delete the records of the lease between the
        # check that it is live and its renewal.
        renewed = await host.exclusively(
            lambda: host.log.leases.renew(
                lease_id, duration_ns=ttl_ms * _MS_NS, now_ns=self._now_ns(), low=low
            ),
        )
        await self._copied(name)
        if finished is not None and parts is not None and len(parts.finished) >= finished[1]:
            await self.release(name, lease_id)
        return self._info(host, renewed)

    def _reported(
        self,
        host: StreamHost,
        lease_id: str,
        finished: tuple[int, int] | None,
        begun: int | None,
        *,
        stopped: bool,
    ) -> _Parts:
        """Note the report of a reader, and drop the reports for leases that have ended."""
        live = {lease.lease_id for lease in host.log.leases.live(self._now_ns())}
        known = self._parts.get(host, {})
        known = {name: found for name, found in known.items() if name in live}
        found = known.setdefault(lease_id, _Parts())
        if begun is not None:
            found.running.add(begun)
        if finished is not None:
            found.running.discard(finished[0])
            found.finished.add(finished[0])
            found.has_stopped |= stopped
        found.reported_at = self._monotonic()
        self._parts[host] = known
        return found

    async def release(self, name: str, lease_id: str) -> None:
        """Release a lease. Does nothing if the lease has ended."""
        host = self._stream(name)
        await host.exclusively(
            lambda: host.log.leases.release(lease_id, now_ns=self._now_ns()),
            reserve=self._reserve,
        )
        await self._copied(name)

    def live(self, name: str) -> list[LeaseInfo]:
        """Return the live leases, oldest first."""
        host = self._stream(name)
        return [self._info(host, lease) for lease in host.log.leases.live(self._now_ns())]

    async def _wanted_start(self, host: StreamHost) -> int:
        """Return the offset at which the log would start without leases. Raises StorageError."""
        settings, by_time = host.settings, self._clock_is_trusted()
        decision = await asyncio.to_thread(
            decide_retention,
            host.log,
            settings,
            self._now_ns(),
            by_time=by_time,
            after_leases=True,
        )
        return host.log.log_start_offset if decision is None else decision.log_start_offset

    def _info(self, host: StreamHost, lease: Lease) -> LeaseInfo:
        return LeaseInfo(
            stream=host.name,
            incarnation=host.log.incarnation,
            lease_id=lease.lease_id,
            low=lease.low,
            high=lease.high,
            holder=lease.holder,
            expires_ns=lease.expires_ns,
            remaining_ms=max(0, lease.expires_ns - self._now_ns()) // _MS_NS,
        )
