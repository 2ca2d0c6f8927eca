"""Measures the web page with much data: how long its pages take with 500 streams, how soon a search
in a million records finds a record, and how it delays acks of publishers."""

from __future__ import annotations

import argparse
import http.client
import json
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

from support.clients.raw_nats import RawNats, pub_frame
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer

from liftlog.client import connect_sync

PAGE_SECONDS, HIT_SECONDS, DELAY_SECONDS = 0.05, 1.0, 0.05
"""What must hold."""
_PAGES = (
    "/ui/streams", "/ui/streams?sort=size&page=5", "/ui/streams?q=plant-2", "/ui/topology",
    "/ui/topology?subject=plant.250.x", "/ui/consumers", "/ui/streams/plant-250", "/ui/health",
)  # fmt: skip
_SEARCHES = {
    "text": "value=needle&kind=text",
    "JSON field": f"value={quote('customer.name = needle')}&kind=json",
    "expression": f"value={quote('n[e]{2}dle')}&kind=regex",
    "subject": "subject=large.needle",
}
_BURST = 1000


def main(arguments: Sequence[str]) -> int:
    options = _options(arguments)
    short: list[str] = []
    _pages(options.streams, options.rounds, short)
    _searches(options.records, options.seconds, options.rounds, short)
    for line in short:
        print(f"SHORT: {line}")
    return 1 if short else 0


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-web", description=__doc__)
    parser.add_argument("--streams", type=int, default=500)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each phase with acks")
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args(arguments)


def _page(address: str, path: str) -> tuple[float, str]:
    """Return the seconds that a page took, and its text."""
    host, _, port = address.rpartition(":")
    began = time.perf_counter()
    connection = http.client.HTTPConnection(host, int(port), timeout=60)
    connection.request("GET", path)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    assert answer.status == 200, text
    return time.perf_counter() - began, text


def _pages(count: int, rounds: int, short: list[str]) -> None:
    streams = {f"plant-{n:03}": {"subject": f"plant.{n}.>"} for n in range(count)}
    with NatsServer() as server, Daemon(server.url, {"streams": streams}) as daemon:
        with connect_sync(daemon.pull_address) as client:
            for n in range(count):
                for consumer in ("billing", "shipping"):
                    client.commit_checkpoint(consumer, f"plant-{n:03}", 1)
        print(f"{count} streams, {2 * count} consumers; page in ms: median, longest, processor")
        for path in _PAGES:
            path = path.replace("250", f"{count // 2:03}")
            _page(daemon.http_address, path)  # its template is compiled, once
            before = daemon.cpu_seconds
            times = [_page(daemon.http_address, path)[0] for _ in range(8 * rounds)]
            cpu = (daemon.cpu_seconds - before) / len(times)
            median = statistics.median(times)
            shown = (median, max(times), cpu)
            print(f"  {path:40}", *(f"{one * 1000:6.1f}" for one in shown))
            if median > PAGE_SECONDS:
                short.append(f"{path} takes {median * 1000:.0f} ms")
        _pages_beside_load(server, daemon, rounds, short)


def _pages_beside_load(server: NatsServer, daemon: Daemon, rounds: int, short: list[str]) -> None:
    """Measure pages while messages arrive all the time. The figure has no limit, because the page
    shares the daemon with the messages."""
    before = daemon.metric("liftlog_records_total", stream="plant-000")
    began = time.perf_counter()
    with _live_load(server):
        found = {
            path: [_page(daemon.http_address, path)[0] for _ in range(8 * rounds)]
            for path in ("/ui/streams", "/ui/topology", "/ui/streams/plant-000")
        }
    stored = daemon.metric("liftlog_records_total", stream="plant-000") - before
    each = stored / (time.perf_counter() - began)
    print(f"beside {each:,.0f} messages a second; page in ms: median, longest")
    for path, times in found.items():
        print(f"  {path:40} {statistics.median(times) * 1000:6.1f} {max(times) * 1000:6.1f}")
    if not stored:
        short.append("nothing was stored beside the pages")


