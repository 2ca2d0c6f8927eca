"""`make test` as two processes: exit codes, what is printed, and Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.repository import REPOSITORY


def start(directory: Path, others: str, spark: str) -> subprocess.Popen[str]:
    """Two lines of shell instead of pytest; `$0` is `again` when they are repeated."""
    code = (
        "import sys; from pathlib import Path; from tools.run_tests import Run, run;"
        "others, spark = (['sh', '-c', line] for line in sys.argv[1:]);"
        "sys.exit(run(Run(others, [*others, 'again']),"
        " Run(spark, [*spark, 'again'], log=Path('build/log'))))"
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
    return process.returncode, [line for line in out.splitlines() if "mend it" not in line]


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
