"""nats.java: Maven Central has the sources of its tests, and the release that they test."""

from __future__ import annotations

import hashlib
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from jetstream_clients.servers import Servers
from jetstream_clients.suite import (
    BUILD,
    CLIENT,
    ELSEWHERE,
    PLACES,
    SHIMS,
    SWITCHED_OFF,
    Outcome,
    Suite,
    put,
    run,
)
from liftlog.server.life.embedded import find_nats_server

_TESTS = "io/nats/client/impl"
_ANNOTATED = re.compile(
    r"((?:^    @\w+(?:\(.*\))?\s*\n|^//.*\n)*)^    (?:public )?void (\w+)\(", re.MULTILINE
)
_ON_DISK = "StorageType.File"
_FAST_START = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
_WAIT = "\n    {\n        JetStreamClients.await(getNatsPort());\n    }\n"


class NatsJava(Suite):
    name, version, source = "nats.java", "2.26.2", "Maven Central"
    seconds = (
        1200.0  # one test publishes 102,000 messages one by one, another creates 1,400 streams
    )
    outside: ClassVar[Mapping[str, str]] = {
        PLACES: "testPrefix$|testWithAccount$|Domain",
    }
    one_test = r"^    @(?:Test|ParameterizedTest)\b"
    other_files: ClassVar[Mapping[str, Sequence[str]]] = {
        CLIENT: [
            *(
                f"io/nats/client/api/{one}Tests.java"
                for one in (
                    *("AccountStatistics", "ApiResponse", "ConsumerConfiguration", "ConsumerInfo"),
                    *("KeyValueConfiguration", "PublishAck", "Response", "StreamConfiguration"),
                    "StreamInfo",
                )
            ),
            *(
                f"io/nats/client/{one}OptionsTests.java"
                for one in ("JetStream", "Publish", "Subscribe")
            ),
            "io/nats/client/api/MessageInfoTest.java",
            "io/nats/client/api/ObjectStoreApiTests.java",
            f"{_TESTS}/ConsumerConfigurationComparerTests.java",
        ],
    }
    _files = (
        *("JetStreamConsumer", "JetStreamGeneral", "JetStreamManagement", "JetStreamPub"),
        *("JetStreamMirrorAndSources", "JetStreamPull", "JetStreamPush", "JetStreamPushAsync"),
        *("JetStreamPushQueue", "KeyValue", "ListRequests", "MessageManager", "ObjectStore"),
        *("NatsJetStreamMetaData", "Simplification"),
    )

    def __init__(self) -> None:
        self._switched_off: set[str] = set()

    def prepare(self) -> None:
        library = self.directory / "lib"
        if not library.exists():
            BUILD.mkdir(parents=True, exist_ok=True)
            maven = ["mvn", "--batch-mode", "--quiet", "--file", str(SHIMS / "nats_java_pom.xml")]
            new = library.with_name("new")
            copy = [f"-Dclient={self.version}", f"-DoutputDirectory={new}"]
            run([*maven, "dependency:copy-dependencies", *copy])
            new.rename(library)
        archive = library / f"jnats-{self.version}-tests.jar"
        shutil.unpack_archive(archive, self.directory, "zip")
        resources = self.directory / "src/test/resources"
        if not resources.exists():
            resources.parent.mkdir(parents=True)
            resources.symlink_to(self.directory)
        self._start_our_servers()
        for file in self._files:
            self._on_java_files(f"{_TESTS}/{file}Tests.java")
        for file in (f"{_TESTS}/JetStreamTestBase.java", "io/nats/client/utils/TestBase.java"):
            self._on_java_files(file)
        self._compile()

    def _start_our_servers(self) -> None:
        server = self.directory / "bin/nats-server"
        server.parent.mkdir(exist_ok=True)
        script = f'#!/bin/sh\nexec {sys.executable} -I -S {SHIMS}/nats_java_server.py "$@"\n'
        put(server, script)
        server.chmod(0o755)
        package = self.directory / "io/nats/client"
        shutil.copy(SHIMS / "JetStreamClients.java.txt", package / "JetStreamClients.java")
        for file, old, new in (
            ("NatsTestServer.java", r"(class NatsTestServer .*\{\n)", rf"\1{_WAIT}"),
            ("NatsTestServer.java", r"(setDefaultValidateTries\()\d+", r"\g<1>1200"),
            ("utils/TestBase.java", r"(connectValidateTries\()\d+", r"\g<1>2400"),
        ):
            text = (package / file).read_text()
            changed, found = re.subn(old, new, text)
            assert found == 1, f"{file} has no {old}"
            (package / file).write_text(changed)

    def _on_java_files(self, path: str) -> None:
        """Like `on_files`, but the test of the word for memory does not change."""
        file = self.directory / path
        text = file.read_text()
        file.write_text(re.sub(r"StorageType\.Memory\b(?!, StorageType\.get)", _ON_DISK, text))

    def _compile(self) -> None:
        """Compile only the sources that these tests need, which `javac` finds. Does nothing unless
        one of them is new."""
        classes = self.directory / "classes"
        texts = [file.read_bytes() for file in sorted(self.directory.glob("io/**/*.java"))]
        digest = hashlib.sha256(b"".join(texts)).hexdigest()
        made = classes / "sources.sha256"
        if made.exists() and made.read_text() == digest:
            return
        shutil.rmtree(classes, ignore_errors=True)
        sources = [f"{_TESTS}/{file}Tests.java" for file in self._files]
        options = ["-nowarn", "-proc:none", "-encoding", "UTF-8", "-d", str(classes)]
        path = ["-sourcepath", ".", "-classpath", "lib/*"]
        run(["javac", *options, *path, *sources], cwd=self.directory)
        made.write_text(digest)

    def tests(self) -> list[str]:
        found = []
        for file in self._files:
            text = (self.directory / f"{_TESTS}/{file}Tests.java").read_text()
            for marks, name in _ANNOTATED.findall(text):
                if not re.search(self.one_test, marks, re.MULTILINE):
                    continue
                found.append(f"{file}Tests::{name}")
                if re.search(r"^    @Disabled\b", marks, re.MULTILINE):
                    self._switched_off.add(found[-1])
        return found

    def kind_outside(self, test: str) -> str:
        return SWITCHED_OFF if test in self._switched_off else super().kind_outside(test)

    def not_run(self) -> dict[str, int]:
        about_jetstream = {f"{_TESTS}/{file}Tests.java" for file in self._files}
        about_jetstream.update(file for files in self.other_files.values() for file in files)
        count = 0
        for file in self.directory.glob("io/**/*.java"):
            if str(file.relative_to(self.directory)) not in about_jetstream:
                count += len(re.findall(self.one_test, file.read_text(), re.MULTILINE))
        return {**super().not_run(), ELSEWHERE: count}

    def run(self, test: str, servers: Servers) -> list[Outcome]:
        """Run a test. If a test starts a server again on the same port, the server has its stored
        data."""
        with tempfile.TemporaryDirectory(prefix="nats-java-", ignore_cleanup_errors=True) as own:
            return self.run_in(test, {**servers.environ, "JETSTREAM_CLIENTS_OWN": own})

    def command(self, test: str) -> tuple[list[str], Path]:
        group, _, name = test.partition("::")
        return [
            *("env", f"nats_server_path={self.directory / 'bin/nats-server'}"),
            f"JETSTREAM_CLIENTS_NATS_SERVER={find_nats_server()}",
            *("java", *_FAST_START, "-classpath", "classes:.:lib/*"),
            *("org.junit.platform.console.ConsoleLauncher", "execute", "--fail-if-no-tests"),
            *("--disable-banner", "--disable-ansi-colors", "--details", "tree"),
            *("--select-class", f"{_TESTS}/{group}".replace("/", ".")),
            *("--include-methodname", rf".*[.#]{name}(\(.*\))?"),
        ], self.directory
