"""Builds wheels from the sources, and makes new environments to install them."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path


class Environment:
    """A virtual environment. No code of this repository is on its path."""

    def __init__(self, directory: Path) -> None:
        venv.create(directory, with_pip=True, symlinks=True)
        self.bin = directory / "bin"
        self.python = self.bin / "python"

    def install(self, *requirements: str) -> None:
        self.run("python", "-m", "pip", "install", "--quiet", *requirements, timeout=600)

    def run(
        self,
        program: str,
        *arguments: str,
        expect: int | None = 0,
        cwd: Path = Path("/"),
        timeout: float = 120,
        **environ: str,
    ) -> subprocess.CompletedProcess[str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "LIFTLOG_"))}
        done = subprocess.run(
            [str(self.bin / program), *arguments],
            cwd=cwd,
            env={**kept, "PYTHONDONTWRITEBYTECODE": "1", **environ},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        if expect is not None:
            assert done.returncode == expect, done.stdout + done.stderr
        return done


def build(source: Path, into: Path) -> Path:
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    subprocess.run([*command, "--wheel-dir", str(into), str(source)], check=True, timeout=600)
    [wheel] = into.glob("*.whl")
    return wheel
