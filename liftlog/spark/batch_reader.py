"""A batch read, as Spark asks for it: planned on the driver, read in the executors."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from liftlog.spark.options import ReadOptions
from liftlog.spark.partitions import RangePartition, read_partition
from liftlog.spark.scan import plan


class BatchReader(DataSourceReader):
    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        return [RangePartition(wanted) for wanted in plan(self._options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self._options, partition)
