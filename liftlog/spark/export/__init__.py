"""Streams as tables: `liftlog export`, and functions that read its result.

    planning               the request, and the offset where a run begins: pure
    snapshot               the content of the table after a run; the bytes of a manifest: pure
    store                  files in a directory, or at a URL
    table, manifests       a table whose snapshots are committed by one link()
    delta                  a Delta table
    opening                opens a table for a run, or its newest snapshot for readers
    run_plan               the input of a run, fixed under a lease
    tasks                  the tasks of all phases, which any host can run: scan, merge, optimize
    scanning               writes one range of the log to files
    merging                decides which files to rewrite; writes one bucket of keys to a file
    changes                merge on read: adds rows, and the offsets of the rows that they replace
    erasing                removes rows of erased records: rewrites the files that hold them
    packing                decides which small files become one; writes their rows to a file
    files                  the files of the table, and the files that one phase passes to the next
    buckets                divides keys among merge tasks
    engine                 runs the tasks on Spark: the only module that imports pyspark at its top
    session                a Spark session, or an error that names the missing package
    interrupts             Ctrl-C while Spark starts and while it works
    job                    a whole run, step by step

A run does not change existing files. The run adds files that no snapshot names yet, and then
commits these files in one atomic step. A crash before that step leaves files that a later run
removes; a crash after it leaves a complete table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from liftlog.spark.export.opening import batches, in_doubt, newest, paths, query, vacuum

__all__ = ["batches", "in_doubt", "newest", "paths", "query", "read", "vacuum"]


def __getattr__(name: str) -> Any:
    # `session` must be importable without pyarrow, because it reports missing packages.
    if name in __all__:
        from liftlog.spark.export import opening

        return getattr(opening, name)
    raise AttributeError(name)


def read(spark: SparkSession, directory: str) -> DataFrame:
    """Return the newest snapshot of an export as a DataFrame. Raises StreamNotFound if the
    directory has no snapshot."""
    from liftlog.spark.export.engine import read_snapshot

    return read_snapshot(spark, directory)
