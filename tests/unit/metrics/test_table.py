"""The table is sound, and the page says what it says."""

import re
from pathlib import Path

from liftlog.server.metrics.table import METRICS, SECTIONS
from liftlog.server.metrics.values import (
    CLEANING_VALUES,
    STREAM_HISTOGRAMS,
    STREAM_VALUES,
)
from tools.pages.metrics import render

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "metrics.md"


def test_names_follow_the_conventions() -> None:
    assert sum(len(metrics) for _, metrics in SECTIONS) == len(METRICS), "a name occurs twice"
    for name, metric in METRICS.items():
        assert re.fullmatch(r"(liftlog|process)_[a-z0-9]+(_[a-z0-9]+)*", name)
        assert name.endswith("_total") == (metric.kind == "counter"), name
        assert bool(metric.bounds) == (metric.kind == "histogram"), name
        assert list(metric.bounds) == sorted(set(metric.bounds)), name
        assert metric.help, name
        assert not metric.help.endswith("."), name
        assert "le" not in metric.labels, name


def test_every_stream_metric_is_of_the_kind_that_the_table_says() -> None:
    for name in STREAM_VALUES | CLEANING_VALUES:
        assert METRICS[name].kind in ("counter", "gauge"), name
        assert METRICS[name].labels == ("stream",), name
    for name in STREAM_HISTOGRAMS:
        assert METRICS[name].kind == "histogram", name


def test_the_reference_page_is_up_to_date() -> None:
    assert PAGE.read_text() == render(), "run: make pages"
