"""The publisher and a connection of nats-py that is lost, reconnects, or is closed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from liftlog.client.publisher import (
    NotPublished,
    OrderBroken,
    Publisher,
    PublishRefused,
    PublishUnknown,
)
from liftlog.errors import LiftlogError
from liftlog.records.message_headers import MessageHeaders


class Connection:
    """The part of nats-py's client that a publisher uses. It acks messages that `answers`
    accepts."""

    def __init__(self) -> None:
        self.is_connected = True
        self.is_closed = False
        self.is_draining_pubs = False
        self.stats = {"reconnects": 0, "out_msgs": 0, "out_bytes": 0}
        self._flush_queue = None
        self.max_payload = 1000
        self.answers: Callable[[int], bytes | None] = lambda number: ack(number)
        self.sent: list[tuple[bytes, dict[str, str]]] = []
        self.fails: Exception | None = None
        self._hear: Callable[[Any], Awaitable[None]] | None = None

    def new_inbox(self) -> str:
        return "_INBOX.x"

    async def subscribe(self, subject: str, cb: Callable[[Any], Awaitable[None]]) -> Any:
        assert subject == "_INBOX.x.>"
        self._hear = cb

        async def unsubscribe() -> None:
            self._hear = None

        return SimpleNamespace(unsubscribe=unsubscribe)

    async def _send_command(self, command: bytes) -> None:
        head, _, rest = command.partition(b"\r\n")
        operation, _, reply, size, total = head.decode().split(" ")
        assert (operation, rest[int(total) :]) == ("HPUB", b"\r\n")
        await self.publish("", rest[int(size) : int(total)], reply, rest[: int(size)])

    async def publish(self, subject: str, payload: bytes, reply: str, block: bytes = b"") -> None:
        if self.fails is not None:
            raise self.fails
        self.sent.append((payload, dict(MessageHeaders(block))))
        body = self.answers(len(self.sent))
        if body is not None:
            assert self._hear is not None
            await self._hear(SimpleNamespace(subject=reply, data=body, headers=None))

    @property
    def payloads(self) -> list[bytes]:
        return [payload for payload, _ in self.sent]


def ack(offset: int) -> bytes:
    return json.dumps({"stream": "s", "seq": offset}).encode()


def nothing(_: int) -> None:
    return None


async def soon(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.001)


@pytest.fixture
def nc() -> Any:
    return Connection()


async def test_nothing_is_handed_to_a_connection_that_is_down(nc: Any) -> None:
    """nats-py would keep the message and send it after reconnecting."""
    async with Publisher(nc) as publisher:
        nc.is_connected = False
        future = await publisher.submit("s", b"1")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(future), 0.15)
        assert nc.sent == []
        nc.is_connected = True
        assert (await future).offset == 1
        assert nc.payloads == [b"1"]

    async with Publisher(nc, retry_for=0.1) as publisher:
        nc.is_connected = False
        with pytest.raises(NotPublished, match="could not be sent"):
            await publisher.publish("s", b"2")
    assert nc.payloads == [b"1"]


@pytest.mark.parametrize("order", ["any", "one_in_flight", "sequence"])
async def test_after_a_reconnect_nobody_waits_for_the_timeout(nc: Any, order: Any) -> None:
    nc.answers = nothing
    async with Publisher(nc, ack_timeout=60, expect=["s"], order=order) as publisher:
        future = await publisher.submit("s", b"1")
        await soon(lambda: nc.sent)
        nc.answers = ack
        nc.stats["reconnects"] = 1
        async with asyncio.timeout(5):
            await future
    (_, first), (_, second) = nc.sent
    assert first["Nats-Msg-Id"] == second["Nats-Msg-Id"]


async def test_a_connection_closed_for_good_ends_everything(nc: Any) -> None:
    nc.answers = nothing
    async with Publisher(nc, ack_timeout=60) as publisher:
        future = await publisher.submit("s", b"1")
        await soon(lambda: nc.sent)
        nc.is_closed = True
        with pytest.raises(PublishUnknown, match="closed"):
            await future
        with pytest.raises(LiftlogError, match="connection to NATS is closed"):
            await publisher.publish("s", b"2")


async def test_what_nobody_foresaw_is_told_to_everyone_who_waits(
    nc: Any, caplog: pytest.LogCaptureFixture
) -> None:
    nc.fails = RuntimeError("surprise")
    async with Publisher(nc) as publisher:
        futures = [await publisher.submit("s", b"1") for _ in range(3)]
        for future in futures:
            with pytest.raises((PublishUnknown, NotPublished), match="surprise"):
                await future
        with pytest.raises(LiftlogError, match="surprise"):
            await publisher.publish("s", b"2")
    assert "publisher-stopped" in caplog.text


async def test_one_in_flight_stops_after_an_unknown_end(nc: Any) -> None:
    nc.answers = nothing
    settings: dict[str, Any] = {"order": "one_in_flight", "ack_timeout": 0.02, "retry_for": 0.05}
    async with Publisher(nc, **settings) as publisher:
        publishing = [asyncio.create_task(publisher.publish("s", b"%d" % i)) for i in range(1, 4)]
        first, *behind = await asyncio.gather(*publishing, return_exceptions=True)
        assert isinstance(first, PublishUnknown)
        assert all(isinstance(failure, OrderBroken) for failure in behind)
        assert set(nc.payloads) == {b"1"}
        nc.answers = ack
        publisher.resume()
        await publisher.publish("s", b"4")


async def test_one_in_flight_goes_on_after_a_refusal(nc: Any) -> None:
    too_large = b'{"error":{"code":400,"err_code":10054},"stream":"s","seq":0}'
    nc.answers = lambda number: too_large if number == 1 else ack(number)
    async with Publisher(nc, order="one_in_flight") as publisher:
        with pytest.raises(PublishRefused):
            await publisher.publish("s", b"1")
        await publisher.publish("s", b"2")


async def test_ids_are_made_only_for_repeating(nc: Any) -> None:
    async with Publisher(nc, retry_for=0) as publisher:
        await publisher.publish("s", b"1")
        await publisher.publish("s", b"2", message_id="mine")
    async with Publisher(nc) as publisher:
        async with asyncio.TaskGroup() as group:
            for _ in range(10):
                group.create_task(publisher.publish("s", b""))
    ids = [headers.get("Nats-Msg-Id") for _, headers in nc.sent]
    assert ids[:2] == [None, "mine"]
    assert len(set(ids[2:])) == 10


async def test_a_cancelled_publish_frees_its_place(nc: Any) -> None:
    nc.answers = nothing
    async with Publisher(nc, max_in_flight=1, ack_timeout=0.02) as publisher:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(publisher.publish("s", b"1"), 0.05)
        nc.answers = ack
        await publisher.publish("s", b"2")
    assert set(nc.payloads) == {b"1", b"2"}
    # While it waits for a place, too: nothing is sent then.
    nc.answers = nothing
    async with Publisher(nc, max_in_flight=1, ack_timeout=60) as publisher:
        held = await publisher.submit("s", b"3")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(publisher.publish("s", b"4"), 0.02)
        await publisher.close()
        with pytest.raises(PublishUnknown):
            await held
    assert b"4" not in nc.payloads
