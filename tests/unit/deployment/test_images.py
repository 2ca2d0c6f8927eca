"""The Dockerfiles and what they copy, as far as that can be told without an engine."""

from __future__ import annotations

import fnmatch
import json
import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from support.repository import REPOSITORY

DOCKERFILES = ["Dockerfile", "config/spark/Dockerfile"]
ENTRYPOINT = REPOSITORY / "config/spark/entrypoint.sh"
_INSTRUCTIONS = """
    ADD ARG CMD COPY ENTRYPOINT ENV EXPOSE FROM HEALTHCHECK LABEL ONBUILD RUN SHELL STOPSIGNAL
    USER VOLUME WORKDIR
"""
INSTRUCTIONS = set(_INSTRUCTIONS.split())


def instructions(dockerfile: str) -> list[tuple[str, str]]:
    """(name, rest), continuation lines joined."""
    text = (REPOSITORY / dockerfile).read_text()
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    found = [line.partition(" ") for line in joined.splitlines() if line.strip()]
    return [(name, rest.strip()) for name, _, rest in found]


def copied(dockerfile: str) -> list[str]:
    """What COPY takes from the build context."""
    sources = []
    for name, rest in instructions(dockerfile):
        words = shlex.split(rest)
        if name == "COPY" and not any(word.startswith("--from=") for word in words):
            sources += [word for word in words if not word.startswith("--")][:-1]
    return sources


def is_ignored(path: str) -> bool:
    ignored = False
    for pattern in (REPOSITORY / ".dockerignore").read_text().split():
        wanted = pattern.removeprefix("!")
        parts = [path, *(str(parent) for parent in Path(path).parents)]
        if any(fnmatch.fnmatch(part, wanted) for part in parts):
            ignored = not pattern.startswith("!")
    return ignored


@pytest.mark.parametrize("dockerfile", DOCKERFILES)
def test_a_dockerfile_makes_sense(dockerfile: str) -> None:
    found = instructions(dockerfile)
    assert {name for name, _ in found} <= INSTRUCTIONS
    stages = {match[1] for _, rest in found if (match := re.search(r" AS (\w+)$", rest))}
    for _, rest in found:
        if from_stage := re.search(r"--from=(\w+)", rest):
            assert from_stage[1] in stages
    last = dict(found)
    assert last["USER"] not in ("root", "0")
    assert json.loads(last["ENTRYPOINT"])


@pytest.mark.parametrize("dockerfile", DOCKERFILES)
def test_all_of_the_wheel_is_copied(dockerfile: str) -> None:
    """What is missing here hatchling leaves out without a word."""
    sources = copied(dockerfile)
    for source in sources:
        assert (REPOSITORY / source).exists(), source
        assert not is_ignored(source), source
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {*wheel["packages"], "pyproject.toml", project["project"]["readme"]}
    assert needed <= set(sources)
    for page in wheel["force-include"]:
        assert Path(page).parts[0] in sources
        assert not is_ignored(page), page


def test_spark_finds_itself_in_its_image() -> None:
    (environment,) = [
        rest for name, rest in instructions("config/spark/Dockerfile") if name == "ENV"
    ]
    variables = dict(word.split("=", 1) for word in shlex.split(environment))
    (python,) = re.findall(
        r"^ARG PYTHON=(.+)$", (REPOSITORY / "config/spark/Dockerfile").read_text(), re.MULTILINE
    )
    home = variables["SPARK_HOME"].replace("${PYTHON}", python)
    assert home == f"/opt/liftlog/lib/python{python}/site-packages/pyspark"
    assert f"python:{python}-slim" in (REPOSITORY / "Dockerfile").read_text()


def test_the_image_for_spark_has_the_jar() -> None:
    """Compiled by a JDK of the stage that builds, against the Spark of the image, and installed."""
    found = instructions("config/spark/Dockerfile")
    last = max(n for n, (name, _) in enumerate(found) if name == "FROM")
    building = " ".join(rest for name, rest in found[:last] if name == "RUN")
    steps = [
        building.find(one)
        for one in ("jdk", "install --no-cache-dir '.[spark", "tools.spark_jar", "force-reinstall")
    ]
    assert -1 not in steps
    assert steps == sorted(steps)
    assert "jdk" not in " ".join(rest for _, rest in found[last:])
    sources = copied("config/spark/Dockerfile")
    for needed in ("spark-connector", "tools"):
        assert needed in sources
        assert not is_ignored(needed)


