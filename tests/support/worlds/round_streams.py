"""Several streams that commit in rounds: the real commit path and logs, on a failing disk.

A test decides when the writer threads work, or uses real threads.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from support.disks.logs import create, read_all, reopen
from support.disks.simfs import Fault, SimFileSystem
from support.worlds.gated_stream import LaggingGate

from liftlog.log import FileSystem, Log, SystemClock
from liftlog.sequencing import Destinations, MessageRun
from liftlog.sequencing.acks import published
from liftlog.server.commits.configs import log_config
from liftlog.server.commits.host import StreamHost
from liftlog.server.commits.writing import CommitJob, WriterPool, run_batch
from liftlog.server.streams.intake import Intake
from liftlog.server.streams.making import make_sequencer
from liftlog.settings import CommitSettings, StreamSettings, parse_stream_settings


class StepPool:
    """Replaces the writer threads. Each call of `step` does the work of one thread."""

    def __init__(self) -> None:
        self.work: deque[Callable[[], object]] = deque()
        self.is_working = False

    def submit(self, job: CommitJob) -> None:
        self.work.append(lambda: run_batch([job]))

    thread_count = 4

    def run_on(self, threads: int, call: Callable[[], object]) -> None:
        self.work.extend([call] * threads)

    def step(self) -> None:
        if not self.work:
            return
        self.is_working = True
        try:
            self.work.popleft()()
        finally:
            self.is_working = False

    @property
    def waiting_jobs(self) -> int:
        return len(self.work)

    def close(self) -> None:
        while self.work:
            self.step()


class StreamFault(Fault):
    """A fault of the segments of one stream."""

    def hits(self, operation: str, path: Path) -> bool:
        return self.stream == path.parent.name and super().hits(operation, path)

    stream = ""


def fault(stream: str, operation: str, error: int, times: int = 1) -> Fault:
    made = StreamFault(operation, error, ".log", times=times)
    made.stream = stream
    return made


class RoundStreams:
    """The streams s0, s1 and so on of one daemon."""

    def __init__(
        self,
        count: int,
        *,
        fs: FileSystem | None = None,
        directory: Path = Path("/data/streams"),
        pool: WriterPool | None = None,
        followers: Sequence[str] = (),
        commit: CommitSettings | None = None,
        **settings: Any,
    ) -> None:
        """The streams in `followers` have followers, whose confirmations the test controls. Without
        `fs`, the disk is simulated. Without `pool`, the threads are simulated."""
        self.sim = SimFileSystem()
        self.fs: FileSystem = fs or self.sim
        self.directory = directory
        self.hosts: dict[str, StreamHost] = {}
        self.intake = Intake(commit or CommitSettings(), 1 << 30, SystemClock(), self.hosts)
        self.intake.pool.close()
        self.pool = StepPool()
        self.intake.pool = pool or self.pool  # type: ignore[assignment]
        self.intake.rounds.most_append_seconds = 60.0  # even on a busy machine
        self.intake.write = self._written
        self.sends: list[list[int]] = []
        """The numbers of the answered messages, for each write to NATS."""
        self.payloads: list[tuple[str, bytes]] = []
        self.answers: dict[int, dict[str, Any]] = {}
        self.gates: dict[str, LaggingGate] = {}
        self.settings: StreamSettings = parse_stream_settings({"subject": "in", **settings})
        for number in range(count):
            name = f"s{number}"
            log = create(self.fs, config=log_config(self.settings), directory=directory / name)
            gate = LaggingGate(log.log_end_offset) if name in followers else None
            if gate is not None:
                gate.log_end = lambda log=log: log.log_end_offset  # type: ignore[misc]
                self.gates[name] = gate
            sequencer = make_sequencer(name, self.settings, log, Destinations(["in"]), 0)
            self.hosts[name] = StreamHost(
                name, self.settings, log, sequencer, self.intake, origin="api", gate=gate
            )

    def _written(self, commands: bytes) -> None:
        found = []
        for answer in published(commands):
            number = int(answer.subject.rpartition(b".")[2])
            assert number not in self.answers, "two answers"
            self.answers[number] = json.loads(answer.payload)
            found.append(number)
        self.sends.append(found)

    # --- what happens ---

    def publish(self, *names: str, count: int = 1, size: int = 10, chunk: bool = True) -> list[int]:
        """Publish `count` messages to each of the streams, all in one chunk. Returns their
        numbers."""
        numbers = []
        for name in names or self.hosts:
            own = range(len(self.payloads), len(self.payloads) + count)
            payloads = [b"%d/" % number + b"x" * size for number in own]
            self.payloads += [(name, payload) for payload in payloads]
            replies = [b"_INBOX.%d" % number for number in own]
            run = MessageRun([b"in"] * count, replies, payloads, has_cookie=False)
            self.hosts[name].receive(run)
            numbers += own
        if chunk:
            self.intake.chunk_ended()
        return numbers

    async def work(self) -> None:
        """Let the threads do all their work, and the loop handle the results."""
        for _ in range(3):
            await asyncio.sleep(0)
        while self.pool.work:
            self.pool.step()
            for _ in range(3):
                await asyncio.sleep(0)

    async def answered(self, numbers: Sequence[int], seconds: float = 10) -> None:
        """Wait for the answers, if there are real threads."""
        async with asyncio.timeout(seconds):
            while not self.answers.keys() >= set(numbers):
                await asyncio.sleep(0.001)

    # --- what is the case ---

    def codes(self, numbers: Sequence[int]) -> list[int]:
        """Return, for each message, 0 for an ack, the code of a nack, or -1 without an answer."""
        found = [self.answers.get(number) for number in numbers]
        return [-1 if one is None else one.get("error", {}).get("err_code", 0) for one in found]

    def log(self, name: str) -> Log:
        return self.hosts[name].log

    def acked(self, name: str) -> dict[int, bytes]:
        """Return the acked messages by offset."""
        return {
            answer["seq"]: self.payloads[number][1]
            for number, answer in [*self.answers.items()]
            if self.payloads[number][0] == name and "error" not in answer
        }

    def nacked(self, name: str) -> set[bytes]:
        return {
            self.payloads[number][1]
            for number, answer in [*self.answers.items()]
            if self.payloads[number][0] == name and "error" in answer
        }

    def check(self) -> None:
        """Check that acked messages are durable and readable, and that refused ones are absent."""
        for name, host in self.hosts.items():
            found, acked = read_all(host.log), self.acked(name)
            assert acked.items() <= found.items(), name
            assert max(acked, default=0) < host.log.durable_end_offset
            assert self.nacked(name).isdisjoint(found.values()), name

    def recovered(self, image: SimFileSystem, boot: str) -> dict[str, Log]:
        """Return the logs that the next start finds."""
        config = log_config(self.settings)
        return {
            name: reopen(image, boot=boot, config=config, directory=self.directory / name)[0]
            for name in self.hosts
        }

    def close(self) -> None:
        self.sim.faults.clear()
        for host in self.hosts.values():
            host.close()
        self.intake.pool.close()
        for host in self.hosts.values():
            host.log.close()
