"""The test suites: where they come from, which tests concern liftlog, how one is run.

A registry is the source, as for any user; the version is pinned. Each test runs in a process of its
own, so that one that hangs or panics costs only itself.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple

from jetstream_clients.servers import Servers
from liftlog.server.life.embedded import find_nats_server

REPOSITORY = Path(__file__).parents[2]
SHIMS = Path(__file__).parent / "shims"
BUILD = REPOSITORY / "build/jetstream-clients"
_SECONDS = 240.0

OBJECTS = "object stores"
PLACES = "clusters, accounts, domains, mirrors"
CLIENT = "the client alone, or other versions of the server"
OLDER = "an older API of the client, for streams, consumers, buckets and objects"
UNKNOWN = "batches and schedules of messages"
KINDS = (OBJECTS, PLACES, UNKNOWN, OLDER, CLIENT)


class Outcome(NamedTuple):
    client: str
    test: str
    """With its group, as the suite names it."""
    passed: bool
    text: str
    """The end of what it printed, if it failed."""
    theirs: bool | None = None
    """Whether it passes with JetStream itself; None: not tried."""


class CannotRun(Exception):
    """What is missing."""


def run(command: Sequence[str], **options: object) -> subprocess.CompletedProcess[str]:
    """Raises CannotRun if the program is missing or fails."""
    try:
        done = subprocess.run(  # type: ignore[call-overload]
            command, capture_output=True, text=True, errors="replace", check=False, **options
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotRun(str(error)) from None
    if done.returncode:
        raise CannotRun(f"{' '.join(command[:4])} failed: {(done.stdout + done.stderr)[-2000:]}")
    assert isinstance(done, subprocess.CompletedProcess)
    return done


def put(file: Path, text: str) -> None:
    """Write it unless it is there: Cargo builds again what is newer than its result."""
    if not file.exists() or file.read_text() != text:
        file.write_text(text)


class Suite:
    name = version = source = ""
    outside: ClassVar[Mapping[str, str]] = {}
    """Tests that are not run on liftlog: names by kind. The first match counts."""
    other_files: ClassVar[Mapping[str, Sequence[str]]] = {}
    """Files of tests of JetStream of which none is run, by kind."""
    one_test = r"(?!)"
    """The beginning of each test in such a file, to count them."""
    can_be_beside_itself = True
    """Whether several tests may run at a time."""

    def kind_outside(self, test: str) -> str:
        """The kind of a test that is not run on liftlog; empty if it is run."""
        return next((kind for kind, names in self.outside.items() if re.search(names, test)), "")

    def not_run(self) -> dict[str, int]:
        """How many tests, by kind."""
        counts = Counter(kind for test in self.tests() if (kind := self.kind_outside(test)))
        for kind, files in self.other_files.items():
            for file in files:
                text = (self.directory / file).read_text()
                counts[kind] += len(re.findall(self.one_test, text, re.MULTILINE))
        return dict(counts)

    def prepare(self) -> None:
        """Get and build what the tests need. Raises CannotRun."""
        raise NotImplementedError

    def tests(self) -> list[str]:
        raise NotImplementedError

    def command(self, test: str) -> tuple[list[str], Path]:
        """And the directory it runs in."""
        raise NotImplementedError

    def outcomes(self, test: str, status: int, output: str) -> list[Outcome]:
        return [Outcome(self.name, test, status == 0, "" if status == 0 else output[-3000:])]

    def on_files(self, *paths: str) -> None:
        """Where a test asks for memory storage, which is refused, have it ask for files: otherwise
        nothing else of it would be tried."""
        for path in paths:
            file = self.directory / path
            text = file.read_text()
            changed = re.sub(
                r"""(?<=[ =])"memory"(?=[,)\]]|$)""", '"file"', text, flags=re.MULTILINE
            )
            assert '"file"' in changed, f"{path} names no storage"
            put(file, changed)

    def run(self, test: str, servers: Servers) -> list[Outcome]:
        command, directory = self.command(test)
        environ = {**os.environ, **servers.environ}
        try:
            done = subprocess.run(
                command,
                cwd=directory,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=_SECONDS,
                text=True,
                errors="replace",
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            text = error.stdout or ""
            if isinstance(text, bytes):
                text = text.decode(errors="replace")
            return self.outcomes(test, 1, f"{text}\nnot done after {_SECONDS:.0f} s")
        return self.outcomes(test, done.returncode, done.stdout)

    @property
    def directory(self) -> Path:
        return BUILD / f"{self.name}-{self.version}"


class NatsPy(Suite):
    """Newer source distributions have no tests, and this one lacks their tests/utils.py."""

    name, version, source = "nats-py", "2.14.0", "PyPI, source distribution"
    can_be_beside_itself = False  # its tests want one port
    outside: ClassVar[Mapping[str, str]] = {
        OBJECTS: "ObjectStoreTest",
        PLACES: "AccountLimitsTest|ClusterInfoTest",
        CLIENT: "DatetimeFieldsTest",
    }

    def prepare(self) -> None:
        if not self.directory.exists():
            BUILD.mkdir(parents=True, exist_ok=True)
            pinned = f"nats-py=={self.version}"
            pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", "nats-py"]
            run([*pip, "-d", str(BUILD), pinned])
            with tarfile.open(BUILD / f"nats_py-{self.version}.tar.gz") as archive:
                archive.extractall(BUILD, filter="data")
            (BUILD / f"nats_py-{self.version}").rename(self.directory)
        shutil.copy(SHIMS / "nats_py_utils.py", self.directory / "tests/utils.py")
        (self.directory / "tests/__init__.py").touch()
        self.on_files("src/nats/js/api.py", "tests/test_js.py")

    def tests(self) -> list[str]:
        text = (self.directory / "tests/test_js.py").read_text()
        found, group = [], ""
        for line in text.splitlines():
            if head := re.match(r"class (\w+)", line):
                group = head[1]
            elif test := re.match(r"    (?:async )?def (test_\w+)", line):
                found.append(f"{group}::{test[1]}")
        return found

    def command(self, test: str) -> tuple[list[str], Path]:
        options = ["-q", "-x", "--tb=short", "--assert=plain", "-p", "no:cacheprovider"]
        environ = ["PYTEST_DISABLE_PLUGIN_AUTOLOAD=1", "PYTHONDONTWRITEBYTECODE="]
        return [
            *("env", f"PYTHONPATH={self.directory}/src:{self.directory}", *environ),
            *(sys.executable, "-m", "pytest", "-c", "/dev/null", "--rootdir", "."),
            *options,
            f"tests/test_js.py::{test}",
        ], self.directory


_NATS_SERVER = "github.com/nats-io/nats-server/v2"


class NatsGo(Suite):
    """Its tests start nats-server inside their own process. Two functions of a copy of
    nats-server are replaced for that. Later versions ask a container for servers."""

    name, version, source = "nats.go", "1.48.0", "Go module proxy"
    outside: ClassVar[Mapping[str, str]] = {
        OBJECTS: "Object",
        PLACES: "Domain|Cluster|Account",
    }
    other_files: ClassVar[Mapping[str, Sequence[str]]] = {
        OLDER: [f"test/{one}_test.go" for one in ("js", "js_internal", "kv", "object")],
    }
    one_test = r"^func Test(?!Main\()"
    _package = "github.com/nats-io/nats.go"

    @property
    def _tests(self) -> Path:
        return self.directory / "jetstream/test"

    def prepare(self) -> None:
        if not self.directory.exists():
            download = run(["go", "mod", "download", "-json", f"{self._package}@v{self.version}"])
            module = Path(json.loads(download.stdout)["Dir"])
            shutil.copytree(module, self.directory)
            run(["chmod", "-R", "u+w", str(self.directory)])
        self._replace_server()
        options = ["-modfile=../../shim.mod", "-mod=mod", "-vet=off"]
        run(["go", "test", "-c", *options, "-o", "test.bin", "."], cwd=self._tests)

    def _replace_server(self) -> None:
        """A modfile that names a copy of nats-server's module, in which two functions are ours."""
        go = ["go", "list", "-m", "-modfile=go_test.mod", "-json", _NATS_SERVER]
        run(["go", "mod", "download", "-modfile=go_test.mod"], cwd=self.directory)
        module = Path(json.loads(run(go, cwd=self.directory).stdout)["Dir"])
        copy = self.directory.with_name(f"{self.directory.name}-server")
        if not copy.exists():
            shutil.copytree(module, copy)
            run(["chmod", "-R", "u+w", str(copy)])
        for path, old, new, added in (
            ("test/test.go", "RunServerCallback", "runCoreServer", "run_server.go.txt"),
            ("server/jetstream.go", "JetStreamConfig", "ownJetStreamConfig", "config.go.txt"),
        ):
            text = (module / path).read_text()
            changed = re.sub(rf"(func (?:\(s \*Server\) )?){old}\(", rf"\1{new}(", text, count=1)
            assert changed != text, f"{path} has no {old}"
            (copy / path).write_text(changed)
            shutil.copy(SHIMS / added, (copy / path).with_name("liftlog_shim.go"))
        modfile = (self.directory / "go_test.mod").read_text()
        (self.directory / "shim.mod").write_text(f"{modfile}\nreplace {_NATS_SERVER} => {copy}\n")
        shutil.copy(self.directory / "go_test.sum", self.directory / "shim.sum")

    def tests(self) -> list[str]:
        listed = run([str(self._tests / "test.bin"), "-test.list", "^Test"], cwd=self._tests)
        return listed.stdout.split()

    def command(self, test: str) -> tuple[list[str], Path]:
        binary = str(self._tests / "test.bin")
        return [binary, "-test.v", "-test.timeout=200s", f"-test.run=^{test}$"], self._tests

    def outcomes(self, test: str, status: int, output: str) -> list[Outcome]:
        """Each subtest counts; a test without subtests counts itself."""
        results = dict(
            re.findall(r"^\s*--- \w+: (\S+)", output, re.MULTILINE)
            and [
                (name, word == "PASS")
                for word, name in re.findall(r"^\s*--- (\w+): (\S+)", output, re.MULTILINE)
                if word != "SKIP"
            ]
        )
        if status and test not in results:
            results[test] = False  # a panic, or it took too long
        inner = {name.rpartition("/")[0] for name in results}
        leaves = {name: ok for name, ok in results.items() if name not in inner}
        if status and all(leaves.values()):
            leaves[test] = False
        return [
            Outcome(self.name, name, ok, "" if ok else _about(output, name))
            for name, ok in leaves.items()
        ]


