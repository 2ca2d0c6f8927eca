"""A journal on a simulated disk with an outbox, and a NATS server that stores the sent messages."""

from __future__ import annotations

import asyncio

from support.disks.simfs import SimFileSystem
from support.worlds.journal_model import create_store

from liftlog.errors import NatsUnavailable
from liftlog.server.commits.writing import WriterPool
from liftlog.server.jetstream_api.workers.outbox import Outbox
from liftlog.server.journal import Change, ConsumerKey, Journal, StateVersion

KEY = ConsumerKey("a1", "one")


class Nats:
    """`is_open`: there is a connection. `is_behind`: the server reads slowly."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.answers: list[bytes] = []
        self.is_open = True
        self.is_behind = False

    def offer(self, commands: bytes) -> bool:
        if self.is_open and not self.is_behind:
            self.sent.append(commands)
        return self.is_open and not self.is_behind

    async def send(self, commands: bytes) -> None:
        if not self.is_open:
            raise NatsUnavailable("closed")
        await asyncio.sleep(0.01)
        self.sent.append(commands)


class Site:
    def __init__(self, fs: SimFileSystem, pool: WriterPool) -> None:
        self.nats = Nats()
        self.journal = Journal(create_store(fs), pool, flush_interval_seconds=60)
        self.outbox = Outbox(
            self.journal, self.nats.offer, self.nats.send, self.nats.answers.append
        )
        self.journal.on_progress = self.outbox.advance
        self.position = self.journal.write(
            [Change.snapshot(KEY, StateVersion(1, 1), b"settings", b"state")]
        )
        self.number = 1

    def change(self) -> int:
        self.number += 1
        return self.journal.write([Change.delta(KEY, StateVersion(1, self.number), b"d")])

    async def until(self, there: list[bytes], wanted: bytes) -> None:
        async with asyncio.timeout(20):
            while b"".join(there) != wanted:
                await asyncio.sleep(0.001)
