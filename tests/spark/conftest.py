"""One Spark session for all tests of a process: it takes longer to start than most of them to
run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.daemons.served_logs import ServedLogs
from support.spark.session import require_spark, start_spark
from support.spark.spark_jar import JarOfSession

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    require_spark()
    session = start_spark(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()


@pytest.fixture(scope="module")
def jar(spark: SparkSession) -> Iterator[JarOfSession]:
    """For the tests of a module, `format("liftlog")` is the connector in Java."""
    found = JarOfSession(spark)
    with found.used():
        yield found


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[ServedLogs]:
    with ServedLogs(tmp_path / "streams") as served:
        yield served
