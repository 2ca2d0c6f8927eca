"""Measures the bytes that an incremental export writes. Load on the machine does not change this
number.

The table is compacted and has at least 128 buckets. Each run follows a change of 1 % of the keys,
chosen at random, so every bucket has changed keys. The broker and the tasks run in this process.
"""

from __future__ import annotations

import random
from pathlib import Path

from support.disks.crashing_disk import disk
from support.spark.exporting import Export, ExportedStreams, Put

from liftlog.spark.export import newest

from .figures import Measurements
from .progress import Progress
from .systems import LIFTLOG

KEYS = 100_000
RUNS = 5
SERIES = 30
"""Enough for a fold."""
_STREAM = "changing"
_GROUP = 10_000
_VALUE_BYTES = 200
_BUCKETS = 128


def incremental(
    directory: Path, measured: Measurements, progress: Progress, *, keys: int = KEYS
) -> None:
    """Measure the bytes written by a run divided by the bytes of the table: of RUNS runs with each
    layout, and the mean of SERIES runs with merge on read, including folds."""
    chance = random.Random(1)
    directory.mkdir()

    def puts(numbers: list[int]) -> list[Put]:
        return [
            Put(f"customer-{number}", chance.randbytes(_VALUE_BYTES // 2).hex().encode())
            for number in numbers
        ]

    with ExportedStreams(directory / "broker") as streams, disk():  # bytes need no fsync
        streams.create(_STREAM, segment={"max_bytes": "64MiB"})
        for first in range(0, keys, _GROUP):
            streams.put(_STREAM, puts(list(range(first, min(first + _GROUP, keys)))))
        part = keys * _VALUE_BYTES // _BUCKETS
        tables = {
            "rewriting": Export(streams, _STREAM, str(directory / "rewriting")),
            "merged": Export(streams, _STREAM, str(directory / "merged"), layout="merge-on-read"),
        }
        for export in tables.values():
            export(partition_bytes=part)
        shares = []
        for run in range(SERIES):
            streams.put(_STREAM, puts(chance.sample(range(keys), keys // 100)))
            shares.append(tables["merged"](partition_bytes=part).written_share)
            progress.say(f"run {run + 1} of {SERIES}: {shares[-1]:.4f}")
            if run < RUNS:
                share = tables["rewriting"](partition_bytes=part).written_share
                measured.add(LIFTLOG, "incremental", shares[-1])
                measured.add(LIFTLOG, "incremental-rewriting", share)
        measured.add(LIFTLOG, "incremental-series", sum(shares) / SERIES)
        snapshot = newest(str(directory / "merged"))
    assert snapshot is not None
    assert snapshot.rows == keys
    folds = sum(share > 0.5 for share in shares)
    progress.say(
        f"incremental export, 1 % of {keys:,} keys: written / table "
        f"{measured.median((LIFTLOG, 'incremental')):.3f}, rewriting "
        f"{measured.median((LIFTLOG, 'incremental-rewriting')):.3f}; mean of {SERIES} runs with "
        f"{folds} folds {sum(shares) / SERIES:.3f}"
    )
