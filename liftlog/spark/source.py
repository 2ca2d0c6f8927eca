"""The data source: the class that Spark calls.

Spark pickles these classes by their names, so liftlog must be installed on every host of a cluster.
"""

from __future__ import annotations

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from liftlog.errors import InvalidArgument
from liftlog.spark.batch import PushdownReader, RangeReader
from liftlog.spark.columns import (
    HEADERS,
    KEY,
    NULLABLE,
    OFFSET,
    STREAM,
    SUBJECT,
    TIMESTAMP,
    VALUE,
)
from liftlog.spark.options import ScanOptions, parse_options
from liftlog.spark.streaming import StreamReader

_TYPES: dict[str, DataType] = {
    OFFSET: LongType(),
    TIMESTAMP: TimestampType(),
    SUBJECT: StringType(),
    KEY: BinaryType(),
    HEADERS: ArrayType(
        StructType([StructField("key", StringType()), StructField("value", BinaryType())])
    ),
    VALUE: BinaryType(),
    STREAM: StringType(),
}


class LiftlogSource(DataSource):
    """The data source `format("liftlog")`. docs/reference/spark.md describes its options."""

    @classmethod
    def name(cls) -> str:
        return "liftlog"

    def schema(self) -> StructType:
        # At this point it is unknown whether the read is a batch or a stream.
        options = {
            name: value
            for name, value in self.options.items()
            if name.lower() in ("columns", "includeheaders")
        }
        return spark_schema(parse_options({"stream": "any", **options}))

    def reader(self, schema: StructType) -> RangeReader:
        options = parse_options(self.options)
        _check_schema(schema, options)
        return PushdownReader(options) if options.pushdown else RangeReader(options)

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802
        options = parse_options(self.options, streaming=True)
        _check_schema(schema, options)
        return StreamReader(options)


def spark_schema(options: ScanOptions) -> StructType:
    return StructType(
        [StructField(name, _TYPES[name], name in NULLABLE) for name in options.columns]
    )


def _check_schema(schema: StructType, options: ScanOptions) -> None:
    if schema != spark_schema(options):
        raise InvalidArgument(
            "the schema of a stream is fixed; .schema(...) cannot change it",
            hint="choose the columns with the option columns",
        )
