"""Get the test suites of JetStream's clients, run them, and write the table of what came out.

    python -m jetstream_clients [--client NAME] [-k PATTERN] [--verbose]

A test that fails for no known reason is run once more, and then with JetStream itself. What came
out is kept in build/, and the table has the last outcome of each test. nats-py's tests want port
4222; nothing else may listen there.
"""

from __future__ import annotations

import argparse
import re
import sys

from jetstream_clients import table
from jetstream_clients.servers import Servers
from jetstream_clients.suites import SUITES, CannotRun, Outcome, Suite


def main() -> None:
    options = _parse()
    all_passed = True
    for kind in SUITES:
        suite = kind()
        if options.client and suite.name not in options.client:
            continue
        try:
            suite.prepare()
        except CannotRun as error:
            print(f"{suite.name}: {error}", file=sys.stderr)
            all_passed = False
            continue
        with Servers() as ours, Servers(theirs=True) as theirs:
            outcomes = _run(suite, options, ours, theirs)
        counts = table.counts(outcomes)
        print(f"{suite.name}:", ", ".join(f"{count} {word}" for word, count in counts.items()))
        all_passed &= not counts["failed"]
        table.keep(suite, outcomes)
    table.write()
    sys.exit(0 if all_passed else 1)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--client", action="append", choices=[one.name for one in SUITES])
    parser.add_argument("-k", dest="pattern", default="", help="only tests whose names match")
    parser.add_argument("--verbose", action="store_true", help="show why tests failed")
    return parser.parse_args()


def _run(
    suite: Suite, options: argparse.Namespace, ours: Servers, theirs: Servers
) -> list[Outcome]:
    outcomes: list[Outcome] = []
    for test in suite.tests():
        if suite.outside and re.search(suite.outside, test):
            continue
        if not re.search(options.pattern, test):
            continue
        found = suite.run(test, ours)
        if _has_failed(found):
            found = suite.run(test, ours)
        if _has_failed(found):
            failing = [one.test for one in suite.run(test, theirs) if not one.passed]
            found = [
                one._replace(theirs=not any(_is_part(one.test, other) for other in failing))
                for one in found
            ]
        outcomes += found
        for outcome in found:
            print(f"{table.judged(outcome):8} {outcome.client} {outcome.test}", flush=True)
            if options.verbose and not outcome.passed:
                print(outcome.text, flush=True)
    return outcomes


def _has_failed(outcomes: list[Outcome]) -> bool:
    return any(table.judged(one) == "failed" for one in outcomes)


def _is_part(test: str, other: str) -> bool:
    """Whether they are the same, or one is a subtest of the other."""
    return f"{test}/".startswith(f"{other}/") or f"{other}/".startswith(f"{test}/")


if __name__ == "__main__":
    main()
