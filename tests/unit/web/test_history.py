"""The series behind the charts, and their drawing."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from liftlog.server.vitals.histogram import LATENCY_BOUNDS, Histogram, quantile
from liftlog.server.web.history import MAX_LONG, SPANS, History, Points, Reading, of_consumer
from liftlog.server.web.pages.charts import (
    DAEMON_CHARTS,
    HEIGHT,
    READER_CHARTS,
    STREAM_CHARTS,
    WIDTH,
    drawn,
    time_labels,
)

KEPT = SPANS["5m"].kept


class Daemon:
    """Streams whose counters a test moves, and its clocks."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.streams: dict[str, Reading] = {}
        self.history = History(self.read, lambda: self.now, lambda: self.now + 1e9)

    async def read(self) -> dict[str, Reading]:
        return dict(self.streams)

    def set(self, name: str, records: float, *, refused: int = 0, lag: int = 0,
            acks: Sequence[int] = ()) -> None:  # fmt: skip
        counts = list(acks) or [0] * (len(LATENCY_BOUNDS) + 1)
        totals = {"records": records, "received_bytes": records * 10}
        self.streams[name] = Reading(totals, {"refused": refused}, {"ack": counts}, {"lag": lag})

    async def look(self, seconds: float = 5.0) -> None:
        self.now += seconds
        await self.history.look()


async def test_rates_of_the_last_minutes() -> None:
    daemon = Daemon()
    daemon.set("orders", 0)
    await daemon.look()
    assert daemon.history.rate("orders").history == []
    for number in range(1, KEPT + 21):
        daemon.set("orders", 50 * number)
        await daemon.look()
    found = daemon.history.rate("orders")
    assert (found.records, found.received_bytes, found.history) == (10.0, 100.0, [10.0] * KEPT)
    daemon.set("orders", 5)  # deleted and recreated
    await daemon.look()
    assert daemon.history.rate("orders").records == 1.0
    del daemon.streams["orders"]
    await daemon.look()
    assert daemon.history.rate("orders").history == []
    assert daemon.history.points("orders", "24h").times == ()


async def test_each_span_has_its_own_points_and_a_bound() -> None:
    daemon, per_day = Daemon(), 24 * 3600 // 5
    daemon.set("orders", 0)
    await daemon.look()
    for number in range(1, per_day + 2000):
        daemon.set("orders", 50 * number, refused=number)
        await daemon.look()
    for name, span in SPANS.items():
        points = daemon.history.points("orders", name)
        assert len(points.times) == span.kept
        assert {len(column) for column in points.values.values()} == {span.kept}
        apart = [b - a for a, b in zip(points.times, points.times[1:], strict=False)]
        assert apart == pytest.approx([span.seconds] * len(apart))
        assert list(points.values["records"]) == pytest.approx([10.0] * span.kept)
        assert list(points.values["refused"]) == [span.seconds / 5] * span.kept


async def test_what_is_not_measured_is_no_value() -> None:
    daemon = Daemon()
    daemon.set("orders", 0, lag=7)
    await daemon.look()
    daemon.set("orders", 0, lag=8)
    await daemon.look()
    points = daemon.history.points("orders", "5m")
    assert math.isnan(points.values["ack_p50"][-1])
    assert points.values["lag"][-1] == 8
    quick = [100, *[0] * len(LATENCY_BOUNDS)]
    daemon.set("orders", 100, acks=quick)
    await daemon.look()
    assert 0 < points.values["ack_p50"][-1] < points.values["ack_p99"][-1] <= LATENCY_BOUNDS[0]


async def test_a_late_look_is_a_longer_interval() -> None:
    daemon = Daemon()
    daemon.set("orders", 0)
    await daemon.look()
    daemon.set("orders", 600)
    await daemon.look(60)  # the machine slept
    assert daemon.history.rate("orders").history == [10.0]
    await daemon.look(1)  # too early for a point
    assert len(daemon.history.points("orders", "5m").times) == 1


async def test_many_streams_are_kept_for_minutes_only() -> None:
    daemon = Daemon()
    for number in range(MAX_LONG + 10):
        daemon.set(f"s{number}", number)
    await daemon.look()
    await daemon.look()
    assert len(daemon.history.points(f"s{MAX_LONG + 9}", "5m").times) == 1
    await daemon.look(600)
    assert len(daemon.history.points("s1", "24h").times) == 1
    assert daemon.history.points(f"s{MAX_LONG + 9}", "24h").times == ()


