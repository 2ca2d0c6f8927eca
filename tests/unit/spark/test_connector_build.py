"""The two builds of the Spark connector: `make jar` and Maven."""

from __future__ import annotations

import re
import tomllib
import zipfile
from pathlib import Path
from xml.etree import ElementTree

from support.repository import REPOSITORY

from tools.spark_jar import differences

POM = ElementTree.parse(REPOSITORY / "spark-connector/pom.xml")
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]


def value(name: str) -> str | None:
    return POM.findtext(f".//{{http://maven.apache.org/POM/4.0.0}}{name}")


def test_maven_compiles_with_the_oldest_spark_that_is_allowed() -> None:
    [oldest] = {
        found
        for one in PROJECT["optional-dependencies"]["spark"]
        for found in re.findall(r"pyspark>=([\d.]+)", one)
    }
    assert value("spark.version") == f"{oldest}.0"


def test_the_versions_are_the_same() -> None:
    assert value("version") == PROJECT["version"]


def jar(path: Path, **contents: str) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        for name, content in contents.items():
            file.writestr(name, content)
    return path


def test_differences_between_jars(tmp_path: Path) -> None:
    one = jar(tmp_path / "one.jar", **{"A.class": "a", "B.class": "b", "META-INF/MANIFEST.MF": "1"})
    same = jar(
        tmp_path / "same.jar",
        **{"B.class": "b", "META-INF/": "", "A.class": "a", "META-INF/liftlog.sources": "x"},
    )
    other = jar(tmp_path / "other.jar", **{"A.class": "A", "C.class": "c"})
    assert differences(one, same) == []
    assert differences(one, other) == differences(other, one) == ["A.class", "B.class", "C.class"]
