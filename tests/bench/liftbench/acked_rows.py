"""The rows of the benchmark of consumers with acks. Each measures one round of both sides, in the
order in which they are given, and returns its figures by name."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from support.clients.client_publishers import Program
from support.clients.raw_nats import pub_frame
from support.daemons.daemon import Daemon
from support.daemons.processes import status_bytes

from .acked_sides import PATIENCE_SECONDS, PAYLOAD, Side, wait_ready
from .acked_workers import (
    ack_sync,
    create_and_delete,
    drain,
    fetch_in_python,
    fetch_one,
    published_to_pull,
    run_program,
    work_on_socket,
)
from .processes import fdatasync_us, run_worker, worker

OURS = "liftlog"
Found = dict[str, float]
"""Figures of one round, by name."""


class Round(NamedTuple):
    """The settings of a round. `share` is the share of the messages of the full benchmark, from 0
    to 1."""

    sides: Sequence[Side]
    share: float
    directory: Path
    programs: Sequence[Program]

    @property
    def ours(self) -> Side:
        return next(side for side in self.sides if side.name == OURS)

    def count(self, full: int) -> int:
        return max(int(full * self.share), 50)


_MOST_OF_CLIENT = 4_000
"""Number of consumers that one connection creates. The daemon permits 5,000."""


def percentile(times: Sequence[float], share: float) -> float:
    return sorted(times)[min(int(len(times) * share), len(times) - 1)]


@contextmanager
def _work(side: Side, count: int) -> Iterator[tuple[str, str]]:
    """Yield a stream with messages, and a consumer of it."""
    with side.stream(count) as stream, side.connect() as raw:
        yield stream, side.consumer(raw, stream)


def _ratio(rates: Found) -> float:
    (theirs,) = [rate for name, rate in rates.items() if name != OURS]
    return rates[OURS] / theirs


def _rates(setting: Round, count: int, run: Callable[[Side, str, str], float]) -> Found:
    """Return the messages per second of each side."""
    rates = {}
    for side in setting.sides:
        with _work(side, count) as place:
            rates[side.name] = count / run(side, *place)
    return rates


def drained(setting: Round) -> Found:
    count = setting.count(100_000)
    with _work(setting.ours, count) as place:
        before = setting.ours.processor_seconds()
        seconds = drain(setting.ours, *place, count)
        spent = setting.ours.processor_seconds() - before
    return {"us": spent / count * 1e6, "per_second": count / seconds}


def fetched_in_python(setting: Round) -> Found:
    count = setting.count(20_000)
    rates = _rates(
        setting, count, lambda side, *place: asyncio.run(fetch_in_python(side, *place, count))
    )
    return {"ratio": _ratio(rates), "per_second": rates[OURS]}


def consumed_by(client: str) -> Callable[[Round], Found]:
    def measure(setting: Round) -> Found:
        count = setting.count(100_000)
        found = [one for one in setting.programs if one.client == client]
        if not found:
            return {}
        rates = _rates(
            setting, count, lambda side, *place: run_program(found[0], side, *place, count)
        )
        return {"ratio": _ratio(rates), "per_second": rates[OURS]}

    return measure


def worked_on_socket(setting: Round) -> Found:
    """Compare batches over the pull socket, each acked and confirmed, with nats.go on JetStream."""
    count, rates = setting.count(200_000), {}
    found = [one for one in setting.programs if one.client == "nats.go"]
    for side in setting.sides:
        if side.name == OURS:
            with _work(side, count) as place:
                rates[side.name] = count / asyncio.run(work_on_socket(side, *place, count))
        elif found:
            half = count // 2
            with _work(side, half) as place:
                rates[side.name] = half / run_program(found[0], side, *place, half)
    ratio = {"ratio": _ratio(rates)} if found else {}
    return {**ratio, "per_second": rates[OURS]}


def confirmed(setting: Round) -> Found:
    count, lone = setting.count(12_000), setting.count(1000)
    rates, found = {}, {"fdatasync_ms": fdatasync_us(setting.directory) / 1000}
    for side in setting.sides:
        with _work(side, count) as place:
            began = time.perf_counter()
            ack_sync(side, *place, count, 64)
            rates[side.name] = count / (time.perf_counter() - began)
        with _work(side, lone) as place:
            name = "lone_ms" if side.name == OURS else "their_lone_ms"
            found[name] = percentile(ack_sync(side, *place, lone, 1), 0.5) * 1000
    return {"ratio": _ratio(rates), "per_second": rates[OURS], **found}


def fetched_singly(setting: Round) -> Found:
    found = {}
    for side in setting.sides:
        count = setting.count(1000)
        with _work(side, count) as place:
            name = "ms" if side.name == OURS else "their_ms"
            found[name] = percentile(fetch_one(side, *place, count), 0.5) * 1000
    return found


def committed_to_delivered(setting: Round) -> Found:
    with _work(setting.ours, 0) as place:
        times, _ = published_to_pull(setting.ours, *place, setting.count(1000))
    return {"p50_ms": percentile(times, 0.5) * 1000, "p99_ms": percentile(times, 0.99) * 1000}


def created_and_deleted(setting: Round) -> Found:
    found = {}
    for side in setting.sides:
        with side.stream() as stream:
            created, deleted = create_and_delete(side, stream, setting.count(200))
        name = "ms" if side.name == OURS else "their_ms"
        found[name] = (percentile(created, 0.5) + percentile(deleted, 0.5)) * 1000
    return {"ratio": found["ms"] / found["their_ms"], **found}


def beside_busy(setting: Round, consumers: int = 16) -> Found:
    """Measure the acks of a publisher of 1,000 messages a second."""
    ours = setting.ours
    with ExitStack() as stack, ours.connect() as raw:
        streams = [stack.enter_context(ours.stream(1000)) for _ in range(consumers)]
        for stream in streams:
            ours.consumer(raw, stream)
        calm = stack.enter_context(ours.stream())
        spec = {
            "port": ours.port,
            "subject": f"{calm}.a",
            "payload_bytes": len(PAYLOAD),
            "rate": 1000,
            "seconds": max(10 * setting.share, 2),
        }
        alone = run_worker("pacer", spec)["p99_us"]
        with worker("acked_workers", {"port": ours.port, "streams": streams, "name": "work"}):
            time.sleep(1)
            beside = run_worker("pacer", spec)["p99_us"]
    return {"ratio": beside / alone, "alone_ms": alone / 1000, "beside_ms": beside / 1000}


def syncs_of_plain_acks(setting: Round, streams: int = 200) -> Found:
    """Count the fdatasyncs per second while each of 200 consumers acks ten messages a second."""
    ours, each, seconds = setting.ours, 50, 5.0
    daemon = ours.server
    assert isinstance(daemon, Daemon)
    replies: list[bytes] = []
    with ExitStack() as stack, ours.connect() as raw:
        for _ in range(setting.count(streams)):
            stream = stack.enter_context(ours.stream(each))
            name = ours.consumer(raw, stream)
            inbox = raw.new_reply()
            body = json.dumps({"batch": each, "expires": 60 * 10**9})
            raw.pub(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{name}", body, reply=inbox)
            replies += [raw.next_message().reply for _ in range(each)]
        time.sleep(1)
        frames = [pub_frame(reply, b"+ACK") for reply in replies]
        before = daemon.metric("liftlog_journal_syncs_total")
        began = time.monotonic()
        for number, frame in enumerate(frames):
            raw.send(frame)
            due = began + seconds * number / len(frames)
            time.sleep(max(due - time.monotonic(), 0))
        raw.ping()
        time.sleep(0.1)
        spent = time.monotonic() - began
        return {"per_second": (daemon.metric("liftlog_journal_syncs_total") - before) / spent}


def with_many_waiting(setting: Round, most: int = 10_000, few: int = 10) -> Found:
    """Measure the processor time of a commit while the pulls of other consumers wait for other
    subjects: 10 consumers, 10,000 with one filter, and 10,000 with a filter each."""
    many = setting.count(most)
    base = _commit_us(setting.ours, few, "one")
    one, each = (_commit_us(setting.ours, many, kind) for kind in ("one", "each"))
    return {"one": one / base, "each": each / base, "base_us": base, "consumers": many}


def _commit_us(side: Side, consumers: int, kind: str, commits: int = 200) -> float:
    with ExitStack() as stack:
        stream = stack.enter_context(side.stream())
        body = json.dumps({"batch": 1, "expires": 1800 * 10**9})
        connections = []
        for first in range(0, consumers, _MOST_OF_CLIENT):
            connections.append(stack.enter_context(side.connect()))
            names = [f"c{n}" for n in range(first, min(first + _MOST_OF_CLIENT, consumers))]
            wanted = [
                (name, {"filter_subject": f"{stream}.{'one' if kind == 'one' else name}"})
                for name in names
            ]
            side.consumers(connections[-1], stream, wanted)
            for name in names:
                subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{name}"
                connections[-1].pub(subject, body, reply=connections[-1].new_reply())
            for one in connections:  # NATS ends a connection that is idle for minutes
                one.ping()
        raw = stack.enter_context(side.connect())
        raw.request(f"{stream}.other", PAYLOAD)  # a new inbox wakes all consumers, once
        _until_calm(side)
        idle = side.processor_seconds()
        time.sleep(1)
        before = side.processor_seconds()
        idle = before - idle
        began = time.monotonic()
        for _ in range(commits):
            raw.request(f"{stream}.other", PAYLOAD)
            time.sleep(0.005)
        _until_calm(side)
        spent = side.processor_seconds() - before - idle * (time.monotonic() - began)
        return spent / commits * 1e6


def _until_calm(side: Side) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        before = side.processor_seconds()
        time.sleep(0.5)
        if side.processor_seconds() - before < 0.1:
            return


def idle(setting: Round, consumers: int = 1000) -> Found:
    ours, count = setting.ours, setting.count(consumers)
    with ours.stream() as stream, ours.connect() as raw:
        _until_calm(ours)
        rest_before, memory = _rest(ours), status_bytes(ours.pid, "VmRSS")
        ours.consumers(raw, stream, [(f"c{number}", {}) for number in range(count)])
        _until_calm(ours)
        grown = status_bytes(ours.pid, "VmRSS") - memory
        return {"percent": 100 * (_rest(ours) - rest_before), "mib": grown / 2**20}


def _rest(side: Side, seconds: float = 5.0) -> float:
    """Return the share of a processor that the idle server uses."""
    before = side.processor_seconds()
    time.sleep(seconds)
    return (side.processor_seconds() - before) / seconds


def many_pending(setting: Round, most: int = 1_000_000) -> Found:
    """Deliver all messages twice, and ack every second one; then restart the daemon."""
    ours, count = setting.ours, setting.count(most)
    daemon = ours.server
    assert isinstance(daemon, Daemon)
    with ours.stream(count) as stream, ours.connect() as raw:
        _until_calm(ours)
        before = status_bytes(ours.pid, "VmRSS")
        name = ours.consumer(raw, stream, max_ack_pending=count, ack_wait=600 * 10**9)
        drain(ours, stream, name, count, answer=b"-NAK", is_finished=False)
        drain(ours, stream, name, count, answer=b"+ACK", every=2, is_finished=False)
        _until_calm(ours)
        grown = status_bytes(ours.pid, "VmRSS") - before
        pending = ours.api(raw, f"CONSUMER.INFO.{stream}.{name}")["num_ack_pending"]
        if abs(pending - count / 2) > 1:
            raise RuntimeError(f"{pending} of {count} messages are pending")
        seen = len(daemon.log)
        daemon.stop()
        began = time.monotonic()
        daemon.restart()
        wait_ready(daemon, seen)
        _first_delivery(ours, stream, name)
        restarted = time.monotonic() - began
    return {"mib": grown / 2**20, "restart_s": restarted}


def _first_delivery(side: Side, stream: str, name: str) -> None:
    """Publish a message, and pull until one arrives."""
    with side.connect() as raw:
        inbox = raw.new_reply()
        raw.pub(f"{stream}.a", PAYLOAD)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            raw.pub(
                f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{name}",
                b'{"batch":1,"expires":200000000}',
                reply=inbox,
            )
            try:
                if raw.next_message(0.2).reply:
                    return
            except TimeoutError:
                continue
        raise RuntimeError("nothing is delivered after the restart")
