"""A local Spark for tests, and checks of the machine's requirements."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest
from support.repository import REPOSITORY

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from support.daemons.served_logs import ServedLogs

T = TypeVar("T")

OLDEST_JAVA = 17
_HOW = (
    f"Spark needs Java {OLDEST_JAVA} or newer: apt install openjdk-17-jre-headless (Debian, "
    "Ubuntu), dnf install java-21-openjdk-headless (Fedora), brew install openjdk (macOS); or let "
    "JAVA_HOME name one"
)


@cache
def missing_for_spark() -> str | None:
    """Return the missing requirement and its remedy; None if Spark can run."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(f"{home}/bin/java" if home else "java")
    if java is None:
        return f"there is no java. {_HOW}"
    said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30).stderr
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    if found is None or int(found[1]) < OLDEST_JAVA:
        return f"{java} is {found[1] if found else 'of an unknown version'}. {_HOW}"
    try:
        import pyspark  # noqa: F401
    except ImportError:
        return "pyspark is not installed: pip install 'liftlog[spark]'"
    return None


def require_spark() -> None:
    """Skip the test with the reason if Spark cannot run. In CI, fail the test."""
    missing = missing_for_spark()
    if missing is not None:
        if os.environ.get("CI") == "true":
            pytest.fail(missing)
        pytest.skip(missing)


def spark_environment() -> dict[str, str]:
    """Return the environment of a process that starts Spark: loopback only, this Python, this
    checkout. Skips the test where Spark cannot run."""
    require_spark()
    path = os.pathsep.join(filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH"))))
    return {
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": path,
    }


def spark_settings(directory: Path) -> dict[str, str]:
    return {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "2",
        "spark.python.authenticate.socketTimeout": "200s",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.local.dir": str(directory / "local"),
        # With these options Spark starts in two thirds of the time. These sessions are short.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC "
        f"-Dderby.system.home={directory}",
    }


def start_spark(directory: Path, master: str = "local[2]") -> SparkSession:
    """Create a new session of this process."""
    from pyspark.sql import SparkSession

    os.environ.update(spark_environment())
    builder = SparkSession.builder.master(master).appName("liftlog tests")
    for name, value in spark_settings(directory).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def patiently(run: Callable[[], T]) -> T:
    """Return the result of a streaming query. If its Python process did not start in time, begin
    the query again.

    Spark gives the process of a streaming source 10 seconds to start, and no setting changes this
    time. On a busy machine this may not be enough. No other failure is retried.
    """
    for _ in range(9):
        try:
            return run()
        except Exception as error:
            if "Python worker failed to connect back" not in str(error):
                raise
    return run()


def run_to_end(spark: SparkSession, logs: ServedLogs, directory: Path, **options: str) -> list[int]:
    """Run a query over all existing records, and return the numbers of rows of its
    micro-batches."""

    def run() -> list[int]:
        query = (
            spark.readStream.format("liftlog")
            .options(server=logs.server, stream="orders", **options)
            .load()
            .writeStream.format("parquet")
            .option("path", str(directory / "lake"))
            .option("checkpointLocation", str(directory / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(250), "the query does not end"
            return [one.numInputRows for one in query.recentProgress if one.numInputRows]
        finally:
            query.stop()

    return patiently(run)
