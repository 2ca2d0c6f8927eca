"""The reference page of all metrics, made from the table."""

from __future__ import annotations

from collections.abc import Iterator

from liftlog.server.metrics.exposition import CONTENT_TYPE, MAX_SHOWN_CHECKPOINTS, number
from liftlog.server.metrics.table import SECTIONS, Metric

_HEAD = f"""\
# Metrics

<!-- Made by `make pages`; a test fails when this page is out of date. -->

`GET /metrics` on the [HTTP port](http.md) answers in the text format of Prometheus
(`{CONTENT_TYPE}`). `config/grafana/liftlog.json` is a dashboard of them,
`config/prometheus/liftlog-alerts.yml` are alert rules; [Operate](../how-to/operate.md) says what
to do about each.

Counters begin at 0 when the daemon starts. A histogram `NAME` is exported as `NAME_bucket` (with
the label `le`), `NAME_sum` and `NAME_count`. Names of streams and consumers are labels, and the
page has no authentication of its own: keep `http.listen` on an address that only Prometheus
reaches. Labels hold nothing else that a client has sent.

At most {MAX_SHOWN_CHECKPOINTS:,} checkpoints have rows of their own, in the order of their
consumers' names; `liftlog_checkpoints_not_shown` counts the rest.
"""


def render() -> str:
    """The whole page."""
    return "\n".join([_HEAD, *_sections()])


def _sections() -> Iterator[str]:
    for title, metrics in SECTIONS:
        yield f"## {title}\n"
        yield "| metric | type | labels | meaning |"
        yield "|---|---|---|---|"
        yield from map(_row, metrics)
        yield ""
    yield "## Buckets\n"
    yield "| histogram | upper bounds |"
    yield "|---|---|"
    for _, metrics in SECTIONS:
        for metric in metrics:
            if metric.kind == "histogram":
                bounds = ", ".join(number(float(bound)) for bound in metric.bounds)
                yield f"| `{metric.name}` | {bounds} |"
    yield ""


def _row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |"
