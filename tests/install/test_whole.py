"""The distribution `liftlog` as a user gets it: the wheel alone, without extras and tools."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from support.installed import Environment, build
from support.repository import REPOSITORY

from liftlog import __version__
from liftlog.cli.root import cli
from liftlog.commit import commit

OPTIONAL = {
    "pyspark",
    "pyarrow",
    "deltalake",
    "lz4",
    "zstandard",
    "matplotlib",
    "pandas",
    "py4j",
    "re2",
}
"""What only extras bring."""

IMPORT_ALL = """
import importlib, pkgutil, sys
for top in ("liftlog", "envelope", "compaction", "acl"):
    package = importlib.import_module(top)
    for found in pkgutil.walk_packages(package.__path__, top + "."):
        if found.name.endswith("__main__"):
            continue
        try:
            importlib.import_module(found.name)
        except ModuleNotFoundError as error:
            print("MISSING", found.name, error.name)
        except Exception as error:
            print("RAISED", found.name, getattr(error, "name", type(error).__name__))
"""


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        yield (*path, name)
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))


def test_every_command_has_its_help(minimal: Environment) -> None:
    paths = list(commands(cli))
    assert len(paths) > 40
    script = "import sys\nfrom click.testing import CliRunner\nfrom liftlog.cli.root import cli\n"
    script += "for line in sys.stdin.read().splitlines():\n"
    script += "    done = CliRunner().invoke(cli, [*line.split(), '--help'])\n"
    script += "    assert done.exit_code == 0 and 'Usage' in done.output, (line, done.output)\n"
    done = subprocess.run(
        [str(minimal.python), "-I", "-c", script],
        input="\n".join(" ".join(path) for path in paths),
        text=True,
        capture_output=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "Usage" in minimal.run("liftlog", "--help").stdout


def test_only_what_extras_bring_is_missing(minimal: Environment) -> None:
    printed = minimal.run("python", "-I", "-c", IMPORT_ALL).stdout
    missing = [line.split() for line in printed.splitlines()]
    assert {name for kind, _, name in missing if kind == "MISSING"} <= OPTIONAL
    assert {name for kind, _, name in missing if kind == "RAISED"} <= {"MISSING_DEPENDENCY"}
    assert all(
        module.startswith(
            (
                "liftlog.spark",
                "liftlog.cli.exports.export_run",
                "liftlog.records.columns.arrow",
            )
        )
        for _, module, _ in missing
    ), printed


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        ("export orders --to {directory}/lake", "liftlog[spark]"),
        ("export orders --to {directory}/lake --format delta", "liftlog[spark]"),
        ("demo", "liftlog[embedded]"),
        ("serve --set nats.embedded=true --set data_dir={directory}/data", "liftlog[embedded]"),
    ],
)
def test_what_needs_an_extra_names_it(
    minimal: Environment, tmp_path: Path, command: str, extra: str
) -> None:
    if extra == "liftlog[embedded]":
        path = {"PATH": str(minimal.bin)}  # no nats-server of this machine
    else:
        path = {}
    done = minimal.run(
        "liftlog", *command.format(directory=tmp_path).split(), expect=None, cwd=tmp_path, **path
    )
    assert done.returncode in (1, 3), done.stdout + done.stderr
    assert extra in done.stderr
    assert "defect" not in done.stderr
    assert "Traceback" not in done.stderr


def test_the_version_names_the_commit(minimal: Environment) -> None:
    printed = minimal.run("liftlog", "--version").stdout.strip()
    assert printed in {
        f"liftlog {__version__} ({commit()}{changed})" for changed in ("", "-dirty")
    }, "of the sources that the wheel was built from"


def test_a_wheel_from_the_sdist_is_the_same(whole_wheel: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "build", "--sdist", "--outdir", str(tmp_path)]
    subprocess.run([*command, str(REPOSITORY)], check=True, capture_output=True, timeout=300)
    [sdist] = tmp_path.glob("*.tar.gz")
    subprocess.run(["tar", "-xzf", str(sdist), "-C", str(tmp_path)], check=True)
    sources = tmp_path / sdist.name.removesuffix(".tar.gz")
    assert not (sources / ".git").exists()
    with zipfile.ZipFile(build(sources, tmp_path / "wheel")) as made:
        with zipfile.ZipFile(whole_wheel) as expected:
            assert sorted(made.namelist()) == sorted(expected.namelist())
            name = "liftlog/COMMIT"
            assert made.read(name) == expected.read(name)


def test_errors_are_explained(minimal: Environment) -> None:
    command = [sys.executable, "-m", "liftlog", "errors", "ls", "--output", "json"]
    here = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, check=True)
    assert minimal.run("liftlog", "errors", "ls", "--output", "json").stdout == here.stdout
    for name in ("10071", "MISSING_DEPENDENCY"):
        assert name in minimal.run("liftlog", "errors", "lookup", name).stdout


def test_the_tutorial(whole_wheel: Path, tmp_path: Path) -> None:
    environment = Environment(tmp_path / "liftlog-env")
    environment.install(f"{whole_wheel}[embedded]")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, str(REPOSITORY / "tests/integration/test_tutorial.py")],
        cwd=REPOSITORY,
        env={**os.environ, "TESTED_PYTHON": str(environment.python)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout


def test_the_pages_that_hints_name_are_there(minimal: Environment) -> None:
    script = "from liftlog.cli.docs import all_pages, find_page\n"
    script += "print(find_page('reference/settings').path, len(all_pages()))"
    done = subprocess.run(
        [str(minimal.python), "-I", "-c", script], text=True, capture_output=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    path, count = done.stdout.split()
    assert "site-packages" in path
    assert int(count) > 40
