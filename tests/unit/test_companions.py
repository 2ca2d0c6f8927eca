"""`import liftlog` finds out whose packages it has beside it, without loading them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from liftlog.companions import NAMES

REPOSITORY = Path(__file__).parents[2]


def run(code: str, *first: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(map(str, (*first, REPOSITORY)))
    return subprocess.run(  # `-c` puts the working directory first
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        cwd="/",
    )


def test_none_of_them_is_loaded() -> None:
    done = run("import liftlog, json, sys; print(json.dumps(sorted(sys.modules)))")
    loaded = set(json.loads(done.stdout))
    assert not loaded & {*NAMES, "crc32c", "msgpack", "numpy"}


@pytest.mark.parametrize("name", NAMES)
def test_a_package_of_another_distribution_is_refused_by_name(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("raise KeyboardInterrupt  # never loaded\n")
    done = run("import liftlog", tmp_path)
    problem = done.stderr.splitlines()[-1]
    assert problem.startswith(f"ImportError: the package {name!r} at {tmp_path}")
    assert "virtual environment of its own" in problem


def test_a_missing_package_is_named(tmp_path: Path) -> None:
    (tmp_path / "liftlog").symlink_to(REPOSITORY / "liftlog")
    # -S: without site-packages, in which this repository is installed.
    done = subprocess.run(
        [sys.executable, "-S", "-c", "import liftlog"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        cwd="/",
    )
    assert "ImportError: liftlog needs its own package 'envelope'" in done.stderr
