"""The test suites of the clients.

Each comes from a registry, as for any user; the versions are pinned.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from jetstream_clients.nats_java import NatsJava
from jetstream_clients.suite import (
    BUILD,
    CLIENT,
    OLDER,
    PLACES,
    SHIMS,
    UNKNOWN,
    CannotRun,
    Outcome,
    Suite,
    put,
    run,
)
from liftlog.server.life.embedded import find_nats_server


class NatsPy(Suite):
    """The tests of nats-py. Newer source distributions have no tests, and this one lacks their
    tests/utils.py."""

    name, version, source = "nats-py", "2.14.0", "PyPI, source distribution"
    can_be_beside_itself = False  # its tests want one port
    outside: ClassVar[Mapping[str, str]] = {
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
    """The tests of nats.go, which start nats-server inside of their own process. For that, two
    functions in a copy of nats-server are replaced. Later versions get servers from a container."""

    name, version, source = "nats.go", "1.48.0", "Go module proxy"
    outside: ClassVar[Mapping[str, str]] = {
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
        """Write a modfile that names a copy of nats-server's module with two functions of ours."""
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
        """Return the outcomes. Each subtest counts; a test without subtests counts once."""
        results = dict(
            re.findall(r"^\s*--- \w+: (\S+)", output, re.MULTILINE)
            and [
                (name, word == "PASS")
                for word, name in re.findall(r"^\s*--- (\w+): (\S+)", output, re.MULTILINE)
                if word != "SKIP"
            ]
        )
        if status and test not in results:
            results[test] = False  # a panic, or a timeout
        inner = {name.rpartition("/")[0] for name in results}
        leaves = {name: ok for name, ok in results.items() if name not in inner}
        if status and all(leaves.values()):
            leaves[test] = False
        return [
            Outcome(self.name, name, ok, "" if ok else _about(output, name))
            for name, ok in leaves.items()
        ]


def _about(output: str, test: str) -> str:
    """Return the output of a Go test before its result."""
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
"""Options with which builds take a fourth of the time."""


class AsyncNats(Suite):
    """The tests of async-nats. Its package contains the tests, but not the crate with which they
    start servers. This module has a replacement."""

    name, version, source = "async-nats", "0.51.0", "crates.io"
    outside: ClassVar[Mapping[str, str]] = {
        PLACES: "with_replicas|mirrors",
        CLIENT: "::(test_version|limits$)",
    }
    other_files: ClassVar[Mapping[str, Sequence[str]]] = {
        CLIENT: ["tests/jetstream_api_timeout_tests.rs"],
    }
    one_test = r"#\[(?:tokio::)?test\b"
    _files = (
        *("jetstream_tests", "kv_tests", "object_store", "pinned_client_test"),
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
        """Let Cargo download a crate, as a dependency of another crate."""
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
    """The tests of nats.js. Its packages have no tests, so they come from its repository. They need
    Deno, which npm has. Imports from JSR come from npm, or from a module of ours."""

    name, version, source = "nats.js", "3.4.0", "its repository"
    outside: ClassVar[Mapping[str, str]] = {
        PLACES: "(?i)account|domain|num_replicas|mirror/source|kv - replicas|number of replicas",
        CLIENT: "(?i)(consumer|delta|stream) update .*header|old servers|wrong server|"
        "version checks|repub on 503|sendRequiredApiLevel header on c",
    }
    one_test = r"^Deno\.test\("
    other_files: ClassVar[Mapping[str, Sequence[str]]] = {
        PLACES: ["jetstream/tests/jscluster_test.ts"],
        UNKNOWN: [
            f"jetstream/tests/{one}_test.ts" for one in ("fast_ingest_publisher", "schedules")
        ],
    }
    _repository = "https://github.com/nats-io/nats.js"
    _given = "JETSTREAM_CLIENTS_NATS_JS"
    _folders = ("core", "jetstream", "kv", "nst", "obj", "transport-deno")
    _packages = (
        *("deno@2.9.6", "@nats-io/jwt@0.0.11", "@nats-io/nkeys@2.0.3", "@nats-io/nuid@3.0.0"),
        "js-sha256@0.11.1",
    )
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
        "obj/tests/objectstore_test.ts",
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
        """Return a repository in a given directory, or a clone of the public one."""
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
        """Return the configuration of Deno: the place of each import."""
        modules = {
            "@std/assert": "./nats_js_assert.ts",
            "@std/bytes": "./nats_js_bytes.ts",
            "@std/io": "./nats_js_io.ts",
            "@nats-io/transport-deno": "./transport-deno/src/mod.ts",
        }
        folders = {"nats-core": "core", "jetstream": "jetstream", "kv": "kv", "obj": "obj"}
        for name, folder in folders.items():
            modules[f"@nats-io/{name}"] = f"./{folder}/src/mod.ts"
            modules[f"@nats-io/{name}/internal"] = f"./{folder}/src/internal_mod.ts"
        scopes = {
            f"./{one}/tests/": {"nst": f"./{one}/tests/nst.ts"}
            for one in ("jetstream", "kv", "obj")
        }
        return {"nodeModulesDir": "manual", "imports": modules, "scopes": scopes}

    def _wait_longer(self) -> None:
        """Raise the time limit for a server start, which is 5 s, because a daemon starts, too."""
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


SUITES: tuple[type[Suite], ...] = (NatsPy, NatsGo, NatsJs, AsyncNats, NatsJava)
