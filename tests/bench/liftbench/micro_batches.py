"""Measures streaming queries of Spark through the jar: records per second, and their lag.

The sink is `noop`, which reads every row and column and stores none. Spark's own reports of its
micro-batches contain the time of each commit and its offsets.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from liftlog.client import connect_sync

from .budget import Rounds
from .figures import JAR, Measurements
from .processes import WorkerFailed, run_worker
from .progress import Progress

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PER_BATCH = 500_000
_RATE = 50_000
_VALUE_BYTES = 200
_LIVE_SECONDS = 20.0
_PATIENCE_SECONDS = 120.0


class MicroBatch(NamedTuple):
    first: int
    end: int
    seconds: float
    """Seconds from its planning to its commit."""
    committed_at: float
    """Seconds since 1970."""


def throughput(
    stream: Callable[[], DataFrame],
    directory: Path,
    measured: Measurements,
    progress: Progress,
    *,
    rounds: Rounds,
) -> None:
    """Read all records of a stream in micro-batches of half a million. The first round is a
    warm-up."""
    for number in itertools.chain((None,), rounds):
        query = _start(stream(), directory / f"read-{number}", availableNow=True)
        if not query.awaitTermination(_PATIENCE_SECONDS):
            query.stop()
            raise WorkerFailed("a streaming query over what is there does not end")
        batches = micro_batches(query)
        if number is None:
            continue
        rate = sum(one.end - one.first for one in batches) / sum(one.seconds for one in batches)
        measured.add(JAR, "streaming", rate)
        progress.say(
            f"round {number + 1}/{rounds.most} streaming: {rate:,.0f} records/s "
            f"in {len(batches)} batches"
        )


def lag(
    spark: SparkSession,
    address: str,
    nats_port: int,
    directory: Path,
    measured: Measurements,
    progress: Progress,
    *,
    rounds: Rounds,
) -> None:
    """Measure the time from the timestamp of each record to the commit of its micro-batch, while
    50,000 records are published per second."""
    for number in rounds:
        name = f"live-{number}"
        with connect_sync(address) as client:
            client.create_stream(name, subject=f"bench.{name}", durability="fsync")
            where = {"server": address, "stream": name}
            query = _start(
                spark.readStream.format("liftlog").options(**where).load(), directory / name
            )
            try:
                pace = {"port": nats_port, "subject": f"bench.{name}", "rate": _RATE}
                pace |= {"seconds": _LIVE_SECONDS, "payload_bytes": _VALUE_BYTES}
                paced = run_worker("pacer", pace)
                end = client.describe_stream(name).high_watermark
                _await_commit(query, end)
                batches = micro_batches(query)
            finally:
                query.stop()
            stamps = _stamps(spark.read.format("liftlog").options(**where).load())
            client.delete_stream(name)
        if len(stamps) != paced["acked"] or batches[-1].end != end:
            raise WorkerFailed(f"{len(stamps)} records were read, {paced['acked']} acked")
        lags = lags_of(batches, stamps)
        p50, p99 = (float(np.percentile(lags, part)) for part in (50, 99))
        measured.add(JAR, "streaming-lag-p50", p50)
        measured.add(JAR, "streaming-lag-p99", p99)
        measured.add(JAR, "streaming-acked", paced["acked_in_time"] / _LIVE_SECONDS)
        progress.say(
            f"round {number + 1}/{rounds.most} lag at {_RATE:,}/s, {len(batches)} batches: "
            f"{p50:.2f} s (p50), {p99:.2f} s (p99)"
        )


def lags_of(batches: list[MicroBatch], stamps: Any) -> Any:
    """Return the lag of each record in seconds. `stamps` are the times of the records from the
    first batch on."""
    counts = [one.end - one.first for one in batches]
    committed = np.repeat([one.committed_at for one in batches], counts)
    return committed - stamps


def _start(frame: DataFrame, directory: Path, **trigger: Any) -> Any:
    writer = frame.writeStream.format("noop").option("checkpointLocation", f"file://{directory}")
    return (writer.trigger(**trigger) if trigger else writer).start()


def micro_batches(query: Any) -> list[MicroBatch]:
    """Those that had records."""
    found = []
    for one in query.recentProgress:
        about = json.loads(one.json)
        [source] = about["sources"]
        first, end = _offset(source["startOffset"]), _offset(source["endOffset"])
        if first is None and end is not None:
            first = source["endOffset"].get("from", end)
        if first is None or end is None or first == end:
            continue
        seconds = about["durationMs"]["triggerExecution"] / 1000
        began = datetime.fromisoformat(about["timestamp"]).timestamp()
        found.append(MicroBatch(first, end, seconds, began + seconds))
    return found


def _offset(position: Any) -> int | None:
    return None if position is None else int(position["offset"])


def _await_commit(query: Any, end: int) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not (batches := micro_batches(query)) or batches[-1].end < end:
        if query.exception() is not None or time.monotonic() > deadline:
            raise WorkerFailed(f"the query did not get to {end}: {query.exception()}")
        time.sleep(0.05)


def _stamps(frame: DataFrame) -> Any:
    """Return seconds since 1970, in the order of the offsets."""
    table: Any = frame.select("offset", "timestamp").toArrow()
    offsets = table.column("offset").to_numpy()
    micros = table.column("timestamp").cast("int64").to_numpy()
    return micros[np.argsort(offsets)] / 1e6