async def test_the_lag_of_a_consumer_is_kept_whatever_the_number_of_streams() -> None:
    daemon = Daemon()
    for number in range(MAX_LONG + 10):
        daemon.set(f"s{number}", number)
    name = of_consumer("billing", "s1")
    lags = [7.0, math.nan, 3.0]
    await daemon.look()
    for lag in (0.0, *lags):
        daemon.streams[name] = Reading({}, {}, {}, {"lag": lag})
        await daemon.look(600)
    for span in SPANS:
        found = list(daemon.history.points(name, span).values["lag"])
        assert found == pytest.approx(lags, nan_ok=True)
    assert set(daemon.history.points("s1", "5m").values) > {"records", "lag"}
    # Consumers do not take the place of streams.
    del daemon.streams[f"s{MAX_LONG + 9}"]
    for number in range(20):
        del daemon.streams[f"s{number + 100}"]
        daemon.streams[of_consumer(f"c{number}", "s1")] = Reading({}, {}, {}, {"lag": 1.0})
    await daemon.look()
    daemon.set("new", 1)
    await daemon.look()
    await daemon.look(600)
    assert len(daemon.history.points("new", "24h").times) == 1


@given(st.lists(st.tuples(st.sampled_from(["still", "more", "less"]), st.sampled_from([5, 60])),
                max_size=KEPT + 30))  # fmt: skip
@settings(deadline=None)
def test_a_stream_in_which_nothing_happens_has_the_same_points(
    steps: list[tuple[str, int]],
) -> None:
    """Those that are only counted until the next change, and those that are compared."""
    counted, compared = Daemon(), Daemon()

    async def run() -> None:
        records = 1000
        for daemon in (counted, compared):
            daemon.set("orders", records, lag=3, acks=[records] * 16)
            await daemon.look()
        for what, seconds in steps:
            records += {"still": 0, "more": 10, "less": -7}[what]
            for daemon in (counted, compared):
                if what != "still" or daemon is compared:
                    daemon.set("orders", records, lag=3, acks=[records] * 16)
                await daemon.look(seconds)

    asyncio.run(run())
    for span in SPANS:
        found, expected = (one.history.points("orders", span) for one in (counted, compared))
        assert list(found.times) == list(expected.times)
        assert found.values.keys() == expected.values.keys()
        for name, column in expected.values.items():
            assert list(found.values[name]) == pytest.approx(list(column), nan_ok=True), name
    assert counted.history.rate("orders") == compared.history.rate("orders")


async def test_the_task_ends() -> None:
    daemon = Daemon()
    before = asyncio.all_tasks()
    daemon.history.start()
    await asyncio.sleep(0)
    [task] = asyncio.all_tasks() - before
    await daemon.history.close()
    assert task.cancelled()


@given(st.lists(st.floats(0, 20), min_size=1, max_size=50), st.sampled_from([0.5, 0.99]))
def test_a_quantile_is_in_the_bucket_of_the_exact_one(seen: list[float], part: float) -> None:
    histogram = Histogram(LATENCY_BOUNDS)
    for one in seen:
        histogram.observe(one)
    exact = sorted(seen)[max(0, math.ceil(part * len(seen)) - 1)]
    found = quantile(LATENCY_BOUNDS, histogram.counts, part)
    bounds = (0.0, *LATENCY_BOUNDS)
    if exact > bounds[-1]:
        assert found == bounds[-1]
    else:
        high = next(i for i, bound in enumerate(bounds) if bound >= exact)
        assert bounds[max(0, high - 1)] <= found <= bounds[max(1, high)]


def test_a_quantile_of_nothing() -> None:
    assert math.isnan(quantile(LATENCY_BOUNDS, [0] * (len(LATENCY_BOUNDS) + 1), 0.5))


VALUES = st.one_of(st.just(math.nan), st.just(0.0), st.floats(0, 1e15))


