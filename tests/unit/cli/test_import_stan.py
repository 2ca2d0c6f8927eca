"""Reading NATS Streaming, beside what tests/integration/test_importing_from_others.py does."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import nats
import pytest

from liftlog.cli.imports import import_stan, whole_headers
from liftlog.cli.imports.import_sources import Item
from liftlog.cli.imports.import_stan import NatsStreaming


class _Connection:
    async def connect(self, *_: object, **__: object) -> None:
        pass

    async def close(self) -> None:
        pass


class _Session:
    """Three messages, from a server that does not answer a close."""

    def __init__(self, connection: Any) -> None:
        pass

    async def open(self, cluster: str) -> None:
        pass

    async def close(self) -> None:
        raise nats.errors.TimeoutError

    async def last(self, channel: str) -> int:
        return 3

    async def messages(self, channel: str, first: int) -> AsyncGenerator[list[Item]]:
        yield [Item(number, channel, b"") for number in range(first, 4)]


async def test_a_copy_is_whole_although_the_server_does_not_answer_the_close(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(whole_headers, "WholeHeaders", _Connection)
    monkeypatch.setattr(import_stan, "_Session", _Session)
    source = NatsStreaming(["nats://127.0.0.1:1"], None, "old", "orders")
    numbers = [item.sequence async for items in source.batches(1) for item in items]
    assert numbers == [2, 3]
