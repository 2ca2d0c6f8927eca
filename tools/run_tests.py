"""Runs all tests: those with Spark at the same time as the others, which spend half of their time
waiting.

`python -m tools.run_tests OPTIONS` is `make test`; the options are for the others, since the tests
with Spark share one JVM and run in one process. What they print comes in one piece at the end.
Tests with the mark `long` do not run. With `--long` as the first option, which is `make test-long`,
only they do.

A test that fails while others run is repeated alone. If it passes then, the test or the code has a
race. With RACES=fail such a test counts as failed, unless `tests/quarantine.txt` names it.
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
# With a cache of its own: each process writes what failed in it as all that has failed.
_SPARK_CACHE = _CACHE / "spark"
_SPARK = ["tests/spark", "--ignore=tests/spark/test_cluster.py"]
_SPARK += ["-o", f"cache_dir={_SPARK_CACHE}"]
_AGAIN = ["--last-failed", "--last-failed-no-failures", "none"]
_LOG = Path("build/test-spark.log")
_SOME_FAILED = 1

QUARANTINE = Path("tests/quarantine.txt")
MOST_IN_QUARANTINE = 5


class Run:
    """A process of pytest. Ctrl-C reaches it as it reaches this process."""

    def __init__(
        self,
        command: Sequence[str],
        again: Sequence[str],
        *,
        cache: Path = _CACHE,
        log: Path | None = None,
    ):
        """`again` repeats the failed tests, each alone. Both write the names of the tests that
        failed in the directory `cache`. `command` prints to `log` if there is one."""
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
        """The exit code; everything was printed."""
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
    that is not 0. If there is a quarantine, a test that failed while others ran and passed alone
    counts as failed, unless the quarantine names it."""

    is_asked_to_end = False

    def terminate(number: int, frame: FrameType | None) -> None:
        nonlocal is_asked_to_end
        is_asked_to_end = True
        for one in (others, spark):
            one.terminate()

    # Both are in our process group; this process stays to collect them.
    signal.signal(signal.SIGINT, lambda number, frame: None)
    signal.signal(signal.SIGTERM, terminate)
    spark.start()
    others.start()
    if is_asked_to_end:  # a process may have run already before it could be terminated
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
    """Print which tests have failed while others ran, and passed alone. Returns the exit code."""
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
    """Return the tests that may fail for now while others run, with the date and the reason. Raises
    ValueError if a line is incomplete, or if there are too many."""
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
