"""When a connection to JetStream is taken for dead, and when not."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from liftlog.sequencing.run import MessageRun
from liftlog.server.metadata import kv_link
from liftlog.server.metadata.kv_link import KvLink
from liftlog.settings import NatsSettings


class Line:
    """A link over a connection on which nothing comes by itself."""

    def __init__(self) -> None:
        self.link = KvLink(NatsSettings(), ["nats://127.0.0.1:1"], "unused")
        self.sent: list[bytes] = []
        self.ended: list[Any] = []
        connection: Any = SimpleNamespace(
            connected=True,
            max_payload_bytes=0,
            lame_duck=False,
            is_read=True,
            send=lambda frame: self.sent.append(frame) or True,
            end=self.ended.append,
        )
        self.connection = self.link._connection = connection

    def ask(self) -> asyncio.Task[bytes]:
        return asyncio.ensure_future(self.link.ask("q", b"", bytes, seconds=30))

    def answer_first(self) -> None:
        inbox = self.sent.pop(0).split()[2]
        self.link._receive(MessageRun([inbox], [b""], [b"yes"]))

    def judge(self) -> None:
        self.link._judge(self.connection)


@pytest.fixture
async def line(monkeypatch: pytest.MonkeyPatch) -> Line:
    monkeypatch.setattr(kv_link, "_SILENCE_SECONDS", 0.05)
    return Line()


async def test_a_question_without_an_answer_ends_the_connection(line: Line) -> None:
    asking = line.ask()
    await asyncio.sleep(0.1)
    line.judge()
    assert line.ended
    asking.cancel()


async def test_an_answer_to_a_question_that_was_given_up_shows_that_jetstream_is_there(
    line: Line,
) -> None:
    asking = line.ask()
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.wait({asking})
    line.answer_first()
    await asyncio.sleep(0.1)
    line.judge()
    assert not line.ended
    asking = line.ask()
    await asyncio.sleep(0)
    line.answer_first()
    assert await asking == b"yes"