@given(
    st.sampled_from(STREAM_CHARTS + READER_CHARTS + DAEMON_CHARTS),
    st.lists(VALUES, max_size=150),
    st.sampled_from(list(SPANS)),
    st.sampled_from((1, 1.01, 30)),
)
def test_every_chart_is_within_its_box(
    chart: object, values: list[float], name: str, apart: float
) -> None:
    """Also after the machine was suspended, when points are further `apart`."""
    span, now = SPANS[name], 1e9
    values = values[: span.kept]
    times = [now - span.seconds * apart * i for i in reversed(range(len(values)))]
    columns = {series: values for _, series in chart.lines}  # type: ignore[attr-defined]
    found = drawn(chart, Points(times, columns), span, now)  # type: ignore[arg-type]
    for line in found["lines"]:
        numbers = [one for path in line["paths"] for one in re.findall(r"[-\d.e+]+", path)]
        assert all(-1 <= float(x) <= WIDTH + 1 for x in numbers[::2])
        assert all(0 <= float(y) <= HEIGHT for y in numbers[1::2])
    begin = now - span.seconds * span.kept
    known = [v for at, v in zip(times, values, strict=True) if at >= begin and not math.isnan(v)]
    assert bool(found["spots"]) == bool(known)
    assert ("no data" in found["summary"]) == (not known)
    assert all(one["width"] >= 0 for one in found["spots"])
    assert "nan" not in str(found).lower().replace("name", "")


def test_axes_end_at_round_numbers() -> None:
    def axis(chart: int, highest: float) -> tuple[str, str]:
        points = Points([1e9], {STREAM_CHARTS[chart].lines[0][1]: [highest]})
        found = drawn(STREAM_CHARTS[chart], points, SPANS["5m"], 1e9)
        return found["top"], found["middle"]

    assert axis(0, 0) == ("1.0/s", "0.5/s")
    assert axis(1, 0) == ("2 B/s", "1 B/s")
    assert axis(2, 0) == ("0.2 ms", "0.1 ms")
    assert axis(0, 73) == ("100/s", "50.0/s")
    assert axis(0, 150_000) == ("200,000/s", "100,000/s")
    assert axis(0, 200_000) == ("200,000/s", "100,000/s")
    assert axis(0, 200_001) == ("400,000/s", "200,000/s")
    assert axis(1, 3000) == ("4.0 KiB/s", "2.0 KiB/s")
    assert axis(2, 0.0031) == ("4.0 ms", "2.0 ms")
    assert axis(2, 0.9) == ("1 s", "500 ms")
    assert axis(3, 1) == ("2", "1")


@pytest.mark.parametrize(
    ("seconds", "top", "middle"),
    [(0, "2 s", "1 s"), (30, "1 min", "30 s"), (10_200, "4 h", "2 h"), (90_000, "2 d", "1 d"),
     (2_000_000, "40 d", "20 d")],
)  # fmt: skip
def test_an_axis_of_ages_ends_at_round_ones(seconds: float, top: str, middle: str) -> None:
    points = Points([1e9], {"lag_seconds": [seconds]})
    found = drawn(READER_CHARTS[1], points, SPANS["5m"], 1e9)
    assert (found["top"], found["middle"]) == (top, middle)


def test_a_gap_is_not_bridged() -> None:
    points = Points([1e9 - 15, 1e9 - 10, 1e9 - 5, 1e9], {"ack_p50": [1, math.nan, 1, 2]})
    found = drawn(STREAM_CHARTS[2], points, SPANS["5m"], 1e9)
    assert len(found["lines"][0]["paths"]) == 2
    assert found["lines"][0]["label"] == "median 2 s"
    assert found["lines"][1] == {"label": "99% none", "paths": []}
    assert found["spots"][0]["text"].partition(": ")[2] == "median 1 s"


@pytest.mark.parametrize("before", [0, 300, 86_000])
def test_a_lone_point_can_be_seen(before: float) -> None:
    """Also at the edges of the picture, and in the chart with the most points."""
    points = Points([1e9 - before], {"ack_p50": [1]})
    [path] = drawn(STREAM_CHARTS[2], points, SPANS["24h"], 1e9)["lines"][0]["paths"]
    left, right = [float(place.split(",")[0]) for place in path.split(" ")]
    assert left >= 0
    assert right <= WIDTH
    assert right - left >= WIDTH / 100


def test_labels_of_the_time_axis() -> None:
    noon = 1_767_268_800.0  # 2026-01-01 12:00:00 UTC
    assert time_labels(SPANS["5m"], noon) == [
        "11:55:00", "11:56:15", "11:57:30", "11:58:45", "12:00:00",
    ]  # fmt: skip
    assert time_labels(SPANS["1h"], noon) == ["11:00", "11:15", "11:30", "11:45", "12:00"]
    assert time_labels(SPANS["24h"], noon) == ["12:00", "18:00", "00:00", "06:00", "12:00"]
