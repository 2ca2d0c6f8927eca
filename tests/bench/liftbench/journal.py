"""How a journal may write beside its syncs: three ways on one log, one after the other in each
round.

A process of its own sends small writes at a fixed rate to an event loop, which appends them: those
that arrived in one turn of the loop are one append. Some of them ask for a sync; without one a
sync follows 50 ms after the first write. The ways differ in where the sync runs:

    turns   in a thread; an append waits for it (`Log` as it is, one job at a time)
    loop    in the event loop, like small commits of publishers
    beside  in a thread; appends go on meanwhile, on the same file

A write counts from when it was sent until its append returned. The processor time is that of the
process with the event loop, its threads included, by write.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import statistics
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import uvloop

from liftlog.log import EncodedBatch, Log, LogConfig, LogEnvironment, OsFileSystem, SystemClock
from liftlog.records import encode_batch

from .progress import Progress

WAYS = ("turns", "loop", "beside")
_SYNC_EVERY_SECONDS = 0.05
_STAMP = struct.Struct("<q")
_SUBJECT = b"deliveries"
_SEGMENT_BYTES = 2**30
"""Segment size with which no segment ends during a measurement, because the way `beside` cannot
handle that."""
_DISK_SAMPLES = 100


class Load(NamedTuple):
    size_bytes: int
    rate: int
    asking: float
    """The share of the writes that request a sync."""

    @property
    def name(self) -> str:
        return f"{self.size_bytes} B, {self.rate}/s, {self.asking:.0%} ask"


LOADS = [
    Load(size, rate, asking)
    for asking in (0.0, 0.1, 1.0)
    for rate in (100, 1000, 5000)
    for size in (60, 500, 4096)
]


@dataclass
class Taken:
    """Times of one way of writing under one load, in all rounds."""

    written_us: list[float] = field(default_factory=list)
    synced_us: list[float] = field(default_factory=list)
    processor_us: list[float] = field(default_factory=list)
    syncs: list[float] = field(default_factory=list)


# --- the sender ---


@contextmanager
def sender(load: Load, seconds: float) -> Iterator[socket.socket]:
    """Yield the socket at which the timestamps of the writes arrive, sent by another process."""
    ours, theirs = socket.socketpair()
    child = os.fork()
    if not child:
        ours.close()
        _send(theirs, load.rate, seconds)
        os._exit(0)
    theirs.close()
    try:
        yield ours
    finally:
        ours.close()
        os.waitpid(child, 0)


def _send(sink: socket.socket, rate: int, seconds: float) -> None:
    began = time.monotonic_ns()
    try:
        for number in range(int(rate * seconds)):
            due = began + number * 1_000_000_000 // rate
            left = due - time.monotonic_ns()
            if left > 0:
                time.sleep(left / 1e9)
            sink.sendall(_STAMP.pack(time.monotonic_ns()))
    except OSError:
        return


# --- the event loop ---


class Journal:
    """Appends the arriving writes. Syncs on request, or 50 ms after the first write."""

    def __init__(self, log: Log, load: Load, way: str, source: socket.socket) -> None:
        self._log = log
        self._load = load
        self._way = way
        self._source = source
        self._value = bytes(load.size_bytes)
        self._every = round(1 / load.asking) if load.asking else 0
        self._loop = asyncio.get_running_loop()
        self._waiting: list[int] = []
        self._asked: list[int] = []
        self._must_sync = False
        self._is_syncing = False
        self._timer: asyncio.TimerHandle | None = None
        self._count = 0
        self._syncs = threading.Semaphore(0)
        self._is_over = False
        self.ended = self._loop.create_future()
        self.taken = Taken()
        source.setblocking(False)
        self._loop.add_reader(source, self._arrived)
        self._thread = threading.Thread(target=self._sync_in_thread)
        self._thread.start()

    def _arrived(self) -> None:
        raw = self._source.recv(1 << 16)
        if not raw:
            self._loop.remove_reader(self._source)
            self.ended.set_result(None)
            return
        self._waiting += [stamp for (stamp,) in _STAMP.iter_unpack(raw)]
        if not self._is_syncing or self._way == "beside":
            self._append()

    def _append(self) -> None:
        if self._waiting:
            stamps, self._waiting = self._waiting, []
            self._log.append([self._encoded(len(stamps))])
            now = time.monotonic_ns()
            self.taken.written_us += [(now - stamp) / 1000 for stamp in stamps]
            for number, stamp in enumerate(stamps, self._count):
                if self._every and number % self._every == 0:
                    self._asked.append(stamp)
            self._count += len(stamps)
        if self._asked or self._must_sync:
            self._begin_sync()
        elif self._timer is None:
            self._timer = self._loop.call_later(_SYNC_EVERY_SECONDS, self._sync_is_due)

    def _encoded(self, count: int) -> EncodedBatch:
        log, stamp = self._log, time.time_ns()
        base = log.log_end_offset
        data = encode_batch(
            base_offset=base,
            leader_epoch=1,
            commit_group=log.writer.commit_group,
            stamps=[(stamp, count)],
            subjects=[_SUBJECT] * count,
            keys=[b"0123456789abcdef0123456789abcdef/worker"] * count,
            values=[self._value] * count,
        )
        return EncodedBatch(data, base, base + count, count, stamp, stamp)

    # --- syncs ---

    def _sync_is_due(self) -> None:
        self._timer = None
        self._must_sync = True
        self._begin_sync()

    def _begin_sync(self) -> None:
        if self._is_syncing:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._must_sync = False
        self._out, self._asked = self._asked, []
        if self._way == "loop":
            self._log.sync()
            self._synced()
            return
        self._is_syncing = True
        self._syncs.release()

    def _sync_in_thread(self) -> None:
        while True:
            self._syncs.acquire()
            if self._is_over:
                return
            self._log.sync()
            self._loop.call_soon_threadsafe(self._synced_in_thread)

    def _synced_in_thread(self) -> None:
        self._is_syncing = False
        self._synced()
        if self._waiting or self._asked or self._must_sync:
            self._append()

    def _synced(self) -> None:
        now = time.monotonic_ns()
        self.taken.synced_us += [(now - stamp) / 1000 for stamp in self._out]
        self._log.commit_up_to(self._log.durable_end_offset)

    def close(self) -> None:
        self._is_over = True
        self._syncs.release()
        self._thread.join()
        if self._timer is not None:
            self._timer.cancel()


async def _run(log: Log, load: Load, way: str, seconds: float) -> Taken:
    with sender(load, seconds) as source:
        began, before = time.process_time(), log.writer.fsync_count
        journal = Journal(log, load, way, source)
        await journal.ended
        spent = time.process_time() - began
        journal.close()
    taken = journal.taken
    taken.processor_us.append(1e6 * spent / max(len(taken.written_us), 1))
    taken.syncs.append((log.writer.fsync_count - before) / seconds)
    return taken


# --- a stream that shares the disk ---


@contextmanager
def busy_stream(directory: Path, wanted: bool) -> Iterator[None]:
    """With `wanted`, run a process that repeatedly appends 256 B to its own file and syncs it, like
    a stream under load."""
    if not wanted:
        yield
        return
    child = os.fork()
    if not child:
        fd = os.open(directory / "stream", os.O_RDWR | os.O_CREAT)
        os.posix_fallocate(fd, 0, 2**28)
        position = 0
        while position < 2**28 - 256:
            position += os.pwrite(fd, bytes(256), position)
            os.fdatasync(fd)
        os._exit(0)
    try:
        yield
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


def fdatasync_us(directory: Path) -> float:
    """Return the median time of an fdatasync of 4 KiB in allocated space, in microseconds."""
    fd = os.open(directory / "probe", os.O_RDWR | os.O_CREAT)
    try:
        os.pwrite(fd, bytes(4096 * _DISK_SAMPLES), 0)
        os.fsync(fd)
        samples = []
        for number in range(_DISK_SAMPLES):
            os.pwrite(fd, b"x" * 4096, 4096 * number)
            began = time.perf_counter()
            os.fdatasync(fd)
            samples.append(time.perf_counter() - began)
    finally:
        os.close(fd)
    return 1e6 * statistics.median(samples)


# --- the table ---


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="journal", description=__doc__)
    parser.add_argument("--seconds", type=float, default=2, help="of each figure (default: 2)")
    parser.add_argument("--rounds", type=int, default=3, help="default: 3")
    parser.add_argument("--busy", action="store_true", help="a stream syncs on the same disk")
    parser.add_argument("--only", default="", help="only loads whose names contain this")
    parser.add_argument("--directory", type=Path, help="on the disk to measure (default: TMPDIR)")
    options = parser.parse_args(arguments)
    loads = [load for load in LOADS if options.only in load.name]
    found: dict[tuple[Load, str], Taken] = {(load, way): Taken() for load in loads for way in WAYS}
    disk: list[float] = []
    progress = Progress()
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        directory = Path(name)
        with busy_stream(directory, options.busy):
            for number in range(options.rounds):
                disk.append(fdatasync_us(directory))
                for load in loads:
                    progress.say(f"round {number + 1}, {load.name}")
                    for way in WAYS:
                        one = _measure(directory, load, way, options.seconds)
                        _join(found[load, way], one)
    _show(found, loads)
    print(f"\nThe disk's median fdatasync of 4 KiB, by round: {_all(disk)} us.")
    return 0


def _measure(directory: Path, load: Load, way: str, seconds: float) -> Taken:
    environment = LogEnvironment.create(OsFileSystem(), SystemClock())
    path = directory / f"{time.monotonic_ns()}"
    log = Log.create(path, environment, LogConfig(_SEGMENT_BYTES))
    try:
        return uvloop.run(_run(log, load, way, seconds))
    finally:
        log.close()
        for file in path.iterdir():
            file.unlink()


def _join(all_rounds: Taken, one: Taken) -> None:
    for name in ("written_us", "synced_us", "processor_us", "syncs"):
        getattr(all_rounds, name).extend(getattr(one, name))


def _show(found: dict[tuple[Load, str], Taken], loads: Sequence[Load]) -> None:
    print("Microseconds; in brackets / `turns`.\n")
    print("| load | way | written, p50 | p99 | synced, p50 | p99 | processor | syncs/s |")
    print("|---|---|---|---|---|---|---|---|")
    for load in loads:
        base = found[load, WAYS[0]]
        for way in WAYS:
            taken = found[load, way]
            cells = [
                _cell(taken.written_us, base.written_us, lambda one: float(np.percentile(one, 50))),
                _cell(taken.written_us, base.written_us, lambda one: float(np.percentile(one, 99))),
                _cell(taken.synced_us, base.synced_us, lambda one: float(np.percentile(one, 50))),
                _cell(taken.synced_us, base.synced_us, lambda one: float(np.percentile(one, 99))),
                _cell(taken.processor_us, base.processor_us, statistics.median),
                f"{statistics.median(taken.syncs):.0f}",
            ]
            print(f"| {load.name} | {way} | {' | '.join(cells)} |", flush=True)


def _cell(
    taken: Sequence[float], base: Sequence[float], figure: Callable[[Sequence[float]], float]
) -> str:
    if not taken:
        return ""
    mine = figure(taken)
    return f"{mine:.0f} ({mine / figure(base):.2f})"


def _all(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.0f}" for value in values)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
