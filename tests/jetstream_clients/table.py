"""Writes the results to docs/reference/jetstream-clients.md.

A test that fails counts as *refused by design* only if refused.yaml names it, with the reason. What
fails with JetStream itself, too, is *no measure*. Any other one counts as *failed*.

The page is made from `results/`, one file for each suite, which are committed: so a suite can be
run alone, and the page names the revision of each. What each test brought is kept in `build/`.
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

from jetstream_clients.suite import (
    BUILD,
    ELSEWHERE,
    KINDS,
    REPOSITORY,
    CannotRun,
    Outcome,
    Suite,
    run,
)
from jetstream_clients.suites import SUITES

PAGE = REPOSITORY / "docs/reference/jetstream-clients.md"
_REFUSED = Path(__file__).with_name("refused.yaml")
RESULTS = Path(__file__).with_name("results")
WORDS = ("passed", "refused", "no measure", "failed")


@cache
def _reasons() -> dict[str, list[tuple[re.Pattern[str], str]]]:
    content = yaml.safe_load(_REFUSED.read_text()) or {}
    return {
        client: [(re.compile(pattern), reason) for pattern, reason in (tests or {}).items()]
        for client, tests in content.items()
    }


def reason(outcome: Outcome) -> str:
    """Return the reason why a failed test was refused; empty if there is none."""
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


class Result(NamedTuple):
    """A suite's row, and its tests that did not pass."""

    client: str
    version: str
    source: str
    revisions: Mapping[str, int]
    """Number of tests that were last run at each revision of liftlog."""
    run: int
    """Test functions that were run. Each may have several outcomes, one for each subtest."""
    not_run: Mapping[str, int]
    """Numbers of tests that were not run, by kind. Kinds that were not counted are missing."""
    passed: int
    others: Sequence[tuple[str, bool | None]]
    """Each failed test, and whether it passes with JetStream itself."""

    def outcomes(self) -> list[Outcome]:
        """Rows of the tests that failed."""
        return [Outcome(self.client, test, False, "", theirs) for test, theirs in self.others]

    def counts(self) -> dict[str, int]:
        return {**counts(self.outcomes()), "passed": self.passed}

    def left_out(self) -> int:
        """Tests of JetStream that were not run."""
        return sum(self.not_run.get(kind, 0) for kind in KINDS)


def counts(outcomes: Sequence[Outcome]) -> dict[str, int]:
    found = Counter(map(judged, outcomes))
    return {word: found[word] for word in WORDS}


def keep(suite: Suite, outcomes: Sequence[Outcome], *, revision: str, is_all: bool) -> None:
    """Write the suite's result of this revision of liftlog. Unless these are all outcomes, they
    take the place of what the same tests brought before. Raises CannotRun if there is nothing
    before."""
    new = [(one, revision) for one in outcomes]
    if not is_all:
        again = {_function(one) for one in outcomes}
        new = [*(pair for pair in _last(suite.name) if _function(pair[0]) not in again), *new]
    content = [{**one._asdict(), "revision": at} for one, at in new]
    _kept(suite.name).write_text(json.dumps(content, indent=1))
    result = Result(
        suite.name,
        suite.version,
        suite.source,
        dict(Counter(at for _, at in new)),
        sum(not suite.kind_outside(test) for test in suite.tests()),
        suite.not_run(),
        sum(one.passed for one, _ in new),
        [(one.test, one.theirs) for one, _ in new if not one.passed],
    )
    text = json.dumps(result._asdict(), indent=1)
    (RESULTS / f"{suite.name}.json").write_text(text + "\n")


def _function(outcome: Outcome) -> str:
    """The test without the name of its subtest."""
    return outcome.test.partition("/")[0]


def _last(name: str) -> list[tuple[Outcome, str]]:
    """The newest outcome of each test here, and the revision at which the test ran."""
    if not _kept(name).exists():
        raise CannotRun(f"run all tests of {name} once before some of them are kept")
    return [
        (Outcome(**{field: one[field] for field in Outcome._fields}), one["revision"])
        for one in json.loads(_kept(name).read_text())
    ]


