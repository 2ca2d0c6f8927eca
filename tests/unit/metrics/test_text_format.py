"""What is written is what Prometheus reads, whatever a label holds."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from liftlog.server.metrics.exposition import Page, labels_text, number
from liftlog.server.metrics.table import Metric
from liftlog.server.vitals.histogram import Histogram

# The parser splits lines as Python does; Prometheus only knows line feeds.
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"))  # fmt: skip  # noqa: E501


def parsed(page: Page) -> list[tuple[str, dict[str, str], float]]:
    families = text_string_to_metric_families(page.to_bytes().decode())
    return [(s.name, s.labels, s.value) for family in families for s in family.samples]


@given(TEXT, TEXT, TEXT)
def test_labels_and_help_come_back_as_they_were(first: str, second: str, text: str) -> None:
    page = Page()
    page.begin(Metric("x", "gauge", ("a", "b"), "help " + text))
    page.sample("x", labels_text(("a", "b"), (first, second)), 1)
    page.begin(Metric("y", "gauge", (), "y"))
    page.sample("y", "", 2)
    assert parsed(page) == [("x", {"a": first, "b": second}, 1.0), ("y", {}, 2.0)]
    (family, _) = text_string_to_metric_families(page.to_bytes().decode())
    assert family.documentation.split() == ("help " + text).split()


def test_a_label_cannot_begin_a_line_or_another_label() -> None:
    page = Page()
    page.begin(Metric("x", "gauge", ("a",), "x"))
    page.sample("x", labels_text(("a",), ('1",b="2"} 3\nevil 4\\',)), 5)
    assert page.to_bytes().count(b"\n") == 3
    assert parsed(page) == [("x", {"a": '1",b="2"} 3\nevil 4\\'}, 5.0)]


def test_text_that_is_no_unicode_still_leaves_a_page() -> None:
    page = Page()
    page.sample("x", labels_text(("a",), ("\ud800",)), 1)
    assert page.to_bytes() == b'x{a="\\ud800"} 1\n'


@pytest.mark.parametrize("value", [0, 1, True, 2**63, -1, 0.1, 1e-9, 1e300, math.inf, -math.inf])
def test_numbers(value: float) -> None:
    assert float(number(value)) == value


def test_not_a_number() -> None:
    assert number(math.nan) == "NaN"


@given(st.lists(st.tuples(st.floats(0, 100, width=32), st.integers(1, 1000)), max_size=30))
def test_histograms_are_cumulative_and_whole(observed: list[tuple[float, int]]) -> None:
    bounds = (0.5, 1.0, 20.0)
    histogram = Histogram(bounds)
    for value, times in observed:
        histogram.observe(value, times)
    page = Page()
    page.begin(Metric("h", "histogram", ("s",), "h", bounds))
    page.histogram("h", 's="a"', histogram)
    (family,) = text_string_to_metric_families(page.to_bytes().decode())
    assert family.type == "histogram"
    buckets = {s.labels["le"]: s.value for s in family.samples if s.name == "h_bucket"}
    expected = {
        str(bound): float(sum(times for value, times in observed if value <= bound))
        for bound in bounds
    }
    total = float(sum(times for _, times in observed))
    assert buckets == expected | {"+Inf": total}
    rest = {s.name: s.value for s in family.samples if s.name != "h_bucket"}
    assert rest["h_count"] == total
    assert rest["h_sum"] == pytest.approx(sum(value * times for value, times in observed))
