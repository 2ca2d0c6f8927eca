"""Programs of others that work as they are: queues and frameworks that read JetStream as a worker.

Each gets a thousand messages, fails at random, and two of its processes are killed again and again;
the daemon is killed, too. Nothing may be missing at the end. `make programs` runs these tests: the
programs come from PyPI, npm and the Go module proxy, and what cannot be fetched is skipped.
"""

from __future__ import annotations

import json
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
from support.clients.building import (
    Missing,
    built_with_go,
    installed_with_npm,
    installed_with_pip,
)
from support.clients.ingesting import assert_no_traceback, until
from support.clients.raw_nats import RawNats
from support.daemons.daemon import Daemon
from support.daemons.nats_server import NatsServer
from support.rounds import chance_of

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

HERE = Path(__file__).parent
MESSAGES = 1000
WORKERS = 2
KILLS = 6
PAUSE_SECONDS = 0.005
PATIENCE_SECONDS = 240.0


def python_worker(script: str) -> Callable[[], list[str]]:
    def build() -> list[str]:
        python = installed_with_pip(HERE / "python/requirements.txt", "python-workers")
        return [str(python), str(HERE / "python" / script)]

    return build


def node_worker(script: str) -> Callable[[], list[str]]:
    def build() -> list[str]:
        place = installed_with_npm(HERE / "node", "node-workers", script)
        return ["node", str(place / script)]

    return build


def go_worker(name: str) -> Callable[[], list[str]]:
    return lambda: [str(built_with_go(HERE / "go", f"{name}-worker", f"./{name}"))]


class Program(NamedTuple):
    build: Callable[[], list[str]]
    """Returns the command of a worker, without its arguments. Raises Missing."""
    stream: str
    subject: str
    has_own_publisher: bool = False


PROGRAMS = {
    "faststream": Program(
        python_worker("faststream_worker.py"), "programs_faststream", "programs.faststream"
    ),
    "faststream-ephemeral": Program(
        python_worker("ephemeral_worker.py"), "programs_ephemeral", "programs.ephemeral"
    ),
    "taskiq": Program(
        python_worker("taskiq_worker.py"), "programs_taskiq", "programs.taskiq", True
    ),
    "deliver-group": Program(python_worker("group_worker.py"), "programs_group", "programs.group"),
    "moleculer": Program(
        node_worker("moleculer_worker.js"), "programs_moleculer", "programs.moleculer"
    ),
    "argo-acksync": Program(go_worker("acksync"), "programs_acksync", "programs.acksync"),
    "watermill": Program(go_worker("watermill"), "programs_watermill", "programs_watermill"),
}


class Workers:
    """Processes of one program. What one has done it writes to a file, line by line."""

    def __init__(self, command: Sequence[str], server: str, directory: Path) -> None:
        self._command, self._server, self._directory = list(command), server, directory
        self._running: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Workers:
        self._running = [self._started(number) for number in range(WORKERS)]
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._running:
            one.kill()
            one.wait()

    def _started(self, number: int) -> subprocess.Popen[bytes]:
        with (self._directory / f"worker-{number}.log").open("ab") as log:
            arguments = [self._server, str(self._directory / f"done-{number}")]
            return subprocess.Popen(
                [*self._command, *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def replace(self, number: int) -> None:
        """Kill one, and start another in its place."""
        self._running[number].send_signal(signal.SIGKILL)
        self._running[number].wait()
        self._running[number] = self._started(number)

    def revive(self) -> None:
        """Start those again that ended by themselves, as a supervisor would."""
        for number, one in enumerate(self._running):
            if one.poll() is not None:
                self._running[number] = self._started(number)

    def done(self) -> list[int]:
        """Numbers of messages, once for each time that one was processed."""
        files = sorted(self._directory.glob("done-*"))
        # A worker may be killed while it writes a line.
        return [int(line) for file in files for line in file.read_text().split("\n")[:-1] if line]

    @property
    def output(self) -> str:
        files = sorted(self._directory.glob("worker-*.log"))
        return "\n".join(f"{one.name}: {one.read_text()[-2000:]}" for one in files)


@pytest.fixture
def server() -> Iterator[NatsServer]:
    with NatsServer(leafnodes={"listen": "127.0.0.1:-1"}) as server:
        yield server


def started(server: NatsServer) -> Daemon:
    found = re.search(r"Listening for leafnode connections on (\S+:\d+)", server.log)
    assert found is not None, server.log
    return Daemon(server.url, {"nats": {"jetstream_api": True, "leafnode": found[1]}})


def has_consumer(server: NatsServer, stream: str) -> bool:
    with RawNats(server.port, timeout=5) as raw:
        try:
            answer = raw.request(f"$JS.API.CONSUMER.NAMES.{stream}", b"{}")
        except TimeoutError:
            return False
        return bool(answer.payload) and bool(answer.json().get("consumers"))


def publish(server: NatsServer, subject: str) -> None:
    """Returns when all messages are acked. Each is repeated with its id until then."""
    with RawNats(server.port, timeout=2) as raw:
        for number in range(MESSAGES):
            headers = b"NATS/1.0\r\nNats-Msg-Id: %d\r\n\r\n" % number
            body = json.dumps({"number": number}).encode()
            while not is_acked(raw, subject, body, headers):
                pass
            time.sleep(PAUSE_SECONDS)


def is_acked(raw: RawNats, subject: str, body: bytes, headers: bytes) -> bool:
    try:
        answer = raw.request(subject, body, headers=headers)
    except TimeoutError:
        return False
    return bool(answer.payload) and "seq" in answer.json()


@pytest.mark.parametrize("name", PROGRAMS)
def test_nothing_is_missing(name: str, server: NatsServer, tmp_path: Path) -> None:
    program, chance = PROGRAMS[name], chance_of(name)
    try:
        command = program.build()
    except Missing as why:
        pytest.skip(f"{name}: {why}")
    daemon = started(server)
    with daemon, Workers(command, server.url, tmp_path) as workers:
        try:
            run(program, command, server, daemon, workers, chance)
        except BaseException:
            print(workers.output, file=sys.stderr)
            raise
        assert_no_traceback(daemon)


def run(
    program: Program,
    command: Sequence[str],
    server: NatsServer,
    daemon: Daemon,
    workers: Workers,
    chance: random.Random,
) -> None:
    until(lambda: has_consumer(server, program.stream))
    with ThreadPoolExecutor(1) as threads:
        if program.has_own_publisher:
            publisher = [*command, server.url, "-", "publish", str(MESSAGES)]
            publishing = threads.submit(subprocess.check_output, publisher)
        else:
            publishing = threads.submit(publish, server, program.subject)
        kills = 0
        while not publishing.done() or kills < KILLS:
            time.sleep(chance.uniform(0.2, 1.0))
            workers.replace(chance.randrange(WORKERS))
            kills += 1
            # The publisher of taskiq gives up when it gets no ack.
            if kills == KILLS // 2 and not program.has_own_publisher:
                daemon.kill()
                daemon.restart()
                daemon.wait_ready()
        publishing.result()
    if program.has_own_publisher:
        daemon.kill()
        daemon.restart()
        daemon.wait_ready()
    deadline = time.monotonic() + PATIENCE_SECONDS
    wanted = set(range(MESSAGES))
    while missing := wanted - set(workers.done()):
        assert time.monotonic() < deadline, f"{len(missing)} are missing: {sorted(missing)[:20]}"
        workers.revive()
        time.sleep(0.5)
    again = len(workers.done()) - MESSAGES
    print(f"{kills} workers killed, {again} of {MESSAGES} messages were processed more than once")
