"""A data source for Spark without Arrow: the same batches, with one tuple per record.

Spark pickles the classes by name: its Python workers import this module.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from liftlog.records.decode import RecordBatch
from liftlog.spark.batch import RangePartition
from liftlog.spark.options import ScanOptions, parse_options
from liftlog.spark.scan import open_transport, plan
from liftlog.spark.source import spark_schema
from liftlog.spark.transport import Losses

Row = tuple[int, datetime, str, bytes | None, bytes | None]


def tuples_of(batches: Iterable[RecordBatch]) -> Iterator[Row]:
    """Yield offset, timestamp, subject, key and value, in the form that Spark accepts from a Python
    source."""
    stamp = datetime.fromtimestamp
    for batch in batches:
        stamps = [stamp(ns / 1e9, UTC) for ns in batch.timestamps_ns()]
        columns = (batch.offsets(), stamps, batch.subjects(), batch.keys(), batch.values())
        yield from zip(*columns, strict=True)


class TupleSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "liftlog-tuples"

    def schema(self) -> StructType:
        return spark_schema(parse_options({"stream": "any"}))

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(parse_options(self.options))


class _Reader(DataSourceReader):
    def __init__(self, options: ScanOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        return [RangePartition(wanted) for wanted in plan(self._options)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, RangePartition)
        with open_transport(self._options) as transport:
            wanted = partition.wanted
            batches = transport.batches(wanted, Losses(wanted.stream, fail=True))
            yield from tuples_of(batches)
