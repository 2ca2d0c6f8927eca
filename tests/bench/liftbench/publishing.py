"""Measures publishing: messages per second, round trips, and the number of fsyncs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from .figures import KIND_LOADS, LOADS, SPREAD, STREAM_LOADS, Measurements, Series
from .fsyncs import FsyncTrace
from .kinds import LIFTBRIDGE, PLAIN
from .processes import WorkerFailed, run_worker, settle_disk
from .progress import Progress
from .systems import ALWAYS, CEILING, DEFAULT, LIFTLOG, Ceiling, JetStream, Liftlog, System

ALL_LOADS = {
    **{load: (PLAIN, *each) for load, each in (LOADS | SPREAD).items()},
    **KIND_LOADS,
    **{load: (PLAIN, *each[1:]) for load, each in STREAM_LOADS.items()},
}
SUBJECT = "bench.publish"
_FSYNC_SECONDS = 1.0
_NAME_CHARS = 24
"""Length of the name of every stream. The name is in each ack, so names of different lengths would
make the acks of one load longer."""


def build(name: str, directory: Path, wrapper: Sequence[str] = ()) -> System:
    if name == LIFTLOG:
        return Liftlog(directory, wrapper=wrapper)
    if name == CEILING:
        return Ceiling(directory, wrapper=wrapper)
    return JetStream(directory, always=name == ALWAYS, wrapper=wrapper)


def measure(
    wanted: Mapping[str, Sequence[str]],
    directory: Path,
    measured: Measurements,
    progress: Progress,
    *,
    rounds: int,
    seconds: float,
    order: Sequence[str] = (CEILING, DEFAULT, ALWAYS, LIFTLOG),
    builder: Callable[[str, Path], System] = build,
) -> None:
    """Measure the loads. `wanted` maps loads to systems. Within a round the systems take turns at
    each load."""
    names = [name for name in order if any(name in w for w in wanted.values())]
    with ExitStack() as stack:
        systems = {name: stack.enter_context(builder(name, directory / name)) for name in names}
        for number in range(rounds):
            for load, takers in wanted.items():
                ordered = [name for name in names if name in takers]
                # The system that is first in this round is last in the next one.
                first = number % len(ordered)
                for name in ordered[first:] + ordered[:first]:
                    outcome = publish_once(systems[name], load, seconds=seconds)
                    _record(measured, name, load, outcome)
                    progress.say(
                        f"round {number + 1}/{rounds} {load:>7} {name:<18} "
                        f"{outcome['rate']:>10,.0f}/s  publisher {outcome['cpu']:.0%} of a core"
                    )


def publish_once(system: System, load: str, **more: Any) -> dict[str, Any]:
    """Run on new streams, which must then contain exactly the acked messages."""
    stream = f"bench-{load.replace('+', '-')}".ljust(_NAME_CHARS, "-")
    kind, connections, in_flight = ALL_LOADS[load]
    count = STREAM_LOADS.get(load, (1,))[0]
    streams = {stream: SUBJECT}
    if count > 1:
        streams = {f"{stream[:-3]}{n:03}": f"{SUBJECT}.{n}" for n in range(count)}
    settle_disk()
    created: list[str] = []
    try:
        for name, subject in streams.items():
            system.create(name, subject, kind=kind)
            created.append(name)
        spec = {"connections": connections, "in_flight": in_flight, "kind": kind, **more}
        spec["streams"] = count
        if kind == LIFTBRIDGE and system.name.startswith(LIFTLOG):
            spec["liftbridge_acks"] = True
        outcome = run_worker("publisher", {"port": system.port, "subject": SUBJECT, **spec})
        stored = sum(map(system.stored, streams))
        if stored != outcome["acked"] - outcome["duplicates"]:
            raise WorkerFailed(
                f"{system.name}: {outcome['acked']} acked, of them {outcome['duplicates']} as "
                f"duplicates, {stored} stored"
            )
        outcome["fsyncs"] = _sum([system.fsyncs(name) for name in streams])
        return outcome
    finally:
        for name in created:
            system.delete(name)


def _sum(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def _record(measured: Measurements, name: str, load: str, outcome: Mapping[str, Any]) -> None:
    measured.add(name, load, outcome["rate"])
    measured.add(name, f"{load}-publisher-cpu", outcome["cpu"])
    if outcome["fsyncs"] is not None:
        measured.add(name, f"{load}-fsyncs", outcome["fsyncs"] * 1000 / outcome["acked"])
    for figure in ("p50", "p99"):
        if outcome[f"{figure}_us"] is not None:
            measured.add(name, f"{load}-{figure}", outcome[f"{figure}_us"])


def count_fsyncs(
    wanted: Mapping[str, Sequence[str]],
    directory: Path,
    measured: Measurements,
    progress: Progress,
) -> None:
    """Count fsyncs per 1,000 acks, in short separate runs on servers under strace.

    If a system counts its fsyncs itself, the figure comes from the timed runs, and strace only
    checks it.
    """
    for name in (DEFAULT, ALWAYS, LIFTLOG):
        spans: list[tuple[Series, float, float, int]] = []
        trace = FsyncTrace(directory / f"{name}.strace")
        with ExitStack() as stack:
            system: System | None = None
            for load in (load for load, takers in wanted.items() if name in takers):
                if load in KIND_LOADS or load in STREAM_LOADS:
                    continue  # headers have no effect, and each stream is synced alone
                if system is None:
                    place = directory / f"{name}-traced"
                    system = stack.enter_context(build(name, place, trace.wrapper))
                since = time.time()
                outcome = publish_once(system, load, seconds=_FSYNC_SECONDS, warmup_seconds=0.1)
                told = outcome["fsyncs"] is not None
                series = (name, f"{load}-fsyncs-traced" if told else f"{load}-fsyncs")
                spans.append((series, since, time.time(), outcome["acked"]))
        for (who, what), since, until, acked in spans:
            calls = trace.count(since, until)
            measured.add(who, what, calls * 1000 / acked)
            progress.say(f"strace {what:<20} {who:<18} {calls:>7,} / {acked:,} acks")