def _about(output: str, test: str) -> str:
    """What a Go test printed before its result."""
    lines = output.splitlines()
    for number, line in enumerate(lines):
        if line.strip().startswith(f"--- FAIL: {test} "):
            start = max(0, number - 10)
            return "\n".join(lines[start : number + 8])
    return output[-3000:]


_LEAN = {
    "CARGO_PROFILE_DEV_DEBUG": "0",
    "CARGO_PROFILE_TEST_DEBUG": "0",
    "CARGO_INCREMENTAL": "0",
}
"""Builds in a fourth of the time."""


class AsyncNats(Suite):
    """Its package has the tests, but not the crate with which they start servers: there is one of
    ours in its place."""

    name, version, source = "async-nats", "0.51.0", "crates.io"
    outside: ClassVar[Mapping[str, str]] = {
        PLACES: "with_replicas|mirrors",
        CLIENT: "::(test_version|limits$)",
    }
    other_files: ClassVar[Mapping[str, Sequence[str]]] = {
        OBJECTS: ["tests/object_store.rs"],
        CLIENT: ["tests/jetstream_api_timeout_tests.rs"],
    }
    one_test = r"#\[(?:tokio::)?test\b"
    _files = (
        *("jetstream_tests", "kv_tests", "pinned_client_test"),
        "pull_exceeded_max_request_test",
    )

    def __init__(self) -> None:
        self._binaries: list[str] = []
        self._binary_of: dict[str, str] = {}

    def prepare(self) -> None:
        if not self.directory.exists():
            run(["cp", "-r", str(self._download()), str(self.directory)])
            with (self.directory / "Cargo.toml").open("a") as manifest:
                manifest.write('\n[dev-dependencies.nats-server]\npath = "nats-server"\n')
        self.on_files("src/jetstream/stream.rs")
        server = self.directory / "nats-server"
        _write_crate(server, "nats-server", "")
        put(server / "src/lib.rs", (SHIMS / "nats_server.rs.txt").read_text())
        files = [option for file in self._files for option in ("--test", file)]
        build = ["cargo", "test", "--no-run", "--message-format=json", *files]
        environ = {**os.environ, **_LEAN}
        for line in run(build, cwd=self.directory, env=environ).stdout.splitlines():
            artifact = json.loads(line)
            if artifact.get("executable"):
                self._binaries.append(artifact["executable"])

    def _download(self) -> Path:
        """Cargo gets a crate for one that needs it."""
        asking = self.directory.with_name("crates")
        _write_crate(asking, "crates", f'[dependencies]\n{self.name} = "={self.version}"\n')
        described = json.loads(run(["cargo", "metadata", "--format-version=1"], cwd=asking).stdout)
        [manifest] = [
            one["manifest_path"] for one in described["packages"] if one["name"] == self.name
        ]
        return Path(manifest).parent

    def tests(self) -> list[str]:
        for binary in self._binaries:
            listed = run([binary, "--list", "--format=terse"], cwd=self.directory).stdout
            for name in re.findall(r"^(\S+): test$", listed, re.MULTILINE):
                self._binary_of[name] = binary
        return list(self._binary_of)

    def command(self, test: str) -> tuple[list[str], Path]:
        return [self._binary_of[test], "--exact", test, "--nocapture"], self.directory


