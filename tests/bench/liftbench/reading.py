"""Compares our client with plain sendfile and with JetStream's ordered consumer."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .figures import READ_KINDS, SENDFILE, WAYS, Measurements, kind_series
from .kinds import PLAIN
from .processes import WorkerFailed, run_worker, settle_disk, worker
from .progress import Progress
from .systems import DEFAULT, LIFTLOG, JetStream, Liftlog, System

_PASSES = 3  # number of passes of the fast readers; the median counts


@dataclass(frozen=True, slots=True)
class Content:
    """Records to read, and the way in which they were published."""

    payload_bytes: int
    count: int
    connections: int
    in_flight: int


CONTENTS = {
    "read-2k": Content(2048, 131_072, 8, 100),
    "read-256": Content(256, 524_288, 8, 100),
    "read-tiny": Content(256, 65_536, 8, 1),
}


def measure(
    wanted: Mapping[str, Collection[str]],
    directory: Path,
    measured: Measurements,
    progress: Progress,
    *,
    rounds: int,
    share: float = 1.0,
) -> None:
    """Measure reads. `wanted` maps contents to readers. `share` is the share of the records, for a
    quick run."""
    names = {name for readers in wanted.values() for name in readers}
    with ExitStack() as stack:
        systems: dict[str, System] = {}
        if DEFAULT in names:
            place = directory / "read-jetstream"
            systems[DEFAULT] = stack.enter_context(JetStream(place, always=False))
        ours: Liftlog | None = None
        if names & {LIFTLOG, SENDFILE}:
            ours = Liftlog(directory / "read-liftlog")
            systems[LIFTLOG] = stack.enter_context(ours)
        for what, readers in wanted.items():
            content = CONTENTS[what]
            count = int(content.count * share)
            for system in systems.values():
                _fill(system, what, content, count)
            settle_disk()
            for number in range(rounds):
                for name in (SENDFILE, LIFTLOG, DEFAULT):
                    if name in readers:
                        speed = _READERS[name](systems, what, count, content)
                        measured.add(name, what, speed)
                        progress.say(
                            f"round {number + 1}/{rounds} {what:<9} {name:<18} {speed:>8,.0f} MiB/s"
                        )
            if ours is not None:
                size = sum(size for _, size in ours.segment_files(what))
                measured.add(LIFTLOG, f"{what}-bytes-per-record", size / count)
            for system in systems.values():
                system.delete(what)


def measure_kinds(
    wanted: Collection[str],
    directory: Path,
    measured: Measurements,
    progress: Progress,
    *,
    rounds: int,
    share: float = 1.0,
) -> None:
    """Compare records with keys and headers with plain ones, in one daemon. `wanted` are the
    series, as `kind_series` names them."""
    content = CONTENTS["read-256"]
    count = int(content.count * share / 2)
    pairs = [(kind, way) for kind in READ_KINDS for way in WAYS if kind_series(kind, way) in wanted]
    with Liftlog(directory / "read-kinds") as ours:
        for kind in dict.fromkeys(kind for kind, _ in pairs):
            _fill(ours, f"read-{kind.replace('+', '-')}", content, count, kind)
        settle_disk()
        for number in range(rounds):
            for kind, way in pairs[:: -1 if number % 2 else 1]:
                spec = {
                    "mode": "ways",
                    "way": way,
                    "address": ours.daemon.pull_address,
                    "stream": f"read-{kind.replace('+', '-')}",
                    "passes": _PASSES,
                }
                speed = _read(spec, content, count) * 2**20 / content.payload_bytes
                measured.add(LIFTLOG, kind_series(kind, way), speed)
                progress.say(
                    f"round {number + 1}/{rounds} {WAYS[way]}, {kind:<6} {speed:>10,.0f} records/s"
                )


def _fill(system: System, stream: str, content: Content, count: int, kind: str = PLAIN) -> None:
    subject = f"bench.{stream}"
    system.create(stream, subject)
    run_worker(
        "publisher",
        {
            "port": system.port,
            "subject": subject,
            "connections": content.connections,
            "in_flight": content.in_flight,
            "payload_bytes": content.payload_bytes,
            "count": count,
            "kind": kind,
        },
    )
    stored = system.stored(stream)
    if stored != count:
        raise WorkerFailed(f"{system.name}: {count} acked, {stored} stored")


def _read(spec: Mapping[str, Any], content: Content, count: int) -> float:
    """Return MiB of values per second. Checks that each pass has read everything."""
    passes = run_worker("readers", spec)["passes"]
    for records, value_bytes, _ in passes:
        if (records, value_bytes) != (count, count * content.payload_bytes):
            raise WorkerFailed(f"{spec['mode']}: {records} records, {value_bytes} bytes were read")
    return float(statistics.median(size / seconds for _, size, seconds in passes)) / 2**20


def _read_liftlog(systems: Mapping[str, Any], what: str, count: int, content: Content) -> float:
    address = systems[LIFTLOG].daemon.pull_address
    spec = {
        "mode": "liftlog",
        "address": address,
        "stream": what,
        "passes": _PASSES,
        "value_bytes": content.payload_bytes,
    }
    return _read(spec, content, count)


def _read_ordered(systems: Mapping[str, Any], what: str, count: int, content: Content) -> float:
    spec = {
        "mode": "jetstream",
        "address": systems[DEFAULT].nats.url,
        "stream": what,
        "subject": f"bench.{what}",
        "records": count,
        "passes": 1,
    }
    return _read(spec, content, count)


def _read_sendfile(systems: Mapping[str, Any], what: str, count: int, content: Content) -> float:
    """Measure sendfile of the same files that the daemon serves. All their bytes count."""
    return sendfile_speed(systems[LIFTLOG].segment_files(what))


def sendfile_speed(files: Sequence[tuple[str, int]]) -> float:
    """Return the speed. `files` has pairs of a path and a number of bytes."""
    with worker("readers", {"mode": "serve-files", "files": files}) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        passes = run_worker("readers", {"mode": "drain", "port": port, "passes": _PASSES})["passes"]
    expected = sum(size for _, size in files)
    if any(size != expected for _, size, _ in passes):
        raise WorkerFailed(f"sendfile: expected {expected} bytes, drained {passes}")
    return float(statistics.median(size / seconds for _, size, seconds in passes)) / 2**20


_READERS: dict[str, Callable[[Mapping[str, Any], str, int, Content], float]] = {
    SENDFILE: _read_sendfile,
    LIFTLOG: _read_liftlog,
    DEFAULT: _read_ordered,
}
