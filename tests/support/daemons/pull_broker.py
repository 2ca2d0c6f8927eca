"""Real logs behind the pull server, without NATS, for tests of the server and the clients."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

from support.daemons.catalogs import lone_catalog

from acl.policy import Policy
from liftlog.errors import Conflict, StreamNotFound
from liftlog.log import (
    EncodedBatch,
    Log,
    LogConfig,
    LogEnvironment,
    LogSlice,
    OsFileSystem,
    SystemClock,
)
from liftlog.protocol.described import DaemonInfo, StreamInfo
from liftlog.records.encode import encode_batch
from liftlog.records.header import parse_header
from liftlog.server.commits.observations import StreamObservations
from liftlog.server.pull import PullLimits, PullServer
from liftlog.server.streams.leases import LeaseKeeping
from liftlog.server.vitals.conditions import Conditions
from liftlog.server.vitals.disk import DiskReserve
from liftlog.settings import StreamSettings

Result = TypeVar("Result")


class CountingLog:
    """A real log that counts its slices that are not released."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.unreleased: set[CountedSlice] = set()
        self.reads = 0
        self.promise_extra_bytes = 0

    def read(
        self, offset: int, max_bytes: int, max_records: int | None = None, *, masked: bool = False
    ) -> LogSlice | None:
        self.reads += 1
        piece = self._log.read(offset, max_bytes, max_records, masked=masked)
        if piece is None:
            return None
        return CountedSlice(self, piece, piece.length + self.promise_extra_bytes)

    def __getattr__(self, name: str) -> object:
        return getattr(self._log, name)


class CountedSlice:
    def __init__(self, owner: CountingLog, piece: LogSlice, length: int) -> None:
        self._owner = owner
        self._piece = piece
        self.length = length
        self.position = piece.position
        self.first_offset = piece.first_offset
        self.next_offset = piece.next_offset
        self.record_count = piece.record_count
        self.erased = piece.erased
        owner.unreleased.add(self)

    @property
    def fd(self) -> int:
        return self._piece.fd

    @property
    def body(self) -> bytes | None:
        return self._piece.body

    @property
    def bodies(self) -> tuple[bytes | bytearray, ...]:
        return self._piece.bodies

    def pread(self) -> bytes:
        return self._piece.pread()

    @property
    def path(self) -> Path:
        return self._piece.path

    def read_some(self, position: int, length: int) -> bytes:
        return self._piece.read_some(position, length)

    def read_many(self, places: Iterable[tuple[int, int]]) -> list[bytes]:
        return self._piece.read_many(places)

    def quarantine(self) -> None:
        self._piece.quarantine()

    def release(self) -> None:
        if self not in self._owner.unreleased:
            raise AssertionError("a slice was released twice")
        self._owner.unreleased.remove(self)
        self._piece.release()


class LoggedStream:
    """A stream of the test broker. `append` wakes the waiting readers."""

    def __init__(self, name: str, log: Log) -> None:
        self.name = name
        self.real_log = log
        self.observed = StreamObservations()
        self.log = CountingLog(log)
        self.waiters: list[tuple[int, asyncio.Future[None]]] = []
        self.settings = StreamSettings(subject=f"{name}.>")
        self.is_leading = True

    async def exclusively(
        self, call: Callable[[], Result], *, reserve: DiskReserve | None = None
    ) -> Result:
        """Make a call while nothing else writes this log."""
        return call()

    def append(
        self,
        values: Iterable[bytes | None],
        *,
        timestamp_ns: int | None = None,
        subject: bytes = b"orders.new",
        keys: list[bytes | None] | None = None,
        headers: list[bytes] | None = None,
    ) -> None:
        """Append one batch, durable and committed."""
        items = list(values)
        log = self.real_log
        timestamp_ns = timestamp_ns or time.time_ns()
        data = encode_batch(
            base_offset=log.log_end_offset,
            leader_epoch=log.leader_epoch,
            commit_group=log.writer.commit_group,
            stamps=[(timestamp_ns, len(items))],
            subjects=[subject] * len(items),
            values=items,
            keys=keys,
            headers=headers,
            has_tombstones=None in items,
        )
        header = parse_header(data)
        log.append(
            [
                EncodedBatch(
                    data,
                    header.base_offset,
                    header.next_offset,
                    header.record_count,
                    header.base_timestamp_ns,
                    header.max_timestamp_ns,
                )
            ]
        )
        log.sync()
        self.commit()

    def commit(self) -> None:
        self.real_log.commit_up_to(self.real_log.log_end_offset)
        self.wake()

    def wake(self, *, everyone: bool = False) -> None:
        mark = self.real_log.high_watermark
        for offset, future in list(self.waiters):
            if (everyone or mark > offset) and not future.done():
                future.set_result(None)
        self.waiters = [waiter for waiter in self.waiters if not waiter[1].done()]

    def wait_high_watermark(self, offset: int) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.real_log.high_watermark > offset:
            future.set_result(None)
        else:
            self.waiters.append((offset, future))
        return future


