"""Leases of reads that end before their last record, as `limit` and `show` do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.exporting import ExportedStreams, Put
from support.spark_jar import JarOfSession

from liftlog.client import SyncClient, connect_sync
from liftlog.spark.leases import READING_SECONDS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EARLY: list[Callable[[DataFrame], Any]] = [
    lambda frame: frame.limit(1).collect(),
    lambda frame: frame.first(),
    lambda frame: frame.isEmpty(),
]


@pytest.fixture
def streams(tmp_path: Path) -> Iterator[ExportedStreams]:
    with ExportedStreams(tmp_path / "streams") as streams:
        streams.create("in", subject="in")
        for _ in range(4):
            streams.put("in", [Put(None, b"v" * 1000)] * 1000)
        yield streams


@pytest.fixture
def client(streams: ExportedStreams) -> Iterator[SyncClient]:
    with connect_sync(f"tcp://{streams.server}") as client:
        yield client


def remaining_ms(client: SyncClient) -> list[int]:
    return [lease.remaining_ms for lease in client.list_leases("in")]


def read(spark: SparkSession, streams: ExportedStreams, partition_size: str) -> DataFrame:
    options = {"stream": "in", "server": streams.server, "targetPartitionBytes": partition_size}
    return spark.read.format("liftlog").options(**options).load()


def test_the_jar_ends_leases_with_its_readers(
    spark: SparkSession, streams: ExportedStreams, client: SyncClient
) -> None:
    with JarOfSession(spark).used():
        for action in EARLY:
            action(read(spark, streams, "1GiB"))
            assert remaining_ms(client) == []
        for action in EARLY:  # of several parts, some are not even begun
            action(read(spark, streams, "1MiB"))
            assert max(remaining_ms(client), default=0) <= 5_000


def test_leases_of_python_end_soon(
    spark: SparkSession, streams: ExportedStreams, client: SyncClient
) -> None:
    """Spark kills the process that reads, so it can report nothing."""
    for action in EARLY:
        action(read(spark, streams, "1GiB"))
    assert max(remaining_ms(client), default=0) <= 1000 * READING_SECONDS
