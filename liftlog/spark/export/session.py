"""Opens a Spark session for the command. If a package is missing, the error names it."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from liftlog.errors import MissingDependency
from liftlog.spark.export.interrupts import start_jvm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OLDEST_JAVA = 17
DEFAULT_MASTER = "local[*]"

_QUIET = Path(__file__).with_name("log4j2.properties")
_HOW_JAVA = (
    f"install Java {OLDEST_JAVA} or newer: apt install openjdk-17-jre-headless (Debian, Ubuntu), "
    "dnf install java-21-openjdk-headless (Fedora), brew install openjdk (macOS); or set "
    "JAVA_HOME"
)


def check_installed(*, delta: bool = False, java: bool = True) -> None:
    """Check that Spark and the packages that it needs are installed. Raises MissingDependency, with
    a hint."""
    for module in ("pyspark", "pyarrow"):
        if importlib.util.find_spec(module) is None:
            raise MissingDependency(
                f"an export needs Spark, and {module} is not installed",
                hint="pip install 'liftlog[spark]'",
            )
    if delta and importlib.util.find_spec("deltalake") is None:
        raise MissingDependency(
            "a Delta table needs deltalake, which is not installed",
            hint="pip install 'liftlog[delta]'",
        )
    if java:
        _check_java()


def _check_java() -> None:
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(str(Path(home, "bin", "java")) if home else "java")
    if java is None:
        where = f"in JAVA_HOME={home}" if home else "on this host"
        raise MissingDependency(
            f"an export needs Spark, and there is no java {where}", hint=_HOW_JAVA
        )
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60).stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MissingDependency(f"{java} does not run: {error}", hint=_HOW_JAVA) from error
    found = re.search(r'version "(?:1\.)?(\d+)', told)
    if found is None or int(found[1]) < OLDEST_JAVA:
        version = found[1] if found else "of an unknown version"
        raise MissingDependency(f"{java} is {version}, too old for Spark", hint=_HOW_JAVA)


def open_session(master: str | None) -> SparkSession:
    """Return the session of spark-submit if this process runs under it; otherwise a new session.

    Local sessions listen on loopback only and log little. If `master` is None, Spark uses the
    master of spark-submit or spark-defaults.conf, otherwise all cores of this host. After Ctrl-C
    during this call, no JVM keeps running.
    """
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("liftlog export")
    submitted = "SPARK_ENV_LOADED" in os.environ or "PYSPARK_GATEWAY_PORT" in os.environ
    if not submitted:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
        # Spark starts its workers with `python -m`, which imports from the working directory unless
        # this is set.
        os.environ.setdefault("PYTHONSAFEPATH", "1")
        builder = builder.master(master or DEFAULT_MASTER)
        builder = builder.config("spark.ui.showConsoleProgress", "false")
        if is_local(master):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
            for name, value in _LOCAL.items():
                builder = builder.config(name, value)
    elif master is not None:
        builder = builder.master(master)
    spark = start_jvm(builder.getOrCreate, _has_gateway)
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    return spark


def _has_gateway() -> bool:
    """Return True if PySpark has connected to its JVM. After that, the JVM ends together with this
    process."""
    from pyspark import SparkContext

    return getattr(SparkContext, "_gateway", None) is not None


def is_local(master: str | None) -> bool:
    return master is None or master.startswith("local")


_LOCAL = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_QUIET.as_uri()}",
}
