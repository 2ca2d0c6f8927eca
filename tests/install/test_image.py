"""What the Dockerfile downloads and installs, done here: by version and hash, and it runs."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from support.repository import REPOSITORY

DOCKERFILE = (REPOSITORY / "Dockerfile").read_text()


def test_the_image_is_installed_from_its_locks(tmp_path: Path) -> None:
    version = re.findall(r"^ARG BASE=python:(3\.\d+)-", DOCKERFILE, re.MULTILINE)[0]
    python = shutil.which(f"python{version}")
    if python is None:
        pytest.skip(f"no python{version}, for which the locks are")
    if subprocess.run([python, "-c", ""], capture_output=True).returncode:
        pytest.skip(f"python{version} does not run")
    build = DOCKERFILE.partition("# What runs")[0].replace("\\\n", " ")
    source = tmp_path / "src"
    for words in re.findall(r"^COPY +(.*)$", build, re.MULTILINE):
        *names, target = words.split()
        for name in names:
            place = source / target / Path(name).name if target.endswith("/") else source / target
            place.parent.mkdir(parents=True, exist_ok=True)
            if (REPOSITORY / name).is_dir():
                shutil.copytree(
                    REPOSITORY / name, place, ignore=shutil.ignore_patterns("__pycache__")
                )
            else:
                shutil.copy(REPOSITORY / name, place)
    (run,) = re.findall(r"^RUN +(.*)$", build, re.MULTILINE)
    for place in ("/opt/build", "/opt/liftlog", "/wheels"):
        run = run.replace(place, f"{tmp_path}{place}")
    run = run.replace("python -m venv", f"{python} -m venv")
    subprocess.run(["sh", "-ec", run], cwd=source, check=True)
    installed = tmp_path / "opt/liftlog/bin"
    subprocess.run([installed / "liftlog", "--version"], cwd="/", check=True)
    subprocess.run([installed / "pip", "check"], cwd="/", check=True)
