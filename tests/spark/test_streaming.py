"""Structured streaming: what it reads, in which steps, and that a crash changes nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.daemons.served_logs import ServedLogs
from support.spark.session import patiently, run_to_end, spark_environment

from liftlog.server.vitals.child_processes import tied_to_parent

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A session takes long to start on a busy machine, and the first test waits for it.
pytestmark = pytest.mark.timeout(400)

JOB = Path(__file__).with_name("streaming_job.py")


def lake(spark: SparkSession, directory: Path) -> list[int]:
    frame = spark.read.parquet(str(directory / "lake")).select("offset")
    return sorted(row.offset for row in frame.collect())


def fill(logs: ServedLogs, batches: int) -> None:
    for _ in range(batches):
        logs.append("orders", [b"value"] * 10)


def test_steps_and_going_on(spark: SparkSession, logs: ServedLogs, tmp_path: Path) -> None:
    logs.add("orders")
    fill(logs, 12)
    assert run_to_end(spark, logs, tmp_path, maxOffsetsPerTrigger="50") == [50, 50, 20]
    fill(logs, 3)
    assert run_to_end(spark, logs, tmp_path) == [30]
    assert lake(spark, tmp_path) == list(range(1, 151))
    # A stream of that name made anew is not gone on with.
    logs.delete("orders")
    (logs.directory / "orders").rename(logs.directory / "old")
    logs.add("orders")
    with pytest.raises(Exception, match="created again"):
        run_to_end(spark, logs, tmp_path)


@pytest.mark.long
def test_a_killed_query_goes_on_exactly(
    spark: SparkSession, logs: ServedLogs, tmp_path: Path
) -> None:
    logs.add("orders")
    fill(logs, 100)
    told_path = tmp_path / "job.log"
    with told_path.open("wb") as told_file:
        process = subprocess.Popen(
            tied_to_parent([sys.executable, str(JOB), str(tmp_path), logs.server]),
            env={**os.environ, **spark_environment()},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=told_file,
            start_new_session=True,
        )
    try:
        committed = tmp_path / "checkpoint" / "commits"
        deadline = time.monotonic() + 250
        while not (committed / "2").exists():
            told = told_path.read_text(errors="replace")[-2000:]
            assert process.poll() is None, told
            assert time.monotonic() < deadline, told
            time.sleep(0.01)
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # driver, JVM and Python workers
        process.wait()
    last = max(int(one.name) for one in committed.iterdir() if one.name.isdigit())
    assert last < 19, "the query was over before it was killed"
    fill(logs, 1)
    steps = run_to_end(spark, logs, tmp_path, maxOffsetsPerTrigger="50")
    assert sum(steps) == 1010 - 50 * (last + 1)
    assert lake(spark, tmp_path) == list(range(1, 1011))


@pytest.mark.parametrize("starting", ["earliest", "latest"])
def test_a_first_batch_that_failed_is_read_again_or_its_loss_is_reported(
    spark: SparkSession, logs: ServedLogs, tmp_path: Path, starting: str
) -> None:
    """Spark keeps only the end of it, and asks for the initial offset again."""
    logs.add("orders")
    fill(logs, 2)
    found: list[int] = []

    def run(sink: Any, **options: str) -> None:
        query = (
            spark.readStream.format("liftlog")
            .options(server=logs.server, stream="orders", startingOffset=starting, **options)
            .load()
            .writeStream.foreachBatch(sink)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .start()
        )
        try:
            planned = tmp_path / "checkpoint" / "offsets" / "0"
            deadline = time.monotonic() + 250
            while starting == "latest" and not planned.exists():
                assert time.monotonic() < deadline
                assert query.isActive, query.exception()
                fill(logs, 1)  # what comes after the query began
                time.sleep(0.1)
            query.processAllAvailable()
        finally:
            query.stop()

    def fail(frame: Any, number: int) -> None:
        raise RuntimeError("the sink is down")

    def keep(frame: Any, number: int) -> None:
        found.extend(row.offset for row in frame.select("offset").collect())

    with pytest.raises(Exception, match="the sink is down"):
        run(fail)
    position = json.loads((tmp_path / "checkpoint/offsets/0").read_text().splitlines()[-1])
    first, end = position["from"], position["offset"]
    assert first < end or starting == "latest"
    log = logs.broker.stream("orders").real_log
    if starting == "earliest":
        logs.call(lambda: log.structure.remove_before(end, 0, delete_below=0))
        with pytest.raises(Exception, match="retention has removed the records"):
            run(keep)
        run(keep, failOnDataLoss="false")
        assert found == []
    else:
        fill(logs, 1)
        patiently(lambda: run(keep))
        assert sorted(set(found)) == list(range(first, log.high_watermark))
