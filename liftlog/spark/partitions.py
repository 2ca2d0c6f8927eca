"""A range on its way from the driver to a task."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from liftlog.spark.options import ReadOptions
from liftlog.spark.scan import read
from liftlog.spark.transport import ScanRange


@dataclass
class RangePartition(InputPartition):
    wanted: ScanRange


def read_partition(options: ReadOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """The rows of a partition; none for the empty one that Spark makes up for an empty plan."""
    _calm_garbage_collector()
    if isinstance(partition, RangePartition):
        yield from read(options, partition.wanted)


@cache
def _calm_garbage_collector() -> None:
    """Once in each worker process. Spark collects after every task, and what PySpark, pyarrow and
    numpy loaded stays for good: looking at it again and again takes longer than a small task."""
    gc.collect()
    gc.freeze()
