"""Dashboard and alert rules name metrics and labels that exist, and every alert says what to do."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.promql import Expression, read
from support.repository import REPOSITORY

from liftlog.sequencing.refusals import DISK_FULL, OVERLOADED, STORE_FAILED
from liftlog.server.metrics.table import GROUPS, METRICS

PROMETHEUS = REPOSITORY / "config" / "prometheus"
GRAFANA = REPOSITORY / "config" / "grafana"
ALERTS = yaml.safe_load((PROMETHEUS / "liftlog-alerts.yml").read_text())["groups"][0]["rules"]
DASHBOARD = json.loads((GRAFANA / "liftlog.json").read_text())
RUNBOOK = (REPOSITORY / "docs" / "how-to" / "operate.md").read_text()

SAMPLES = {sample: metric for metric in METRICS.values() for sample in metric.sample_names}
OF_THE_TARGET = {"job", "instance"}
PROMTOOL = shutil.which("promtool") or shutil.which(
    str(REPOSITORY / "build" / "tools" / "promtool")
)


def check(expression: Expression) -> set[str]:
    """Every metric exists and has the labels that are asked for; returns the metrics' names."""
    known: set[str] = set()
    used = set()
    for metric, labels in expression.selectors:
        if metric == "up":  # Prometheus' own
            known |= OF_THE_TARGET
            continue
        assert metric in SAMPLES, f"{metric} is not exported"
        found = SAMPLES[metric]
        used.add(found.name)
        of_metric = {*found.labels, *OF_THE_TARGET}
        if metric.endswith("_bucket"):
            of_metric.add("le")
        elif metric != found.name:
            assert found.kind == "histogram"
        # A dashboard's variable for streams is harmless where there is no such label.
        asked = {label for label, value in labels.items() if not value.startswith("$")}
        assert asked <= of_metric, (metric, labels)
        known |= of_metric
    assert expression.grouped <= known, expression
    return used


def check_use(text: str, expression: Expression) -> None:
    """Rates are of counters, quantiles of histograms; a counter by itself says nothing."""
    for metric, _ in expression.selectors:
        if metric == "up":
            continue
        found = SAMPLES[metric]
        ranged = re.search(rf"\b(rate|increase)\({metric}\b[^)]*\[", text)
        if found.kind in ("counter", "histogram"):
            assert ranged, f"{metric} without a rate: {text}"
        else:
            assert not ranged, f"the rate of a gauge, {metric}: {text}"
        if metric.endswith("_bucket"):
            assert "histogram_quantile(" in text
            assert "le" in expression.grouped, text


def panels() -> Iterator[dict[str, Any]]:
    for panel in DASHBOARD["panels"]:
        yield panel
        yield from panel.get("panels", [])


def queries() -> list[tuple[str, str]]:
    found = [
        (panel["title"], one["expr"]) for panel in panels() for one in panel.get("targets", [])
    ]
    return found + [(one["name"], one["expr"]) for one in DASHBOARD["annotations"]["list"]]


def readable(expr: str) -> str:
    return expr.replace("$__rate_interval", "5m")


# --- the reader itself ---


def test_the_reader_of_expressions() -> None:
    text = 'sum by (stream, le) (rate(x_bucket{a="b}", c=~"d"}[5m])) / on (job) y offset 1h > 0.5'
    found = read(text)
    assert found.selectors == [("x_bucket", {"a": "b}", "c": "d"}), ("y", {})]
    assert found.grouped == {"stream", "le", "job"}


@pytest.mark.parametrize("wrong", ["rate(x[5m]", "rat(x[5m])", "x{a='b'}", "sum(x))"])
def test_what_is_no_expression(wrong: str) -> None:
    with pytest.raises(ValueError):
        read(wrong)


@pytest.mark.parametrize(
    "wrong",
    ["liftlog_nothing", 'liftlog_ready{stream="a"}', "sum by (consumer) (liftlog_segments)"],
)
def test_what_the_check_finds(wrong: str) -> None:
    with pytest.raises(AssertionError):
        check(read(wrong))


# --- alerts ---


@pytest.mark.parametrize("alert", ALERTS, ids=[alert["alert"] for alert in ALERTS])
def test_alerts(alert: dict[str, Any]) -> None:
    expression = read(alert["expr"])
    check(expression)
    if "changes(" not in alert["expr"]:
        check_use(alert["expr"], expression)
    assert set(alert) <= {"alert", "expr", "for", "labels", "annotations"}
    assert re.fullmatch(r"Liftlog[A-Z][A-Za-z]+", alert["alert"])
    assert alert["labels"]["severity"] in ("critical", "warning")
    notes = alert["annotations"]
    assert set(notes) == {"summary", "description", "runbook"}
    # What a text names has survived the aggregation.
    shown = set(re.findall(r"\$labels\.(\w+)", " ".join(notes.values())))
    kept = (
        expression.grouped
        if " by (" in alert["expr"]
        else set.intersection(
            *(
                {*SAMPLES[m].labels, *OF_THE_TARGET}
                for m, _ in expression.selectors[:1]
                if m != "up"
            ),
            {"job", "instance", *(label for metric in METRICS.values() for label in metric.labels)},
        )
    )
    assert shown <= kept, (shown, kept)


