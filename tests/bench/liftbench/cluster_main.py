"""Command line of the benchmark of replicated streams."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from . import publishing, replicated, replicating, report
from .figures import Measurements
from .main import as_json, interrupt, scratch_directory
from .processes import WorkerFailed
from .progress import Progress
from .replicated import REPLICATED, RF3

NEW_REPLICA = "new-replica-p99"
FOLLOWER_READS = {"reads-followers", "reads-followers-cpu", "reads-leader-share"}


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    keys = [row.key for row in replicating.ROWS]
    parser = argparse.ArgumentParser(
        prog="tests/bench/cluster.py",
        description="Measures three daemons that replicate beside JetStream R3 on this machine and "
        "prints the ratios. Ends with 1 when a figure falls short of its must.",
        epilog=f"rows: {' '.join(keys)}",
    )
    parser.add_argument("--quick", action="store_true", help="a rough look: 2 short rounds")
    parser.add_argument("--rounds", type=int, help="interleaved rounds (5; quick: 2)")
    parser.add_argument("--seconds", type=float, help="of each publishing run (3; quick: 1)")
    parser.add_argument("--only", action="append", choices=keys, metavar="ROW", help="repeatable")
    parser.add_argument(
        "--systems",
        nargs="+",
        choices=REPLICATED,
        default=REPLICATED,
        help="leave others out; rows that need them are then not computed",
    )
    parser.add_argument("--gib", type=float, help="that a new replica fetches (5; quick: 1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all samples there too")
    parser.add_argument(
        "--dir", type=Path, help="where the data go, on a real disk (default: build/)"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr")
    options = parser.parse_args(arguments)
    options.rounds = options.rounds or (2 if options.quick else 5)
    options.seconds = options.seconds or (1.0 if options.quick else 3.0)
    options.gib = options.gib or (1.0 if options.quick else 5.0)
    return options


def measure(
    options: argparse.Namespace, directory: Path, measured: Measurements, progress: Progress
) -> None:
    rows = [row for row in replicating.ROWS if not options.only or row.key in options.only]
    wanted = {series for row in rows for series in row.needs if series[0] in options.systems}
    taken: dict[str, list[str]] = {}
    for load in publishing.ALL_LOADS:
        takers = {who for who, what in wanted if what.removesuffix("-p50") == load}
        if takers and not options.only and "-" not in load:
            takers = set(options.systems)  # the whole table
        if takers:
            taken[load] = sorted(takers, key=REPLICATED.index)
    publishing.measure(
        taken,
        directory,
        measured,
        progress,
        rounds=options.rounds,
        seconds=options.seconds,
        order=REPLICATED,
        builder=replicated.build,
    )
    if FOLLOWER_READS & {row.key for row in rows} and RF3 in options.systems:
        replicating.follower_reads(
            directory, measured, progress, rounds=options.rounds, gib=options.gib / 20
        )
    if NEW_REPLICA in {row.key for row in rows} and RF3 in options.systems:
        replicating.new_replica(
            directory,
            measured,
            progress,
            rounds=min(options.rounds, 2),
            seconds=max(options.seconds * 2, 4.0),
            gib=options.gib,
        )


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
    print(report.render_cluster(measured, about, options.rounds))
    if options.json:
        found = as_json(measured, about, options.rounds, replicating.ROWS)
        options.json.write_text(json.dumps(found, indent=2))
    short = report.shortfalls(measured, replicating.ROWS)
    if short:
        print(f"\nShort of their must: {', '.join(short)}")
    return 1 if short else 0
