"""The reference page of all metrics, made from the table."""

from __future__ import annotations

from collections.abc import Iterator

from liftlog.server.metrics.ack_consumers import MAX_SHOWN
from liftlog.server.metrics.exposition import CONTENT_TYPE, MAX_SHOWN_CHECKPOINTS, number
from liftlog.server.metrics.table import SECTIONS, Metric

_HEAD = f"""\
# Metrics

<!-- Made by `make pages`; a test fails when this page is out of date. -->

`GET /metrics` on the [HTTP port](http.md) returns the metrics in the text format of
Prometheus (`{CONTENT_TYPE}`). `config/grafana/liftlog.json` is a dashboard for these metrics, and
`config/prometheus/liftlog-alerts.yml` has alert rules. [Operate](../how-to/operate.md) explains
each alert.

Counters begin at 0 when the daemon starts. A histogram `NAME` is exported as `NAME_bucket` (with
the label `le`), `NAME_sum` and `NAME_count`. Labels contain the names of streams, consumers, groups
and members, but no other text from clients. `/metrics` has no authentication, so set `http.listen`
to an address that only Prometheus can reach.

An answer contains at most {MAX_SHOWN_CHECKPOINTS:,} checkpoints, sorted by the name of the
consumer; `liftlog_checkpoints_not_shown` counts the omitted checkpoints. It contains at most
{MAX_SHOWN:,} consumers with acks, those with the most messages; `liftlog_ack_consumers_not_shown`
counts the omitted consumers.
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
