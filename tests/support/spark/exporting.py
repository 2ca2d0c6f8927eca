"""A daemon's broker, cleaner and pull server in a thread, for exports that block. Without NATS."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

import pytest
from support.daemons.local_checkpoints import LocalOffsets
from support.daemons.local_cleaning import COMPACTED, Cleaning
from support.daemons.loop_thread import LoopThread
from support.disks.stored_logs import batch_positions, flip
from support.spark.local_engine import LocalEngine, rows_of

from liftlog.errors import Conflict
from liftlog.log import Log
from liftlog.sequencing import MessageRun
from liftlog.server.checkpoints.service import Checkpoints
from liftlog.server.checkpoints.table import CheckpointTable
from liftlog.server.pull import PullServer
from liftlog.spark.export import newest, paths
from liftlog.spark.export.job import ExportJob, Summary
from liftlog.spark.export.opening import open_table
from liftlog.spark.export.planning import ExportRequest
from liftlog.spark.export.snapshot import Snapshot
from liftlog.spark.export.store import join, open_store
from liftlog.spark.options import parse_options

T = TypeVar("T")

_SETTINGS = COMPACTED | {"segment": {"max_bytes": "4KiB"}}


class Put(NamedTuple):
    """A message. Without a value it is a tombstone. `lines` are further headers, each with its line
    end."""

    key: str | None
    value: bytes | None
    lines: bytes = b""


class ExportedStreams:
    """Use in `with`. `server` is the address for exports. Time only passes by `advance`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.server = ""
        self._thread = LoopThread("exported-streams", self._serving)
        self.cleaning: Cleaning

    def create(self, name: str, **changes: Any) -> None:
        broker = self.cleaning.running.broker
        self.do(lambda: broker.create_stream(name, _SETTINGS | changes))

    def delete(self, name: str) -> None:
        self.do(lambda: self.cleaning.running.broker.delete_stream(name))

    def put(self, name: str, messages: Iterable[Put]) -> None:
        """Publish messages as one group, committed on return."""

        async def put() -> None:
            host = self.cleaning.running.broker.hosts[name]
            found = list(messages)
            values = [one.value or b"" for one in found]
            headers = [_headers(one) for one in found]
            count = len(found)
            host.receive(MessageRun([b"in"] * count, [b""] * count, values, headers))
            host.kick()
            await host.drained()

        self.do(put)

    def log(self, name: str) -> Log:
        return self.cleaning.running.broker.hosts[name].log

    def compact(self, name: str) -> None:
        """Run one compaction pass over all sealed segments."""

        async def compact() -> None:
            self.cleaning.cleaner.request(self.cleaning.running.broker.hosts[name])
            await self.cleaning.round()

        self.do(compact)

    def advance(self, seconds: float) -> None:
        self.cleaning.running.clock.ahead_ns += round(seconds * 1e9)

    def truncate(self, name: str, offset: int) -> None:
        administration = self.cleaning.running.broker.administration
        self.do(lambda: administration.truncate_prefix(name, offset))

    def truncate_before_leases(self, name: str, offset: int) -> None:
        """Check that a truncation is refused, because a lease protects records that it would
        remove."""
        with pytest.raises(Conflict):
            self.truncate(name, offset)

    def damage(self, name: str, offset: int, *, noticed: bool = True) -> range:
        """Damage one bit of the batch with this offset. With `noticed`, the daemon has detected the
        damage already. Returns the lost offsets: none if no batch with records is at this place."""
        log, lost = self.log(name), range(0)
        for segment in log.segments:
            for position, header in batch_positions(segment.path):
                if header.base_offset <= offset < header.next_offset and header.record_count:
                    flip(segment.path, position + 80)
                    lost = range(header.base_offset, header.next_offset)
        self.run(log.writer.roll)
        if noticed:
            self.do(self._scrub)
        return lost

    async def _scrub(self) -> None:
        for host in self.cleaning.running.broker.hosts.values():
            state = self.cleaning.cleaner.state_of(host)
            for segment in host.log.segments:
                if segment.sealed:
                    await self.cleaning.cleaner._jobs.examine(host, state, segment.path.name)

    def run(self, what: Callable[[], object]) -> None:
        """Run a function of the log in the thread of the broker."""
        self._thread.call(what)

    def do(self, what: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a function in the thread of the broker."""
        return self._thread.do(what)

    def __enter__(self) -> Self:
        self.server = self._thread.__enter__().served.removeprefix("tcp://")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._thread.__exit__(kind, error, trace)

    @asynccontextmanager
    async def _serving(self) -> AsyncIterator[str]:
        self.cleaning = Cleaning(self.directory)
        broker = self.cleaning.running.broker
        broker.serve_checkpoints(
            Checkpoints(
                broker.stream,
                LocalOffsets(),
                CheckpointTable(),
                subject_prefix="liftlog.test.offsets",
                max_count=1000,
                now_ns=time.time_ns,
            )
        )
        server = PullServer(broker)
        (address,) = await server.start(["tcp://127.0.0.1:0"])
        try:
            yield address
        finally:
            await server.close(grace=0.5)
            await self.cleaning.close()


def _headers(message: Put) -> bytes:
    lines = [] if message.key is None else [f"Liftlog-Key: {message.key}"]
    if message.value is None:
        lines.append("Liftlog-Tombstone: true")
    if not lines and not message.lines:
        return b""
    return "\r\n".join(["NATS/1.0", *lines, ""]).encode() + message.lines + b"\r\n"


class Export:
    """Runs of one export, without Spark. The hooks are called at the places that their names
    describe."""

    def __init__(self, streams: ExportedStreams, stream: str, to: str, **always: Any) -> None:
        self.to = to
        self.under_lease: Callable[[], object] | None = None
        self.before_commit: Callable[[], object] | None = None
        self._always = always
        self._stream = stream
        self._streams = streams

    def __call__(self, *, now_ahead: float = 0.0, **asked: Any) -> Summary:
        request = ExportRequest(self._stream, self.to, **self._always | asked)
        options = parse_options({"stream": self._stream, "server": self._streams.server})
        opened = open_table(request)
        commit, owner = opened.commit, self

        def hooked(snapshot: Snapshot, previous: Snapshot | None) -> None:
            if owner.before_commit is not None:
                owner.before_commit()
            commit(snapshot, previous)

        run_directory = opened.run_directory

        def hooked_before(sequence: int, run: str) -> str:
            hook, owner.under_lease = owner.under_lease, None
            if hook is not None:
                hook()
            return run_directory(sequence, run)

        opened.commit = hooked  # type: ignore[method-assign]
        opened.run_directory = hooked_before  # type: ignore[method-assign]
        job = ExportJob(
            request,
            options,
            LocalEngine,
            now_ns=lambda: time.time_ns() + round(now_ahead * 1e9),
            table=opened,
        )
        return job.run()


def table(lake: str) -> list[tuple[int, bytes | None, bytes | None]]:
    """Return offset, key and value of every row of the newest snapshot, read by independent code.
    Also checks the counts in the snapshot."""
    snapshot = newest(lake)
    if snapshot is None:
        return []
    root = open_store(lake).uri
    removed = {
        row["offset"] for file in snapshot.removed for row in rows_of([join(root, file.path)])
    }
    found: list[Any] = []
    for file in snapshot.files:
        rows = [row for row in rows_of([join(root, file.path)]) if row["offset"] not in removed]
        assert len(rows) == file.live_rows or file.kind == "records", file
        found += [(row["offset"], row["key"], row["value"]) for row in rows]
    assert len({offset for offset, _, _ in found}) == len(found), "an offset is there twice"
    if not snapshot.removed:
        assert paths(lake) == [join(root, file.path) for file in snapshot.files]
    return sorted(found)
