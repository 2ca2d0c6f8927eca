"""Charts of one stream, and of the daemon: the last minutes or hours."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

from liftlog.errors import Forbidden
from liftlog.server.web.asking import Asked, Shown
from liftlog.server.web.charts import DAEMON_CHARTS, STREAM_CHARTS, Chart, drawn, time_labels
from liftlog.server.web.history import DAEMON, SPANS

_DIGITS = 6


async def stream_charts(asked: Asked) -> Shown:
    name = asked.authorize("read")
    described = await asked.parts.broker.describe_stream(name)
    asked.authorize("read")  # again after the await
    return _shown(asked, name, described.state, STREAM_CHARTS)


async def daemon_charts(asked: Asked) -> Shown:
    """For who may read every stream: the sums tell about all of them. Raises Forbidden."""
    for name in asked.parts.broker.stream_names():
        if not asked.may("read", name):
            raise Forbidden(
                "these charts are the sums of all streams, and you may not read every stream",
                hint="the page of each stream that you may read has charts of its own",
            )
    return _shown(asked, DAEMON, "", DAEMON_CHARTS)


def _shown(asked: Asked, name: str, state: str, charts: Sequence[Chart]) -> Shown:
    chosen = asked.choice("span", tuple(SPANS))
    span = SPANS[chosen]
    points = asked.parts.history.points(name, chosen)
    now = points.times[-1] if points.times else time.time()
    data: dict[str, Any] = {
        "name": name,
        "state": state,
        "span": chosen,
        "interval_seconds": span.seconds,
        "times": [round(at, 3) for at in points.times],
        "series": {
            series: [_number(value) for value in points.values.get(series, ())]
            for chart in charts
            for _, series in chart.lines
        },
    }
    data["shape"] = [chosen, state, data["times"][-1:]]
    return Shown(
        f"Charts of {name}" if name else "Charts",
        data,
        {
            "charts": [drawn(chart, points, span, now) for chart in charts],
            "times": time_labels(span, now),
            "spans": [(one, SPANS[one].text, "?" + urlencode({"span": one})) for one in SPANS],
        },
    )


def _number(value: float) -> float | None:
    return float(f"{value:.{_DIGITS}g}") if value == value else None
