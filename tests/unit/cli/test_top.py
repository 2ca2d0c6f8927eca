"""liftlog top: what two looks make of it."""

from types import SimpleNamespace
from typing import Any

import pytest

from liftlog.cli.top import Sample, rows_of
from liftlog.client import StreamInfo


def stream(name: str, end: int, size: int, incarnation: str = "i", start: int = 1) -> StreamInfo:
    return StreamInfo(
        name=name,
        incarnation=incarnation,
        state="attached",
        high_watermark=end,
        log_start_offset=start,
        size_bytes=size,
    )


def checkpoint(stream: str, consumer: str, lag: int | None) -> Any:
    return SimpleNamespace(stream=stream, consumer=consumer, lag=lag)


BEFORE = Sample(10.0, [stream("a", 101, 1000), stream("b", 1, 5000), stream("c", 900, 10)], [])
AFTER = Sample(
    12.0,
    [
        stream("a", 301, 3000),
        stream("b", 51, 4000),  # retention took more than came
        stream("c", 40, 20, incarnation="another"),
        stream("new", 7, 70),
    ],
    [
        checkpoint("a", "fast", 0),
        checkpoint("a", "slow", 70),
        checkpoint("b", "lost", None),
        checkpoint("gone", "x", 9),
    ],
)


def test_rates_and_the_slowest_consumer() -> None:
    rows = {row.name: row for row in rows_of(BEFORE, AFTER, "name")}
    assert rows["a"].records_per_second == 100
    assert rows["a"].bytes_per_second == 1000
    assert (rows["a"].lag, rows["a"].slowest) == (70, "slow")
    assert (rows["b"].records_per_second, rows["b"].bytes_per_second) == (25, 0)
    assert (rows["b"].lag, rows["b"].slowest) == (None, "")
    assert rows["a"].records == 300


def test_a_stream_that_was_not_there_before_has_no_rate_yet() -> None:
    rows = {row.name: row for row in rows_of(BEFORE, AFTER, "name")}
    assert rows["c"].records_per_second == rows["new"].records_per_second == 0


@pytest.mark.parametrize(
    ("sort", "first"), [("rate", "a"), ("name", "a"), ("size", "b"), ("lag", "a")]
)
def test_what_stands_first(sort: str, first: str) -> None:
    assert rows_of(BEFORE, AFTER, sort)[0].name == first


def test_two_looks_at_one_moment() -> None:
    assert all(row.records_per_second == 0 for row in rows_of(AFTER, AFTER, "rate"))
