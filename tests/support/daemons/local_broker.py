"""A broker on a directory, without NATS. Tests pass messages to its streams."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from liftlog.log import DataDir, LogEnvironment, OsFileSystem, SystemClock
from liftlog.log.files.filesystem import OsFile
from liftlog.sequencing import MessageRun
from liftlog.server.commits.host import StreamHost
from liftlog.server.streams.broker import Broker
from liftlog.settings import Settings


class FailingFileSystem(OsFileSystem):
    """A file system that fails the calls on the given paths."""

    def __init__(self) -> None:
        self.failing: dict[str, str] = {}
        self.error_number = errno.EIO

    def _check(self, call: str, path: Path) -> None:
        if self.failing.get(call, "\0") in str(path):
            raise OSError(self.error_number, f"{call} failed on purpose")

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> OsFile:
        self._check("open", path)
        return super().open(path, create=create, writable=writable)

    def rename(self, source: Path, target: Path) -> None:
        self._check("rename", target)
        super().rename(source, target)

    def unlink(self, path: Path) -> None:
        self._check("unlink", path)
        super().unlink(path)


class OffsetClock(SystemClock):
    """A clock with the real time, plus the time that a test lets pass, plus the jumps of the wall
    clock."""

    def __init__(self) -> None:
        self.ahead_ns = 0
        self.jumped_ns = 0

    def now_ns(self) -> int:
        return super().now_ns() + self.ahead_ns + self.jumped_ns

    def monotonic_ns(self) -> int:
        return super().monotonic_ns() + self.ahead_ns


class Running:
    def __init__(
        self,
        directory: Path,
        *,
        clock: OffsetClock | None = None,
        fs: OsFileSystem | None = None,
        **streams: Any,
    ) -> None:
        self.fs = FailingFileSystem()
        self.clock = clock = clock or OffsetClock()
        self.data_dir = DataDir(directory, LogEnvironment.create(fs or self.fs, clock))
        self.data_dir.open()
        settings = Settings.model_validate({"data_dir": directory, "streams": streams})
        self.broker = Broker(settings, self.data_dir, clock)

    async def start(self, *, assume_yes: bool = False) -> Broker:
        await self.broker.open_streams(assume_yes=assume_yes)
        return self.broker

    async def publish(self, name: str, *payloads: bytes) -> None:
        host = self.broker.hosts[name]
        count = len(payloads)
        host.receive(MessageRun([b"in"] * count, [b""] * count, payloads, has_cookie=False))
        host.kick()
        await host.drained()

    async def put(self, name: str, pairs: Iterable[tuple[str, bytes]]) -> StreamHost:
        """Publish keys and values as one group."""
        host = self.broker.hosts[name]
        found = list(pairs)
        headers = [b"NATS/1.0\r\nLiftlog-Key: %b\r\n\r\n" % key.encode() for key, _ in found]
        count = len(found)
        values = [value for _, value in found]
        host.receive(MessageRun([b"in"] * count, [b""] * count, values, headers))
        host.kick()
        await host.drained()
        return host
