"""Applications that publish with the original clients of NATS: nats-py in a thread, and nats.go and
the client for Node in processes. Each repeats a message with its `Nats-Msg-Id` until it is acked.

The programs are in `go_publisher` and `node_publisher` in this folder. They are built below
`build/`, with packages from the Go module proxy and npm. There is also a reader that uses nats.go.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import IO, NamedTuple

import nats
from nats.errors import Error as NatsError
from support.clients.building import (
    Missing,
    built_with_cargo,
    built_with_go,
    compiled_with_maven,
    installed_with_npm,
)
from support.clients.ingesting import numbered
from support.clients.replicated_publishers import LoadPublisher
from support.daemons.cluster import PATIENCE
from support.daemons.nats_server import NatsServer
from support.rounds import is_torture

_SOURCES = Path(__file__).parent
_MESSAGE_BYTES = 60


def identified(subject: str, number: int) -> tuple[str, dict[str, str], bytes]:
    return subject, {"Nats-Msg-Id": f"{subject}-{number}"}, numbered(number, _MESSAGE_BYTES)


class ClientPublisher(LoadPublisher):
    """A publisher with one client. `timeout` is the number of seconds after which the client ends
    an attempt. `failures` maps errors of attempts to their numbers. `acked_at` are the times of
    acks."""

    client = "nats-py"

    def __init__(
        self,
        servers: Sequence[NatsServer],
        subject: str,
        *,
        timeout: float = 1.0,
        in_flight: int = 1,
        pause: float = 0.02,
    ) -> None:
        super().__init__(servers, subject, identified, in_flight=in_flight)
        self.failures: Counter[str] = Counter()
        self.acked_at: list[float] = []
        self.seconds: list[float] = []
        """Seconds from the first attempt to the ack, for each message."""
        self._urls = [server.url for server in servers]
        self._timeout = timeout
        self._pause = pause
        self._sent_at: dict[int, float] = {}

    @property
    def published(self) -> int:
        return self._next

    @property
    def unacked(self) -> int:
        return len(self._sent_at)

    def longest_wait(self, since: float) -> float:
        """Return the longest time between two consecutive acks after `since`, in seconds."""
        times = [at for at in self.acked_at.copy() if at >= since]
        return max((later - one for one, later in itertools.pairwise(times)), default=0.0)

    def summary(self) -> str:
        failed = ", ".join(f"{count} x {what!r}" for what, count in self.failures.most_common(4))
        return f"{self.client}: {self.acked} acked, failed attempts: {failed or 'none'}"

    def _begin(self) -> tuple[int, str, dict[str, str], bytes]:
        number, self._next = self._next, self._next + 1
        self._sent_at[number] = now = time.monotonic()
        self.events.append(("sent", number, now, (None, False)))
        return number, *self._message_of(self.subject, number)

    def _acked(self, number: int, offset: int) -> None:
        now = time.monotonic()
        self.seconds.append(now - self._sent_at.pop(number))
        self.acked += 1
        self.acked_at.append(now)
        self.events.append(("acked", number, now, (offset, True)))

    def _wait(self) -> None:
        self._stop_asked.wait(0.5 if self.easy else self._pause)


class LibraryPublisher(ClientPublisher):
    """Publishes with nats-py's `js.publish`, one message at a time."""

    def run(self) -> None:
        try:
            asyncio.run(self._publish())
        except Exception as error:  # told by `finish`
            self.error = error

    async def _publish(self) -> None:
        async def ignore(_: Exception) -> None:
            """Ignore errors. nats-py would print a traceback each time when a server is down."""

        client = await nats.connect(
            self._urls, max_reconnect_attempts=-1, reconnect_time_wait=0.1, error_cb=ignore
        )
        stream = client.jetstream(timeout=self._timeout)
        while not self._stop_asked.is_set():
            number, subject, headers, value = self._begin()
            while not self._stop_asked.is_set():
                self.host = getattr(client.connected_url, "hostname", None) or ""
                try:
                    ack = await stream.publish(subject, value, headers=headers)
                except (NatsError, TimeoutError) as error:
                    self.failures[str(error) or type(error).__name__] += 1
                    await asyncio.sleep(0.05)
                    continue
                self._acked(number, ack.seq)
                break
            await asyncio.sleep(0.5 if self.easy else self._pause)
        await client.close()


