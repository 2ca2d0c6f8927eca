"""Streams as tables: `liftlog export`, and how its result is read.

    request, planning      what is asked for, and where a run begins: pure
    snapshot               what is in the table after a run; the bytes of a manifest: pure
    store, remote_store    files in a directory, and behind a URL
    table, manifests       snapshots that become real by one link()
    delta                  the same over a Delta table
    opening                which of them a place and a format ask for
    run_plan               what a run reads, fixed under a lease
    tasks                  what both phases run, on any host: scanning, then merging
    scanning               one range of the log -> files
    merging                which files are written anew, and one bucket of keys -> a file
    packing                which small files become one, and their rows -> a file
    parquet, staging       the files of the table, those between the phases; both are a `row_file`
    inputs, buckets        how a merge reads them, and which keys are its own
    source, engine         the only modules that import pyspark: scan and merge on Spark
    session                a Spark session, or what is missing for one
    renewed_lease          the lease that is held meanwhile
    job                    all of it together, step by step
    reading                the newest snapshot for those who read it

A run changes nothing that is there: it adds files that nobody knows of, and then makes them real by
one atomic step. A crash before that step leaves files that a later run removes, a crash after it
leaves a table that is complete.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from liftlog.spark.export.reading import in_doubt, newest, paths

__all__ = ["in_doubt", "newest", "paths", "read"]


def __getattr__(name: str) -> Any:
    # `session`, which tells what is not installed, must be importable without pyarrow.
    if name in ("in_doubt", "newest", "paths"):
        from liftlog.spark.export import reading

        return getattr(reading, name)
    raise AttributeError(name)


def read(spark: SparkSession, directory: str) -> DataFrame:
    """The newest snapshot of an export as a DataFrame. Raises StreamNotFound when there is none."""
    from liftlog.spark.export.engine import read_snapshot

    return read_snapshot(spark, directory)
