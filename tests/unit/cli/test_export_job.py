"""The file that spark-submit runs: Python puts its folder first on the path of modules."""

import subprocess
import sys

COMMAND = [sys.executable, "-m", "liftlog.cli.export_job", "--path"]


def test_nothing_beside_it_hides_what_it_imports() -> None:
    path = subprocess.run(COMMAND, check=True, capture_output=True, text=True).stdout.strip()
    done = subprocess.run(
        [sys.executable, path, "--help"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Usage: liftlog export [OPTIONS] STREAM")
