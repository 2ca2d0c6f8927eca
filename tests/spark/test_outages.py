"""Streaming queries that have caught up, while their daemon cannot be reached for a while."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.daemons.cutting_proxy import cutting_proxy
from support.daemons.loop_thread import LoopThread
from support.daemons.served_logs import ServedLogs
from support.spark.session import patiently
from support.spark.spark_jar import JarOfSession

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(400)

AWAY_SECONDS = 33
"""Longer than a request of a client may take, and shorter than the minute that is promised."""


def start(spark: SparkSession, server: str, directory: Path, counts: list[int]) -> Any:
    def note(frame: Any, number: int) -> None:
        counts.append(frame.count())

    return (
        spark.readStream.format("liftlog")
        .options(server=server, stream="orders", startingOffset="earliest")
        .load()
        .writeStream.foreachBatch(note)
        .option("checkpointLocation", str(directory))
        .start()
    )


def until(condition: Callable[[], bool], queries: list[Any], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        for query in queries:
            assert query.isActive, query.exception()
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.long
def test_both_sources_wait_for_a_daemon_that_went_away(
    spark: SparkSession, logs: ServedLogs, tmp_path: Path
) -> None:
    logs.add("orders")
    logs.append("orders", [b"value"] * 10)
    by_jar: list[int] = []
    by_python: list[int] = []
    with LoopThread("proxy", lambda: cutting_proxy(logs.address)) as proxied, ExitStack() as stack:
        proxy = proxied.served
        server = proxy.address.removeprefix("tcp://")
        with JarOfSession(spark).used():
            queries = [start(spark, server, tmp_path / "jar", by_jar)]
        stack.callback(queries[0].stop)

        def python() -> Any:
            query = start(spark, server, tmp_path / "python", by_python)
            stack.callback(query.stop)
            until(lambda: sum(by_python) == 10, [query], 120)
            return query

        queries.append(patiently(python))
        until(lambda: sum(by_jar) == 10, queries, 120)
        proxied.call(lambda: setattr(proxy, "target", None))
        proxied.call(proxy.cut)
        time.sleep(AWAY_SECONDS)  # the outage itself
        logs.append("orders", [b"value"] * 5)
        proxied.call(lambda: setattr(proxy, "target", logs.address))
        until(lambda: sum(by_jar) == sum(by_python) == 15, queries, 60)
