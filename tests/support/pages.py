"""Runs examples of the documentation unchanged, except for addresses."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from support.repository import REPOSITORY

DOCS = REPOSITORY / "docs"

INSTALLED_PYTHON = os.environ.get("TESTED_PYTHON")
"""The Python of an environment in which liftlog is installed from its wheel. If None, the sources
of this repository are tested."""


def blocks(page: str, language: str) -> list[str]:
    """Return the fenced blocks of a page below `docs`, in order."""
    text = (DOCS / page).read_text()
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [block for kind, block in found if kind == language]


def tools_in(directory: Path) -> Path:
    """Return a directory with the `liftlog` and `python` of the environment that is tested."""
    tools = directory / "bin"
    tools.mkdir(exist_ok=True)
    for name, module in (("python", ""), ("liftlog", "-m liftlog ")):
        script = tools / name
        script.write_text(f'#!/bin/sh\nexec {INSTALLED_PYTHON or sys.executable} {module}"$@"\n')
        script.chmod(0o755)
    return tools


def run_shell(
    script: str, directory: Path, environment: Mapping[str, str], *, expect: int = 0
) -> str:
    """Run a script in `directory`, and return its output on stdout. Its exit code must be
    `expect`."""
    paths = {"PATH": f"{tools_in(directory)}:/usr/bin:/bin"}
    if INSTALLED_PYTHON is None:
        paths["PYTHONPATH"] = str(REPOSITORY)
    done = subprocess.run(
        ["bash", "-eu", "-c", script],
        cwd=directory,
        env={**paths, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == expect, done.stdout + done.stderr
    return done.stdout
