"""Measures consumers: many that tail one stream, cold reads, filters, and durable checkpoints."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from support.clients.raw_nats import RawNats

from liftlog.client import connect_sync

from .figures import CAT, Measurements
from .processes import WorkerFailed, run_worker, settle_disk, worker
from .progress import Progress
from .systems import LIFTLOG, Liftlog, wait_until_still

_CONSUMERS = 64
_RATE = 10_000
_TAILED_BYTES = 128
_COLD_RECORDS = 262_144
_COLD_BYTES = 2048
_FILTERED_RECORDS = 400_000
_SUBJECTS = 100
_COMMITTERS = 100
_GROUPED_RECORDS = 400_000
_GROUPED_BYTES = 256
_LIVE_RATE = 100_000
_LIVE_SECONDS = 4.0
_LIVE_BEGIN_SECONDS = 1.0
"""Seconds at the beginning that do not count, because connections and caches are new."""
_MEMBERS = 16


@contextmanager
def consumers(spec: dict[str, Any]) -> Iterator[subprocess.Popen[str]]:
    with worker("consumers", spec) as process:
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            raise WorkerFailed(process.communicate()[1].strip())
        yield process


def _told(process: subprocess.Popen[str], *, timeout: float = 120) -> dict[str, Any]:
    output, errors = process.communicate(timeout=timeout)
    if process.returncode:
        raise WorkerFailed(errors.strip())
    told: dict[str, Any] = json.loads(output.splitlines()[-1])
    return told


def tailing(
    directory: Path, measured: Measurements, progress: Progress, *, rounds: int, seconds: float
) -> None:
    """Deliver every message at a steady rate to 64 consumers, and measure the delay of the slowest
    ones."""
    with Liftlog(directory / "tailing") as system:
        for number in range(rounds):
            stream = f"tailed-{number}"
            system.create(stream, f"bench.{stream}")
            count = int(_RATE * seconds)
            spec = _tail(system, stream, records=count)
            with consumers(spec) as process:
                pace = {
                    "port": system.port,
                    "subject": f"bench.{stream}",
                    "rate": _RATE,
                    "seconds": seconds,
                    "payload_bytes": _TAILED_BYTES,
                }
                paced = run_worker("pacer", pace)
                told = _told(process)
            if told["failures"] or set(told["received"]) != {count} or paced["acked"] != count:
                raise WorkerFailed(f"not every consumer got every message: {told} {paced}")
            measured.add(LIFTLOG, "tailing-p99", told["p99_ms"])
            measured.add(LIFTLOG, "tailing-p50", told["p50_ms"])
            progress.say(
                f"round {number + 1}/{rounds} {_CONSUMERS} consumers at {_RATE:,}/s: delivered "
                f"after {told['p50_ms']:.1f} ms (p50), {told['p99_ms']:.1f} ms (p99)"
            )
            system.delete(stream)


def _tail(system: Liftlog, stream: str, *, records: int | None) -> dict[str, Any]:
    return {
        "mode": "tail",
        "address": system.daemon.pull_address,
        "stream": stream,
        "count": _CONSUMERS,
        "start": 1,
        "records": records,
    }


def beside_consumers(
    directory: Path, measured: Measurements, progress: Progress, *, rounds: int, seconds: float
) -> None:
    """Measure the peak rate of eight publishers, with and without 64 consumers that tail the
    stream."""
    with Liftlog(directory / "beside-consumers") as system:
        for number in range(rounds):
            rates = {}
            for what in ("alone", "tailed") if number % 2 else ("tailed", "alone"):
                stream = f"{what}-{number}"
                system.create(stream, f"bench.{stream}")
                settle_disk()
                publish = {
                    "port": system.port,
                    "subject": f"bench.{stream}",
                    "connections": 8,
                    "in_flight": 100,
                    "seconds": seconds,
                }
                if what == "alone":
                    rates[what] = float(run_worker("publisher", publish)["rate"])
                else:
                    with consumers(_tail(system, stream, records=None)) as process:
                        rates[what] = float(run_worker("publisher", publish)["rate"])
                        process.send_signal(signal.SIGTERM)
                        told = _told(process)
                    if told["failures"] or not min(told["received"]):
                        raise WorkerFailed(f"a consumer did not read: {told}")
                    share = min(told["received"]) / system.stored(stream)
                    measured.add(LIFTLOG, "tailed-delivered", share)
                system.delete(stream)
                measured.add(LIFTLOG, f"ingest-{what}", rates[what])
            progress.say(
                f"round {number + 1}/{rounds} ingest {rates['alone']:,.0f}/s alone, "
                f"{rates['tailed']:,.0f}/s with {_CONSUMERS} tailing"
            )


def cold(directory: Path, measured: Measurements, progress: Progress, *, rounds: int) -> None:
    """Read files that are not in the page cache, with our client and with `cat`."""
    with Liftlog(directory / "cold") as system:
        system.create("cold", "bench.cold")
        fill = {
            "port": system.port,
            "subject": "bench.cold",
            "connections": 8,
            "in_flight": 100,
            "payload_bytes": _COLD_BYTES,
            "count": _COLD_RECORDS,
        }
        run_worker("publisher", fill)
        files = system.segment_files("cold")
        total = sum(size for _, size in files)
        settle_disk()
        read = {
            "mode": "liftlog",
            "address": system.daemon.pull_address,
            "stream": "cold",
            "passes": 1,
            "value_bytes": _COLD_BYTES,
        }
        for number in range(rounds):
            speeds = {}
            for who in (LIFTLOG, CAT) if number % 2 else (CAT, LIFTLOG):
                _forget(files)
                if who == CAT:
                    seconds = _cat(files)
                else:
                    ((records, _, seconds),) = run_worker("readers", read)["passes"]
                    if records != _COLD_RECORDS:
                        raise WorkerFailed(f"{records} of {_COLD_RECORDS} records were read")
                speeds[who] = total / seconds / 2**20
                measured.add(who, "cold", speeds[who])
            progress.say(
                f"round {number + 1}/{rounds} cold: {speeds[LIFTLOG]:,.0f} MiB/s, "
                f"cat {speeds[CAT]:,.0f} MiB/s"
            )


def _forget(files: Sequence[tuple[str, int]]) -> None:
    for path, _ in files:
        fd = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


def _cat(files: Sequence[tuple[str, int]]) -> float:
    started = time.perf_counter()
    subprocess.run(["cat", *(path for path, _ in files)], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - started


def filtering(directory: Path, measured: Measurements, progress: Progress, *, rounds: int) -> None:
    """Measure the data sent to a consumer whose filter matches one record in a hundred."""
    with Liftlog(directory / "filtered") as system:
        system.create("filtered", "bench.filtered.*")
        payload = b"x" * _TAILED_BYTES
        turn = b"".join(  # every subject once
            b"PUB bench.filtered.%d %d\r\n%s\r\n" % (subject, _TAILED_BYTES, payload)
            for subject in range(_SUBJECTS)
        )
        with RawNats(system.port, timeout=60) as raw:
            for _ in range(_FILTERED_RECORDS // _SUBJECTS // 100):
                raw.send(turn * 100)
                raw.ping()
        if wait_until_still(system, "filtered") != _FILTERED_RECORDS:
            raise WorkerFailed("not everything was stored")
        total = sum(size for _, size in system.segment_files("filtered"))
        for _ in range(rounds):
            before = system.daemon.metric("liftlog_pull_body_bytes_total")
            spec = {
                "mode": "filtered",
                "address": system.daemon.pull_address,
                "stream": "filtered",
                "count": 1,
                "subject": "bench.filtered.7",
            }
            with consumers(spec) as process:
                told = _told(process)
            sent = system.daemon.metric("liftlog_pull_body_bytes_total") - before
            if told["records"] != _FILTERED_RECORDS // _SUBJECTS:
                raise WorkerFailed(f"the filter let {told['records']} records through")
            measured.add(LIFTLOG, "filtered", sent / total * 100)
            measured.add(LIFTLOG, "filtered-scan", total / told["seconds"] / 2**20)
            progress.say(
                f"filter of 1 %: {sent / total:.2%} of the bytes sent, scanned at "
                f"{total / told['seconds'] / 2**20:,.0f} MiB/s"
            )


def checkpoints(
    directory: Path, measured: Measurements, progress: Progress, *, rounds: int, seconds: float
) -> None:
    """Let 100 consumers with a connection each commit one checkpoint after the other."""
    with Liftlog(directory / "checkpoints") as system:
        system.create("read", "bench.read")
        fill = {
            "port": system.port,
            "subject": "bench.read",
            "connections": 1,
            "in_flight": 100,
            "payload_bytes": _TAILED_BYTES,
            "count": 10_000,
        }
        run_worker("publisher", fill)
        for number in range(rounds):
            settle_disk()
            spec = {
                "mode": "checkpoints",
                "address": system.daemon.pull_address,
                "stream": "read",
                "count": _COMMITTERS,
                "offset": 10_000,
                "seconds": seconds,
            }
            with consumers(spec) as process:
                rate = _told(process)["commits_per_second"]
            measured.add(LIFTLOG, "checkpoints", rate)
            progress.say(f"round {number + 1}/{rounds} checkpoints: {rate:,.0f}/s")


def groups(directory: Path, measured: Measurements, progress: Progress, *, rounds: int) -> None:
    """Compare a group of 16 members with one plain reader, by record and by batch. The first result
    is the time on this machine. The second result is computed from processor times, as if each
    member, the reader and the daemon had its own core: the slowest of them determines the
    throughput."""
    settings = {"subject": "bench.grouped"}
    stream = {"name": "grouped", "settings": settings, "count": _GROUPED_RECORDS, "per_batch": 250,
              "value_bytes": _GROUPED_BYTES, "keys": 5000, "first_is_clean": False}  # fmt: skip
    data_dir = directory / "grouped" / "liftlog" / "data"
    run_worker("stored", {"mode": "fill", "data_dir": str(data_dir), "streams": [stream]})
    with Liftlog(directory / "grouped") as system:
        for number in range(rounds):
            for by_batch in (False, True):
                group = f"bench-{by_batch}-{number}"
                plain = _group_seconds(system, "", 0, by_batch)
                shared = _group_seconds(system, group, _MEMBERS, by_batch)
                plain_wall = _group_wall(system, "", 0, by_batch)
                shared_wall = _group_wall(system, f"{group}-wall", _MEMBERS, by_batch)
                suffix = "-by-batch" if by_batch else ""
                measured.add(LIFTLOG, "grouped-plain" + suffix, 1 / max(plain))
                measured.add(LIFTLOG, "grouped" + suffix, 1 / max(shared))
                measured.add(LIFTLOG, "grouped-plain-wall" + suffix, 1e6 / plain_wall)
                measured.add(LIFTLOG, "grouped-wall" + suffix, 1e6 / shared_wall)
                progress.say(
                    f"round {number + 1}/{rounds} {_MEMBERS} members{suffix}: {shared[0]:.2f} us "
                    f"of a core for each record in the daemon, {shared[1]:.3f} in each member "
                    f"({shared[1] * _MEMBERS:.2f} in all), {shared_wall:.2f} us passed; a plain "
                    f"reader: {plain[0]:.2f}, {plain[1]:.2f}, {plain_wall:.2f}"
                )


def live_groups(
    directory: Path, measured: Measurements, progress: Progress, *, rounds: int, seconds: float
) -> None:
    """Publish 100,000 messages per second to a stream while one plain reader reads it. Then do the
    same with a group of 16 members."""
    with Liftlog(directory / "live") as system:
        for number in range(rounds):
            plain, shared = [
                _live(system, f"live-{number}-{members}", members, max(seconds, _LIVE_SECONDS))
                for members in (0, _MEMBERS)
            ]
            measured.add(LIFTLOG, "grouped-live-plain", plain.rate)
            measured.add(LIFTLOG, "grouped-live", shared.rate)
            progress.say(
                f"round {number + 1}/{rounds} live, {_LIVE_RATE:,}/s offered: {_MEMBERS} members "
                f"{shared}; a plain reader {plain}"
            )


def _grouped(system: Liftlog, stream: str, group: str, members: int) -> dict[str, Any]:
    return {"mode": "group", "address": system.daemon.pull_address, "stream": stream,
            "records": _GROUPED_RECORDS, "group": group, "count": members,
            "daemon": system.daemon.pid, "by_batch": False}  # fmt: skip


def _finished(process: subprocess.Popen[str], records: int) -> dict[str, Any]:
    told = _told(process, timeout=600)
    if told["failures"] or told["records"] < records:
        raise WorkerFailed(f"{told['records']} records were read; {told['failures'][:3]}")
    return told


def _group_seconds(
    system: Liftlog, group: str, members: int, by_batch: bool
) -> tuple[float, float]:
    """Return the processor time of the daemon and of each member, in microseconds per record."""
    spec = _grouped(system, "grouped", group, members) | {"by_batch": by_batch}
    with consumers(spec) as process:
        told = _finished(process, _GROUPED_RECORDS)
    return (
        told["daemon_cpu"] / _GROUPED_RECORDS * 1e6,
        told["cpu"] / _GROUPED_RECORDS * 1e6,
    )


def _group_wall(system: Liftlog, group: str, members: int, by_batch: bool) -> float:
    """Return the elapsed time in microseconds per record. Each member is a process."""
    spec = _grouped(system, "grouped", group, members)
    spec |= {"mode": "member", "by_batch": by_batch}
    with ExitStack() as stack:
        processes = [
            stack.enter_context(worker("consumers", spec, stdin=subprocess.PIPE))
            for _ in range(members or 1)
        ]
        for process in processes:
            assert process.stdout is not None
            if process.stdout.readline() != "joined\n":
                raise WorkerFailed(process.communicate()[1].strip())
        began = time.monotonic()
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        told = [_told(process, timeout=600) for process in processes]
    failures = [failure for one in told for failure in one["failures"]]
    if failures or sum([one["records"] for one in told]) != _GROUPED_RECORDS:
        raise WorkerFailed(f"not every record was read once: {failures[:3]}")
    return (max([one["ended"] for one in told]) - began) / _GROUPED_RECORDS * 1e6


class _Live(NamedTuple):
    """The results of readers while a stream was published to. `rate` is the number of records per
    second from their start to the last published record. `unread` is the number of records that
    were unread at that time, and `after` the seconds until they were read. `published` is in
    records per second."""

    rate: float
    published: float
    unread: int
    after: float
    least: int
    most: int
    daemon_us: float

    def __str__(self) -> str:
        shares = f" (each member {self.least:,} to {self.most:,} records)" if self.most else ""
        return (
            f"{self.rate:,.0f}/s of {self.published:,.0f} published, {self.unread:,} unread at "
            f"the end, read {self.after * 1e3:.0f} ms later{shares}; the daemon: "
            f"{self.daemon_us:.2f} us of a core for each record"
        )


def _live(system: Liftlog, stream: str, members: int, seconds: float) -> _Live:
    system.create(stream, f"bench.{stream}.*")
    count = int(_LIVE_RATE * seconds)
    pace = {"port": system.port, "subject": f"bench.{stream}", "rate": _LIVE_RATE,
            "seconds": seconds, "payload_bytes": _GROUPED_BYTES, "subjects": 5000,
            "drain": 60.0}  # fmt: skip
    spec = _grouped(system, stream, stream, members) | {"records": count}
    with consumers(spec) as process:
        assert process.stdout is not None
        if process.stdout.readline() != "joined\n":
            raise WorkerFailed(process.communicate()[1].strip())
        paced = run_worker("pacer", pace)
        if paced["acked"] != count:
            process.kill()
            raise WorkerFailed(f"not every message was stored: {paced}")
        told = _finished(process, count)
    system.delete(stream)
    times, done = zip(*told["seen"], strict=True)
    first, last = paced["began"] + _LIVE_BEGIN_SECONDS, paced["ended"]
    before, until = np.interp([first, last], times, done)
    shares = told["shares"] or [0]
    if members and not all(shares):
        raise WorkerFailed(f"a member read nothing: {shares}")
    return _Live(
        (until - before) / (last - first),
        count / (last - paced["began"]),
        int(count - until),
        max(times[-1] - last, 0.0),
        min(shares),
        max(shares),
        told["daemon_cpu"] / count * 1e6,
    )


def group_commits(
    directory: Path, measured: Measurements, progress: Progress, *, rounds: int, seconds: float
) -> None:
    """Let 100 groups with one member each commit all 64 slots at once."""
    with Liftlog(directory / "group-commits") as system:
        system.create("read", "bench.read")
        fill = {"port": system.port, "subject": "bench.read", "connections": 1, "in_flight": 100,
                "payload_bytes": _TAILED_BYTES, "count": 10_000}  # fmt: skip
        run_worker("publisher", fill)
        with connect_sync(system.daemon.pull_address) as client:
            info = client.describe_stream("read")
        for number in range(rounds):
            settle_disk()
            spec = {"mode": "group_commits", "address": system.daemon.pull_address,
                    "stream": "read", "count": _COMMITTERS, "offset": 10_000,
                    "seconds": seconds, "incarnation": info.incarnation,
                    "epoch": info.leader_epoch}  # fmt: skip
            before = system.daemon.cpu_seconds
            with consumers(spec) as process:
                rate = _told(process)["commits_per_second"]
            used = system.daemon.cpu_seconds - before
            measured.add(LIFTLOG, "group-commits", rate)
            progress.say(
                f"round {number + 1}/{rounds} commits of {_COMMITTERS} groups: {rate:,.0f}/s, "
                f"{used / rate / seconds * 1e6:.0f} us of a core each in the daemon"
            )
