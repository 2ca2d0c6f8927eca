"""The reference page of all conditions, made from their kinds."""

from __future__ import annotations

from collections.abc import Iterator

from liftlog.server.vitals.conditions import KINDS, About, Severity

_HEAD = """\
# Conditions

<!-- Made by `make pages`; a test fails when this page is out of date. -->

A daemon keeps one list of what is wrong with it, the **conditions**. Every surface shows that
list, so the first one you look at is enough:
"""

_SURFACES = {
    "`GET /readyz`": (
        "`conditions` has each with its severity, subject and next step; `problems` and `warnings` "
        "have the texts by name. The status is 503 while one is unready"
    ),
    "`liftlog health`, over the pull port or over HTTP": (
        "the same texts, with the next steps; exit code 11 while one is unready"
    ),
    "`liftlog info`, `liftlog top`, `liftlog doctor`": (
        "the conditions of the daemon that they ask; for `doctor` an unready one is a failure"
    ),
    "`liftlog stream info`, `liftlog stream ls`": (
        "warnings of a stream: its own conditions, and those of the daemon that its publishers "
        "notice"
    ),
    "each page of the [web page](../how-to/web-page.md), and its `.json` twin": (
        "at the top of the page; `conditions`"
    ),
    "[metadata](protocol.md#metadata) of the pull protocol and of the clients": "`conditions`",
    "`GET /metrics`": (
        "`liftlog_conditions{condition, severity}` is their number, also 0; the alert "
        "[LiftlogCondition](../how-to/operate.md#liftlogcondition) watches it"
    ),
}

_ACCESS = """
Principals see the conditions of streams that they may read. `/readyz` and `/metrics`, which have
no authentication, show all.
"""

_MEANINGS = {
    Severity.UNREADY: "Clients should not be sent to this daemon.",
    Severity.ERROR: "Something is broken, while the rest is served: the daemon stays ready.",
    Severity.WARNING: "Everything is served, and an operator should look.",
}


def render() -> str:
    """The whole page."""
    return "\n".join([_HEAD, *_surfaces(), _ACCESS, *_sections()])


def _surfaces() -> Iterator[str]:
    yield "| surface | how it shows a condition |"
    yield "|---|---|"
    for surface, how in _SURFACES.items():
        yield f"| {surface} | {how} |"


def _sections() -> Iterator[str]:
    for severity in Severity:
        yield f"## {severity.value.capitalize()}\n"
        yield f"{_MEANINGS[severity]}\n"
        yield "| condition | about | meaning | next step |"
        yield "|---|---|---|---|"
        for kind in KINDS.values():
            if kind.severity is severity:
                article = "the" if kind.about is About.DAEMON else "a"
                about = f"{article} {kind.about.value}"
                yield f"| `{kind.name}` | {about} | {kind.meaning} | {kind.next_step} |"
        yield ""
