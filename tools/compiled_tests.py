"""pytest in several processes, which find the bytecode of all tests.

`python -m tools.compiled_tests OPTIONS` is `pytest OPTIONS`. pytest compiles each test file when it
imports the file, with rewritten assertions. For all files this takes 25 s of processor time. If
several processes started at the same time, each of them would compile all files. So if many files
have changed, this module compiles them first, with one process per processor.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

_ROOT = Path(__file__).parents[1]
_PYTEST = [sys.executable, "-m", "pytest"]
_FEW = 30


def write_bytecode() -> None:
    """Let this process and its children write bytecode. If the environment forbids bytecode beside
    the sources, it is written to build/pycache."""
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
        place = os.environ.setdefault("PYTHONPYCACHEPREFIX", str(_ROOT / "build" / "pycache"))
        sys.dont_write_bytecode = False
        sys.pycache_prefix = place


def changed_files(places: Iterable[Path]) -> list[Path]:
    """Return the test files in these directories that have no bytecode or are newer than their
    bytecode, the longest first."""
    suffix = f"-pytest-{importlib.metadata.version('pytest')}.pyc"
    changed = []
    for path in (path for place in places for path in place.rglob("test_*.py")):
        compiled = Path(importlib.util.cache_from_source(path))
        compiled = compiled.with_name(compiled.name.removesuffix(".pyc") + suffix)
        is_compiled = compiled.exists() and compiled.stat().st_mtime >= path.stat().st_mtime
        if not is_compiled:
            changed.append(path)
    return sorted(changed, key=lambda path: path.stat().st_size, reverse=True)


def compile_tests(places: Iterable[Path]) -> None:
    """Let pytest import the files that have changed. A file that cannot be imported is reported
    when the tests run."""
    changed = changed_files(places)
    if len(changed) <= _FEW:
        return
    count = min(os.cpu_count() or 1, len(changed) // _FEW)
    parts = [changed[number::count] for number in range(count)]
    importing = [
        subprocess.Popen(
            [*_PYTEST, "--collect-only", "-q", "-p", "no:cacheprovider", *part],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for part in parts
    ]
    for process in importing:
        process.wait()


def main(options: Sequence[str]) -> None:
    write_bytecode()
    places = [path for path in map(Path, options) if path.is_dir()] or [_ROOT / "tests"]
    try:
        compile_tests(places)
    except KeyboardInterrupt:
        sys.exit(2)  # as pytest does
    os.execv(sys.executable, [*_PYTEST, *options])


if __name__ == "__main__":
    main(sys.argv[1:])
