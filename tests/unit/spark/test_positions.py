"""The positions of a streaming query, between runs that see the stream change."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from support.served_logs import ServedLogs

from liftlog.errors import Diverged
from liftlog.spark.options import parse_options
from liftlog.spark.streaming import StreamReader


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[ServedLogs]:
    with ServedLogs(tmp_path / "streams") as served:
        served.add("orders")
        served.append("orders", [b"one", b"two", b"three"])
        yield served


def latest(logs: ServedLogs, start: dict[str, Any]) -> dict[str, Any]:
    """Where a query that is restarted from there goes."""
    reader = StreamReader(parse_options({"stream": "orders", "server": logs.server}))
    try:
        end = reader.latestOffset(start, ReadAllAvailable())
        reader.partitions(start, end)
        return end
    finally:
        reader.stop()


def begin_epoch(logs: ServedLogs) -> None:
    """As every start of a daemon does."""
    log = logs.broker.stream("orders").real_log
    epoch = (log.leader_epoch + 1, log.log_end_offset)
    logs.call(lambda: log._note_epochs((*log.epochs, epoch)))


def test_an_epoch_may_begin_behind_a_position(logs: ServedLogs) -> None:
    reached = latest(
        logs, {"offset": 1, "incarnation": logs.broker.stream("orders").real_log.incarnation}
    )
    assert reached["offset"] == 4
    begin_epoch(logs)
    assert latest(logs, reached) == reached  # nothing new is no new position
    logs.append("orders", [b"four"])
    further = latest(logs, reached)
    assert (further["offset"], further["epoch"]) == (5, reached["epoch"] + 1)
    assert latest(logs, further) == further


def test_a_stream_that_lost_its_end_and_grew_again(logs: ServedLogs) -> None:
    reached = latest(
        logs, {"offset": 1, "incarnation": logs.broker.stream("orders").real_log.incarnation}
    )
    log = logs.broker.stream("orders").real_log
    logs.call(lambda: log.truncate_suffix(2))
    begin_epoch(logs)
    logs.append("orders", [b"other", b"records", b"are", b"here"])
    with pytest.raises(Diverged, match=r"up to 4, and not all of that is .*checkpointLocation"):
        latest(logs, reached)
