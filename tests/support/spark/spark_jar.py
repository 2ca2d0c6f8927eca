"""The jar of `spark-connector/` in the Spark session of the tests, in addition to the Python
source."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from liftlog.spark import jar
from liftlog.spark.options import parse_options
from liftlog.spark.scan import plan, read
from tools import spark_jar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ALL_COLUMNS = "offset,timestamp,subject,key,headers,value,stream"


def require_jar() -> str:
    """Return the path of the jar, compiled if necessary. Skips the test if there is no compiler; in
    CI, fails the test."""
    if shutil.which("javac") is None and os.environ.get("CI") != "true":
        pytest.skip("there is no javac: apt install default-jdk-headless")
    spark_jar.build()
    return jar()


def hadoop_of(spark: SparkSession) -> Any:
    """Return Hadoop's configuration, which pyspark does not provide."""
    return spark._jsc.hadoopConfiguration()  # type: ignore[attr-defined]


def executed_plan(frame: Any) -> Any:
    """Return Spark's plan, as an object of its JVM."""
    return _execution(frame).executedPlan()


def partition_count(frame: Any) -> int:
    """Return the number of partitions of a read."""
    return int(_execution(frame).toRdd().getNumPartitions())


def _execution(frame: Any) -> Any:
    return frame._jdf.queryExecution()


class JarOfSession:
    """Puts the jar on the class path, like `ADD JAR`. It is only used inside of `used`."""

    def __init__(self, spark: SparkSession) -> None:
        jvm: Any = spark._jvm
        self._thread = jvm.java.lang.Thread.currentThread()
        self._without = self._thread.getContextClassLoader()
        spark.sql(f"ADD JAR '{require_jar()}'")
        self._with = self._thread.getContextClassLoader()
        self._thread.setContextClassLoader(self._without)

    def used(self) -> AbstractContextManager[None]:
        return self._while(self._with)

    def unused(self) -> AbstractContextManager[None]:
        """Use the Python source temporarily, inside of `used`."""
        return self._while(self._without)

    @contextmanager
    def _while(self, loader: Any) -> Iterator[None]:
        before = self._thread.getContextClassLoader()
        self._thread.setContextClassLoader(loader)
        try:
            yield
        finally:
            self._thread.setContextClassLoader(before)


def jar_rows(spark: SparkSession, condition: str = "", **options: Any) -> list[dict[str, Any]]:
    """Return the rows that the jar reads, in order."""
    frame = spark.read.format("liftlog").options(**options).load()
    if condition:
        frame = frame.where(condition)
    table: Any = frame.toArrow()
    return _ordered(table.to_pylist())


def python_rows(**options: Any) -> list[dict[str, Any]]:
    """Return the rows that the Python source reads, without Spark."""
    parsed = parse_options({name: str(value) for name, value in options.items()})
    rows = [
        row
        for wanted in plan(parsed)
        for batch in read(parsed, wanted)
        for row in batch.to_pylist()
    ]
    return _ordered(rows)


def _ordered(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: row["offset"]) if rows and "offset" in rows[0] else rows
