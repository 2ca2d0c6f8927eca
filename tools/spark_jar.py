"""Compile `spark-connector/` into the jar that the wheel contains: `make jar`. With the path of
another jar, made by Maven (`make test-jar`), check that both contain the same classes.

Plain `javac` compiles the sources against the jars of PySpark. The jar is a build product. It is
not in the repository, and is built again only after a change of a source. The same sources give the
same bytes with the same compiler.
"""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
SOURCES = REPOSITORY / "spark-connector/src"
JAR = REPOSITORY / "liftlog/spark/jars/liftlog-spark.jar"

_RELEASE = "17"
_STAMP = "META-INF/liftlog.sources"
_OF_ITS_MAKER = ("META-INF/MANIFEST.MF", _STAMP)
_EPOCH = (1980, 1, 1, 0, 0, 0)
_NEEDED = (
    "spark-",
    "scala-library-",
    "hadoop-client-api-",
    "jackson-",
    "slf4j-api-",
    "zstd-jni-",
    "lz4-java-",
    "kryo-shaded-",
    "RoaringBitmap-",
)


class CannotCompile(Exception):
    """The connector cannot be compiled. The message names the missing program, or contains the
    compiler's output."""


def build() -> bool:
    """Compile if the jar was made from other sources. Returns True if it compiled. Raises
    CannotCompile."""
    stamp = _stamp()
    if _is_built(stamp):
        return False
    javac = shutil.which("javac")
    if javac is None:
        raise CannotCompile("there is no javac: apt install default-jdk-headless")
    with tempfile.TemporaryDirectory() as place:
        classes = Path(place)
        command = [javac, "--release", _RELEASE, "-Xlint:all,-path", "-Werror", "-proc:none"]
        command += ["-encoding", "UTF-8", "-g:source,lines", "-cp", _class_path(), "-d", place]
        command += [str(source) for source in sorted(SOURCES.rglob("*.java"))]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise CannotCompile(done.stdout + done.stderr)
        _pack(classes, stamp)
    return True


def _class_path() -> str:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise CannotCompile("pyspark is not installed: make setup")
    found = sorted(Path(spec.origin).parent.glob("jars/*.jar"))
    return ":".join(str(jar) for jar in found if jar.name.startswith(_NEEDED))


def _stamp() -> str:
    digest = hashlib.sha256(_RELEASE.encode())
    for source in sorted(path for path in SOURCES.rglob("*") if path.is_file()):
        digest.update(str(source.relative_to(SOURCES)).encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()


def _is_built(stamp: str) -> bool:
    try:
        with zipfile.ZipFile(JAR) as jar:
            return jar.read(_STAMP).decode() == stamp
    except (OSError, KeyError, zipfile.BadZipFile):
        return False


def _pack(classes: Path, stamp: str) -> None:
    content = {path.relative_to(classes): path.read_bytes() for path in classes.rglob("*.class")}
    for path in (SOURCES / "META-INF").rglob("*"):
        if path.is_file():
            content[path.relative_to(SOURCES)] = path.read_bytes()
    content[Path(_STAMP)] = stamp.encode()
    JAR.parent.mkdir(exist_ok=True)
    fresh = JAR.with_suffix(".tmp")
    with zipfile.ZipFile(fresh, "w", zipfile.ZIP_DEFLATED) as jar:
        jar.writestr(zipfile.ZipInfo("META-INF/MANIFEST.MF", _EPOCH), "Manifest-Version: 1.0\n")
        for name in sorted(content):
            entry = zipfile.ZipInfo(str(name), _EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            jar.writestr(entry, content[name])
    fresh.replace(JAR)


def differences(one: Path, other: Path) -> list[str]:
    """Return the names of the entries, other than manifest and stamp, that are not the same in both
    jars."""
    contents = []
    for path in (one, other):
        with zipfile.ZipFile(path) as jar:
            names = [name for name in jar.namelist() if not name.endswith("/")]
            contents.append({name: jar.read(name) for name in names})
    some, others = contents
    return sorted(
        name
        for name in some.keys() | others.keys()
        if name not in _OF_ITS_MAKER and some.get(name) != others.get(name)
    )


def main(*others: str) -> int:
    try:
        built = build()
    except CannotCompile as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{JAR.relative_to(REPOSITORY)}: {'built' if built else 'up to date'}")
    for other in others:
        if found := differences(JAR, Path(other)):
            print(f"{other} differs in {', '.join(found)}", file=sys.stderr)
            return 1
        print(f"{other}: the same classes")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
