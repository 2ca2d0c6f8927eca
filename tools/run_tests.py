"""All tests: those with Spark beside the others, which wait half of their time.

`python -m tools.run_tests OPTIONS` is `make test`; the options are for the others, since the tests
with Spark share one JVM and run in one process. What they print comes in one piece at the end.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

_PYTEST = [sys.executable, "-m", "pytest"]
_OTHERS = ["--ignore", "tests/spark", "--ignore", "tests/install"]
# With a cache of its own: each process writes what failed in it as all that has failed.
_SPARK = ["tests/spark", "--ignore", "tests/spark/test_cluster.py"]
_SPARK += ["-o", "cache_dir=.pytest_cache/spark"]
_AGAIN = ["--last-failed", "--last-failed-no-failures", "none"]
_LOG = Path("build/test-spark.log")
_SOME_FAILED = 1


class Run:
    """A process of pytest. Ctrl-C reaches it as it reaches this process."""

    def __init__(self, command: Sequence[str], again: Sequence[str], log: Path | None = None):
        """`again` repeats what has failed, alone. `command` prints to `log` if there is one."""
        self._command, self._again, self._log = list(command), list(again), log
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

    def repeat(self) -> int:
        return subprocess.call(self._again)

    def terminate(self) -> None:
        if self._process is not None:
            self._process.terminate()


def run(others: Run, spark: Run) -> int:
    """Both side by side, and once more, alone, what failed. Returns the first exit code that is not
    0."""

    def terminate(number: int, frame: FrameType | None) -> None:
        for one in (others, spark):
            one.terminate()

    # Both are in our process group; this process stays to collect them.
    signal.signal(signal.SIGINT, lambda number, frame: None)
    signal.signal(signal.SIGTERM, terminate)
    spark.start()
    others.start()
    statuses = [others.wait(), spark.wait()]
    if all(status in (0, _SOME_FAILED) for status in statuses) and any(statuses):
        print(
            "Failed beside others; once more, alone. What passes now is a race of the test or of "
            "the code: mend it.",
            flush=True,
        )
        both = zip((others, spark), statuses, strict=True)
        statuses = [one.repeat() if status else 0 for one, status in both]
    return next((status for status in statuses if status), 0)


def main(options: Sequence[str]) -> int:
    others, spark = [*_PYTEST, *_OTHERS], [*_PYTEST, *_SPARK]
    return run(
        Run([*others, *options], [*others, *_AGAIN]), Run(spark, [*spark, *_AGAIN], log=_LOG)
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
