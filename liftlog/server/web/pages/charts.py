"""Charts of one stream, and of the daemon, over the last minutes or hours.

A chart consists of lines in a box of WIDTH x HEIGHT; its axis ends at a round number. The texts are
HTML next to the drawing, so that they keep their size when the drawing is scaled.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import urlencode

from liftlog.errors import Forbidden
from liftlog.names import check_consumer_name
from liftlog.server.vitals.slices import Slices
from liftlog.server.web import formats
from liftlog.server.web.asking import Asked, Shown
from liftlog.server.web.history import DAEMON, SPANS, Points, Span, of_consumer, of_group

WIDTH, HEIGHT = 600.0, 120.0
_LONE_WIDTH = 6.0
"""Width of the short line that shows a point without neighbours."""
_TIME_LABELS = 5
_DIGITS = 6


def _milliseconds(seconds: float) -> str:
    return f"{formats.rate(seconds * 1000)} ms" if seconds < 1 else formats.duration(seconds)


class Unit(NamedTuple):
    """A unit of an axis. `base` is the ratio of two neighbouring prefixes. The top of an axis is at
    the value `least` or above."""

    text: Callable[[float], str]
    base: int
    least: float


RATE = Unit(lambda value: f"{formats.rate(value)}/s", 10, 1.0)
BYTES = Unit(lambda value: f"{formats.size(value)}/s", 1024, 2.0)
SECONDS = Unit(_milliseconds, 10, 0.0002)
COUNT = Unit(formats.count, 10, 2.0)
AGE = Unit(formats.duration, 60, 2.0)
_DAY = 86_400
_AGES = (2, 4, 10, 20, 60, 120, 240, 600, 1200, 3600, 7200, 14_400, 28_800, 43_200, _DAY)
"""Round numbers of seconds, minutes and hours. Above the last of them, whole days are used."""


class Chart(NamedTuple):
    """One chart. `lines` are pairs of a label and the name of a series; all of them share the
    axis."""

    title: str
    unit: Unit
    lines: tuple[tuple[str, str], ...]


STREAM_CHARTS = (
    Chart("Records", RATE, (("stored", "records"), ("read", "read_records"))),
    Chart("Bytes", BYTES, (("received", "received_bytes"), ("read", "read_bytes"))),
    Chart("Time to ack", SECONDS, (("median", "ack_p50"), ("99%", "ack_p99"))),
    Chart("Largest lag of a consumer or group", COUNT, (("records", "lag"),)),
    Chart("Messages refused", COUNT, (("refused", "refused"),)),
    Chart("Possible losses", COUNT, (("events", "possible_losses"),)),
)
READER_CHARTS = (
    Chart("Lag", COUNT, (("records", "lag"),)),
    Chart("Oldest record that is not read", AGE, (("waits for", "lag_seconds"),)),
)
_FSYNC = Chart("fsync", SECONDS, (("median", "fsync_p50"), ("99%", "fsync_p99")))
_LOOP = Chart("Delay of the event loop", SECONDS, (("median", "loop_p50"), ("99%", "loop_p99")))
DAEMON_CHARTS = (*STREAM_CHARTS[:3], _FSYNC, *STREAM_CHARTS[3:], _LOOP)


def drawn(chart: Chart, points: Points, span: Span, now: float) -> dict[str, Any]:
    """Return the values of one chart for the template. `now` is the time at the right edge, in
    seconds since 1970."""
    begin = now - span.seconds * span.kept
    points = _since(points, begin)
    columns = [points.values.get(name, ()) for _, name in chart.lines]
    known = [value for column in columns for value in column if value == value]  # False for NaN
    top = _round_top(max(known, default=0.0), chart.unit)
    places = [round(WIDTH * (at - begin) / (now - begin), 1) for at in points.times]
    labels = [label for label, _ in chart.lines]
    latest = [next((v for v in reversed(column) if v == v), None) for column in columns]
    texts = [
        label if len(labels) == 1 and value is None else f"{label} {_text(chart.unit, value)}"
        for label, value in zip(labels, latest, strict=True)
    ]
    return {
        "title": chart.title,
        "summary": f"{chart.title}: "
        + (
            f"now {', '.join(texts)}; highest {chart.unit.text(max(known))}" if known else "no data"
        ),
        "top": chart.unit.text(top),
        "middle": chart.unit.text(top / 2),
        "lines": [
            {"label": text, "paths": list(_paths(places, column, top))}
            for text, column in zip(texts, columns, strict=True)
        ],
        "spots": list(_spots(chart, points.times, places, columns)) if known else [],
    }


def _since(points: Points, begin: float) -> Points:
    """Leave out points before `begin`. Such points exist if the machine was suspended or busy,
    because the points are then further apart than usual."""
    left_out = bisect_left(points.times, begin)
    if not left_out:
        return points
    values = {name: column[left_out:] for name, column in points.values.items()}
    return Points(points.times[left_out:], values)


def _text(unit: Unit, value: float | None) -> str:
    return "none" if value is None or value != value else unit.text(value)


def _round_top(highest: float, unit: Unit) -> float:
    """Return the smallest round number that is at least `highest` and has a round half."""
    if highest <= unit.least:
        return unit.least
    if unit.base == 1024:
        return float(2 ** math.ceil(math.log2(highest)))
    if unit.base == 60 and highest <= _DAY:
        return float(next(age for age in _AGES if age >= highest))
    scale = _DAY if unit.base == 60 else 1
    power = scale * 10.0 ** math.floor(math.log10(highest / scale))
    return next(power * step for step in (1, 2, 4, 10, 20) if power * step >= highest)


def _paths(places: Sequence[float], column: Sequence[float], top: float) -> Iterable[str]:
    """Yield the `points` of a polyline for each stretch without missing values."""
    stretch: list[str] = []
    for x, value in zip(places, column, strict=False):
        if value == value:
            stretch.append(f"{x:g},{_height(value, top):g}")
        elif stretch:
            yield _joined(stretch)
            stretch = []
    if stretch:
        yield _joined(stretch)


def _joined(stretch: list[str]) -> str:
    """Return the `points` of a polyline. A single point becomes a short line. At the edges, this
    line stays inside the picture."""
    if len(stretch) == 1:
        x, _, y = stretch[0].partition(",")
        middle = min(max(float(x), _LONE_WIDTH / 2), WIDTH - _LONE_WIDTH / 2)
        stretch = [f"{middle - _LONE_WIDTH / 2:g},{y}", f"{middle + _LONE_WIDTH / 2:g},{y}"]
    return " ".join(stretch)


def _height(value: float, top: float) -> float:
    return round(HEIGHT * (1 - value / top), 1)


def _spots(
    chart: Chart,
    times: Sequence[float],
    places: Sequence[float],
    columns: Sequence[Sequence[float]],
) -> Iterable[dict[str, Any]]:
    """Yield the areas over which the pointer shows the values of one moment."""
    left = 2 * places[0] - places[1] if len(places) > 1 else places[0] - 2
    for i, (at, x) in enumerate(zip(times, places, strict=True)):
        values = [column[i] for column in columns if i < len(column)]
        said = ", ".join(
            _text(chart.unit, value) if len(columns) == 1 else f"{label} {_text(chart.unit, value)}"
            for (label, _), value in zip(chart.lines, values, strict=False)
        )
        begin, left = max(left, 0.0), x
        yield {"x": begin, "width": round(x - begin, 1), "text": f"{clock(at, 5)}: {said}"}


def clock(at: float, step: float) -> str:
    """Return the time of day in UTC, with seconds if labels are less than a minute apart."""
    return datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S" if step < 60 else "%H:%M")


def time_labels(span: Span, now: float) -> list[str]:
    """Return evenly spaced labels from the left edge to the right edge."""
    whole = span.seconds * span.kept
    step = whole / (_TIME_LABELS - 1)
    # Show seconds if the labels are not whole minutes apart.
    return [
        clock(now - whole + step * i, step if step % 60 == 0 else 1) for i in range(_TIME_LABELS)
    ]


async def stream_charts(asked: Asked) -> Shown:
    """Return the charts of a stream. If the query contains `consumer` or `group`, return only the
    lag of that reader."""
    name = asked.authorize("read")
    described = await asked.parts.broker.describe_stream(name)
    asked.authorize("read")  # checked again after the await
    for kind, series_of in _READERS.items():
        if reader := asked.text(kind):
            check_consumer_name(reader)
            wanted = _Wanted(name, series_of(reader, name), READER_CHARTS, {kind: reader})
            return _shown(asked, wanted, described.state)
    return _shown(asked, _Wanted(name, name, STREAM_CHARTS), described.state)


async def daemon_charts(asked: Asked) -> Shown:
    """Return the charts of the daemon. The viewer must have the right to read every stream, because
    the sums reveal information about all streams. Raises Forbidden."""
    for name in asked.parts.broker.stream_names():
        if not asked.may("read", name):
            raise Forbidden(
                "these charts are the sums of all streams, and you may not read every stream",
                hint="the page of each stream that you may read has charts of its own",
            )
    return _shown(asked, _Wanted("", DAEMON, DAEMON_CHARTS), "")


class _Wanted(NamedTuple):
    """The requested charts. `name` is the stream, if there is one. `reader` contains the name of
    the reader whose lag is shown, under the key `consumer` or `group`."""

    name: str
    series: str
    charts: Sequence[Chart]
    reader: Mapping[str, str] = MappingProxyType({})


_READERS = {"consumer": of_consumer, "group": of_group}


def _shown(asked: Asked, wanted: _Wanted, state: str) -> Shown:
    chosen = asked.choice("span", tuple(SPANS))
    span = SPANS[chosen]
    points = _copied(asked.parts.history.points(wanted.series, chosen), wanted.charts)
    now = points.times[-1] if points.times else time.time()
    data: dict[str, Any] = {
        "name": wanted.name,
        **{kind: wanted.reader.get(kind, "") for kind in _READERS},
        "state": state,
        "span": chosen,
        "interval_seconds": span.seconds,
        "times": [round(at, 3) for at in points.times],
        "series": {
            line: [_number(value) for value in points.values.get(line, ())]
            for chart in wanted.charts
            for _, line in chart.lines
        },
    }
    data["shape"] = [chosen, state, data["times"][-1:]]
    return Shown(
        f"Charts of {wanted.name}" if wanted.name else "Charts",
        data,
        {
            "times": time_labels(span, now),
            "spans": [
                (one, SPANS[one].text, "?" + urlencode({**wanted.reader, "span": one}))
                for one in SPANS
            ],
        },
        draw=partial(_drawn, wanted.charts, points, span, now),
    )


def _copied(points: Points, charts: Sequence[Chart]) -> Points:
    """Return the points of the charts at this moment, because the history continues while they are
    drawn."""
    names = {name for chart in charts for _, name in chart.lines} & points.values.keys()
    return Points([*points.times], {name: [*points.values[name]] for name in names})


async def _drawn(charts: Sequence[Chart], points: Points, span: Span, now: float) -> dict[str, Any]:
    found = []
    slices = Slices()
    for chart in charts:
        found.append(drawn(chart, points, span, now))
        await slices.pause()
    return {"charts": found}


def _number(value: float) -> float | None:
    return float(f"{value:.{_DIGITS}g}") if value == value else None
