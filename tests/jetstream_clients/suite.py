"""A client's test suite: its source, the tests that concern liftlog, and the command for one test.

Each test runs in its own process, so a test that hangs or panics affects no other test.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple

from jetstream_clients.servers import Servers

REPOSITORY = Path(__file__).parents[2]
SHIMS = Path(__file__).parent / "shims"
BUILD = REPOSITORY / "build/jetstream-clients"

OBJECTS = "object stores"
PLACES = "clusters, accounts, domains, mirrors"
CLIENT = "only the client, or other versions of the server"
OLDER = "an older API of the client, for streams, consumers, buckets and objects"
UNKNOWN = "batches and schedules of messages"
SWITCHED_OFF = "tests that the suite itself disables"
ELSEWHERE = "connections, logins, TLS, plain messages and services"
"""The reason for tests that do not use JetStream."""
KINDS = (OBJECTS, PLACES, UNKNOWN, OLDER, CLIENT, SWITCHED_OFF)


class Outcome(NamedTuple):
    client: str
    test: str
    """Name of the test with its group, as in the suite."""
    passed: bool
    text: str
    """The end of its output if it failed."""
    theirs: bool | None = None
    """True if it passes with JetStream itself; None if this was not tried."""


class CannotRun(Exception):
    """A suite cannot run here; the text names the missing part."""


def run(command: Sequence[str], **options: object) -> subprocess.CompletedProcess[str]:
    """Run a command. Raises CannotRun if the program is missing or fails."""
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
    """Write the text unless the file already has it, because Cargo builds again if a file is newer
    than its result."""
    if not file.exists() or file.read_text() != text:
        file.write_text(text)


class Suite:
    name = version = source = ""
    outside: ClassVar[Mapping[str, str]] = {}
    """Tests that are not run with liftlog: names by kind. The first match counts."""
    other_files: ClassVar[Mapping[str, Sequence[str]]] = {}
    """Files of JetStream tests that are not run, by kind."""
    one_test = r"(?!)"
    """The beginning of each test in such a file, to count the tests."""
    seconds = 240.0
    """The longest time for one test."""
    can_be_beside_itself = True
    """True if several tests may run at a time."""

    def kind_outside(self, test: str) -> str:
        """The kind of a test that is not run on liftlog; empty if it is run."""
        return next((kind for kind, names in self.outside.items() if re.search(names, test)), "")

    def not_run(self) -> dict[str, int]:
        """Return the number of tests that are not run, by kind."""
        counts = Counter(kind for test in self.tests() if (kind := self.kind_outside(test)))
        for kind, files in self.other_files.items():
            for file in files:
                text = (self.directory / file).read_text()
                counts[kind] += len(re.findall(self.one_test, text, re.MULTILINE))
        return dict(counts)

    def prepare(self) -> None:
        """Download and build everything that the tests need. Raises CannotRun."""
        raise NotImplementedError

    def tests(self) -> list[str]:
        raise NotImplementedError

    def command(self, test: str) -> tuple[list[str], Path]:
        """Return the command and its working directory."""
        raise NotImplementedError

    def outcomes(self, test: str, status: int, output: str) -> list[Outcome]:
        return [Outcome(self.name, test, status == 0, "" if status == 0 else output[-3000:])]

    def on_files(self, *paths: str) -> None:
        """Let tests that request memory storage, which is refused, request file storage. Without
        this change, the other parts of such a test would not be tested."""
        for path in paths:
            file = self.directory / path
            text = file.read_text()
            changed = re.sub(
                r"""(?<=[ =])"memory"(?=[,)\]]|$)""", '"file"', text, flags=re.MULTILINE
            )
            assert '"file"' in changed, f"{path} names no storage"
            put(file, changed)

    def run(self, test: str, servers: Servers) -> list[Outcome]:
        return self.run_in(test, servers.environ)

    def run_in(self, test: str, environ: Mapping[str, str]) -> list[Outcome]:
        command, directory = self.command(test)
        environ = {**os.environ, **environ}
        try:
            done = subprocess.run(
                command,
                cwd=directory,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=self.seconds,
                text=True,
                errors="replace",
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            text = error.stdout or ""
            if isinstance(text, bytes):
                text = text.decode(errors="replace")
            return self.outcomes(test, 1, f"{text}\nnot done after {self.seconds:.0f} s")
        return self.outcomes(test, done.returncode, done.stdout)

    @property
    def directory(self) -> Path:
        return BUILD / f"{self.name}-{self.version}"
