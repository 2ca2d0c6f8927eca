"""Batch reads in small partitions; retention wants to remove all that they have planned."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.spark.exporting import ExportedStreams, Put
from support.spark.spark_jar import JarOfSession, partition_count

from liftlog.server.streams.retention import decide_retention, remove_decided
from liftlog.spark.options import parse_options
from liftlog.spark.scan import plan, read

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(400)

KEPT = 300
RUNS = 14
PARTS = 5


def turn_over(streams: ExportedStreams) -> None:
    """As many new records as retention keeps, and a round of retention."""
    for _ in range(3):
        streams.put("in", [Put(None, b"v" * 100)] * (KEPT // 3))

    def retain() -> None:
        broker = streams.cleaning.running.broker
        host, now_ns = broker.hosts["in"], broker.now_ns()
        decision = decide_retention(host.log, host.settings, now_ns)
        if decision is not None:
            remove_decided(host.log, decision, now_ns)

    streams.run(retain)


def by_jar(spark: SparkSession, options: dict[str, str]) -> Callable[[], list[int]]:
    """Plans a read; returns what carries it out."""
    with JarOfSession(spark).used():
        frame: Any = spark.read.format("liftlog").options(**options).load().select("offset")
        assert partition_count(frame) > PARTS
    return lambda: frame.toArrow().column(0).to_pylist()


def by_python(spark: SparkSession, options: dict[str, str]) -> Callable[[], list[int]]:
    parsed = parse_options(options)
    ranges = plan(parsed)
    assert len(ranges) > PARTS
    return lambda: [
        offset
        for wanted in ranges
        for batch in read(parsed, wanted)
        for offset in batch.column("offset").to_pylist()
    ]


@pytest.mark.parametrize("planned", [by_jar, by_python])
def test_what_was_planned_is_read(
    spark: SparkSession, tmp_path: Path, planned: Callable[..., Callable[[], list[int]]]
) -> None:
    with ExportedStreams(tmp_path / "data") as streams:
        streams.create("in", compaction=None, retention={"max_messages": KEPT})
        turn_over(streams)
        options = {"server": streams.server, "stream": "in", "targetPartitionBytes": "4000"}
        for _ in range(RUNS):
            carry_out = planned(spark, options)
            end = streams.log("in").high_watermark
            turn_over(streams)  # without a lease nothing of the plan would be left
            found = sorted(carry_out())
            assert found == list(range(end - len(found), end))
            assert len(found) >= KEPT
            turn_over(streams)
            assert streams.log("in").log_start_offset >= end, "the lease has outlasted its read"
