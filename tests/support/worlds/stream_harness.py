"""One stream without a broker: its commits and its answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from liftlog.log import DataDir, Log, LogEnvironment, OsFileSystem, SystemClock
from liftlog.sequencing import Destinations, MessageRun
from liftlog.server.commits.configs import log_config
from liftlog.server.commits.host import StreamHost
from liftlog.server.commits.writing import InlineBudget, WriterPool
from liftlog.server.streams.making import make_sequencer
from liftlog.settings import parse_stream_settings


class Shared:
    """The objects that a broker gives its streams."""

    def __init__(self, inline_max_messages: int) -> None:
        self.pool = WriterPool(2)
        self.inline = InlineBudget(inline_max_messages, 1.0)
        self.dirty: dict[StreamHost, None] = {}
        self.rounds_are_out = False
        self.sent: list[bytes] = []

    def send(self, commands: bytes) -> None:
        self.sent.append(commands)

    def mark_dirty(self, host: StreamHost) -> None:
        self.dirty[host] = None

    def pending_changed(self) -> None: ...
    def rolled_up(self, stream: str) -> None: ...

    def now_ns(self) -> int:
        return SystemClock().now_ns()

    def steady_ns(self) -> int:
        return SystemClock().now_ns()

    def answers(self) -> list[Any]:
        lines = b"".join(self.sent).split(b"\r\n")[1::2]
        self.sent.clear()
        return [json.loads(line) for line in lines]


class Harness:
    def __init__(self, directory: Path, inline_max_messages: int, **settings: Any) -> None:
        environment = LogEnvironment.create(OsFileSystem(), SystemClock())
        self.data_dir = DataDir(directory, environment)
        self.data_dir.open()
        parsed = parse_stream_settings({"subject": "in", **settings})
        self.log: Log = self.data_dir.create_log(
            "s", log_config(parsed), initial_offset=1, metadata={}
        )
        sequencer = make_sequencer("s", parsed, self.log, Destinations(["in"]), 0)
        self.shared = Shared(inline_max_messages)
        self.host = StreamHost("s", parsed, self.log, sequencer, self.shared, origin="api")

    async def publish(self, *payloads: bytes) -> list[Any]:
        """Publish one run, commit it, and return the answers."""
        count = len(payloads)
        run = MessageRun([b"in"] * count, [b"_INBOX.r"] * count, payloads, has_cookie=False)
        self.host.receive(run)
        self.host.kick()
        await self.host.drained()
        return self.shared.answers()

    def close(self) -> None:
        self.host.close()
        self.shared.pool.close()
        self.log.close()
        self.data_dir.close(None)


def seqs(answers: list[Any]) -> list[int]:
    return [answer.get("error", {}).get("err_code") or answer["seq"] for answer in answers]


def failing_once(error: Exception, original: Any) -> Any:
    pending = [error]

    def call(*arguments: Any) -> Any:
        if pending:
            raise pending.pop()
        return original(*arguments)

    return call