class Entrypoint:
    """The script with programs that only tell how they were called."""

    def __init__(self, directory: Path) -> None:
        self.home = directory / "spark"
        self._bin = directory / "bin"
        for path in (self.home / "bin", self._bin):
            path.mkdir(parents=True)
        for program in ("spark-class", "spark-submit"):
            self._program(self.home / "bin" / program)
        for program in ("java", "liftlog"):
            self._program(self._bin / program)

    def _program(self, path: Path) -> None:
        path.write_text(
            f'#!/bin/sh\nprintf "%s\\n" {path.name} "$@"\necho "opts=$SPARK_MASTER_OPTS"'
        )
        path.chmod(0o755)

    def run(self, *arguments: str, **environment: str) -> list[str]:
        environment = {
            "PATH": f"{self._bin}:/usr/bin:/bin",
            "SPARK_HOME": str(self.home),
            **environment,
        }
        done = subprocess.run(
            [ENTRYPOINT, *arguments], env=environment, capture_output=True, text=True, timeout=30
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()


@pytest.fixture
def entrypoint(tmp_path: Path) -> Entrypoint:
    return Entrypoint(tmp_path)


def test_roles_of_a_standalone_cluster(entrypoint: Entrypoint) -> None:
    master = entrypoint.run("master", SPARK_MASTER_HOST="there", SPARK_MASTER_OPTS="-Da=b")
    assert master == [
        *("spark-class", "org.apache.spark.deploy.master.Master", "--host", "there"),
        "opts=-Dspark.master.rest.enabled=false -Da=b",
    ]
    assert entrypoint.run(SPARK_MASTER_HOST="there")[:-1] == master[:-1]
    worker = entrypoint.run("worker", "spark://there:1", SPARK_WORKER_HOST="here")
    assert worker[:-1] == [
        *("spark-class", "org.apache.spark.deploy.worker.Worker"),
        *("--host", "here", "spark://there:1"),
    ]
    assert entrypoint.run("worker", SPARK_WORKER_HOST="h")[-2] == "spark://spark-master:7077"
    assert entrypoint.run("liftlog", "export", "a b")[:-1] == ["liftlog", "export", "a b"]


def test_roles_of_kubernetes(entrypoint: Entrypoint) -> None:
    driver = entrypoint.run("driver", "--class", "X", SPARK_DRIVER_BIND_ADDRESS="10.0.0.1")
    assert driver[:-1] == [
        *("spark-submit", "--conf", "spark.driver.bindAddress=10.0.0.1"),
        *("--conf", "spark.executorEnv.SPARK_DRIVER_POD_IP=10.0.0.1"),
        *("--deploy-mode", "client", "--class", "X"),
    ]
    executor = entrypoint.run(
        "executor",
        **{f"SPARK_JAVA_OPT_{i}": f"-Do{i}=a b" for i in range(11)},
        SPARK_DRIVER_URL="spark://driver:1",
        SPARK_EXECUTOR_ID="3",
        SPARK_EXECUTOR_CORES="2",
        SPARK_EXECUTOR_MEMORY="1408m",
        SPARK_APPLICATION_ID="app",
        SPARK_EXECUTOR_POD_IP="10.0.0.2",
        SPARK_EXECUTOR_POD_NAME="pod",
        SPARK_RESOURCE_PROFILE_ID="0",
        SPARK_CONF_DIR="/conf",
    )
    assert executor[:-1] == [
        "java",
        *(f"-Do{i}=a b" for i in range(11)),
        *("-Xms1408m", "-Xmx1408m", "-cp", f"/conf:{entrypoint.home}/jars/*"),
        "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend",
        *("--driver-url", "spark://driver:1", "--executor-id", "3", "--cores", "2"),
        *("--app-id", "app", "--hostname", "10.0.0.2", "--resourceProfileId", "0"),
        *("--podName", "pod"),
    ]
    done = subprocess.run(
        [ENTRYPOINT, "executor"],
        env={"PATH": "/usr/bin:/bin", "SPARK_HOME": str(entrypoint.home)},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode != 0
    assert "SPARK_EXECUTOR_MEMORY" in done.stderr


# --- what is downloaded for the image ---

LOCKS = REPOSITORY / "config/docker"


def locked(name: str) -> dict[str, Version]:
    """Version by name; each with a hash at least, or this fails."""
    found = {}
    text = (LOCKS / name).read_text().replace("\\\n", "")
    for line in text.splitlines():
        requirement, *hashes = line.split("--hash=")
        assert hashes, line
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}\s*", one) for one in hashes), line
        parsed = Requirement(requirement)
        (pin,) = parsed.specifier
        assert pin.operator == "=="
        found[canonicalize_name(parsed.name)] = Version(pin.version)
    return found


def test_the_lock_has_what_the_project_asks_for() -> None:
    """`make lock` was run since a dependency was added or its bounds were changed."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    wanted = [*project["project"]["dependencies"], *extras["compression"], *extras["search"]]
    for name, requirements in (
        ("requirements.lock", wanted),
        ("build.lock", [*project["build-system"]["requires"], "setuptools"]),
    ):
        versions = locked(name)
        for text in requirements:
            requirement = Requirement(text)
            version = versions[canonicalize_name(requirement.name)]
            assert requirement.specifier.contains(version), (text, version)


def test_nothing_is_installed_without_a_hash() -> None:
    runs = [rest for name, rest in instructions("Dockerfile") if name == "RUN"]
    commands = [one.strip() for rest in runs for one in rest.split("&&")]
    installing = [one for one in commands if re.search(r"\bpip (install|wheel)\b", one)]
    assert len(installing) == 4
    for one in installing:
        assert "--require-hashes" in one or "--no-index" in one, one
        if " wheel " in one:
            assert "--no-build-isolation" in one, one


def test_the_base_image_can_be_pinned() -> None:
    found = instructions("Dockerfile")
    assert [rest.partition("=")[0] for name, rest in found if name == "ARG"] == ["BASE", "COMMIT"]
    assert {rest.split()[0] for name, rest in found if name == "FROM"} == {"${BASE}"}
