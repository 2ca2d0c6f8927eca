"""One stream with slow followers on a failing disk. Its parts run step by step.

The commit path, the sequencer and the log are the real ones. A driver decides when a writer thread
writes and syncs, when followers confirm, and when the disk fails.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from support.disks.logs import create, reopen
from support.disks.simfs import SimFileSystem

from liftlog.errors import LiftlogError
from liftlog.log import EncodedBatch, Log
from liftlog.sequencing import Destinations, MessageRun
from liftlog.sequencing.acks import published
from liftlog.sequencing.refusals import RefusalReason
from liftlog.server.commits.configs import log_config
from liftlog.server.commits.gate import CommitGate, LedStream
from liftlog.server.commits.host import StreamHost
from liftlog.server.commits.writing import CommitJob, InlineBudget
from liftlog.server.streams.making import make_sequencer
from liftlog.settings import StreamSettings, parse_stream_settings

SECOND_NS = 1_000_000_000


class StepPool:
    """Replaces the writer threads. A job runs when the test requests it."""

    def __init__(self) -> None:
        self.jobs: deque[CommitJob] = deque()
        self._has_written = False

    def submit(self, job: CommitJob) -> None:
        assert not self.jobs, "two jobs of one stream at a time"
        self.jobs.append(job)

    def step(self) -> None:
        """Run the writes of the job or, if they are done, its sync and its end."""
        if not self.jobs:
            return
        job = self.jobs[0]
        if not self._has_written:
            self._has_written = True
            self._call(job, job.write)
            if job.written is not None and job.error is None:
                job.written()
            return
        self._has_written = False
        self.jobs.popleft()
        if job.error is None and job.sync is not None:
            self._call(job, job.sync)
        job.done(job.error)

    @staticmethod
    def _call(job: CommitJob, part: Callable[[], object]) -> None:
        try:
            part()
        except LiftlogError as error:
            job.error = error


class LaggingGate:
    """Followers that have all records below `high_watermark`, which the test moves."""

    has_followers = True

    def bind(self, stream: LedStream) -> None: ...

    def __init__(self, high_watermark: int) -> None:
        self.high_watermark = high_watermark
        self.durable_end = high_watermark
        self.confirms_at_once = False
        self.refuses: RefusalReason | None = None
        self.log_end = lambda: 0
        self.seen_end = 0
        """Followers may have fetched records below this offset."""
        self.lead_ended = ""

    def written(self, batches: Sequence[EncodedBatch]) -> None:
        assert not self.lead_ended
        self.seen_end = self.log_end()

    def local(self, end: int) -> int:
        assert not self.lead_ended
        assert end >= self.durable_end
        self.durable_end = end
        if self.confirms_at_once:
            self.high_watermark = end
        return self.high_watermark

    def confirm(self, offset: int) -> int:
        self.high_watermark = max(self.high_watermark, min(offset, self.durable_end))
        return self.high_watermark

    def stepped_down(self, reason: str) -> None:
        self.lead_ended = reason


@dataclass
class Published:
    payload: bytes
    reply: bytes
    message_id: str
    answer: dict[str, Any] | None = None
    heard_at: int = 0
    """The high watermark at the time of the answer."""


class GatedStream:
    """The objects that a broker gives its streams, and one stream. `lead_again` begins a new
    one."""

    def __init__(self, settings: dict[str, Any], *, replicated: bool = False) -> None:
        self.settings: StreamSettings = parse_stream_settings({"subject": "in", **settings})
        self.fs = SimFileSystem()
        config = log_config(self.settings, replicated=replicated)
        self.log: Log = create(self.fs, config=config)
        self._append = self.log.append
        self.log.append = self._append_once  # type: ignore[method-assign]
        self.pool = StepPool()
        self.inline = InlineBudget(64, 1000.0)
        self.dirty: dict[StreamHost, None] = {}
        self.rounds_are_out = False
        self.messages: dict[bytes, Published] = {}
        self.sends = 0
        self.now = 10**18
        self.lead(self.log.log_end_offset)

    def lead(
        self, high_watermark: int, gate: CommitGate | None = None, *, is_leading: bool = True
    ) -> None:
        self.gate = LaggingGate(high_watermark)
        self.gate.log_end = lambda: self.log.log_end_offset
        sequencer = make_sequencer("s", self.settings, self.log, Destinations(["in"]), self.now)
        self.host = StreamHost(
            "s",
            self.settings,
            self.log,
            sequencer,
            self,  # type: ignore[arg-type]
            origin="api",
            gate=(gate or self.gate) if is_leading else None,
            is_leading=is_leading,
        )

    def _append_once(self, batches: Sequence[EncodedBatch]) -> None:
        assert batches[0].base_offset >= self.gate.seen_end, "an offset is assigned twice"
        self._append(batches)

    # --- what the streams of a daemon share ---

    def send(self, commands: bytes) -> None:
        self.sends += bool(commands)
        for answer in published(commands):
            message = self.messages[answer.subject]
            assert message.answer is None, f"two answers to {answer.subject!r}"
            message.answer = json.loads(answer.payload)
            message.heard_at = self.log.high_watermark

    def mark_dirty(self, host: StreamHost) -> None:
        self.dirty[host] = None

    def pending_changed(self) -> None: ...
    def rolled_up(self, stream: str) -> None: ...

    def now_ns(self) -> int:
        return self.now

    def steady_ns(self) -> int:
        return self.now

    # --- what happens ---

    def publish(self, rows: Iterable[tuple[bytes, bool, dict[str, str]]]) -> list[Published]:
        """Judge one run of tuples (payload, True if it requests an ack, headers), without writing
        it."""
        self.now += SECOND_NS // 1000
        replies, payloads, blocks, sent = [], [], [], []
        for payload, asks, headers in rows:
            reply = b"_INBOX.%d" % len(self.messages)
            message = Published(payload, reply if asks else b"", headers.get("Nats-Msg-Id", ""))
            self.messages[reply] = message
            sent.append(message)
            lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            replies.append(message.reply)
            payloads.append(payload)
            blocks.append(f"NATS/1.0\r\n{lines}\r\n".encode() if lines else b"")
        run = MessageRun(
            [b"in"] * len(payloads),
            replies,
            payloads,
            blocks if any(blocks) else None,
            has_cookie=False,
        )
        self.host.receive(run)
        return sent

    def kick(self) -> None:
        """End a chunk."""
        dirty, self.dirty = self.dirty, {}
        for host in dirty:
            host.kick()

    async def tick(self) -> None:
        """Handle the reports of threads."""
        for _ in range(3):
            await asyncio.sleep(0)

    def unanswered(self) -> list[Published]:
        return [one for one in self.messages.values() if one.reply and one.answer is None]

    async def settle(self) -> None:
        """Write everything, and let the followers get all of it."""
        await self.tick()
        while self.pool.jobs or self.dirty or self.host.sequencer.pending_messages:
            if self.host.failure:
                break
            self.kick()
            self.host.kick()
            self.pool.step()
            await self.tick()
        if not self.gate.lead_ended:
            self.host.commit_up_to(self.gate.confirm(self.log.durable_end_offset))

    async def finish_jobs(self) -> None:
        await self.tick()
        while self.pool.jobs:
            self.pool.step()
            await self.tick()

    def power_cut(self, seed: int) -> Log:
        """Return the log that the next start finds."""
        log, _ = reopen(self.fs.power_cut("some", seed), boot="boot-2", config=self.log.config)
        return log

    def close(self) -> None:
        self.fs.faults.clear()
        self.host.close()
        self.log.close()
