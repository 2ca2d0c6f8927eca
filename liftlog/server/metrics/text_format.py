"""The text format of Prometheus, version 0.0.4.

prometheus_client takes about 10 us per sample, which with 500 streams stops the event loop for
half a second. Here the labels of a stream are written once and its samples are one f-string each.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate

from liftlog.server.metrics.table import Metric
from liftlog.server.vitals.histogram import Histogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_LABEL_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
_HELP_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n"})


def labels_text(names: Sequence[str], values: Sequence[str]) -> str:
    """`stream="orders",reason="paused"`: without braces, so that more can follow."""
    pairs = zip(names, values, strict=True)
    return ",".join(f'{name}="{value.translate(_LABEL_ESCAPES)}"' for name, value in pairs)


def number(value: float) -> str:
    if isinstance(value, int):
        return str(int(value))  # True is 1
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)


@lru_cache
def _bucket_ends(bounds: tuple[float, ...]) -> list[str]:
    """The text between labels and number, for each bucket."""
    return [f'le="{number(float(bound))}"}} ' for bound in (*bounds, float("inf"))]


class Page:
    """Lines in order. All samples of a metric follow its `begin`."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def begin(self, metric: Metric) -> None:
        text = metric.help.translate(_HELP_ESCAPES)
        self._lines.append(f"# HELP {metric.name} {text}\n# TYPE {metric.name} {metric.kind}\n")

    def sample(self, name: str, labels: str, value: float) -> None:
        shown = f"{name}{{{labels}}}" if labels else name
        self._lines.append(f"{shown} {value if type(value) is int else number(value)}\n")

    def histogram(self, name: str, labels: str, histogram: Histogram) -> None:
        """Whole in one call, so that the buckets and the count are of one moment."""
        begin = f"{name}_bucket{{{labels}," if labels else f"{name}_bucket{{"
        totals = list(accumulate(histogram.counts))
        self._lines += [
            f"{begin}{end}{total}\n"
            for end, total in zip(_bucket_ends(histogram.bounds), totals, strict=True)
        ]
        self.sample(f"{name}_sum", labels, histogram.sum)
        self.sample(f"{name}_count", labels, totals[-1])

    def to_bytes(self) -> bytes:
        return "".join(self._lines).encode("utf-8", "backslashreplace")
