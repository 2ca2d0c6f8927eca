"""Leases of reads that end before their last record, as `limit` and `show` do."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.spark.exporting import ExportedStreams, Put
from support.spark.spark_jar import JarOfSession

from liftlog.client import SyncClient, connect_sync
from liftlog.errors import LimitExceeded

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
            streams.put("in", [Put(None, b"v" * 1000)] * 5000)
        yield streams


@pytest.fixture
def client(streams: ExportedStreams) -> Iterator[SyncClient]:
    with connect_sync(f"tcp://{streams.server}") as client:
        yield client


def read(spark: SparkSession, streams: ExportedStreams, partition_size: str) -> DataFrame:
    options = {"stream": "in", "server": streams.server, "targetPartitionBytes": partition_size}
    return spark.read.format("liftlog").options(**options).load()


def test_the_jar_ends_leases_with_its_readers(
    spark: SparkSession, streams: ExportedStreams, client: SyncClient
) -> None:
    with JarOfSession(spark).used():
        for action in EARLY:
            action(read(spark, streams, "1GiB"))
            assert client.list_leases("in") == []


def test_reads_that_stop_early_make_room_for_others(
    spark: SparkSession, streams: ExportedStreams, client: SyncClient
) -> None:
    """Some of several parts are never begun."""
    with JarOfSession(spark).used():
        read(spark, streams, "1MiB").limit(1).collect()
        with pytest.raises(LimitExceeded):
            while True:
                client.acquire_lease("in", ttl=100)
        streams.cleaning.judge_readers_by(lambda: time.monotonic() + 16)
        assert read(spark, streams, "1GiB").count() == 20_000