@contextmanager
def _live_load(server: NatsServer) -> Iterator[None]:
    """Publish about 20,000 messages a second without acks, in bursts."""
    stop = threading.Event()
    burst = b"".join(pub_frame("plant.0.x", b"x" * 100) for _ in range(200))

    def publish() -> None:
        with RawNats(server.port) as client:
            while not stop.wait(0.01):
                client.send(burst)
            client.ping()

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _searches(count: int, seconds: float, rounds: int, short: list[str]) -> None:
    settings = {"streams": {"large": {"subject": "large.>", "acks": "off"},
                            "victim": {"subject": "victim"}}}  # fmt: skip
    with NatsServer() as server, Daemon(server.url, settings) as daemon:
        _fill(server, daemon, count)
        print(f"{count:,} records; seconds to the first hit of a search from the newest on")
        for name, question in _SEARCHES.items():
            near = _first_hit(daemon, question, 1.0)
            before = daemon.cpu_seconds
            far = _first_hit(daemon, question, 0.998)
            cpu = daemon.cpu_seconds - before
            print(
                f"  {name:11} near the end {near:5.2f}; at the start {far:5.2f}, "
                f"{cpu:.2f} of the processor"
            )
            if far > HIT_SECONDS:
                short.append(f"{name}: first hit after {far:.2f} s")
        for name, question in (("JSON field", "value=customer.id%20=%20absent&kind=json"),
                               ("expression", "value=ab[s]ent&kind=regex")):  # fmt: skip
            _acks(server, daemon, name, question, seconds, rounds, short)


def _fill(server: NatsServer, daemon: Daemon, count: int) -> None:
    """Fill the stream. Two records match the search: one near the end, and one near the start."""
    needles = {int(count * part) for part in (0.999, 0.001)}
    with RawNats(server.port) as client:
        for begin in range(0, count, _BURST):
            frames = []
            for n in range(begin, min(begin + _BURST, count)):
                name = "needle" if n in needles else f"Customer {n % 977}"
                value = {"order": n, "customer": {"id": n % 977, "name": name}, "cents": n % 9973}
                subject = "large.needle" if n in needles else "large.x"
                frames.append(pub_frame(subject, json.dumps(value).encode()))
            client.send(b"".join(frames))
        client.ping()
    deadline = time.monotonic() + 300
    while daemon.metric("liftlog_high_watermark", stream="large") <= count:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def _first_hit(daemon: Daemon, question: str, begin: float) -> float:
    """Search like the script of the page: part after part, until one has a record. `begin` is the
    part of the stream below the first searched record."""
    log = "/ui/streams/large/records.json?limit=25&"
    _, text = _page(daemon.http_address, log)
    top = int(json.loads(text)["high_watermark"] * begin)
    path, began = f"{log}{question}&order=newest&offset={top}", time.perf_counter()
    while True:
        _, text = _page(daemon.http_address, path)
        found = json.loads(text)
        if found["records"] or found["at_end"]:
            assert found["records"], "the needle is there"
            return time.perf_counter() - began
        path = f"{log}{question}&order=newest&offset={found['next_offset']}"


@contextmanager
def _searching(daemon: Daemon, question: str) -> Iterator[None]:
    """Let one viewer after the other search all records repeatedly, like two viewers at once."""
    stop = threading.Event()

    def search() -> None:
        path = f"/ui/streams/large/records.json?{question}"
        while not stop.is_set():
            _, text = _page(daemon.http_address, path)
            found: dict[str, Any] = json.loads(text)
            path = f"/ui/streams/large/records.json?{question}"
            if not found["at_end"]:
                path += f"&order=newest&offset={found['next_offset']}"

    threads = [threading.Thread(target=search) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _acks(
    server: NatsServer,
    daemon: Daemon,
    name: str,
    question: str,
    seconds: float,
    rounds: int,
    short: list[str],
) -> None:
    """Measure acks without and with a search, in turns. The publisher has a stream of its own."""
    quiet: list[float] = []
    beside: list[float] = []
    for _ in range(rounds):
        quiet += _publish(server, seconds)
        with _searching(daemon, question):
            beside += _publish(server, seconds)
    print(f"acks of another stream beside two searches by {name}, in ms: median, p99, p99.9, max")
    for label, times in (("without", quiet), ("with", beside)):
        shown = [statistics.median(times), *(_part(times, p) for p in (0.99, 0.999)), max(times)]
        print(f"  {label:8}", *(f"{one * 1000:7.2f}" for one in shown), f"({len(times):,} acks)")
    delay = _part(beside, 0.999) - _part(quiet, 0.999)
    if delay > DELAY_SECONDS:
        short.append(f"{name}: a search delays acks by {delay * 1000:.0f} ms (p99.9)")


def _part(times: list[float], part: float) -> float:
    return sorted(times)[min(len(times) - 1, int(len(times) * part))]


def _publish(server: NatsServer, seconds: float) -> list[float]:
    """Publish one message at a time, and return the seconds until each ack."""
    times = []
    until = time.monotonic() + seconds
    with RawNats(server.port) as client:
        client.sub("answers.>")
        while time.monotonic() < until:
            began = time.perf_counter()
            client.send(pub_frame("victim", b"x" * 100, reply="answers.1"))
            client.next_message()
            times.append(time.perf_counter() - began)
            time.sleep(0.002)
    return times


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
