"""What the pages say about installing: it is possible as written, and the extras are those."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = set(PROJECT["optional-dependencies"])
CLIENT = tomllib.loads((ROOT / "packaging/client/pyproject.toml").read_text())["project"]
INSTALL = ROOT / "docs/how-to/install.md"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# Where liftlog is installed already, the command line tells how to add an extra.
GENERATED = ROOT / "docs/reference/cli.md"
PIP = re.compile(r"pip install ([^`\n]+)")


def ids(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_the_table_has_every_extra() -> None:
    whole, client = INSTALL.read_text().split("## Only to read or publish")
    for page, extras in ((whole, EXTRAS), (client, set(CLIENT["optional-dependencies"]))):
        told = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
        assert set(told) == extras
        assert len(told) == len(extras)


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_extras_that_are_named_exist(page: Path) -> None:
    for names in re.findall(r"(?:liftlog|\.|\.whl)\[([\w,]+)\]'", page.read_text()):
        assert set(names.split(",")) <= EXTRAS


@pytest.mark.parametrize("page", [one for one in PAGES if one not in (INSTALL, GENERATED)], ids=ids)
def test_nothing_is_installed_by_a_name_that_no_index_has(page: Path) -> None:
    """`pip install liftlog` finds nothing: it is installed from a clone or from a wheel."""
    for wanted in PIP.findall(page.read_text()):
        assert not re.match(r"'?liftlog(\[|'|\s|$)", wanted), wanted


def test_the_wheel_has_the_version_of_the_project() -> None:
    for page in PAGES:
        for version in re.findall(r"liftlog-([\d.]+)-py3-none-any\.whl", page.read_text()):
            assert version == PROJECT["version"], page


def test_the_client_s_wheel_goes_with_the_other() -> None:
    assert CLIENT["version"] == PROJECT["version"]
    assert requirements(CLIENT) <= requirements(PROJECT)


def requirements(project: dict[str, Any]) -> set[str]:
    extras = project["optional-dependencies"].values()
    return {*project["dependencies"], *(one for extra in extras for one in extra)}


def test_spark_reads_compressed_streams_with_its_own_extra() -> None:
    extras = PROJECT["optional-dependencies"]
    assert {*extras["compression"], *extras["arrow"]} <= set(extras["spark"])


def test_the_jar_is_built_before_the_wheel() -> None:
    """A wheel that is built without it has no connector in Java, and says nothing about that."""
    whole = INSTALL.read_text().split("## Only to read or publish")[0]
    made, built = (whole.find(one) for one in ("\nmake jar", "\npip wheel"))
    assert 0 < made < built
    assert "JDK 17" in whole
    for name in ("README.md", "docs/how-to/spark.md", "docs/how-to/spark-cluster.md"):
        assert "`make jar`" in (ROOT / name).read_text(), name


def test_nothing_is_submitted_where_there_is_no_jar() -> None:
    """`spark-submit --jars "$(...)"` goes on with an empty name when the inner command fails."""
    for page in sorted((ROOT / "docs/how-to").glob("*.md")):
        assert '--jars "$(' not in page.read_text(), page
    script = (ROOT / "docs/how-to/spark-cluster.md").read_text().split("```")[1]
    assert '--jars "$JAR"' in script
    trial = 'python() { return 1; }; spark-submit() { echo "submitted $2"; }\n'
    run = subprocess.run(["bash", "-c", trial + script], capture_output=True, text=True)
    assert (run.returncode, run.stdout) == (1, "")
    trial = trial.replace("return 1", "echo /there.jar")
    run = subprocess.run(["bash", "-c", trial + script], capture_output=True, text=True)
    assert (run.returncode, run.stdout) == (0, "submitted /there.jar\n")


def test_jobs_with_the_jar_need_no_python_on_executors() -> None:
    """What a job needs with the jar stands first, and the Python source has its own heading."""
    with_jar, _ = (ROOT / "docs/how-to/spark-cluster.md").read_text().split("## Without the jar", 1)
    assert "--jars" in with_jar
    table = [line for line in with_jar.splitlines() if line.startswith("|")]
    assert len(table) > 3
    assert not [line for line in table if "Python" in line or "pyarrow" in line]


@pytest.mark.parametrize(
    "name", ["README.md", "docs/tutorial/first-stream.md", "docs/how-to/install.md"]
)
def test_the_first_lines_work_for_a_user_of_debian(name: str) -> None:
    """Debian refuses `pip install` outside of an environment, and has `venv` in a package."""
    page = (ROOT / name).read_text()
    made = page.index("python3 -m venv")
    assert made < page.index("pip install '")
    assert "python3-venv" in page[:made].replace("\n", " ")
