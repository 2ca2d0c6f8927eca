"""Replicated streams: the rows of their table, and the effect of a new replica on publishers."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from support.clients.ingesting import until

from .figures import Measurements, Row, Series
from .processes import WorkerFailed, run_worker, settle_disk
from .progress import Progress
from .publisher import PAYLOAD_BYTES
from .replicated import R3_ALWAYS, R3_DEFAULT, RF1, RF3, LiftlogCluster

_FILL_BYTES = 64 << 10
_STREAM, _SUBJECT = "grown", "bench.grown"
_READ = "read"
_READERS = 6
_PASSES = 3
_LANES = {"header": "one foreign header", "key": "`Liftlog-Key`", "id": "`Nats-Msg-Id`, all new"}


def _ratio(
    key: str, title: str, over: Series, under: Series, must: float, reach: float, *,
    lower_is_better: bool = False,
) -> Row:  # fmt: skip
    def value(measured: Measurements) -> float:
        return measured.median(over) / measured.median(under)

    return Row(key, title, (over, under), value, must, reach, lower_is_better)


def _beside(load: str, other: str, must: float, reach: float) -> Row:
    what = "default" if other == R3_DEFAULT else "always"
    return _ratio(
        f"{load}-vs-{what}",
        f"three fsynced replicas, {load} / JetStream R3 {what}",
        (RF3, load),
        (other, load),
        must,
        reach,
    )


ROWS = (
    _beside("64x100", R3_DEFAULT, 1.3, 2.0),
    _beside("64x100", R3_ALWAYS, 1.8, 2.6),
    _beside("8x100", R3_DEFAULT, 0.8, 1.1),
    _beside("8x100", R3_ALWAYS, 1.6, 2.2),
    _beside("8x1", R3_ALWAYS, 0.8, 1.2),
    _ratio(
        "lone-p50-vs-always",
        "lone publisher's p50 / JetStream R3 always",
        (RF3, "1x1-p50"),
        (R3_ALWAYS, "1x1-p50"),
        1.3,
        0.9,
        lower_is_better=True,
    ),
    _ratio(
        "rf3-vs-rf1", "three replicas / one, 64x100", (RF3, "64x100"), (RF1, "64x100"), 0.6, 0.8
    ),
    *(
        _ratio(
            f"{kind}-rf3-vs-rf1",
            f"{title}, three replicas / one, 64x100",
            (RF3, f"64x100-{kind}"),
            (RF1, f"64x100-{kind}"),
            0.6,
            0.75,
        )
        for kind, title in _LANES.items()
    ),
    _ratio(
        "reads-followers",
        f"{_READERS} readers of the nearest node / all of the leader, bytes per second",
        (RF3, "reads-nearest"),
        (RF3, "reads-leader"),
        0.8,
        2.0,
    ),
    _ratio(
        "reads-followers-cpu",
        "the same, records per processor second of the busiest node",
        (RF3, "reads-nearest-per-cpu"),
        (RF3, "reads-leader-per-cpu"),
        2.0,
        2.7,
    ),
    Row(
        "reads-leader-share",
        "the leader's share of that processor time, each reader at the nearest node",
        ((RF3, "reads-nearest-share"),),
        lambda measured: measured.median((RF3, "reads-nearest-share")) * 100,
        45,
        37,
        True,
        "%",
    ),
    _ratio(
        "new-replica-p99",
        "p99 of an ack at half of peak load, a new replica fetching / none",
        (RF3, "growing-p99"),
        (RF3, "grown-p99"),
        2,
        1.3,
        lower_is_better=True,
    ),
)


def new_replica(
    directory: Path,
    measured: Measurements,
    progress: Progress,
    *,
    rounds: int,
    seconds: float,
    gib: float,
) -> None:
    """Let a follower lose its disk and fetch a whole stream again, while its leader is published to
    at half of its peak rate. In turns with the same load without a fetch."""
    with LiftlogCluster(directory / "growing") as system:
        system.create(_STREAM, _SUBJECT)
        spec = {"port": system.port, "subject": _SUBJECT}
        filled = {"connections": 4, "in_flight": 16, "count": int(gib * 2**30 / _FILL_BYTES)}
        run_worker("publisher", {**spec, **filled, "payload_bytes": _FILL_BYTES})
        peak = run_worker("publisher", {**spec, "connections": 8, "in_flight": 100, "seconds": 2.0})
        pace = {**spec, "rate": peak["rate"] / 2, "seconds": seconds}
        progress.say(f"{gib:g} GiB stored; peak {peak['rate']:,.0f}/s, half of it is offered")
        for number in range(rounds):
            for what in ("growing", "grown") if number % 2 else ("grown", "growing"):
                settle_disk()
                began = time.monotonic()
                if what == "growing":
                    newcomer = _lose_disk(system)
                told = _pace(pace)
                if what == "growing":
                    _check_behind(system, newcomer)
                    system.cluster.wait_isr(_STREAM, timeout=600)
                    measured.add(RF3, "growing-seconds", time.monotonic() - began)
                measured.add(RF3, f"{what}-p99", told["p99_us"])
                progress.say(
                    f"round {number + 1}/{rounds} {what:<7} p50 {told['p50_us']:,.0f} us, "
                    f"p99 {told['p99_us']:,.0f} us; until in sync {time.monotonic() - began:.1f} s"
                )


def follower_reads(
    directory: Path, measured: Measurements, progress: Progress, *, rounds: int, gib: float
) -> None:
    """Let readers begin at the three nodes in turn. They read either the leader's copy, or the copy
    of their node. All share one machine here, and the readers use more of it than the nodes. So the
    elapsed time says little. The processor time of each node shows how many readers three machines
    can serve."""
    with LiftlogCluster(directory / "reads") as system:
        system.create(_READ, f"bench.{_READ}")
        filled = {"connections": 4, "in_flight": 16, "count": int(gib * 2**30 / _FILL_BYTES)}
        target = {"port": system.port, "subject": f"bench.{_READ}"}
        run_worker("publisher", {**target, **filled, "payload_bytes": _FILL_BYTES})
        stored = system.stored(_READ)
        for number in range(rounds):
            for prefer in ("nearest", "leader") if number % 2 else ("leader", "nearest"):
                nodes = system.cluster.nodes
                before = {name: node.cpu_seconds for name, node in nodes.items()}
                rate = _read_at_once(system, prefer, stored)
                spent = {name: node.cpu_seconds - before[name] for name, node in nodes.items()}
                share = spent[system.cluster.leader(_READ)] / sum(spent.values())
                per_cpu = _READERS * _PASSES * stored / max(spent.values())
                measured.add(RF3, f"reads-{prefer}", rate)
                measured.add(RF3, f"reads-{prefer}-per-cpu", per_cpu)
                measured.add(RF3, f"reads-{prefer}-share", share)
                told = f"prefer {prefer:<7} {rate / 2**20:,.0f} MiB/s, {per_cpu:,.0f} records"
                told += f" per processor second of the busiest node, leader {share:.0%}"
                progress.say(f"round {number + 1}/{rounds} reads, {told}")


def _read_at_once(system: LiftlogCluster, prefer: str, stored: int) -> float:
    """Return the bytes per second of all readers. Each reads the stream once before the
    measurement."""
    addresses = [node.pull_address for node in system.cluster.nodes.values()]
    spec = {
        "mode": "liftlog",
        "stream": _READ,
        "passes": _PASSES,
        "value_bytes": _FILL_BYTES,
        "options": {"prefer": prefer},
    }
    with ThreadPoolExecutor(_READERS) as threads:
        told = list(
            threads.map(
                lambda number: run_worker(
                    "readers", {**spec, "address": addresses[number % len(addresses)]}
                ),
                range(_READERS),
            )
        )
    if any(records != stored for one in told for records, _, _ in one["passes"]):
        raise WorkerFailed(f"a reader missed records: {told}")
    return sum(
        sum(size for _, size, _ in one["passes"][1:])
        / sum(seconds for _, _, seconds in one["passes"][1:])
        for one in told
    )


def _lose_disk(system: LiftlogCluster) -> str:
    """Return a follower that has begun with an empty disk."""
    cluster = system.cluster
    newcomer = cluster.followers(_STREAM)[-1]
    cluster.kill(newcomer)
    cluster.wait_isr(_STREAM, set(cluster.nodes) - {newcomer})
    cluster.wipe(newcomer)
    cluster.nodes[newcomer].spawn()
    cluster.nodes[newcomer].wait_listening()
    until(
        lambda: (cluster.stream(_STREAM, through=newcomer).log_end_offset or 0) > 1,
        60,
        "the new replica begins",
    )
    return newcomer


def _pace(spec: dict[str, Any]) -> dict[str, Any]:
    told = run_worker("pacer", {**spec, "payload_bytes": PAYLOAD_BYTES})
    if told["errors"] or told["acked"] != told["offered"]:
        raise WorkerFailed(f"not every message was acked: {told}")
    return told


def _check_behind(system: LiftlogCluster, newcomer: str) -> None:
    if newcomer in system.cluster.stream(_STREAM).isr:
        raise WorkerFailed("the new replica was in sync before the run ended: --gib larger")