class LogBroker:
    """Replaces `liftlog.server.streams.broker.Broker`."""

    server_id = "0123456789abcdef"
    consumers: Any = None

    def __init__(self, directory: Path, *, segment_max_bytes: int = 256 * 1024 * 1024) -> None:
        self.directory = directory
        self.environment = LogEnvironment.create(OsFileSystem(), SystemClock())
        self.config = LogConfig(segment_max_bytes=segment_max_bytes)
        self.streams: dict[str, LoggedStream] = {}
        self.settings: dict[str, dict[str, object]] = {}
        self.compaction: dict[str, object] = {}
        self.conditions = Conditions()
        self.gate: asyncio.Event | None = None  # if it exists, create waits for it
        stream: Any = self.stream

        async def copied(name: str) -> None:
            """Do nothing, because there are no replicas."""

        self._leases = LeaseKeeping(stream, time.time_ns, DiskReserve(directory), copied=copied)

    hosted = SimpleNamespace(mender=None)

    @property
    def catalog(self) -> Any:
        """The catalog. This broker belongs to no cluster."""
        return lone_catalog(self.streams)

    def led_stream(self, name: str) -> LoggedStream:
        return self.stream(name)

    def readable_stream(self, name: str) -> LoggedStream:
        return self.stream(name)

    def add(self, name: str, **settings: object) -> LoggedStream:
        log = Log.create(self.directory / name, self.environment, self.config)
        self.streams[name] = LoggedStream(name, log)
        self.settings[name] = settings
        return self.streams[name]

    async def create_stream(self, name: str, settings: Mapping[str, object]) -> StreamInfo:
        if self.gate is not None:
            await self.gate.wait()
        if name not in self.streams:
            self.add(name, **settings)
        elif self.settings[name] != dict(settings):
            raise Conflict(f"stream {name!r} exists", differences=["subject"])
        return await self.describe_stream(name)

    async def describe_stream(self, name: str) -> StreamInfo:
        log = self.stream(name).real_log
        return StreamInfo(
            name=name,
            subject=str(self.settings[name].get("subject", f"{name}.>")),
            state="attached",
            incarnation=log.incarnation,
            log_start_offset=log.log_start_offset,
            high_watermark=log.high_watermark,
            log_end_offset=log.log_end_offset,
            size_bytes=log.view.size_bytes,
            segment_count=log.segment_count,
            leader_epoch=log.leader_epoch,
            settings=self.settings[name],
            compaction=dict(self.compaction),
        )

    async def list_streams(self) -> list[StreamInfo]:
        return [await self.describe_stream(name) for name in sorted(self.streams)]

    def stream_names(self) -> list[str]:
        return sorted(self.streams)

    @property
    def administration(self) -> Any:
        """The administration. Its leases are those of the daemon."""
        return SimpleNamespace(leases=self._leases)

    def daemon_info(self, may_read: Any, conditions: Any = ()) -> DaemonInfo:
        return DaemonInfo()

    def compaction_history(self, name: str) -> list[dict[str, object]]:
        return []

    async def delete_stream(self, name: str) -> None:
        stream = self.stream(name)
        del self.streams[name]
        stream.wake(everyone=True)
        stream.real_log.close()

    async def compact_stream(self, name: str) -> StreamInfo:
        """Return the stream's description without a compaction. The test sets `compaction`."""
        self.compaction["requested"] = self.compaction.get("requested", 0) + 1
        return await self.describe_stream(name)

    def stream(self, name: str) -> LoggedStream:
        try:
            return self.streams[name]
        except KeyError:
            raise StreamNotFound(f"there is no stream {name!r}") from None

    def close(self) -> None:
        for stream in self.streams.values():
            stream.real_log.close()
        self.environment.pool.close()

    @property
    def unreleased(self) -> int:
        return sum(len(stream.log.unreleased) for stream in self.streams.values())


@contextmanager
def orders_broker(directory: Path) -> Iterator[LogBroker]:
    """Yield a broker with one stream `orders`, which has ten batches of ten records, offsets 1 to
    100."""
    broker = LogBroker(directory)
    stream = broker.add("orders", subject="orders.>")
    for first in range(1, 101, 10):
        stream.append([b"value %d" % offset for offset in range(first, first + 10)])
    yield broker
    assert broker.unreleased == 0, "slices of the log were not released"
    broker.close()


@asynccontextmanager
async def pull_server(
    broker: LogBroker,
    *,
    listen: str = "tcp://127.0.0.1:0",
    limits: PullLimits | None = None,
    policy: Policy | None = None,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[tuple[PullServer, str]]:
    """Yield a server on a free port and its address. The server is closed at the end."""
    server = PullServer(broker, limits, policy, tls)
    (address,) = await server.start([listen])
    try:
        yield server, address
    finally:
        await server.close(grace=0.5)
