"""What Spark runs to scan ranges: a source whose rows are the results of their tasks.

Spark pickles these classes by their names: every host of a cluster needs liftlog installed. What
passes to them are options, which are text.
"""

from __future__ import annotations

import pickle
from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StringType, StructField, StructType

from liftlog.spark.export.scanning import ScanWork, encode_result, scan_range
from liftlog.spark.transport import ScanRange

RESULT = "result"

_RESULTS = pa.schema([pa.field(RESULT, pa.utf8())])


def pack(value: Any) -> str:
    """For an option; unpacked by the same liftlog in the same job."""
    return b64encode(pickle.dumps(value)).decode()


def unpack(text: str) -> Any:
    return pickle.loads(b64decode(text))  # made by `pack`, on the driver of this job


class RangesSource(DataSource):
    """Scans ranges. Options: `work` and `ranges`, packed."""

    @classmethod
    def name(cls) -> str:
        return "liftlog_export_ranges"

    def schema(self) -> StructType:
        return StructType([StructField(RESULT, StringType())])

    def reader(self, schema: StructType) -> RangesReader:
        return RangesReader(unpack(self.options["work"]), unpack(self.options["ranges"]))


@dataclass
class OneRange(InputPartition):
    wanted: ScanRange


class RangesReader(DataSourceReader):
    def __init__(self, work: ScanWork, ranges: Sequence[ScanRange]) -> None:
        self._work = work
        self._ranges = ranges

    def partitions(self) -> list[InputPartition]:
        return [OneRange(wanted) for wanted in self._ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, OneRange):
            result = encode_result(scan_range(self._work, partition.wanted))
            yield pa.RecordBatch.from_pydict({RESULT: [result]}, schema=_RESULTS)
