"""Leases: who holds which part of a stream, and for how long.

They are granted and renewed in a writer thread while no commit of the stream is in flight, so no
retention comes between the look and the promise.
"""

from __future__ import annotations

from collections.abc import Callable

from liftlog.errors import InvalidArgument
from liftlog.log.leases import MAX_HOLDER_CHARACTERS, Lease
from liftlog.protocol.described import LeaseInfo
from liftlog.protocol.messages import EARLIEST
from liftlog.server.disk_reserve import DiskReserve
from liftlog.server.exclusive import exclusively
from liftlog.server.stream_host import StreamHost
from liftlog.server.stream_retention import grant_lease
from liftlog.server.stream_settings import check_incarnation

_MS_NS = 1_000_000


class LeaseKeeping:
    """Belongs to the event loop. `stream` finds a running stream or raises, `now_ns` is for judging
    ages. A full disk refuses leases, but not that they are given back."""

    def __init__(
        self,
        stream: Callable[[str], StreamHost],
        now_ns: Callable[[], int],
        reserve: DiskReserve,
    ) -> None:
        self._stream = stream
        self._now_ns = now_ns
        self._reserve = reserve

    async def acquire(
        self,
        name: str,
        start: int | str,
        *,
        ttl_ms: int,
        holder: str = "",
        incarnation: str | None = None,
    ) -> LeaseInfo:
        """A lease from `start` ("earliest": the log start) to the high watermark; durable on
        return. Raises OffsetOutOfRange, InvalidArgument, LimitExceeded, StaleIncarnation."""
        host = self._stream(name)
        check_incarnation(name, host.log.incarnation, incarnation)
        if isinstance(start, str) and start != EARLIEST:
            raise InvalidArgument(f"a lease begins at an offset or {EARLIEST!r}, not at {start!r}")

        def grant() -> Lease:
            low = host.log.log_start_offset if isinstance(start, str) else start
            return grant_lease(
                host.log,
                low,
                duration_ns=ttl_ms * _MS_NS,
                now_ns=self._now_ns(),
                holder=holder[:MAX_HOLDER_CHARACTERS],
            )

        return self._info(host, await exclusively(host, grant))

    async def renew(
        self, name: str, lease_id: str, *, ttl_ms: int, low: int | None = None
    ) -> LeaseInfo:
        """Raises LeaseGone, InvalidArgument."""
        host = self._stream(name)
        # As the writer of the moment: between the look whether it lives and its renewal nothing of
        # what it holds may go.
        renewed = await exclusively(
            host,
            lambda: host.log.leases.renew(
                lease_id, duration_ns=ttl_ms * _MS_NS, now_ns=self._now_ns(), low=low
            ),
        )
        return self._info(host, renewed)

    async def release(self, name: str, lease_id: str) -> None:
        """One that is gone is no error."""
        host = self._stream(name)
        await exclusively(
            host,
            lambda: host.log.leases.release(lease_id, now_ns=self._now_ns()),
            reserve=self._reserve,
        )

    def live(self, name: str) -> list[LeaseInfo]:
        """The oldest first."""
        host = self._stream(name)
        return [self._info(host, lease) for lease in host.log.leases.live(self._now_ns())]

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
