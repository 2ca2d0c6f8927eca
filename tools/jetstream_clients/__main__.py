"""Get the test suites of JetStream's clients, run them, and write the table of what came out.

    python -m tools.jetstream_clients [--client NAME] [-k PATTERN] [--verbose]

Only a run without `--client` and `-k` writes the table. nats-py's tests want port 4222.
"""

from __future__ import annotations

import argparse
import re
import sys

from tools.jetstream_clients import table
from tools.jetstream_clients.suites import SUITES, CannotRun, Outcome


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--client", action="append", choices=[one.name for one in SUITES])
    parser.add_argument("-k", dest="pattern", default="")
    parser.add_argument("--verbose", action="store_true", help="show why tests failed")
    options = parser.parse_args()
    outcomes: list[Outcome] = []
    missing: dict[str, str] = {}
    for kind in SUITES:
        if options.client and kind.name not in options.client:
            continue
        suite = kind()
        try:
            suite.prepare()
        except CannotRun as error:
            missing[suite.name] = str(error)
            print(f"{suite.name}: {error}", file=sys.stderr)
            continue
        for test in suite.tests():
            if suite.outside and re.search(suite.outside, test):
                continue
            if not re.search(options.pattern, test):
                continue
            for outcome in suite.run(test):
                outcomes.append(outcome)
                word = table.judged(outcome)
                print(f"{word:8} {outcome.client} {outcome.test}", flush=True)
                if options.verbose and not outcome.passed:
                    print(outcome.text, flush=True)
    counts = table.counts(outcomes)
    print(", ".join(f"{count} {word}" for word, count in counts.items()))
    if not options.client and not options.pattern and not missing:
        table.write(outcomes)
    sys.exit(1 if missing or counts["failed"] else 0)


if __name__ == "__main__":
    main()
