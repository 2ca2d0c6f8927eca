"""Measures operations: a scrape of many streams, reloads, and the stop of a daemon at full load."""

from __future__ import annotations

import signal
import statistics
import threading
import time
from pathlib import Path

from support.clients.ingesting import AckedPublisher, number_of, until
from support.daemons.daemon import Stopped

from liftlog.client import SyncClient, connect_sync

from .figures import Measurements
from .processes import WorkerFailed, settle_disk, worker
from .progress import Progress
from .systems import LIFTLOG, Liftlog

_SCRAPED_STREAMS = 500
_SCRAPES = 10
_RELOADS = 50
_TERM_SECONDS = 3.0
_PAYLOAD_BYTES = 256
_OPEN_ACL = """\
principals: {anonymous: {}}
roles: {all: [{allow: [read, commit, admin, create, delete], streams: ["*"], attach: [">"]}]}
bindings: {anonymous: [all]}
"""


class _Pinger(threading.Thread):
    """Repeatedly sends the smallest possible request, to measure how long the event loop delays
    requests."""

    def __init__(self, client: SyncClient) -> None:
        super().__init__(name="pinger")
        self.seconds: list[float] = []
        self._client = client
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.is_set():
            began = time.perf_counter()
            self._client.ping()
            self.seconds.append(time.perf_counter() - began)

    def finish(self) -> float:
        """Return the 99th percentile in milliseconds."""
        self._ended.set()
        self.join()
        return statistics.quantiles(self.seconds, n=100)[98] * 1000


def scrapes(directory: Path, measured: Measurements, progress: Progress, *, rounds: int) -> None:
    """Measure `GET /metrics` with 500 streams, and the duration of pings on the pull socket during
    the scrape."""
    streams = {f"scraped-{n:03d}": {"subject": f"bench.s{n}"} for n in range(_SCRAPED_STREAMS)}
    with Liftlog(directory / "scrapes", streams=streams) as system:
        system.daemon.get("/metrics")
        for number in range(rounds):
            times = []
            with connect_sync(system.daemon.pull_address) as client:
                pinger = _Pinger(client)
                pinger.start()
                for _ in range(_SCRAPES):
                    began = time.perf_counter()
                    status, page = system.daemon.get("/metrics")
                    times.append((time.perf_counter() - began) * 1000)
                    if status != 200 or page.count("liftlog_failed{") <= _SCRAPED_STREAMS:
                        raise WorkerFailed(f"the scrape gave {status}, {len(page)} bytes")
                waited = pinger.finish()
            measured.add(LIFTLOG, "scrape", max(times))
            measured.add(LIFTLOG, "scrape-ping-p99", waited)
            progress.say(
                f"round {number + 1}/{rounds} scrape with {_SCRAPED_STREAMS} streams: "
                f"{max(times):.0f} ms at most for {len(page) / 1e6:.1f} MB, a ping beside it "
                f"{waited:.1f} ms (p99)"
            )


def reloads(directory: Path, measured: Measurements, progress: Progress, *, rounds: int) -> None:
    """Reload an ACL file repeatedly while messages are published and read. Counts refusals, missing
    acks, missing records, and closed connections."""
    acl = directory / "acl.yaml"
    for number in range(rounds):
        acl.write_text(_OPEN_ACL)
        with Liftlog(directory / f"reloads-{number}", acl=acl) as system:
            system.create("acked", "bench.acked")
            acked = AckedPublisher(system.port, "bench.acked", in_flight=256, pad=_PAYLOAD_BYTES)
            with connect_sync(system.daemon.pull_address, reconnect_for=0) as client:
                acked.start()
                records = client.read("acked", start="earliest")
                for count in range(1, _RELOADS + 1):
                    acl.write_text(f"# {count}\n{_OPEN_ACL}")
                    system.daemon.process.send_signal(signal.SIGHUP)
                    until(lambda n=count: _reloaded(system) >= n)
                    next(records)
                acked.finish()
                missing = acked.published - len(acked.acked)
                offsets = {next(records).offset for _ in range(len(acked.acked) - _RELOADS)}
            lost = system.daemon.metric("liftlog_nats_disconnects_total")
            dropped = missing + len(acked.acked) - _RELOADS - len(offsets) + lost
        measured.add(LIFTLOG, "reload-dropped", dropped)
        progress.say(
            f"round {number + 1}/{rounds} {_RELOADS} reloads under load: {dropped:.0f} lost of "
            f"{acked.published:,} published, each acked and read"
        )


def _reloaded(system: Liftlog) -> float:
    return system.daemon.metric("liftlog_reloads_total", result="ok")


def terminations(
    directory: Path, measured: Measurements, progress: Progress, *, rounds: int
) -> None:
    """Run `kill -TERM` in the middle of a flood. Measures the seconds until the daemon has ended
    with 0, and checks that all acked messages can be read."""
    for number in range(rounds):
        settle_disk()
        with Liftlog(directory / f"term-{number}") as system:
            system.create("flood", "bench.flood")
            system.create("acked", "bench.acked")
            acked = AckedPublisher(system.port, "bench.acked", in_flight=256, pad=_PAYLOAD_BYTES)
            stopped = _terminated(system, acked)
            _check(system, acked, stopped)
        measured.add(LIFTLOG, "term", stopped.seconds)
        progress.say(
            f"round {number + 1}/{rounds} TERM under full load: {stopped.seconds:.2f} s, "
            f"{len(acked.acked):,} acked and read back"
        )


def _terminated(system: Liftlog, acked: AckedPublisher) -> Stopped:
    spec = {"port": system.port, "subject": "bench.flood", "in_flight": 0, "count": 50_000_000}
    with worker("publisher", {**spec, "payload_bytes": _PAYLOAD_BYTES}):
        acked.start()
        time.sleep(_TERM_SECONDS)
        stopped = system.daemon.stop()
        acked.finish()
    return stopped


def _check(system: Liftlog, acked: AckedPublisher, stopped: Stopped) -> None:
    if stopped.exit_code != 0:
        raise WorkerFailed(f"TERM ended with {stopped.exit_code}:\n{system.daemon.log_tail()}")
    system.daemon.start()
    stored = {}
    with connect_sync(system.daemon.pull_address) as client:
        for record in client.read("acked", start="earliest", until="end"):
            stored[record.offset] = number_of(record.value)
    wrong = [n for n, offset in acked.acked.items() if stored.get(offset) != n]
    if wrong or not acked.acked:
        raise WorkerFailed(f"{len(wrong)} of {len(acked.acked)} acked messages are gone")
