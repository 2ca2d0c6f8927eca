"""The reference page of all conditions, made from their kinds."""

from __future__ import annotations

from collections.abc import Iterator

from liftlog.server.vitals.conditions import KINDS, About, Severity

_HEAD = """\
# Conditions

<!-- Made by `make pages`; a test fails when this page is out of date. -->

A daemon keeps one list of its problems, the **conditions**. All of the following places show the
same list, so you need to look at only one of them:
"""

_SURFACES = {
    "`GET /readyz`": (
        "`conditions` has each condition with its severity, subject and next step; `problems` "
        "and `warnings` have the texts by name. The status is 503 while a condition is unready"
    ),
    "`liftlog health`, over the pull port or over HTTP": (
        "the same texts, with the next steps; exit code 11 while a condition is unready"
    ),
    "`liftlog info`, `liftlog top`, `liftlog doctor`": (
        "the conditions of the daemon that answers the command; `doctor` reports an unready "
        "condition as a failure"
    ),
    "`liftlog stream info`, `liftlog stream ls`": (
        "as warnings of a stream: the conditions of the stream itself, and the conditions of "
        "the daemon that affect publishers or readers of the stream"
    ),
    "each page of the [web page](../how-to/web-page.md), and its `.json` form": (
        "at the top of the page; `conditions`"
    ),
    "the answer to [metadata](protocol.md#metadata) of the pull protocol, and the client library": (
        "`conditions`"
    ),
    "`GET /metrics`": (
        "`liftlog_conditions{condition, severity}` is the number of conditions of each kind (0 if "
        "none exists); the alert [LiftlogCondition](../how-to/operate.md#liftlogcondition) uses it"
    ),
}

_ACCESS = """
A principal receives only the conditions of streams that it may read. `/readyz` and
`/metrics`, which have no authentication, show all conditions.
"""

_MEANINGS = {
    Severity.UNREADY: (
        "The daemon cannot serve clients. In a cluster, clients should use another node."
    ),
    Severity.ERROR: (
        "A part of the daemon does not work. The daemon serves everything else, and stays ready."
    ),
    Severity.WARNING: (
        "The daemon serves everything, but an operator should read the text of the condition."
    ),
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
