"""A batch read as Spark calls it: ranges planned on the driver, read in the executors."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from liftlog.spark.options import ReadOptions
from liftlog.spark.scan import plan, read
from liftlog.spark.transport import ScanRange


@dataclass
class RangePartition(InputPartition):
    wanted: ScanRange


def read_partition(options: ReadOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """The rows of a partition; none for the placeholder that Spark creates for an empty plan."""
    _calm_garbage_collector()
    if isinstance(partition, RangePartition):
        yield from read(options, partition.wanted)


class BatchReader(DataSourceReader):
    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        return [RangePartition(wanted) for wanted in plan(self._options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self._options, partition)


@cache
def _calm_garbage_collector() -> None:
    """Once per worker process. Spark runs the garbage collector after every task; scanning what
    PySpark, pyarrow and numpy have loaded takes longer than a small task."""
    gc.collect()
    gc.freeze()
