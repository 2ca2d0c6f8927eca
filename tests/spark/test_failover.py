"""The leader of a stream dies in the middle of a job that reads it, from both sources."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.clients.ingesting import until
from support.clients.raw_nats import RawNats, pub_frame
from support.daemons.cluster import PATIENCE, Cluster
from support.daemons.nats_server import NatsServer
from support.spark.spark_jar import JarOfSession

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

pytestmark = [pytest.mark.timeout(400), pytest.mark.usefixtures("jar")]

STREAM = "orders"
RECORDS = 640
VALUE_BYTES = 64 << 10
"""40 MiB: more than the processes of Spark hold between them."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with NatsServer() as server:
        streams = {STREAM: {"subject": STREAM, "replicas": 3}}
        with Cluster(server.url, streams) as cluster:
            cluster.wait_isr(STREAM)
            cluster.wait_recorded(STREAM)
            with RawNats(server.port, timeout=60) as raw:
                for first in range(0, RECORDS, 32):
                    wanted, ack = range(first, first + 32), raw.new_reply()
                    raw.send(b"".join(pub_frame(STREAM, value(i), reply=ack) for i in wanted))
                    for number in wanted:
                        assert raw.next_message().json()["seq"] == number + 1
            cluster.wait_settled(STREAM)
            yield cluster


def value(number: int) -> bytes:
    return (b"%d " % number).ljust(VALUE_BYTES, b".")


def waiting_at_first(
    reached: Path, may_go_on: Path
) -> Callable[[Iterable[Row]], Iterator[tuple[int, bytes]]]:
    """A step of the job that takes its first rows, and no more before it may."""

    def step(rows: Iterable[Row]) -> Iterator[tuple[int, bytes]]:
        for row in rows:
            reached.touch()
            deadline = time.monotonic() + 120
            while not may_go_on.exists() and time.monotonic() < deadline:
                time.sleep(0.01)
            yield row.offset, bytes(row.value)

    return step


@pytest.mark.parametrize("source", ["java", "python"])
def test_a_read_goes_on_with_the_next_leader(
    spark: SparkSession, jar: JarOfSession, cluster: Cluster, source: str, tmp_path: Path
) -> None:
    reached, may_go_on = tmp_path / "reached", tmp_path / "may-go-on"
    cluster.start()
    cluster.wait_isr(STREAM)
    gone = cluster.leader(STREAM)
    sent_before = cluster.nodes[gone].metric("liftlog_pull_records_total")
    addresses = ",".join(node.pull_address for node in cluster.nodes.values())
    options = {"server": addresses, "stream": STREAM, "targetPartitionBytes": "1GiB"}

    with jar.unused() if source == "python" else nullcontext():
        frame = spark.read.format("liftlog").options(**options, columns="offset,value").load()
        assert frame.rdd.getNumPartitions() == 1
        job = frame.rdd.mapPartitions(waiting_at_first(reached, may_go_on))
        with ThreadPoolExecutor(1) as thread:
            reading = thread.submit(job.collect)
            try:
                until(lambda: reached.exists() or reading.done(), PATIENCE, "the first rows")
                sent = cluster.nodes[gone].metric("liftlog_pull_records_total") - sent_before
                cluster.kill(gone)
                until(
                    lambda: cluster.stream(STREAM).leader not in (None, gone), PATIENCE, "a leader"
                )
            finally:
                may_go_on.touch()
            rows = reading.result(PATIENCE)
    assert [offset for offset, _ in rows] == list(range(1, RECORDS + 1))
    assert all(stored == value(offset - 1) for offset, stored in rows)
    assert 0 < sent < RECORDS, "it was in the middle"


@pytest.mark.parametrize("source", ["java", "python"])
def test_tasks_need_none_of_the_nodes_that_the_options_name(
    spark: SparkSession, jar: JarOfSession, cluster: Cluster, source: str
) -> None:
    """The only one that is named dies between planning and reading."""
    cluster.start()
    cluster.wait_isr(STREAM)
    gone = cluster.leader(STREAM)
    server = cluster.nodes[gone].pull_address
    options = {"server": server, "stream": STREAM, "columns": "offset"}
    with jar.unused() if source == "python" else nullcontext():
        frame = spark.read.format("liftlog").options(**options).load()
        assert frame.rdd.getNumPartitions() == 1
        job = frame.rdd.map(lambda row: row.offset)
        cluster.kill(gone)
        assert job.collect() == list(range(1, RECORDS + 1))
