"""Command line: selects the rows, the number of rounds and the place."""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from support.repository import REPOSITORY

from . import (
    behaviour,
    cleaning,
    consuming,
    deciding,
    operating,
    publishing,
    reading,
    rebalancing,
    report,
)
from .figures import LOADS, READ_KINDS, ROWS, WAYS, Measurements, Row, kind_series
from .fsyncs import can_trace
from .processes import WorkerFailed, is_real_disk
from .progress import Progress
from .systems import ALWAYS, CEILING, DEFAULT, LIFTLOG

SYSTEMS = (CEILING, DEFAULT, ALWAYS, LIFTLOG)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tests/bench/run.py",
        description="Measures liftlog beside JetStream on this machine and prints the ratios. "
        "Ends with 1 when a figure falls short of its must.",
        epilog=f"rows: {' '.join(report.row_keys())}",
    )
    parser.add_argument("--quick", action="store_true", help="a rough look: 2 short rounds")
    parser.add_argument("--rounds", type=int, help="interleaved rounds (5; quick: 2)")
    parser.add_argument("--seconds", type=float, help="of each publishing run (3; quick: 1)")
    parser.add_argument(
        "--only", action="append", choices=report.row_keys(), metavar="ROW", help="repeatable"
    )
    parser.add_argument(
        "--systems",
        nargs="+",
        choices=SYSTEMS,
        default=SYSTEMS,
        help="leave others out; rows that need them are then not computed",
    )
    parser.add_argument("--no-fsyncs", action="store_true", help="do not count fsyncs (strace)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all samples there too")
    parser.add_argument(
        "--dir", type=Path, help="where the data go, on a real disk (default: build/)"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr")
    options = parser.parse_args(arguments)
    options.rounds = options.rounds or (2 if options.quick else 5)
    options.seconds = options.seconds or (1.0 if options.quick else 3.0)
    return options


@contextmanager
def scratch_directory(parent: Path | None) -> Iterator[Path]:
    parent = parent or REPOSITORY / "build"
    parent.mkdir(parents=True, exist_ok=True)
    if not is_real_disk(parent):
        raise SystemExit(f"{parent} lies in memory, where fsync costs nothing; choose --dir")
    path = Path(tempfile.mkdtemp(prefix="bench-", dir=parent))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def measure(
    options: argparse.Namespace, directory: Path, measured: Measurements, progress: Progress
) -> None:
    rows = report.rows(options.only or ())
    wanted = {series for row in rows for series in (*row.needs, *row.beside)}
    everything = not options.only
    if everything:
        wanted |= {(name, load) for name in SYSTEMS for load in LOADS}
    wanted = {(who, what) for who, what in wanted if who in (*options.systems, "sendfile")}

    def takers(what: str) -> list[str]:
        return [who for who, series in wanted if series.removesuffix("-p50") == what]

    loads = {load: takers(load) for load in publishing.ALL_LOADS if takers(load)}
    if loads:
        publishing.measure(
            loads, directory, measured, progress, rounds=options.rounds, seconds=options.seconds
        )
        if options.no_fsyncs or not can_trace():
            progress.say("fsyncs are not counted (strace missing, not permitted or not wanted)")
        else:
            publishing.count_fsyncs(loads, directory, measured, progress)
    contents = {what: takers(what) for what in reading.CONTENTS if takers(what)}
    if LIFTLOG not in options.systems:
        contents = {what: [DEFAULT] for what, who in contents.items() if DEFAULT in who}
    if contents:
        share = 0.25 if options.quick else 1.0
        reading.measure(contents, directory, measured, progress, rounds=options.rounds, share=share)
    series = {what for who, what in wanted if who == LIFTLOG}
    kinds = series & {kind_series(kind, way) for kind in READ_KINDS for way in WAYS}
    if kinds:
        share = 0.25 if options.quick else 1.0
        reading.measure_kinds(
            kinds, directory, measured, progress, rounds=options.rounds, share=share
        )
    if (everything or "flood" in options.only) and DEFAULT in options.systems:
        behaviour.flood_jetstream(directory, measured, progress)
    if (LIFTLOG, "flood-500000") in wanted:
        behaviour.flood(directory, measured, progress, repeats=1 if options.quick else 3)
    _measure_cleaning(options, {what for who, what in wanted if who == LIFTLOG}, directory,
                      measured, progress)  # fmt: skip
    _measure_consumers(options, {what for who, what in wanted if who == LIFTLOG}, directory,
                       measured, progress)  # fmt: skip
    if (LIFTLOG, "acl-decision") in wanted:
        deciding.decisions(measured, progress, rounds=options.rounds)
    if wanted & {(LIFTLOG, "scrape"), (LIFTLOG, "scrape-ping-p99")}:
        operating.scrapes(directory, measured, progress, rounds=min(options.rounds, 3))
    if (LIFTLOG, "reload-dropped") in wanted:
        operating.reloads(directory, measured, progress, rounds=min(options.rounds, 3))
    if (LIFTLOG, "term") in wanted:
        operating.terminations(directory, measured, progress, rounds=options.rounds)
    if (LIFTLOG, "idle") in wanted:
        behaviour.idle(directory, measured, progress, seconds=10 if options.quick else 60)


def _measure_cleaning(
    options: argparse.Namespace,
    wanted: set[str],
    directory: Path,
    measured: Measurements,
    progress: Progress,
) -> None:
    share, rounds = (0.1, 1) if options.quick else (1.0, min(options.rounds, 3))
    if "compaction" in wanted:
        cleaning.compaction(directory, measured, progress, rounds=rounds, share=share)
    if "headers-input" in wanted:
        cleaning.compaction_of_headers(directory, measured, progress, rounds=rounds, share=share)
    if "key-memory" in wanted:
        cleaning.memory_per_key(measured, progress, rounds=rounds)
    if "recovery" in wanted:
        cleaning.recovery(directory, measured, progress, rounds=rounds, share=share)
    if "rebatch-after" in wanted:
        cleaning.rebatching(directory, measured, progress, rounds=options.rounds, share=1.0)
    if wanted & {"beside-kept", "beside-p99"}:
        cleaning.beside_publishers(
            directory,
            measured,
            progress,
            rounds=options.rounds,
            seconds=max(options.seconds, 2.0),
        )


_GROUPED = {f"grouped{wall}{form}" for wall in ("", "-wall") for form in ("", "-by-batch")}


def _measure_consumers(
    options: argparse.Namespace,
    wanted: set[str],
    directory: Path,
    measured: Measurements,
    progress: Progress,
) -> None:
    rounds, seconds = options.rounds, max(options.seconds, 2.0)
    if "cold" in wanted:
        consuming.cold(directory, measured, progress, rounds=rounds)
    if "tailing-p99" in wanted:
        consuming.tailing(directory, measured, progress, rounds=rounds, seconds=seconds)
    if "ingest-tailed" in wanted:
        consuming.beside_consumers(directory, measured, progress, rounds=rounds, seconds=seconds)
    if "filtered" in wanted:
        consuming.filtering(directory, measured, progress, rounds=min(rounds, 3))
    if "checkpoints" in wanted:
        consuming.checkpoints(directory, measured, progress, rounds=rounds, seconds=seconds)
    if wanted & _GROUPED:
        consuming.groups(directory, measured, progress, rounds=min(rounds, 3))
    if "grouped-live" in wanted:
        consuming.live_groups(directory, measured, progress, rounds=rounds, seconds=seconds)
    if wanted & {"group-takeover", "group-delay-near"}:
        rebalancing.rebalancing(directory, measured, progress, rounds=max(rounds, 3))
    if "group-commits" in wanted:
        consuming.group_commits(directory, measured, progress, rounds=rounds, seconds=seconds)


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    progress = Progress(quiet=options.quiet)
    measured = Measurements()
    signal.signal(signal.SIGTERM, interrupt)
    try:
        with scratch_directory(options.dir) as directory:
            about = report.environment(directory)
            measure(options, directory, measured, progress)
    except WorkerFailed as error:
        print(f"The figures are void: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("Interrupted; servers stopped, files removed.", file=sys.stderr)
        return 130
    print(report.render(measured, about, options.rounds))
    if options.json:
        options.json.write_text(json.dumps(as_json(measured, about, options.rounds), indent=2))
    short = report.shortfalls(measured)
    if short:
        print(f"\nShort of their must: {', '.join(short)}")
    return 1 if short else 0


def as_json(
    measured: Measurements, about: dict[str, Any], rounds: int, rows: Sequence[Row] = ROWS
) -> dict[str, Any]:
    samples: dict[str, dict[str, list[float]]] = {}
    for (who, what), values in measured.samples.items():
        samples.setdefault(who, {})[what] = values
    ratios = report.ratios(measured, rows)
    return {"environment": about, "rounds": rounds, "ratios": ratios, "samples": samples}


def interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
