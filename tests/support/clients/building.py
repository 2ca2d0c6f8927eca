"""Builds programs in other languages below `build/programs`, with packages from their registries:
the Go module proxy, npm, PyPI, Maven Central, crates.io. Later runs use the same programs."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from support.repository import REPOSITORY

PLACE = REPOSITORY / "build/programs"
_BUILD_SECONDS = 600.0


class Missing(Exception):
    """A program cannot be built on this machine. The text names the missing part."""


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Prevent that another process builds at the same time."""
    PLACE.mkdir(parents=True, exist_ok=True)
    with (PLACE / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def built_with_go(source: Path, name: str, package: str = ".") -> Path:
    """Return the path of the built program. Raises Missing."""
    program = PLACE / name
    options = {"GOFLAGS": "-mod=readonly -buildvcs=false", "GOTOOLCHAIN": "local"}
    with one_at_a_time():
        _run(["go", "build", "-o", str(program), package], source, options)
    return program


def installed_with_npm(source: Path, name: str, *scripts: str) -> Path:
    """Install the packages of `package.json`, and copy these scripts to the same folder. Returns
    the folder. Raises Missing."""
    place = PLACE / name
    package = place / "package.json"
    wanted = (source / "package.json").read_bytes()
    with one_at_a_time():
        is_installed = package.exists() and package.read_bytes() == wanted
        place.mkdir(exist_ok=True)
        for script in scripts:
            shutil.copy(source / script, place)
        if not is_installed:
            staged = place / "staged"
            shutil.rmtree(staged, ignore_errors=True)
            staged.mkdir()
            shutil.copy(source / "package.json", staged)
            quiet = ["--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts"]
            _run(["npm", "install", *quiet], staged)
            shutil.rmtree(place / "node_modules", ignore_errors=True)
            (staged / "node_modules").rename(place / "node_modules")
            (staged / "package.json").rename(package)
    if shutil.which("node") is None:
        raise Missing("node is not installed")
    return place


def installed_with_pip(requirements: Path, name: str) -> Path:
    """Return the Python of an environment with the packages in the requirements file. Raises
    Missing."""
    place = PLACE / name
    python, done = place / "bin/python", place / "requirements.txt"
    wanted = requirements.read_bytes()
    with one_at_a_time():
        if not (done.exists() and done.read_bytes() == wanted):
            shutil.rmtree(place, ignore_errors=True)
            _run([sys.executable, "-m", "venv", str(place)], PLACE)
            _run([str(python), "-m", "pip", "install", "-q", "-r", str(requirements)], PLACE)
            done.write_bytes(wanted)
    return python


def compiled_with_maven(source: Path, name: str, main: str) -> Path:
    """Compile a class, and copy the libraries that `pom.xml` names to the same folder. Returns the
    folder. Raises Missing."""
    place = PLACE / name
    library = place / "lib"
    with one_at_a_time():
        if not library.exists():
            place.mkdir(exist_ok=True)
            maven = ["mvn", "--batch-mode", "--quiet", "dependency:copy-dependencies"]
            _run([*maven, f"-DoutputDirectory={place / 'new'}"], source)
            (place / "new").rename(library)
        _run(["javac", "-cp", f"{library}/*", "-d", str(library), f"{main}.java"], source)
    return library


def built_with_cargo(source: Path, name: str) -> Path:
    """Return the path of the built program. Raises Missing."""
    target = PLACE / f"{name}-target"
    with one_at_a_time():
        _run(["cargo", "build", "--quiet", "--release", "--target-dir", str(target)], source)
    return target / "release" / name


def _run(command: Sequence[str], place: Path, more: dict[str, str] | None = None) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=place,
            env={**os.environ, **(more or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_BUILD_SECONDS,
            check=False,
        )
    except FileNotFoundError:
        raise Missing(f"{command[0]} is not installed") from None
    except subprocess.TimeoutExpired:
        raise Missing(f"{command[0]} takes longer than {_BUILD_SECONDS:.0f} s") from None
    if done.returncode:
        raise Missing(f"{' '.join(command[:2])} failed: {(done.stdout + done.stderr)[-300:]}")
