"""`make test` as two processes: exit codes, what is printed, Ctrl-C, and races."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.repository import REPOSITORY

from tools.run_tests import MOST_IN_QUARANTINE, QUARANTINE, read_quarantine

# Writes the names of failed tests as pytest does: none, or those in its arguments.
FAILED = "mkdir -p {0}/v/cache; printf '{1}' > {0}/v/cache/lastfailed"


def start(
    directory: Path, others: str, spark: str, quarantine: str = "None"
) -> subprocess.Popen[str]:
    """Two lines of shell instead of pytest; `$0` is `again` when they are repeated."""
    code = (
        "import sys; from pathlib import Path; from tools.run_tests import Run, run;"
        "others, spark = (['sh', '-c', line] for line in sys.argv[1:]);"
        "sys.exit(run(Run(others, [*others, 'again'], cache=Path('others')),"
        " Run(spark, [*spark, 'again'], cache=Path('spark'), log=Path('build/log')),"
        f" {quarantine}))"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code, others, spark],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, list[str]]:
    out, _ = process.communicate(timeout=60)
    return process.returncode, [line for line in out.splitlines() if "once more" not in line]


def test_what_runs_beside_is_printed_at_the_end(tmp_path: Path) -> None:
    spark = "echo spark; mkfifo go 2>/dev/null; echo > go"
    others = "mkfifo go 2>/dev/null; read line < go; echo others"
    assert ended(start(tmp_path, others, spark)) == (0, ["others", "spark"])


@pytest.mark.parametrize(
    ("others", "spark", "status", "printed"),
    [
        ("echo o; [ $0 = again ]", "echo s", 0, ["o", "s", "o"]),
        ("echo o", "echo s; [ $0 = again ]", 0, ["o", "s", "s"]),
        ("echo o", "echo s; exit 1", 1, ["o", "s", "s"]),
        ("echo o; exit 1", "echo s; exit 1", 1, ["o", "s", "o", "s"]),
        ("echo o; exit 4", "echo s; exit 1", 4, ["o", "s"]),
        ("echo o; exit 1", "echo s; exit 3", 1, ["o", "s"]),
        ("echo o", "echo s; exit 5", 5, ["o", "s"]),
    ],
)
def test_what_failed_runs_once_more(
    tmp_path: Path, others: str, spark: str, status: int, printed: list[str]
) -> None:
    assert ended(start(tmp_path, others, spark)) == (status, printed)


RACE = "A race of the test or of the code"


@pytest.mark.parametrize(
    ("quarantine", "status", "verdict"),
    [
        ("None", 0, "mend it"),
        ("[]", 1, "counts as failed"),
        ("['b']", 1, "counts as failed"),
        ("['a']", 0, "listed in tests/quarantine.txt"),
    ],
)
@pytest.mark.parametrize("racing", ["others", "spark"])
def test_what_passes_alone_is_a_race(
    tmp_path: Path, racing: str, quarantine: str, status: int, verdict: str
) -> None:
    """`a` fails beside others only. With a quarantine, as in CI, it must be in there."""
    fails = FAILED.format(racing, '{"a": true}')
    line = f"if [ $0 = again ]; then {FAILED.format(racing, '{}')}; else {fails}; exit 1; fi"
    both = {"others": "true", "spark": "true", racing: line}
    found = ended(start(tmp_path, both["others"], both["spark"], quarantine))
    assert found == (status, [f"{RACE} ({verdict}): a"])


def test_what_fails_again_is_no_race(tmp_path: Path) -> None:
    """`b` passes alone, `a` does not, and is not excused by the quarantine."""
    first, second = (FAILED.format("others", kept) for kept in ('{"a": 1, "b": 1}', '{"a": 1}'))
    line = f"if [ $0 = again ]; then {second}; else {first}; fi; exit 1"
    assert ended(start(tmp_path, line, "true", "['a', 'b']")) == (
        1,
        [f"{RACE} (listed in tests/quarantine.txt): b"],
    )


def test_a_quarantine_is_read(tmp_path: Path) -> None:
    path = tmp_path / "quarantine.txt"
    path.write_text("# nothing\n\n2030-01-31 tests/test_a.py::test_b[1 2] # waits # twice\n")
    assert read_quarantine(path) == {"tests/test_a.py::test_b[1 2]": "2030-01-31: waits # twice"}


@pytest.mark.parametrize(
    "content",
    [
        "tests/test_a.py::test_b # no date",
        "2030-01-31 tests/test_a.py::test_b",
        "2030-01-31 tests/test_a.py::test_b # ",
        "2030-01-31 # which one",
        "\n".join(f"2030-01-31 t{number} # why" for number in range(MOST_IN_QUARANTINE + 1)),
    ],
)
def test_a_quarantine_without_a_reason_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "quarantine.txt"
    path.write_text(content)
    with pytest.raises(ValueError):
        read_quarantine(path)


def test_only_tests_that_exist_are_in_quarantine() -> None:
    for test in read_quarantine(REPOSITORY / QUARANTINE):
        path, _, name = test.partition("::")
        assert f"def {name.split('[')[0]}(" in (REPOSITORY / path).read_text()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_both(tmp_path: Path, number: signal.Signals) -> None:
    """Each in its own way, and this process after them: as the terminal, or `kill`, has it."""
    waits = "trap 'echo {0} ends; exit 2' INT TERM; echo {0} > {0}; while :; do sleep 0.01; done"
    os.mkfifo(tmp_path / "others")
    os.mkfifo(tmp_path / "spark")
    process = start(tmp_path, waits.format("others"), waits.format("spark"))
    for name in ("others", "spark"):
        assert (tmp_path / name).read_text() == f"{name}\n"
    if number is signal.SIGINT:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    assert ended(process) == (2, ["others ends", "spark ends"])
