"""The positions of a streaming query, between runs during which the stream changes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows
from support.daemons.served_logs import ServedLogs

from liftlog.errors import Diverged, OffsetOutOfRange
from liftlog.spark.options import parse_options
from liftlog.spark.streaming import StreamReader


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[ServedLogs]:
    with ServedLogs(tmp_path / "streams") as served:
        served.add("orders")
        served.append("orders", [b"one", b"two", b"three"])
        yield served


def latest(logs: ServedLogs, start: dict[str, Any]) -> dict[str, Any]:
    """Return the next end of a query that is restarted from this position."""
    reader = StreamReader(parse_options({"stream": "orders", "server": logs.server}))
    try:
        end = reader.latestOffset(start, ReadAllAvailable())
        reader.partitions(start, end)
        return end
    finally:
        reader.stop()


def begin_epoch(logs: ServedLogs) -> None:
    """Begin an epoch, like every start of a daemon."""
    log = logs.broker.stream("orders").real_log
    logs.call(lambda: log.writer.begin_epoch(log.leader_epoch + 1))


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


@contextmanager
def closing(reader: StreamReader) -> Iterator[StreamReader]:
    try:
        yield reader
    finally:
        reader.stop()


class Query:
    """A query whose micro-batches the test plans and reads. Spark stores only the end of each."""

    def __init__(self, logs: ServedLogs, **options: str) -> None:
        given = {"stream": "orders", "server": logs.server, "targetPartitionBytes": "60"}
        self.options = parse_options(given | options)

    def plan(self, limit: ReadLimit | None = None) -> dict[str, Any]:
        """Return the end of a first micro-batch."""
        with closing(StreamReader(self.options)) as reader:
            end = reader.latestOffset(reader.initialOffset(), limit or ReadAllAvailable())
            return dict(json.loads(json.dumps(end)))

    def read(self, end: dict[str, Any], start: dict[str, Any] | None = None) -> list[int]:
        """Read after a restart, which requests the initial offset again unless a batch was
        committed."""
        with closing(StreamReader(self.options)) as reader:
            parts = reader.partitions(start or reader.initialOffset(), end)
            found = [rows for part in parts for rows in reader.read(part)]
        return [offset for rows in found for offset in rows.column("offset").to_pylist()]


def truncate(logs: ServedLogs, offset: int) -> None:
    log = logs.broker.stream("orders").real_log
    logs.call(lambda: log.structure.remove_before(offset, 0, delete_below=0))


def test_a_first_batch_that_was_planned_and_truncated_before_it_was_read(logs: ServedLogs) -> None:
    end = Query(logs).plan()
    assert Query(logs).read(end) == [1, 2, 3]
    logs.append("orders", [b"four"])
    truncate(logs, 4)
    with pytest.raises(OffsetOutOfRange, match=r"\[1, 4\).*failOnDataLoss"):
        Query(logs).read(end)
    assert Query(logs, failOnDataLoss="false").read(end) == []


@pytest.mark.parametrize(
    "given",
    [{"startingOffset": "latest"}, {"startTimestamp": "2020-01-01T00:00:00Z"}],
)
def test_a_first_batch_is_the_same_after_a_restart(logs: ServedLogs, given: dict[str, str]) -> None:
    """Even if the requested position is another offset by then."""
    query = Query(logs, **given)
    with closing(StreamReader(query.options)) as reader:
        start = reader.initialOffset()
        logs.append("orders", [b"four", b"five"])
        end = reader.latestOffset(start, ReadMaxRows(4))
    first = query.read(end, start)
    assert len(first) == (2 if "startingOffset" in given else 4)
    logs.append("orders", [b"six"])
    assert query.read(end) == first
    # The next one begins where it ended.
    with closing(StreamReader(query.options)) as reader:
        following = reader.latestOffset(end, ReadAllAvailable())
    assert query.read(following, end) == list(range(first[-1] + 1, 7))


def test_earliest_goes_by_the_log_start_at_planning(logs: ServedLogs) -> None:
    with closing(StreamReader(Query(logs).options)) as reader:
        start = reader.initialOffset()
        truncate(logs, 3)
        end = reader.latestOffset(start, ReadAllAvailable())
        assert [one.wanted.first_offset for one in reader.partitions(start, end)] == [3]
    with closing(StreamReader(Query(logs, startingOffset="3").options)) as reader:
        start = reader.initialOffset()
        logs.append("orders", [b"four"])
        truncate(logs, 4)
        end = reader.latestOffset(start, ReadAllAvailable())
        with pytest.raises(OffsetOutOfRange):
            reader.partitions(start, end)


def test_a_first_batch_without_records_is_a_position_like_any_other(logs: ServedLogs) -> None:
    logs.add("empty")
    query = Query(logs, stream="empty")
    end = query.plan()
    logs.append("empty", [b"one", b"two"])
    assert query.read(end) == []
    with closing(StreamReader(query.options)) as reader:
        assert reader.latestOffset(end, ReadAllAvailable())["from"] == 1
    log = logs.broker.stream("empty").real_log
    logs.call(lambda: log.structure.remove_before(2, 0, delete_below=0))
    with closing(StreamReader(query.options)) as reader:
        following = reader.latestOffset(end, ReadAllAvailable())
    with pytest.raises(OffsetOutOfRange):
        query.read(following, end)


def test_checkpoints_that_do_not_say_where_a_batch_began(logs: ServedLogs) -> None:
    """In the form in which earlier versions stored them."""
    incarnation = logs.broker.stream("orders").real_log.incarnation
    start, end = ({"offset": offset, "incarnation": incarnation} for offset in (2, 4))
    assert Query(logs).read(end, start) == [2, 3]
    truncate(logs, 3)
    with pytest.raises(OffsetOutOfRange):
        Query(logs).read(end, start)
    with pytest.raises(OffsetOutOfRange):
        latest(logs, start)