class ProgramPublisher(ClientPublisher):
    """A process with another client. The process repeats messages until they are acked. It ends
    when all messages are acked."""

    def __init__(
        self, program: Program, servers: Sequence[NatsServer], subject: str, **more: float
    ) -> None:
        super().__init__(servers, subject, **{"in_flight": 4, **more})  # type: ignore[arg-type]
        self.client = program.client
        self.knows_host = False
        self._command = program.command

    def run(self) -> None:
        try:
            self._publish()
        except Exception as error:  # told by `finish`
            self.error = error

    def _publish(self) -> None:
        with subprocess.Popen(
            [*self._command, ",".join(self._urls), str(self._timeout)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            hearing = threading.Thread(target=self._hear, args=[process.stdout], daemon=True)
            hearing.start()
            while not self._stop_asked.is_set():
                while len(self._sent_at) < self._in_flight:
                    self._give(process.stdin)
                process.stdin.flush()
                self._wait()
            process.stdin.close()
            hearing.join(PATIENCE)
            assert process.wait(PATIENCE) == 0, f"{self.summary()}, {self.unacked} without an ack"

    def _give(self, program: IO[bytes]) -> None:
        number, subject, headers, value = self._begin()
        message = {
            "number": number,
            "subject": subject,
            "id": headers["Nats-Msg-Id"],
            "value": value.decode(),
        }
        program.write(json.dumps(message).encode() + b"\n")

    def _hear(self, program: IO[bytes]) -> None:
        for line in program:
            answer = json.loads(line)
            if "error" in answer:
                self.failures[answer["error"]] += 1
            else:
                # None if the connection was lost directly after the ack.
                self.host = answer.get("server") or self.host
                self._acked(answer["number"], answer["offset"])


class Program(NamedTuple):
    client: str
    command: list[str]


def go_program() -> Program:
    """Raises Missing."""
    return Program("nats.go", [str(built_with_go(_SOURCES / "go_publisher", "go-publisher"))])


def go_reader() -> Path:
    """Return a program that reads with an ordered pull consumer. Raises Missing."""
    return built_with_go(_SOURCES / "go_publisher", "go-reader", "./reader")


def node_program() -> Program:
    """Raises Missing."""
    place = installed_with_npm(_SOURCES / "node_publisher", "node-publisher", "publisher.js")
    return Program("Node", ["node", str(place / "publisher.js")])


def worker_programs(clients: Collection[str]) -> list[Program]:
    """Return worker programs with these clients, if they can be built on this machine. Their
    arguments are URL, stream, consumer and number of messages. Prints the reason if a program
    cannot be built."""

    def with_go() -> Program:
        path = built_with_go(_SOURCES / "go_publisher", "go-worker", "./worker")
        return Program("nats.go", [str(path)])

    def with_node() -> Program:
        place = installed_with_npm(_SOURCES / "node_publisher", "node-publisher", "worker.js")
        return Program("nats.js", ["node", str(place / "worker.js")])

    def with_java() -> Program:
        place = compiled_with_maven(_SOURCES / "java_worker", "java-worker", "Worker")
        return Program("nats.java", ["java", "-cp", f"{place}:{place}/*", "Worker"])

    def with_rust() -> Program:
        path = built_with_cargo(_SOURCES / "rust_worker", "rust-worker")
        return Program("async-nats", [str(path)])

    builds = {
        "nats.go": with_go,
        "nats.js": with_node,
        "nats.java": with_java,
        "async-nats": with_rust,
    }
    return _buildable({client: build for client, build in builds.items() if client in clients})


def programs() -> list[Program]:
    """Return the programs that can be built on this machine. Prints the reason if a program cannot
    be built."""
    return _buildable({"nats.go": go_program, "Node": node_program})


def _buildable(builds: Mapping[str, Callable[[], Program]]) -> list[Program]:
    found = []
    for client, build in builds.items():
        try:
            found.append(build())
        except Missing as why:
            print(f"without {client}: {why}", flush=True)
    return found


def client_publishers(
    servers: Sequence[NatsServer], subject: str, *, timeout: float = 1.0
) -> list[ClientPublisher]:
    """Return one publisher for each client in campaigns, otherwise only one with nats-py. The
    publishers begin with different servers. Their subjects begin with `subject`."""

    def at(number: int) -> list[NatsServer]:
        number %= len(servers)
        return [*servers[number:], *servers[:number]]

    found: list[ClientPublisher] = [
        LibraryPublisher(servers, f"{subject}-nats-py", timeout=timeout)
    ]
    for number, program in enumerate(programs() if is_torture() else [], 1):
        name = f"{subject}-{program.client.lower().replace('.', '-')}"
        found.append(ProgramPublisher(program, at(number), name, timeout=timeout))
    return found
