"""The jar of `spark-connector/` in the Spark session of the tests, beside the Python source."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from liftlog.spark.options import parse_options
from liftlog.spark.scan import plan, read
from tools import spark_jar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ALL_COLUMNS = "offset,timestamp,subject,key,headers,value,stream"


def require_jar() -> str:
    """The path of the jar, compiled if necessary. Skips the test where there is no compiler, and
    fails it in CI."""
    if shutil.which("javac") is None and os.environ.get("CI") != "true":
        pytest.skip("there is no javac: apt install default-jdk-headless")
    spark_jar.build()
    return str(spark_jar.JAR)


@contextmanager
def added_jar(spark: SparkSession) -> Iterator[None]:
    """With the jar on the class path of this thread's session, as `ADD JAR` puts it; afterwards
    `format("liftlog")` is the Python source again."""
    jvm: Any = spark._jvm
    thread = jvm.java.lang.Thread.currentThread()
    before = thread.getContextClassLoader()
    spark.sql(f"ADD JAR '{require_jar()}'")
    try:
        yield
    finally:
        thread.setContextClassLoader(before)


@contextmanager
def without_jar(spark: SparkSession) -> Iterator[None]:
    """Inside `added_jar`: the Python source for a while."""
    jvm: Any = spark._jvm
    thread = jvm.java.lang.Thread.currentThread()
    jar = thread.getContextClassLoader()
    thread.setContextClassLoader(jar.getParent())
    try:
        yield
    finally:
        thread.setContextClassLoader(jar)


def jar_rows(spark: SparkSession, condition: str = "", **options: Any) -> list[dict[str, Any]]:
    """What the jar reads, in order."""
    frame = spark.read.format("liftlog").options(**options).load()
    if condition:
        frame = frame.where(condition)
    table: Any = frame.toArrow()
    return _ordered(table.to_pylist())


def python_rows(**options: Any) -> list[dict[str, Any]]:
    """What the Python source reads, without Spark."""
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
