"""Command line of the Spark benchmark."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from support.spark.session import missing_for_spark

from . import report, sparking
from .budget import Rounds
from .figures import SPARK_ROWS, Measurements
from .main import as_json, interrupt, scratch_directory
from .processes import WorkerFailed
from .progress import Progress


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tests/bench/spark.py",
        description="Measures Spark over a stream on this machine and prints the ratios. "
        "Ends with 1 when a figure falls short of its must.",
    )
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds (3)")
    parser.add_argument(
        "--minutes",
        type=float,
        default=8.0,
        help="what begins later is measured in one round (8)",
    )
    parser.add_argument(
        "--only", action="append", choices=sparking.PARTS, help="what is measured; repeatable"
    )
    parser.add_argument("--records", type=int, default=2_000_000, help="of 200 B (2,000,000)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all samples there too")
    parser.add_argument(
        "--dir", type=Path, help="where the data go, on a real disk (default: build/)"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    missing = missing_for_spark()
    if missing is not None:
        print(missing, file=sys.stderr)
        return 2
    started = time.monotonic()
    measured = Measurements()
    signal.signal(signal.SIGTERM, interrupt)
    try:
        with scratch_directory(options.dir) as directory:
            about = report.environment(directory)
            progress = Progress(quiet=options.quiet)
            rounds = Rounds(options.rounds, 60 * options.minutes)
            sparking.measure(
                directory,
                measured,
                progress,
                rounds=rounds,
                records=options.records,
                only=options.only or sparking.PARTS,
            )
    except WorkerFailed as error:
        print(f"The figures are void: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("Interrupted; servers stopped, files removed.", file=sys.stderr)
        return 130
    print(report.render_spark(measured, about, options.rounds))
    if options.json:
        found = as_json(measured, about, options.rounds, SPARK_ROWS)
        options.json.write_text(json.dumps(found, indent=2))
    print(f"\nIt took {(time.monotonic() - started) / 60:.1f} minutes.")
    short = report.shortfalls(measured, SPARK_ROWS)
    if short:
        print(f"\nShort of their must: {', '.join(short)}")
    return 1 if short else 0