def _kept(name: str) -> Path:
    return BUILD / f"{name}.tests.json"


def present_revision() -> str:
    """The revision of the tree, with `-dirty` if a file differs that may change an outcome."""
    said = run(["git", "describe", "--always", "--abbrev=12"], cwd=REPOSITORY)
    others = [f":!{path.relative_to(REPOSITORY)}" for path in (PAGE, RESULTS)]
    status = ["git", "status", "--porcelain", "--untracked-files=no", "--", ".", *others]
    is_dirty = bool(run(status, cwd=REPOSITORY).stdout)
    return said.stdout.strip() + ("-dirty" if is_dirty else "")


def results() -> list[Result]:
    """The committed results, in the order of the suites."""
    found = []
    for suite in SUITES:
        path = RESULTS / f"{suite.name}.json"
        if path.exists():
            found.append(Result(**json.loads(path.read_text())))
    return found


def page(found: Sequence[Result]) -> str:
    run = sum(one.run for one in found)
    total = run + sum(one.left_out() for one in found)
    lines = [
        "# Tests of JetStream's clients",
        "",
        "JetStream's clients have test suites of their own. This page shows the results of",
        "these tests with liftlog. The tests run unchanged against a nats-server without",
        "JetStream and a daemon with `nats.jetstream_api: true`. `make jetstream-clients`",
        "downloads the suites, runs them and writes this page. The columns of the first table",
        "have this meaning:",
        "",
        "- *passed*: the test passed.",
        "- *refused*: the test fails because liftlog differs from JetStream by design. The",
        "  last table gives the reason.",
        "- *no measure*: the test also fails with JetStream itself on the same machine.",
        "- *failed*: the test failed in two attempts, for any other reason.",
        "- *not run*: tests of features that liftlog does not support at all, and tests that",
        "  do not test a server. The second table counts them by kind.",
        "- *revision*: the revision of liftlog at which the tests were run. If the tests were",
        "  run at several revisions, the number of tests is in brackets after each revision.",
        "",
        "A test with subtests counts once for each subtest.",
        f"Of {total:,} test functions for JetStream {run:,} were run.",
        "",
        "| client | version | from | passed | refused | no measure | failed | not run | revision |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for one in found:
        numbers = " | ".join(str(count) for count in one.counts().values())
        about = f"{one.client} | {one.version} | {one.source}"
        lines.append(f"| {about} | {numbers} | {one.left_out()} | {_revisions(one)} |")
    lines += [
        "",
        *_left_out(found),
        "",
        "liftlog refuses memory storage. If a test requests memory storage, `make",
        "jetstream-clients` changes the client or the test so that it requests files. Otherwise",
        "the test would fail at this request, and would test nothing else.",
        "",
        "## Tests that did not pass",
        "",
        "| client | test | result | reason |",
        "|---|---|---|---|",
    ]
    for outcome in (outcome for one in found for outcome in one.outcomes()):
        why = reason(outcome) or "-"
        lines.append(f"| {outcome.client} | `{outcome.test}` | {judged(outcome)} | {why} |")
    return "\n".join(lines) + "\n"


def _revisions(result: Result) -> str:
    if len(result.revisions) == 1:
        return next(iter(result.revisions))
    return ", ".join(f"{at} ({count})" for at, count in result.revisions.items())


def _left_out(found: Sequence[Result]) -> list[str]:
    """The tests that were not run, by kind."""
    lines = [
        "## Tests that were not run",
        "",
        f"| tests of | {' | '.join(one.client for one in found)} | total |",
        f"|---|{'---|' * len(found)}---|",
    ]
    for kind in KINDS:
        each = [one.not_run.get(kind, 0) for one in found]
        lines.append(f"| {kind} | {' | '.join(map(str, each))} | {sum(each)} |")
    counted = ", ".join(
        f"{one.not_run[ELSEWHERE]} in {one.client}" for one in found if ELSEWHERE in one.not_run
    )
    if not counted:
        return lines
    return [
        *lines,
        "",
        f"Tests of {ELSEWHERE}",
        f"do not use JetStream. They were not run, and the tables do not count them ({counted}).",
    ]
