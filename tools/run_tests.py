"""Runs all tests. The tests with Spark run at the same time as the other tests, which wait for half
of their time.

`python -m tools.run_tests OPTIONS` is `make test`; the options do not apply to the tests with
Spark, which share one JVM and run in one process. The output of the tests with Spark is printed at
the end. Tests with the mark `long` do not run. With `--long` as the first option
(`make test-long`), only these tests run.

A test that fails while other tests run is repeated alone. If it then passes, the test or the code
has a race. With RACES=fail such a test counts as failed, unless `tests/quarantine.txt` names it.
"""

from __future__ import annotations

import datetime
import json
import os
import signal
import subprocess
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from types import FrameType

_PYTEST = [sys.executable, "-m", "pytest"]
_OTHERS = [f"--ignore=tests/{one}" for one in ("spark", "install", "programs")]
_CACHE = Path(".pytest_cache")
# Each process has a cache of its own. In a shared cache, each process would write its own failed
# tests as the only failed tests.
_SPARK_CACHE = _CACHE / "spark"
_SPARK = ["tests/spark", "--ignore=tests/spark/test_cluster.py"]
_SPARK += ["-o", f"cache_dir={_SPARK_CACHE}"]
_AGAIN = ["--last-failed", "--last-failed-no-failures", "none"]
_LOG = Path("build/test-spark.log")
_SOME_FAILED = 1

QUARANTINE = Path("tests/quarantine.txt")
MOST_IN_QUARANTINE = 5


class Run:
    """A process of pytest. Ctrl-C reaches both this process and pytest."""

    def __init__(
        self,
        command: Sequence[str],
        again: Sequence[str],
        *,
        cache: Path = _CACHE,
        log: Path | None = None,
    ):
        """`command` runs the tests, and `again` repeats the failed tests, each alone. Both write
        the names of the failed tests to the directory `cache`. `command` prints to `log` if it is
        given."""
        self._command, self._again = list(command), list(again)
        self._cache, self._log = cache, log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        if self._log is None:
            self._process = subprocess.Popen(self._command)
            return
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )

    def wait(self) -> int:
        """Return the exit code, after all output was printed."""
        assert self._process is not None
        status = self._process.wait()
        if self._log is not None:
            print(self._log.read_text(errors="replace"), end="", flush=True)
        return status

    def repeat(self) -> tuple[int, set[str]]:
        """Run the failed tests once more, each alone. Returns the exit code, and the tests that
        passed."""
        before = self._failed()
        status = subprocess.call(self._again)
        return status, before - self._failed()

    def terminate(self) -> None:
        if self._process is not None:
            self._process.terminate()

    def _failed(self) -> set[str]:
        try:
            return set(json.loads((self._cache / "v" / "cache" / "lastfailed").read_text()))
        except FileNotFoundError:
            return set()


def run(others: Run, spark: Run, quarantine: Collection[str] | None = None) -> int:
    """Run both at the same time, and repeat each failed test alone. Returns the first exit code
    that is not 0. With a quarantine, a test with a race (it failed while others ran, and passed
    alone) counts as failed, unless the quarantine names it."""

    is_asked_to_end = False

    def terminate(number: int, frame: FrameType | None) -> None:
        nonlocal is_asked_to_end
        is_asked_to_end = True
        for one in (others, spark):
            one.terminate()

    # Both are in the process group of this process, which waits for their end.
    signal.signal(signal.SIGINT, lambda number, frame: None)
    signal.signal(signal.SIGTERM, terminate)
    spark.start()
    others.start()
    if is_asked_to_end:  # a process may have started after `terminate`
        terminate(signal.SIGTERM, None)
    statuses = [others.wait(), spark.wait()]
    if any(status not in (0, _SOME_FAILED) for status in statuses) or not any(statuses):
        return _first_failure(statuses)
    print("Failed beside others; once more, alone.", flush=True)
    both = zip((others, spark), statuses, strict=True)
    results = [one.repeat() for one, status in both if status]
    races = [test for _, passed in results for test in sorted(passed)]
    return _first_failure([*(status for status, _ in results), _judge(races, quarantine)])


def _first_failure(statuses: Sequence[int]) -> int:
    return next((status for status in statuses if status), 0)


def _judge(races: Sequence[str], quarantine: Collection[str] | None) -> int:
    """Print the tests that failed while others ran, and passed alone. Returns the exit code."""
    status = 0
    for test in races:
        verdict = "mend it"
        if quarantine is not None and test in quarantine:
            verdict = f"listed in {QUARANTINE}"
        elif quarantine is not None:
            verdict, status = "counts as failed", _SOME_FAILED
        print(f"A race of the test or of the code ({verdict}): {test}", flush=True)
    return status


def read_quarantine(path: Path) -> dict[str, str]:
    """Return the tests that may fail for now while others run, each with the date and the reason.
    Raises ValueError if a line is incomplete, or if there are too many."""
    found = {}
    for line in path.read_text().splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        date, _, rest = line.partition(" ")
        test, _, reason = rest.partition(" # ")
        datetime.date.fromisoformat(date)
        if not test.strip() or not reason.strip():
            raise ValueError(f"{path}: a line is `date test # reason`, not {line!r}")
        found[test.strip()] = f"{date}: {reason.strip()}"
    if len(found) > MOST_IN_QUARANTINE:
        raise ValueError(f"{path} lists {len(found)} tests: at most {MOST_IN_QUARANTINE} may be")
    return found


def main(options: Sequence[str]) -> int:
    quarantine = read_quarantine(QUARANTINE) if os.environ.get("RACES") == "fail" else None
    is_long = options[:1] == ["--long"]
    chosen = ["-m", "long" if is_long else "not long"]
    others = [*_OTHERS, *chosen, *options[is_long:]]
    compiled = [sys.executable, "-m", "tools.compiled_tests", *others]
    spark = [*_PYTEST, *_SPARK, *chosen]
    return run(
        Run(compiled, [*_PYTEST, *_OTHERS, *_AGAIN]),
        Run(spark, [*spark, *_AGAIN], cache=_SPARK_CACHE, log=_LOG),
        quarantine,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
