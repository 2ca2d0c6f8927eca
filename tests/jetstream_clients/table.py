"""What came out, as docs/reference/jetstream-clients.md shows it.

A test that fails counts as *refused by design* only if refused.yaml names it, with the reason. What
fails with JetStream itself, too, is *no measure*. Any other one counts as *failed*.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import yaml

from jetstream_clients.suites import BUILD, KINDS, REPOSITORY, SUITES, Outcome, Suite, run

PAGE = REPOSITORY / "docs/reference/jetstream-clients.md"
_REFUSED = Path(__file__).with_name("refused.yaml")
WORDS = ("passed", "refused", "no measure", "failed")


@cache
def _reasons() -> dict[str, list[tuple[re.Pattern[str], str]]]:
    content = yaml.safe_load(_REFUSED.read_text()) or {}
    return {
        client: [(re.compile(pattern), reason) for pattern, reason in (tests or {}).items()]
        for client, tests in content.items()
    }


def reason(outcome: Outcome) -> str:
    """Why a test that failed was refused; empty if no one has said so."""
    for pattern, text in _reasons().get(outcome.client, []):
        if pattern.search(outcome.test):
            return text
    return ""


def judged(outcome: Outcome) -> str:
    if outcome.passed:
        return "passed"
    if reason(outcome):
        return "refused"
    return "no measure" if outcome.theirs is False else "failed"


def counts(outcomes: Sequence[Outcome]) -> dict[str, int]:
    found = Counter(map(judged, outcomes))
    return {word: found[word] for word in WORDS}


def keep(suite: Suite, outcomes: Sequence[Outcome], *, is_all: bool) -> None:
    """For the next table; unless these are all, in the place of what these tests brought before."""
    kept: list[Outcome] = []
    if not is_all:
        again = {one.test.partition("/")[0] for one in outcomes}
        kept = [one for one in _last(suite.name)[1] if one.test.partition("/")[0] not in again]
    revision = _revision() if is_all else _last(suite.name)[0]
    content = {
        "revision": revision,
        "not_run": suite.not_run(),
        "run": sum(not suite.kind_outside(test) for test in suite.tests()),
        "outcomes": [tuple(one) for one in (*kept, *outcomes)],
    }
    _kept(suite.name).write_text(json.dumps(content, indent=1))


def _last(name: str) -> tuple[str, list[Outcome]]:
    """The revision at which all tests were run, empty if they never were, and the outcomes."""
    if not _kept(name).exists():
        return "", []
    content = json.loads(_kept(name).read_text())
    return content["revision"], [Outcome(*one) for one in content["outcomes"]]


class Extent(NamedTuple):
    """How many test functions of a suite were run, and how many were not, by kind."""

    run: int
    not_run: Mapping[str, int]


def _extent(name: str) -> Extent:
    content = json.loads(_kept(name).read_text())
    return Extent(content.get("run", 0), content.get("not_run", {}))


def _kept(name: str) -> Path:
    return BUILD / f"{name}.outcomes.json"


def _revision() -> str:
    """Of the tree, without what does not change what comes out."""
    said = run(["git", "describe", "--always", "--dirty", "--abbrev=12"], cwd=REPOSITORY)
    return said.stdout.strip()


def write() -> str:
    """Write the page from the last outcomes of each suite. Returns why not: they are not of one
    revision."""
    revisions = {suite.name: _last(suite.name)[0] for suite in SUITES}
    if len(set(revisions.values())) > 1 or "" in revisions.values():
        found = ", ".join(f"{name} {which or 'never'}" for name, which in revisions.items())
        return f"all tests were last run at several revisions: {found}"
    [revision] = set(revisions.values())
    outcomes = [one for suite in SUITES for one in _last(suite.name)[1]]
    extents = {suite.name: _extent(suite.name) for suite in SUITES}
    PAGE.write_text(page(outcomes, extents, revision))
    return ""


def page(outcomes: Sequence[Outcome], extents: Mapping[str, Extent], revision: str) -> str:
    run = sum(one.run for one in extents.values())
    total = run + sum(sum(one.not_run.values()) for one in extents.values())
    lines = [
        "# Tests of JetStream's clients",
        "",
        "This page shows the results of the clients' own tests. They run unchanged against a",
        "nats-server without JetStream and a daemon with `nats.jetstream_api: true`. `make",
        "jetstream-clients` downloads the suites, runs them and writes this page. The columns",
        "of the first table have this meaning:",
        "",
        "- *passed*: the test passed.",
        "- *refused*: liftlog refuses a request of the test by design. The last table gives",
        "  the reason.",
        "- *no measure*: the test also fails with JetStream itself on the same machine.",
        "- *failed*: the test failed twice, for any other reason.",
        "- *not run*: the test is of a kind that was left out. The second table counts these",
        "  tests by kind: features that liftlog refuses as a whole, and tests that do not",
        "  test a server.",
        "",
        "A test with subtests counts once for each subtest.",
        f"Of {total:,} test functions for JetStream {run:,} were run.",
        f"All results are from revision {revision}.",
        "",
        "| client | version | from | passed | refused | no measure | failed | not run |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for suite in SUITES:
        mine = [one for one in outcomes if one.client == suite.name]
        found = " | ".join(str(count) for count in counts(mine).values())
        missing = sum(extents[suite.name].not_run.values())
        lines.append(f"| {suite.name} | {suite.version} | {suite.source} | {found} | {missing} |")
    lines += ["", *_left_out(extents)]
    lines += [
        "",
        "liftlog refuses memory storage. If a test requests memory storage, the client is",
        "changed to request files, because otherwise the rest of the test would not run.",
        "",
        "## Tests that did not pass",
        "",
        "| client | test | | reason |",
        "|---|---|---|---|",
    ]
    for one in outcomes:
        if not one.passed:
            why = reason(one) or "-"
            lines.append(f"| {one.client} | `{one.test}` | {judged(one)} | {why} |")
    return "\n".join(lines) + "\n"


def _left_out(extents: Mapping[str, Extent]) -> list[str]:
    """The tests that were not run, by kind."""
    names = [suite.name for suite in SUITES]
    lines = [
        "## Tests that were not run",
        "",
        f"| tests of | {' | '.join(names)} | together |",
        f"|---|{'---|' * len(names)}---|",
    ]
    for kind in KINDS:
        each = [extents[name].not_run.get(kind, 0) for name in names]
        lines.append(f"| {kind} | {' | '.join(map(str, each))} | {sum(each)} |")
    return lines
