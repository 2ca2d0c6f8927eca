"""Objects that all connections of one pull server share.

The server creates them and passes them to each connection. The services depend neither on the
server nor on a connection.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from acl.policy import Policy
from liftlog.errors import LiftlogError
from liftlog.protocol.messages import FetchHeader
from liftlog.server.access.audit import Audit
from liftlog.server.access.authentication import Authenticator
from liftlog.server.access.gate import Gate
from liftlog.server.commits.host import StreamHost
from liftlog.server.pull.limits import PullLimits
from liftlog.server.pull.send_queue import UnsentMemory
from liftlog.server.reading.fairness import FairInput, FairLock, FairThreads
from liftlog.server.reading.pieces import SharedPieces
from liftlog.server.reading.read_share import ReadShare, ThreadUsage
from liftlog.server.reading.selecting import MatchFinder
from liftlog.server.reading.tailing import TailGroup
from liftlog.server.reading.turns import Turns
from liftlog.server.streams.broker import Broker
from liftlog.server.streams.intake import Ingested

_COLD_READERS = 4
_CHECKERS = 2  # threads that check tokens
_SCANNERS = 1  # more threads would compete with each other and with the loop


@dataclass(slots=True)
class PullCounters:
    """Counters of the pull server for the metrics page."""

    connections_total: int = 0
    connections_refused_total: int = 0
    fetches_total: int = 0
    records_total: int = 0
    """Upper bound of the number of records sent. It is only a bound, because batches are not
    decoded to count their records."""
    body_bytes_total: int = 0
    refusals_total: Counter[str] = field(default_factory=Counter)
    """Number of refused requests, by the name of the error."""

    def fetch(self, header: FetchHeader) -> None:
        self.fetches_total += 1
        self.records_total += header.record_count
        self.body_bytes_total += header.body_length

    def refusal(self, error: LiftlogError) -> None:
        self.refusals_total[error.name] += 1


class PullServices:
    """The shared objects. Belongs to one event loop. If `policy` is None, no ACL is configured.
    `ingested` returns the amount of data that has arrived from NATS so far."""

    def __init__(
        self,
        broker: Broker,
        limits: PullLimits,
        policy: Policy | None,
        ingested: Callable[[], Ingested],
    ) -> None:
        self.broker = broker
        self.limits = limits
        self.counters = PullCounters()
        self.audit = Audit()
        self.gate = Gate(policy, self.audit)
        self.checkers = FairThreads(_CHECKERS, "liftlog-auth")
        self.authenticator = Authenticator(
            self.audit, self.checkers.of, max_pending=limits.max_pending_auths
        )
        self.memory = UnsentMemory()
        self._usage = ThreadUsage()
        self.read_share = ReadShare(self._usage, ingested)
        self.fair_input = FairInput()
        self.cold_readers = ThreadPoolExecutor(_COLD_READERS, "liftlog-cold-read")
        self.scanners = FairThreads(_SCANNERS, "liftlog-scan")
        broker.finder = MatchFinder(self.scanners)
        self.shared_pieces = SharedPieces()
        self.turns = Turns(scan_runs=lambda: self.scanners.is_busy)
        self.measuring = FairLock()
        """A lock that is held while a request for `extents` is answered, so that only one such
        request runs at a time."""
        self.jobs: set[asyncio.Task[None]] = set()
        self._tails: WeakKeyDictionary[StreamHost, TailGroup] = WeakKeyDictionary()
        self._live: WeakKeyDictionary[StreamHost, TailGroup] = WeakKeyDictionary()

    def tail_group(self, stream: StreamHost) -> TailGroup:
        """Return the group of consumers that wait at the end of this stream."""
        return self._group(self._tails, stream, self.limits.linger_seconds)

    def live_group(self, stream: StreamHost) -> TailGroup:
        """Return the group of waiting consumers that every commit wakes."""
        return self._group(self._live, stream, 0.0)

    def _group(
        self, groups: WeakKeyDictionary[StreamHost, TailGroup], stream: StreamHost, linger: float
    ) -> TailGroup:
        group = groups.get(stream)
        if group is None:
            group = TailGroup(asyncio.get_running_loop(), linger, self.read_share)
            groups[stream] = group
        return group

    def spawn(self, job: Coroutine[Any, Any, None]) -> None:
        """Run `job` as a task. `close` cancels it if it has not ended by then."""
        task = asyncio.get_running_loop().create_task(job)
        self.jobs.add(task)
        task.add_done_callback(self.jobs.discard)

    async def cancel_jobs(self) -> None:
        for job in list(self.jobs):
            job.cancel()
        await asyncio.gather(*self.jobs, return_exceptions=True)

    async def close(self) -> None:
        """Stop the threads. Called when no connection uses them any more."""
        for pool in (self.cold_readers, self.scanners, self.checkers):
            await asyncio.to_thread(pool.shutdown, cancel_futures=True)
        self._usage.close()
