"""Get the test suites of JetStream's clients, run them, and write the table of the results.

    python -m jetstream_clients [--client NAME] [-k PATTERN] [--jobs N] [--minutes N] [--verbose]

A test that fails for no known reason is run twice more, alone, and then with JetStream itself. All
servers keep their files in memory where the machine has a directory for that: the tests allow a few
seconds for a thousand messages, and do not test the disk. What came out is written to results/,
with the revision of liftlog, and the page is made from there. nats-py's tests want port 4222;
nothing else may listen there.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from jetstream_clients import table
from jetstream_clients.servers import Servers
from jetstream_clients.suite import CannotRun, Outcome, Suite
from jetstream_clients.suites import SUITES

_MORE_ATTEMPTS = 2
_IN_MEMORY = Path("/dev/shm")


class TimeIsUp(Exception):
    """The time is over. The remaining tests were not run."""


def main() -> None:
    options = _parse()
    deadline = time.monotonic() + 60 * options.minutes
    if "TMPDIR" not in os.environ and _IN_MEMORY.is_dir():
        os.environ["TMPDIR"] = str(_IN_MEMORY)
    all_passed = True
    for kind in SUITES:
        suite = kind()
        if options.client and suite.name not in options.client:
            continue
        began, revision = time.monotonic(), table.present_revision()
        try:
            suite.prepare()
            with Servers() as ours, Servers(theirs=True) as theirs:
                outcomes = _Run(suite, options, ours, theirs, deadline).outcomes()
        except (CannotRun, TimeIsUp) as error:
            print(f"{suite.name}: {error}", file=sys.stderr)
            all_passed = False
            continue
        counts = table.counts(outcomes)
        counted = ", ".join(f"{count} {word}" for word, count in counts.items())
        print(f"{suite.name}: {counted}, in {time.monotonic() - began:.0f} s", flush=True)
        all_passed &= not counts["failed"]
        try:
            table.keep(suite, outcomes, revision=revision, is_all=not options.pattern)
        except CannotRun as error:
            print(f"not kept: {error}", file=sys.stderr)
    table.PAGE.write_text(table.page(table.results()))
    sys.exit(0 if all_passed else 1)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--client", action="append", choices=[one.name for one in SUITES])
    parser.add_argument("-k", dest="pattern", default="", help="only tests whose names match")
    parser.add_argument("--jobs", type=int, default=2, help="tests at a time (default: 2)")
    parser.add_argument("--minutes", type=float, default=90, help="for everything (default: 90)")
    parser.add_argument("--verbose", action="store_true", help="show why tests failed")
    return parser.parse_args()


class _Run:
    def __init__(
        self,
        suite: Suite,
        options: argparse.Namespace,
        ours: Servers,
        theirs: Servers,
        deadline: float,
    ) -> None:
        self._suite, self._options = suite, options
        self._ours, self._theirs = ours, theirs
        self._deadline = deadline

    def outcomes(self) -> list[Outcome]:
        suite, pattern = self._suite, self._options.pattern
        tests = [
            test
            for test in suite.tests()
            if not suite.kind_outside(test) and re.search(pattern, test)
        ]
        jobs = self._options.jobs if suite.can_be_beside_itself else 1
        with ThreadPoolExecutor(jobs) as pool:
            first = list(pool.map(self._once, tests))
        return [one for pair in zip(tests, first, strict=True) for one in self._judged(*pair)]

    def _once(self, test: str, theirs: bool = False) -> list[Outcome]:
        if time.monotonic() > self._deadline:
            raise TimeIsUp(f"not done after {self._options.minutes:g} minutes")
        found = self._suite.run(test, self._theirs if theirs else self._ours)
        if not theirs and not _has_failed(found):
            self._show(found)
        return found

    def _judged(self, test: str, found: list[Outcome]) -> list[Outcome]:
        if not _has_failed(found):
            return found
        for _ in range(_MORE_ATTEMPTS):
            found = self._once(test)
            if not _has_failed(found):
                return found
        failing = [one.test for one in self._once(test, theirs=True) if not one.passed]
        found = [
            one._replace(theirs=not any(_is_part(one.test, other) for other in failing))
            for one in found
        ]
        self._show(found)
        return found

    def _show(self, found: list[Outcome]) -> None:
        for outcome in found:
            print(f"{table.judged(outcome):8} {outcome.client} {outcome.test}", flush=True)
            if self._options.verbose and not outcome.passed:
                print(outcome.text, flush=True)


def _has_failed(outcomes: list[Outcome]) -> bool:
    return any(table.judged(one) == "failed" for one in outcomes)


def _is_part(test: str, other: str) -> bool:
    """Return True if they are the same test, or one is a subtest of the other."""
    return f"{test}/".startswith(f"{other}/") or f"{other}/".startswith(f"{test}/")


if __name__ == "__main__":
    main()
