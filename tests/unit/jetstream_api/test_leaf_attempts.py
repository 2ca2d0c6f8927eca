"""The leaf node connection while there is no NATS server."""

from __future__ import annotations

import asyncio

import pytest

from liftlog.server.jetstream_api.consumers.leaf import InterestChange, LeafLink
from liftlog.server.jetstream_api.consumers.leaf_login import LeafLogin
from liftlog.settings import NatsSettings


async def test_attempts_to_connect_wake_no_consumers(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 10,000 consumers this would take a fifth of a processor."""
    attempts: list[object] = []

    async def refuse(*arguments: object, **options: object) -> None:
        attempts.append(arguments)
        raise ConnectionRefusedError("refused")

    monkeypatch.setattr(asyncio, "open_connection", refuse)
    many = ["127.0.0.1:1"] * 200  # the pause between two attempts becomes short
    link = LeafLink(many, LeafLogin(NatsSettings()), name="test")
    changes: list[InterestChange] = []
    link.on_interest = changes.append
    link.start()
    async with asyncio.timeout(20):
        while len(attempts) < 5:
            await asyncio.sleep(0.001)
    await link.close()
    assert not changes