def test_every_alert_has_its_chapter() -> None:
    headings = re.findall(r"^#+ (Liftlog\w+)$", RUNBOOK, re.MULTILINE)
    assert headings == [alert["alert"] for alert in ALERTS]
    for alert in ALERTS:
        anchor = alert["annotations"]["runbook"].rpartition("#")[2]
        assert anchor == alert["alert"].lower()


def test_refusals_that_somebody_is_woken_for_are_exported_from_the_start() -> None:
    (rule,) = [alert for alert in ALERTS if alert["alert"] == "LiftlogRefusing"]
    (selector,) = read(rule["expr"]).selectors
    assert set(selector.labels["reason"].split("|")) == {
        refusal.reason for refusal in (DISK_FULL, STORE_FAILED, OVERLOADED)
    }


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed")
@pytest.mark.parametrize(
    "command",
    [
        ["check", "config", str(PROMETHEUS / "prometheus.yml")],
        ["test", "rules", str(Path(__file__).with_name("alerts_test.yml"))],
    ],
    ids=["config", "rules"],
)
def test_promtool(command: list[str]) -> None:
    assert PROMTOOL is not None
    done = subprocess.run([PROMTOOL, *command], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


# --- dashboard ---


@pytest.mark.parametrize(("title", "expr"), queries())
def test_queries(title: str, expr: str) -> None:
    text = readable(expr)
    expression = read(text)
    check(expression)
    if "changes(" not in text:
        check_use(text, expression)


def test_the_dashboard_shows_what_matters() -> None:
    shown = {name for _, expr in queries() for name in check(read(readable(expr)))}
    left_out = set(METRICS) - shown
    assert len(shown) > 40
    for metric in METRICS.values():
        if metric.kind == "histogram":
            assert metric.name not in left_out, metric.name


def test_the_dashboard_shows_the_lag_of_every_kind_of_reader() -> None:
    by_title = {
        panel["title"]: " ".join(one["expr"] for one in panel.get("targets", []))
        for panel in panels()
    }
    for title in ("Largest lag", "Consumer lag"):
        for metric in ("liftlog_consumer_lag", "liftlog_group_lag"):
            assert metric in by_title[title], title
    shown = {name for _, expr in queries() for name in check(read(readable(expr)))}
    left_out = {metric.name for metric in GROUPS} - shown
    # Each slot has a line of its own, and the two counts are of the daemon's memory.
    assert left_out == {
        "liftlog_group_generation",
        "liftlog_group_slot_lag",
        "liftlog_group_member_slots",
        "liftlog_groups",
        "liftlog_groups_not_shown",
    }


@pytest.mark.parametrize(
    "panel", [one for one in panels() if one["type"] != "row"], ids=lambda one: one["title"]
)
def test_a_panel_says_what_it_shows(panel: dict[str, Any]) -> None:
    text = panel.get("description", "")
    assert len(text) > 40
    assert text.endswith(".")
    assert text.removesuffix(".") != panel["title"]


def test_the_dashboard_is_sound() -> None:
    ids = [panel["id"] for panel in panels()]
    assert len(set(ids)) == len(ids)
    variables = {one["name"] for one in DASHBOARD["templating"]["list"]}
    assert set(re.findall(r"\$\{?(?!__)(\w+)", json.dumps(DASHBOARD))) <= variables
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
    for one in DASHBOARD["templating"]["list"]:
        if one["type"] == "query":
            metric = re.fullmatch(r"label_values\((\w+)(\{.*\})?, (\w+)\)", one["definition"])
            assert metric is not None
            assert metric[3] in {*SAMPLES[metric[1]].labels, *OF_THE_TARGET}


# --- the monitoring profile of docker-compose.yml ---


def test_the_profile_finds_its_files() -> None:
    compose = yaml.safe_load((REPOSITORY / "docker-compose.yml").read_text())
    services = {
        name: one
        for name, one in compose["services"].items()
        if "monitoring" in one.get("profiles", [])
    }
    assert set(services) == {"prometheus", "grafana"}
    mounted = {
        target: REPOSITORY / source
        for service in services.values()
        for source, target, *_ in (volume.split(":") for volume in service["volumes"])
        if source.startswith(".")
    }
    config = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
    assert mounted["/etc/prometheus"] == PROMETHEUS
    for name in config["rule_files"]:
        assert (PROMETHEUS / name).is_file()
    (job,) = config["scrape_configs"]
    assert job["job_name"] == "liftlog"  # which the alerts name
    (target,) = job["static_configs"][0]["targets"]
    listen = compose["services"]["liftlog"]["environment"]["LIFTLOG_HTTP__LISTEN"]
    assert target == f"liftlog:{listen.rpartition(':')[2]}"
    (nodes,) = job["dns_sd_configs"]
    members = {
        name: one["environment"]["LIFTLOG_HTTP__LISTEN"].rpartition(":")[2]
        for name, one in compose["services"].items()
        if name.startswith("node-")
    }
    assert {name: str(nodes["port"]) for name in nodes["names"]} == members
    provisioning = mounted["/etc/grafana/provisioning"]
    source = yaml.safe_load((provisioning / "datasources" / "prometheus.yml").read_text())
    assert source["datasources"][0]["url"] == "http://prometheus:9090"
    boards = yaml.safe_load((provisioning / "dashboards" / "liftlog.yml").read_text())
    folder = boards["providers"][0]["options"]["path"]
    assert mounted[f"{folder}/liftlog.json"] == GRAFANA / "liftlog.json"