def _write_crate(directory: Path, name: str, dependencies: str) -> None:
    (directory / "src").mkdir(parents=True, exist_ok=True)
    library = directory / "src/lib.rs"
    if not library.exists():
        library.touch()
    package = f'[package]\nname = "{name}"\nversion = "0.0.0"\nedition = "2021"\n\n'
    put(directory / "Cargo.toml", f"{package}{dependencies}\n[workspace]\n")


class NatsJs(Suite):
    """Its packages have no tests, so they come from its repository. They are for Deno, which npm
    has. What they import from JSR comes from npm, or there is a module of ours in its place."""

    name, version, source = "nats.js", "3.4.0", "its repository"
    outside: ClassVar[Mapping[str, str]] = {
        PLACES: "(?i)account|domain|num_replicas|mirror/source|kv - replicas",
        CLIENT: "(?i)(consumer|delta|stream) update .*header|old servers|wrong server|"
        "version checks|repub on 503|sendRequiredApiLevel header on c",
    }
    one_test = r"^Deno\.test\("
    other_files: ClassVar[Mapping[str, Sequence[str]]] = {
        OBJECTS: ["obj/tests/objectstore_test.ts"],
        PLACES: ["jetstream/tests/jscluster_test.ts"],
        UNKNOWN: [
            f"jetstream/tests/{one}_test.ts" for one in ("fast_ingest_publisher", "schedules")
        ],
    }
    _repository = "https://github.com/nats-io/nats.js"
    _given = "JETSTREAM_CLIENTS_NATS_JS"
    _folders = ("core", "jetstream", "kv", "nst", "obj", "transport-deno")
    _packages = ("deno@2.9.6", "@nats-io/jwt@0.0.11", "@nats-io/nkeys@2.0.3", "@nats-io/nuid@3.0.0")
    _files = (
        *("jetstream/tests/jsm_test.ts", "jetstream/tests/jsm_direct_test.ts"),
        *("jetstream/tests/streams_test.ts", "jetstream/tests/jetstream_test.ts"),
        *("jetstream/tests/batch_publisher_test.ts", "jetstream/tests/consumers_ordered_test.ts"),
        *("jetstream/tests/consume_test.ts", "jetstream/tests/consumer_reset_test.ts"),
        *("jetstream/tests/consumers_push_test.ts", "jetstream/tests/consumers_test.ts"),
        *("jetstream/tests/direct_consumer_test.ts", "jetstream/tests/fetch_test.ts"),
        *("jetstream/tests/jetstream409_test.ts", "jetstream/tests/jetstream_pullconsumer_test.ts"),
        *("jetstream/tests/jetstream_pushconsumer_test.ts", "jetstream/tests/next_test.ts"),
        *("jetstream/tests/status_test.ts", "jetstream/tests/jsmsg_test.ts"),
        *("jetstream/tests/pushconsumers_ordered_test.ts", "kv/tests/kv_test.ts"),
    )

    def prepare(self) -> None:
        if not self.directory.exists():
            BUILD.mkdir(parents=True, exist_ok=True)
            repository = self._cloned()
            self.directory.mkdir()
            tag, archive = f"v{self.version}", str(BUILD / "nats.js.tar")
            wanted = ["-o", archive, tag, *self._folders]
            run(["git", "-C", repository, "archive", *wanted])
            run(["tar", "-xf", archive, "-C", str(self.directory)])
            for own in (
                *self.directory.glob("*/package.json"),
                *self.directory.glob("*/deno.json"),
            ):
                own.unlink()
            (self.directory / "package.json").write_text("{}")
            npm = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(self.directory)]
            run([*npm, *self._packages])
        for shim in SHIMS.glob("nats_js_*.ts"):
            shutil.copy(shim, self.directory)
        (self.directory / "deno.json").write_text(json.dumps(self._configuration(), indent=1))
        server = self.directory / "bin/nats-server"
        server.parent.mkdir(exist_ok=True)
        script = f'#!/bin/sh\nexec {sys.executable} -I -S {SHIMS}/nats_js_server.py "$@"\n'
        server.write_text(script)
        server.chmod(0o755)
        self._wait_longer()
        self.on_files("jetstream/src/jsapi_types.ts")

    def _cloned(self) -> str:
        """A repository in a directory that is given, or the public one."""
        if given := os.environ.get(self._given):
            return given
        repository = BUILD / "nats.js.git"
        if not repository.exists():
            tag = f"v{self.version}"
            clone = ["git", "clone", "-q", "--bare", "--depth", "1", "--branch", tag]
            try:
                run([*clone, self._repository, str(repository)])
            except CannotRun as error:
                raise CannotRun(f"{error}; or name a clone in {self._given}") from None
        return str(repository)

    def _configuration(self) -> dict[str, object]:
        """Of Deno: where each import is found."""
        modules = {
            "@std/assert": "./nats_js_assert.ts",
            "@std/io": "./nats_js_io.ts",
            "@nats-io/transport-deno": "./transport-deno/src/mod.ts",
        }
        for name, folder in (("nats-core", "core"), ("jetstream", "jetstream"), ("kv", "kv")):
            modules[f"@nats-io/{name}"] = f"./{folder}/src/mod.ts"
            modules[f"@nats-io/{name}/internal"] = f"./{folder}/src/internal_mod.ts"
        scopes = {
            f"./{one}/tests/": {"nst": f"./{one}/tests/nst.ts"} for one in ("jetstream", "kv")
        }
        return {"nodeModulesDir": "manual", "imports": modules, "scopes": scopes}

    def _wait_longer(self) -> None:
        """The tests give a server 5 s to start; here a daemon starts beside it."""
        launcher = self.directory / "nst/src/launcher.ts"
        text = launcher.read_text()
        changed = re.sub(r"(?<=\s)5000,(?=\s+\{ name)", "60_000,", text)
        assert "60_000," in changed, "the time for a server to start is not where it was"
        launcher.write_text(changed)

    def tests(self) -> list[str]:
        pattern = re.compile(r"^Deno\.test\(\s*\"(.+?)\",", re.MULTILINE)
        found = [
            f"{file}::{name}"
            for file in self._files
            for name in pattern.findall((self.directory / file).read_text())
        ]
        return list(dict.fromkeys(found))

    def command(self, test: str) -> tuple[list[str], Path]:
        file, _, name = test.partition("::")
        return [
            *("env", f"PATH={self.directory / 'bin'}:{os.environ['PATH']}"),
            f"JETSTREAM_CLIENTS_NATS_SERVER={find_nats_server()}",
            *(str(self.directory / "node_modules/.bin/deno"), "test", "-A", "--no-check"),
            *("--quiet", "--no-lock", "--config", str(self.directory / "deno.json")),
            *("--filter", f"/^{re.escape(name).replace('/', chr(92) + '/')}$/", file),
        ], self.directory

    def outcomes(self, test: str, status: int, output: str) -> list[Outcome]:
        file, _, name = test.partition("::")
        colors = re.compile(r"\x1b\[[0-9;]*m")
        short = f"{Path(file).stem}::{name}"
        return super().outcomes(short, status, colors.sub("", output))


SUITES: tuple[type[Suite], ...] = (NatsPy, NatsGo, NatsJs, AsyncNats)
