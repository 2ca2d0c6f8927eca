"""Streams as tables: `liftlog export`, and how its result is read.

    planning               the request, and where a run begins: pure
    snapshot               the content of the table after a run; the bytes of a manifest: pure
    store                  files in a directory, or at a URL
    table, manifests       snapshots that are committed by one link()
    delta                  the same for a Delta table
    opening                a table, opened for a run; its newest snapshot, for readers
    run_plan               the input of a run, fixed under a lease
    tasks                  the tasks of all phases, which any host can run: scan, merge, optimize
    scanning               one range of the log -> files
    merging                which files are rewritten, and one bucket of keys -> a file
    changes                merge on read: which rows replace which, instead of rewriting files
    packing                which small files become one, and their rows -> a file
    files                  the files of the table, and those between the phases
    buckets                which keys belong to which merge task
    engine                 runs the tasks on Spark: the only module that imports pyspark at its top
    session                a Spark session, or an error that names the missing package
    interrupts             Ctrl-C while Spark starts and while it works
    job                    a whole run, step by step

A run changes no existing file: it adds files that no snapshot names yet, and then commits them in
one atomic step. A crash before that step leaves files that a later run removes; a crash after it
leaves a complete table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from liftlog.spark.export.opening import batches, in_doubt, newest, paths, query, vacuum

__all__ = ["batches", "in_doubt", "newest", "paths", "query", "read", "vacuum"]


def __getattr__(name: str) -> Any:
    # `session`, which reports what is not installed, must be importable without pyarrow.
    if name in __all__:
        from liftlog.spark.export import opening

        return getattr(opening, name)
    raise AttributeError(name)


def read(spark: SparkSession, directory: str) -> DataFrame:
    """The newest snapshot of an export as a DataFrame. Raises StreamNotFound if there is none."""
    from liftlog.spark.export.engine import read_snapshot

    return read_snapshot(spark, directory)
